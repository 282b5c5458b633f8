# %% [markdown]
# # Lab 12 · A diffusion model: from noise to a server of images
#
# DiT-XL/2 draws an image of 256 × 256 pixels in 50 steps. Each step calls the network twice, with the class and
# without it: 100 calls of 237 GFLOPs, at least 24 ms on an H100. None of these factors is fixed. The sampler decides
# how many steps are needed, guidance decides how many calls a step makes, and the server decides which requests share
# a call. In this lab you build all of it, on a model of handwritten digits that you train yourself.
#
# ```text
#   training                                       sampling one image
#
#   x0 ──► x = x0 + σ·noise ──► network ──► loss   σ = 80 ──► 24 ──► 5.8 ──► 0.97 ──► 0.085 ──► 0.002 ──► 0
#                                  ▲
#                               σ, class            each arrow is a step: the network estimates the image
#                                                   D(x, σ) under the noise, and x moves towards it
# ```
#
# **You will build**
#
# 1. noise levels of DDPM and of EDM (`15 min`);
# 2. an exact denoiser, and sampling with it along an ODE and an SDE (`45 min`);
# 3. four prediction types in one form, a loss and a training step: a model of digits (`55 min`);
# 4. the samplers DDPM, DDIM and Heun (`45 min`);
# 5. classifier-free guidance in one call (`25 min`);
# 6. the time of an image, predicted and then measured (`25 min`);
# 7. a server whose requests share calls, each at its own step (`30 min`).
#
# **At the end you can answer**
#
# - Why can one trained network be sampled with any number of steps, by any solver, with or without fresh noise?
# - How much fresh noise may a step add, and what must it remove in return?
# - Why does batching help a language model so much more than a diffusion model?
#
# **Time:** about 240 minutes. **Points:** 100. **You need:** torch tensors and gradients, and the roofline of [lab
# 05](05-transformer-arithmetic.ipynb) for Task 6. Background: chapter 14, *Diffusion as a systems workload*.
#
# **Readings:** *What are Diffusion Models?* (`weng-diffusion`), *Classifier-Free Diffusion Guidance* (`ho2022cfg`),
# *Diffusion Models Beat GANs on Image Synthesis* (`dhariwal2021beat`).
#
# **How it works.** Replace each line that raises `NotImplementedError`, run the cell, paste the example into a new cell
# to see whether it does what the text says, then run the `check` below. Each function is judged with correct inputs, so
# a mistake in one task costs no points in another. Cells that start with `#| export` are what is graded. Names and
# signatures are those of the course's package, `mlsys_lab.diffusion`.
#
# **In all tasks** a batch `x` is (B, ...): B images, each of any shape, even a single number. A noise level `sigma` is
# the standard deviation of the noise in $x = x_0 + \sigma n$. A `denoiser(x, sigma, label)` gets one level per image,
# (B,) in float64, and one int64 label per image or None, and returns its estimate of $x_0$ in the shape and dtype of
# `x`. Change no tensor that you are given, and keep the dtype of images.

# %%
from mlsys_lab.checks import lab

check = lab("diffusion")

# %%
#| export
import copy
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn

Denoiser = Callable[..., torch.Tensor]


def per_image(values: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Values (B,) in the images' dtype, with axes that broadcast over (B, ...)."""
    return values.to(images).reshape(-1, *[1] * (images.ndim - 1))


def full_level(sigma: float, images: torch.Tensor) -> torch.Tensor:
    """One noise level for all images (B, ...): (B,) float64."""
    return torch.full((len(images),), sigma, dtype=torch.float64)


def q_sample(
    x0: torch.Tensor, sigma: torch.Tensor, noise: torch.Tensor
) -> torch.Tensor:
    """Add noise of levels sigma (B,) to images x0 (B, ...): (B, ...)."""
    return x0 + per_image(sigma, x0) * noise


# %% [markdown]
# ## Task 1 · Noise levels
#
# *About 15 minutes.*
#
# **Goal.** Papers describe the same noisy image in their own scales. Translate DDPM's schedule into noise levels
# $\sigma$, and write EDM's schedule, so that one sampler can follow either of them.
#
# DDPM scales the image while it adds noise: $x_t = \sqrt{\bar\alpha_t}\,x_0 + \sqrt{1 - \bar\alpha_t}\,\varepsilon$,
# with noise $\varepsilon$ of standard deviation 1 (in this lab, *deviation* always means standard deviation) and
# $\bar\alpha_t$ between 0 and 1. **Derive** the level: bring this into the form $x_0 + \sigma\varepsilon$, and read off
# $\sigma$.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `sigmas(alphas_cumprod)` | (T,) float64 | noise level for each $\bar\alpha_t$ of `alphas_cumprod`, (T,) float64 |
# | `edm_grid(steps, sigma_min=0.002, sigma_max=80.0, rho=7.0)` | (`steps` + 1,) float64 | EDM's levels for a sampler |
#
# **Example**
#
# ```python
# sigmas(torch.tensor([0.5, 0.1], dtype=torch.float64)).tolist()  # → [1.0, 3.0]
# edm_grid(3, sigma_min=1.0, sigma_max=9.0, rho=2.0).tolist()  # → [9.0, 4.0, 1.0, 0.0]
# ```
#
# (The levels 9, 4 and 1 are unevenly spaced; their square roots 3, 2 and 1 are evenly spaced.)
#
# **Requirements**
#
# - The first `steps` levels of `edm_grid` fall from `sigma_max` to `sigma_min`, evenly spaced in
#   $\sigma^{1/\rho}$ (Karras et al. 2022, equation 5).
# - The last level is 0: `steps` steps lead through `steps + 1` levels.
#
# **Size:** about 1 and 3 lines.
#
# <details><summary>Details</summary>
#
# - With `steps=1` the levels are `sigma_max` and 0.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-1-levels"}
#| export
def alphas_cumprod(betas: torch.Tensor) -> torch.Tensor:
    """DDPM's products of 1 - beta, up to each step: (T,) -> (T,)."""
    return (1 - betas).cumprod(0)


def sigmas(alphas_cumprod: torch.Tensor) -> torch.Tensor:
    """Noise levels of a DDPM schedule: (T,) -> (T,). About 1 line."""
    ### BEGIN SOLUTION
    return ((1 - alphas_cumprod) / alphas_cumprod).sqrt()
    ### END SOLUTION


def edm_grid(
    steps: int, sigma_min: float = 0.002, sigma_max: float = 80.0, rho: float = 7.0
) -> torch.Tensor:
    """EDM's noise levels and then 0: (steps + 1,) float64. About 3 lines."""
    ### BEGIN SOLUTION
    first, last = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    line = torch.linspace(first, last, steps, dtype=torch.float64)
    return torch.cat([line**rho, torch.zeros(1, dtype=torch.float64)])
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "levels"}
check("levels")

# %% nbgrader={"grade": true, "grade_id": "edm_grid"}
check("edm_grid")

# %% [markdown]
# **See it.** Where do two schedules put twenty steps?

# %%
import plotly.graph_objects as go

from mlsys_lab.widgets import show

ddpm = sigmas(alphas_cumprod(torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)))
figure = go.Figure()
for name, grid in {
    "DDPM, every 50th of 1,000": ddpm.flip(0)[::50],
    "EDM, 20 steps": edm_grid(20)[:-1],
}.items():
    figure.add_scatter(y=grid.tolist(), mode="lines+markers", name=name)
figure.update_layout(xaxis_title="step", yaxis_title="noise level", margin_t=30)
figure.update_yaxes(type="log")
show(
    figure, alt="Noise levels over twenty steps: EDM goes down to 0.002, DDPM does not"
)

