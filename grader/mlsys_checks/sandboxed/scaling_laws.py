"""Run the learner's code for lab 06's checks: constants and runs as arrays in, numbers and columns out.

A function that builds on earlier ones is called twice: on these, and on stand-ins for them, so that a mistake in one
costs the checks of its own task. A stand-in takes what the earlier function takes and gives other numbers, which answer
no check.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.lending import lend
from mlsys_checks.sandboxed.spec import Arrays, Run
from mlsys_checks.sandboxed.values import column, columns, decode_text, describe_value, number, numbers, pair
from mlsys_lab.errors import InputError, UnfinishedError

LAW = ("E", "A", "B", "alpha", "beta")
"""The constants of a law, in the order of the learner's record."""
REQUEST = ("n_params", "tokens", "learning_rate")
RUN = ("n_params", "tokens", "loss")


def law_of(artifact: Any, arrays: Arrays) -> Any:
    """The notebook's own `ChinchillaLaw` with the constants of a case."""
    return artifact.ChinchillaLaw(**{name: float(arrays[name]) for name in LAW})


# --- Stand-ins --------------------------------------------------------------------------------------------------------

RATED = (1e7, 1e9)
"""Sizes of which a case gives the best learning rates; those of all other sizes follow by a power law."""
STOOD = "stood "
"""Prefix of the answers that a function gave on stand-ins."""


def mirrored_middle(n_params: np.ndarray, loss: np.ndarray) -> tuple[float, float]:
    """For `isoflop_minimum`: as far below all runs as their middle is above; ValueError if the best is at an end."""
    came_back = np.isfinite(loss)
    x, y = np.log(n_params[came_back]), loss[came_back]
    if not x.size or x[y.argmin()] in (x.min(), x.max()):
        raise ValueError("the best run is at an end")
    return math.exp(2 * x.min() - x.mean()), float(y.mean())


