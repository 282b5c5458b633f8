"""Task 3: the parametric form, fitted to runs. Oracles: complex steps for the gradient; `law.refit` near the truth."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from functools import partial

import numpy as np

from mlsys_checks.sandboxed import scaling_laws as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.describe import describe_calls
from mlsys_checks.trusted.scaling_laws.law import Truth, huber, refit, residuals

ABOVE = 1.0003
"""How much higher than the oracle's an objective may be: the valley is flat; where a search in it stops is chance."""
NOWHERE = (-25.0, -25.0, 0.7, 0.4, 0.4)
"""A start from which a search comes to no law: both terms are too small there to have slopes."""
ZERO = 1e-9
"""An objective that counts as none: residuals of some 1e-5 at 50 runs."""


# --- huber_objective ------------------------------------------------------------------------------------------------


def _objective_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    law, runs = Truth.draw(rng), case.params["runs"]
    least, most = case.params["off"]
    n_params, tokens = 10 ** rng.uniform(7, 10, runs), 10 ** rng.uniform(9, 12, runs)
    theta = np.array([np.log(law.A), np.log(law.B), np.log(law.E), law.alpha, law.beta])
    moved = case.params.get("shift", 0.0) * np.array([1, 1, 1, 0, 0])
    # The law's terms rise with so high a power of N and D, and are as before at the middle run.
    moved -= case.params.get("rise", 0.0) * np.array([np.log(n_params).mean(), np.log(tokens).mean(), 0, 1, 1])
    return {
        "n_params": n_params,
        "tokens": tokens,
        "loss": law.loss(n_params, tokens) * np.exp(case.params["noise"] * rng.standard_normal(runs)),
        "theta": theta * rng.uniform(least, most, 5) + moved,
        "delta": np.array(case.params["delta"]),
    }


def _objective_expect(arrays: Arrays) -> Arrays:
    """Each slope by a complex step: f(x + ih) has the imaginary part h·f′(x), with no difference that cancels."""
    log_n, log_d, log_loss, delta = *(np.log(arrays[name]) for name in ("n_params", "tokens", "loss")), arrays["delta"]

    def value(theta: np.ndarray) -> complex:
        """The sum of Huber losses, by plain loops over complex numbers."""
        a, b, e, alpha, beta = theta
        total = 0j
        for one_n, one_d, one in zip(log_n, log_d, log_loss, strict=True):
            powers = [a - alpha * one_n, b - beta * one_d, e]
            top = max(power.real for power in powers)
            r = top + np.log(sum(np.exp(power - top) for power in powers)) - one
            sign = 1 if r.real >= 0 else -1
            total += r**2 / 2 if abs(r.real) <= delta else delta * (sign * r - delta / 2)
        return total

    theta, h = arrays["theta"].astype(complex), 1e-30
    gradient = [value(theta + 1j * h * np.eye(5)[i]).imag / h for i in range(5)]
    return {"value": np.array(value(theta).real), "gradient": np.array(gradient)}


# --- parametric_fit -------------------------------------------------------------------------------------------------


def _fit_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Sweeps of five budgets, sizes of one ladder. Some runs failed, some are spoiled: their loss is far too high."""
    law = Truth.draw(rng)
    law = replace(law, E=law.E * case.params.get("floor", 1.0))
    flops = np.repeat(rng.uniform(1e18, 3e18) * 4.0 ** np.arange(5), 9)
    n_params = np.sqrt(flops / (6 * np.tile(np.geomspace(1.5, 300, 9), 5) * rng.uniform(0.8, 1.25, 45)))
    n_params = 10 ** (np.round(4 * np.log10(n_params)) / 4)
    tokens = flops / (6 * n_params)
    loss = law.loss(n_params, tokens) * np.exp(case.params["noise"] * rng.standard_normal(45))
    rows = rng.permutation(45)
    spoiled, failed = case.params.get("spoiled", 0), case.params.get("failed", 0)
    loss[rows[:spoiled]] *= rng.uniform(1.1, 1.5, spoiled)
    loss[rows[spoiled : spoiled + failed]] = np.nan
    arrays = {"n_params": n_params, "tokens": tokens, "loss": loss, "_laws": np.array([astuple(law)])}
    if (which := case.params.get("starts")) is not None:
        near = _start_at(law, n_params, tokens)
        arrays["starts"] = np.array([[near if one == "near" else NOWHERE for one in which]])
    return arrays


def _mirrored_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Runs of one number of tokens a parameter: a law and the one with its two terms exchanged are as good."""
    n_params = rng.permutation(np.geomspace(1e7, 1e10, 30))
    tokens = 20 * n_params
    middle, low, high = float(np.exp(np.log(n_params).mean())), rng.uniform(0.2, 0.25), rng.uniform(0.6, 0.7)
    of_low, of_high, floor = rng.uniform(0.3, 0.5), rng.uniform(0.3, 0.5), rng.uniform(1.5, 2)
    laws = [
        Truth(floor, one * middle**alpha, other * (20 * middle) ** beta, alpha, beta)
        for one, alpha, other, beta in ((of_low, low, of_high, high), (of_high, high, of_low, low))
    ]
    return {
        "n_params": n_params,
        "tokens": tokens,
        "loss": laws[0].loss(n_params, tokens),
        "starts": np.array([[_start_at(law, n_params, tokens)] for law in laws]),
        "_laws": np.array([astuple(law) for law in laws]),
    }


