"""Tasks 1 to 5 of lab 06: laws and their fits, cases and comparisons.

No oracle is the course's solution: parabolas are orthogonal polynomials, optima are bisected, laws are fitted by BFGS
from near the truth, gradients are complex steps, and the bootstrap's resamples are multinomial counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial
from scipy.optimize import minimize

from mlsys_checks.sandboxed import scaling_laws as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.sandboxed.values import decode_text, encode_text
from mlsys_checks.trusted.answers import agree, likely
from mlsys_checks.trusted.describe import write_columns, write_exact

DELTA = 1e-3
"""Where Huber's loss turns from a parabola into a line, in the log of the loss."""
Minimum = Callable[[np.ndarray, np.ndarray], tuple[float, float] | None]
Compare = Callable[[Arrays, Arrays], Mismatch | None]
near, near_overflow, near_endless = (partial(agree, scale=scale) for scale in (1e3, 100, 1e5))
"""One in a million: a parabola in log10 loses digits, and a minimum found by search is known to half of them. A
log-sum-exp may be written so that 1e-14 of a log loss is uncertain. D follows from N near where it becomes endless."""


def either(compare: Compare, on_stand_ins: Compare | None = None) -> Compare:
    """Accept an answer on the learner's own functions or the one on stand-ins, which may be compared otherwise.

    If nothing in particular is expected of the second, the same is expected as of the first.
    """

    def compare_either(got: Arrays, expected: Arrays) -> Mismatch | None:
        (own, stood), (expects, expects_stood) = _split(got), _split(expected)
        problems = [compare(own, expects)] if own or not stood else []
        if stood:
            problems.append((on_stand_ins or compare)(stood, expects_stood or expects))
        return None if None in problems else problems[0]

    return compare_either


