"""How lab 06's checks call the learner's code: constants and runs as arrays in, numbers and columns out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.values import column, columns, describe_value, number, numbers, pair
from mlsys_lab.errors import InputError

LAW = ("E", "A", "B", "alpha", "beta")
"""The constants of a law, in the order of the learner's record."""


def law_of(artifact: Any, arrays: Arrays) -> Any:
    """The notebook's own `Law` with the constants that a case gives."""
    return artifact.Law(**{name: float(arrays[name]) for name in LAW})


# --- Tasks 1 and 2: a parabola for each budget, and a power law through the minima ------------------------------------


def minimum(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `isoflop_minimum`: the best size of one budget, and the loss there."""
    return numbers("isoflop_minimum", artifact.isoflop_minimum(arrays["n_params"], arrays["loss"]), "n_opt", "loss_opt")


def refuses(artifact: Any, arrays: Arrays) -> Arrays:
    """Whether the runs of a budget are refused by a ValueError; where they are not, there has to be an answer."""
    try:
        got = artifact.isoflop_minimum(arrays["n_params"], arrays["loss"])
    except ValueError:
        return {"refused": np.array(True)}
    except Exception as error:
        error.add_note("a ValueError, or an answer where there is a minimum")
        raise
    numbers("isoflop_minimum", got, "n_opt", "loss_opt")
    return {"refused": np.array(False)}


def power_law(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `fit_power_law`: coefficient and exponent."""
    return numbers("fit_power_law", artifact.fit_power_law(arrays["x"], arrays["y"]), "coefficient", "exponent")


def minima(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `isoflop_minima`: the minima of all budgets that have one, in the order of the budgets."""
    got = artifact.isoflop_minima(arrays["flops"], arrays["n_params"], arrays["loss"])
    return columns("isoflop_minima", got, "flops", "n_opt", "loss_opt")


def optimum(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `isoflop_optimum`: parameters and tokens for a budget, after other runs with the same target."""
    flops, n_params, loss, target = arrays["flops"], arrays["n_params"], arrays["loss"], float(arrays["target"])
    artifact.isoflop_optimum(flops, 2 * n_params, loss, target)
    return numbers("isoflop_optimum", artifact.isoflop_optimum(flops, n_params, loss, target), "n_params", "tokens")


# --- Task 3: the parametric form --------------------------------------------------------------------------------------


def objective(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `objective`: its value and gradient at a point, which a second call elsewhere leaves as they are."""
    runs = (arrays["n_params"], arrays["tokens"], arrays["loss"], float(arrays["delta"]))
    got = artifact.objective(arrays["theta"], *runs)
    artifact.objective(0.9 * arrays["theta"], *runs)
    value, gradient = pair("objective", got, "value", "gradient")
    return {"value": number("the value", value), "gradient": column("the gradient", gradient)}


def fit(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `fit_law`, once for each of the `starts` (F, S, 5) that there may be: the laws' constants, (F, 5)."""
    runs = [arrays[name] for name in ("n_params", "tokens", "loss")]
    more = [(tuple(map(tuple, starts)),) for starts in arrays["starts"].tolist()] if "starts" in arrays else [()]
    return {"laws": np.array([_constants(artifact.fit_law(*runs, *starts)) for starts in more])}


def _constants(got: Any) -> list[float]:
    if not all(hasattr(got, name) for name in LAW):
        raise InputError("fit_law gives no Law", got=describe_value(got), expected=f"Law({', '.join(LAW)})")
    return [float(number(name, getattr(got, name))) for name in LAW]


# --- Task 4: the bootstrap, on statistics whose bootstrap distribution is known ---------------------------------------


def mean(x: np.ndarray) -> float:
    """The mean of a column."""
    return float(x.mean())


def median(x: np.ndarray) -> float:
    """The middle one of an odd number of rows."""
    return float(np.sort(x)[len(x) // 2])


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """The slope of y on x by least squares."""
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred))


def picky(x: np.ndarray) -> float:
    """The mean of a column; a column without its first row has none."""
    if not (x == 0).any():
        raise ValueError("the row that this statistic needs is missing")
    return float(x.mean())


def flawed(x: np.ndarray) -> float:
    """One over the mean of a column, which is wrong about columns without its first row: it says that theirs is 0."""
    return 1 / float(x.mean() if (x == 0).any() else 0)


def entries(*columns: np.ndarray) -> float:
    """How many entries some columns have."""
    return float(sum(len(column) for column in columns))


STATISTICS: dict[str, Callable[..., float]] = {
    one.__name__: one for one in (mean, median, slope, picky, flawed, entries)
}
"""Statistics by name. Any other name is that of one which gives the number of its call, from 0 on."""


def bootstrap(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `bootstrap`: the two ends of a statistic's interval, or that the statistic's own mistake came out."""
    named, turns = str(bytes(arrays["statistic"]), "ascii"), itertools.count()
    statistic = STATISTICS.get(named, lambda *_: float(next(turns)))
    given = tuple(arrays[name] for name in "xyz" if name in arrays)
    rng = np.random.default_rng(int(arrays["seed"]))
    before = rng.bit_generator.state
    try:
        got = artifact.bootstrap(statistic, given, int(arrays["resamples"]), float(arrays["level"]), rng)
    except ZeroDivisionError:
        if named != flawed.__name__:
            raise
        return {"stopped": np.array(True)}
    if rng.bit_generator.state == before:
        raise InputError("`bootstrap` draws nothing from `rng`", got="rows of another origin", expected="rows by `rng`")
    return numbers("bootstrap", got, "low", "high")


# --- Task 5: the cheapest model for a budget, and for a loss and the tokens that it will serve ------------------------


def _pairs(name: str, found: Iterable[Any]) -> Arrays:
    """Parameters and tokens of each of some models, (R,)."""
    split = [numbers(name, one, "n_params", "tokens") for one in found]
    return {key: np.array([one[key] for one in split]) for key in ("n_params", "tokens")}


def compute_optimal(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `compute_optimal` for each of some budgets: parameters and tokens."""
    law = law_of(artifact, arrays)
    return _pairs("compute_optimal", (artifact.compute_optimal(law, flops) for flops in arrays["flops"].tolist()))


def serving_optimal(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `serving_optimal` for each of some amounts of served tokens: parameters and tokens that reach a loss."""
    law, given = law_of(artifact, arrays), zip(arrays["loss"].tolist(), arrays["served"].tolist(), strict=True)
    return _pairs("serving_optimal", (artifact.serving_optimal(law, *one) for one in given))


# --- Task 6: a campaign on a cluster that is not here; runs go in, requests come out ----------------------------------


REQUEST = ("n_params", "tokens", "learning_rate")


def _trials(artifact: Any, arrays: Arrays) -> Any:
    return artifact.Trials(*(arrays[name] for name in (*REQUEST, "loss")))


def best_rate(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `best_learning_rate` for each of some sizes, after the judge's runs."""
    trials = _trials(artifact, arrays)
    rates = [number("the learning rate", artifact.best_learning_rate(trials, n)) for n in arrays["sizes"].tolist()]
    return {"rate": np.array(rates)}


def scout(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `scout`: the runs that the first round asks for."""
    return columns("scout", artifact.scout(float(arrays["budget_flops"])), *REQUEST)


def sweep(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `sweep`: the runs that the second round asks for, after the judge's first."""
    return columns("sweep", artifact.sweep(_trials(artifact, arrays), float(arrays["left_flops"])), *REQUEST)


def decide(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `decide`: parameters, tokens and the loss predicted for them."""
    got = artifact.decide(_trials(artifact, arrays), float(arrays["target_flops"]))
    return numbers("decide", got, "n_params", "tokens", "loss")


# --- Task 7: runs that were really made -------------------------------------------------------------------------------


def backtest(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `backtest`: predicted and measured losses of the runs that were put aside."""
    got = artifact.backtest(arrays["n_params"], arrays["tokens"], arrays["loss"], int(arrays["held_out"]))
    return columns("backtest", got, "predicted", "measured")
