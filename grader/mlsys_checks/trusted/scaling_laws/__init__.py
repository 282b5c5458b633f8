"""Checks of lab 06, and its campaign: worlds with a hidden law, in which runs and decisions have a value.

fits    tasks 1 to 5: laws, their fits, cases and comparisons

A world behaves like `ExperimentService`, which notebooks talk to. Its constants stay on the trusted side, in arrays
whose names begin with an underscore, and only the losses of runs are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mlsys_checks.sandboxed import scaling_laws as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Lab, Mismatch, Range, draw_cases
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.describe import describe_calls
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.scaling_laws import fits
from mlsys_checks.trusted.scaling_laws.fits import Truth, either, minima, truth_of

# --- worlds -----------------------------------------------------------------------------------------------------------

NOISE = 0.005
"""Standard deviation of the log of a run's loss above E."""
FAILURES = 0.05
"""The chance that a run is lost."""
LARGE, LONG = (4.0, 9.0), (45.0, 100.0)
"""Tokens per parameter that are optimal at 1e20 FLOPs: worlds that want large models, and worlds that want long runs.
No fixed rule, such as 20, is right in both."""
SECRET = ("rate", "rate_exponent", "sensitivity", "divergence")


@dataclass(frozen=True)
class Cluster:
    """A law; the best learning rate, a power law of N; and what it costs to miss that rate."""

    law: Truth
    rate: float
    rate_exponent: float
    sensitivity: float
    divergence: float

    @classmethod
    def draw(cls, rng: np.random.Generator, tokens_per_param: tuple[float, float]) -> Cluster:
        """Draw a world. `rate` is the best one at 100 million parameters."""
        law = Truth.draw(rng, tokens_per_param=tokens_per_param)
        rate, exponent = rng.uniform(6e-4, 1.6e-3), -rng.uniform(0.15, 0.35)
        return cls(law, rate, exponent, sensitivity=rng.uniform(0.03, 0.06), divergence=rng.uniform(5, 10))

    def best_rate(self, n_params: np.ndarray | float) -> np.ndarray:
        """The best learning rate of each size."""
        return np.asarray(self.rate * (n_params / 1e8) ** self.rate_exponent)

    @property
    def rates(self) -> np.ndarray:
        """The best rates of the two sizes that calls are given."""
        return self.best_rate(np.array(calls.RATED))

    def run(self, requests: np.ndarray, rng: np.random.Generator) -> Arrays:
        """Runs with their losses, NaN where they failed or diverged. `requests` (3, R): N, D, learning rate."""
        n_params, tokens, rate = requests
        off = np.log(rate / self.best_rate(n_params))
        above = (self.law.loss(n_params, tokens) - self.law.E) * (1 + self.sensitivity * off**2)
        loss = self.law.E + above * np.exp(NOISE * rng.standard_normal(len(tokens)))
        lost = (rng.uniform(size=len(tokens)) < FAILURES) | (off > np.log(self.divergence))
        return dict(zip(calls.REQUEST, requests, strict=True)) | {"loss": np.where(lost, np.nan, loss)}

    def secret(self) -> Arrays:
        """The world's constants as arrays that stay with the judge."""
        found = self.law.arrays() | {name: np.array(getattr(self, name)) for name in SECRET}
        return {f"_{name}": constant for name, constant in found.items()}


def cluster_of(arrays: Arrays) -> Cluster:
    """The world whose secret is among some arrays."""
    return Cluster(truth_of(arrays, "_"), *(float(arrays[f"_{name}"]) for name in SECRET))


def scouting(budget_flops: float) -> np.ndarray:
    """The judge's first round, (3, 44): four sizes, eleven learning rates each, an eighth of the budget.

    With seven rates, losing three runs of the largest size misled right solutions once in a thousand draws.
    """
    flops = budget_flops / 8 / 11 * np.array([1, 3, 9, 27]) / 40
    n_params, rate = np.meshgrid(np.sqrt(flops / (6 * 30)), np.geomspace(5e-5, 2e-2, 11), indexing="ij")
    return np.stack([n_params, 30 * n_params, rate]).reshape(3, -1)


def sweeping(cluster: Cluster, left_flops: float, rng: np.random.Generator) -> np.ndarray:
    """The judge's second round, (3, 40): five budgets, eight sizes each, learning rates within a tenth of the best."""
    flops = np.repeat(left_flops / 8 * 3.0 ** np.arange(5) / 121, 8)
    ratio = np.tile(np.geomspace(1.5, 400, 8), 5) * rng.uniform(0.8, 1.25, 40)
    n_params = np.sqrt(flops / (6 * ratio))
    rate = cluster.best_rate(n_params) * np.exp(rng.uniform(-0.1, 0.1, 40))
    return np.stack([n_params, flops / (6 * n_params), rate])


