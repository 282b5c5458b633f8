"""Tasks 1 and 2: a parabola for each budget, a power law through the minima. Oracle: orthogonal polynomials' roots."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.polynomial import Polynomial

from mlsys_checks.sandboxed import scaling_laws as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.describe import describe_calls

MINIMA = ("flops", "n_opt", "loss_opt")
Minimum = Callable[[np.ndarray, np.ndarray], tuple[float, float] | None]
near = partial(close, scale=1e3)
"""One in a million: a parabola in log10, uncentred, or a slope by another formula loses digits, none of them wrong."""

Compare = Callable[[Arrays, Arrays], Mismatch | None]


def either(compare: Compare, on_stand_ins: Compare | None = None) -> Compare:
    """Accept an answer on the learner's own functions or the one on stand-ins, which may be compared otherwise.

    Where nothing is expected of the second in particular, the same is as of the first.
    """

    def compare_either(got: Arrays, expected: Arrays) -> Mismatch | None:
        (own, stood), (expects, expects_stood) = _parted(got), _parted(expected)
        problems = [compare(own, expects)] if own or not stood else []
        if stood:
            problems.append((on_stand_ins or compare)(stood, expects_stood or expects))
        return None if None in problems else problems[0]

    return compare_either


def stood(arrays: Arrays) -> Arrays:
    """Arrays by the names that they have in the answer on stand-ins."""
    return {calls.STOOD + name: array for name, array in arrays.items()}


def _parted(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """The arrays of the answer on the learner's own functions, and of that on stand-ins."""
    of_stood = {name.removeprefix(calls.STOOD): one for name, one in arrays.items() if name.startswith(calls.STOOD)}
    return {name: one for name, one in arrays.items() if not name.startswith(calls.STOOD)}, of_stood


def parabola_minimum(n_params: np.ndarray, loss: np.ndarray) -> tuple[float, float] | None:
    """The minimum of the least-squares parabola of loss on log2 N; None where there is none among the sizes tried."""
    came_back = ~np.isnan(loss)
    x = np.log2(n_params[came_back])
    if len(set(x.tolist())) < 3:
        return None
    curve = Polynomial.fit(x, loss[came_back], 2)
    (at,) = curve.deriv().roots()
    if curve.deriv(2)(at) <= 0 or not x.min() <= at <= x.max():
        return None
    return float(2.0 ** float(at)), float(curve(at))


