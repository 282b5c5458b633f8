# %% [markdown]
# # Lab 06 · Scaling laws: fit one, then bet on it
#
# Gopher spent $5.76 \cdot 10^{23}$ FLOPs, about 404,000 H100 hours at 40 % of peak, on 280 billion parameters. Months
# later Chinchilla spent the same on 70 billion parameters and 1.4 trillion tokens, reached a lower loss, and cost a
# quarter as much to serve. A run of that size is paid for once, so sizes cannot be tried out. Instead one trains many
# small models, fits a law to their losses, and extrapolates it by a factor of a hundred or more. That is what you do
# here.
#
# ```text
#                   ┌─► a parabola per budget ─► N_opt = k · C^a ──────┐
#  small runs:      │                                                  ├─► N and D for 100 times
#  (N, D) → loss ───┤                                                  │   the compute, and the
#       ▲           └─► L = E + A/N^α + B/D^β ─► compute-optimal N, D ─┘   loss to expect
#       │                      └─► bootstrap: how sure?
#       │
#  a budget of FLOPs: scout learning rates ─► sweep sizes ─► decide
# ```
#
# **You will build**
#
# 1. the IsoFLOP parabola of one budget (`20 min`);
# 2. a power law through the minima of several budgets (`25 min`);
# 3. the parametric fit: five constants from all runs, with the Huber loss (`60 min`);
# 4. the bootstrap: an interval for whatever you fitted (`15 min`);
# 5. compute-optimal allocation, and the smaller model that is cheaper once it has to serve (`40 min`);
# 6. a campaign on a simulated cluster with a budget, failed runs and unknown learning rates (`60 min`);
# 7. a backtest on real runs of small transformers, which you train here (`20 min`).
#
# **At the end you can answer**
#
# - With ten times the compute, how much larger should the model be?
# - Which experiments tell most about a model that is a hundred times larger, and which are wasted?
# - Why did two famous fits disagree, and how far can a law from an afternoon's runs be trusted?
#
# **Time:** about 240 minutes. **Points:** 100. **You need:** logarithms, least squares, partial derivatives, NumPy, and
# what a training FLOP is ([lab 05](05-transformer-arithmetic.ipynb)). Background: chapter 8, *Scaling laws*.
#
# **Readings:** *Scaling Laws for Neural Language Models* (`kaplan2020scaling`), *How to Scale Your Model, Part 4: All
# the Transformer Math You Need to Know* (`scaling-book-transformers`).
#
# **How it works.** Replace each line that raises `NotImplementedError`, run the cell, paste the example into a new cell
# to see whether it does what the text says (a cell shows its last line only), then run the `check`
# below. Cells that start with `#| export` are what is graded. Grading runs the same checks on other numbers. Names are
# those of the course's package, `mlsys_lab.scaling`, where it has the same function; graded cells may not import it. If
# a function calls one of an earlier task, a mistake in the earlier one costs points only once.
#
# **Letters:** N parameters, D training tokens, C = 6ND training FLOPs (a multiply-add is two), L loss in nats per
# token. Runs come as columns: float arrays `(R,)` with one entry per run. The loss of a failed run is NaN.

# %%
from mlsys_lab.checks import lab
from mlsys_lab.scaling import BESIROGLU_2024  # Task 1's runs are simulated with it

check = lab("scaling-laws")

# %%
#| export
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize, minimize_scalar

# %%
from threadpoolctl import threadpool_limits

threads = threadpool_limits(1, user_api="blas")  # these arrays are too small for two

# %% [markdown]
# ## Task 1 · One budget, many sizes
#
# *About 20 minutes.*
#
# **Goal.** With the compute fixed, a small model trains on many tokens and a large one on few, and the loss is lowest
# somewhere in between. Find that size from an **IsoFLOP profile** (Hoffmann et al. 2022): several sizes trained with
# one budget, and a parabola through their losses.
#
# Near its minimum every smooth curve is close to a parabola, and what matters to the loss is the *ratio* of two sizes,
# not their difference. So the parabola is one in $\ln N$, fitted by least squares:
#
# $$L \approx c_0 + c_1 x + c_2 x^2, \qquad x = \ln N.$$
#
# The runs below are simulated from the constants that Besiroglu et al. (2024) fitted, with noise of half a percent
# of the part of the loss that training can remove. Two runs failed.

# %%
rng = np.random.default_rng(8)
flops = np.repeat(6e18 * 4.0 ** np.arange(5), 9)
n_params = np.sqrt(flops / (6 * np.tile(np.geomspace(2, 200, 9), 5)))
tokens = flops / (6 * n_params)
above_floor = BESIROGLU_2024.loss(n_params, tokens) - BESIROGLU_2024.E
loss = BESIROGLU_2024.E + above_floor * np.exp(0.005 * rng.standard_normal(45))
loss[[12, 31]] = np.nan
print("budget      ", "  ".join(f"{c:.1e}" for c in np.unique(flops)))
for row in range(9):
    print(f"size {row + 1}: loss", "    ".join(f"{x:.3f}" for x in loss[row::9]))

# %% [markdown]
# **Interface**
#
# | | returns |
# |---|---|
# | `isoflop_minimum(n_params, loss)` | `(n_opt, loss_opt)`: the size at the parabola's minimum, and the loss there |
#
# Both arguments are `(R,)`: the runs of one budget, in no particular order.
#
# **Example**
#
# ```python
# sizes = np.array([1e8, 2e8, 4e8, 8e8])
# n_opt, loss_opt = isoflop_minimum(sizes, np.array([3.1, 3.0, 3.0, 3.1]))
# round(n_opt / 1e6, 1), round(loss_opt, 4)  # → (282.8, 2.9875)
# n_opt, loss_opt = isoflop_minimum(sizes, np.array([3.1, 3.0, np.nan, 3.1]))
# round(n_opt / 1e6, 1), round(loss_opt, 4)  # → (282.8, 2.9875)
# ```
#
# (The losses are symmetric, so the minimum lies halfway between the middle sizes *in logarithms*, at
# $\sqrt{2 \cdot 4} \cdot 10^8$, and below both of them.)
#
# **Requirements**
#
# - Work out where the parabola has its minimum, and its value there, from $c_0$, $c_1$ and $c_2$.
# - Leave out failed runs.
# - A least-squares fit always returns numbers. Raise `ValueError` where those mean nothing: if fewer than three
#   different sizes came back, if the parabola does not open upward, or if its minimum lies below the smallest or above
#   the largest size that came back.
# - Fit $x$ minus its mean: $x$ is about 20 and $x^2$ about 400, and both hardly change from run to run. A fit can
#   barely tell them from the constant, and loses digits.
#
# **Size:** about 11 lines.
#
# <details><summary>Details</summary>
#
# - A size may have been run more than once. Every run counts.
# - A minimum outside the sizes that were tried would be an extrapolation: the loss still falls there, and how far is a
#   guess.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-1-parabola"}
#| export
def isoflop_minimum(n_params: np.ndarray, loss: np.ndarray) -> tuple[float, float]:
    """(N, L) at the minimum of a parabola of loss (R,) in ln n_params (R,).

    Raises ValueError where the runs show no minimum. About 11 lines.
    """
    ### BEGIN SOLUTION
    came_back = np.isfinite(loss)
    x, y = np.log(n_params[came_back]), loss[came_back]
    if len(np.unique(x)) < 3:
        raise ValueError("a parabola needs three sizes")
    mean = x.mean()
    c2, c1, c0 = np.polyfit(x - mean, y, 2)
    if c2 <= 0:
        raise ValueError("the parabola opens downward")
    vertex = mean - c1 / (2 * c2)
    if not x.min() <= vertex <= x.max():
        raise ValueError("the minimum is not among the sizes that were tried")
    return math.exp(vertex), c0 - c1**2 / (4 * c2)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "isoflop_minimum"}
