"""What lab 16's functions are given: a rank's part of a run, a sequence to generate, and a machine's rates.

Dimension letters: D tokens of the data; (m, k, n) an (m, k) by a (k, n) matrix.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_integer, require_non_negative, require_positive

Shape = tuple[int, int, int]
State = dict[str, torch.Tensor]
"""What a rank needs to continue: its shard of the weights and of the optimizer's states, and its position."""


@dataclass(frozen=True)
class TrainJob:
    """What a rank is given to train: from `state`, its shard of an earlier stop, if any, up to step `until`.

    `stack` has the layers as attributes. `weights` by name, which the rank copies; `ids` (D,).
    """

    stack: Any
    config: TransformerConfig
    weights: Mapping[str, torch.Tensor]
    ids: NDArray[np.int64]
    train: TrainConfig
    state: State | None
    until: int


@dataclass(frozen=True)
class Serving:
    """One sequence to generate: `prompt_tokens` in one prefill, `new_tokens`, of which the prefill gives the first."""

    prompt_tokens: int
    new_tokens: int

    def check(self, config: TransformerConfig) -> None:
        """Raise InputError for sizes below one, and for a sequence that exceeds the context."""
        require_integer("prompt_tokens", self.prompt_tokens)
        require_integer("new_tokens", self.new_tokens)
        length = self.prompt_tokens + self.new_tokens
        if length > config.context:
            raise InputError("prompt and new tokens exceed the context", got=length, expected=f"up to {config.context}")

    def decode_steps(self) -> list[tuple[int, int]]:
        """(new, cached) tokens of each step after the prefill."""
        return [(1, self.prompt_tokens + step) for step in range(self.new_tokens - 1)]


class Rates(dict[Shape, float]):
    """FLOP/s of products by shape; InputError for a shape that was not measured."""

    def __missing__(self, shape: Shape) -> float:
        m, k, n = shape
        got = f"no rate of a ({m}, {k}) by a ({k}, {n}) matrix"
        raise InputError("a calibration of another shape", got=got, help="calibrate for this configuration")


@dataclass(frozen=True)
class Calibration:
    """What the labs' functions of seconds take: of lab 05, lab 07 and lab 10, in this order.

    `rates` are the FLOP/s of products by shape, and `unit_s` the seconds of lab 05's unit of elementwise work;
    `latency_s` and `bytes_per_s` belong to a message between two ranks; `peak_flops_per_s` and `memory_bytes_per_s`
    bound a decode step. Raises InputError for a number that is not finite and positive; a latency may be 0.
    """

    rates: Rates
    unit_s: float
    latency_s: float
    bytes_per_s: float
    peak_flops_per_s: float
    memory_bytes_per_s: float

    def __post_init__(self) -> None:
        numbers = {name: value for name, value in vars(self).items() if name != "rates"}
        require_non_negative(latency_s=numbers.pop("latency_s"))
        require_positive(**numbers, **{f"the rate of {shape}": rate for shape, rate in self.rates.items()})
        if not all(map(math.isfinite, [self.latency_s, *numbers.values(), *self.rates.values()])):
            raise InputError("a calibration must be finite", got=self)

    def slow_down(self, factor: float) -> Calibration:
        """The calibration of a machine on which everything takes `factor` times as long."""
        return Calibration(
            Rates({shape: rate / factor for shape, rate in self.rates.items()}),
            self.unit_s * factor,
            self.latency_s * factor,
            self.bytes_per_s / factor,
            self.peak_flops_per_s / factor,
            self.memory_bytes_per_s / factor,
        )

    def to_json(self) -> str:
        """All numbers as JSON; a rate is [m, k, n, FLOP/s]."""
        return json.dumps(vars(self) | {"rates": [[*shape, rate] for shape, rate in self.rates.items()]}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """Read what `to_json` wrote; InputError for anything else."""
        try:
            numbers = json.loads(text)
            rates = Rates({(int(m), int(k), int(n)): float(rate) for m, k, n, rate in numbers.pop("rates")})
            return cls(rates, **numbers)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError("not a calibration", got=" ".join(str(error).split())) from None
