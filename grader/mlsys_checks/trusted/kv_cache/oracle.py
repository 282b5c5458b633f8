"""Oracle of lab 10: lists of tokens, each with the keys and values of its own pass, and attention by definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.kv_cache.plans import CUT, DROP, SHAPE, START, kind_of_model
from mlsys_checks.sandboxed.spec import Arrays, Case
from mlsys_lab.models.aging import AgingModel

VOCABULARY = AgingModel().config.vocab_size
Kept = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Key and value (K, H) of one token, by layer."""


def pick_model(case: Case) -> Arrays:
    """What a case asks of its aging model, as `kind_of_model` reads it."""
    return {name: np.array(case.params[name]) for name in (*SHAPE, "learned") if name in case.params}


def draw_weights(rng: np.random.Generator, case: Case) -> Arrays:
    """Weights of the case's aging model with which a token's logits are clearly apart, and what is asked of it."""
    picked = pick_model(case)
    model = AgingModel(**kind_of_model(picked))
    drawn = [
        1 + 0.2 * rng.standard_normal(p.numel())
        if p.ndim == 1
        else rng.standard_normal(p.numel()) * 1.5 / p.shape[1] ** 0.5
        for p in model.parameters()
    ]
    return {"weights": np.concatenate(drawn), **picked}


def write_model(arrays: Arrays) -> str:
    """The case's model as code."""
    asked = "".join(f", {name}={value!r}" for name, value in kind_of_model(arrays).items())
    return f'model = AgingModel(torch.from_numpy(given["weights"]){asked})'


def draw_tokens(rng: np.random.Generator, count: int) -> np.ndarray:
    """Tokens of the aging model's vocabulary, (count,) int64."""
    return rng.integers(0, VOCABULARY, count)


def draw_others(rng: np.random.Generator, case: Case) -> Arrays:
    """Texts (R, tokens) of sequences that are there besides, of which each gets its last token in the end."""
    count, tokens = case.params.get("beside", (0, 1))
    return {"beside": draw_tokens(rng, count * tokens).reshape(count, tokens)}


def mix(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """What a query q (..., H) makes of the keys and values (S, ..., H) that it sees, in float64: (..., H)."""
    scores = (keys.astype(np.float64) * q).sum(-1) / np.sqrt(q.shape[-1])
    shares = np.exp(scores - scores.max(0))
    mixed: np.ndarray = (shares[..., None] * values).sum(0) / shares.sum(0)[..., None]
    return mixed


def read_plan(text: str) -> np.ndarray:
    """A plan, as `follow` plays it: a word for each step, with a letter for each sequence.

    "+" begins it, "-" drops it, 0 to 9 and then A, B, C … are numbers of new tokens, and a, b, c … keep its first 0, 1,
    2 … tokens.
    """
    known = {"+": START, "-": DROP} | {figure: n for n, figure in enumerate(digits + ascii_uppercase)}
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
        self.model = AgingModel(torch.from_numpy(arrays["weights"]), **kind_of_model(arrays))
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
            heads, shared = np.empty(q.shape), q.shape[1] // k.shape[1]
            window = self.model.window or self.model.config.context
            for i, (sequence, place) in enumerate(zip(owners, places, strict=True)):
                seen = [one[layer] for one in self.kept[sequence][max(0, place + 1 - window) : place + 1]]
                keys, values = (torch.stack(part).numpy().repeat(shared, 1) for part in zip(*seen, strict=True))
                heads[0, :, i] = mix(q[0, :, i].numpy(), keys, values)
            return torch.from_numpy(heads)

        logits = self.model(torch.tensor([tokens]), positions=torch.tensor([places]), attend=attend)
        return logits[0].numpy()  # type: ignore[no-any-return]


def begin_others(texts: Texts, arrays: Arrays) -> dict[int, list[int]]:
    """Feed the texts beside, all but their last tokens: these, by sequence."""
    others = {texts.start(): text for text in arrays["beside"].tolist()}
    if others:
        texts.feed({sequence: text[:-1] for sequence, text in others.items()})
    return {sequence: text[-1:] for sequence, text in others.items()}


def end_others(texts: Texts, following: Mapping[int, Sequence[int]]) -> Arrays:
    """Which sequences are left, how long they are, and the logits after the last tokens of those beside."""
    answers = {
        "sequences that are left": np.array(sorted(texts.kept), dtype=np.int64),
        "lengths of these": np.array([len(texts.kept[sequence]) for sequence in sorted(texts.kept)], dtype=np.int64),
    }
    return answers | ({"logits of the others": texts.feed(following)} if following else {})


def write_others(arrays: Arrays) -> tuple[list[str], list[str]]:
    """Code that begins the texts beside, as sequences 0, 1 …, and code that ends them."""
    texts = dict(enumerate(arrays["beside"].tolist()))
    if not texts:
        return [], ["cache.sequences"]
    first, last = ({sequence: text[part] for sequence, text in texts.items()} for part in (slice(-1), slice(-1, None)))
    begun = [*(["cache.start()"] * len(texts)), f"begun = extend(model, cache, {first})"]
    return begun, ["print(cache.sequences)", f"extend(model, cache, {last})"]