check("isoflop_minimum")

# %% nbgrader={"grade": true, "grade_id": "isoflop_refuses"}
check("isoflop_refuses")

# %% [markdown]
# ## Task 2 · From minima to a power law
#
# *About 25 minutes.*
#
# **Goal.** Five budgets give five minima, and if the best size follows a power law $N_\mathrm{opt} = k\,C^a$, they lie
# on a straight line on logarithmic axes. Fit that line and read off the size for a budget that was never tried: this is
# approach 2 of the Chinchilla paper.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `fit_power_law(x, y)` | `(k, p)` of $y = k x^p$, by least squares of $\ln y$ on $\ln x$ |
# | `isoflop_minima(flops, n_params, loss)` | `(C, N_opt, L_opt)`: three arrays, one entry per budget with a minimum |
# | `isoflop_optimum(flops, n_params, loss, target_flops)` | `(N, D)` that the power law gives for `target_flops` |
#
# `flops`, `n_params` and `loss` are `(R,)`: all runs of all budgets, in no particular order.
#
# **Example**
#
# ```python
# k, p = fit_power_law(np.array([1.0, 4.0, 16.0]), np.array([3.0, 6.0, 12.0]))
# round(k, 6), round(p, 6)  # → (3.0, 0.5)
# c = np.repeat([1e20, 1e18, 1e19], 3)
# n = 1e7 * np.array([8, 16, 32, 1, 2, 4, 3, 6, 12])
# measured = np.array([2.5, 2.4, 2.5, 3.1, 3.0, 3.1, 2.9, 2.8, 2.7])
# budgets, n_opt, loss_opt = isoflop_minima(c, n, measured)
# budgets.tolist(), loss_opt.round(3).tolist()  # → ([1e18, 1e20], [3.0, 2.4])
# (n_opt / 1e7).round(3).tolist()  # → [2.0, 16.0]
# n_best, d_best = isoflop_optimum(c, n, measured, 1e22)
# round(n_best / 1e9, 3), round(d_best / 1e12, 3)  # → (1.28, 1.302)
# ```
#
# (At 1e19 FLOPs the loss still falls at the largest size, so this budget has no minimum. The two others say: 100
# times the compute, 8 times the parameters.)
#
# **Requirements**
#
# - Runs of one budget have exactly equal `flops`.
# - Budgets come back in rising order. A budget in which `isoflop_minimum` finds none is left out; if that is so for
#   all of them, the arrays are empty.
# - D follows from C = 6ND.
#
# **Size:** about 2, 8 and 4 lines.


# %% nbgrader={"solution": true, "grade_id": "task-2-power-law"}
#| export
def fit_power_law(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """(k, p) of y = k · x^p, fitted in logarithms to (R,) points. About 2 lines."""
    ### BEGIN SOLUTION
    exponent, intercept = np.polyfit(np.log(x), np.log(y), 1)
    return math.exp(intercept), exponent
    ### END SOLUTION


def isoflop_minima(
    flops: np.ndarray, n_params: np.ndarray, loss: np.ndarray
) -> tuple[np.ndarray, ...]:
    """(C, N_opt, L_opt) of the budgets that have a minimum. About 8 lines."""
    ### BEGIN SOLUTION
    found = []
    for budget in np.unique(flops):
        runs = flops == budget
        try:
            found.append((budget, *isoflop_minimum(n_params[runs], loss[runs])))
        except ValueError:
            continue
    return tuple(np.array(found).reshape(-1, 3).T)
    ### END SOLUTION


def isoflop_optimum(
    flops: np.ndarray, n_params: np.ndarray, loss: np.ndarray, target_flops: float
) -> tuple[float, float]:
    """(N, D) for a budget that was not tried, by the power law. About 4 lines."""
    ### BEGIN SOLUTION
    budgets, n_opt, _ = isoflop_minima(flops, n_params, loss)
    coefficient, exponent = fit_power_law(budgets, n_opt)
    n_target = coefficient * target_flops**exponent
    return n_target, target_flops / (6 * n_target)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "power_law"}
check("power_law")

# %% nbgrader={"grade": true, "grade_id": "isoflop_minima"}
check("isoflop_minima")

# %% nbgrader={"grade": true, "grade_id": "isoflop_optimum"}
check("isoflop_optimum")

# %% [markdown]
# **Predict, then measure.** Kaplan et al. (2020) found $a = 0.73$: most of any additional compute should go into
# parameters. The table in Task 1 was simulated with the refit of Chinchilla's data. From that table, by what factor
# does the best size grow with 100 times the compute?

# %%
guess = None  # best size at 100 C / best size at C

# %%
from mlsys_lab.widgets import show
from mlsys_lab.widgets.profiles import CROSS, loss_figure, plot_profiles

budgets, n_opt, loss_opt = isoflop_minima(flops, n_params, loss)
title = "Five budgets, nine sizes each, and your minima"
figure = plot_profiles(flops, n_params, loss, title=title)
figure.add_scatter(x=n_opt, y=loss_opt, mode="markers", name="minima", marker=CROSS)
show(
    figure,
    alt="Loss against parameters: a parabola per budget, minima moving right and down",
)
coefficient, exponent = fit_power_law(budgets, n_opt)
n_target, d_target = isoflop_optimum(flops, n_params, loss, 5.76e23)
print(f"N_opt = {coefficient:.3g} · C^{exponent:.3f}", end=", ")
print(f"with Kaplan's exponent 100 times C is {100**0.73:.0f} times N")
print(f"at 5.76e23 FLOPs: {n_target / 1e9:.0f} billion parameters", end=", ")
print(f"{d_target / 1e12:.2f} trillion tokens")
check.predict(guess, 100**exponent, "times the parameters")

