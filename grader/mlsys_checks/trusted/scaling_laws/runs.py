"""Where runs come from that lab 06 is judged by: a simulated cluster, and training runs that were really made (task 7).

The cluster has a hidden law, noise, failures, and a learning rate that matters. Its truth never enters the process of a
submission: a case holds it in arrays whose names begin with an underscore, and only what an experimenter would see, the
losses of runs, is sent. It behaves like `ExperimentService`, which notebooks talk to, and draws its worlds so that no
fixed rule, such as 20 tokens a parameter, is right in all of them. What runs and a decision are worth in such a world,
its law tells: what they leave open, and what they waste.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlsys_checks.sandboxed import scaling_laws as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.scaling_laws.isoflop import either, minima, parabola_minimum, power_law, stood
from mlsys_checks.trusted.scaling_laws.law import Truth, bisect, huber, refit, residuals, truth_of

NOISE = 0.005
"""Standard deviation of the log of a run's loss above the floor."""
FAILURES = 0.05
"""The chance that a run is lost."""
LARGE, LONG = (4.0, 9.0), (45.0, 100.0)
"""Tokens a parameter that are optimal at 1e20 FLOPs: worlds that want large models, and worlds that want long runs."""


@dataclass(frozen=True)
class Cluster:
    """A law; the best learning rate, a power law of N; and what it costs to miss that."""

    law: Truth
    rate: float
    rate_exponent: float
    sensitivity: float
    divergence: float

    @classmethod
    def draw(cls, rng: np.random.Generator, tokens_per_param: tuple[float, float]) -> Cluster:
        """A world by chance. `rate` is the best one at 100 million parameters."""
        law = Truth.draw(rng, tokens_per_param=tokens_per_param)
        rate, exponent = rng.uniform(6e-4, 1.6e-3), -rng.uniform(0.15, 0.35)
        return cls(law, rate, exponent, sensitivity=rng.uniform(0.03, 0.06), divergence=rng.uniform(5, 10))

    def best_rate(self, n_params: np.ndarray) -> np.ndarray:
        """The best learning rate of each size."""
        return np.asarray(self.rate * (n_params / 1e8) ** self.rate_exponent)

    @property
    def rates(self) -> np.ndarray:
        """The best rates of the two sizes that calls are told of."""
        return self.best_rate(np.array(calls.RATED))

    def losses(self, requests: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """What runs end with, (R,), NaN where they failed or diverged. `requests` (3, R): N, D, learning rate."""
        n_params, tokens, rate = requests
        off = np.log(rate / self.best_rate(n_params))
        above = (self.law.loss(n_params, tokens) - self.law.E) * (1 + self.sensitivity * off**2)
        loss = self.law.E + above * np.exp(NOISE * rng.standard_normal(len(tokens)))
        lost = (rng.uniform(size=len(tokens)) < FAILURES) | (off > np.log(self.divergence))
        return np.where(lost, np.nan, loss)

    def secret(self) -> Arrays:
        """The cluster's constants as arrays that stay with the judge."""
        names = ("rate", "rate_exponent", "sensitivity", "divergence")
        found = self.law.arrays() | {name: np.array(getattr(self, name)) for name in names}
        return {f"_{name}": constant for name, constant in found.items()}


def cluster_of(arrays: Arrays) -> Cluster:
    """The cluster whose secret is among some arrays."""
    rest = (float(arrays[f"_{name}"]) for name in ("rate", "rate_exponent", "sensitivity", "divergence"))
    return Cluster(truth_of(arrays, "_"), *rest)


def scouting(budget_flops: float) -> np.ndarray:
    """The judge's first round, (3, 36): four sizes, nine learning rates each, an eighth of the budget.

    With seven of each, losing three of the largest size's runs misled right solutions once in a thousand draws.
    """
    flops = budget_flops / 8 / 9 * np.array([1, 3, 9, 27]) / 40
    n_params, rate = np.meshgrid(np.sqrt(flops / (6 * 30)), np.geomspace(1e-4, 1e-2, 9), indexing="ij")
    return np.stack([n_params, 30 * n_params, rate]).reshape(3, -1)


def sweeping(cluster: Cluster, left_flops: float, rng: np.random.Generator) -> np.ndarray:
    """The judge's second round, (3, 40): five budgets, eight sizes each, learning rates within a tenth of the best."""
    flops = np.repeat(left_flops / 8 * 3.0 ** np.arange(5) / 121, 8)
    ratio = np.tile(np.geomspace(1.5, 400, 8), 5) * rng.uniform(0.8, 1.25, 40)
    n_params = np.sqrt(flops / (6 * ratio))
    rate = cluster.best_rate(n_params) * np.exp(rng.uniform(-0.1, 0.1, 40))
    return np.stack([n_params, flops / (6 * n_params), rate])


# --- What runs and a decision are worth -----------------------------------------------------------------------------


def fitted_rate(runs: Arrays, at: float) -> float | None:
    """The best rate of a size: a valley in ln η for each (N, D), a power law in N; None where they leave it open."""
    models, model_of = np.unique(np.stack([runs["n_params"], runs["tokens"]]), axis=1, return_inverse=True)
    groups, rates, _ = minima(parabola_minimum, model_of.ravel(), runs["learning_rate"], runs["loss"])
    sizes = models[0][groups.astype(int)]
    if len(set(sizes.tolist())) < 2:
        return None
    coefficient, exponent = power_law(sizes, rates)
    return float(coefficient * at**exponent)


def uncertainty(law: Truth, n_params: np.ndarray, tokens: np.ndarray, target: float) -> tuple[float, float]:
    """Standard deviations, after a fit to runs of these sizes, of ln N_opt at a budget and of the loss there, relative.

    The information that a run holds of (E, ln A, ln B, alpha, beta) is the square of the loss's slopes over the
    variance of its noise; its inverse is the least covariance that any unbiased fit can have (Cramér and Rao).
    Infinite where the runs leave a direction open.
    """
    noise = NOISE * (law.loss(n_params, tokens) - law.E)
    slopes = _slopes(law, n_params, tokens) / noise  # (5, R)
    scale = np.sqrt((slopes**2).sum(axis=1))
    information = (slopes / scale[:, None]) @ (slopes / scale[:, None]).T
    if np.linalg.cond(information) > 1e12:
        return np.inf, np.inf
    covariance = np.linalg.inv(information) / np.outer(scale, scale)
    n = law.best_size(target)
    # ln N_opt = (ln alpha + ln A − ln beta − ln B + beta·ln(C/6)) / (alpha + beta)
    both, log_n = law.alpha + law.beta, np.log(n)
    of_size = np.array([0, 1, -1, 1 / law.alpha - log_n, np.log(target / 6) - 1 / law.beta - log_n]) / both
    of_loss = _slopes(law, np.array([n]), np.array([target / 6 / n]))[:, 0]  # moving N at the optimum changes nothing
    least = law.least_loss(target)
    return float(np.sqrt(of_size @ covariance @ of_size)), float(np.sqrt(of_loss @ covariance @ of_loss)) / least


def _slopes(law: Truth, n_params: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Slopes of each run's loss by E, ln A, ln B, alpha and beta, (5, R)."""
    of_n, of_d = law.A * n_params**-law.alpha, law.B * tokens**-law.beta
    return np.stack([np.ones_like(of_n), of_n, of_d, -of_n * np.log(n_params), -of_d * np.log(tokens)])


def best_law(n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray) -> Truth:
    """The law of least Huber loss over runs, found without knowing the true one."""
    n_mid, d_mid = (float(np.exp(np.log(column).mean())) for column in (n_params, tokens))
    found = []
    for alpha, beta in ((0.3, 0.3), (0.2, 0.6), (0.6, 0.2)):
        start = Truth(1.5, 0.4 * n_mid**alpha, 0.4 * d_mid**beta, alpha, beta)
        found.append(refit(start, n_params, tokens, loss))
    return min(found, key=lambda law: huber(residuals(law, n_params, tokens, loss)))


def wasted_share(law: Truth, n_params: float, tokens: float, target: float) -> float:
    """The share of the target's FLOPs that the best model of the same loss does not need."""
    loss = float(law.loss(n_params, tokens))
    return 1 - bisect(lambda flops: loss - law.least_loss(flops), target * 1e-12, target) / target


# --- backtest -------------------------------------------------------------------------------------------------------

RUNS = (
    (5672, 117440, 4.8031),
    (9660, 69120, 4.8101),
    (14416, 46272, 4.9095),
    (26232, 25344, 5.2832),
    (9660, 206976, 4.4390),
    (14416, 138624, 4.3609),
    (26232, 76288, 4.4640),
    (41120, 48576, 4.7307),
    (14416, 416000, 4.0864),
    (26232, 228864, 3.9765),
    (41120, 145920, 3.9979),
    (80112, 75008, 4.2147),
    (26232, 686400, 3.7919),
    (41120, 437760, 3.6429),
    (80112, 224896, 3.7189),
    (131392, 137088, 3.8724),
    (80112, 673920, 3.3525),
)
"""(N, D, validation loss) of the runs that task 7 makes: the plan of sixteen with seed 0, and the one held out.

Recorded on 2026-11-21 with torch 2.13.0 on two cores, on the 61,159 tokens of the book of that day.
"""
JITTER = 0.002
"""How far losses are moved in each draw, relative: other seeds would move them by more."""
NEAR = 1.5e6
"""Scale of a prediction's tolerance, some 0.3 %: the least objective is reached, or it is not."""
STARTS = (
    Truth(3.0, 50.0, 300.0, 0.45, 0.45),
    Truth(2.5, 100.0, 100.0, 0.5, 0.35),
    Truth(3.5, 1e4, 700.0, 1.1, 0.6),
)


def _inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Some of the runs, in no order; one or two have no loss."""
    n_params, tokens, loss = np.array(RUNS)[rng.permutation(len(RUNS))].T
    loss = loss * np.exp(JITTER * rng.standard_normal(len(loss)))
    cheap = np.flatnonzero(n_params * tokens < np.sort(n_params * tokens)[len(RUNS) // 2])
    loss[rng.choice(cheap, case.params.get("failed", 0), replace=False)] = np.nan
    if case.params.get("last_failed"):
        loss[np.argmax(n_params * tokens)] = np.nan
    return {"n_params": n_params, "tokens": tokens, "loss": loss, "held_out": np.array(case.params["held_out"])}


def _expect(arrays: Arrays) -> Arrays:
    held_out = int(arrays["held_out"])
    runs = [row for row in zip(*(arrays[k] for k in ("n_params", "tokens", "loss")), strict=True) if row[2] == row[2]]
    runs.sort(key=lambda row: row[0] * row[1])
    known, (n_params, tokens, measured) = np.array(runs[:-held_out]).T, np.array(runs[-held_out:]).T
    law = min((refit(start, *known) for start in STARTS), key=lambda one: huber(residuals(one, *known)))
    made_up = Truth(**calls.made_up_law(*known))
    own, other = ({"predicted": one.loss(n_params, tokens), "measured": measured} for one in (law, made_up))
    return own | stood(other)


def _compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    return close(*({"measured": one["measured"]} for one in (got, expected))) or close(
        *({"predicted": one["predicted"]} for one in (got, expected)), scale=NEAR
    )


CHECKS = (
    Check(
        name="backtest",
        title="Real runs: the costliest ones predicted from the others",
        points=8,
        cases=(
            Case("the most expensive run put aside", {"held_out": 1}),
            Case("four runs put aside", {"held_out": 4}),
            Case("two put aside, the costliest of all without a loss", {"held_out": 2, "last_failed": True}),
            Case("more runs without a loss", {"held_out": 3, "failed": 2, "last_failed": True}, hidden=True),
        ),
        inputs=_inputs,
        run=calls.backtest,
        expect=_expect,
        compare=either(_compare, close),
        first_hint="Which runs does your fit see, and in which order are the others?",
        hint="Leave out runs without a loss, sort the others by n_params · tokens, fit to all but the last `held_out`, "
        "and give back (law.loss at the last ones, their losses).",
        uses=("ChinchillaLaw", "fit_parametric", "backtest"),
        snippet='backtest(given["n_params"], given["tokens"], given["loss"], held_out)',
        time_limit_s=60,
    ),
)
