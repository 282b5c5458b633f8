"""From logits to a token: the distribution that options make of them, and a draw from it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

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
    another one each time.
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
        idle = [name for name in ("top_k", "top_p", "min_p", "seed") if getattr(self, name) is not None]
        if self.greedy and idle:
            raise InputError(
                "temperature 0 draws nothing, so there is nothing to leave out or to seed",
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
        if logits.isnan().any():
            raise InputError("the model's logits are not numbers", help="its weights may be damaged")
        logits = penalise_repetition(logits.double(), seen, self.repetition_penalty)
        if self.greedy:
            return torch.zeros_like(logits).index_fill(0, logits.argmax(), 1)
        logits = (logits - logits.max()) / self.temperature  # the likeliest at 0: nothing overflows
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


def choose(
    sampling: Sampling, logits: torch.Tensor, seen: Iterable[int], generator: torch.Generator
) -> tuple[int, float]:
    """Next token by logits (V,) and the tokens so far, and the logarithm of the probability that the model gave it.

    One random number is taken from the generator, greedily or not.
    """
    probabilities = sampling.probabilities(logits, seen)
    uniform = torch.rand((), generator=generator, dtype=torch.float64).to(logits.device)
    token = int(draw(probabilities, uniform))
    return token, float(logits.double().log_softmax(-1)[token])


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