# %% [markdown]
# An exponent near one half means that parameters and tokens grow alike: ten times as many of each. Kaplan's
# exponent would make the model almost three times larger than that, and train it on a third of the tokens. The size for
# Gopher's compute comes out near Chinchilla's, although the largest budget of the table is 375 times smaller.
#
# ## Task 3 · One law for all runs
#
# *About 60 minutes.*
#
# **Goal.** Parabolas use only runs of equal compute, and say little about the loss. Fit the parametric form of the
# Chinchilla paper (approach 3), which uses all runs at once and predicts the loss of any model:
#
# $$L(N, D) = E + \frac{A}{N^\alpha} + \frac{B}{D^\beta}.$$
#
# E is the irreducible loss: the entropy of the text. The two other terms are what finite size and finite data cost. A
# and B are positive and can differ by orders of magnitude from fit to fit, so their logarithms are fitted. With $a =
# \ln A$, $b = \ln B$ and $e = \ln E$,
#
# $$\ln L = \ln\left(e^{z_1} + e^{z_2} + e^{z_3}\right), \qquad z = (a - \alpha \ln N,\; b - \beta \ln D,\; e).$$
#
# Some runs go wrong without failing, and least squares would bend the law towards them. So the residual of a run, $r =
# \ln L(N, D) - \ln L_\mathrm{run}$, enters through the **Huber loss**: a parabola for small residuals, a straight line
# for large ones. We minimise its sum over all runs.
#
# $$\sum_\mathrm{runs} H_\delta(r), \qquad
#   H_\delta(r) = \begin{cases} r^2/2 & |r| \le \delta \\ \delta\,(|r| - \delta/2) & |r| > \delta\end{cases}, \qquad
#   \delta = 10^{-3}.$$
#
# **Interface**
#
# | | returns |
# |---|---|
# | `objective(theta, n_params, tokens, loss, delta=1e-3)` | `(value, gradient)`: the sum, and its gradient `(5,)` |
# | `fit_parametric(n_params, tokens, loss, starts=STARTS)` | the `ChinchillaLaw` with the lowest objective |
#
# `theta` is $(a, b, e, \alpha, \beta)$, and so is each start.
#
# **Example**
#
# ```python
# theta = np.array([math.log(2), math.log(3), 0.0, 0.5, 0.5])
# n, d, measured = np.array([4.0]), np.array([9.0]), np.array([3 * math.exp(-0.05)])
# value, gradient = objective(theta, n, d, measured, delta=0.1)
# round(value, 6), gradient.round(4).tolist()  # → (0.00125, [0.0167, 0.0167, 0.0167, -0.0231, -0.0366])
# value, gradient = objective(theta, n, d, measured, delta=0.02)
# round(value, 6), gradient.round(4).tolist()  # → (0.0008, [0.0067, 0.0067, 0.0067, -0.0092, -0.0146])
# law = ChinchillaLaw(E=1.7, A=400.0, B=2000.0, alpha=0.35, beta=0.37)
# n, d = (x.ravel() for x in np.meshgrid(np.geomspace(1e7, 1e10, 6), np.geomspace(1e9, 1e11, 5)))
# fitted = fit_parametric(n, d, law.loss(n, d))
# round(fitted.E, 3), round(fitted.alpha, 3), round(fitted.beta, 3)  # → (1.7, 0.35, 0.37)
# ```
#
# (The law gives $1 + 2/\sqrt 4 + 3/\sqrt 9 = 3$, so $r = 0.05$: inside δ = 0.1, outside δ = 0.02. The three terms of
# the law are equal, so each gets a third of the slope. `round(fitted.A, 1)` gives 400.0, too.)
#
# **Requirements**
#
# - Derive the gradient by the chain rule, as in lab 01: the slope of $H_\delta$ at $r$, times the slope of $\ln \sum_i
#   e^{z_i}$ in each $z_i$, times the slope of $z_i$ in the constant. Check it against finite differences of the value.
# - $e^{z}$ must not overflow: for each run, factor $e^{\max_i z_i}$ out of the sum first.
# - `fit_parametric` leaves failed runs out, calls scipy's `minimize` (L-BFGS-B, with your gradient) from every start,
#   and keeps the lowest result.
# - Fit in units of a middle run, whose size and tokens are the geometric means: call `objective` with $N/N_m$ and
#   $D/D_m$, $N_m = \exp(\mathrm{mean} \ln N)$ and likewise $D_m$. In the starts, too, $a$ and $b$ are in these units.
#   Convert the result: which A and B does it stand for in plain units?
# - Give the optimizer value and gradient **divided by** $\delta^2$.
#
# The last two requirements decide whether the search converges. With $\ln N \approx 20$, a step in $\alpha$ must be
# matched by a step in $a$ twenty times as large, and the search crawls along a narrow valley; in units of the middle
# run the two hardly interact. And L-BFGS stops when all slopes are below $10^{-5}$ or a step gains less than `ftol` ·
# max(|value|, 1). Your sum is of the order of $10^{-3}$, so without the division the last steps look like no gain.
# Besiroglu et al. found that the published Chinchilla fit had ended too early in this way: it minimised a mean over the
# runs, which makes everything smaller still.
#
# **Size:** about 11 and 13 lines. **Cost:** each start takes about 50 evaluations in good units. In plain ones it takes
# two to three times as many, and not every start converges.
#
# <details><summary>Details</summary>
#
# - `delta` is whatever the caller passes. `fit_parametric` uses $10^{-3}$.
# - If the search stops above the minimum, lower scipy's `ftol` (its default is about $2 \cdot 10^{-9}$), and raise
#   `maxiter`.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-3-objective"}
#| export
@dataclass(frozen=True)
class ChinchillaLaw:
    """L(N, D) = E + A / N^alpha + B / D^beta, in nats per token."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, n_params, tokens):
        """The loss of N parameters after D tokens; numbers or arrays."""
        return self.E + self.A / n_params**self.alpha + self.B / tokens**self.beta


STARTS = tuple(itertools.product((-1.0,), (-1.0,), (0.0, 0.7), (0.2, 0.6), (0.2, 0.6)))
"""Where to begin: (a, b, e, alpha, beta), in units of the middle run."""


def objective(
    theta: np.ndarray,
    n_params: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    delta: float = 1e-3,
) -> tuple[float, np.ndarray]:
    """Sum of Huber losses of log residuals (R,), and its gradient. About 11 lines."""
    ### BEGIN SOLUTION
    a, b, e, alpha, beta = theta
    log_n, log_d = np.log(n_params), np.log(tokens)
    z = np.stack([a - alpha * log_n, b - beta * log_d, np.full(len(loss), e)])  # (3, R)
    highest = z.max(axis=0)
    powers = np.exp(z - highest)
    residual = highest + np.log(powers.sum(axis=0)) - np.log(loss)  # (R,)
    slope = np.clip(residual, -delta, delta)
    value = (slope * (residual - slope / 2)).sum()
    by_z = slope * powers / powers.sum(axis=0)  # (3, R)
    by_a, by_b, by_e = by_z.sum(axis=1)
    by_alpha, by_beta = -(by_z[0] @ log_n), -(by_z[1] @ log_d)
    return value, np.array([by_a, by_b, by_e, by_alpha, by_beta])
    ### END SOLUTION


def fit_parametric(
    n_params: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    starts: Sequence[Sequence[float]] = STARTS,
) -> ChinchillaLaw:
    """The law of lowest objective, by L-BFGS from each of `starts`. About 13 lines."""
    ### BEGIN SOLUTION
    came_back, delta = np.isfinite(loss), 1e-3
    n, d, measured = n_params[came_back], tokens[came_back], loss[came_back]
    n_mid, d_mid = (math.exp(np.log(column).mean()) for column in (n, d))

    def scaled(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(theta, n / n_mid, d / d_mid, measured, delta)
        return value / delta**2, gradient / delta**2

    settings = {"jac": True, "method": "L-BFGS-B"}
    settings["options"] = {"maxiter": 1000, "ftol": 1e-10}
    found = [minimize(scaled, start, **settings) for start in starts]
    a, b, e, alpha, beta = min(found, key=lambda result: result.fun).x
    A, B = math.exp(a) * n_mid**alpha, math.exp(b) * d_mid**beta
    return ChinchillaLaw(math.exp(e), A, B, alpha, beta)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "huber_objective"}
check("huber_objective")

# %% nbgrader={"grade": true, "grade_id": "parametric_fit"}
check("parametric_fit")

# %% [markdown]
# **See it.** One surface through all 43 runs that came back, and three of its constants next to those that the data
# were made with. Which of the three is least certain, and which runs would tell you more about it?

# %%
law = fit_parametric(n_params, tokens, loss)
figure = plot_profiles(
    flops, n_params, loss, law=law.loss, title="One law through all runs"
)
show(figure, alt="The fitted law over the runs of five budgets")
for name in ("E", "alpha", "beta"):
    fitted, true = getattr(law, name), getattr(BESIROGLU_2024, name)
    print(f"{name:5s} {fitted:.4f}, the data were made with {true:.4f}", end="")
    print(f": {fitted / true - 1:+.1%}")

# %% [markdown]
# ## Task 4 · How sure?
#
# *About 15 minutes.*
#
# **Goal.** A fit returns a number, but does not say how uncertain it is. The **bootstrap** (Efron 1979) draws as many
# runs as there are from the runs themselves, with replacement, fits again, and repeats this many times: how far the
# answers scatter shows how uncertain the first one is.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `bootstrap(fit, data, resamples, level, rng)` | `(low, high)`, which enclose the middle fraction `level` |
#
# `data` is a tuple of columns, and `fit(*data)` returns a number. `rng` is a NumPy generator.
#
# **Example**
#
# ```python
# x, rng = np.arange(10.0), np.random.default_rng(0)
# low, high = bootstrap(lambda x: float(x.mean()), (x,), 2000, 0.8, rng)
# 2.9 < low < 3.7, 5.3 < high < 6.1  # → (True, True)
# low, high = bootstrap(lambda x, y: float((y - x).max()), (x, x + 1), 100, 0.8, rng)
# float(low), float(high)  # → (1.0, 1.0)
# ```
#
# (The mean of ten draws scatters around 4.5. In the second call each row keeps its $y = x + 1$, whichever rows are
# drawn.)
#
# **Requirements**
#
# - A run is a *row*: a resample takes the same rows of every column, and as many rows as there are.
# - Leave out a resample whose `fit` raises `ValueError`: it may lack what the fit needs. Any other exception is a bug
#   in the fit, and must propagate.
# - The fraction $(1 - \mathrm{level})/2$ of the answers lies below the interval, and as much above it (any
#   definition of a quantile).
# - Draw with `rng`, so that the same seed gives the same interval.
#
# **Size:** about 9 lines. **Cost:** as many fits as resamples, so the parametric fit below takes few of them, from a
# single start.


# %% nbgrader={"solution": true, "grade_id": "task-4-bootstrap"}
#| export
def bootstrap(
    fit: Callable[..., float],
    data: tuple[np.ndarray, ...],
    resamples: int,
    level: float,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """(low, high): the middle `level` of fit(*data) over resampled rows.

    Resamples whose fit raises ValueError are left out. About 9 lines.
    """
    ### BEGIN SOLUTION
    count, answers = len(data[0]), []
    for _ in range(resamples):
        rows = rng.integers(count, size=count)
        try:
            answers.append(fit(*(column[rows] for column in data)))
        except ValueError:
            continue
    low, high = np.quantile(answers, [(1 - level) / 2, (1 + level) / 2])
    return low, high
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "bootstrap"}
check("bootstrap")

# %% [markdown]
# **Predict, then measure.** There are two ways to the exponent $a$ of $N_\mathrm{opt} \propto C^a$: through the
# parabolas, and through the law, where the optimum has $a = \beta / (\alpha + \beta)$. Both intervals come out about
# 0.016 to 0.02 wide. Gopher's compute is 6,000 times that of the middle budget. By how many percent does the upper end
# of the interval for $N_\mathrm{opt}$ at Gopher's compute exceed the lower end?

# %%
guess = None  # percent by which the upper end is above the lower one


# %%
def exponent_of_parabolas(flops, n_params, loss):
    """The exponent a by IsoFLOP profiles."""
    budgets, n_opt, _ = isoflop_minima(flops, n_params, loss)
    if len(budgets) < 2:
        raise ValueError("no line through one point")
    return fit_power_law(budgets, n_opt)[1]


def size_of_parabolas(flops, n_params, loss):
    """The best size at Gopher's compute by IsoFLOP profiles."""
    exponent_of_parabolas(flops, n_params, loss)  # refuses what has no line
    return isoflop_optimum(flops, n_params, loss, 5.76e23)[0]