def power_law(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Coefficient and exponent by least squares of log10 y on log10 x."""
    line = Polynomial.fit(np.log10(x), np.log10(y), 1).convert()
    return float(10 ** line.coef[0]), float(line.coef[1])


# --- isoflop_minimum ------------------------------------------------------------------------------------------------


def _valley(rng: np.random.Generator, sizes: int, noise: float, depth: float = 1.0, span: float = 1.0) -> Arrays:
    """One budget: loss against ln N, steeper for small models than for large ones, the sizes in no order."""
    x = np.linspace(-1.8, 1.8, sizes) + rng.uniform(-0.1, 0.1, sizes)
    loss = rng.uniform(2, 4) + depth * rng.uniform(0.06, 0.1) * (x - rng.uniform(-0.4, 0.4)) ** 2 * (1 - 0.05 * x)
    order = rng.permutation(sizes)
    n_params = rng.uniform(1e8, 1e9) * np.exp(span * x)
    return {"n_params": n_params[order], "loss": (loss + noise * rng.standard_normal(sizes))[order]}


def _minimum_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    sizes, noise = case.params["sizes"], case.params.get("noise", 0.0)
    arrays = _valley(rng, sizes, noise, case.params.get("depth", 1.0), case.params.get("span", 1.0))
    if again := case.params.get("again", 0):  # more runs of one size, and one of the worst size that went wrong
        row = np.append(np.full(again, 0), arrays["loss"].argmax())
        off = np.append(rng.uniform(1, 1.02, again), 1.08)
        arrays = {name: np.append(column, column[row]) for name, column in arrays.items()}
        arrays["loss"][-len(off) :] *= off
    if case.params.get("rising"):
        arrays = {name: column[arrays["n_params"].argsort()] for name, column in arrays.items()}
    failed = rng.permutation(sizes)[: case.params.get("failed", 0)]
    arrays["loss"][failed] = np.nan
    return arrays


def _minimum_expect(arrays: Arrays) -> Arrays:
    found = parabola_minimum(arrays["n_params"], arrays["loss"])
    assert found is not None, "a case of isoflop_minimum has no minimum"
    return {"n_opt": np.array(found[0]), "loss_opt": np.array(found[1])}


# --- isoflop_refuses ------------------------------------------------------------------------------------------------


def _refuses_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Nine sizes. Where the lowest point is near one end of them, they are twice as far apart towards the other."""
    arrays = _valley(rng, 9, 0.0)
    x = np.log(arrays["n_params"] / arrays["n_params"].mean())
    match case.params["why"]:
        case "hill":
            arrays["loss"] = 3 - 0.1 * (x - x.mean()) ** 2
        case "end":
            side, beyond = case.params["side"], rng.uniform(*case.params["beyond"])
            x = side * (x - np.median(x))
            x = np.where(x < 0, 2 * x, x)
            arrays["n_params"] = np.median(arrays["n_params"]) * np.exp(side * x)
            arrays["loss"] = 3 + 0.05 * (x - x.max() - beyond) ** 2
        case "two" | "none" as left:
            arrays["loss"][rng.permutation(9)[: 7 if left == "two" else 9]] = np.nan
        case "twins":
            arrays["n_params"] = rng.permutation(np.repeat(arrays["n_params"][:2], (5, 4)))
        case "beyond":  # the only size above the minimum did not come back
            order = np.sort(x)
            arrays["loss"] = 3 + 0.05 * (x - order[-2:].mean()) ** 2
            arrays["loss"][np.argmax(x)] = np.nan
    return arrays


def _refuses_expect(arrays: Arrays) -> Arrays:
    return {"refused": np.array(parabola_minimum(arrays["n_params"], arrays["loss"]) is None)}


def _refuses_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    if got["refused"] == expected["refused"]:
        return None
    if expected["refused"]:
        return Mismatch("runs that show no minimum are not refused", "no exception", "ValueError")
    return Mismatch("runs that show a minimum are refused", "ValueError", "the lowest point and its loss")


# --- power_law ------------------------------------------------------------------------------------------------------


def _power_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    points, noise = case.params["points"], case.params["noise"]
    low, high = case.params["decades"]
    x = 10 ** rng.uniform(low, high, points)
    if noise:
        x[-1] = x[0]
    y = rng.uniform(0.05, 20) * x ** rng.uniform(*case.params["exponent"])
    return {"x": x, "y": y * np.exp(noise * rng.standard_normal(points))}


def _power_expect(arrays: Arrays) -> Arrays:
    coefficient, exponent = power_law(arrays["x"], arrays["y"])
    return {"coefficient": np.array(coefficient), "exponent": np.array(exponent)}


# --- isoflop_minima and isoflop_optimum -----------------------------------------------------------------------------


def _sweep(rng: np.random.Generator, case: Case) -> Arrays:
    """Runs at several budgets, all in one heap; `off` budgets tried only models that are far too small.

    Every budget tries sizes of one ladder. `scatter` moves best sizes and losses up and down, out of any law.
    """
    budgets = rng.uniform(1e18, 9e18) * rng.uniform(3, 5) ** np.arange(case.params["budgets"])
    if case.params.get("near"):
        budgets[-1] = (1 + 1e-6) * budgets[-2]
    exponent, off = rng.uniform(0.4, 0.6), rng.permutation(len(budgets))[: case.params.get("off", 0)]
    scatter, step, sizes = case.params.get("scatter", 0.1), 0.5, case.params.get("sizes", 8)
    rows = []
    for i, flops in enumerate(budgets):
        best = 3e8 * (flops / 1e19) ** exponent * np.exp(rng.uniform(-scatter, scatter))
        rungs = np.floor(np.log(best) / step) + np.arange(1 - sizes // 2, 1 + sizes // 2) - (8 if i in off else 0)
        n_params = np.exp(step * rungs)
        loss = 1.8 + 1.2 * (flops / 1e19) ** -0.15 * np.exp(rng.uniform(-scatter, scatter) / 4)
        loss = loss + 0.07 * np.log(n_params / best) ** 2
        rows.append(np.stack([np.full(sizes, flops), n_params, loss * np.exp(0.002 * rng.standard_normal(sizes))]))
    flops, n_params, loss = np.concatenate(rows, axis=1)[:, rng.permutation(sizes * len(budgets))]
    loss[rng.choice(len(loss), case.params.get("failed", 0), replace=False)] = np.nan
    target = budgets[-2] if case.params.get("tried") else 100 * budgets[-1]
    return {"flops": flops, "n_params": n_params, "loss": loss, "target": np.array(target)}


def minima(of: Minimum, groups: np.ndarray, x: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """The minimum of each group of runs that has one: (3, groups that do), the group's number first, rising."""
    found = []
    for group in sorted(set(groups.tolist())):
        rows = [i for i, one in enumerate(groups.tolist()) if one == group]
        if (best := of(x[rows], loss[rows])) is not None:
            found.append((group, *best))
    return np.array(found).reshape(-1, 3).T


def mirrored_middle(x: np.ndarray, loss: np.ndarray) -> tuple[float, float] | None:
    """What stands in for a minimum, or None."""
    try:
        return calls.mirrored_middle(x, loss)
    except ValueError:
        return None


def _minima_expect(arrays: Arrays) -> Arrays:
    runs = [arrays[name] for name in ("flops", "n_params", "loss")]
    own, other = (dict(zip(MINIMA, minima(of, *runs), strict=True)) for of in (parabola_minimum, mirrored_middle))
    return own | stood(other)


def _optimum_expect(arrays: Arrays) -> Arrays:
    runs, target = [arrays[name] for name in ("flops", "n_params", "loss")], float(arrays["target"])
    laws = power_law(*minima(parabola_minimum, *runs)[:2]), calls.secant(*calls.sorted_apart(*runs)[:2])
    sizes = [np.array(coefficient * target**exponent) for coefficient, exponent in laws]
    own, other = ({"n_params": n, "tokens": np.array(target / (6 * n))} for n in sizes)
    return own | stood(other)


LARGEST, SMALLEST = {"why": "end", "side": 1}, {"why": "end", "side": -1}
"""The lowest point is `beyond` this size by so much of ln N, or short of it."""

CHECKS = (
    Check(
        name="isoflop_minimum",
        title="The best size for one budget",
        points=6,
        cases=(
            Case("three sizes", {"sizes": 3}),
            Case("a shallow valley", {"sizes": 7, "depth": 0.02}),
            Case("five sizes within a tenth of each other", {"sizes": 5, "span": 0.025}),
            Case("nine sizes with noise", {"sizes": 9, "noise": 0.003}),
            Case("two runs failed", {"sizes": 9, "noise": 0.002, "failed": 2}),
            Case("a size run four times, and one run that went wrong", {"sizes": 9, "noise": 0.002, "again": 3}),
            Case(
                "many sizes, rising, within a few percent of each other, some failed",
                {"sizes": 60, "rising": True, "span": 0.01, "noise": 0.004, "failed": 5},
                hidden=True,
            ),
        ),
        inputs=_minimum_inputs,
        run=calls.minimum,
        expect=_minimum_expect,
        compare=near,
        first_hint="Plot the runs: is the lowest point of your parabola where you would draw it, and along which axis?",
        hint="Fit L = c₀ + c₁x + c₂x² with x = ln N, not N. The minimum is at x = −c₁/(2c₂); give back N = eˣ. Leave "
        "out rows whose loss is NaN before you fit.",
        uses=("isoflop_minimum",),
        describe=describe_calls("isoflop_minimum(n_params, loss)"),
    ),
    Check(
        name="isoflop_refuses",
        title="Sweeps that have no minimum are refused",
        points=4,
        cases=(
            Case("a good sweep", {"why": ""}),
            Case("the lowest point just above the largest size", LARGEST | {"beyond": (0.02, 0.09)}),
            Case("the lowest point just below the largest size", LARGEST | {"beyond": (-0.12, -0.03)}),
            Case("a parabola that opens downward", {"why": "hill"}),
            Case("the lowest point just below the smallest size", SMALLEST | {"beyond": (0.02, 0.09)}),
            Case("the lowest point just above the smallest size", SMALLEST | {"beyond": (-0.12, -0.03)}),
            Case("two runs came back", {"why": "two"}),
            Case("nine runs of two different sizes", {"why": "twins"}),
            Case("the one size above the minimum failed", {"why": "beyond"}),
            Case("no run came back", {"why": "none"}, hidden=True),
        ),
        inputs=_refuses_inputs,
        run=calls.refuses,
        expect=_refuses_expect,
        compare=_refuses_compare,
        first_hint="What would your parabola say about this sweep, and would you believe it?",
        hint="Raise ValueError for fewer than three different sizes, for c₂ ≤ 0, and for a minimum below the smallest "
        "or above the largest size that came back. A good sweep is not refused.",
        uses=("isoflop_minimum",),
        describe=describe_calls("isoflop_minimum(n_params, loss)"),
    ),
    Check(
        name="power_law",
        title="A straight line on log-log paper",
        points=5,
        cases=(
            Case("exact points", {"points": 5, "noise": 0.0, "decades": (0, 3), "exponent": (0.3, 0.7)}),
            Case(
                "noisy points, two of them at one x",
                {"points": 9, "noise": 0.2, "decades": (17, 22), "exponent": (0.3, 0.7)},
            ),
            Case(
                "a falling law",
                {"points": 20, "noise": 0.1, "decades": (15, 25), "exponent": (-0.4, -0.1)},
                hidden=True,
            ),
        ),
        inputs=_power_inputs,
        run=calls.power_law,
        expect=_power_expect,
        compare=near,
        first_hint="On which paper is y = k · x^p a straight line, and what are its slope and its intercept there?",
        hint="ln y = ln k + p · ln x is a line: fit it, and give back (k, p), k by the exponential of the intercept.",
        uses=("fit_power_law",),
        describe=describe_calls("fit_power_law(x, y)"),
    ),
    Check(
        name="isoflop_minima",
        title="A sweep of many budgets",
        points=5,
        cases=(
            Case("three budgets, and one that is larger than the third by a millionth", {"budgets": 4, "near": True}),
            Case("failed runs, and a budget without a minimum", {"budgets": 5, "failed": 3, "off": 1}),
            Case(
                "four runs a budget, best sizes and losses that go up and down",
                {"budgets": 6, "scatter": 2.0, "sizes": 4},
            ),
            Case("no budget has a minimum", {"budgets": 2, "off": 2}),
            Case("eight budgets, three without a minimum", {"budgets": 8, "failed": 5, "off": 3}, hidden=True),
        ),
        inputs=_sweep,
        run=calls.minima,
        snippet='isoflop_minima(given["flops"], given["n_params"], given["loss"])',
        expect=_minima_expect,
        compare=either(near),
        first_hint="How many budgets are there, which runs belong to the first, and what if one shows no minimum?",
        hint="The rows come in no order: np.unique(flops) gives the budgets, rising, a mask the rows of each. A "
        "ValueError of isoflop_minimum leaves the budget out. Give back (C, N_opt, L_opt), a column each.",
        uses=("isoflop_minimum", "isoflop_minima"),
    ),
    Check(
        name="isoflop_optimum",
        title="What a hundred times the compute should buy",
        points=5,
        cases=(
            Case("four budgets", {"budgets": 4}),
            Case("a budget without a minimum", {"budgets": 5, "off": 1}),
            Case("a target that is one of the budgets", {"budgets": 5, "tried": True}),
            Case("six budgets and failed runs", {"budgets": 6, "failed": 3}, hidden=True),
        ),
        inputs=_sweep,
        run=calls.optimum,
        snippet='isoflop_optimum(given["flops"], given["n_params"], given["loss"], target)',
        expect=_optimum_expect,
        compare=either(near),
        first_hint="You have the best sizes of some budgets. What carries them to another one, and what is left for D?",
        hint="A power law through (C, N_opt) of isoflop_minima, read off at the target; then D = C / (6N).",
        uses=("isoflop_minimum", "fit_power_law", "isoflop_minima", "isoflop_optimum"),
    ),
)
