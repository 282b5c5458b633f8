"""From logits to a token: the distribution that options make of them, and a draw from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.generate.filters import keep_min_p, keep_top_k, keep_top_p, penalise_repetition


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; InputError for options that are out of range or contradict each other.

    `temperature` divides the logits; 0 is greedy: always the likeliest token. `top_k`, `top_p` and `min_p` leave out
    unlikely tokens, in this order, each looking at what the one before left. `repetition_penalty` above 1 makes tokens
    of the prompt and the text so far less likely, and comes first. A `seed` gives the same text every time; None draws
    another one each time. At temperature 0 every text is the same, with a seed or without.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _require_number("temperature", self.temperature, 0, math.inf, "0 (greedy) or a positive number")
        _require_number("repetition_penalty", self.repetition_penalty, math.ulp(0.0), math.inf, "a positive number")
        for name in ("top_p", "min_p"):
            if getattr(self, name) is not None:
                _require_number(name, getattr(self, name), math.ulp(0.0), 1, "above 0, at most 1, or None")
        for name, least in (("top_k", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InputError(
                    f"{name} out of range", got=repr(value), expected=f"a whole number from {least}, or None"
                )
        idle = [name for name in ("top_k", "top_p", "min_p") if getattr(self, name) is not None]
        if self.greedy and idle:
            raise InputError(
                "temperature 0 always takes the likeliest token, so there is nothing to leave out",
                got=", ".join(f"{name}={getattr(self, name)}" for name in idle),
                help="leave these out, or give a temperature above 0",
            )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always chosen."""
        return self.temperature == 0

    def probabilities(self, logits: torch.Tensor, seen: Iterable[int]) -> torch.Tensor:
        """Distribution that the next token is drawn from, (V,) in float64, of logits (V,) and the tokens so far.

        Where greedy, all of it is on one token. InputError for logits that are not numbers.
        """
        require_numbers(logits)
        return self.distribute(logits[None], [seen])[0]

    def distribute(self, logits: torch.Tensor, seen: Sequence[Iterable[int]]) -> torch.Tensor:
        """Distributions (R, V) as `probabilities` has them, of R texts' logits (R, V) and each one's tokens so far."""
        logits = logits.double()
        if self.repetition_penalty != 1:
            penalty = self.repetition_penalty
            rows = [penalise_repetition(row, known, penalty) for row, known in zip(logits, seen, strict=True)]
            logits = torch.stack(rows)
        if self.greedy:
            return torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1)
        logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature  # the likeliest at 0: nothing overflows
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = keep_top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = keep_min_p(logits, self.min_p)
        return logits.softmax(-1)

    def generators(self, count: int) -> list[torch.Generator]:
        """A source of random numbers for each of `count` sequences of one prompt.

        Numbers depend on the seed and the place among these alone, so that other prompts in a batch change nothing.
        """
        children = np.random.SeedSequence(self.seed).spawn(count)
        return [torch.Generator().manual_seed(int(child.generate_state(1, np.uint64)[0])) for child in children]


class Chooser(NamedTuple):
    """A text whose next token is to be chosen: how, the tokens so far, and its own source of random numbers."""

    sampling: Sampling
    seen: Sequence[int]
    generator: torch.Generator


def choose(texts: Sequence[Chooser], logits: torch.Tensor) -> list[tuple[int, float]]:
    """Next token of each of R texts by logits (R, V), and the logarithm of the probability that the model gave it.

    One random number is taken from each generator, greedily or not. All texts are chosen for together, so that a GPU is
    waited for as often for many as for one. InputError, with nothing taken, for logits that are not numbers.
    """
    if not texts:
        return []
    require_numbers(logits)
    alike: dict[Sampling, list[int]] = {}
    for row, text in enumerate(texts):
        alike.setdefault(replace(text.sampling, seed=None), []).append(row)
    parts = [
        sampling.distribute(logits if len(alike) == 1 else logits[rows], [texts[row].seen for row in rows])
        for sampling, rows in alike.items()
    ]
    order = [row for rows in alike.values() for row in rows]
    uniforms = [torch.rand((), generator=texts[row].generator, dtype=torch.float64) for row in order]
    tokens = draw(torch.cat(parts), torch.stack(uniforms).to(logits.device))  # (R,), in this order
    logprobs = logits[order].double().log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    both = torch.stack([tokens.double(), logprobs]).tolist()  # numbers of tokens are exact in float64
    chosen = dict(zip(order, zip(map(int, both[0]), both[1], strict=True), strict=True))
    return [chosen[row] for row in range(len(texts))]


def require_numbers(logits: torch.Tensor) -> None:
    """Raise InputError for logits among which some are not numbers; waits for a GPU."""
    if logits.isnan().any():
        raise InputError("the model's logits are not numbers", help="its weights may be damaged")


def draw(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Draw one token from each distribution: (..., V) and numbers in [0, 1), (...), -> (...), int64.

    The token is the first at which the sum of probabilities exceeds the number, so one of probability 0 is never drawn.
    """
    sums = probabilities.cumsum(-1)
    return torch.searchsorted(sums, uniforms[..., None] * sums[..., -1:], right=True)[..., 0]


def _require_number(name: str, value: object, least: float, most: float, expected: str) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not least <= float(value) <= most or float(value) == math.inf:  # type: ignore[arg-type]
        raise InputError(f"{name} out of range", got=repr(value), expected=expected)