def _start_at(law: Truth, n_params: np.ndarray, tokens: np.ndarray) -> tuple[float, ...]:
    """A law as a start: (a, b, e, alpha, beta) in units of the middle size and tokens."""
    a = math.log(law.A) - law.alpha * np.log(n_params).mean()
    b = math.log(law.B) - law.beta * np.log(tokens).mean()
    return float(a), float(b), math.log(law.E), law.alpha, law.beta


def _fit_code(arrays: Arrays) -> list[str]:
    """The calls of `fit_parametric` that a case makes, as code."""
    runs = 'given["n_params"], given["tokens"], given["loss"]'
    if "starts" not in arrays:
        return [f"vars(fit_parametric({runs}))"]
    return [f'[vars(fit_parametric({runs}, starts)) for starts in given["starts"]]']


def _fit_expect(arrays: Arrays) -> Arrays:
    came_back = ~np.isnan(arrays["loss"])
    runs = {name: arrays[name][came_back] for name in ("n_params", "tokens", "loss")}
    return runs | {"laws": np.array([astuple(refit(Truth(*law), *runs.values())) for law in arrays["_laws"].tolist()])}


def _fit_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    """By the objective that is left, so that any way down the valley will do; by the exponents where there are two."""
    shown = "E = {:.5g}, A = {:.4g}, B = {:.4g}, α = {:.4g}, β = {:.4g}"
    runs = [expected[name] for name in ("n_params", "tokens", "loss")]
    for law, there in zip(got["laws"], expected["laws"], strict=True):
        if not np.all(np.isfinite(law)) or np.any(law <= 0):
            return Mismatch(
                "the constants are not all positive", np.array2string(law, precision=4), "E, A, B, α, β > 0"
            )
        left, least = (huber(residuals(Truth(*constants.tolist()), *runs)) for constants in (law, there))
        if left > (most := ABOVE * least + ZERO):
            found = f"{left:.6g} at {shown.format(*law)}"
            return Mismatch("the objective can go lower", found, f"at most {most:.6g}, as at {shown.format(*there)}")
        if len(expected["laws"]) > 1 and (law[3] < law[4]) != (there[3] < there[4]):
            return Mismatch("the search did not begin at `starts`", shown.format(*law), shown.format(*there))
    return None


OFF_SCALE = {"runs": 9, "noise": 0.01, "off": (0.9, 1.1), "delta": 0.05}

CHECKS = (
    Check(
        name="huber_objective",
        title="The objective and its gradient",
        points=8,
        cases=(
            Case("residuals below δ", {"runs": 6, "noise": 3e-3, "off": (1.0, 1.0), "delta": 0.01}),
            Case("residuals on both sides of δ", {"runs": 30, "noise": 2e-3, "off": (1.0, 1.0), "delta": 1e-3}),
            Case("far from any law", {"runs": 12, "noise": 0.01, "off": (0.3, 2.0), "delta": 1e-3}),
            Case("a single run", OFF_SCALE | {"runs": 1}),
            Case("where powers overflow", OFF_SCALE | {"shift": 900.0}),
            Case("where each run's powers are of another scale", OFF_SCALE | {"runs": 20, "rise": 1000.0}),
            Case("where powers vanish", OFF_SCALE | {"shift": -900.0, "delta": 0.02}, hidden=True),
        ),
        inputs=_objective_inputs,
        run=calls.objective,
        expect=_objective_expect,
        compare=partial(close, scale=100),  # log-sum-exp may be written so that 1e-14 of a log loss stays uncertain
        first_hint="Hold value and slopes against differences: which of the five slopes is off, and for which runs?",
        hint="The slope of Huber's loss is the residual, clipped to ±δ. The slope of ln Σ exp(zᵢ) by zᵢ is the softmax "
        "of z; that of z₁ by α is −ln N. Sum over the runs. Take each run's largest zᵢ out before exp, and use the δ "
        "that is given.",
        uses=("objective",),
        describe=describe_calls("objective(theta, n_params, tokens, loss, {delta})"),
    ),
    Check(
        name="parametric_fit",
        title="Five constants from all runs at once",
        points=10,
        cases=(
            Case("exact losses, and little that no training removes", {"noise": 0.0, "floor": 0.3}),
            Case("noise of half a percent", {"noise": 0.005}),
            Case("spoiled and failed runs", {"noise": 0.002, "spoiled": 4, "failed": 3}),
            Case("two starts, and the second leads nowhere", {"noise": 0.003, "starts": ("near", "nowhere")}),
            Case("the first of two starts leads nowhere", {"noise": 0.003, "starts": ("nowhere", "near")}),
            Case("one start at a time, where there are two laws as good", {"mirrored": True}),
            Case("more spoiled and failed runs", {"noise": 0.003, "spoiled": 7, "failed": 5}, hidden=True),
            Case("the last of nine starts", {"noise": 0.003, "starts": (*["nowhere"] * 8, "near")}, hidden=True),
        ),
        inputs=lambda rng, case: (_mirrored_inputs if "mirrored" in case.params else _fit_inputs)(rng, case),
        run=calls.fit,
        expect=_fit_expect,
        compare=_fit_compare,
        first_hint="Put your constants and the expected ones into your objective: which does it like better?",
        hint="Leave out NaN, start from each of `starts`, keep the lowest. If the objective can go lower: are sizes "
        "and tokens in units of the middle ones, is it the sum, and are value and gradient divided by δ²? Back in "
        "plain units, A = exp(a) · N_m^α. E is the exponential of e.",
        uses=("ChinchillaLaw", "objective", "fit_parametric"),
        describe=describe_calls(given=_fit_code),
        time_limit_s=60,
    ),
)
