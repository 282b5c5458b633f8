"""Oracle of lab 10: lists of tokens, each with the keys and values of its own pass, and attention by definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np
import torch

from mlsys_lab.checks.learner.kv_cache import CUT, DROP, START
from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.models.aging import AgingModel

VOCABULARY = AgingModel().config.vocab_size
Kept = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Key and value (K, H) of one token, by layer."""


def draw_weights(rng: np.random.Generator, *, learned: bool = False) -> Arrays:
    """Weights of an `AgingModel` with which a token's logits are clearly apart, and whether it learned positions."""
    model = AgingModel(position="learned" if learned else "rotary")
    drawn = [
        1 + 0.2 * rng.standard_normal(p.numel())
        if p.ndim == 1
        else rng.standard_normal(p.numel()) * 1.5 / p.shape[1] ** 0.5
        for p in model.parameters()
    ]
    return {"weights": np.concatenate(drawn), "learned": np.array(learned)}


def write_model(arrays: Arrays) -> str:
    """The case's model as code."""
    learned = ', position="learned"' if arrays["learned"] else ""
    return f'model = AgingModel(torch.from_numpy(given["weights"]){learned})'


def draw_tokens(rng: np.random.Generator, count: int) -> np.ndarray:
    """Tokens of the aging model's vocabulary, (count,) int64."""
    return rng.integers(0, VOCABULARY, count)


def mix(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """What a query q (..., H) makes of the keys and values (S, ..., H) that it sees, in float64: (..., H)."""
    scores = (keys.astype(np.float64) * q).sum(-1) / np.sqrt(q.shape[-1])
    shares = np.exp(scores - scores.max(0))
    mixed: np.ndarray = (shares[..., None] * values).sum(0) / shares.sum(0)[..., None]
    return mixed


def read_plan(text: str) -> np.ndarray:
    """A plan, as `follow` plays it: a word for each step, with a letter for each sequence.

    "+" begins it, "-" drops it, a figure is a number of new tokens, and a, b, c … keep its first 0, 1, 2 … tokens.
    """
    known = {"+": START, "-": DROP} | {str(n): n for n in range(10)}
    known |= {letter: CUT - n for n, letter in enumerate(ascii_lowercase)}
    return np.array([[known[letter] for letter in word] for word in text.split()])


class Lists:
    """Sequences that come, are cut and go as in a cache: by number a list of whatever stands for each token."""

    def __init__(self) -> None:
        self.kept: dict[int, list[Any]] = {}
        self._started = 0

    def start(self) -> int:
        """Number of a new, empty sequence."""
        self.kept[self._started] = []
        self._started += 1
        return self._started - 1

    def drop(self, sequence: int) -> None:
        """Forget a sequence."""
        del self.kept[sequence]

    def truncate(self, sequence: int, length: int) -> None:
        """Forget all but the first tokens of a sequence."""
        del self.kept[sequence][length:]


class Script(Lists):
    """Lists that write down what is done to them, as code on a `cache`: sequences are a, b, c as they come."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.lines = list(lines)

    def name(self, sequence: int) -> str:
        """What a sequence is called."""
        return ascii_lowercase[sequence]

    def start(self) -> int:
        """Number of a new sequence."""
        sequence = super().start()
        self.lines.append(f"{self.name(sequence)} = cache.start()")
        return sequence

    def drop(self, sequence: int) -> None:
        """Forget a sequence."""
        self.lines.append(f"cache.drop({self.name(sequence)})")

    def truncate(self, sequence: int, length: int) -> None:
        """Forget all but the first tokens of a sequence."""
        self.lines.append(f"cache.truncate({self.name(sequence)}, {length})")


class Texts(Lists):
    """Sequences on an aging model: of each token what it left in every layer, in the pass in which it was fed."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__()
        position = "learned" if arrays["learned"] else "rotary"
        self.model = AgingModel(torch.from_numpy(arrays["weights"]), position=position)  # type: ignore[arg-type]
        self.kept: dict[int, list[Kept]]

    @torch.no_grad()
    def feed(self, new: Mapping[int, Sequence[int]]) -> np.ndarray:
        """Logits after each new token of a pass, (Q, V)."""
        tokens = [token for part in new.values() for token in part]
        owners = [sequence for sequence, part in new.items() for _ in part]
        places = [len(self.kept[sequence]) + i for sequence, part in new.items() for i in range(len(part))]
        for sequence in owners:
            self.kept[sequence].append({})

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            for i, (sequence, place) in enumerate(zip(owners, places, strict=True)):
                self.kept[sequence][place][layer] = (k[0, :, i].clone(), v[0, :, i].clone())
            heads = np.empty(q.shape)
            for i, (sequence, place) in enumerate(zip(owners, places, strict=True)):
                seen = [one[layer] for one in self.kept[sequence][: place + 1]]
                keys, values = (torch.stack(part).numpy() for part in zip(*seen, strict=True))  # (S, K, H)
                heads[0, :, i] = mix(q[0, :, i].numpy(), keys, values)
            return torch.from_numpy(heads)

        logits: np.ndarray = self.model(torch.tensor([tokens]), positions=torch.tensor([places]), attend=attend)[
            0
        ].numpy()
        return logits
