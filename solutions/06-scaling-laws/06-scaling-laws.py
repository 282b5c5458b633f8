# %% [markdown]
# # Lab 06 · Scaling laws: fit one, then bet on it
#
# You have a budget for small experiments, and a hundred times as much for one large run. How large should that model
# be, on how many tokens, and what loss will it reach? Nobody can try it out: the large run is paid for once. What can
# be done is to train many small models, fit a law to them, and read it a hundred times further out.
#
# **You will build**
#
# 1. the IsoFLOP fit: a parabola for each budget, a power law through the lowest points;
# 2. the parametric fit: five constants of a law by Huber's loss, and an interval for what they imply;
# 3. compute-optimal allocation, and the smaller model that is cheaper once it has to serve;
# 4. a campaign on a simulated cluster that charges FLOPs, loses runs, and punishes wrong learning rates;
# 5. a fit to real runs of small transformers on this book's own text, which you train here.
#
# **At the end you can answer**
#
# - With ten times the compute, how much larger should the model be?
# - Which experiments tell most about a model that is a hundred times larger, and which are wasted?
# - Why did two famous fits disagree, and why did a third one with the same data disagree with the second?
# - How far can a law that was fitted to an afternoon's runs be trusted?
#
# **Time:** about 240 minutes (each task says its share). **Points:** 100. **You need:** logarithms, least squares,
# partial derivatives, NumPy; what a training FLOP is (lab 05). Chapter 08, *Scaling laws*, gives the background.
#
# **Readings it leans on:** *Scaling Laws for Neural Language Models* (`kaplan2020scaling`), *How to Scale Your Model,
# Part 4: All the Transformer Math You Need to Know* (`scaling-book-transformers`).
#
# **How it works.** Put your code in place of each line that raises `NotImplementedError`, run the cell, then run the
# `check` cell below it. Cells that begin with `#| export` make up the module that is graded. Grading runs the same
# checks with other numbers and a few more cases; the laws behind them are drawn anew, and stay where they are judged.
#
# Throughout, N is the number of parameters, D the number of tokens trained on, C = 6ND the FLOPs of that (a
# multiply-add is two), and L the loss in nats a token.

# %%
from mlsys_lab.checks import lab
from mlsys_lab.scaling import BESIROGLU_2024  # the constants that Task 1's runs are simulated with

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

threads = threadpool_limits(1, user_api="blas")  # products of five numbers gain nothing from a second thread

# %% [markdown]
# ## Task 1 · One budget, many sizes
#
# *About 25 minutes.*
#
# Fix the compute. A small model can then train on many tokens, a large one on few, and somewhere in between the loss is
# least. Hoffmann et al. (2022) called such a set of runs an **IsoFLOP** profile. Close to its lowest point any smooth
# curve is a parabola, and losses vary with *factors* of size, so we fit
#
# $$L \approx c_0 + c_1 x + c_2 x^2, \qquad x = \ln N,$$
#
# by least squares. The minimum is at $x = -c_1 / 2c_2$, and the loss there is $c_0 - c_1^2 / 4c_2$.
#
# The runs below are simulated, from the constants that Besiroglu et al. (2024) fitted to the data of Hoffmann et al.,
# with noise of half a percent of the part that training can remove. Two runs never came back: their loss is NaN.

# %%
rng = np.random.default_rng(8)
flops = np.repeat(6e18 * 4.0 ** np.arange(5), 9)
n_params = np.sqrt(flops / (6 * np.tile(np.geomspace(2, 200, 9), 5)))
tokens = flops / (6 * n_params)
above_floor = (BESIROGLU_2024.loss(n_params, tokens) - BESIROGLU_2024.E) * np.exp(0.005 * rng.standard_normal(45))
loss = BESIROGLU_2024.E + above_floor
loss[[12, 31]] = np.nan
print("budget      ", "  ".join(f"{c:.1e}" for c in np.unique(flops)))
for row in range(9):
    print(f"size {row + 1}: loss", "    ".join(f"{one:.3f}" for one in loss[row::9]))

# %% [markdown]
# **Write** `isoflop_minimum(n_params, loss)` for the runs of one budget: the size of least loss, and that loss. Leave
# out runs that failed. A fit always gives numbers back, even where there is nothing to be read off: **raise
# `ValueError`** when fewer than three different sizes came back, when the parabola opens downward, and when its
# minimum lies below the smallest or above the largest size that came back. (The loss still falls there: what lies
# beyond is a guess.)
#
# One thing to mind: $x$ is about 20 and $x^2$ about 400, both nearly constant over the runs. Fit $x$ minus its mean.
#
# **Size:** about 11 lines.


