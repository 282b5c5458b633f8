"""A simulated cluster that runs training experiments and charges their FLOPs to a budget.

Its `World` is a law drawn from a seed, with a learning rate whose best value falls with size. Runs are noisy, some are
lost to failures of the hardware, and a learning rate far too high diverges: what was computed until then is charged.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from mlsys_lab.errors import InputError
from mlsys_lab.scaling.curves import Curve, Runs
from mlsys_lab.scaling.laws import FLOPS_PER_PARAMETER_TOKEN, ChinchillaLaw, FloatArray, PowerLaw, positive_array

SMALLEST_PARAMS, LARGEST_PARAMS = 10_000, 10**13
SMALLEST_TOKENS = 1000
POINTS = 32
"""Number of points of a curve, evenly spaced in log tokens over its last factor of 100."""
CURVE_SPAN = 100
"""Ratio of a curve's last number of tokens to its first, which is no less than SMALLEST_TOKENS."""


@dataclass(frozen=True)
class World:
    """The hidden truth behind the service: a loss law and how training departs from it.

    `law` holds for runs that finish their schedule at the best learning rate, `best_learning_rate` is a power law of
    N, `sensitivity` is the share by which the loss above the floor grows for a learning rate e times off,
    `divergence` is how many times too high makes training diverge, and `schedule_gap` is the share by which the loss
    above the floor exceeds a finished run's when the schedule has only begun.
    """

    law: ChinchillaLaw
    best_learning_rate: PowerLaw
    sensitivity: float
    divergence: float
    schedule_gap: float

    @classmethod
    def draw(cls, seed: int) -> World:
        """Draw a world at random from a seed.

        Exponents are 0.28 to 0.42, 5 to 80 tokens a parameter are optimal at 1e20 FLOPs, the floor is 1.5 to 2, and
        best learning rates are about 1e-3 at 100 million parameters and fall with N to the 0.15 to 0.35.
        """
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise InputError("a seed must be a whole number", got=repr(seed), expected="0 or more")
        rng = np.random.default_rng([seed, 0])
        alpha, beta = (float(rng.uniform(0.28, 0.42)) for _ in range(2))
        flops, ratio = 1e20, np.exp(rng.uniform(np.log(5), np.log(80)))
        n_opt = np.sqrt(flops / (FLOPS_PER_PARAMETER_TOKEN * ratio))
        by_params = rng.uniform(0.35, 0.6)  # A/N^alpha at that optimum; there alpha·A/N^alpha = beta·B/D^beta
        A = by_params * n_opt**alpha
        B = by_params * alpha / beta * (ratio * n_opt) ** beta
        exponent = -rng.uniform(0.15, 0.35)
        return cls(
            law=ChinchillaLaw(E=float(rng.uniform(1.5, 2.0)), A=float(A), B=float(B), alpha=alpha, beta=beta),
            best_learning_rate=PowerLaw(float(rng.uniform(6e-4, 1.6e-3) * 1e8**-exponent), float(exponent)),
            sensitivity=float(rng.uniform(0.03, 0.06)),
            divergence=float(rng.uniform(5, 10)),
            schedule_gap=float(rng.uniform(0.03, 0.08)),
        )

    def loss(
        self,
        n_params: ArrayLike,
        tokens: ArrayLike,
        learning_rate: ArrayLike | None = None,
        progress: ArrayLike = 1.0,
    ) -> FloatArray:
        """Expected loss, nats a token, after `tokens` tokens and a fraction `progress` of the schedule."""
        above = self.law.loss(n_params, tokens) - self.law.E
        if learning_rate is not None:
            off = np.log(positive_array("learning rate", learning_rate) / self.best_learning_rate(n_params))
            above = above * (1 + self.sensitivity * off**2)
        return self.law.E + above * (1 + self.schedule_gap * (1 - np.asarray(progress, dtype=np.float64)))


@dataclass(frozen=True)
class Outcome:
    """Result of one requested run.

    `curve` is the loss at up to POINTS numbers of tokens, until the run ended; None where it ended before the first of
    them. `flops` is what was charged, 6N for each token trained on.
    """

    n_params: int
    tokens: int
    learning_rate: float
    status: Literal["finished", "failed", "diverged"]
    tokens_done: int
    curve: Curve | None

    @property
    def flops(self) -> int:
        """FLOPs charged for the run, exactly: 6N for each token trained on."""
        return FLOPS_PER_PARAMETER_TOKEN * self.n_params * self.tokens_done

    @property
    def finished(self) -> bool:
        """Whether the run trained on all its tokens."""
        return self.status == "finished"

    @property
    def loss(self) -> float:
        """Final loss in nats a token; nan unless the run finished."""
        return self.curve.final_loss if self.finished and self.curve is not None else float("nan")