def _split(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """The answer on the learner's own functions, and that on stand-ins."""
    stood = {name.removeprefix(calls.STOOD): one for name, one in arrays.items() if name.startswith(calls.STOOD)}
    return {name: one for name, one in arrays.items() if not name.startswith(calls.STOOD)}, stood


def stood(arrays: Arrays) -> Arrays:
    """Arrays by the names that they have in the answer on stand-ins."""
    return {calls.STOOD + name: array for name, array in arrays.items()}


# --- parabolas and power laws -----------------------------------------------------------------------------------------


def parabola_minimum(n_params: np.ndarray, loss: np.ndarray) -> tuple[float, float] | None:
    """Minimum of the least-squares parabola of loss on log2 N; None if there is none among the sizes tried."""
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


def minima(of: Minimum, groups: np.ndarray, x: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Minimum of each group of runs that has one: (3, groups), the group's number first, rising."""
    found = []
    for group in sorted(set(groups.tolist())):
        rows = [i for i, one in enumerate(groups.tolist()) if one == group]
        if (best := of(x[rows], loss[rows])) is not None:
            found.append((group, *best))
    return np.array(found).reshape(-1, 3).T


def mirrored_middle(x: np.ndarray, loss: np.ndarray) -> tuple[float, float] | None:
    """Answer of the stand-in for `isoflop_minimum`, or None."""
    try:
        return calls.mirrored_middle(x, loss)
    except ValueError:
        return None


# --- laws -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """L = E + A/N^alpha + B/D^beta."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, n_params: np.ndarray | float, tokens: np.ndarray | float) -> np.ndarray:
        """Loss in nats per token, elementwise."""
        return self.E + self.A / np.power(n_params, self.alpha) + self.B / np.power(tokens, self.beta)

    def best_size(self, flops: float) -> float:
        """The N of lowest loss at 6ND = flops: where the loss stops falling with ln N."""
        return bisect(
            lambda n: self.beta * self.B * (6 * n / flops) ** self.beta - self.alpha * self.A * n**-self.alpha,
            1.0,
            flops / 6,
        )

    def least_loss(self, flops: float) -> float:
        """Loss of the best model for a budget."""
        n = self.best_size(flops)
        return float(self.loss(n, flops / 6 / n))

    def arrays(self) -> Arrays:
        """The law's constants as arrays without axes, by name."""
        return {name: np.array(constant) for name, constant in vars(self).items()}

    @classmethod
    def draw(cls, rng: np.random.Generator, *, tokens_per_param: tuple[float, float] = (5, 80)) -> Truth:
        """Draw a law with this many tokens per parameter optimal at 1e20 FLOPs, and exponents that differ."""
        alpha = rng.uniform(0.28, 0.42)
        beta = alpha * np.exp(rng.choice((-1, 1)) * rng.uniform(0.1, 0.4))
        ratio = np.exp(rng.uniform(*np.log(tokens_per_param)))
        n, by_size = (1e20 / (6 * ratio)) ** 0.5, rng.uniform(0.35, 0.6)
        terms = by_size * n**alpha, by_size * alpha / beta * (n * ratio) ** beta
        return cls(*map(float, (rng.uniform(1.5, 2.0), *terms, alpha, beta)))


def truth_of(arrays: Arrays, prefix: str = "") -> Truth:
    """The law whose constants are among some arrays."""
    return Truth(*(float(arrays[f"{prefix}{name}"]) for name in calls.LAW))


def bisect(rises: Callable[[float], float], low: float, high: float) -> float:
    """The positive number at which a rising function passes zero, to the last bits, by halving ln x."""
    for _ in range(200):
        middle = (low * high) ** 0.5
        if not low < middle < high:
            break
        low, high = (low, middle) if rises(middle) > 0 else (middle, high)
    return low


def cheapest(law: Truth, loss: float, served: float) -> tuple[float, float]:
    """N and D of lowest 6ND + 2N·served at a loss: where the cost stops falling with N."""
    least = (law.A / (loss - law.E)) ** (1 / law.alpha)

    def tokens(n: float) -> float:
        return float((law.B / (loss - law.E - law.A * n**-law.alpha)) ** (1 / law.beta))

    def slope(n: float) -> float:
        """d cost / dN. D falls with N: dD/dN = −D/β · αA N^(−α−1) / (loss − E − A N^−α)."""
        left = loss - law.E - law.A * n**-law.alpha
        if left <= 0:
            return -np.inf
        return float(6 * tokens(n) * (1 - law.alpha * law.A * n**-law.alpha / (law.beta * left)) + 2 * served)

    n = bisect(slope, least, least * 1e6)
    return n, tokens(n)


def residuals(law: Truth, n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """ln(law's loss / loss) of each run, (R,)."""
    return np.asarray(np.log(law.loss(n_params, tokens) / loss))


def huber(r: np.ndarray, delta: float = DELTA) -> float:
    """Sum of Huber's losses of some residuals."""
    size = np.abs(r)
    return float(np.where(size <= delta, r**2 / 2, delta * (size - delta / 2)).sum())


def refit(start: Truth, n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray) -> Truth:
    """The law of lowest Huber loss near `start`, by BFGS over E, both terms at the middle run, and the exponents."""
    (mean_n, off_n), (mean_d, off_d) = ((x.mean(), x - x.mean()) for x in (np.log(n_params), np.log(tokens)))

    def law_at(x: np.ndarray) -> Truth:
        e, a, b, alpha, beta = x
        return Truth(np.exp(e), np.exp(a + alpha * mean_n), np.exp(b + beta * mean_d), alpha, beta)

    def scaled(x: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective over delta, and its slopes (5,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            law = law_at(x)
            r = residuals(law, n_params, tokens, loss)
            of_n, of_d = law.A * n_params**-law.alpha, law.B * tokens**-law.beta
            slopes = np.stack([np.full_like(of_n, law.E), of_n, of_d, -of_n * off_n, -of_d * off_d])  # (5, R)
            return huber(r) / DELTA, slopes / law.loss(n_params, tokens) @ np.clip(r / DELTA, -1, 1)

    terms = np.log([start.E, start.A, start.B]) - [0, start.alpha * mean_n, start.beta * mean_d]
    x = np.append(terms, [start.alpha, start.beta])
    for _ in range(3):  # a fresh guess of the curvature each time
        found = minimize(scaled, x, jac=True, method="BFGS", options={"gtol": 1e-9})
        x = found.x if found.fun < scaled(x)[0] else x
    return law_at(x)


def best_law(n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray) -> Truth:
    """The law of lowest Huber loss over runs, found without knowing the true one."""
    n_mid, d_mid = (float(np.exp(np.log(column).mean())) for column in (n_params, tokens))
    found = []
    for floor, term, alpha, beta in ((1.5, 0.4, 0.3, 0.3), (1.5, 0.4, 0.2, 0.6), (3.0, 1.0, 0.5, 0.4)):
        start = Truth(floor, term * n_mid**alpha, term * d_mid**beta, alpha, beta)
        found.append(refit(start, n_params, tokens, loss))
    return min(found, key=lambda law: huber(residuals(law, n_params, tokens, loss)))


# --- Tasks 1 and 2: a parabola for each budget, a power law through the minima ----------------------------------------


def _draw_valley(rng: np.random.Generator, sizes: int, noise: float = 0.0, span: float = 1.0) -> Arrays:
    """One budget: loss against ln N, steeper for small models than for large ones, the sizes in no order."""
    x = np.linspace(-1.8, 1.8, sizes) + rng.uniform(-0.1, 0.1, sizes)
    loss = rng.uniform(2, 4) + rng.uniform(0.06, 0.1) * (x - rng.uniform(-0.4, 0.4)) ** 2 * (1 - 0.05 * x)
    order = rng.permutation(sizes)
    n_params = rng.uniform(1e8, 1e9) * np.exp(span * x)
    return {"n_params": n_params[order], "loss": (loss + noise * rng.standard_normal(sizes))[order]}


def minimum_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """A profile with a minimum: some runs failed, one size ran `again`, and then the worst run went wrong."""
    failed, again = case.params["failed"], case.params["again"]
    while True:
        sizes = case.params["sizes"] + failed
        arrays = _draw_valley(rng, sizes, case.params["noise"] / 1e3, case.params["span"] / 100)
        if again:
            row = np.append(np.full(again, 0), arrays["loss"].argmax())
            off = np.append(rng.uniform(1, 1.02, again), 1.08)
            arrays = {name: np.append(column, column[row]) for name, column in arrays.items()}
            arrays["loss"][-len(off) :] *= off
        arrays["loss"][rng.permutation(sizes)[:failed]] = np.nan
        if parabola_minimum(**arrays) is not None:
            return arrays


def minimum_expect(arrays: Arrays) -> Arrays:
    found = parabola_minimum(**arrays)
    assert found is not None, "a case of isoflop_minimum has no minimum"
    n_opt, loss_opt = found
    came_back = np.isfinite(arrays["loss"])
    middle = float(np.exp(np.log(arrays["n_params"][came_back]).mean()))
    known = {
        "that is ln N, not N": math.log(n_opt),
        "the minimum is at −c₁ / 2c₂, not at c₁ / 2c₂": middle**2 / n_opt,
        "the mean of ln N was subtracted, and must be added again": n_opt / middle,
        "that is the best run, not the parabola's minimum": float(arrays["n_params"][np.nanargmin(arrays["loss"])]),
    }
    lowest = {"that is the lowest loss of a run, not the parabola's": float(np.nanmin(arrays["loss"]))}
    answers = {"n_opt": np.array(n_opt), "loss_opt": np.array(loss_opt)}
    return answers | likely("n_opt", known) | likely("loss_opt", lowest)


SITUATIONS = {
    "good": "a good profile",
    "above": "the minimum just above the largest size",
    "below the largest": "the minimum just below the largest size",
    "hill": "a parabola that opens downward",
    "below": "the minimum just below the smallest size",
    "above the smallest": "the minimum just above the smallest size",
    "two": "two runs came back",
    "twins": "nine runs of two different sizes",
    "beyond": "the one size above the minimum failed",
}


def refuses_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Nine sizes. If the minimum is near one end of them, they are twice as far apart towards the other."""
    arrays, why = _draw_valley(rng, 9), case.params["why"]
    x = np.log(arrays["n_params"] / arrays["n_params"].mean())
    if why == "hill":
        arrays["loss"] = 3 - 0.1 * (x - x.mean()) ** 2
    elif "above" in why or "below" in why:
        side = 1 if why in ("above", "below the largest") else -1
        x = side * (x - np.median(x))
        x = np.where(x < 0, 2 * x, x)
        beyond = rng.uniform(0.02, 0.09) if why in ("above", "below") else -rng.uniform(0.03, 0.12)
        arrays["n_params"] = np.median(arrays["n_params"]) * np.exp(side * x)
        arrays["loss"] = 3 + 0.05 * (x - x.max() - beyond) ** 2
    elif why in ("two", "none"):
        arrays["loss"][rng.permutation(9)[: 7 if why == "two" else 9]] = np.nan
    elif why == "twins":
        arrays["n_params"] = rng.permutation(np.repeat(arrays["n_params"][:2], (5, 4)))
    elif why == "beyond":
        arrays["loss"] = 3 + 0.05 * (x - np.sort(x)[-2:].mean()) ** 2
        arrays["loss"][np.argmax(x)] = np.nan
    return arrays


def refuses_expect(arrays: Arrays) -> Arrays:
    return {"refused": np.array(parabola_minimum(**arrays) is None)}


def refuses_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    if got["refused"] == expected["refused"]:
        return None
    if expected["refused"]:
        answer = f"a minimum at N = {float(got['n_opt']):.4g}"
        return Mismatch("runs that show no minimum are not refused", answer, "ValueError")
    return Mismatch("runs that show a minimum are refused", "ValueError", "the size at the minimum, and its loss")


def power_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    points, noise = case.params["points"], case.params["noise"] / 100
    x = 10 ** (case.params["decade"] + rng.uniform(0, 5, points))
    if noise:
        x[-1] = x[0]
    y = rng.uniform(0.05, 20) * x ** rng.uniform(*((0.3, 0.7), (-0.4, -0.1))[case.params["falls"]])
    return {"x": x, "y": y * np.exp(noise * rng.standard_normal(points))}


def power_expect(arrays: Arrays) -> Arrays:
    coefficient, exponent = power_law(arrays["x"], arrays["y"])
    known = {
        "that is the intercept, ln k": math.log(coefficient),
        "that is the exponent: return (k, p)": exponent,
    }
    return {"coefficient": np.array(coefficient), "exponent": np.array(exponent)} | likely("coefficient", known)


def sweep_runs(rng: np.random.Generator, case: Case) -> Arrays:
    """Runs at several budgets, in no order; `off` budgets tried only models that are far too small.

    Every budget tries sizes of one ladder. `scatter` moves best sizes and losses up and down, out of any law.
    """
    p = case.params
    budgets = rng.uniform(1e18, 9e18) * rng.uniform(3, 5) ** np.arange(p["budgets"])
    if p.get("near"):
        budgets[-1] = (1 + 1e-6) * budgets[-2]
    exponent, off, scatter = rng.uniform(0.4, 0.6), rng.permutation(len(budgets))[: p["off"]], p["scatter"] / 10
    step, sizes, rows = 0.5, p["sizes"], []
    for i, flops in enumerate(budgets):
        best = 3e8 * (flops / 1e19) ** exponent * np.exp(rng.uniform(-scatter, scatter))
        rungs = np.floor(np.log(best) / step) + np.arange(1 - sizes // 2, 1 - sizes // 2 + sizes) - 8 * (i in off)
        n_params = np.exp(step * rungs)
        loss = 1.8 + 1.2 * (flops / 1e19) ** -0.15 * np.exp(rng.uniform(-scatter, scatter) / 4)
        loss = loss + 0.07 * np.log(n_params / best) ** 2
        rows.append(np.stack([np.full(sizes, flops), n_params, loss * np.exp(0.002 * rng.standard_normal(sizes))]))
    flops, n_params, loss = np.concatenate(rows, axis=1)[:, rng.permutation(sizes * len(budgets))]
    loss[rng.choice(len(loss), p["failed"], replace=False)] = np.nan
    target = budgets[-2] if p.get("tried") else 100 * budgets[-1]
    return {"flops": flops, "n_params": n_params, "loss": loss, "target": np.array(target)}


def _profiles(arrays: Arrays) -> tuple[np.ndarray, ...]:
    return arrays["flops"], arrays["n_params"], arrays["loss"]


def minima_expect(arrays: Arrays) -> Arrays:
    names = ("flops", "n_opt", "loss_opt")
    ways = (parabola_minimum, mirrored_middle)
    own, other = (dict(zip(names, minima(of, *_profiles(arrays)), strict=True)) for of in ways)
    return own | stood(other)


def minima_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    """The number of budgets first."""
    counts = [len(arrays["flops"]) for arrays in (got, expected)]
    if counts[0] != counts[1]:
        what = "each budget that has a minimum has one entry, and no other"
        return Mismatch(what, *(f"{count} budgets" for count in counts))
    return near(got, expected)


def optimum_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Such runs of which at least two budgets have a minimum."""
    most = case.params["budgets"] - 2
    case = replace(case, params={**case.params, "off": min(case.params["off"], most)})
    while minima(parabola_minimum, *_profiles(arrays := sweep_runs(rng, case))).shape[1] < 2:
        pass
    return arrays


def optimum_expect(arrays: Arrays) -> Arrays:
    runs, target = _profiles(arrays), float(arrays["target"])
    laws = power_law(*minima(parabola_minimum, *runs)[:2]), calls.secant(*calls.sorted_apart(*runs)[:2])
    sizes = [np.array(coefficient * target**exponent) for coefficient, exponent in laws]
    own, other = ({"n_params": n, "tokens": np.array(target / (6 * n))} for n in sizes)
    return own | stood(other) | likely("tokens", {"C = 6ND has a factor of 6": target / float(own["n_params"])})


# --- Task 3: the parametric form, fitted to runs ----------------------------------------------------------------------

ABOVE = 1.0003
"""How much higher than the oracle's an objective may be: where a search in a flat valley stops is chance."""
ZERO = 1e-10
"""An objective that counts as none: residuals of some 1e-6 at 50 runs."""


def objective_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Runs, and a point near a law or far from it.

    The law's terms rise by `rise` in their exponents and are as before at the middle run.
    """
    law, p, runs = Truth.draw(rng), case.params, case.params["runs"]
    n_params, tokens = 10 ** rng.uniform(7, 10, runs), 10 ** rng.uniform(9, 12, runs)
    theta = np.array([np.log(law.A), np.log(law.B), np.log(law.E), law.alpha, law.beta])
    theta *= rng.uniform(*((1.0, 1.0), (0.9, 1.1), (0.3, 2.0))[p["off"]], 5)
    theta += p.get("shift", 0) * np.array([1, 1, 1, 0, 0])
    theta -= p.get("rise", 0) * np.array([np.log(n_params).mean(), np.log(tokens).mean(), 0, 1, 1])
    noise, delta = 10 ** rng.uniform(-3, -2), 10 ** rng.uniform(-3, -1.3)
    loss = law.loss(n_params, tokens) * np.exp(noise * rng.standard_normal(runs))
    return {"n_params": n_params, "tokens": tokens, "loss": loss, "theta": theta, "delta": np.array(delta)}


def objective_expect(arrays: Arrays) -> Arrays:
    """Each slope by a complex step: f(x + ih) has the imaginary part h·f′(x), with no difference that cancels."""
    log_n, log_d, log_loss, delta = *(np.log(arrays[name]) for name in calls.RUN), float(arrays["delta"])

    def value(theta: np.ndarray, delta: float) -> np.complex128:
        a, b, e, alpha, beta = theta
        z = np.stack([a - alpha * log_n, b - beta * log_d, e + 0 * log_n])
        r = z.real.max(axis=0) + np.log(np.exp(z - z.real.max(axis=0)).sum(axis=0)) - log_loss
        line = delta * (np.where(r.real >= 0, r, -r) - delta / 2)
        return np.complex128(np.where(np.abs(r.real) <= delta, r**2 / 2, line).sum())

    theta, h = arrays["theta"].astype(complex), 1e-30
    gradient = [value(theta + 1j * h * np.eye(5)[i], delta).imag / h for i in range(5)]
    found, squares = value(theta, delta).real, "beyond δ a residual counts by a line, not by its square"
    known = {squares: value(theta, 1e9).real, "that is the mean over the runs, not the sum": found / len(log_n)}
    return {"value": np.array(found), "gradient": np.array(gradient)} | likely("value", known)


def fit_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Runs of five budgets, sizes of one ladder. Some runs failed, some went wrong: their loss is far too high.

    `starts`: how many starts are given, of which one leads to the law, the one numbered `at` or any. From the others a
    search arrives at no law, as both terms are too small there to have slopes; yet their objective is lower.
    """
    p = case.params
    law = Truth.draw(rng)
    law = replace(law, E=law.E * p.get("floor", 10) / 10)
    flops = np.repeat(rng.uniform(1e18, 3e18) * 4.0 ** np.arange(5), 9)
    n_params = np.sqrt(flops / (6 * np.tile(np.geomspace(1.5, 300, 9), 5) * rng.uniform(0.8, 1.25, 45)))
    n_params = 10 ** (np.round(4 * np.log10(n_params)) / 4)
    tokens = flops / (6 * n_params)
    loss = law.loss(n_params, tokens) * np.exp(p["noise"] / 1e3 * rng.standard_normal(45))
    rows, spoiled = rng.permutation(45), p["spoiled"]
    loss[rows[:spoiled]] *= rng.uniform(1.1, 1.5, spoiled)
    loss[rows[spoiled : spoiled + p["failed"]]] = np.nan
    arrays = {"n_params": n_params, "tokens": tokens, "loss": loss}
    if starts := p["starts"]:
        at, good = p.get("at", rng.integers(starts)), _start_at(law, n_params, tokens)
        nowhere = -25.0, -25.0, float(np.nanmedian(np.log(loss))), 0.4, 0.4
        arrays["starts"] = np.array([[good if i == at else nowhere for i in range(starts)]])
    return arrays


def _start_at(law: Truth, n_params: np.ndarray, tokens: np.ndarray) -> tuple[float, ...]:
    """A law of both terms too large as a start: (a, b, e, alpha, beta) in units of the middle size and tokens."""
    a = math.log(law.A) - law.alpha * np.log(n_params).mean()
    b = math.log(law.B) - law.beta * np.log(tokens).mean()
    return float(a) + 1, float(b) + 1, math.log(law.E), law.alpha, law.beta


def fit_code(arrays: Arrays) -> list[str]:
    runs = 'given["n_params"], given["tokens"], given["loss"]'
    if "starts" not in arrays:
        return [f"vars(fit_parametric({runs}))"]
    return [f'[vars(fit_parametric({runs}, starts)) for starts in given["starts"]]']


def fit_expect(arrays: Arrays) -> Arrays:
    came_back = ~np.isnan(arrays["loss"])
    runs = {name: arrays[name][came_back] for name in calls.RUN}
    return runs | {"laws": np.array([astuple(best_law(*runs.values()))])}


def fit_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    """By the objective that is left, so that any way down the valley will do."""
    shown = "E = {:.5g}, A = {:.4g}, B = {:.4g}, α = {:.4g}, β = {:.4g}"
    runs = [expected[name] for name in calls.RUN]
    for law, there in zip(got["laws"], expected["laws"], strict=True):
        if not np.all(np.isfinite(law)) or np.any(law <= 0):
            constants = np.array2string(law, precision=4)
            return Mismatch("the constants are not all positive", constants, "E, A, B, α, β > 0")
        left, least = (huber(residuals(Truth(*one.tolist()), *runs)) for one in (law, there))
        if left > (most := ABOVE * least + ZERO):
            found, low = (f"{one:.6g} at {shown.format(*at)}" for one, at in ((left, law), (most, there)))
            scaled = [column / np.exp(np.log(column).mean()) for column in runs[:2]] + runs[2:]
            units = huber(residuals(Truth(*law.tolist()), *scaled)) < left and abs(law[0] / there[0] - 1) < 0.2
            cause = "A and B are still in units of the middle run" if units else "perhaps the search stopped early"
            return Mismatch(f"the objective can go lower: {cause}", found, f"at most {low}")
    return None


# --- Task 4: the bootstrap. Oracle: multinomial counts, with what chance may do ---------------------------------------

MANY = 8_000
"""Resamples of the oracle."""
SIGMAS = 6.0
"""How far off chance may take a percentile, in its standard deviations: one interval end in a billion is further."""
STOPS_CODE = """\
def stops():
    try:
        {call}
    except ZeroDivisionError:
        return True
    return False
"""
"""Whether a bug of the fit comes out."""
RANKS_OFF = 2.0
"""How far off an end may be among numbers in a row: percentiles have several definitions, which differ by a rank."""


def interval_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    rows, fit = case.params["rows"], case.params["fit"]
    x = rng.standard_normal(rows) + (rng.standard_exponential(rows) if fit == "mean" else 0)
    arrays: dict[str, Any] = {
        "fit": encode_text(fit),
        "resamples": case.params["resamples"],
        "level": case.params["level"] / 100,
        "seed": rng.integers(2**31),
        "x": x,
    }
    if fit == "rows":
        arrays["y"] = x + 1
    if fit == "entries":
        more = [-x, np.where(x > x.mean(), x, np.nan), x, x, x][: case.params["columns"] - 1]
        arrays |= dict(zip(calls.COLUMNS[1:], more, strict=False))
    if fit in ("picky", "flawed"):
        arrays["x"] = np.append(np.abs(x[:-1]) + 1, 0)
    return {key: np.asarray(value) for key, value in arrays.items()}


def interval_code(arrays: Arrays) -> list[str]:
    """The case's fit, and a call of `bootstrap`, as code."""
    name = decode_text(arrays["fit"])
    columns = "".join(f'given["{column}"], ' for column in calls.COLUMNS if column in arrays)
    resamples, level, seed = (arrays[number].item() for number in ("resamples", "level", "seed"))
    call = f"bootstrap(fit, ({columns}), {resamples}, {level}, np.random.default_rng({seed}))"
    return [f"fit = {calls.FITS[name]}", *([STOPS_CODE.format(call=call), "stops()"] if name == "flawed" else [call])]


def _samples(arrays: Arrays) -> np.ndarray:
    """The fit over many resamples: how often each row is drawn is multinomial."""
    x, rows = arrays["x"], len(arrays["x"])
    counts = np.random.default_rng(int(arrays["seed"]) + 1).multinomial(rows, np.full(rows, 1 / rows), MANY)
    means = counts @ x / rows
    if decode_text(arrays["fit"]) == "picky":
        return np.asarray(means[counts[:, x == 0].sum(axis=1) > 0])
    return np.asarray(means)


def interval_expect(arrays: Arrays) -> Arrays:
    """Between which values each end must lie: percentiles somewhat below and above the requested one."""
    level, resamples, name = float(arrays["level"]), int(arrays["resamples"]), decode_text(arrays["fit"])
    ends = {"low": (1 - level) / 2, "high": (1 + level) / 2}
    if name == "flawed":
        return {"stopped": np.array(True)}
    if name in ("entries", "rows"):
        count = sum(len(arrays[column]) for column in calls.COLUMNS if column in arrays)
        return dict.fromkeys(ends, np.full(2, float(count if name == "entries" else 1)))
    if name == "turn":
        return {key: p * resamples + np.array([-RANKS_OFF, RANKS_OFF]) for key, p in ends.items()}
    samples, bands = _samples(arrays), {}
    for key, p in ends.items():
        off = SIGMAS * math.sqrt(p * (1 - p) * (1 / resamples + 1 / MANY)) + 1 / resamples
        bands[key] = np.quantile(samples, np.clip((p - off, p + off), 0, 1))
    return bands


def interval_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    if got.keys() != expected.keys():
        ends = ("an interval", "the fit's ZeroDivisionError")
        what = "only a ValueError leaves a resample out; other exceptions are bugs of the fit"
        return Mismatch(what, *(ends if "stopped" in expected else ends[::-1]))
    if "stopped" in expected:
        return None
    same = np.isclose(got["low"], got["high"]) and expected["low"][0] < expected["high"][1]
    cause = ": all resamples give the same, so rows are not drawn with replacement" if same else ""
    for name, (least, most) in expected.items():
        end = float(got[name])
        slack = 1e-9 * (abs(least) + abs(most))
        if not least - slack <= end <= most + slack:
            return Mismatch(f"the interval's {name} end is off{cause}", f"{end:.5g}", f"{least:.5g} to {most:.5g}")
    return None


# --- Task 5: allocation. Oracle: bisection on the slopes of loss and cost ---------------------------------------------


def budgets(rng: np.random.Generator, case: Case) -> Arrays:
    law = Truth.draw(rng, tokens_per_param=case.params["ratio"])
    low, high = case.params["decades"]  # both, and two more between them
    return law.arrays() | {"flops": 10 ** np.array([low, *rng.uniform(low, high, 2), high])}


def compute_expect(arrays: Arrays) -> Arrays:
    law, flops = truth_of(arrays), arrays["flops"]
    n_params, both = np.array([law.best_size(one) for one in flops.tolist()]), law.alpha + law.beta
    equal = (law.A / law.B) ** (1 / both) * (flops / 6) ** (law.beta / both)
    known: dict[str, Any] = {"the slopes of the two terms balance, not the terms": equal}
    return {"n_params": n_params, "tokens": flops / (6 * n_params)} | likely("n_params", known)


def losses(rng: np.random.Generator, case: Case) -> Arrays:
    """Losses of best models, and tokens to serve: none, few, and 10**`served` times those that the best model sees.

    Not beyond 4.5: D is then so near to endless that a search's default tolerance in ln N shows in it.
    """
    law = Truth.draw(rng)
    decades = case.params.get("decades", rng.uniform(21, 25, 3))
    tokens = np.array([10**decade / 6 / law.best_size(10**decade) for decade in decades])
    served = tokens * 10 ** np.append(rng.uniform(-6, case.params["served"], len(decades) - 1), case.params["served"])
    served[0] *= case.params["first"]
    loss = [law.least_loss(10**decade) for decade in decades]
    return law.arrays() | {"loss": np.array(loss), "served": served}


def serving_expect(arrays: Arrays) -> Arrays:
    law = truth_of(arrays)
    pairs = zip(arrays["loss"].tolist(), arrays["served"].tolist(), strict=True)
    n_params, tokens = np.array([cheapest(law, loss, served) for loss, served in pairs]).T
    return {"n_params": n_params, "tokens": tokens}


def write_inputs(arrays: Arrays) -> list[str]:
    """Lines of code that make a case's law and its columns."""
    constants = ", ".join(f"{name}={write_exact(arrays[name].item())}" for name in calls.LAW)
    return [f"law = ChinchillaLaw({constants})", *write_columns(arrays)]