# %% nbgrader={"solution": true, "grade_id": "task-1-parabola"}
#| export
def isoflop_minimum(n_params: np.ndarray, loss: np.ndarray) -> tuple[float, float]:
    """(N, L) at the lowest point of the parabola of loss (R,) on ln n_params (R,), NaN losses left out. About 11 lines.

    Raises ValueError where the runs that came back do not show a minimum.
    """
    ### BEGIN SOLUTION
    came_back = np.isfinite(loss)
    x, y = np.log(n_params[came_back]), loss[came_back]
    if len(np.unique(x)) < 3:
        raise ValueError("a parabola needs three sizes")
    middle = x.mean()
    c2, c1, c0 = np.polyfit(x - middle, y, 2)
    if c2 <= 0:
        raise ValueError("the parabola opens downward")
    lowest = middle - c1 / (2 * c2)
    if not x.min() <= lowest <= x.max():
        raise ValueError("the minimum is not among the sizes that were tried")
    return math.exp(lowest), c0 - c1**2 / (4 * c2)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "isoflop_minimum"}
check("isoflop_minimum")

# %% nbgrader={"grade": true, "grade_id": "isoflop_refuses"}
check("isoflop_refuses")

# %% [markdown]
# ## Task 2 · From valleys to a law
#
# *About 30 minutes.*
#
# Five budgets give five lowest points. If the best size follows a power law, $N_\mathrm{opt} = k\,C^a$, they lie on a
# straight line in logarithms: $\ln N = \ln k + a \ln C$. The tokens follow from $C = 6ND$.
#
# **Predict first.** Somebody gives you a hundred times the compute. By what factor should the model grow, if parameters
# and tokens were to share the growth evenly? And what would Kaplan et al. (2020) have said, with $a = 0.73$?

# %%
evenly = None  # your factor
kaplan = None  # your factor, roughly

for name, mine, exponent in (("evenly", evenly, 0.5), ("Kaplan", kaplan, 0.73)):
    if mine is None:
        print(f"{name}: write a number first, then go on.")
    else:
        right = abs(mine / 100**exponent - 1) < 0.1
        print(f"{name}: {'right' if right else f'not {mine:g}: it is 100 to the power {exponent:g}'}.")

# %% [markdown]
# **Write**
#
# - `fit_power_law(x, y)`: $(k, p)$ of $y = k x^p$ by least squares in logarithms;
# - `isoflop_minima(flops, n_params, loss)`: all runs of all budgets in one heap, in no order. Runs of one budget have
#   exactly equal `flops`. Three arrays come back, one entry for each budget that has a minimum, budgets rising (three
#   empty ones where none has);
# - `isoflop_optimum(flops, n_params, loss, target_flops)`: the N and D that the law advises for a target.
#
# **Size:** about 2, 8 and 4 lines.


# %% nbgrader={"solution": true, "grade_id": "task-2-power-law"}
#| export
def fit_power_law(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """(k, p) of y = k · x^p, by least squares of ln y on ln x; arrays (R,). About 2 lines."""
    ### BEGIN SOLUTION
    exponent, intercept = np.polyfit(np.log(x), np.log(y), 1)
    return math.exp(intercept), exponent
    ### END SOLUTION


def isoflop_minima(flops: np.ndarray, n_params: np.ndarray, loss: np.ndarray) -> tuple[np.ndarray, ...]:
    """(C, N_opt, L_opt), each (budgets that have a minimum,), from runs (R,) of all budgets. About 8 lines."""
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
    """(N, D) for a budget that nobody has tried, by the power law through the minima. About 4 lines."""
    ### BEGIN SOLUTION
    budgets, n_opt, _ = isoflop_minima(flops, n_params, loss)
    coefficient, exponent = fit_power_law(budgets, n_opt)
    best = coefficient * target_flops**exponent
    return best, target_flops / (6 * best)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "power_law"}
check("power_law")

# %% nbgrader={"grade": true, "grade_id": "isoflop_minima"}
check("isoflop_minima")

# %% nbgrader={"grade": true, "grade_id": "isoflop_optimum"}
check("isoflop_optimum")

# %% [markdown]
# **See it.** Each colour is a budget, each point a run, each curve the parabola through its runs, and each cross the
# lowest point that you found.

# %%
from mlsys_lab.widgets import show
from mlsys_lab.widgets.profiles import CROSS, loss_figure, plot_profiles

budgets, n_opt, loss_opt = isoflop_minima(flops, n_params, loss)
figure = plot_profiles(flops, n_params, loss, title="Five budgets, nine sizes each")
figure.add_scatter(x=n_opt, y=loss_opt, mode="markers", name="your minima", marker=CROSS)
show(figure, alt="Loss against parameters for five budgets: a parabola each, their minima moving right and down")

coefficient, exponent = fit_power_law(budgets, n_opt)
n_target, d_target = isoflop_optimum(flops, n_params, loss, 5.76e23)
print(f"N_opt = {coefficient:.3g} · C^{exponent:.3f}: 100 times the compute, {100**exponent:.1f} times the parameters")
print(f"at 5.76e23 FLOPs: {n_target / 1e9:.0f} billion parameters, {d_target / 1e12:.2f} trillion tokens")