def fitted_rate(runs: Arrays, at: float) -> float | None:
    """The best rate of a size: a valley in ln η for each (N, D), a power law in N; None if the runs leave it open."""
    models, model_of = np.unique(np.stack([runs["n_params"], runs["tokens"]]), axis=1, return_inverse=True)
    groups, rates, _ = minima(fits.parabola_minimum, model_of.ravel(), runs["learning_rate"], runs["loss"])
    sizes = models[0][groups.astype(int)]
    if len(set(sizes.tolist())) < 2:
        return None
    coefficient, exponent = fits.power_law(sizes, rates)
    return float(coefficient * at**exponent)


def uncertainty(law: Truth, n_params: np.ndarray, tokens: np.ndarray, target: float) -> tuple[float, float]:
    """Standard deviations, after the best fit to runs of these sizes, of ln N_opt at a budget and of the loss there.

    The information that a run holds of (E, ln A, ln B, alpha, beta) is the square of the loss's slopes over the
    variance of its noise; its inverse is the least covariance of any unbiased fit (Cramér and Rao). Infinite where the
    runs leave a direction open. The second is relative to the loss.
    """
    slopes = _slopes(law, n_params, tokens) / (NOISE * (law.loss(n_params, tokens) - law.E))  # (5, R)
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
    variances = [float(slope @ covariance @ slope) for slope in (of_size, of_loss)]
    return variances[0] ** 0.5, variances[1] ** 0.5 / law.least_loss(target)


