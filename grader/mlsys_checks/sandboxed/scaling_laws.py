"""How lab 06's checks call the learner's code: constants and runs as arrays in, numbers and columns out.

A function that builds on earlier ones is asked twice: on these, and on stand-ins for them, so that a slip in one costs
the checks of its own task. A stand-in has an earlier function's form and gives other numbers, which answer no check.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Run
from mlsys_checks.sandboxed.values import column, columns, describe_value, number, numbers, pair
from mlsys_lab.errors import InputError, UnfinishedError

LAW = ("E", "A", "B", "alpha", "beta")
"""The constants of a law, in the order of the learner's record."""


def law_of(artifact: Any, arrays: Arrays) -> Any:
    """The notebook's own `ChinchillaLaw` with the constants that a case gives."""
    return artifact.ChinchillaLaw(**{name: float(arrays[name]) for name in LAW})


# --- Stand-ins --------------------------------------------------------------------------------------------------------

RATED = (1e7, 1e9)
"""Sizes of which a case gives the best learning rates, for all others to follow by a power law."""
STOOD = "stood "
"""How the arrays of the answer are called that a function gave on stand-ins."""


def mirrored_middle(n_params: np.ndarray, loss: np.ndarray) -> tuple[float, float]:
    """For `isoflop_minimum`: as far below all runs as their middle is above; ValueError where the best is at an end."""
    came_back = np.isfinite(loss)
    x, y = np.log(n_params[came_back]), loss[came_back]
    if not x.size or x[y.argmin()] in (x.min(), x.max()):
        raise ValueError("the best run is at an end")
    return math.exp(2 * x.min() - x.mean()), float(y.mean())