# %% [markdown]
# Gopher had spent those 5.76e23 FLOPs on 280 billion parameters. Chinchilla spent the same on 70 billion and 1.4
# trillion tokens, and was better.
#
# ## Task 3 · One law for all runs
#
# *About 45 minutes.*
#
# Parabolas use only runs of exactly equal compute, and say nothing about the loss. The **parametric form** uses them
# all:
#
# $$L(N, D) = E + \frac{A}{N^\alpha} + \frac{B}{D^\beta}.$$
#
# E is what no training removes: the entropy of the text. The two other terms are what finite size and finite data cost.
# Constants that differ by factors of $10^3$ are best sought as logarithms: with $a = \ln A$, $b = \ln B$, $e = \ln E$,
#
# $$\ln L = \ln\left(e^{z_1} + e^{z_2} + e^{z_3}\right), \qquad z = (a - \alpha \ln N,\; b - \beta \ln D,\; e).$$
#
# Some runs go wrong without failing, and squares would bend the law to please them. So the residual of each run, $r =
# \ln L(N, D) - \ln L_\mathrm{run}$, enters by **Huber's loss**, which is a square for small residuals and a straight
# line for large ones, and we minimise the **sum** over all runs:
#
# $$\sum_\mathrm{runs} H_\delta(r), \qquad
#   H_\delta(r) = \begin{cases} r^2/2 & |r| \le \delta \\ \delta\,(|r| - \delta/2) & |r| > \delta\end{cases}, \qquad
#   \delta = 10^{-3}.$$
#
# **3a.** `objective(theta, n_params, tokens, loss, delta)` with `theta` = $(a, b, e, \alpha, \beta)$: that sum, and its
# five slopes. Lab 01's rule works by hand here: the slope of $H_\delta$ is $r$ clipped to $\pm\delta$, and the slope of
# $\ln\sum e^{z_i}$ by $z_i$ is the softmax of $z$. In a far-off corner $e^{z}$ overflows although its logarithm is
# harmless: take the largest $z_i$ out of the sum first.
#
# **3b.** `fit_law(n_params, tokens, loss, starts)`: L-BFGS with your gradient from each start, the lowest one wins. NaN
# losses stay out. Two things decide whether it finds the floor of the valley.
#
# - *Units.* With $\ln N \approx 20$ a step in $\alpha$ must be met by a step in $a$ twenty times as large: the valley
#   is long and thin. Measure sizes and tokens in units of the middle one, $N_m = \exp(\mathrm{mean} \ln N)$, and call
#   `objective` with $N/N_m$ and $D/D_m$: $a$ and $\alpha$ then have little to do with each other, and all starts are
#   written for these units. Afterwards $A = e^{a} N_m^{\alpha}$, and B likewise.
# - *When to stop.* scipy's L-BFGS stops when all slopes are below `gtol` ($10^{-5}$), or when a step gains less than
#   `ftol` times $\max(|f|, 1)$. Your sum is of the order of $10^{-3}$, and so are its slopes: hand over value and
#   gradient divided by $\delta^2$. A mean over the runs looks as good as a sum, but makes everything smaller once more
#   by the number of runs, and the search ends before it has come to the floor. That is what Besiroglu et al. found had
#   happened to the published fit.
#
# **Size:** about 11 and 13 lines. **Cost:** an evaluation takes 3 exponentials a run; each start takes about 50
# evaluations in good units, two to three times as many in bad ones, and not all of those arrive.