# %% [markdown]
# Both are sequences of noise levels and nothing more. EDM spends many steps on low levels, where fine detail is
# decided.
#
# ## Task 2 · An exact denoiser, an ODE and an SDE
#
# *About 45 minutes.*
#
# **Goal.** If the data are a mixture of Gaussians, the best possible denoiser is known exactly. Write it, and turn
# noise into data with it in two ways: along smooth paths, and along paths to which fresh noise is added all the time.
#
# **The denoiser.** Component $k$ of the data has the mixture weight $w_k$, the mean $\mu_k$ and the standard deviation
# $s$ in every direction. With noise of level $\sigma$ on it, it is a Gaussian of variance $s^2 + \sigma^2$ around
# $\mu_k$, so Bayes' rule gives $p(k \mid x)$, the *responsibility* of component $k$ for a point $x$. If a point comes
# from component $k$, the best estimate lies between $\mu_k$ and $x$:
# $\frac{s^2}{s^2 + \sigma^2}\,x + \frac{\sigma^2}{s^2 + \sigma^2}\,\mu_k$. The denoiser $D$ is the mean of these
# estimates, weighted by the responsibilities.
#
# **Two directions.** The density of noisy data, $p(x; \sigma)$, is made of one Gaussian of deviation $\sigma$ around
# each clean image. The gradient of its logarithm, the **score**, is therefore the mean of $(x_0 - x)/\sigma^2$ over the
# clean images $x_0$ from which $x$ may have come, each weighted by $p(x_0 \mid x)$. The mean of $x_0$ is $D$, so the
# score is $(D - x)/\sigma^2$. A cloud of points that follows the **slope** $dx/d\sigma = -\sigma \cdot \text{score}$
# while $\sigma$ falls has the density $p(x; \sigma)$ at every level: this is the probability-flow ODE. Both are given
# below.
#
# **Why fresh noise is allowed.** Add noise of variance $v$ to all points, and the cloud gets wider, exactly as it does
# when $\sigma^2$ rises by $v$. If $v$ is small, moving every point by $\frac{v}{2} \cdot \text{score}$ undoes this: it
# is the step that the ODE makes when $\sigma^2$ falls by $v$. So a small step of the ODE, plus noise, plus this
# correction leads to the *same* cloud at the next level, for any small $v$, even 0. The reverse SDE takes $v =
# \sigma^2 - \sigma'^2$, as much variance as the step removes. **Derive** its step: by what multiple of the score does a
# point move in all, and what is the deviation of the added noise?
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `mixture.responsibilities(x, sigma)` | (B, K) | $p(k \mid x)$ for points (B, N) at levels (B,) |
# | `mixture(x, sigma, label=None)` | (B, N) | denoised points |
# | `sample_ode(denoiser, x, grid, label=None)` | (B, ...) | Euler steps along the slope, down the levels of `grid` |
# | `sample_sde(denoiser, x, grid, noise, label=None)` | (B, ...) | steps of the reverse SDE; `noise` is (S, B, ...) |
#
# `grid` has S + 1 levels for S steps; `x` is at its first level, the result at its last.
#
# **Example** (a pixel is −1 or 1; then data that are all 0, from level 4 to level 1)
#
# ```python
# coin = Mixture(torch.tensor([[-1.0], [1.0]]), torch.tensor([0.5, 0.5]), deviation=0.0)
# reading, level = torch.tensor([[0.5]]), torch.ones(1, dtype=torch.float64)
# round(coin.responsibilities(reading, level)[0, 1].item(), 3)  # → 0.731
# round(coin(reading, level).item(), 3)  # → 0.462
# coin(reading, level, torch.tensor([0])).item()  # → -1.0
# zeros = lambda x, sigma, label: 0 * x
# grid = torch.tensor([4.0, 1.0], dtype=torch.float64)
# sample_ode(zeros, torch.tensor([8.0]), grid).tolist()  # → [2.0]
# sample_sde(zeros, torch.tensor([8.0]), grid, noise=torch.zeros(1, 1)).tolist()  # → [0.5]
# ```
#
# (8 is two deviations of the noise at level 4; so is 2 at level 1. The SDE goes twice as far in $\sigma^2$:
# $8 + 15 \cdot (0 - 8)/16 = 0.5$, and makes up for it with noise of variance 15.)
#
# **Requirements**
#
# - Label $k$ means component $k$ alone; label K, the *null class* `mixture.null`, and `label=None` mean all components.
# - Points may lie far from every mean: responsibilities must not become 0/0. `deviation` may be 0.
# - Both samplers call `denoiser(x, sigma, label)` once per step, with one level per image (`full_level`).
# - Step $i$ of the SDE uses `noise[i]`. **The step to level 0 adds no noise.**
#
# **Size:** about 3, 7, 4 and 6 lines.
#
# <details><summary>Details</summary>
#
# - A grid may end above 0; then the last step of the SDE adds noise as well.
# - `sigma` and `sigma_next` are floats in `score` and `slope`: `pairwise(grid.tolist())` yields them.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-2-walks"}
#| export
@dataclass(frozen=True, eq=False)
class Mixture:
    """K Gaussians, each a class: an exact denoiser. The null class K is the mixture."""

    means: torch.Tensor  # (K, N)
    weights: torch.Tensor  # (K,): mixture weights, all above 0, of sum 1
    deviation: float  # of each component, in every direction

    @property
    def null(self) -> int:
        """Label of the null class."""
        return len(self.means)

    def responsibilities(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """p(k | x) for points x (B, N) at levels sigma (B,): (B, K). About 3 lines."""
        ### BEGIN SOLUTION
        variance = per_image(self.deviation**2 + sigma**2, x)  # (B, 1)
        distances = (x[:, None] - self.means).square().sum(-1)  # (B, K), squared
        return (self.weights.log() - distances / (2 * variance)).softmax(-1)
        ### END SOLUTION

    def __call__(
        self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None
    ) -> torch.Tensor:
        """E[x0 | x] for points x (B, N) at levels sigma (B,). About 7 lines."""
        ### BEGIN SOLUTION
        p = self.responsibilities(x, sigma)
        if label is not None:
            chosen = label[:, None] == torch.arange(self.null)  # (B, K)
            is_null = (label == self.null)[:, None]
            p = torch.where(is_null, p, chosen.to(p))
        kept = per_image(self.deviation**2 / (self.deviation**2 + sigma**2), x)
        return kept * x + (1 - kept) * p @ self.means
        ### END SOLUTION


def score(denoised: torch.Tensor, x: torch.Tensor, sigma: float) -> torch.Tensor:
    """Gradient of log p(x; sigma), from the denoised images: (B, ...)."""
    return (denoised - x) / sigma**2


def slope(denoised: torch.Tensor, x: torch.Tensor, sigma: float) -> torch.Tensor:
    """dx/dsigma of the probability-flow ODE: the noise that was predicted, (B, ...)."""
    return (x - denoised) / sigma


def sample_ode(
    denoiser: Denoiser,
    x: torch.Tensor,
    grid: torch.Tensor,
    label: torch.Tensor | None = None,
) -> torch.Tensor:
    """Take x (B, ...) down the grid's levels (S + 1,) by Euler steps. About 4 lines."""
    ### BEGIN SOLUTION
    for sigma, sigma_next in pairwise(grid.tolist()):
        denoised = denoiser(x, full_level(sigma, x), label)
        x = x + (sigma_next - sigma) * slope(denoised, x, sigma)
    return x
    ### END SOLUTION


def sample_sde(
    denoiser: Denoiser,
    x: torch.Tensor,
    grid: torch.Tensor,
    noise: torch.Tensor,
    label: torch.Tensor | None = None,
) -> torch.Tensor:
    """Take x (B, ...) down grid (S + 1,), adding noise (S, B, ...). About 6 lines."""
    ### BEGIN SOLUTION
    for i, (sigma, sigma_next) in enumerate(pairwise(grid.tolist())):
        removed = sigma**2 - sigma_next**2
        x = x + removed * score(denoiser(x, full_level(sigma, x), label), x, sigma)
        if sigma_next > 0:
            x = x + math.sqrt(removed) * noise[i]
    return x
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "mixture"}
check("mixture")

# %% nbgrader={"grade": true, "grade_id": "walk_ode"}
check("walk_ode")

# %% nbgrader={"grade": true, "grade_id": "walk_sde"}
check("walk_sde")

# %% [markdown]
# **Predict, then measure.** The mixture below has three components in the plane; its standard deviation along the
# first axis is 0.89. A cloud of noise at level 80 is sampled down to level 1, once along the ODE and once along the
# SDE. What is the standard deviation of each cloud along the first axis when it arrives at level 1?