class ExperimentService:
    """A simulated cluster: runs experiments in the world of a seed until the budget of FLOPs is spent.

    The same requests give the same outcomes, in whatever order they are made; the same request made again gives
    another draw of noise and luck. `noise` is the standard deviation of the log of the loss above the floor, shared
    by a whole curve; `failure_rate` is the chance that a run is lost on the way.
    """

    def __init__(
        self,
        budget_flops: float,
        seed: int,
        *,
        noise: float = 0.01,
        failure_rate: float = 0.05,
        world: World | None = None,
    ) -> None:
        if not (np.isfinite(budget_flops) and budget_flops > 0):
            raise InputError("the budget must be positive", got=budget_flops, expected="FLOPs")
        if not 0 <= failure_rate < 1 or not (noise >= 0 and np.isfinite(noise)):
            raise InputError("chances out of range", got=f"noise {noise:g}, failure_rate {failure_rate:g}")
        self.budget_flops = int(budget_flops)
        drawn = World.draw(seed)
        self._seed, self._noise, self._failure_rate = seed, noise, failure_rate
        self._world = drawn if world is None else world
        self._history: list[Outcome] = []

    @property
    def history(self) -> tuple[Outcome, ...]:
        """Outcomes of all requests so far, in order."""
        return tuple(self._history)

    @property
    def spent_flops(self) -> int:
        """FLOPs charged so far, exactly."""
        return sum(outcome.flops for outcome in self._history)

    @property
    def remaining_flops(self) -> int:
        """FLOPs that are left of the budget, exactly."""
        return self.budget_flops - self.spent_flops

    @property
    def runs(self) -> Runs:
        """Parameters, tokens and final loss of the runs that finished; `InputError` where none has."""
        return Runs.from_curves(outcome.curve for outcome in self._history if outcome.finished and outcome.curve)

    def run(self, n_params: float, tokens: float, learning_rate: float) -> Outcome:
        """Train N parameters on D tokens with a schedule that ends there, and pay 6N for each token trained on.

        `InputError`, at no charge, for a request that cannot be run or whose 6ND exceeds what is left.
        """
        size = _require_whole("n_params", n_params, SMALLEST_PARAMS, LARGEST_PARAMS)
        length = _require_whole("tokens", tokens, SMALLEST_TOKENS, None)
        rate = _rate(learning_rate)
        cost = FLOPS_PER_PARAMETER_TOKEN * size * length
        if cost > self.remaining_flops:
            raise InputError(
                "the budget does not allow this run",
                got=f"6ND = {cost:.4g} FLOPs",
                expected=f"at most {self.remaining_flops:.4g}",
            )
        asked = sum((o.n_params, o.tokens, o.learning_rate) == (size, length, rate) for o in self._history)
        rng = np.random.default_rng([self._seed, 1, size, length, int(np.float64(rate).view(np.uint64)), asked])
        shift, luck, place = rng.normal(0, self._noise), rng.uniform(), rng.uniform()
        status: Literal["finished", "failed", "diverged"] = "finished"
        if luck < self._failure_rate:
            status, done = "failed", int(place * length)
        elif rate > self._world.divergence * self._world.best_learning_rate(size):
            status, done = "diverged", int((0.05 + 0.25 * place) * length)
        else:
            done = length
        outcome = Outcome(size, length, rate, status, done, self._curve(size, length, rate, done, float(shift)))
        self._history.append(outcome)
        return outcome

    def run_all(self, n_params: ArrayLike, tokens: ArrayLike, learning_rate: ArrayLike) -> FloatArray:
        """Make runs (R,) in turn, sizes and tokens rounded down; return (4, R): N, D, learning rate, final loss.

        The loss is NaN where a run failed or diverged. `InputError` as for `run`: what was run before it stays charged.
        """
        asked = zip(np.floor(n_params), np.floor(tokens), np.asarray(learning_rate, dtype=np.float64), strict=True)
        outcomes = [self.run(*request) for request in asked]
        return np.array([(one.n_params, one.tokens, one.learning_rate, one.loss) for one in outcomes]).reshape(-1, 4).T

    def _curve(self, size: int, length: int, rate: float, done: int, shift: float) -> Curve | None:
        places = np.unique(np.geomspace(max(length / CURVE_SPAN, SMALLEST_TOKENS), length, POINTS).round())
        tokens = places[places <= done]
        if not len(tokens):
            return None
        floor = self._world.law.E
        above = self._world.loss(size, tokens, rate, tokens / length) - floor
        return Curve(size, tokens, floor + above * np.exp(shift))


def _require_whole(what: str, amount: float, least: int, most: int | None) -> int:
    """Convert to a whole number within [least, most], exactly; floats such as 1e9 are taken when they are whole."""
    try:
        number = int(amount) if isinstance(amount, float | np.floating) else operator.index(amount)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{what} must be a whole number", got=repr(amount)) from None
    if number != amount:
        raise InputError(f"{what} must be a whole number", got=repr(amount), help=f"round({what})")
    if number < least or (most is not None and number > most):
        raise InputError(
            f"{what} out of range", got=number, expected=f"at least {least}" + (f", at most {most:g}" if most else "")
        )
    return number


def _rate(learning_rate: float) -> float:
    array = positive_array("learning rate", learning_rate)
    if array.ndim:
        raise InputError("learning rate must be one number", got=repr(learning_rate))
    return float(array)