def exponent_of_law(n_params, tokens, loss):
    """The exponent a by the law, from one start: a resample's optimum is not far."""
    law = fit_parametric(n_params, tokens, loss, starts=STARTS[-1:])
    return law.beta / (law.alpha + law.beta)


rng = np.random.default_rng(0)
columns = (flops, n_params, loss)
of_parabolas = bootstrap(exponent_of_parabolas, columns, 300, 0.8, rng)
of_law = bootstrap(exponent_of_law, (n_params, tokens, loss), 100, 0.8, rng)
true = BESIROGLU_2024.beta / (BESIROGLU_2024.alpha + BESIROGLU_2024.beta)
for name, (low, high) in {"parabolas": of_parabolas, "law": of_law}.items():
    print(f"{name:9s}: a in [{low:.3f}, {high:.3f}]; data made with {true:.3f}")
low, high = bootstrap(size_of_parabolas, columns, 300, 0.8, rng)
print(f"N_opt at 5.76e23 FLOPs: {low / 1e9:.0f} to {high / 1e9:.0f} billion parameters")
check.predict(guess, 100 * (high / low - 1), "%", within=0.3)

# %% [markdown]
# The uncertainty of an exponent is multiplied by the logarithm of the extrapolation: $6000^{0.016}$ is 1.15. The size
# at the middle budget is itself uncertain by about 3 %, which adds the rest. One more budget, ten times larger than
# the last, would halve the variance of the exponent, as much as making every run twice.
# An interval of level 0.8 misses the truth one time in five even if everything is right, and no resampling shows it if
# the form of the law is wrong.
#
# ## Task 5 · Spend it
#
# *About 40 minutes.*
#
# **Goal.** Turn a law into a decision: which N and D reach the lowest loss for a budget, and which reach a given loss
# at the lowest cost if the model must also serve? The second question is why models today train on far more tokens
# than Chinchilla's optimum.
#
# Training costs $6ND$ FLOPs. A model in use pays $2N$ FLOPs for each token that it reads or generates. Sardana et al.
# (2024) minimise the cost of a model's whole life, $6ND + 2N\,D_\mathrm{inf}$ FLOPs, where $D_\mathrm{inf}$ is
# `inference_tokens`.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `compute_optimal(law, flops)` | `(N, D)` with the lowest loss among all with 6ND = `flops` |
# | `inference_optimal(law, loss, inference_tokens)` | `(N, D)` that reach `loss` at the lowest lifetime cost |
#
# **Example**
#
# ```python
# law = ChinchillaLaw(E=1.0, A=1.0, B=1.0, alpha=0.5, beta=0.5)
# n, d = compute_optimal(law, 60_000)
# round(n, 3), round(d, 3), round(law.loss(n, d), 3)  # → (100.0, 100.0, 1.2)
# n, d = inference_optimal(law, 1.2, inference_tokens=0)
# round(n, 1), round(d, 1)  # → (100.0, 100.0)
# n, d = inference_optimal(law, 1.2, inference_tokens=300)
# round(n, 1), round(d, 1), round(law.loss(n, d), 3)  # → (66.2, 168.3, 1.2)
# ```
#
# (Over its life the last model costs 6 · 66.2 · 168.3 + 2 · 66.2 · 300 = 106,600 FLOPs, and the compute-optimal one
# 120,000.)
#
# **Requirements**
#
# - `compute_optimal` in closed form: put $D = C/6N$ into the law, and set the derivative in $\ln N$ to zero.
#   The condition says how the two terms of the law balance, and everything follows from it.
# - `inference_optimal`: for each N the loss fixes D. Solve the law for it; one unknown is left. There is no closed form
#   for the minimum: search $\ln N$, with scipy's `minimize_scalar` for example, not over a table of sizes.
# - Work out the two ends of the search from the law: below some N no amount of data reaches `loss`, and no model larger
#   than the compute-optimal one of that loss is worth its price.
#
# **Size:** about 4 and 9 lines. **Cost:** the search takes some 10 to 20 evaluations.
#
# <details><summary>Details</summary>
#
# - `loss` is above E, and `inference_tokens` may be 0 or a million times the training tokens.
# - `minimize_scalar(f, bounds=(low, high), method="bounded", options={"xatol": 1e-12})` minimises a function of one
#   variable.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-5-allocation"}
#| export
def compute_optimal(law: ChinchillaLaw, flops: float) -> tuple[float, float]:
    """(N, D) of lowest loss among those with 6ND = flops. About 4 lines."""
    ### BEGIN SOLUTION
    both = law.alpha + law.beta
    ratio = (law.alpha * law.A / (law.beta * law.B)) ** (1 / both)
    n_params = ratio * (flops / 6) ** (law.beta / both)
    return n_params, flops / (6 * n_params)
    ### END SOLUTION