# %%
guess = None  # standard deviation at level 1, ODE or SDE

# %%
from plotly.subplots import make_subplots

MEANS = torch.tensor([[-1.0, 0.5], [1.0, 0.0], [0.0, -1.2]], dtype=torch.float64)
WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
mixture = Mixture(MEANS, WEIGHTS, deviation=0.2)
torch.manual_seed(1)
start = 80 * torch.randn(2000, 2, dtype=torch.float64)
fine = torch.logspace(math.log10(80), -2, 301, dtype=torch.float64)
noise = torch.randn(300, 2000, 2, dtype=torch.float64)
titles = [f"{kind}, level {level:g}" for kind in ("ODE", "SDE") for level in (1, 0.01)]
figure = make_subplots(1, 4, subplot_titles=titles)
spread = {}
for column, title in enumerate(titles, 1):
    grid = fine[fine >= 1] if "level 1" in title else fine
    given = () if "ODE" in title else (noise,)
    sample = sample_sde if given else sample_ode
    cloud = sample(mixture, start, grid, *given)
    spread[title] = cloud[:, 0].std().item()
    print(f"{title:15} standard deviation along the first axis {spread[title]:.2f}")
    x, y = cloud[:400].T.tolist()
    figure.add_scatter(x=x, y=y, mode="markers", marker_size=3, row=1, col=column)
check.predict(guess, spread["ODE, level 1"], "along the ODE", within=0.05)
check.predict(guess, spread["SDE, level 1"], "along the SDE", within=0.05)
figure.update_layout(showlegend=False, height=300, margin_t=40)
show(
    figure, alt="Clouds by ODE and SDE at level 1 and at level 0.01: they agree at each"
)

# %% [markdown]
# Variances add: the data's 0.8 and the noise's 1 make 1.8, a deviation of 1.34. Both ways arrive there although the
# paths have nothing in common: at every level they share the **marginals**, the distribution of a single point, which
# depends on the data and on $\sigma$ alone. This is why a network that was trained without any sampler works with all
# of them.
#
# ## Task 3 · A loss, and a model
#
# *About 55 minutes.*
#
# **Goal.** A network may output the noise, the image, or a mixture of both. Write all of these as one formula, as EDM
# does, so that the loss and every sampler see only denoised images; then train a model of digits.
#
# **One form for all prediction types.** $D(x; \sigma) = c_\text{skip}\,x + c_\text{out}\,F(c_\text{in}\,x;\
# c_\text{noise})$, where $F$ is the network. Take $x = x_0 + \sigma\varepsilon$ and **derive** $c_\text{skip}$ and
# $c_\text{out}$ for each output:
#
# | `prediction` | the network should output | $c_\text{in}$ |
# |---|---|---|
# | `"epsilon"` | $\varepsilon$ | $1/\sqrt{1 + \sigma^2}$ |
# | `"x0"` | $x_0$ | $1/\sqrt{1 + \sigma^2}$ |
# | `"v"` | $v = (\varepsilon - \sigma x_0)/\sqrt{1 + \sigma^2}$ | $1/\sqrt{1 + \sigma^2}$ |
# | `"flow"` | $u = \varepsilon - x_0$ | $1/(1 + \sigma)$ |
#
# The first row, done: $x_0 = x - \sigma\varepsilon$, so $c_\text{skip} = 1$ and $c_\text{out} = -\sigma$. (For $v$ and
# $u$: write $\varepsilon = (x - x_0)/\sigma$ and solve for $x_0$.) $c_\text{noise} = \ln(\sigma)/4$ tells the network
# the level; $c_\text{in}$ keeps its input at about size 1.
#
# **The loss.** The network is trained with the squared error of *its own output*: $F$ against what it should be,
# $F^*$. Both give an image, $D = c_\text{skip}\,x + c_\text{out}F$ and $x_0 = c_\text{skip}\,x + c_\text{out}F^*$.
# What is $F - F^*$ in terms of $D$, $x_0$ and $c_\text{out}$?
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `coefficients(prediction, sigma, sigma_data=0.5)` | `Coefficients` | four coefficients, each (B,); "edm" is given |
# | `preconditioned(x, sigma, label=None)` | (B, ...) | `forward`: calls the network and returns $D$ |
# | `p_losses(denoiser, x0, sigma, noise, label)` | (B,) | mean squared error of the network's output, per image |
# | `ema.update(model)` | – | moves the averaged copy `ema.model` towards the model's parameters |
# | `train_step(model, losses, optimizer, average)` | float | one step on `losses` (B,); returns their mean |
#
# **Example**
#
# ```python
# three = torch.tensor([3.0], dtype=torch.float64)
# [c.item() for c in coefficients("flow", three)][:3]  # → [0.25, -0.75, 0.25]
# silent = Preconditioned(lambda x, noise, label: 0 * x, "epsilon")  # predicts: no noise
# x0, half, noise = torch.ones(1, 1), torch.tensor([0.5]).double(), 2 * torch.ones(1, 1)
# silent(q_sample(x0, half, noise), half).tolist()  # → [[2.0]]
# p_losses(silent, x0, half, noise, None).tolist()  # → [4.0]
# model = nn.Linear(1, 1, bias=False)
# _ = nn.init.ones_(model.weight)
# average, optimizer = EMA(model), torch.optim.SGD(model.parameters(), lr=0.1)
# train_step(model, model(torch.ones(2, 1)).square().flatten(), optimizer, average)  # → 1.0
# [round(m.weight.item(), 3) for m in (model, average.model)]  # → [0.8, 0.836]
# ```
#
# (The noise was 2 and the network said 0: a squared error of 4. At weight 1 the loss is 1 and its gradient 2, so SGD
# moves the weight to 0.8. The first update of the average keeps 2/11 of 1 and takes 9/11 of 0.8.)
#
# **Requirements**
#
# - `forward` gives the network three things: the scaled images, $c_\text{noise}$ **in the images' dtype**, and the
#   labels. `p_losses` calls the denoiser once and works with the coefficients of any denoiser: `denoiser.at(sigma)`.
# - Update $n$ of the average, counted from 1, keeps $d$ of the old value and takes $1 - d$ of the new one, with
#   $d = \min(\texttt{decay}, (1 + n)/(10 + n))$: while $n$ is small, the random initial parameters fade quickly.
# - `update` changes the tensors of `ema.model` in place, leaves `model` as it is, and tracks no gradients.
# - `train_step` clears the gradients first, because some may be left from earlier.
# - The average takes in the parameters *after* the optimizer's step.
# - The loss that `train_step` returns is a Python `float`: `.item()` frees the graph.
#
# **Size:** about 8, 3, 3, 6 and 6 lines.
#
# <details><summary>Details</summary>
#
# - `p_losses` gets images of at least one axis, and returns losses with their graph: training differentiates them.
# - All parameters are averaged, also those that are frozen. Buffers need not be.
# - The optimizer may have only some of the model's parameters.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-3-loss"}
#| export
class Coefficients(NamedTuple):
    """EDM's four coefficients at given noise levels, each (B,)."""

    skip: torch.Tensor
    out: torch.Tensor
    into: torch.Tensor
    noise: torch.Tensor


def coefficients(
    prediction: str, sigma: torch.Tensor, sigma_data: float = 0.5
) -> Coefficients:
    """Coefficients of a prediction type at levels sigma (B,). About 8 lines."""
    noise, length = sigma.log() / 4, (1 + sigma**2).sqrt()
    if prediction == "edm":
        total = (sigma**2 + sigma_data**2).sqrt()
        skip, out = sigma_data**2 / total**2, sigma * sigma_data / total
        return Coefficients(skip, out, 1 / total, noise)
    ### BEGIN SOLUTION
    if prediction == "epsilon":
        return Coefficients(torch.ones_like(sigma), -sigma, 1 / length, noise)
    if prediction == "x0":
        ones = torch.ones_like(sigma)
        return Coefficients(torch.zeros_like(sigma), ones, 1 / length, noise)
    if prediction == "v":
        return Coefficients(1 / length**2, -sigma / length, 1 / length, noise)
    return Coefficients(1 / (1 + sigma), -sigma / (1 + sigma), 1 / (1 + sigma), noise)
    ### END SOLUTION