# %% nbgrader={"solution": true, "grade_id": "task-3-objective"}
#| export
@dataclass(frozen=True)
class Law:
    """L(N, D) = E + A / N^alpha + B / D^beta, in nats a token."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, n_params, tokens):
        """The loss of N parameters after D tokens; numbers or arrays."""
        return self.E + self.A / n_params**self.alpha + self.B / tokens**self.beta


STARTS = tuple(itertools.product((-1.0,), (-1.0,), (0.0, 0.7), (0.2, 0.6), (0.2, 0.6)))
"""Where to begin: (a, b, e, alpha, beta), with sizes and tokens in units of the middle ones."""


def objective(
    theta: np.ndarray, n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray, delta: float = 1e-3
) -> tuple[float, np.ndarray]:
    """The sum of Huber losses of log residuals over the runs (R,), and its gradient (5,). About 11 lines."""
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
    return value, np.array([by_a, by_b, by_e, -(by_z[0] @ log_n), -(by_z[1] @ log_d)])
    ### END SOLUTION


def fit_law(
    n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray, starts: Sequence[Sequence[float]] = STARTS
) -> Law:
    """The law of least objective over runs (R,), by L-BFGS from each of `starts`. About 13 lines."""
    ### BEGIN SOLUTION
    came_back, delta = np.isfinite(loss), 1e-3
    n, d, measured = n_params[came_back], tokens[came_back], loss[came_back]
    n_mid, d_mid = (math.exp(np.log(column).mean()) for column in (n, d))

    def scaled(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(theta, n / n_mid, d / d_mid, measured, delta)
        return value / delta**2, gradient / delta**2

    options = {"maxiter": 1000, "ftol": 1e-10}
    found = [minimize(scaled, start, jac=True, method="L-BFGS-B", options=options) for start in starts]
    a, b, e, alpha, beta = min(found, key=lambda result: result.fun).x
    return Law(math.exp(e), math.exp(a) * n_mid**alpha, math.exp(b) * d_mid**beta, alpha, beta)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "huber_objective"}
check("huber_objective")

# %% nbgrader={"grade": true, "grade_id": "parametric_fit"}
check("parametric_fit")

# %% [markdown]
# **See it.** What the law says of every run, against what the run gave; and the three constants that matter most beside
# those that the data were made from.

# %%
law = fit_law(n_params, tokens, loss)
figure = plot_profiles(flops, n_params, loss, law=law.loss, title="One law through all runs")
show(figure, alt="The fitted law over the runs of five budgets: one surface goes through them all")
for name in ("E", "alpha", "beta"):
    print(f"{name:5s} fitted {getattr(law, name):.4f}, the data were made with {getattr(BESIROGLU_2024, name):.4f}")

# %% [markdown]
# ## Task 4 · How sure?
#
# *About 20 minutes.*
#
# A fit gives five numbers and no doubt. The **bootstrap** (Efron 1979) makes the doubt visible: pretend that the runs
# you have are the world, draw as many runs from them with replacement, fit again, and see how much the answer moves.
# After many draws, the middle 80 % of the answers are an interval.
#
# **Write** `bootstrap(statistic, columns, resamples, level, rng)`. `columns` is a tuple of arrays of one length, and
# `statistic(*columns)` gives a number. A run is a *row*: its size, its tokens and its loss stay together. Where
# `statistic` raises `ValueError` (a resample may lack what a fit needs), leave that resample out. The interval leaves
# $(1 - \mathrm{level})/2$ of the answers below it, and as many above.
#
# **Size:** about 9 lines. **Cost:** as many fits as resamples. That is why the parabola's exponent below takes hundreds
# of them, and the parametric fit fewer, from a single start.


# %% nbgrader={"solution": true, "grade_id": "task-4-bootstrap"}
#| export
def bootstrap(
    statistic: Callable[..., float],
    columns: tuple[np.ndarray, ...],
    resamples: int,
    level: float,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """(low, high): where the middle `level` of statistic(*columns) lies over resampled rows. About 9 lines."""
    ### BEGIN SOLUTION
    count, answers = len(columns[0]), []
    for _ in range(resamples):
        rows = rng.integers(count, size=count)
        try:
            answers.append(statistic(*(column[rows] for column in columns)))
        except ValueError:
            continue
    low, high = np.quantile(answers, [(1 - level) / 2, (1 + level) / 2])
    return low, high
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "bootstrap"}
check("bootstrap")

# %% [markdown]
# Two ways to the exponent $a$ of $N_\mathrm{opt} \propto C^a$: through the parabolas, and through the law, where the
# optimum has $a = \beta / (\alpha + \beta)$. Which interval is narrower, and why should it be? Do both hold the truth?
# An interval of 80 % misses it one time in five.


# %%
def exponent_of_parabolas(flops: np.ndarray, n_params: np.ndarray, loss: np.ndarray) -> float:
    """a by approach 2."""
    budgets, n_opt, _ = isoflop_minima(flops, n_params, loss)
    if len(budgets) < 2:
        raise ValueError("no line through one point")
    return fit_power_law(budgets, n_opt)[1]


def exponent_of_law(n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray) -> float:
    """a by approach 3, from one start: a resample's optimum is not far."""
    law = fit_law(n_params, tokens, loss, starts=STARTS[-1:])
    return law.beta / (law.alpha + law.beta)


true = BESIROGLU_2024.beta / (BESIROGLU_2024.alpha + BESIROGLU_2024.beta)
low, high = bootstrap(exponent_of_parabolas, (flops, n_params, loss), 300, 0.8, np.random.default_rng(0))
print(f"parabolas: a in [{low:.3f}, {high:.3f}]")
low, high = bootstrap(exponent_of_law, (n_params, tokens, loss), 60, 0.8, np.random.default_rng(0))
print(f"law:       a in [{low:.3f}, {high:.3f}]; the data were made with {true:.3f}")