def secant(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """For `fit_power_law`: the one through the points of smallest and of largest x."""
    ends = np.argsort(x, kind="stable")[[0, -1]]
    (x0, x1), (y0, y1) = np.log(np.take(x, ends)), np.log(np.take(y, ends))
    exponent = float((y1 - y0) / (x1 - x0)) if x1 > x0 else 0.0
    return math.exp(y0 - exponent * x0), exponent


def sorted_apart(flops: np.ndarray, n_params: np.ndarray, loss: np.ndarray) -> tuple[np.ndarray, ...]:
    """For `isoflop_minima`: columns of the runs that came back, each sorted by itself, sizes times losses."""
    came_back = np.isfinite(loss)
    return tuple(np.sort(column[came_back]) for column in (flops, n_params * loss, loss))


def made_up_law(n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray) -> dict[str, float]:
    """For `fit_parametric`: constants made of the means of the runs that came back, by name."""
    came_back = np.isfinite(loss)
    log_n, log_d, mean = (float(column[came_back].mean()) for column in (np.log(n_params), np.log(tokens), loss))
    alpha, beta = 1 / mean, 1.5 / mean
    return dict(zip(LAW, (mean / 2, math.exp(alpha * log_n), math.exp(beta * log_d), alpha, beta), strict=True))


def made_up_model(law: Any, flops: float) -> tuple[float, float]:
    """For `compute_optimal`: a model of these FLOPs that some of the law's constants choose."""
    n_params = math.sqrt(flops * law.alpha / law.E)
    return n_params, flops / (6 * n_params)


class _FitParametric:
    """The stand-in for `fit_parametric`; `fitted` are the runs of the last call, three columns."""

    def __init__(self, law: Any) -> None:
        self.law, self.fitted = law, (np.zeros(0),) * 3

    def __call__(self, n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray, *_: Any, **__: Any) -> Any:
        self.fitted = n_params, tokens, loss
        return self.law(**made_up_law(n_params, tokens, loss))


def _stand_ins(artifact: Any, arrays: Arrays) -> dict[str, Callable[..., Any]]:
    """All stand-ins, by the name of the learner's function; the best learning rates are those of the case's world."""
    (low, high), (first, last) = RATED, arrays.get("rates", (1.0, 1.0))
    exponent = math.log(last / first) / math.log(high / low)
    return {
        "isoflop_minimum": mirrored_middle,
        "fit_power_law": secant,
        "isoflop_minima": sorted_apart,
        "fit_parametric": _FitParametric(getattr(artifact, "ChinchillaLaw", None)),
        "compute_optimal": made_up_model,
        "best_learning_rate": lambda _, n_params: first * np.power(n_params / low, exponent),
    }


def on_stand_ins(*names: str) -> Callable[[Run], Run]:
    """A call that is repeated with stand-ins for the learner's functions of these names.

    If one of the two ends in an exception, the other's answer is all there is.
    """

    def decorate(run: Run) -> Run:
        @wraps(run)
        def run_twice(artifact: Any, arrays: Arrays) -> Arrays:
            stand_ins = {name: one for name, one in _stand_ins(artifact, arrays).items() if name in names}
            answer: Arrays = {}
            errors: list[Exception] = []
            for prefix, lent in (("", {}), (STOOD, stand_ins)):
                try:
                    with lend(artifact, **lent):
                        answer |= {prefix + name: one for name, one in run(artifact, arrays).items()}
                except Exception as error:
                    errors.append(error)
            if not answer:  # what an unwritten function raises may come from an earlier one
                raise errors[isinstance(errors[0], NotImplementedError | UnfinishedError)]
            return answer

        return run_twice

    return decorate


# --- Tasks 1 and 2: a parabola for each budget, and a power law through the minima ------------------------------------


def minimum(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `isoflop_minimum`: the best size of one budget, and the loss there."""
    try:
        got = artifact.isoflop_minimum(arrays["n_params"], arrays["loss"])
    except ValueError as error:
        error.add_note("a minimum: these runs show one, among the sizes that came back")
        raise
    return numbers("isoflop_minimum", got, "n_opt", "loss_opt")


def refuses(artifact: Any, arrays: Arrays) -> Arrays:
    """Whether the runs of a budget are refused by a ValueError; if not, there has to be an answer."""
    try:
        got = artifact.isoflop_minimum(arrays["n_params"], arrays["loss"])
    except ValueError:
        return {"refused": np.array(True)}
    except Exception as error:
        error.add_note("a ValueError, or an answer where there is a minimum")
        raise
    found = numbers("isoflop_minimum, where it raises no ValueError,", got, "n_opt", "loss_opt")
    return {"refused": np.array(False), "n_opt": found["n_opt"]}


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
    """Call `fit_parametric`, once for each of the `starts` (F, S, 5) that there may be: constants of laws, (F, 5)."""
    runs = [arrays[name] for name in RUN]
    more = [(tuple(map(tuple, starts)),) for starts in arrays["starts"].tolist()] if "starts" in arrays else [()]
    return {"laws": np.array([_constants(artifact.fit_parametric(*runs, *starts)) for starts in more])}


def _constants(got: Any) -> list[float]:
    if not all(hasattr(got, name) for name in LAW):
        expected = f"ChinchillaLaw({', '.join(LAW)})"
        raise InputError("fit_parametric gives no ChinchillaLaw", got=describe_value(got), expected=expected)
    return [float(number(name, getattr(got, name))) for name in LAW]


# --- Task 4: the bootstrap, of fits whose distribution over resamples is known ----------------------------------------

FITS = {
    "mean": "lambda x: float(x.mean())",
    "rows": "lambda x, y: float(np.abs(y - x).max())",
    # without the row of 0, a ValueError, which leaves a resample out, or a bug of the fit
    "picky": "lambda x: float(x.mean() if (x == 0).any() else 'no such row')",
    "flawed": "lambda x: 1 / int((x == 0).sum())",
    "entries": "lambda *columns: float(sum(map(len, columns)))",
    "turn": "lambda *columns, turns=itertools.count(): float(next(turns))",
}
"""Fits by name, as code. The last one gives the number of its call, from 0 on."""
COLUMNS = "xyzuvw"
"""Names of the columns that a case may have."""


def bootstrap(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `bootstrap`: the two ends of a fit's interval, or that the fit's own bug came out."""
    fit = eval(FITS[decode_text(arrays["fit"])], {"np": np, "itertools": itertools})
    given = tuple(arrays[column] for column in COLUMNS if column in arrays)
    rng = np.random.default_rng(int(arrays["seed"]))
    before = rng.bit_generator.state
    try:
        got = artifact.bootstrap(fit, given, int(arrays["resamples"]), float(arrays["level"]), rng)
    except ZeroDivisionError:
        if decode_text(arrays["fit"]) != "flawed":
            raise
        return {"stopped": np.array(True)}
    except ValueError as error:
        error.add_note("an interval from the resamples whose fit raises no ValueError")
        raise
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
    """Call `inference_optimal` for each of some losses and served tokens, after the same for another law."""
    law, given = law_of(artifact, arrays), list(zip(arrays["loss"].tolist(), arrays["served"].tolist(), strict=True))
    other = law_of(artifact, arrays | {"B": 2 * arrays["B"]})
    for one in given:
        artifact.inference_optimal(other, *one)
    return _pairs("inference_optimal", (artifact.inference_optimal(law, *one) for one in given))


# --- Task 6: a campaign on a cluster that is not here; runs go in, requests come out ----------------------------------


def _trials(artifact: Any, arrays: Arrays) -> Any:
    return artifact.Trials(*(arrays[name] for name in (*REQUEST, "loss")))


@on_stand_ins("isoflop_minimum", "fit_power_law")
def best_rate(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `best_learning_rate` for one size and for an array of others, after the judge's runs."""
    trials, (one, *others) = _trials(artifact, arrays), arrays["sizes"].tolist()
    rate = number("the learning rate", artifact.best_learning_rate(trials, one))
    return {"rate": np.append(rate, column("the rates", artifact.best_learning_rate(trials, np.array(others))))}


def scout(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `scout`: the runs of the first round."""
    return columns("scout", artifact.scout(float(arrays["budget_flops"])), *REQUEST)


@on_stand_ins("best_learning_rate")
def sweep(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `sweep`: the runs of the second round, after the judge's first."""
    return columns("sweep", artifact.sweep(_trials(artifact, arrays), float(arrays["left_flops"])), *REQUEST)


@on_stand_ins("best_learning_rate", "fit_parametric", "compute_optimal")
def decide(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `decide`: parameters, tokens and the loss predicted for them; on stand-ins also which runs were fitted."""
    got = artifact.decide(_trials(artifact, arrays), float(arrays["target_flops"]))
    found = numbers("decide", got, "n_params", "tokens", "loss")
    if isinstance(stand_in := artifact.fit_parametric, _FitParametric):
        found |= {f"fitted {name}": column(name, one) for name, one in zip(RUN, stand_in.fitted, strict=True)}
    return found


# --- Task 7: runs that were really made -------------------------------------------------------------------------------


@on_stand_ins("fit_parametric")
def backtest(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `backtest`: predicted and measured losses of the runs that were put aside."""
    got = artifact.backtest(arrays["n_params"], arrays["tokens"], arrays["loss"], int(arrays["held_out"]))
    return columns("backtest", got, "predicted", "measured")