class Preconditioned(nn.Module):
    """A network as a denoiser; `network(x, noise, label)` outputs `prediction`."""

    def __init__(
        self, network: nn.Module, prediction: str = "edm", sigma_data: float = 0.5
    ) -> None:
        super().__init__()
        self.network = network
        self.prediction, self.sigma_data = prediction, sigma_data

    def at(self, sigma: torch.Tensor) -> Coefficients:
        """Coefficients at levels sigma (B,)."""
        return coefficients(self.prediction, sigma, self.sigma_data)

    def forward(
        self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Denoise x (B, ...) at levels sigma (B,): (B, ...). About 3 lines."""
        ### BEGIN SOLUTION
        c = self.at(sigma)
        output = self.network(per_image(c.into, x) * x, c.noise.to(x), label)
        return per_image(c.skip, x) * x + per_image(c.out, x) * output
        ### END SOLUTION


def p_losses(
    denoiser: Preconditioned,
    x0: torch.Tensor,
    sigma: torch.Tensor,
    noise: torch.Tensor,
    label: torch.Tensor | None,
) -> torch.Tensor:
    """Squared error of the network's outputs for x0 (B, ...): (B,). About 3 lines."""
    ### BEGIN SOLUTION
    denoised = denoiser(q_sample(x0, sigma, noise), sigma, label)
    error = (denoised - x0) / per_image(denoiser.at(sigma).out, x0)
    return error.square().flatten(1).mean(1)
    ### END SOLUTION


class EMA:
    """A copy of a model with an exponential moving average of its parameters."""

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay, self.updates = decay, 0

    def update(self, model: nn.Module) -> None:
        """Average in the model's present parameters. About 6 lines."""
        ### BEGIN SOLUTION
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        with torch.no_grad():
            pairs = zip(self.model.parameters(), model.parameters(), strict=True)
            for average, parameter in pairs:
                average.mul_(decay).add_((1 - decay) * parameter)
        ### END SOLUTION


def train_step(
    model: nn.Module,
    losses: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    average: EMA,
) -> float:
    """Train a model on losses (B,) of a batch; return their mean. About 6 lines."""
    ### BEGIN SOLUTION
    loss = losses.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model)
    return loss.item()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "predictions"}
check("predictions")

# %% nbgrader={"grade": true, "grade_id": "p_losses"}
check("p_losses")

# %% nbgrader={"grade": true, "grade_id": "update_average"}
check("update_average")

# %% nbgrader={"grade": true, "grade_id": "train_step"}
check("train_step")

# %% [markdown]
# **See it.** A squared error of the output is a squared error of the denoised image with the *loss weight*
# $1/c_\text{out}^2$. What does each prediction type pay attention to?

# %%
shown = torch.tensor([0.02, 0.2, 1.0, 5.0, 80.0], dtype=torch.float64)
print("loss weight at", "".join(f"{f'σ = {level:g}':>11}" for level in shown.tolist()))
for prediction in ("epsilon", "x0", "v", "flow", "edm"):
    loss_weights = 1 / coefficients(prediction, shown).out ** 2
    row = "".join(f"{weight:11.3g}" for weight in loss_weights.tolist())
    print(f"{prediction:14}{row}")

# %% [markdown]
# Predicting the noise gives high levels next to no weight: an error of 0.01 in the noise at level 80 is an error of
# 0.8 in the image. $v$, flow and EDM never let the weight fall below a constant.
#
# **Train it** on scikit-learn's digits, 8 × 8 pixels in [−1, 1], with a small network that predicts $v$. Noise levels
# are log-normal, as in EDM. A tenth of the labels are replaced by the null class 10, so that the network also learns to
# do without a class: guidance in Task 5 needs both. Training takes about ten seconds.

# %%
from sklearn.datasets import load_digits

from mlsys_lab.widgets.progress import track

pixels, digits = load_digits(return_X_y=True)
images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
digits = torch.tensor(digits)
NULL = 10


class SmallNetwork(nn.Module):
    """A residual MLP on pixels, shifted in each layer by noise level and label."""

    def __init__(self, pixels: int = 64, width: int = 192, layers: int = 3) -> None:
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(-1, 5))
        self.label = nn.Embedding(NULL + 1, width)
        self.level = nn.Linear(2 * len(self.frequencies), width)
        self.first, self.last = nn.Linear(pixels, width), nn.Linear(width, pixels)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2 * layers))

    def forward(self, x, noise, label):
        """Output for x (B, 1, 8, 8), with c_noise (B,) and label (B,)."""
        angles = noise[:, None] * self.frequencies
        waves = torch.cat([angles.sin(), angles.cos()], 1)
        condition = self.level(waves) + self.label(label)
        h = self.first(x.flatten(1))
        for inner, outer in zip(self.layers[::2], self.layers[1::2], strict=True):
            h = h + outer(nn.functional.silu(inner(h + condition)))
        return self.last(nn.functional.silu(h)).view_as(x)


# %%
torch.manual_seed(0)
denoiser = Preconditioned(SmallNetwork(), "v")
average = EMA(denoiser, decay=0.998)
model = average.model  # what samplers call from Task 4 on
optimizer = torch.optim.AdamW(denoiser.parameters(), lr=1e-3)
history = []
for _ in track(range(3000)):
    chosen = torch.randint(len(images), (128,))
    label = digits[chosen].masked_fill(torch.rand(128) < 0.1, NULL)
    sigma = (torch.randn(128, dtype=torch.float64) * 1.2 - 0.5).exp()
    noise = torch.randn(128, 1, 8, 8)
    losses = p_losses(denoiser, images[chosen], sigma, noise, label)
    history.append(train_step(denoiser, losses, optimizer, average))
first, last = (sum(some) / len(some) for some in (history[:100], history[-100:]))
print(f"loss {first:.2f} in the first hundred steps, {last:.2f} in the last")


# %% [markdown]
# The loss does not approach 0. Many clean images are compatible with one noisy image, and the best denoiser outputs
# their mean, so part of every squared error is the variance around it.
#
# ## Task 4 · Samplers
#
# *About 45 minutes.*
#
# **Goal.** A sampler is a step from one noise level to the next, and every call of the network counts. Write DDPM and
# DDIM as one step with a knob $\eta$ for fresh noise, and Heun's step, which makes two calls and needs far fewer steps.
#
# **The posterior.** Given $x$ at level $\sigma$ and the clean image $x_0$, what can $x'$ at a lower level $\sigma'$
# be? Two facts about $x'$ are known. Seen from the image, $x' = x_0 + \sigma' n$. And $x$ is $x'$ with more noise on
# it, so seen from $x$, $x'$ lies around $x$ with the variance $\sigma^2 - \sigma'^2$. Each fact is a Gaussian, and
# their product is a Gaussian again, whose precision (1/variance) is the **sum of the two precisions**. **Derive** its
# variance $\tau_1^2$: this is DDPM's step.
#
# **Every η is allowed.** A step may also draw less noise, $\tau = \eta\,\tau_1$ with $\eta$ from 0 to 1. Its mean lies
# on the line from $x_0$ through $x$: at $x_0 + a\,(x - x_0)/\sigma$, where $(x - x_0)/\sigma$ is noise of deviation 1.
# **Derive** $a$ from the one condition that keeps the marginals: the old noise that is kept and the fresh noise
# together must have level $\sigma'$, and independent variances add. $\eta = 1$ is DDPM, $\eta = 0$ is DDIM, the Euler
# step of the ODE.
#
# **Interface** (`sigma` > `sigma_next` ≥ 0 and `eta` are floats)
#
# | | returns | does |
# |---|---|---|
# | `posterior(x0, x, sigma, sigma_next, eta=1.0)` | (B, ...), float | mean and deviation $\tau$ of $x'$ |
# | `ddim_step(denoiser, x, sigma, sigma_next, noise, eta=0.0, label=None)` | (B, ...) | a step with fresh `noise` |
# | `heun_step(denoiser, x, sigma, sigma_next, label=None)` | (B, ...) | a step of Heun's method |
#
# **Example** (an image of 0 that reads 8 at level 4; then data of deviation 1)
#
# ```python
# x0, x = torch.zeros(1), torch.tensor([8.0])
# mean, deviation = posterior(x0, x, 4.0, 1.0, eta=1.0)
# mean.tolist(), round(deviation, 3)  # → ([0.5], 0.968)
# mean, deviation = posterior(x0, x, 4.0, 1.0, eta=0.0)
# mean.tolist(), deviation  # → ([2.0], 0.0)
# gaussian = lambda x, sigma, label: x / (1 + sigma**2).to(x)
# round(heun_step(gaussian, torch.tensor([2.0]), 3.0, 1.0).item(), 3)  # → 1.0
# ```
#
# (Heun: the slope at 2 is $(2 - 0.2)/3 = 0.6$, which leads to 0.8. The slope there, at level 1, is $(0.8 - 0.4)/1 =
# 0.4$. The mean of both leads from 2 to 1. The exact ODE leads to 0.894, a single Euler step to 0.8.)
#
# **Requirements**
#
# - $\tau$ is a Python `float`; compute it in Python, where numbers have double precision.
# - `ddim_step` calls the denoiser once, and passes the denoised images to `posterior` as $x_0$.
# - `heun_step` takes the slope at `x`, then the slope at the point and level where the Euler step ends, and goes from
#   `x` along their mean.
# - To level 0 there is no second slope: Heun's step is Euler's there, with one call.
#
# **Size:** about 4, 3 and 7 lines.
#
# <details><summary>Details</summary>
#
# - To level 0, the posterior's mean is $x_0$ and its deviation 0, whatever $\eta$ is.
# - Only level 0 itself is special: a step to $10^{-4}$ is a step like any other.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-4-samplers"}
#| export
def posterior(
    x0: torch.Tensor, x: torch.Tensor, sigma: float, sigma_next: float, eta: float = 1.0
) -> tuple[torch.Tensor, float]:
    """Mean (B, ...) and deviation of x at `sigma_next`. About 4 lines."""
    ### BEGIN SOLUTION
    variance = eta**2 * sigma_next**2 * (1 - sigma_next**2 / sigma**2)
    kept = math.sqrt(sigma_next**2 - variance)
    return x0 + kept * (x - x0) / sigma, math.sqrt(variance)
    ### END SOLUTION