# %% [markdown]
# ## Task 5 · Spend it
#
# *About 35 minutes.*
#
# **5a. Training alone.** Put $D = C/6N$ into the law and set the derivative by $N$ to zero. At the optimum $\alpha
# A/N^\alpha = \beta B/D^\beta$, and everything follows. Write `compute_optimal(law, flops)`: the N and D of least loss,
# in closed form.
#
# **5b. Training and serving.** A model that is used pays $2N$ FLOPs for each token that it reads or writes. Sardana et
# al. (2024) ask: which model reaches the loss $\ell$ with the least
#
# $$6ND + 2N\,S$$
#
# FLOPs, if it will serve $S$ tokens in its life? For each N the loss fixes D, $D(N) = \left(B / (\ell - E -
# A/N^\alpha)\right)^{1/\beta}$, so one unknown is left. There is no closed form: search $\ln N$. It lies above the
# smallest size that reaches $\ell$ at all, where $D$ becomes endless, and not above the compute-optimal size of that
# loss, at which $A/N^\alpha = (\ell - E)\,\beta/(\alpha+\beta)$.
#
# **Predict first.** Chinchilla's rule says about 20 tokens a parameter. A model is to serve ten times as many tokens as
# a compute-optimal one of the same loss would train on. Will the cheapest model be smaller or larger, and will it train
# on more or fewer than 20 tokens a parameter? Write it down, then measure below.
#
# **Size:** about 4 and 9 lines. **Cost:** the search takes some 10 evaluations; do not build a table of a million
# sizes.


# %% nbgrader={"solution": true, "grade_id": "task-5-allocation"}
#| export
def compute_optimal(law: Law, flops: float) -> tuple[float, float]:
    """(N, D) of least loss among those with 6ND = flops. About 4 lines."""
    ### BEGIN SOLUTION
    both = law.alpha + law.beta
    ratio = (law.alpha * law.A / (law.beta * law.B)) ** (1 / both)
    n_params = ratio * (flops / 6) ** (law.beta / both)
    return n_params, flops / (6 * n_params)
    ### END SOLUTION


def serving_optimal(law: Law, loss: float, served_tokens: float) -> tuple[float, float]:
    """(N, D) that reach the loss with the least 6ND + 2N · served_tokens. About 9 lines."""
    ### BEGIN SOLUTION
    above = loss - law.E
    smallest = (law.A / above) ** (1 / law.alpha)
    largest = smallest * ((law.alpha + law.beta) / law.beta) ** (1 / law.alpha)

    def tokens(n_params: float) -> float:
        return (law.B / (above - law.A / n_params**law.alpha)) ** (1 / law.beta)

    def log_cost(log_n: float) -> float:
        return log_n + math.log(6 * tokens(math.exp(log_n)) + 2 * served_tokens)

    ends = math.log(smallest) + 1e-12, math.log(largest) + 1e-6
    n_params = math.exp(minimize_scalar(log_cost, bounds=ends, method="bounded", options={"xatol": 1e-12}).x)
    return n_params, tokens(n_params)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "compute_optimal"}
check("compute_optimal")

# %% nbgrader={"grade": true, "grade_id": "serving_optimal"}
check("serving_optimal")

# %% [markdown]
# **See it.** The loss of Chinchilla's budget, reached by models that will serve more and more.

# %%
import plotly.graph_objects as go

law = fit_law(n_params, tokens, loss)
n_best, d_best = compute_optimal(law, 5.76e23)
target_loss = law.loss(n_best, d_best)
print(f"compute-optimal: {n_best / 1e9:.1f} billion parameters, {d_best / n_best:.0f} tokens each", end=", ")
print(f"loss {target_loss:.3f}")
served = d_best * np.geomspace(0.01, 1000, 30)
choices = np.array([serving_optimal(law, target_loss, tokens_served) for tokens_served in served])
figure = go.Figure(go.Scatter(x=served / d_best, y=choices[:, 1] / choices[:, 0], mode="lines+markers"))
decades = {"type": "log", "dtick": 1, "exponentformat": "power"}
figure.update_layout(
    title="The cheapest model of one loss",
    xaxis={"title": "tokens served / compute-optimal D", **decades},
    yaxis={"title": "tokens trained on, a parameter", **decades},
    margin_t=60,
)
show(figure, alt="Tokens a parameter of the cheapest model against the tokens it serves: rising")
n_ten, d_ten = serving_optimal(law, target_loss, 10 * d_best)
both = [6 * n * d + 2 * n * 10 * d_best for n, d in ((n_best, d_best), (n_ten, d_ten))]
print(f"to serve ten times that: {n_ten / 1e9:.1f} billion parameters, {d_ten / n_ten:.0f} tokens each,", end=" ")
print(f"for {both[1] / both[0]:.0%} of the FLOPs")

