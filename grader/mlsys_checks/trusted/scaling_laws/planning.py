"""Task 6: a campaign on a simulated cluster. The judge keeps the law, draws the noise and counts the FLOPs.

A submission sees runs and gives back requests or a decision; `runs` tells what these are worth.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from mlsys_checks.sandboxed import scaling_laws as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.scaling_laws import runs as worlds
from mlsys_checks.trusted.scaling_laws.isoflop import either, minima, mirrored_middle, stood
from mlsys_checks.trusted.scaling_laws.law import Truth
from mlsys_checks.trusted.scaling_laws.runs import LARGE, LONG, Cluster, cluster_of, scouting, sweeping

SCOUTING_SHARE = 0.15
"""What scouting may cost, of the whole budget."""
SPENT = 0.9
"""How much of what is left the sweep has to spend: who counts with care, or in whole tokens, leaves less."""
RATE_OFF = 1.5
"""By what factor a learning rate may miss the best one: costs at most 1 % of the loss above the floor."""
RATE_FAR_OFF = 1.6
"""By what factor a rate may miss that is read off the judge's 36 noisy runs for a model ten times larger, where a fair
fit may miss by 1.4."""
TIMES = 100
"""How much larger the target is than the budget."""
WASTE = 0.06
"""How much of the target's compute a decision may waste."""
EXPECTED_WASTE, LOSS_OFF = 0.02, 0.02
"""What a sweep must allow: compute wasted on average, and the standard deviation of the predicted loss, relative."""
WITHIN = 0.01
"""A target, in budgets, that the judge's runs surround: the largest took seven times as many FLOPs."""
PREDICTED_OFF, KNOWN_OFF = 0.05, 0.008
"""By how much a predicted loss may miss the true one: at a target beyond all runs, where the noise of the runs leaves
that much open, so that the loss for twice the tokens would pass; and at one that they surround, where right solutions
miss by 0.1 %, at most by 0.4 %, and the loss for a seventh fewer tokens misses by 1.5 %."""
MOST_RUNS = 1000
"""How many runs a round may ask for; a good one asks for thirty."""
WRONG_RATES = {"low": (1 / 10, 1 / 5), "high": (4.8, 4.8)}
"""How far rates of the smallest and of the largest model are off that say nothing about the law. Runs at rates higher
than 5 times the best may diverge."""
ROUNDING = 1 + 1e-12
"""A sum of FLOPs may exceed a budget by as much."""


def _draw(rng: np.random.Generator, case: Case) -> tuple[Cluster, Arrays]:
    cluster = Cluster.draw(rng, LARGE if case.params["wants"] == "large" else LONG)
    cluster = replace(cluster, **{name: case.params[name] for name in ("rate", "rate_exponent") if name in case.params})
    budget = 10 ** rng.uniform(*case.params.get("decades", (19.5, 21)))
    return cluster, cluster.secret() | {"budget_flops": np.array(budget), "_seed": rng.integers(2**31, size=2)}


def _columns(cluster: Cluster, requests: np.ndarray, rng: np.random.Generator) -> Arrays:
    return dict(zip(calls.REQUEST, requests, strict=True)) | {"loss": cluster.losses(requests, rng)}


def _pass_on(arrays: Arrays) -> Arrays:
    """The numbers of a case, secret ones too: what an answer is worth in its world is worked out when it is there."""
    return {name: array for name, array in arrays.items() if name.startswith("_") or array.ndim == 0}


def _requests(got: Arrays) -> np.ndarray:
    """The runs that are asked for, (3, R)."""
    return np.stack([got[name] for name in calls.REQUEST])


def _form(requests: np.ndarray) -> Mismatch | None:
    """What is wrong with requests, whatever the world."""
    if requests.size == 0:
        return Mismatch("no runs are asked for", "0 runs", "some")
    if not np.all(np.isfinite(requests)) or np.any(requests <= 0):
        return Mismatch("a request is impossible", "sizes, tokens or rates that are not positive", "positive numbers")
    if np.any(requests[:2] < 1000):
        return Mismatch("a run is too small to say anything", f"{requests[:2].min():.4g}", "1,000 or more of N and D")
    return None


def _cost(requests: np.ndarray, allowed: float, least: float = 0.0) -> Mismatch | None:
    n_params, tokens, _ = requests
    cost = float((6 * n_params * tokens).sum())
    if cost > allowed * ROUNDING:
        return Mismatch("the runs cost too much", f"{cost:.4g} FLOPs", f"at most {allowed:.4g}")
    if cost * ROUNDING < least:
        return Mismatch("FLOPs are left that could tell more", f"{cost:.4g} FLOPs", f"{least:.4g} or more")
    return None