def ddim_step(
    denoiser: Denoiser,
    x: torch.Tensor,
    sigma: float,
    sigma_next: float,
    noise: torch.Tensor,
    eta: float = 0.0,
    label: torch.Tensor | None = None,
) -> torch.Tensor:
    """Step x (B, ...) from level `sigma` to `sigma_next`. About 3 lines."""
    ### BEGIN SOLUTION
    denoised = denoiser(x, full_level(sigma, x), label)
    mean, deviation = posterior(denoised, x, sigma, sigma_next, eta)
    return mean + deviation * noise
    ### END SOLUTION


def heun_step(
    denoiser: Denoiser,
    x: torch.Tensor,
    sigma: float,
    sigma_next: float,
    label: torch.Tensor | None = None,
) -> torch.Tensor:
    """Step x (B, ...) from level `sigma` to `sigma_next`. About 7 lines."""
    ### BEGIN SOLUTION
    first = slope(denoiser(x, full_level(sigma, x), label), x, sigma)
    ahead = x + (sigma_next - sigma) * first
    if sigma_next == 0:
        return ahead
    denoised = denoiser(ahead, full_level(sigma_next, x), label)
    second = slope(denoised, ahead, sigma_next)
    return x + (sigma_next - sigma) * (first + second) / 2
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "posterior"}
check("posterior")

# %% nbgrader={"grade": true, "grade_id": "heun_step"}
check("heun_step")

# %% [markdown]
# **See it: every η.** The mixture of Task 2 again, down to level 1 in 40 steps, with three values of $\eta$.


# %%
def run(step, x, grid):
    """Take a step from each noise level to the next."""
    for sigma, sigma_next in pairwise(grid.tolist()):
        x = step(x, sigma, sigma_next)
    return x


torch.manual_seed(2)
forty = torch.logspace(math.log10(80), 0, 41, dtype=torch.float64)
for eta in (0.0, 0.5, 1.0):
    cloud = run(
        lambda x, sigma, sigma_next, eta=eta: ddim_step(
            mixture, x, sigma, sigma_next, torch.randn_like(x), eta
        ),
        start,
        forty,
    )
    print(
        f"η = {eta:g}: standard deviation along the first axis {cloud[:, 0].std():.2f}"
    )

# %% [markdown]
# All three clouds have the spread that Task 2 predicts, with no fresh noise, some, or much. The SDE of Task 2 is
# $\eta = 1$ in the limit of small steps; from level 4 to level 1 in a single step it adds noise of variance 15, where
# DDPM's posterior keeps the total at 1. This is why DDPM gets by with larger steps than the SDE.
#
# **Predict, then measure.** DDIM's error is proportional to the size of the steps, Heun's to its square. You go from 64
# steps to 128. By what factor does Heun's error fall?

# %%
guess = None  # Heun's error with 64 steps over its error with 128

# %%
starts = start[:200]


def ddim(x, sigma, sigma_next):
    """A step of DDIM on the mixture."""
    return ddim_step(mixture, x, sigma, sigma_next, torch.zeros_like(x))


def heun(x, sigma, sigma_next):
    """A step of Heun on the mixture."""
    return heun_step(mixture, x, sigma, sigma_next)


truth = run(heun, starts, edm_grid(400))
counts = [4, 8, 16, 32, 64, 128]
figure = go.Figure()
for name, step, calls in (
    ("DDIM", ddim, lambda steps: steps),
    ("Heun", heun, lambda steps: 2 * steps - 1),
):
    ends = [run(step, starts, edm_grid(count)) for count in counts]
    errors = [(end - truth).norm(dim=1).mean().item() for end in ends]
    ratio = errors[-2] / errors[-1]
    print(f"{name}: error {errors[-2]:.1e} with 64 steps, {errors[-1]:.1e} with 128")
    x = [calls(count) for count in counts]
    figure.add_scatter(x=x, y=errors, mode="lines+markers", name=name)
check.predict(guess, ratio, "times less error with Heun", within=0.15)
figure.update_xaxes(type="log", title="calls of the denoiser")
figure.update_yaxes(type="log", title="mean error")
figure.update_layout(margin_t=30)
show(figure, alt="Error against calls: Heun's line falls twice as steeply as DDIM's")

# %% [markdown]
# Half the step, about a quarter of the error: Heun is of second order. Its steps cost two calls, so compare at equal
# calls: with few, DDIM is ahead; with many, Heun. And your digits, in 16 steps of Heun:


# %%
def draw(denoiser, label, steps=16, seed=0):
    """Digits (B, 1, 8, 8) of the classes in label (B,), by Heun's steps."""
    grid = edm_grid(steps, sigma_min=0.02, sigma_max=20)
    generator = torch.Generator().manual_seed(seed)
    x = 20 * torch.randn(len(label), 1, 8, 8, generator=generator)
    return run(lambda x, *levels: heun_step(denoiser, x, *levels, label), x, grid)


def sheet(rows, alt):
    """Show rows of ten digits."""
    pixels = torch.cat([torch.cat(list(row[:, 0]), dim=1) for row in rows])
    z = pixels.clamp(-1, 1).flip(0).tolist()
    figure = go.Figure(go.Heatmap(z=z, colorscale="gray_r", showscale=False))
    margins = {"t": 10, "b": 10, "l": 10, "r": 10}
    figure.update_layout(width=640, height=64 * len(rows) + 20, margin=margins)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    show(figure, alt=alt)


classes = torch.arange(10)
rows = [draw(model, classes, seed=seed) for seed in range(3)]
sheet(rows, "Three rows of digits 0 to 9 that your model drew")