def inference_optimal(
    law: ChinchillaLaw, loss: float, inference_tokens: float
) -> tuple[float, float]:
    """(N, D) that reach `loss` at the lowest cost of training and inference.

    The cost is 6ND + 2N · inference_tokens FLOPs. About 9 lines.
    """
    ### BEGIN SOLUTION
    above = loss - law.E
    smallest = (law.A / above) ** (1 / law.alpha)
    largest = smallest * ((law.alpha + law.beta) / law.beta) ** (1 / law.alpha)

    def tokens(n_params: float) -> float:
        return (law.B / (above - law.A / n_params**law.alpha)) ** (1 / law.beta)

    def log_cost(log_n: float) -> float:
        return log_n + math.log(6 * tokens(math.exp(log_n)) + 2 * inference_tokens)

    ends = math.log(smallest) + 1e-12, math.log(largest) + 1e-6
    settings = {"method": "bounded", "options": {"xatol": 1e-12}}
    n_params = math.exp(minimize_scalar(log_cost, bounds=ends, **settings).x)
    return n_params, tokens(n_params)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "compute_optimal"}
check("compute_optimal")

# %% nbgrader={"grade": true, "grade_id": "serving_optimal"}
check("serving_optimal")

# %% [markdown]
# **Predict, then measure.** Take the loss that your law expects of Gopher's compute, spent optimally at about 20 tokens
# per parameter. A model is to reach the same loss and then serve ten times as many tokens as that optimum trains on. On
# how many tokens per parameter does the cheapest such model train?

# %%
guess = None  # training tokens per parameter of the model that serves

# %%
import plotly.graph_objects as go

law = fit_parametric(n_params, tokens, loss)
n_best, d_best = compute_optimal(law, 5.76e23)
target_loss = law.loss(n_best, d_best)
print(f"compute-optimal: {n_best / 1e9:.1f} billion parameters", end=", ")
print(f"{d_best / n_best:.0f} tokens each, loss {target_loss:.3f}")
served = d_best * np.geomspace(0.01, 1000, 30)
choices = np.array([inference_optimal(law, target_loss, count) for count in served])
ratios = choices[:, 1] / choices[:, 0]
figure = go.Figure(go.Scatter(x=served / d_best, y=ratios, mode="lines+markers"))
decades = {"type": "log", "dtick": 1, "exponentformat": "power"}
figure.update_layout(
    title="The cheapest model of one loss",
    xaxis={"title": "tokens served / compute-optimal D", **decades},
    yaxis={"title": "training tokens per parameter", **decades},
    margin_t=60,
)
show(figure, alt="Tokens per parameter against tokens served: rising")
n_ten, d_ten = inference_optimal(law, target_loss, 10 * d_best)
life = [6 * n * d + 20 * n * d_best for n, d in ((n_best, d_best), (n_ten, d_ten))]
print(f"to serve ten times that: {n_ten / 1e9:.1f} billion parameters", end=", ")
print(f"{life[1] / life[0]:.0%} of the lifetime FLOPs")
check.predict(guess, d_ten / n_ten, "tokens per parameter")