# --- best_learning_rate ---------------------------------------------------------------------------------------------


def _rate_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Scouting runs in no order, and sizes to tell the rate of: among those tried, and up to ten times larger."""
    cluster, arrays = _draw(rng, case)
    runs = _columns(cluster, scouting(float(arrays["budget_flops"])), rng)
    order = rng.permutation(len(runs["loss"]))
    sizes = runs["n_params"].max() * np.array([0.1, 0.3, 1.0, 3.0, 10.0])
    return arrays | {name: column[order] for name, column in runs.items()} | {"sizes": sizes}


def _rate_expect(arrays: Arrays) -> Arrays:
    """The best rates; on stand-ins what follows from these."""
    runs = [arrays[name] for name in ("n_params", "learning_rate", "loss")]
    coefficient, exponent = calls.secant(*minima(mirrored_middle, *runs)[:2])
    on_stand_ins = {"rate": coefficient * arrays["sizes"] ** exponent}
    return {"rate": cluster_of(arrays).best_rate(arrays["sizes"])} | stood(on_stand_ins)


def _rate_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    rate = got["rate"]
    if rate.shape != expected["rate"].shape or not np.all(np.isfinite(rate)) or np.any(rate <= 0):
        return Mismatch("the learning rates are not usable", np.array2string(rate, precision=4), "positive numbers")
    off = np.exp(np.abs(np.log(rate / expected["rate"])))
    if off.max() <= RATE_FAR_OFF:
        return None
    return Mismatch(
        f"the learning rate is off for size {int(off.argmax()) + 1} of {len(off)}, counted from the smallest",
        f"a factor of {off.max():.3g} from the best",
        f"at most {RATE_FAR_OFF:g}",
    )


# --- scout ----------------------------------------------------------------------------------------------------------


def _scout_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    return _draw(rng, case)[1]


def _scout_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    budget, requests = float(expected["budget_flops"]), _requests(got)
    if problem := _form(requests) or _cost(requests, SCOUTING_SHARE * budget):
        return problem
    cluster, rng = cluster_of(expected), np.random.default_rng(int(expected["_seed"][0]))
    size = cluster.law.best_size(budget / 10)
    found = worlds.fitted_rate(_columns(cluster, requests, rng), size)
    if found is None:
        made = f"{requests.shape[1]} runs of {len(np.unique(requests[:2], axis=1).T)} different (N, D)"
        wanted = "a valley at two sizes or more: rates on both sides of the best one, at the same N and D"
        return Mismatch("no learning rate can be read off these runs", made, wanted)
    off = float(np.exp(abs(np.log(found / cluster.best_rate(np.array(size))))))
    if off <= RATE_OFF:
        return None
    return Mismatch(
        "the runs leave the best learning rate of larger models open",
        f"a factor of {off:.2f} off at {size:.2g} parameters",
        f"at most {RATE_OFF:g}",
    )


# --- sweep ----------------------------------------------------------------------------------------------------------


def _sweep_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    cluster, arrays = _draw(rng, case)
    budget = float(arrays["budget_flops"])
    left = budget * rng.uniform(0.86, 0.9)
    return arrays | _columns(cluster, scouting(budget), rng) | {"left_flops": np.array(left), "rates": cluster.rates}


def _sweep_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    requests, target = _requests(got), TIMES * float(expected["budget_flops"])
    left = float(expected["left_flops"])
    if problem := _form(requests) or _cost(requests, left, SPENT * left):
        return problem
    cluster, rng = cluster_of(expected), np.random.default_rng(int(expected["_seed"][1]))
    n_params, tokens, rate = requests
    off = np.exp(np.abs(np.log(rate / cluster.best_rate(n_params))))
    if off.max() > RATE_OFF:
        return Mismatch(
            "a run has a learning rate far from its best",
            f"a factor of {off.max():.3g} at {n_params[off.argmax()]:.2g} parameters",
            f"at most {RATE_OFF:g}",
        )
    back = ~np.isnan(cluster.losses(requests, rng))
    of_size, of_loss = worlds.uncertainty(cluster.law, n_params[back], tokens[back], target)
    wasted = float((cluster.law.alpha + cluster.law.beta) / 2 * of_size**2)  # of compute, for ln N off by as much
    if wasted > EXPECTED_WASTE:
        return Mismatch(
            f"these runs leave the best size at {TIMES} times the budget open",
            f"any fit to them would waste {min(wasted, 1):.1%} of the compute on average",
            f"at most {EXPECTED_WASTE:.0%}",
        )
    if of_loss > LOSS_OFF:
        return Mismatch(
            f"these runs leave the loss at {TIMES} times the budget open",
            f"±{min(of_loss, 1):.1%} for any fit to them",
            f"at most {LOSS_OFF:.0%}",
        )
    return None


# --- decide ---------------------------------------------------------------------------------------------------------


def _decide_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw both rounds of the judge's campaign and a sweep at wrong rates, as many runs as at good ones, in no order.

    So many runs with rates wrong in one direction bend any law that is fitted to them. The good ones' rates are a tenth
    off or more, so that hardly any run is left to who asks for better ones.
    """
    cluster, arrays = _draw(rng, case)
    budget = float(arrays["budget_flops"])
    sweep, before = (sweeping(cluster, 0.87 * budget, rng) for _ in range(2))
    sweep[2] = cluster.best_rate(sweep[0]) * np.exp(rng.choice((-1, 1), 40) * np.log(rng.uniform(1.12, 1.3, 40)))
    smallest, largest = WRONG_RATES[case.params["rates"]]
    before[2] *= smallest * (largest / smallest) ** (before[0].argsort().argsort() / 39)
    requests = np.concatenate([scouting(budget), sweep, before], axis=1)
    runs = _columns(cluster, requests[:, rng.permutation(requests.shape[1])], rng)
    target = np.array(case.params.get("times", TIMES) * budget)
    return arrays | runs | {"target_flops": target, "rates": cluster.rates}