# %% [markdown]
# ## Task 6 · A campaign
#
# *About 55 minutes.*
#
# Now nobody gives you data. You have a cluster and a **budget** of FLOPs, and one question: what to train with **a
# hundred times** that budget? The cluster is simulated. It charges 6ND for a run, loses one run in twenty to its
# hardware (charged for what it did; its loss is NaN), and adds noise of half a percent of the loss above E. And it has
# something that real training has and the tables above hid: a run is only as good as its **learning rate** η. The best
# one falls with size as a power law that you do not know. Miss it, and the part of the loss above E grows by a few
# percent times $(\ln \eta/\eta_\mathrm{best})^2$; go 5 to 10 times too high, and the run diverges: NaN.
#
# What is known beforehand: at 100 million parameters the best rate is somewhere between $10^{-4}$ and $10^{-2}$, and
# the best number of tokens a parameter, at these budgets, somewhere between 2 and 300. No fixed rule, such as 20, is
# right in all worlds.
#
# A campaign has two rounds and a decision. Within a round all runs are asked for at once.
#
# - `best_learning_rate(trials, n_params)`: what runs say about the best rate of a size, or of an array of sizes, tried
#   or not. In $\ln\eta$ the loss of one size is a valley once more: you have a function that finds the bottom of a
#   valley, and one that draws a power law. A size at which they find nothing is left out. Up to ten times the largest
#   size tried, the rate may be off by a factor of 1.6.
# - `scout(budget_flops)`: the first round, three arrays: sizes, tokens, learning rates. It may cost **at most 15 %** of
#   the budget, and what is read off it must hold, within a factor of 1.5, for the best model of a tenth of the budget,
#   which is several times larger. Budgets go from $3 \cdot 10^{19}$ to $10^{21}$ FLOPs.
# - `sweep(trials, left_flops)`: the second round, after the first one's trials. Spend what is left, 90 % of it at
#   least, and not more. Each run goes at the best rate for its size, within a factor of 1.5. The sweep is judged by
#   what it can tell about the target, whatever the fit: runs that are all alike leave the law's constants open. The
#   best fit to yours may waste 2 % of the target's compute on average, and know its loss to ±2 %.
# - `decide(trials, target_flops)`: N, D and the loss that you predict, from all trials there are. Most scouting runs,
#   and perhaps others that were made before anybody knew better, went at a wrong rate and would spoil the law. (A rate
#   that is off by a factor of 1.5 costs one or two times the noise, a factor of 3 ten times.) What counts is how much
#   of the target's compute your N wastes (at most 6 %), and how far the loss misses your prediction: at most 5 % far
#   beyond the runs, and 0.8 % where the target is no larger than the largest of them.
#
# In grading you see no cluster: each function is given runs of worlds drawn in secret, and what it gives back is
# judged in those worlds, elsewhere.
#
# **Size:** about 10, 4, 5 and 6 lines. **Cost:** the budget, to the last FLOP. An experiment that was not made cannot
# be made up for by a better fit.


# %% nbgrader={"solution": true, "grade_id": "task-6-campaign"}
#| export
@dataclass(frozen=True)
class Trials:
    """Runs that were paid for: four columns (R,). The loss is NaN where a run failed or diverged."""

    n_params: np.ndarray
    tokens: np.ndarray
    learning_rate: np.ndarray
    loss: np.ndarray


Requests = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Runs to be made: parameters, tokens, learning rates, three columns (R,)."""


def best_learning_rate(trials: Trials, n_params):
    """The best learning rate for a size or an array of sizes, by a power law through valleys. About 10 lines."""
    ### BEGIN SOLUTION
    sizes, rates = [], []
    for size in np.unique(trials.n_params):
        runs = trials.n_params == size
        try:
            rates.append(isoflop_minimum(trials.learning_rate[runs], trials.loss[runs])[0])
        except ValueError:
            continue
        sizes.append(size)
    coefficient, exponent = fit_power_law(np.array(sizes), np.array(rates))
    return coefficient * n_params**exponent
    ### END SOLUTION


def scout(budget_flops: float) -> Requests:
    """The first round, for at most 15 % of the budget: which learning rate is best, and how it falls. About 4 lines."""
    ### BEGIN SOLUTION
    flops = 0.14 * budget_flops / 8 * np.array([1, 3, 9, 27]) / 40
    sizes, rates = np.meshgrid(np.sqrt(flops / 120), np.geomspace(1e-4, 1e-2, 8), indexing="ij")
    return sizes.ravel(), 20 * sizes.ravel(), rates.ravel()
    ### END SOLUTION


def sweep(trials: Trials, left_flops: float) -> Requests:
    """The second round, for what is left: runs that pin the law down, at good learning rates. About 5 lines."""
    ### BEGIN SOLUTION
    flops = np.repeat(3.0 ** np.arange(5), 8)
    flops *= 0.999 * left_flops / flops.sum()
    n_params = np.sqrt(flops / (6 * np.tile(np.geomspace(1.5, 400, 8), 5)))
    return n_params, flops / (6 * n_params), best_learning_rate(trials, n_params)
    ### END SOLUTION


def decide(trials: Trials, target_flops: float) -> tuple[float, float, float]:
    """(N, D, L): what to train with the target's FLOPs, and the loss that it will reach. About 6 lines."""
    ### BEGIN SOLUTION
    off = np.abs(np.log(trials.learning_rate / best_learning_rate(trials, trials.n_params)))
    good = np.isfinite(trials.loss) & (off < 0.4)
    law = fit_law(trials.n_params[good], trials.tokens[good], trials.loss[good])
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
# **See it.** Your campaign from end to end. The service below is what your functions are made for: it takes one run at
# a time, refuses what the budget does not allow, and keeps its world to itself until you have decided.