# %% [markdown]
# ## Task 5 · Guidance
#
# *About 25 minutes.*
#
# **Goal.** Classifier-free guidance makes samples more typical of their class: it goes from the estimate *without* the
# class through the estimate *with* it, and beyond. Write it so that both estimates come from **one call** of the
# network, and so that images which need no guidance cost nothing extra.
#
# With the class the network estimates $D_c$, with the null class $D_u$; guidance of scale $s$ is $D = D_u + s\,(D_c -
# D_u)$. Scale 1 is no guidance. Guidance helps most at middle noise levels (Kynkäänniemi et al. 2024), so it acts only
# from level `low` to level `high`.
#
# **Interface**
#
# `ClassifierFreeGuidance(denoiser, scale, null, low=0.0, high=math.inf)` is itself a denoiser:
# `guided(x, sigma, label)` returns (B, ...). `scale` is a float for all images or (B,) float64, one for each.
#
# **Example** (the denoiser answers with the label, and notes how many images each call has)
#
# ```python
# sizes = []
# denoiser = lambda x, sigma, label: sizes.append(len(x)) or label.to(x)
# guided = ClassifierFreeGuidance(denoiser, scale=3.0, null=0, low=0.5, high=2.0)
# x, levels = torch.zeros(3), torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64)
# guided(x, levels, torch.tensor([2, 2, 2])).tolist(), sizes  # → ([2.0, 6.0, 2.0], [4])
# ```
#
# (Only the second image is within the interval: $0 + 3 \cdot (2 - 0) = 6$. The call has 3 images with their labels and
# 1 with the null class.)
#
# **Requirements**
#
# - Exactly one call: B images with their labels, and the G images that guidance acts on once more with `null`.
# - Guidance acts where `low` ≤ level ≤ `high` and the scale is not 1. G may be 0.
#
# **Size:** about 9 lines.
#
# <details><summary>Details</summary>
#
# - The order of the images within the call is up to you.
# - Scale 0 leaves the class out, and needs both estimates like any other scale.
# - Ho and Salimans count the scale from 0: their weight $w$ is $s - 1$.
# - `torch.as_tensor(self.scale, dtype=torch.float64).expand(len(x))` makes both kinds of scale (B,). Without the dtype,
#   a Python float would become float32.
# - An image whose label is the null class already is guided like any other.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-5-guidance"}
#| export
@dataclass(frozen=True, eq=False)
class ClassifierFreeGuidance:
    """A denoiser with guidance: one call of B + G images, of which G are guided."""

    denoiser: Denoiser
    scale: float | torch.Tensor
    null: int
    low: float = 0.0
    high: float = math.inf

    def __call__(
        self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor
    ) -> torch.Tensor:
        """Denoise x (B, ...) at levels sigma (B,). About 9 lines."""
        ### BEGIN SOLUTION
        scale = torch.as_tensor(self.scale, dtype=torch.float64).expand(len(x))
        inside = (sigma >= self.low) & (sigma <= self.high)
        guided = (inside & (scale != 1)).nonzero().flatten()  # (G,)
        labels = torch.cat([label, torch.full_like(label[guided], self.null)])
        twice = (torch.cat([values, values[guided]]) for values in (x, sigma))
        both = self.denoiser(*twice, labels)  # (B + G, ...)
        conditional, unconditional = both[: len(x)], both[len(x) :]
        towards_class = conditional[guided] - unconditional
        further = unconditional + per_image(scale[guided], x) * towards_class
        return conditional.index_copy(0, guided, further)
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "guide"}
check("guide")

# %% [markdown]
# **See it.** Scales 1, 2 and 4 from the same noise. What do the digits gain, and what do they lose?

# %%
scales = (1.0, 2.0, 4.0)
guided = {scale: ClassifierFreeGuidance(model, scale, NULL) for scale in scales}
rows = [draw(guided[scale], classes, seed=4) for scale in scales]
sheet(rows, "Digits 0 to 9 by guidance of scale 1, 2 and 4")
threes = torch.full((80,), 3)
for scale in scales:
    drawn = draw(guided[scale], threes).flatten(1)
    apart = torch.pdist(drawn.clamp(-1, 1)).mean()
    outside = (drawn.abs() > 1.2).double().mean()
    print(f"scale {scale:g}: threes are {apart:.1f} apart,", end=" ")
    print(f"{outside:.0%} of their pixels are far out of range")
real = images[digits == 3].flatten(1)
print(f"real threes are {torch.pdist(real).mean():.1f} apart")

# %% [markdown]
# Guidance trades diversity for typical samples: guided threes are clearer and closer to each other. A high scale also
# drives pixels out of the range of the data, which in large models shows as garish colours.
#
# ## Task 6 · What an image costs
#
# *About 25 minutes.*
#
# **Goal.** Predict how long an image takes before any GPU is involved: count the FLOPs and bytes of one call of a
# diffusion transformer (DiT), then put calls, guidance and batch together.
#
# A DiT cuts an image of `size` × `size` into patches of `patch` × `patch`: one token for each. (The "image" of DiT-XL/2
# is a latent of 32 × 32 with 4 channels, which a VAE's decoder turns into 256 × 256 pixels at the end; the decoder is
# not counted here. Its 8 output channels are the noise and a variance.) Its matrix products:
#
# | part | inputs → outputs of the matrix | rows per image |
# |---|---|---|
# | patches to tokens | P²·`channels` → D | one per token |
# | noise level | 256 → D, then D → D | 1 |
# | each block: Q, K, V and output | D → D, four times | one per token |
# | each block: MLP | D → 4D, then 4D → D | one per token |
# | each block: modulation | *derive* | *derive* |
# | before the last layer: modulation | D → 2D | 1 |
# | tokens to patches | D → P²·`out_channels` | one per token |
#
# D is `d_model`, P is `patch`. **Derive** the row for the modulation of a block: each block shifts, scales and gates
# its attention, and shifts, scales and gates its MLP, by vectors of length D, which one matrix computes from the
# *condition* (noise level and class), a single vector of length D per image. **Derive** also what is not in the table,
# because it has no weights: the scores of attention, and the weighted sums of its values, each token with each token.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `step_cost(config, batch=1, element_bytes=2)` | `Cost` | FLOPs of a call with `batch` images, and bytes of weights |
# | `predict_image(cost, machine, steps, solver="ddim", guided=False, requests=1)` | float, str | seconds; limit |
#
# `cost` is the `step_cost` of **one** image. `requests` images are sampled together; `predict_image` returns how many
# seconds pass until all of them are complete, and what limits each call: "compute" or "memory". `solver` is "ddim" or
# "heun".
#
# **Example**
#
# ```python
# tiny = DiTConfig("tiny", n_layers=1, d_model=4, n_heads=1, size=4, patch=2, channels=1)
# step_cost(tiny) == Cost(flops=4384, weight_bytes=2784)  # → True
# machine = Machine(flops_per_s=100, bytes_per_s=100)
# cost = Cost(flops=200, weight_bytes=300)
# predict_image(cost, machine, steps=4)  # → (12.0, 'memory')
# predict_image(cost, machine, steps=4, solver="heun", guided=True)  # → (28.0, 'compute')
# ```
#
# (One call takes 2 s of computing and 3 s of reading. With guidance it takes 4 s of computing, and Heun makes 7 calls.)
#
# **Requirements**
#
# - A product of one row with a matrix of $m$ inputs and $n$ outputs is $mn$ multiply-adds; a multiply-add is 2 FLOPs.
# - The weights are read once per call, however many images it has. Nothing else is counted: no biases, no
#   activations.
# - A call takes as long as the slower of computing and reading. If they tie, the limit is "memory".
# - A guided call has two images per request. Heun calls twice per step, but only once in the last, to level 0.
# - `flops` and `weight_bytes` are whole numbers.
#
# **Size:** about 9 and 6 lines.
#
# <details><summary>Details</summary>
#
# - `DiTConfig` replaces `out_channels=0` by the number of `channels`.
# - The embeddings of the classes are looked up, not multiplied, so they are not counted.
#
# </details>


# %%
#| export
@dataclass
class DiTConfig:
    """Sizes of a diffusion transformer."""

    name: str
    n_layers: int
    d_model: int
    n_heads: int
    size: int
    patch: int
    channels: int
    classes: int = 0
    out_channels: int = 0

    def __post_init__(self) -> None:
        self.out_channels = self.out_channels or self.channels


class Cost(NamedTuple):
    """FLOPs, and bytes of weights read."""

    flops: int
    weight_bytes: int