def _slopes(law: Truth, n_params: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Slopes of each run's loss in E, ln A, ln B, alpha and beta, (5, R)."""
    of_n, of_d = law.A * n_params**-law.alpha, law.B * tokens**-law.beta
    return np.stack([np.ones_like(of_n), of_n, of_d, -of_n * np.log(n_params), -of_d * np.log(tokens)])


def wasted_fraction(law: Truth, n_params: float, tokens: float, target: float) -> float:
    """Fraction of the target's FLOPs that the best model of the same loss does not need."""
    loss = float(law.loss(n_params, tokens))
    return 1 - fits.bisect(lambda flops: loss - law.least_loss(flops), target * 1e-12, target) / target


# --- Task 6: a campaign -----------------------------------------------------------------------------------------------

SCOUTING_FRACTION = 0.15
"""What scouting may cost, of the whole budget."""
SPENT = 0.9
"""How much of what is left the sweep has to spend: careful code, or whole tokens, leave less."""
RATE_OFF = 1.6
"""By what factor a learning rate may miss the best one. Ten times above the judge's runs a fair fit misses by 1.3."""
LEAST_RATIO = 10
"""Tokens per parameter of a scouting run. With fewer, large models could be scouted for nothing."""
TIMES, WITHIN = 100, 0.01
"""Targets, in budgets: the usual one, and one that the judge's runs surround, the largest of which took 7 times it."""
WASTE = 0.06
"""How much of the target's compute a decision may waste."""
EXPECTED_WASTE, LOSS_OFF = 0.02, 0.02
"""What a sweep must allow: compute wasted on average, and the standard deviation of the predicted loss, relative."""
PREDICTED_OFF, KNOWN_OFF = 0.05, 0.008
"""By how much a predicted loss may miss the true one: at a target beyond all runs, where their noise leaves that much
open; and at one that they surround, where right solutions miss by at most 0.4 %, and the loss for a seventh fewer
tokens by 1.5 %."""
MOST_RUNS = 1000
"""How many runs a round may request; a good one requests thirty."""
WRONG_RATES = {"low": (1 / 10, 1 / 5), "high": (4.8, 4.8)}
"""How far rates of the smallest and of the largest model are off that say nothing about the law; 5 may diverge."""
ROUNDING = 1 + 1e-12
"""A sum of FLOPs may exceed a budget by this factor."""


def _draw(rng: np.random.Generator, case: Case) -> tuple[Cluster, Arrays]:
    cluster = Cluster.draw(rng, LARGE if case.params["wants"] == "large" else LONG)
    cluster = replace(cluster, **{name: case.params[name] for name in ("rate", "rate_exponent") if name in case.params})
    budget = 10 ** rng.uniform(*case.params.get("decades", (19.5, 21)))
    return cluster, cluster.secret() | {"budget_flops": np.array(budget), "_seed": rng.integers(2**31, size=2)}


def _pass_on(arrays: Arrays) -> Arrays:
    """The numbers of a case, secret ones too: what an answer is worth in its world is computed when it is there."""
    return {name: array for name, array in arrays.items() if name.startswith("_") or array.ndim == 0}


def _refuse_requests(requests: np.ndarray, allowed: float, least: float = 0.0) -> Mismatch | None:
    """What is wrong with requests (3, R) in any world: their form, or their cost."""
    if requests.size == 0:
        return Mismatch("no runs are requested", "0 runs", "some")
    if not np.all(np.isfinite(requests)) or np.any(requests <= 0):
        return Mismatch("a request is impossible", "sizes, tokens or rates that are not positive", "positive numbers")
    if np.any(requests[:2] < 1000):
        return Mismatch("a run is too small to say anything", f"{requests[:2].min():.4g}", "1,000 or more of N and D")
    cost = float((6 * requests[0] * requests[1]).sum())
    if cost > allowed * ROUNDING:
        return Mismatch("the runs cost too much, at 6ND each", f"{cost:.4g} FLOPs", f"at most {allowed:.4g}")
    if cost * ROUNDING < least:
        return Mismatch("FLOPs are left that could tell more", f"{cost:.4g} FLOPs", f"{least:.4g} or more")
    return None


def _rate_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Scouting runs in no order, those of a small size at rates far too low, and sizes up to ten times larger."""
    cluster, arrays = _draw(rng, case)
    requests = scouting(float(arrays["budget_flops"]))
    small = requests[:, :6] / 2
    small[2] = cluster.best_rate(small[0]) * np.geomspace(1 / 40, 1 / 4, 6)
    runs = cluster.run(rng.permutation(np.append(requests, small, axis=1), axis=1), rng)
    return arrays | runs | {"sizes": runs["n_params"].max() * np.array([0.1, 0.3, 1.0, 3.0, 10.0])}


def _rate_expect(arrays: Arrays) -> Arrays:
    """The best rates; on stand-ins what follows from these."""
    runs = [arrays[name] for name in ("n_params", "learning_rate", "loss")]
    coefficient, exponent = calls.secant(*minima(fits.mirrored_middle, *runs)[:2])
    on_stand_ins = {"rate": coefficient * arrays["sizes"] ** exponent}
    return {"rate": cluster_of(arrays).best_rate(arrays["sizes"])} | fits.stood(on_stand_ins)


def _rate_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    rate = got["rate"]
    if rate.shape != expected["rate"].shape or not np.all(np.isfinite(rate)) or np.any(rate <= 0):
        return Mismatch("the learning rates are not usable", np.array2string(rate, precision=4), "positive numbers")
    off = np.exp(np.abs(np.log(rate / expected["rate"])))
    if off.max() <= RATE_OFF:
        return None
    what = f"the learning rate is off for size {int(off.argmax()) + 1} of {len(off)}, counted from the smallest"
    return Mismatch(what, f"a factor of {off.max():.3g} from the best", f"at most {RATE_OFF:g}")


def _scout_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    budget, requests = float(expected["budget_flops"]), np.stack([got[name] for name in calls.REQUEST])
    if problem := _refuse_requests(requests, SCOUTING_FRACTION * budget):
        return problem
    if (ratio := float((requests[1] / requests[0]).min())) < 0.999 * LEAST_RATIO:  # numbers may be rounded
        return Mismatch("a run is too short", f"{ratio:.3g} tokens per parameter", f"at least {LEAST_RATIO}")
    cluster, rng = cluster_of(expected), np.random.default_rng(int(expected["_seed"][0]))
    size = cluster.law.best_size(budget / 10)
    found = fitted_rate(cluster.run(requests, rng), size)
    if found is None:
        made = f"{requests.shape[1]} runs of {len(np.unique(requests[:2], axis=1).T)} different (N, D)"
        wanted = "a valley at two sizes or more: rates that come back on both sides of the best, at one N and D"
        return Mismatch("no learning rate can be read off these runs", made, wanted)
    off = float(np.exp(abs(np.log(found / cluster.best_rate(size)))))
    if off <= RATE_OFF:
        return None
    what = "the runs leave the best learning rate of larger models open"
    return Mismatch(what, f"a factor of {off:.2f} off at {size:.2g} parameters", f"at most {RATE_OFF:g}")


def _sweep_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    cluster, arrays = _draw(rng, case)
    budget = float(arrays["budget_flops"])
    left = budget * rng.uniform(0.86, 0.9)
    runs = cluster.run(scouting(budget), rng)
    return arrays | runs | {"left_flops": np.array(left), "rates": cluster.rates}


def _sweep_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    requests, target = np.stack([got[name] for name in calls.REQUEST]), TIMES * float(expected["budget_flops"])
    left = float(expected["left_flops"])
    if problem := _refuse_requests(requests, left, SPENT * left):
        return problem
    cluster, rng = cluster_of(expected), np.random.default_rng(int(expected["_seed"][1]))
    n_params, tokens, rate = requests
    off = np.exp(np.abs(np.log(rate / cluster.best_rate(n_params))))
    if off.max() > RATE_OFF:
        found = f"a factor of {off.max():.3g} at {n_params[off.argmax()]:.2g} parameters"
        return Mismatch("a run has a learning rate far from its best", found, f"at most {RATE_OFF:g}")
    back = ~np.isnan(cluster.run(requests, rng)["loss"])
    of_size, of_loss = uncertainty(cluster.law, n_params[back], tokens[back], target)
    wasted = float((cluster.law.alpha + cluster.law.beta) / 2 * of_size**2)  # of compute, for ln N off by this much
    what = f"these runs leave the {{}} at {TIMES} times the budget open: are sizes, tokens and budgets too much alike?"
    if wasted > EXPECTED_WASTE:
        all_of_it = "no fit to them can tell the law's constants apart"
        found = f"any fit to them would waste {wasted:.1%} of the compute on average" if wasted < 1 else all_of_it
        return Mismatch(what.format("best size"), found, f"at most {EXPECTED_WASTE:.0%}")
    if of_loss > LOSS_OFF:
        return Mismatch(what.format("loss"), f"±{min(of_loss, 1):.1%} for any fit to them", f"at most {LOSS_OFF:.0%}")
    return None


def _decide_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw both rounds of the judge's campaign and a sweep at wrong rates, as many runs as at good ones, in no order.

    That many runs with rates wrong in one direction bend any law that is fitted to them. The good ones' rates are a
    tenth off or more, so that hardly any run is left to a solution that demands better ones.
    """
    cluster, arrays = _draw(rng, case)
    budget = float(arrays["budget_flops"])
    sweep, before = (sweeping(cluster, 0.87 * budget, rng) for _ in range(2))
    sweep[2] = cluster.best_rate(sweep[0]) * np.exp(rng.choice((-1, 1), 40) * np.log(rng.uniform(1.12, 1.3, 40)))
    smallest, largest = WRONG_RATES[case.params["rates"]]
    before[2] *= smallest * (largest / smallest) ** (before[0].argsort().argsort() / 39)
    requests = np.concatenate([scouting(budget), sweep, before], axis=1)
    runs = cluster.run(requests[:, rng.permutation(requests.shape[1])], rng)
    target = np.array(case.params.get("times", TIMES) * budget)
    return arrays | runs | {"target_flops": target, "rates": cluster.rates}


def _decide_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    n_params, tokens, predicted = (float(got[name]) for name in ("n_params", "tokens", "loss"))
    target, law = float(expected["target_flops"]), cluster_of(expected).law
    if not all(np.isfinite(one) and one > 0 for one in (n_params, tokens, predicted)):
        return Mismatch("the decision is not positive", f"{n_params:.4g}, {tokens:.4g}, {predicted:.4g}", "N, D, L > 0")
    if 6 * n_params * tokens > target * (1 + 1e-6):
        return Mismatch("the model costs too much", f"{6 * n_params * tokens:.4g} FLOPs", f"at most {target:.4g}")
    if (wasted := wasted_fraction(law, n_params, tokens, target)) > WASTE:
        found = f"{wasted:.0%} at {n_params:.3g} parameters"
        return Mismatch("compute is wasted on a wrong size", found, f"at most {WASTE:.0%}")
    true, most = float(law.loss(n_params, tokens)), PREDICTED_OFF if target > expected["budget_flops"] else KNOWN_OFF
    if abs(predicted / true - 1) <= most:
        return None
    found = f"predicted {predicted:.3f}, trained to {true:.3f}"
    return Mismatch("the model trained to another loss than you predicted", found, f"within {most:.1%}")


def _decide_compare_on_stand_ins(got: Arrays, expected: Arrays) -> Mismatch | None:
    """What the stand-ins lead to has to come out, and the runs that were fitted have to lead to a good decision."""
    runs, target = [got[f"fitted {name}"] for name in calls.RUN], float(expected["target_flops"])
    if not 0 < runs[0].size <= MOST_RUNS:
        return Mismatch("`decide` fits no law to the trials", f"{runs[0].size} runs", "fit_parametric of the good ones")
    runs = [column[~np.isnan(runs[-1])] for column in runs]
    if not runs[0].size or not all(np.all(np.isfinite(column) & (column > 0)) for column in runs):
        return Mismatch("the law is fitted to runs that cannot be", "N, D or L that is no positive number", "trials")
    law = Truth(**calls.made_up_law(*runs))
    n_params, tokens = calls.made_up_model(law, target)
    follows = {"n_params": n_params, "tokens": tokens, "loss": law.loss(n_params, tokens)}
    if problem := close({name: got[name] for name in follows}, {name: np.array(one) for name, one in follows.items()}):
        return problem
    law = fits.best_law(*runs)
    n_params = law.best_size(target)
    decision = {"n_params": n_params, "tokens": target / 6 / n_params, "loss": law.least_loss(target)}
    return _decide_compare({name: np.array(one) for name, one in decision.items()}, expected)


# --- Task 7: real runs ------------------------------------------------------------------------------------------------

RUNS = (
    *((5672, 117440, 4.8031), (9660, 69120, 4.8101), (14416, 46272, 4.9095), (26232, 25344, 5.2832)),
    *((9660, 206976, 4.4390), (14416, 138624, 4.3609), (26232, 76288, 4.4640), (41120, 48576, 4.7307)),
    *((14416, 416000, 4.0864), (26232, 228864, 3.9765), (41120, 145920, 3.9979), (80112, 75008, 4.2147)),
    *((26232, 686400, 3.7919), (41120, 437760, 3.6429), (80112, 224896, 3.7189), (131392, 137088, 3.8724)),
    (80112, 673920, 3.3525),
)
"""(N, D, validation loss) of the runs that task 7 makes: the plan of sixteen with seed 0, and the one held out.

Recorded on 2026-11-21 with torch 2.13.0 on two cores, on the 61,159 tokens of the book of that day.
"""
JITTER = 0.002
"""How far losses are moved in each draw, relative: other seeds would move them by more."""
NEAR = 1.5e6
"""Scale of a prediction's tolerance, some 0.3 %: the least objective is reached, or it is not."""


def _backtest_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Some of the runs, in no order; some have no loss."""
    n_params, tokens, loss = np.array(RUNS)[rng.permutation(len(RUNS))].T
    loss = loss * np.exp(JITTER * rng.standard_normal(len(loss)))
    cheap = np.flatnonzero(n_params * tokens < np.sort(n_params * tokens)[len(RUNS) // 2])
    loss[rng.choice(cheap, case.params["failed"], replace=False)] = np.nan
    if case.params["last_failed"]:
        loss[np.argmax(n_params * tokens)] = np.nan
    return {"n_params": n_params, "tokens": tokens, "loss": loss, "held_out": np.array(case.params["held_out"])}


def _backtest_expect(arrays: Arrays) -> Arrays:
    held_out = int(arrays["held_out"])
    runs = [row for row in zip(*(arrays[k] for k in calls.RUN), strict=True) if row[2] == row[2]]
    runs.sort(key=lambda row: row[0] * row[1])
    known, (n_params, tokens, measured) = np.array(runs[:-held_out]).T, np.array(runs[-held_out:]).T
    laws = fits.best_law(*known), Truth(**calls.made_up_law(*known))
    own, other = ({"predicted": law.loss(n_params, tokens), "measured": measured} for law in laws)
    return own | fits.stood(other)


def _backtest_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    return close(*({"measured": one["measured"]} for one in (got, expected))) or close(
        *({"predicted": one["predicted"]} for one in (got, expected)), scale=NEAR
    )


# --- the checks -------------------------------------------------------------------------------------------------------

PROFILE = {"sizes": Range(3, 12), "failed": Range(0, 2), "again": Range(0, 3), "span": Range(1, 100)}
PROFILE |= {"noise": Range(0, 4)}
EXACT = {"failed": 0, "again": 0, "noise": 0}
POWER = {"points": Range(3, 12), "noise": Range(0, 20), "decade": Range(0, 17), "falls": 0}
SWEEP = {"budgets": Range(3, 6), "sizes": Range(4, 9), "failed": Range(0, 4), "off": Range(0, 2)}
SWEEP |= {"scatter": Range(1, 20), "tried": Range(0, 1)}
PLAIN = {"sizes": 8, "failed": 0, "off": 0, "scatter": 1, "tried": 0}
POINT = {"runs": Range(2, 40), "off": Range(0, 2)}
FITTED = {"noise": Range(1, 5), "spoiled": Range(0, 6), "failed": Range(0, 5), "starts": Range(0, 3)}
RESAMPLED = {"rows": Range(8, 25), "level": Range(60, 90), "resamples": 2000, "columns": 3}
FIT_NAMES = {
    "mean": "a mean",
    "rows": "the largest y - x, of rows that have y = x + 1",
    "picky": "a fit that some resamples do not have",
    "entries": "how many entries three columns have, some of them NaN",
    "flawed": "a fit that divides by zero",
    "turn": "0, 1, 2, … for one resample after the other",
}
EXACT_FIT = {**FITTED, "noise": 0, "spoiled": 0}
BACKTESTED = {"held_out": Range(1, 4), "failed": Range(0, 2), "last_failed": Range(0, 1)}
LARGE_CASE, LONG_CASE = {"wants": "large"}, {"wants": "long"}
PUBLIC: dict[str, dict[str, Any]] = {  # what suits the budget of the first costs too much for the second
    "a world that wants large models": {**LARGE_CASE, "decades": (20.4, 21)},
    "a world that wants long runs": {**LONG_CASE, "decades": (19.5, 20.1)},
}
EXTREME = {
    "the rate falls fast with size": {"rate": 2.5e-4, "rate_exponent": -0.65},
    "the best rates are high": {"rate": 4e-3, "rate_exponent": -0.65},
}
LOW, HIGH = {"rates": "low", "rate_exponent": -0.65}, {"rates": "high"}
UNSEEN: list[dict[str, Any]] = [LARGE_CASE | HIGH] * 3 + [LONG_CASE | LOW] * 2 + [LONG_CASE | HIGH]
UNSEEN += [LONG_CASE | LOW | {"times": WITHIN}]
TRIALS = 'trials = Trials(given["n_params"], given["tokens"], given["learning_rate"], given["loss"])'
"""The runs of a case, as code."""


def _worlds(*extreme: str, rates: tuple[float, ...] = ()) -> tuple[Case, ...]:
    """The public worlds, with the best rates given if there are any, those of `EXTREME`, and two hidden ones."""
    best = [{"rate": rate} for rate in rates] or [{}, {}]
    public = [Case(name, {**params, **one}) for (name, params), one in zip(PUBLIC.items(), best, strict=True)]
    more = [Case(name, {**[*PUBLIC.values()]["high" in name], **EXTREME[name]}) for name in extreme]
    return *public, *more, Case("another", LARGE_CASE, hidden=True), Case("and another", LONG_CASE, hidden=True)


CHECKED = {
    "isoflop_minimum": (6, "The best size for one budget", "isoflop_minimum"),
    "isoflop_refuses": (4, "Profiles that have no minimum are refused", "isoflop_minimum"),
    "power_law": (5, "A straight line on log-log paper", "fit_power_law"),
    "isoflop_minima": (5, "Profiles of many budgets", "isoflop_minimum isoflop_minima"),
    "isoflop_optimum": (5, "What 100 times the compute should buy", "fit_power_law isoflop_minima isoflop_optimum"),
    "huber_objective": (8, "The objective and its gradient", "objective"),
    "parametric_fit": (10, "Five constants from all runs at once", "ChinchillaLaw objective fit_parametric"),
    "bootstrap": (7, "An interval from the runs alone", "bootstrap"),
    "compute_optimal": (6, "The best model for a budget", "ChinchillaLaw compute_optimal"),
    "serving_optimal": (7, "The cheapest model that reaches a loss and serves", "ChinchillaLaw inference_optimal"),
    "best_learning_rate": (6, "The best learning rate of any size", "Trials best_learning_rate"),
    "scout": (5, "A first round that finds the learning rate", "scout"),
    "sweep": (7, "A second round worth its FLOPs", "Trials best_learning_rate sweep"),
    "decide": (11, "What to train with a hundred times the budget", "Trials decide"),
    "backtest": (8, "Real runs: the costliest ones predicted from the others", "ChinchillaLaw fit_parametric backtest"),
}
"""Points, title, and what the artifact must define, by check."""


def _check(name: str, *, sides: tuple[Any, Any, Any, Any], **parts: Any) -> Check:
    points, title, uses = CHECKED[name]
    inputs, run, expect, compare = sides
    parts |= {"inputs": inputs, "run": run, "expect": expect, "compare": compare}
    return Check(name=name, title=title, points=points, uses=tuple(uses.split()), **parts)


CHECKS = (
    _check(
        "isoflop_minimum",
        cases=(
            Case("three sizes", {**EXACT, "sizes": 3, "span": 100}),
            Case("five sizes within a tenth of each other", {**EXACT, "sizes": 5, "span": 2}),
            *draw_cases(PROFILE, public=5, hidden=2, sizes=Range(20, 60)),
        ),
        sides=(fits.minimum_inputs, calls.minimum, fits.minimum_expect, fits.near),
        first_hint="Are NaN left out? Is x minus its mean fitted? In a plot of the runs, is the lowest point yours?",
        hint="Fit L = c₀ + c₁x + c₂x² with x = ln N, not N, after leaving out NaN. Set the derivative to zero for the "
        "minimum, put it into the parabola for the loss there, and return N = eˣ.",
        describe=describe_calls("isoflop_minimum(n_params, loss)"),
    ),
    _check(
        "isoflop_refuses",
        cases=(
            *(Case(name, {"why": why}) for why, name in fits.SITUATIONS.items()),
            Case("no run came back", {"why": "none"}, hidden=True),
        ),
        sides=(fits.refuses_inputs, calls.refuses, fits.refuses_expect, fits.refuses_compare),
        first_hint="What would your parabola say about this profile, and would you believe it?",
        hint="Raise ValueError for fewer than three different sizes, for c₂ ≤ 0, and for a minimum below the smallest "
        "or above the largest size that came back. A good profile is not refused.",
        describe=describe_calls("isoflop_minimum(n_params, loss)"),
    ),
    _check(
        "power_law",
        cases=(
            Case("exact points", {**POWER, "noise": 0}),
            Case("a falling law", {**POWER, "falls": 1}),
            *draw_cases(POWER, public=3, hidden=1, points=Range(13, 30), falls=1),
        ),
        sides=(fits.power_inputs, calls.power_law, fits.power_expect, fits.near),
        first_hint="On which paper is y = k · x^p a straight line, and what are its slope and its intercept there?",
        hint="ln y = ln k + p · ln x is a line: fit it, and return (k, p), k by the exponential of the intercept.",
        describe=describe_calls("fit_power_law(x, y)"),
    ),
    _check(
        "isoflop_minima",
        cases=(
            Case("budgets that differ by a millionth", {**PLAIN, "budgets": 4, "near": True}),
            Case("failed runs, and a budget without a minimum", {**PLAIN, "budgets": 5, "failed": 3, "off": 1}),
            Case("no budget has a minimum", {**PLAIN, "budgets": 2, "off": 2}),
            *draw_cases(SWEEP, public=4, hidden=2, budgets=Range(7, 9), off=Range(2, 4)),
        ),
        snippet='isoflop_minima(given["flops"], given["n_params"], given["loss"])',
        sides=(fits.sweep_runs, calls.minima, fits.minima_expect, either(fits.minima_compare)),
        first_hint="How many budgets are there, which runs belong to the first, and what if one shows no minimum?",
        hint="The rows come in no order: np.unique(flops) gives the budgets, rising, a mask the rows of each. A "
        "ValueError of isoflop_minimum leaves the budget out. Return (C, N_opt, L_opt), a column each.",
    ),
    _check(
        "isoflop_optimum",
        cases=(
            Case("four budgets", {**PLAIN, "budgets": 4}),
            Case("a target that is one of the budgets", {**PLAIN, "budgets": 5, "tried": 1}),
            *draw_cases(SWEEP, public=3, hidden=2, budgets=Range(7, 9)),
        ),
        snippet='isoflop_optimum(given["flops"], given["n_params"], given["loss"], target)',
        sides=(fits.optimum_inputs, calls.optimum, fits.optimum_expect, either(fits.near)),
        first_hint="You have the best sizes of some budgets. What leads to another budget, and what is left for D?",
        hint="A power law through (C, N_opt) of isoflop_minima, read off at the target; then D follows from C = 6ND.",
    ),
    _check(
        "huber_objective",
        cases=(
            Case("near a law", {"runs": 30, "off": 0}),
            Case("a single run", {"runs": 1, "off": 1}),
            Case("where powers overflow", {"runs": 9, "off": 1, "shift": 900}),
            Case("where each run's powers are of another scale", {"runs": 20, "off": 1, "rise": 1000}),
            *draw_cases(POINT, public=3, hidden=1),
            Case("where powers vanish", {"runs": 9, "off": 1, "shift": -900}, hidden=True),
        ),
        sides=(fits.objective_inputs, calls.objective, fits.objective_expect, fits.near_overflow),
        first_hint="Is each run's largest z out before exp (inf, NaN)? Is the value off, or which of the five slopes?",
        hint="The slope of Huber's loss is the residual, clipped to ±δ. The slope of ln Σ exp(zᵢ) in zᵢ is the softmax "
        "of z; that of z₁ in α is −ln N. Sum over the runs. Take each run's largest zᵢ out before exp, and use the δ "
        "that is given.",
        describe=describe_calls("objective(theta, n_params, tokens, loss, {delta})"),
    ),
    _check(
        "parametric_fit",
        cases=(
            Case("exact losses, and a small irreducible loss", {**EXACT_FIT, "starts": 1, "floor": 3}),
            Case("the first of two starts is the good one", {**EXACT_FIT, "starts": 2, "at": 0}),
            *draw_cases(FITTED, public=4, hidden=2, starts=Range(0, 9)),
        ),
        sides=(fits.fit_inputs, calls.fit, fits.fit_expect, fits.fit_compare),
        first_hint="Put your constants and the expected ones into your objective: which does it like better?",
        hint="Leave out NaN, start from each of `starts`, keep the lowest. If the objective can go lower: are sizes "
        "and tokens in units of the middle ones, is it the sum, and are value and gradient divided by δ²? Back in "
        "plain units, A = exp(a) · N_m^α. E is the exponential of e.",
        describe=describe_calls(given=fits.fit_code),
        time_limit_s=60,
    ),
    _check(
        "bootstrap",
        cases=(
            # At half of the level: what stands in for the third of the resamples that have none shows in the ends.
            *(
                Case(name, {**RESAMPLED, "fit": fit} | ({"rows": 9, "level": 50} if fit == "picky" else {}))
                for fit, name in FIT_NAMES.items()
            ),
            Case("turns again, and all of them", {**RESAMPLED, "fit": "turn", "level": 100}, hidden=True),
            Case("six columns", {**RESAMPLED, "fit": "entries", "columns": 6, "resamples": 90}, hidden=True),
        ),
        sides=(fits.interval_inputs, calls.bootstrap, fits.interval_expect, fits.interval_compare),
        first_hint="What does one resample consist of, and what do you read off all of them?",
        hint="Draw as many row numbers as there are rows, with replacement, and take the same rows of every column. A "
        "ValueError leaves a resample out. A level of 0.8 lies between the 10th and the 90th percentile.",
        describe=describe_calls(given=fits.interval_code),
    ),
    _check(
        "compute_optimal",
        cases=(
            Case("around Chinchilla's budget", {"decades": (22, 25), "ratio": (10, 40)}),
            Case("a law that wants large models", {"decades": (12, 28), "ratio": (0.2, 0.7)}),
            Case("a law that wants many tokens", {"decades": (16, 28), "ratio": (2000, 6000)}, hidden=True),
        ),
        sides=(fits.budgets, calls.compute_optimal, fits.compute_expect, fits.near),
        first_hint="With C fixed, D follows from N: how does each of the two terms change as N grows?",
        hint="Put D = C/(6N) into the law and set the derivative in N to zero: two terms are left, which balance, and "
        "N is all that they hold. At the optimum 6ND is the whole budget.",
        describe=describe_calls("[compute_optimal(law, one) for one in flops]", given=fits.write_inputs),
    ),
    _check(
        "serving_optimal",
        cases=(
            Case("nothing to serve, and more", {"served": 2, "first": 0}),
            Case("a loss of tiny models, one of gigantic ones", {"served": 3, "first": 1, "decades": (14, 29)}),
            Case("very much to serve", {"served": 4, "first": 1}),
            Case("hardly anything, and very much", {"served": 4.5, "first": 1e-3}, hidden=True),
        ),
        sides=(fits.losses, calls.inference_optimal, fits.serving_expect, fits.near_endless),
        first_hint="Fix a size: how many tokens does the loss take then, and what do training and serving cost "
        "together?",
        hint="For each N the loss fixes D: solve the law for it. Then search ln N for the lowest cost of training and "
        "serving. Below some N no D reaches the loss, and what you solved for is the power of a negative number: "
        "search above it.",
        describe=describe_calls(
            "[inference_optimal(law, one, tokens) for one, tokens in zip(loss, served)]", given=fits.write_inputs
        ),
    ),
    _check(
        "best_learning_rate",
        cases=_worlds("the rate falls fast with size"),
        sides=(_rate_inputs, calls.best_rate, _rate_expect, either(_rate_compare, partial(close, scale=1e3))),
        first_hint="Plot loss against ln η for one size. What have you already written that finds the minimum?",
        hint="For each size the loss is a valley in ln η: isoflop_minimum finds its minimum, with learning rates in "
        "place of sizes, and refuses a size whose runs do not show one. Then a power law in N through what it found.",
        snippet=f'{TRIALS}\nnp.hstack([best_learning_rate(trials, n) for n in np.split(given["sizes"], [1])])',
    ),
    _check(
        "scout",
        cases=_worlds("the best rates are high", "the rate falls fast with size"),
        sides=(lambda rng, case: _draw(rng, case)[1], calls.scout, _pass_on, _scout_compare),
        answer_bytes=MOST_RUNS * 3 * 8,
        first_hint="Which runs show that a rate is best at one size, and what shows how it falls with size?",
        hint="Each size needs rates on both sides of its best one, evenly in log over what is known beforehand, and a "
        "trend needs several sizes. Divide the FLOPs first, then get N from them: with D = 20N a run costs 120N².",
        snippet="scout(budget_flops)",
    ),
    _check(
        "sweep",
        cases=_worlds(rates=(2.5e-3, 6e-4)),
        sides=(_sweep_inputs, calls.sweep, _pass_on, either(_sweep_compare)),
        answer_bytes=MOST_RUNS * 3 * 8,
        first_hint="Which of the law's constants could be changed a lot without your runs noticing?",
        hint="Several budgets, and each with sizes over the whole range of tokens per parameter that may be best. The "
        "largest budgets say most about the target, the smallest tell the exponents. Each size at its own best rate.",
        snippet=f"{TRIALS}\nsweep(trials, left_flops)",
    ),
    _check(
        "decide",
        cases=(
            Case("a world that wants large models, and many rates too low", LARGE_CASE | LOW),
            Case("a world that wants long runs, and many rates too high", LONG_CASE | HIGH),
            Case("a target no larger than runs that were made", LARGE_CASE | HIGH | {"times": WITHIN}),
            # A wrong fit is near enough in one world of three: in eight worlds it is found out.
            *(Case(f"another world, {number}", params, hidden=True) for number, params in enumerate(UNSEEN)),
        ),
        sides=(_decide_inputs, calls.decide, _pass_on, either(_decide_compare, _decide_compare_on_stand_ins)),
        first_hint="Plot the trials: which of them lie above the law for a reason that has nothing to do with N and D?",
        hint="Fit the law to runs whose rate was near the best for their size: scouting runs with other rates, and "
        "those that failed, say nothing about it. Then compute_optimal at the target, and the law's loss there.",
        snippet=f"{TRIALS}\ndecide(trials, target_flops)",
        time_limit_s=60,
    ),
    _check(
        "backtest",
        cases=(
            Case("four runs put aside", {"held_out": 4, "failed": 0, "last_failed": 0}),
            Case("two put aside, the costliest of all without a loss", {"held_out": 2, "failed": 1, "last_failed": 1}),
            *draw_cases(BACKTESTED, public=2, hidden=1),
        ),
        sides=(_backtest_inputs, calls.backtest, _backtest_expect, either(_backtest_compare, close)),
        first_hint="Which runs does your fit see, and in which order are the others?",
        hint="Leave out runs without a loss, sort the others by n_params · tokens, fit to all but the last `held_out`, "
        "and return (law.loss at the last ones, their losses).",
        snippet='backtest(given["n_params"], given["tokens"], given["loss"], held_out)',
        time_limit_s=60,
    ),
)
LAB = Lab("scaling-laws", repeat_first_case(CHECKS))