# %%
from mlsys_lab.scaling import ExperimentService, World


def campaign(seed: int, budget_flops: float = 1e20) -> tuple[Trials, Trials, tuple[float, float, float]]:
    """Both rounds and the decision: the trials of the first round, all trials, and (N, D, L)."""
    service = ExperimentService(budget_flops, seed, noise=0.005)
    first = service.run_all(*scout(budget_flops))  # (4, runs)
    second = service.run_all(*sweep(Trials(*first), service.remaining_flops))
    trials = Trials(*np.concatenate([first, second], axis=1))
    print(f"{len(trials.loss)} runs, {service.spent_flops / budget_flops:.1%} of the budget spent")
    return Trials(*first), trials, decide(trials, 100 * budget_flops)


SEED = 4  # another world for each
scouted, trials, (n_params_big, tokens_big, predicted) = campaign(SEED)
print(f"without a loss: {np.isnan(scouted.loss).sum()} of {len(scouted.loss)} runs of the first round", end=", ")
print(f"{np.isnan(trials.loss).sum()} of all")
print(f"decision: {n_params_big / 1e9:.1f} billion parameters, {tokens_big / n_params_big:.0f} tokens each")

# %% [markdown]
# You have predicted a loss. Now the model is trained, and the world is shown.

# %%
world, hundred = World.draw(SEED), 100 * 1e20
scouted, trials, (n_params_big, tokens_big, predicted) = campaign(SEED)  # the same world gives the same runs
measured = float(world.loss(n_params_big, tokens_big))
wasted = 1 - float(world.law.least_flops(measured)) / hundred
by_rule = float(world.loss(math.sqrt(hundred / 120), 20 * math.sqrt(hundred / 120)))
print(f"predicted {predicted:.3f}, measured {measured:.3f}; compute wasted {wasted:.2%}", end=", ")
print(f"by a fixed rule of 20 tokens a parameter {1 - float(world.law.least_flops(by_rule)) / hundred:.2%}")
sizes = np.sqrt(hundred / (6 * np.geomspace(1, 1000, 80)))
near = np.abs(np.log(trials.learning_rate / best_learning_rate(trials, trials.n_params))) < 0.4
figure = loss_figure("A campaign, and what it was for")
for name, chosen in {"scouting at a wrong rate": ~near, "runs at a good rate": near}.items():
    figure.add_scatter(x=trials.n_params[chosen], y=trials.loss[chosen], mode="markers", name=name)
truth = world.loss(sizes, hundred / (6 * sizes))
figure.add_scatter(x=sizes, y=truth, mode="lines", name="the truth at 100 times the budget")
figure.add_scatter(x=[n_params_big], y=[predicted], mode="markers", name="your prediction", marker=CROSS)
show(figure, alt="Losses of all trials, and below them the predicted loss on the true curve of the target")

# %% [markdown]
# Try other seeds, a smaller budget, half of the runs. How small may the budget be before the fixed rule beats you?

# %% [markdown]
# ## Task 7 · Real runs
#
# *About 30 minutes.*
#
# No more simulations: sixteen small transformers, trained here, on the text of this book. There are four budgets a
# factor of 3 apart and four sizes at each, between six thousand and 130 thousand parameters. The text is
# so short (the next cells count its tokens) that the longest run reads it more than once. All of it takes about two
# minutes.
#
# A law that fits the runs it was fitted to has shown nothing. The test that counts is the one that it will be used for:
# put the most expensive runs aside, fit to the others, and predict what was put aside.
#
# **Write** `backtest(n_params, tokens, loss, held_out)`: fit a law to all but the `held_out` runs of the most FLOPs,
# and give back what it predicts for those, and what they measured, both in the order of rising FLOPs. Runs without a
# loss are neither fitted nor predicted.
#
# **Size:** about 6 lines. **Cost:** one fit, a few milliseconds a start. The runs themselves cost $6 \cdot 10^{11}$
# FLOPs.


# %% nbgrader={"solution": true, "grade_id": "task-7-backtest"}
#| export
def backtest(
    n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray, held_out: int
) -> tuple[np.ndarray, np.ndarray]:
    """(predicted, measured) losses (held_out,) of the runs of most FLOPs, by the law of the others. About 6 lines."""
    ### BEGIN SOLUTION
    order = np.argsort(n_params * tokens)
    order = order[np.isfinite(loss[order])]
    known, unknown = order[:-held_out], order[-held_out:]
    law = fit_law(n_params[known], tokens[known], loss[known])
    return law.loss(n_params[unknown], tokens[unknown]), loss[unknown]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "backtest"}
check("backtest")

# %% [markdown]
# **What will they cost?** We said 6ND, which leaves out attention's scores, and counts embeddings as if they were
# multiplied (here they are: the same table is the head). Lab 05 counts every product. Does 6ND miss much in models as
# small as these, with 64 tokens in a sequence?

