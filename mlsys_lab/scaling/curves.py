"""Records of training runs: finished runs, and the loss along each training curve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlsys_lab.errors import InputError
from mlsys_lab.scaling.laws import FloatArray, positive_array, training_flops


@dataclass(frozen=True)
class Curve:
    """One training run of `n_params` parameters: the loss (K,) after each of several numbers of tokens (K,)."""

    n_params: float
    tokens: FloatArray
    loss: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_params", float(positive_array("parameters of a curve", self.n_params)))
        _columns(self, "tokens", "loss")
        if np.any(np.diff(self.tokens) <= 0):
            raise InputError("tokens along a curve must rise")

    @property
    def flops(self) -> FloatArray:
        """Training FLOPs 6ND at each point of the curve, (K,)."""
        return training_flops(self.n_params, self.tokens)

    @property
    def final_loss(self) -> float:
        """Loss at the end of the run, in nats a token."""
        return float(self.loss[-1])


@dataclass(frozen=True)
class Runs:
    """Finished training runs, one for each element: parameters, tokens and final loss, all of shape (R,)."""

    n_params: FloatArray
    tokens: FloatArray
    loss: FloatArray

    def __post_init__(self) -> None:
        _columns(self, "n_params", "tokens", "loss")

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def flops(self) -> FloatArray:
        """Training FLOPs 6ND of each run, (R,)."""
        return training_flops(self.n_params, self.tokens)

    def take(self, rows: ArrayLike | slice) -> Runs:
        """A subset of the runs, by slice, by mask, or by index (an index may come twice)."""
        chosen: slice | NDArray[np.int64] = rows if isinstance(rows, slice) else np.asarray(rows)
        return Runs(self.n_params[chosen], self.tokens[chosen], self.loss[chosen])

    @classmethod
    def from_curves(cls, curves: Iterable[Curve]) -> Runs:
        """Runs made of the last point of each curve."""
        ends = [(curve.n_params, curve.tokens[-1], curve.loss[-1]) for curve in curves]
        if not ends:
            raise InputError("no curves", expected="at least one")
        return cls(*np.array(ends).T)


def _columns(record: Curve | Runs, *names: str) -> None:
    """Make each named field a float64 array; `InputError` unless all are (K,), positive and as long as each other."""
    columns = {name: np.atleast_1d(positive_array(f"{name} of runs", getattr(record, name))) for name in names}
    shapes = {name: column.shape for name, column in columns.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        got = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError("columns of runs must be one-dimensional and as long as each other", got=got)
    for name, column in columns.items():
        object.__setattr__(record, name, column)