@dataclass(frozen=True)
class Machine:
    """What a machine can do at best: FLOP/s, and bytes per second from memory."""

    flops_per_s: float
    bytes_per_s: float


# %% nbgrader={"solution": true, "grade_id": "task-6-cost"}
#| export
def step_cost(config: DiTConfig, batch: int = 1, element_bytes: int = 2) -> Cost:
    """FLOPs of a call with `batch` images, and bytes of weights. About 9 lines."""
    ### BEGIN SOLUTION
    D, L, pixels = config.d_model, config.n_layers, config.patch**2
    tokens = (config.size // config.patch) ** 2
    once = 256 * D + D * D + L * 6 * D * D + 2 * D * D  # weights used once per image
    each = pixels * (config.channels + config.out_channels) * D  # once per token
    each += L * (4 * D * D + 8 * D * D)
    attention = L * 2 * tokens * tokens * D
    flops = 2 * batch * (once + tokens * each + attention)
    return Cost(flops, element_bytes * (once + each))
    ### END SOLUTION


def predict_image(
    cost: Cost,
    machine: Machine,
    steps: int,
    solver: str = "ddim",
    guided: bool = False,
    requests: int = 1,
) -> tuple[float, str]:
    """Least seconds until `requests` images are complete. About 6 lines."""
    ### BEGIN SOLUTION
    calls = 2 * steps - 1 if solver == "heun" else steps
    images = 2 * requests if guided else requests
    compute_s = images * cost.flops / machine.flops_per_s
    memory_s = cost.weight_bytes / machine.bytes_per_s
    limit = "compute" if compute_s > memory_s else "memory"
    return calls * max(compute_s, memory_s), limit
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "dit_work"}
check("dit_work")

# %% nbgrader={"grade": true, "grade_id": "predict_image"}
check("predict_image")

# %% [markdown]
# **Predict, then measure.** DiT-XL/2 has 256 tokens per image and about 0.67 billion weights. It runs in bf16 on an
# H100: 989 TFLOP/s and 3.35 TB/s. From how many images on is a call compute-bound? And a decode step of a language
# model with as many weights, which computes one token per sequence: from how many sequences on?

# %%
guess_images = None
guess_sequences = None

# %%
XL = DiTConfig(
    "DiT-XL/2", 28, 1152, 16, 32, 2, channels=4, classes=1000, out_channels=8
)
H100 = Machine(989e12, 3.35e12)
cost = step_cost(XL)
print(f"a call of one image: {cost.flops / 1e9:.0f} GFLOPs", end=", ")
print(f"{cost.weight_bytes / 1e9:.2f} GB, {cost.flops / cost.weight_bytes:.0f} FLOP/B")


def first_compute_bound(cost):
    """Smallest number of images in a call that make it compute-bound."""
    number = 1
    while predict_image(cost, H100, 1, requests=number)[1] == "memory":
        number += 1
    return number


decode = Cost(cost.weight_bytes, cost.weight_bytes)  # 2 FLOPs and 2 bytes per weight
check.predict(guess_images, first_compute_bound(cost), "images", within=0)
check.predict(guess_sequences, first_compute_bound(decode), "sequences", within=0.1)
for requests in (1, 4, 16):
    drawn_s, _ = predict_image(cost, H100, 50, guided=True, requests=requests)
    decoded_s, _ = predict_image(decode, H100, 256, requests=requests)
    print(f"{requests:2} at once: {1e3 * drawn_s / requests:5.1f} ms each", end=" ")
    print(f"in 50 guided steps, {1e3 * decoded_s / requests:5.1f} ms as 256 tokens")

# %% [markdown]
# A weight that has been read serves all tokens of an image, 256 of them (only those of the modulation, a third of all,
# serve one row per image): a diffusion step is like a prefill, and a guided step is a batch of two already. A decode
# step has one token per sequence, so only a large batch fills the machine.
#
# **Measure** on this machine: first its two limits, then calls of the course's own DiT in four sizes. No call reaches
# its bound. To see why, the matrix products of its blocks are also timed alone, at their real shapes.

# %%
from mlsys_lab.benchmark import compare
from mlsys_lab.diffusion.networks import DiT
from mlsys_lab.flops import dit

square, tall, vector = (torch.randn(*s) for s in ((1024, 1024), (4096, 4096), (4096,)))
calls = {"product": lambda: square @ square, "read": lambda: tall @ vector}
D, L, configs = 512, 4, {}
shapes = L * [(D, 3 * D), (D, D), (D, 4 * D), (4 * D, D), (D, 6 * D)]
matrices = [torch.randn(*shape) for shape in shapes]


def products(tokens, batch):
    """Matrix products of all blocks only: tokens through four, images through one."""
    rows = {size: torch.randn(tokens * batch, size) for size in (D, 4 * D)}
    for i, matrix in enumerate(matrices):
        (torch.randn(batch, D) if i % 5 == 4 else rows[len(matrix)]) @ matrix


for patch in (2, 8):
    for batch in (1, 4):
        tokens = (16 // patch) ** 2
        name = f"{tokens} tokens, batch {batch}"
        sizes = dit.DiTConfig(name, L, D, 8, 16, patch, channels=4, classes=NULL)
        network = DiT(sizes).requires_grad_(False)
        inputs = torch.randn(batch, 4, 16, 16), torch.zeros(batch), classes[:batch]
        configs[name] = (sizes, batch)
        calls[name] = lambda network=network, inputs=inputs: network(*inputs)
        calls[f"products, {name}"] = lambda t=tokens, b=batch: products(t, b)
timings = compare(calls, samples=7, warmup=1).timings
flops_per_s = 2 * 1024**3 / timings["product"].p50_s
here = Machine(flops_per_s, 4 * 4096**2 / timings["read"].p50_s)
print(f"here: {here.flops_per_s / 1e9:.0f} GFLOP/s, {here.bytes_per_s / 1e9:.1f} GB/s")
bars = {"bound": [], "products alone": [], "whole call": []}
for name, (sizes, batch) in configs.items():
    cost = step_cost(sizes, element_bytes=4)
    bound_s, limit = predict_image(cost, here, steps=1, requests=batch)
    parts_s = (bound_s, timings[f"products, {name}"].p50_s, timings[name].p50_s)
    for values, seconds in zip(bars.values(), parts_s, strict=True):
        values.append(1e3 * seconds)
    print(f"{name:19} bound {1e3 * bound_s:5.1f} ms ({limit}),", end=" ")
    print(
        f"products {1e3 * parts_s[1]:5.1f} ms, call {1e3 * parts_s[2]:5.1f} ms:",
        end=" ",
    )
    print(f"{bound_s / parts_s[2]:.0%} of the bound")
figure = go.Figure([go.Bar(name=n, x=list(configs), y=bars[n]) for n in bars])
figure.update_layout(yaxis_title="ms per call", margin_t=30)
show(
    figure,
    alt="Milliseconds of four calls: the bound, products alone, and the whole call",
)

# %% [markdown]
# **Explain.** Between the bound and the products lies what a product loses at its real shape: with few rows it runs
# slower than the large square one, and it reads all weights for little work. Between the products and the whole call
# lies what the bound does not count: attention's scores, norms, activation functions and modulation, which move
# activations through memory and compute little, and fixed costs of some microseconds per operation, which dominate
# short calls. Which of the two gaps does a larger batch close, and which `torch.compile`?
#
# ## Task 7 · Requests that share calls
#
# *About 30 minutes.*
#
# **Goal.** The network gets a noise level for each *image*, so one call can serve requests at different steps:
# **continuous batching**. Write a server that always fills its slots, and whose images are those that each request
# would have got alone.
#
# **Interface**
#
# `serve(denoise, requests, slots)` returns the list of final images (...), in the order of the requests.
# `denoise(x, sigma, label, scale)` denoises R images (R, ...), with level, label and guidance scale of each, (R,).
#
# **Example** (all data are 0; one slot, so the second request must wait)
#
# ```python
# denoise = lambda x, sigma, label, scale: 0 * x
# short = Request(label=0, grid=torch.tensor([4.0, 1.0]).double(), noise=torch.ones(2))
# long = Request(label=1, grid=torch.tensor([8.0, 4.0, 2.0]).double(), noise=torch.ones(2))
# [image.tolist() for image in serve(denoise, [short, long], slots=1)]  # → [[1.0, 1.0], [2.0, 2.0]]
# ```
#
# **Requirements**
#
# - A request starts from `grid[0]` times its noise and takes the steps of its own grid by DDIM with $\eta = 0$, from
#   each level to the next.
# - Before each call, waiting requests take free slots in their order; at most `slots` requests run.
# - **One call** then advances every running request by one step, with the guidance scale of its present level,
#   `request.scale_at(level)`.
# - A request that has reached the end of its grid leaves, and its slot is free for the next call.
#
# **Size:** about 17 lines.
#
# <details><summary>Details</summary>
#
# - Pass levels and scales in float64, labels in int64. The noises of all requests have the same shape and dtype.
# - Without requests, return an empty list and call nothing.
# - Two entries of `requests` may be the same object, so tell requests apart by their position in the list.
#
# </details>


# %%
#| export
@dataclass(frozen=True, eq=False)
class Request:
    """An image to draw: class, falling levels (S + 1,), noise (...), and guidance."""

    label: int
    grid: torch.Tensor
    noise: torch.Tensor
    scale: float = 1.0
    low: float = 0.0
    high: float = math.inf

    def scale_at(self, sigma: float) -> float:
        """Guidance scale at a noise level: 1 outside the interval."""
        return self.scale if self.low <= sigma <= self.high else 1.0


# %% nbgrader={"solution": true, "grade_id": "task-7-serve"}
#| export
def serve(
    denoise: Denoiser, requests: Sequence[Request], slots: int
) -> list[torch.Tensor]:
    """Images (...) of all requests, by calls that they share. About 17 lines."""
    ### BEGIN SOLUTION
    waiting, running = deque(range(len(requests))), []
    images = [float(request.grid[0]) * request.noise for request in requests]
    step = [0] * len(requests)
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.popleft())
        x = torch.stack([images[i] for i in running])
        levels = [requests[i].grid[step[i] : step[i] + 2] for i in running]
        sigma, sigma_next = torch.stack(levels, dim=1)
        label = torch.tensor([requests[i].label for i in running])
        pairs = zip(running, sigma.tolist(), strict=True)
        scales = [requests[i].scale_at(level) for i, level in pairs]
        scale = torch.tensor(scales, dtype=torch.float64)
        denoised = denoise(x, sigma, label, scale)
        x = denoised + per_image(sigma_next / sigma, x) * (x - denoised)
        for i, image in zip(running, x, strict=True):
            images[i], step[i] = image, step[i] + 1
        running = [i for i in running if step[i] < len(requests[i].grid) - 1]
    return images
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "serve"}
check("serve")