def secant(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """For `fit_power_law`: the one through the points of least and of largest x."""
    ends = np.argsort(x, kind="stable")[[0, -1]]
    (x0, x1), (y0, y1) = np.log(np.take(x, ends)), np.log(np.take(y, ends))
    exponent = float((y1 - y0) / (x1 - x0)) if x1 > x0 else 0.0
    return math.exp(y0 - exponent * x0), exponent


def sorted_apart(flops: np.ndarray, n_params: np.ndarray, loss: np.ndarray) -> tuple[np.ndarray, ...]:
    """For `isoflop_minima`: columns of the runs that came back, sorted by themselves; sizes are taken times losses."""
    came_back = np.isfinite(loss)
    return tuple(np.sort(column[came_back]) for column in (flops, n_params * loss, loss))


def made_up_law(n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray) -> dict[str, float]:
    """For `fit_parametric`: constants made of the means of the runs that came back, by name."""
    came_back = np.isfinite(loss)
    log_n, log_d, mean = (float(column[came_back].mean()) for column in (np.log(n_params), np.log(tokens), loss))
    alpha, beta = 1 / mean, 1.5 / mean
    return dict(zip(LAW, (mean / 2, math.exp(alpha * log_n), math.exp(beta * log_d), alpha, beta), strict=True))


def made_up_model(law: Any, flops: float) -> tuple[float, float]:
    """For `compute_optimal`: a model of so many FLOPs that some of the law's constants choose."""
    n_params = math.sqrt(flops * law.alpha / law.E)
    return n_params, flops / (6 * n_params)


class _FitLaw:
    """The stand-in for `fit_parametric`; `asked` are the runs of the last call, three columns."""

    def __init__(self, law: Any) -> None:
        self.law, self.asked = law, (np.zeros(0),) * 3

    def __call__(self, n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray, *_: Any, **__: Any) -> Any:
        self.asked = n_params, tokens, loss
        return self.law(**made_up_law(n_params, tokens, loss))


def _stand_ins(artifact: Any, arrays: Arrays) -> dict[str, Callable[..., Any]]:
    """All stand-ins, by the name of the learner's function; the best learning rates are those of the case's world."""
    (low, high), (first, last) = RATED, arrays.get("rates", (1.0, 1.0))
    exponent = math.log(last / first) / math.log(high / low)
    return {
        "isoflop_minimum": mirrored_middle,
        "fit_power_law": secant,
        "isoflop_minima": sorted_apart,
        "fit_parametric": _FitLaw(getattr(artifact, "ChinchillaLaw", None)),
        "compute_optimal": made_up_model,
        "best_learning_rate": lambda _, n_params: first * np.power(n_params / low, exponent),
    }


@contextmanager
def _standing_in(artifact: Any, stand_ins: dict[str, Callable[..., Any]]) -> Iterator[None]:
    names = vars(artifact)
    own = {name: names[name] for name in stand_ins if name in names}
    names.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del names[name]
        names.update(own)


def on_stand_ins(*names: str) -> Callable[[Run], Run]:
    """A call that is made once more with stand-ins for the learner's functions of these names.

    Where one of the two ends in an exception, the other's answer is all there is.
    """

    def decorate(run: Run) -> Run:
        """The call, made twice."""

        @wraps(run)
        def run_twice(artifact: Any, arrays: Arrays) -> Arrays:
            """Answers on the learner's own functions, and under further names those on stand-ins."""
            stand_ins = {name: one for name, one in _stand_ins(artifact, arrays).items() if name in names}
            answer: Arrays = {}
            errors: list[Exception] = []
            for prefix, replaced in (("", {}), (STOOD, stand_ins)):
                try:
                    with _standing_in(artifact, replaced):
                        answer |= {prefix + name: one for name, one in run(artifact, arrays).items()}
                except Exception as error:
                    errors.append(error)
            if not answer:  # what an unwritten function says may be an earlier one's word
                raise errors[isinstance(errors[0], NotImplementedError | UnfinishedError)]
            return answer

        return run_twice

    return decorate


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


@on_stand_ins("isoflop_minimum")
def minima(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `isoflop_minima`: the minima of all budgets that have one, in the order of the budgets."""
    got = artifact.isoflop_minima(arrays["flops"], arrays["n_params"], arrays["loss"])
    return columns("isoflop_minima", got, "flops", "n_opt", "loss_opt")


@on_stand_ins("isoflop_minima", "fit_power_law")
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
    """Call `fit_parametric`, once for each of the `starts` (F, S, 5) that there may be: the laws' constants, (F, 5)."""
    runs = [arrays[name] for name in RUN]
    more = [(tuple(map(tuple, starts)),) for starts in arrays["starts"].tolist()] if "starts" in arrays else [()]
    return {"laws": np.array([_constants(artifact.fit_parametric(*runs, *starts)) for starts in more])}


def _constants(got: Any) -> list[float]:
    if not all(hasattr(got, name) for name in LAW):
        raise InputError("fit_parametric gives no ChinchillaLaw", got=describe_value(got), expected=f"ChinchillaLaw({', '.join(LAW)})")
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
COLUMNS = "xyzuvw"
"""Names of the columns that a case may have."""


def bootstrap(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `bootstrap`: the two ends of a statistic's interval, or that the statistic's own mistake came out."""
    named, turns = str(bytes(arrays["statistic"]), "ascii"), itertools.count()
    statistic = STATISTICS.get(named, lambda *_: float(next(turns)))
    given = tuple(arrays[name] for name in COLUMNS if name in arrays)
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


def inference_optimal(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `serving_optimal` for each of some amounts of served tokens, after the same for another law."""
    law, given = law_of(artifact, arrays), list(zip(arrays["loss"].tolist(), arrays["served"].tolist(), strict=True))
    other = law_of(artifact, arrays | {"B": 2 * arrays["B"]})
    for one in given:
        artifact.inference_optimal(other, *one)
    return _pairs("inference_optimal", (artifact.inference_optimal(law, *one) for one in given))


# --- Task 6: a campaign on a cluster that is not here; runs go in, requests come out ----------------------------------


REQUEST = ("n_params", "tokens", "learning_rate")
RUN = ("n_params", "tokens", "loss")


def _trials(artifact: Any, arrays: Arrays) -> Any:
    return artifact.Trials(*(arrays[name] for name in (*REQUEST, "loss")))


@on_stand_ins("isoflop_minimum", "fit_power_law")
def best_rate(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `best_learning_rate` for each of some sizes, after the judge's runs."""
    trials = _trials(artifact, arrays)
    rates = [number("the learning rate", artifact.best_learning_rate(trials, n)) for n in arrays["sizes"].tolist()]
    return {"rate": np.array(rates)}


def scout(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `scout`: the runs that the first round asks for."""
    return columns("scout", artifact.scout(float(arrays["budget_flops"])), *REQUEST)


@on_stand_ins("best_learning_rate")
def sweep(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `sweep`: the runs that the second round asks for, after the judge's first."""
    return columns("sweep", artifact.sweep(_trials(artifact, arrays), float(arrays["left_flops"])), *REQUEST)


@on_stand_ins("best_learning_rate", "fit_parametric", "compute_optimal")
def decide(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `decide`: parameters, tokens and the loss predicted for them; on stand-ins also which runs were fitted."""
    got = artifact.decide(_trials(artifact, arrays), float(arrays["target_flops"]))
    found = numbers("decide", got, "n_params", "tokens", "loss")
    if isinstance(fitted := artifact.fit_parametric, _FitLaw):
        found |= {f"fitted {name}": column(name, one) for name, one in zip(RUN, fitted.asked, strict=True)}
    return found


# --- Task 7: runs that were really made -------------------------------------------------------------------------------


@on_stand_ins("fit_parametric")
def backtest(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `backtest`: predicted and measured losses of the runs that were put aside."""
    got = artifact.backtest(arrays["n_params"], arrays["tokens"], arrays["loss"], int(arrays["held_out"]))
    return columns("backtest", got, "predicted", "measured")