def _decide_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    n_params, tokens, predicted = (float(got[name]) for name in ("n_params", "tokens", "loss"))
    target, law = float(expected["target_flops"]), cluster_of(expected).law
    if not all(np.isfinite(one) and one > 0 for one in (n_params, tokens, predicted)):
        return Mismatch("the decision is not positive", f"{n_params:.4g}, {tokens:.4g}, {predicted:.4g}", "N, D, L > 0")
    if 6 * n_params * tokens > target * (1 + 1e-6):
        return Mismatch("the model costs too much", f"{6 * n_params * tokens:.4g} FLOPs", f"at most {target:.4g}")
    if (wasted := worlds.wasted_share(law, n_params, tokens, target)) > WASTE:
        return Mismatch("compute is wasted on a wrong size", f"{wasted:.0%}", f"at most {WASTE:.0%}")
    true, most = float(law.loss(n_params, tokens)), PREDICTED_OFF if target > expected["budget_flops"] else KNOWN_OFF
    if abs(predicted / true - 1) <= most:
        return None
    return Mismatch(
        "the loss turned out otherwise than predicted",
        f"predicted {predicted:.3f}, trained to {true:.3f}",
        f"within {most:.1%}",
    )


def _decide_compare_on_stand_ins(got: Arrays, expected: Arrays) -> Mismatch | None:
    """What the stand-ins lead to has to come out, and the runs that were fitted have to lead to a good decision."""
    runs, target = [got[f"fitted {name}"] for name in calls.RUN], float(expected["target_flops"])
    if not 0 < runs[0].size <= MOST_RUNS:
        return Mismatch("`decide` fits no law to the trials", f"{runs[0].size} runs", "fit_parametric of the good ones")
    runs = [column[~np.isnan(runs[-1])] for column in runs]
    if not runs[0].size or not all(np.all(np.isfinite(column) & (column > 0)) for column in runs):
        return Mismatch("the law is fitted to runs that cannot be", "N, D or L that is no positive number", "trials")
    said = Truth(**calls.made_up_law(*runs))
    n_params, tokens = calls.made_up_model(said, target)
    follows = {"n_params": n_params, "tokens": tokens, "loss": said.loss(n_params, tokens)}
    if problem := close({name: got[name] for name in follows}, {name: np.array(one) for name, one in follows.items()}):
        return problem
    law = worlds.best_law(*runs)
    n_params = law.best_size(target)
    decision = {"n_params": n_params, "tokens": target / 6 / n_params, "loss": law.least_loss(target)}
    return _decide_compare({name: np.array(one) for name, one in decision.items()}, expected)


TRIALS = 'trials = Trials(given["n_params"], given["tokens"], given["learning_rate"], given["loss"])'
"""The runs of a case, as code."""
LARGE_CASE, LONG_CASE = {"wants": "large"}, {"wants": "long"}
LOW, HIGH = {"rates": "low"}, {"rates": "high"}
PUBLIC = (
    Case("a world that wants large models", {**LARGE_CASE, "decades": (20.4, 21)}),
    Case("a world that wants long runs", {**LONG_CASE, "decades": (19.5, 20.1)}),  # what suits the first costs too much
)
HIDDEN = Case("another one", LARGE_CASE, hidden=True), Case("and another", LONG_CASE, hidden=True)