# %% [markdown]
# **Predict, then measure.** Ten requests for the digits 0 to 9, half of them guided, take 4, 19, 12, 6, 21, 15, 8, 24,
# 17 and 10 steps: 136 calls if each is served alone. How many calls serve all of them, in this order, on 4 slots?

# %%
guess = None  # calls on 4 slots

# %%
sizes = []


def guided(x, sigma, label, scale):
    """Your model with guidance; notes how many images each call has."""
    sizes.append(len(x))
    return ClassifierFreeGuidance(model, scale, NULL)(x, sigma, label)


torch.manual_seed(3)
asked = [
    Request(
        label=digit,
        grid=edm_grid(4 + 20 * (7 * digit % 10) // 9, 0.02, 20.0),
        noise=torch.randn(1, 8, 8),
        scale=1.0 + digit % 2,
    )
    for digit in range(10)
]
together = torch.stack(serve(guided, asked, slots=4))
shared, sizes = sizes, []
alone = torch.stack([serve(guided, [request], slots=1)[0] for request in asked])
largest = (together - alone).abs().max()
print(f"{len(sizes)} calls alone; the images differ by at most {largest:.0e}")
check.predict(guess, len(shared), "calls on 4 slots", within=0)
sizes = []
serve(guided, sorted(asked, key=lambda request: -len(request.grid)), slots=4)
print(f"with the longest request first: {len(sizes)} calls")
sheet([together, alone], "Digits 0 to 9, drawn together and one by one: the same")
figure = go.Figure([go.Bar(y=shared)])
figure.update_layout(xaxis_title="call", yaxis_title="requests in it", margin_t=30)
show(figure, alt="Requests in each call: four, until the last requests run alone")

# %% [markdown]
# 136 steps on 4 slots are at least 34 calls. The rest is the end, when no request waits any more and slots stay empty:
# here the longest request starts late and runs alone. The images agree up to rounding: batching decides *when* a step
# is computed, never *what*.
#
# ## Stretch: no points
#
# - **DPM-Solver++ (2M)** is of second order with one call per step: it reuses the denoised image of the previous step
#   (Lu et al. 2022, algorithm 2). Write `dpm_step`, add its line to the plot of Task 4, and compare at equal calls.
# - **EDM's coefficients.** Derive $c_\text{skip}$ of "edm": it makes $c_\text{out}$ as small as possible for data of
#   deviation `sigma_data`, so that the network's errors are magnified least.
# - **Heun on the server.** A Heun step needs two calls. Let requests choose their solver and still share calls; the
#   package's engine does it with generators.
#
# ## What you can read now
#
# - diffusers, `schedulers/scheduling_ddim.py`: `DDIMScheduler.step` and `_get_variance`, your `posterior` in DDPM's
#   scale; `schedulers/scheduling_heun_discrete.py`: `HeunDiscreteScheduler.step`, the two slopes as two calls.
# - EDM, `generate.py` of NVlabs/edm: `edm_sampler`, and `training/networks.py`: `EDMPrecond.forward`, the four
#   coefficients.
# - DiT, `models.py` of facebookresearch/DiT: `DiTBlock.forward`, the six modulation vectors, and
#   `DiT.forward_with_cfg`, guidance in one call.
# - The course's own `mlsys_lab/diffusion/engine.py`: your server, for any sampler.
#
# ## Test yourself
#
# <details><summary>A network was trained on 1,000 levels and is sampled at 20 others. Why does this work?</summary>
#
# It learned $D(x; \sigma)$, a smooth function of the level, and no sampler. The levels are the grid on which an ODE is
# solved; fewer of them only mean larger steps of the solver.
#
# </details>
#
# <details><summary>Your DDIM step and the Euler step of a rectified flow are one formula. Which scaling hides
# this?</summary>
#
# The flow's point is $x/(1 + \sigma)$, at time $t = \sigma/(1 + \sigma)$. Multiply each point by $1 + \sigma$ of its
# own level, and the straight line from noise to image becomes $D + \frac{\sigma'}{\sigma}(x - D)$.
#
# </details>
#
# <details><summary>Suppose Heun's second slope is taken at the wrong level. Why might a noise-prediction model
# forgive this, and a v-prediction model not?</summary>
#
# The slope is $(x - D)/\sigma$, and for a noise-prediction model $x - D = \sigma F$: the wrong level cancels, except in
# the network's own input. For $v$ it does not cancel, so digits get worse.
#
# </details>
#
# <details><summary>With decay 0.999 and no warm-up, how much of the random initial parameters is left in the average
# after 1,000 updates?</summary>
#
# $0.999^{1000} \approx e^{-1}$, or 37 %. With the warm-up of Task 3 nothing measurable is left.
#
# </details>
#
# <details><summary>What does a guided request cost if guidance acts only on half of its levels?</summary>
#
# 1.5 images per call on average in place of 2. Where a call is compute-bound, a quarter of the time is saved.
#
# </details>
#
# <details><summary>Halve the patch of a DiT. What happens to FLOPs, weights, and the batch from which a call is
# compute-bound?</summary>
#
# Four times the tokens: four times the FLOPs of all products per token, sixteen times those of attention's scores. The
# weights hardly change, so a quarter of the images is enough. With DiT-XL a single image is then compute-bound: 777
# FLOPs per byte, above the ridge point at 295.
#
# </details>
#
# When all checks pass, save the notebook and run `mlsys-lab check diffusion` in a terminal.