# %% [markdown]
# Less than half of the parameters, on more than three times the tokens: the ratio rises sevenfold. Near the
# optimum a smaller model needs few additional training FLOPs, and saves on every token that it serves. Llama 3 8B
# trained on about 1,900 tokens per parameter.
#
# ## Task 6 · A campaign
#
# *About 60 minutes.*
#
# **Goal.** Now there is no data yet. You have a cluster and a **budget** of FLOPs, and must decide what to train with
# **a hundred times** that budget: first scout learning rates, then sweep sizes, then decide.
#
# The cluster is simulated, each time with another hidden law. What is known about it beforehand:
#
# | | |
# |---|---|
# | cost of a run | 6ND FLOPs |
# | noise | half a percent of the loss above E |
# | failures | the cluster loses one run in twenty; its loss is NaN |
# | best learning rate at 100 million parameters | between 2.5e-4 and 4e-3 |
# | best learning rate at other sizes | a power law of N, with an exponent between -0.65 and -0.15 |
# | another rate η | multiplies L - E by $1 + s\,(\ln(\eta/\eta_\mathrm{best}))^2$; s is 0.03 to 0.06, one per law |
# | a rate above a limit, 5 to 10 times the best | the run diverges: NaN |
# | best tokens per parameter | between 2 and 300 at these budgets: no fixed rule, such as 20, is right |
# | budgets | $3 \cdot 10^{19}$ to $10^{21}$ FLOPs |
#
# **Interface**
#
# | | returns |
# |---|---|
# | `best_learning_rate(trials, n_params)` | the best rate for a size, or for an array of sizes |
# | `scout(budget_flops)` | first round: `(n_params, tokens, learning_rate)`, three `(R,)` arrays |
# | `sweep(trials, left_flops)` | second round, planned from the first round's trials: the same three arrays |
# | `decide(trials, target_flops)` | `(N, D, L)`: the model to train, and the loss you predict for it |
#
# `trials` is a `Trials` record, given below: the runs that were made, in no particular order.
#
# **Example**
#
# ```python
# sizes, rates = np.repeat([1e7, 1e8], 4), np.tile([5e-4, 1e-3, 2e-3, 4e-3], 2)
# best = np.repeat([2e-3, 1e-3], 4)  # of the two sizes
# trials = Trials(sizes, 20 * sizes, rates, 3 + 0.05 * np.log(rates / best) ** 2)
# round(best_learning_rate(trials, 1e8), 6), round(best_learning_rate(trials, 1e9), 6)  # → (0.001, 0.0005)
# n, d, rates = scout(1e20)
# len(n) == len(d) == len(rates), (6 * n * d).sum() <= 0.15 * 1e20  # → (True, True)
# ```
#
# **Requirements**
#
# - `best_learning_rate`: at one size and one number of tokens the loss is a valley in $\ln \eta$, like an IsoFLOP
#   profile. You already have a function that finds its minimum and one that fits a power law. Leave out sizes that show
#   no minimum. Up to ten times the largest size tried, the rate must be right within a factor of 1.6.
# - `scout` may cost **at most 15 %** of the budget, and trains each run on at least 10 tokens per parameter: a shorter
#   run says little about its rate. Its runs must show a valley (rates on both sides of the best one, at the same N and
#   D) for two sizes or more. A power law through their minima must give the best rate, within a factor of 1.6, of the
#   compute-optimal model for a tenth of the budget. That model can be several times larger than any that you can scout.
# - `sweep` spends at least 90 % of `left_flops`, and not more than all of it. Each run uses the best rate for its size,
#   within a factor of 1.6.
# - The sweep must pin the law down. By the Cramér–Rao bound, an ideal fit to its runs may waste 2 % of the compute on
#   average at 100 times the whole budget, and must know the loss there to ±2 %.
# - `decide` fits the law to runs at a good rate only. Most scouting runs, and perhaps some others, used a wrong rate,
#   and would bend it. (A factor of 1.5 costs one or two times the noise, a factor of 3 ten times.) Your N may waste at
#   most 6 % of the target's compute. Your L must be right to 5 % far beyond the runs, and to 0.8 % if the target is no
#   larger than the largest run. (What counts is the loss at the best rate, without noise.)
#
# **Size:** about 10, 4, 6 and 6 lines. **Cost:** one parametric fit.
#
# <details><summary>Details</summary>
#
# - A round requests all of its runs at once, at most 1,000, with at least 1,000 parameters and tokens each. The numbers
#   need not be whole.
# - In the checks' trials at least two sizes show a minimum.
# - "Wastes 6 %": the best model of the same loss needs 94 % of the compute.
# - In grading there is no cluster to query. Your functions get runs of worlds drawn in secret, and their answers are
#   judged in those worlds.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-6-campaign"}
#| export
@dataclass(frozen=True)
class Trials:
    """Runs that were made: columns (R,). The loss is NaN if a run failed."""

    n_params: np.ndarray
    tokens: np.ndarray
    learning_rate: np.ndarray
    loss: np.ndarray