CHECKS = (
    Check(
        name="best_learning_rate",
        title="The best learning rate of any size",
        points=6,
        cases=(
            *PUBLIC,
            Case("the rate falls fast with size", {**PUBLIC[0].params, "rate": 2.5e-4, "rate_exponent": -0.65}),
            HIDDEN[0],
        ),
        inputs=_rate_inputs,
        run=calls.best_rate,
        expect=_rate_expect,
        compare=either(_rate_compare, partial(close, scale=1e3)),
        first_hint="Plot loss against ln η for one size. What have you already written that finds the bottom?",
        hint="For each size the loss is a valley in ln η: isoflop_minimum finds its bottom, with learning rates in "
        "place of sizes, and refuses a size whose runs do not show one. Then a power law in N through what it found.",
        uses=("Trials", "best_learning_rate"),
        snippet=f'{TRIALS}\n[best_learning_rate(trials, n) for n in given["sizes"]]',
    ),
    Check(
        name="scout",
        title="A first round that finds the learning rate",
        points=5,
        cases=(
            *PUBLIC,
            Case(
                "the best rates are high", {**LARGE_CASE, "decades": (20.4, 21), "rate": 4e-3, "rate_exponent": -0.15}
            ),
            Case(
                "the best rates are low, and the budget is",
                {**LONG_CASE, "decades": (19.5, 19.6), "rate": 5e-4, "rate_exponent": -0.15},
            ),
            *HIDDEN,
        ),
        inputs=_scout_inputs,
        run=calls.scout,
        expect=_pass_on,
        compare=_scout_compare,
        answer_bytes=MOST_RUNS * 3 * 8,
        first_hint="Which runs show that a rate is best at one size, and what shows how it falls with size?",
        hint="Each size needs rates on both sides of its best one, evenly in log over what is known beforehand, and a "
        "trend needs several sizes. Share out the FLOPs first, then get N from them: with D = 20N a run costs 120N².",
        uses=("scout",),
        snippet="scout(budget_flops)",
    ),
    Check(
        name="sweep",
        title="A second round worth its FLOPs",
        points=7,
        cases=(
            *(replace(case, params={**case.params, "rate": r}) for case, r in zip(PUBLIC, (2.5e-3, 6e-4), strict=True)),
            *HIDDEN,
        ),
        inputs=_sweep_inputs,
        run=calls.sweep,
        expect=_pass_on,
        compare=either(_sweep_compare),
        answer_bytes=MOST_RUNS * 3 * 8,
        first_hint="Which of the law's constants could be changed a lot without your runs noticing?",
        hint="Several budgets, and each with sizes over the whole range of tokens a parameter that may be best. The "
        "largest budgets say most about the target, the smallest tell the exponents. Each size at its own best rate.",
        uses=("Trials", "best_learning_rate", "sweep"),
        snippet=f"{TRIALS}\nsweep(trials, left_flops)",
    ),
    Check(
        name="decide",
        title="What to train with a hundred times the budget",
        points=11,
        cases=(
            Case("a world that wants large models, and many rates too low", LARGE_CASE | LOW),
            Case("a world that wants long runs, and many rates too high", LONG_CASE | HIGH),
            Case("a target no larger than runs that were made", LARGE_CASE | HIGH | {"times": WITHIN}),
            # A wrong fit is near enough in one world of three: in eight worlds it is found out.
            *(Case(f"another that wants large models, {n}", LARGE_CASE | HIGH, hidden=True) for n in range(3)),
            *(Case(f"another that wants long runs, {n}", LONG_CASE | LOW, hidden=True) for n in range(2)),
            Case("another that wants long runs, many rates too high", LONG_CASE | HIGH, hidden=True),
            Case("another target no larger than runs that were made", LONG_CASE | LOW | {"times": WITHIN}, hidden=True),
        ),
        inputs=_decide_inputs,
        run=calls.decide,
        expect=_pass_on,
        compare=either(_decide_compare, _decide_compare_on_stand_ins),
        first_hint="Plot the trials: which of them lie above the law for a reason that has nothing to do with N and D?",
        hint="Fit the law to runs whose rate was near the best for their size: scouting runs with other rates, and "
        "those that failed, say nothing about it. Then compute_optimal at the target, and the law's loss there.",
        uses=("Trials", "decide"),
        snippet=f"{TRIALS}\ndecide(trials, target_flops)",
        time_limit_s=60,
    ),
)