# %%
from mlsys_lab import stack
from mlsys_lab.scaling.runs import HELD_OUT, PLAN, tokens_for, train, train_all
from mlsys_lab.scaling.text import read_corpus

arithmetic = stack.load("transformer-arithmetic")
corpus = read_corpus()
print(f"{len(corpus.vocabulary)} tokens in the vocabulary, {len(corpus.train):,} to train on")
for size in dict.fromkeys(size for sizes in PLAN.values() for size in sizes):
    config = size.config(len(corpus.vocabulary))
    n = size.n_params(len(corpus.vocabulary))
    share = 6 * n * 6400 / arithmetic.training_flops(config, 6400)
    print(f"width {size.width:3d}: {n:7,d} parameters; 6ND is {share:.1%} of the FLOPs of all products")

# %% [markdown]
# What it misses is the larger the smaller the model: on the axis of 6ND small models look cheaper than they are.
#
# Now train them.

# %%
from functools import cache

from mlsys_lab.widgets.progress import progress_bar


@cache
def real_runs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(N, D, L) of the sixteen runs, which are made once."""
    expected, came = backtest(n_params, tokens, loss, 4)  # before two minutes are spent
    print(f"of Task 1's runs the four costliest are predicted to {np.abs(expected / came - 1).max():.1%}")
    curves = train_all(corpus=corpus, progress=progress_bar("FLOPs of sixteen runs"))
    return tuple(np.array([(curve.n_params, curve.tokens[-1], curve.final_loss) for curve in curves]).T)


real_law = fit_law(*real_runs())
for number, (n, d, came) in enumerate(zip(*real_runs(), strict=True)):
    if number % 4 == 0:
        print(f"{list(PLAN)[number // 4]:.1e} FLOPs")
    print(f"  {n:7,.0f} parameters, {d:7,.0f} tokens ({d / len(corpus.train):4.1f} times the text): loss {came:.3f}")
print(
    f"your law: L = {real_law.E:.2f} + {real_law.A:.3g}/N^{real_law.alpha:.2f} + {real_law.B:.3g}/D^{real_law.beta:.2f}"
)
print("the largest budget, by the law of the three smaller ones:")
for said, came in zip(*backtest(*real_runs(), 4), strict=True):
    print(f"  predicted {said:.3f}, measured {came:.3f}: {said / came - 1:+.1%}")

# %% [markdown]
# **Predict, then measure.** One more run is to come, with three times the FLOPs of the largest budget. Write down its
# loss before you let it run: your own number, from the table above, by eye. Your law has its number too.

# %%
my_guess = None  # your number, in nats a token

size, budget = HELD_OUT
real_law = fit_law(*real_runs())
n_held = size.n_params(len(corpus.vocabulary))
print(f"{n_held:,} parameters, {tokens_for(size, budget, corpus):,} tokens")
print("yours:", "write a number first" if my_guess is None else my_guess)
print(f"your law's: {real_law.loss(n_held, tokens_for(size, budget, corpus)):.3f}")

# %%
real_n, real_d, real_loss = real_runs()
real_law = fit_law(real_n, real_d, real_loss)
last = train(size, tokens_for(size, budget, corpus), corpus=corpus, progress=progress_bar("FLOPs of the held-out run"))
said = real_law.loss(last.n_params, last.tokens[-1])
print(f"predicted {said:.3f}, measured {last.final_loss:.3f}: {abs(said / last.final_loss - 1):.1%} off")
real_c = np.repeat(list(PLAN), [len(sizes) for sizes in PLAN.values()])
figure = plot_profiles(real_c, real_n, real_loss, law=real_law.loss, title="Sixteen real runs, and one more")
star = {"symbol": "star", "size": 12, "color": "gray"}
figure.add_scatter(x=[last.n_params], y=[last.final_loss], mode="markers", name="held out", marker=star)
figure.add_scatter(x=[last.n_params], y=[said], mode="markers", name="your law's prediction", marker=CROSS)
show(figure, alt="Losses of sixteen real runs at four budgets with the fitted law through them, and the held-out run")

# %% [markdown]
# ## Answer for yourself
#
# - Your law came from models of up to 130 thousand parameters on the tokens of one book. Which of
#   its five constants would you trust for a model ten times larger, which not, and what would you measure next?
# - The longest real run reads its text more than once. What does that do to D in the law, and to β? (Muennighoff et
#   al., 2023, fit a law for it.)
# - Kaplan et al. left embeddings out of N. Count your sixteen models both ways: how does the exponent $a$ move?
# - In the campaign, how would you split the FLOPs between scouting and sweep if failures took one run in three?
# - A colleague has one run at a hundred times the budget of all others. Would you rather have that run, or a hundred
#   more small ones?
#
# When all checks pass, save the notebook and run `mlsys-lab check scaling-laws` in a terminal.