Requests = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Runs to make: parameters, tokens, learning rates, three columns (R,)."""


def best_learning_rate(trials: Trials, n_params):
    """Best rate of a size or an array of sizes, by a power law. About 10 lines."""
    ### BEGIN SOLUTION
    sizes, rates = [], []
    for size in np.unique(trials.n_params):
        runs = trials.n_params == size
        try:
            best, _ = isoflop_minimum(trials.learning_rate[runs], trials.loss[runs])
        except ValueError:
            continue
        sizes.append(size)
        rates.append(best)
    coefficient, exponent = fit_power_law(np.array(sizes), np.array(rates))
    return coefficient * n_params**exponent
    ### END SOLUTION


def scout(budget_flops: float) -> Requests:
    """First round: which rate is best, and how it falls with size. About 4 lines."""
    ### BEGIN SOLUTION
    flops = 0.14 * budget_flops / 10 * np.array([1, 3, 9, 27]) / 40
    rates = np.geomspace(5e-5, 4e-2, 10)
    sizes, rates = np.meshgrid(np.sqrt(flops / 120), rates, indexing="ij")
    return sizes.ravel(), 20 * sizes.ravel(), rates.ravel()
    ### END SOLUTION


def sweep(trials: Trials, left_flops: float) -> Requests:
    """Second round: runs at good rates that pin the law down. About 6 lines."""
    ### BEGIN SOLUTION
    flops = np.repeat(3.0 ** np.arange(5), 8)
    flops *= 0.999 * left_flops / flops.sum()
    tokens_per_param = np.tile(np.geomspace(1.5, 400, 8), 5)
    n_params = np.sqrt(flops / (6 * tokens_per_param))
    tokens = flops / (6 * n_params)
    return n_params, tokens, best_learning_rate(trials, n_params)
    ### END SOLUTION


def decide(trials: Trials, target_flops: float) -> tuple[float, float, float]:
    """(N, D, L): what to train, and the loss that it will reach. About 6 lines."""
    ### BEGIN SOLUTION
    best = best_learning_rate(trials, trials.n_params)
    off = np.abs(np.log(trials.learning_rate / best))
    good = np.isfinite(trials.loss) & (off < 0.4)
    law = fit_parametric(trials.n_params[good], trials.tokens[good], trials.loss[good])
    n_params, tokens = compute_optimal(law, target_flops)
    return n_params, tokens, law.loss(n_params, tokens)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "best_learning_rate"}
check("best_learning_rate")

# %% nbgrader={"grade": true, "grade_id": "scout"}
check("scout")

# %% nbgrader={"grade": true, "grade_id": "sweep"}
check("sweep")

# %% nbgrader={"grade": true, "grade_id": "decide"}
check("decide")

# %% [markdown]
# **See it.** Your campaign from end to end. The service below makes one run at a time, refuses what the budget does not
# allow, and keeps its world to itself.

# %%
from mlsys_lab.scaling import ExperimentService, World


def campaign(seed, budget_flops=1e20):
    """Both rounds and the decision: first trials, all trials, and (N, D, L)."""
    service = ExperimentService(budget_flops, seed, noise=0.005)
    first = service.run_all(*scout(budget_flops))  # (4, runs)
    second = service.run_all(*sweep(Trials(*first), service.remaining_flops))
    trials = Trials(*np.concatenate([first, second], axis=1))
    spent = service.spent_flops / budget_flops
    print(f"{len(trials.loss)} runs, {spent:.1%} of the budget spent")
    return Trials(*first), trials, decide(trials, 100 * budget_flops)


SEED = 4  # another world for each
scouted, trials, (n_big, d_big, predicted) = campaign(SEED)
lost = [np.isnan(one.loss).sum() for one in (scouted, trials)]
print(f"without a loss: {lost[0]} of {len(scouted.loss)} in the first round", end=", ")
print(f"{lost[1]} of all")
print(
    f"decision: {n_big / 1e9:.1f} billion parameters, {d_big / n_big:.0f} tokens each"
)

# %% [markdown]
# **Predict, then measure.** In this world, what percentage of the target's compute would a model with 20 tokens per
# parameter waste? The cell also trains your model, and compares its loss with your code's prediction.

# %%
guess = None  # percent of the compute that the rule of 20 wastes

# %%
world, target = World.draw(SEED), 100 * 1e20
scouted, trials, (n_big, d_big, predicted) = campaign(SEED)  # the same runs again
measured = float(world.loss(n_big, d_big))
wasted = 1 - float(world.law.least_flops(measured)) / target
n_rule = math.sqrt(target / 120)
loss_rule = float(world.loss(n_rule, 20 * n_rule))
wasted_rule = 1 - float(world.law.least_flops(loss_rule)) / target
print(f"your model wastes {wasted:.2%} of the compute, and reaches", end=" ")
print(f"{measured:.3f} nats per token: {predicted:.3f} was predicted")
check.predict(guess, 100 * wasted_rule, "% wasted by the rule of 20")
sizes = np.sqrt(target / (6 * np.geomspace(1, 1000, 80)))
best = best_learning_rate(trials, trials.n_params)
near = np.abs(np.log(trials.learning_rate / best)) < 0.4
figure = loss_figure("A campaign, and what it was for")
for name, rows in {"runs at a wrong rate": ~near, "runs at a good rate": near}.items():
    x, y = trials.n_params[rows], trials.loss[rows]
    figure.add_scatter(x=x, y=y, mode="markers", name=name)
truth = world.loss(sizes, target / (6 * sizes))
name = "the truth at 100 times the budget"
figure.add_scatter(x=sizes, y=truth, mode="lines", name=name)
name = "your prediction"
figure.add_scatter(x=[n_big], y=[predicted], mode="markers", name=name, marker=CROSS)
show(figure, alt="Losses of all trials, and the prediction on the target's true curve")

# %% [markdown]
# The valley around the best size is flat: the rule of 20 misses this world's optimum by a factor of about five in
# tokens per parameter, and wastes less than a quarter of the compute. The loss is harder to predict than the best size.
# Try other seeds, a smaller budget, half of the runs: how small may the budget be before the rule beats you?
#
# ## Task 7 · Real runs
#
# *About 20 minutes.*
#
# **Goal.** A law that fits the runs it was fitted to has shown nothing. Put the most expensive runs aside, fit the
# others, and predict what was put aside: this is the test that counts, because it is how the law will be used.
#
# Sixteen small transformers then run through it, trained here on the text of this book: four budgets, a factor of 3
# apart, and four sizes at each, between six thousand and 130 thousand parameters. All of it takes about two minutes.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `backtest(n_params, tokens, loss, held_out)` | `(predicted, measured)`: two arrays `(held_out,)` |
#
# **Example**
#
# ```python
# law = ChinchillaLaw(E=1.7, A=400.0, B=2000.0, alpha=0.35, beta=0.37)
# n, d = (x.ravel() for x in np.meshgrid(np.geomspace(1e10, 1e7, 6), np.geomspace(1e9, 1e11, 5)))
# predicted, measured = backtest(n, d, law.loss(n, d), held_out=3)
# predicted.round(2).tolist()  # → [2.08, 2.09, 2.0]
# measured.round(2).tolist()  # → [2.08, 2.09, 2.0]
# ```
#
# **Requirements**
#
# - Leave out failed runs first. Of the others, the `held_out` runs of the most FLOPs are held out. The law is fitted to
#   the rest.
# - Both arrays are in the order of rising FLOPs.
#
# **Size:** about 6 lines. **Cost:** one fit. The runs themselves cost $6 \cdot 10^{11}$ FLOPs.


# %% nbgrader={"solution": true, "grade_id": "task-7-backtest"}
#| export
def backtest(
    n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray, held_out: int
) -> tuple[np.ndarray, np.ndarray]:
    """(predicted, measured) of the largest runs, from the others. About 6 lines."""
    ### BEGIN SOLUTION
    order = np.argsort(n_params * tokens)
    order = order[np.isfinite(loss[order])]
    known, unknown = order[:-held_out], order[-held_out:]
    law = fit_parametric(n_params[known], tokens[known], loss[known])
    return law.loss(n_params[unknown], tokens[unknown]), loss[unknown]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "backtest"}
check("backtest")

# %% [markdown]
# **Predict, then measure.** 6ND leaves out attention's scores and weighted sums, which lab 05 counts. What percentage
# of all FLOPs is 6ND for the smallest of the sixteen models: width 8, sequences of 64 tokens?

# %%
guess = None  # percent of the FLOPs of all products

# %%
from mlsys_lab import stack
from mlsys_lab.scaling.runs import HELD_OUT, PLAN, tokens_for, train, train_all
from mlsys_lab.scaling.text import read_corpus

arithmetic = stack.load("transformer-arithmetic")
corpus = read_corpus()
vocab_size = len(corpus.vocabulary)
print(f"{vocab_size} tokens in the vocabulary, {len(corpus.train):,} to train on")
fractions = {}
for size in dict.fromkeys(size for sizes in PLAN.values() for size in sizes):
    n = size.n_params(vocab_size)
    counted = arithmetic.training_flops(size.config(vocab_size), 6400)
    fractions[size.width] = 6 * n * 6400 / counted
    print(f"width {size.width:3d}: {n:7,d} parameters", end=", ")
    print(f"6ND is {fractions[size.width]:.1%} of all FLOPs")
check.predict(guess, 100 * fractions[8], "% of all FLOPs", within=0.1)

# %% [markdown]
# 6ND misses more of a small model than of a large one. On the axis of 6ND small models look cheaper than they are, and
# the fitted exponents move. Now train the sixteen.

# %%
from functools import cache

from mlsys_lab.widgets.progress import progress_bar


@cache
def real_runs():
    """(N, D, L) of the sixteen runs, which are made once."""
    # A mistake in backtest shows here, before two minutes are spent.
    predicted, came = backtest(n_params, tokens, loss, 4)
    worst = np.abs(predicted / came - 1).max()
    print(f"of Task 1's runs the four costliest are predicted to {worst:.1%}")
    progress = progress_bar("FLOPs of sixteen runs")
    curves = train_all(corpus=corpus, progress=progress)
    rows = [(curve.n_params, curve.tokens[-1], curve.final_loss) for curve in curves]
    return tuple(np.array(rows).T)


real_n, real_d, real_loss = real_runs()
real_law = fit_parametric(real_n, real_d, real_loss)
for i, (n, d, came) in enumerate(zip(real_n, real_d, real_loss, strict=True)):
    if i % 4 == 0:
        print(f"{list(PLAN)[i // 4]:.1e} FLOPs")
    print(f"  {n:7,.0f} parameters, {d:7,.0f} tokens", end=" ")
    print(f"({d / len(corpus.train):4.1f} times the text): loss {came:.3f}")
print(
    f"your law: L = {real_law.E:.2f} + {real_law.A:.3g}/N^{real_law.alpha:.2f}", end=""
)
print(f" + {real_law.B:.3g}/D^{real_law.beta:.2f}")
print("the largest budget, by the law of the three smaller ones:")
costliest = real_n[np.argsort(real_n * real_d)[-4:]]
results = backtest(real_n, real_d, real_loss, 4)
for n, predicted, came in zip(costliest, *results, strict=True):
    print(f"  {n:7,.0f} parameters: predicted {predicted:.3f}", end=", ")
    print(f"measured {came:.3f}: {predicted / came - 1:+.1%}")

# %% [markdown]
# **Predict, then measure.** One more run comes, with three times the FLOPs of the largest budget: 80 thousand
# parameters, and three times the tokens that this size had there. Write down its loss by eye, from the table above.
# Your law makes its own prediction, too.

# %%
guess = None  # loss of the last run, in nats per token

# %%
size, budget = HELD_OUT
n_held, d_held = size.n_params(vocab_size), tokens_for(size, budget, corpus)
print(f"{n_held:,} parameters, {d_held:,} tokens")
real_n, real_d, real_loss = real_runs()
real_law = fit_parametric(real_n, real_d, real_loss)
progress = progress_bar("FLOPs of the held-out run")
last = train(size, d_held, corpus=corpus, progress=progress)
predicted = real_law.loss(last.n_params, last.tokens[-1])
print(f"by your law: {predicted:.3f} nats per token", end=", ")
print(f"{predicted / last.final_loss - 1:+.0%} off. By eye:")
check.predict(guess, last.final_loss, "nats per token", within=0.02)
real_c = np.repeat(list(PLAN), [len(sizes) for sizes in PLAN.values()])
title = "Sixteen real runs, and one more"
figure = plot_profiles(real_c, real_n, real_loss, law=real_law.loss, title=title)
star = {"symbol": "star", "size": 12, "color": "gray"}
x, y = [last.n_params], [last.final_loss]
figure.add_scatter(x=x, y=y, mode="markers", name="held out", marker=star)
figure.add_scatter(x=x, y=[predicted], mode="markers", name="your law", marker=CROSS)
show(figure, alt="Sixteen real runs at four budgets, the fitted law, the held-out run")

# %% [markdown]
# The law usually predicts too high a loss here: models this small still improve faster than a power law, and a fit to
# them cannot know it. An extrapolation by a factor of three in compute can miss by several times the noise of a
# run, while the size that it recommends stays a good choice.
#
# ## Stretch: no points
#
# - **Repeated data.** Muennighoff et al. (2023) replace D by an effective number of tokens that saturates with the
#   number of epochs. Your longest run reads its text more than once. Train a few that read it ten times, and fit their
#   law.
# - **The other count.** Kaplan et al. left the embedding out of N. Count your sixteen models that way, refit by
#   `isoflop_minima` and `fit_power_law`, and see which way the exponent $a$ moves.
# - **Better experiments.** Choose the sweep's sizes and budgets by the covariance of the fit (the Cramér–Rao bound)
#   instead of by eye. How much less does the best design waste at the target?
#
# ## What you can read now
#
# - The course's own `mlsys_lab.scaling`: `fit_parametric`, `inference_optimal`, `fit_isoflop` and `bootstrap`, with
#   intervals and checks on their input. Chapter 8 fits published data with them.
# - scipy, `scipy/optimize/_lbfgsb_py.py`: where `ftol` and `gtol` stop the search. `scipy/stats/_resampling.py`:
#   `bootstrap`, with intervals that correct for bias.
# - Besiroglu et al. (2024), *Chinchilla Scaling: A replication attempt*: your Task 3 and Task 4 on data read off a
#   figure of the Chinchilla paper.
# - Yang et al. (2022), *Tensor Programs V* (μP): a parametrization in which the best learning rate does not change
#   with width, so that a campaign needs no `best_learning_rate`.
#
# ## Test yourself
#
# <details><summary>At the optimum, how large is the size term A/N^α compared with the data term B/D^β?</summary>
#
# As β to α. With α = β, both are equal. The exponents decide the balance, and the constants A and B only the
# size at which it is reached.
#
# </details>
#
# <details><summary>Your law came from models of up to 130 thousand parameters on the text of one book. Which of its
# constants would you trust for a model ten times larger?</summary>
#
# The exponents most, within their interval, because they describe how the measured losses fall. E least: no run comes
# near it, so it is an extrapolation to infinite size and data. What helps most is one more budget, a factor of ten
# above the others.
#
# </details>
#
# <details><summary>The longest real run reads its text more than once. What does that do to the fitted β?</summary>
#
# Repeated tokens are worth less than new ones, so the loss falls more slowly in D at the far end. A fit with E free
# takes this for a floor: E comes out too large, usually with a β that is too large as well. So $\beta / (\alpha +
# \beta)$ rises, and the law advises larger models on fewer tokens. (With E held fixed, β would come out too small.)
#
# </details>
#
# <details><summary>The cluster now loses one run in three. How do you split the budget between scouting and
# sweep?</summary>
#
# About as before, but over more and smaller runs. Scouting needs runs on both sides of the best rate at two sizes
# at least, and losing the wrong two of eight leaves a size without a valley. A sweep of forty runs that loses a third
# is still a sweep.
#
# </details>
#
# <details><summary>Would you rather have one run at a hundred times the budget of all others, or a hundred more small
# ones?</summary>
#
# To predict the loss at the target, the one large run: it replaces an extrapolation by a measurement. To choose the
# size, the small ones: a single run says nothing about how the loss would change with N.
#
# </details>
#
# When all checks pass, save the notebook and run `mlsys-lab check scaling-laws` in a terminal.
