# %% [markdown]
# # Lab 12 · A diffusion model: from noise to a server of images
#
# Add noise to an image until nothing is left of it, and ask a network to go back. It never has to invent an image: it
# only guesses, at every level of noise, the mean of all images that could lie beneath. All else is yours to decide, and
# can be held against exact laws: which levels, which equation, how many calls, and how many requests share a call.
#
# **You will build**
#
# 1. levels of noise, and images with noise of any level;
# 2. an exact denoiser, and the walks down to the data that follow from it;
# 3. a loss, and a model of handwritten digits;
# 4. DDPM's, DDIM's and Heun's steps;
# 5. guidance that costs no second call;
# 6. a prediction of what an image takes, held against this machine;
# 7. a server whose requests share calls, each at its own step.
#
# **At the end you can answer**
#
# - Why can one network be sampled with any number of steps, by any solver?
# - Which mistakes does a model forgive if it predicts noise, and not if it predicts $v$?
# - Why does batching help a language model so much more than a diffusion model?
#
# **Time:** about 240 minutes (each task says its share). **Points:** 100. **You need:** torch tensors and their
# gradients; FLOPs, bytes and the roofline (lab 05) for Task 6. Chapter 14, *Diffusion as a systems workload*, gives the
# background.
#
# **Readings it leans on:** *What are Diffusion Models?* (`weng-diffusion`), *Classifier-Free Diffusion Guidance*
# (`ho2022cfg`), *Diffusion Models Beat GANs on Image Synthesis* (`dhariwal2021beat`).
#
# **How it works.** Put your code in place of each line that raises `NotImplementedError`, run the cell, then run the
# `check` cell below it. Cells that begin with `#| export` make up the module that is graded. Grading runs the same
# checks with other numbers and a few more cases.
#
# **Letters:** B images of a batch, at least one, each of any shape (...), also without axes: a number (only the losses
# of Task 3 need axes); $x_0$ a clean image, $\sigma$ a level, $x = x_0 + \sigma n$; $D$ the denoiser, $\mathrm{E}[x_0
# \mid x]$; S steps of a sampler, at least one; K classes, 0 to K − 1, and K for none of them.
#
# Five things hold in all tasks. Levels and their weights are in float64; labels are in int64; images keep the dtype in
# which they come. Levels are above 0, but the one where a step or a grid ends may be 0. What you are given stays as it
# is, and so does what a denoiser answers. A `float` or `int` that you are given is Python's own; one that you return
# may also be a tensor without axes that keeps no graph. And a denoiser is any `denoiser(x, sigma, label)` with x
# (B, ...), sigma (B,) and label (B,), or None.

# %%
from mlsys_lab.checks import lab

check = lab("diffusion")

# %%
#| export
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

Denoiser = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def per_image(values: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Values (B,) in the dtype of images (B, ...), with axes of length 1 behind them: one for each image."""
    return values.to(images).reshape(-1, *[1] * (images.ndim - 1))


def level_of(sigma: float, images: torch.Tensor) -> torch.Tensor:
    """One level for all images (B, ...): (B,) float64."""
    return torch.full((len(images),), sigma, dtype=torch.float64)


# %% [markdown]
# **The checks' denoiser** ages, as the one below does. Its data are K Gaussians, one for each class, of a known
# `deviation`. Its answers are exact except for a small addition: `AGE` for each call before this one, and `CROWD` for
# each image of this call. So the result is right only if you make every call that the task asks for, no more, and with
# the right number of images. An extra call at the end shows as well: the check calls the denoiser once more when your
# function has returned. In hidden cases the check's denoiser adds other amounts.


# %%
#| export
class AgingDenoiser:
    """Denoiser of Gaussians around `centres` (K + 2, ...): of K classes, of null, of no label. Calls make it older."""

    AGE, CROWD = 0.05, 0.01

    def __init__(self, centres: torch.Tensor, deviation: float) -> None:
        self.centres, self.deviation, self.calls = centres, deviation, 0

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        kept = per_image(self.deviation**2 / (self.deviation**2 + sigma**2), x)
        centre = self.centres[-1] if label is None else self.centres[label]
        added = self.AGE * self.calls + self.CROWD * len(x)
        self.calls += 1
        return kept * x + (1 - kept) * centre + added


# %% [markdown]
# ## Task 1 · Levels of noise
#
# *About 20 minutes.*
#
# Papers scale noisy images in their own ways. DDPM's $x_t = \sqrt{\bar\alpha_t}\,x_0 + \sqrt{1 -
# \bar\alpha_t}\,\varepsilon$ is ours times $\sqrt{\bar\alpha_t}$, so that its step t is a level like any other.
#
# **1a.** `levels(betas)`: from variances $\beta_1 \dots \beta_T$, (T,), the levels $\sigma_t = \sqrt{(1 -
# \bar\alpha_t)/\bar\alpha_t}$, (T,), with $\bar\alpha_t = \prod_{s \le t} (1 - \beta_s)$: step t's own $\beta$ counts.
#
# **1b.** `edm_grid(steps, sigma_min, sigma_max, rho)`: the S levels of EDM (Karras et al. 2022, equation 5), evenly
# spaced in $\sigma^{1/\rho}$ from `sigma_max` down to `sigma_min`, and then 0: (S + 1,). One step begins at
# `sigma_max`. EDM's own numbers are 0.002, 80 and 7: let them be the defaults.
#
# **1c.** `q_sample(x0, sigma, noise)`: images with noise of their levels.
#
# **Size:** about 2, 2 and 1 lines. **Cost:** a multiplication and an addition for each pixel.


# %% nbgrader={"solution": true, "grade_id": "task-1-levels"}
#| export
def levels(betas: torch.Tensor) -> torch.Tensor:
    """Levels of DDPM's variances: (T,) float64 -> (T,) float64, rising. About 2 lines."""
    ### BEGIN SOLUTION
    alphas_bar = (1 - betas).cumprod(0)
    return ((1 - alphas_bar) / alphas_bar).sqrt()
    ### END SOLUTION


def edm_grid(steps: int, sigma_min: float = 0.002, sigma_max: float = 80.0, rho: float = 7.0) -> torch.Tensor:
    """EDM's levels and then 0: (S + 1,) float64, falling. About 2 lines."""
    ### BEGIN SOLUTION
    line = torch.linspace(sigma_max ** (1 / rho), sigma_min ** (1 / rho), steps, dtype=torch.float64)
    return torch.cat([line**rho, torch.zeros(1, dtype=torch.float64)])
    ### END SOLUTION


def q_sample(x0: torch.Tensor, sigma: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Images x0 (B, ...) with noise (B, ...) of levels sigma (B,): (B, ...). About 1 line."""
    ### BEGIN SOLUTION
    return x0 + per_image(sigma, x0) * noise
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "levels"}
check("levels")

# %% nbgrader={"grade": true, "grade_id": "edm_grid"}
check("edm_grid")

# %% nbgrader={"grade": true, "grade_id": "q_sample"}
check("q_sample")

# %% [markdown]
# **See it.** Where the levels lie, and the deviation of what `q_sample` makes of data of deviation 1: $\sqrt{1 +
# \sigma^2}$.

# %%
import plotly.graph_objects as go

from mlsys_lab.widgets import show

torch.manual_seed(0)
ddpm = levels(torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64))
some = torch.randn(20_000, dtype=torch.float64)
for sigma in (0.1, 1.0, 10.0):
    noisy = q_sample(some, level_of(sigma, some), torch.randn_like(some))
    print(f"level {sigma:4}: deviation {noisy.std():6.3f}, expected {math.hypot(1, sigma):6.3f}")
figure = go.Figure()
for name, grid in {"DDPM, every 50th of 1,000": ddpm.flip(0)[::50], "EDM, 20 steps": edm_grid(20)[:-1]}.items():
    figure.add_scatter(y=grid.tolist(), mode="lines+markers", name=name)
figure.update_layout(xaxis_title="step", yaxis_title="level", yaxis_type="log", margin_t=30)
show(figure, alt="Levels of two schedules over twenty steps: both fall, EDM's from 80 down to 0.002")

# %% [markdown]
# ## Task 2 · From a denoiser to walks
#
# *About 45 minutes.*
#
# Where data are a mixture of Gaussians, of weights $w_k$, means $\mu_k$ and one deviation $s$ in every direction, the
# denoiser is known. With noise, component k is a Gaussian of variance $s^2 + \sigma^2$ around $\mu_k$; Bayes says how
# likely each is given x, and within one the guess lies between its mean and x:
#
# $$D(x) = \sum_k p(k \mid x) \Big(\frac{s^2}{s^2 + \sigma^2}\,x + \frac{\sigma^2}{s^2 + \sigma^2}\,\mu_k\Big).$$
#
# **2a.** `denoise_mixture(x, sigma, means, weights, deviation)` for points x (B, N), means (K, N), weights (K,), all
# above 0, and $s$, which may be 0. Points may lie far from all means: take care that no share becomes 0/0.
#
# From any denoiser follow two directions, $\nabla \log p(x; \sigma) = (D - x)/\sigma^2$, the **score**, and $dx/d\sigma
# = (x - D)/\sigma$, the **slope** of the probability-flow ODE, which is the noise that was guessed.
#
# **2b.** `score` and `slope`, for a level of each image.
#
# **2c.** `walk_ode(denoiser, x, grid, label)`: Euler's steps along the slope, from each level of the grid (S + 1,) to
# the next. Return the images at its last level.
#
# **2d.** `walk_sde(denoiser, x, grid, noise, label)`: the reverse SDE has the same laws at all levels, and goes twice
# as far at each step, with fresh noise: $x' = x + (\sigma^2 - \sigma'^2)\,\nabla \log p + \sqrt{\sigma^2 -
# \sigma'^2}\,n_i$, with $n_i$ = `noise[i]` of (S, B, ...). **A step to level 0 adds none.**
#
# **Size:** about 4, 1, 1, 4 and 7 lines. **Cost:** one call of the denoiser a step, in both walks.


# %% nbgrader={"solution": true, "grade_id": "task-2-walks"}
#| export
def denoise_mixture(
    x: torch.Tensor, sigma: torch.Tensor, means: torch.Tensor, weights: torch.Tensor, deviation: float
) -> torch.Tensor:
    """Denoised points of a mixture, for x (B, N) at levels sigma (B,): (B, N). About 4 lines."""
    ### BEGIN SOLUTION
    variance = per_image(deviation**2 + sigma**2, x)  # (B, 1)
    shares = (weights.log() - (x[:, None] - means).square().sum(-1) / (2 * variance)).softmax(-1)  # (B, K)
    kept = deviation**2 / variance
    return kept * x + (1 - kept) * shares @ means
    ### END SOLUTION


def score(denoised: torch.Tensor, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Gradient of log p at x (B, ...) of levels sigma (B,): (B, ...). About 1 line."""
    ### BEGIN SOLUTION
    return (denoised - x) / per_image(sigma, x) ** 2
    ### END SOLUTION


def slope(denoised: torch.Tensor, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Slope dx/dσ of the ODE at x (B, ...) of levels sigma (B,): (B, ...). About 1 line."""
    ### BEGIN SOLUTION
    return (x - denoised) / per_image(sigma, x)
    ### END SOLUTION


def walk_ode(
    denoiser: Denoiser, x: torch.Tensor, grid: torch.Tensor, label: torch.Tensor | None = None
) -> torch.Tensor:
    """Walk x (B, ...) down the levels of grid (S + 1,) by Euler's steps: (B, ...). About 4 lines."""
    ### BEGIN SOLUTION
    for sigma, sigma_next in pairwise(grid.tolist()):
        level = level_of(sigma, x)
        x = x + (sigma_next - sigma) * slope(denoiser(x, level, label), x, level)
    return x
    ### END SOLUTION


def walk_sde(
    denoiser: Denoiser, x: torch.Tensor, grid: torch.Tensor, noise: torch.Tensor, label: torch.Tensor | None = None
) -> torch.Tensor:
    """Walk x (B, ...) down the grid (S + 1,) with fresh noise (S, B, ...): (B, ...). About 7 lines."""
    ### BEGIN SOLUTION
    for (sigma, sigma_next), fresh in zip(pairwise(grid.tolist()), noise, strict=True):
        level, removed = level_of(sigma, x), sigma**2 - sigma_next**2
        x = x + removed * score(denoiser(x, level, label), x, level)
        if sigma_next > 0:
            x = x + math.sqrt(removed) * fresh
    return x
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "mixture"}
check("mixture")

# %% nbgrader={"grade": true, "grade_id": "directions"}
check("directions")

# %% nbgrader={"grade": true, "grade_id": "walk_ode"}
check("walk_ode")

# %% nbgrader={"grade": true, "grade_id": "walk_sde"}
check("walk_sde")

# %% [markdown]
# **See it.** The same cloud of noise, walked down by both. How many steps does each need until its cloud is that of the
# data?

# %%
from plotly.subplots import make_subplots

MEANS = torch.tensor([[-1.0, 0.5], [1.0, 0.0], [0.0, -1.2]], dtype=torch.float64)
WEIGHTS, SPREAD = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 0.2


def exact(x, sigma, label=None):
    """The denoiser of a mixture of three."""
    return denoise_mixture(x, sigma, MEANS, WEIGHTS, SPREAD)


figure = make_subplots(1, 4, subplot_titles=[f"{kind}, {s} steps" for kind in ("ODE", "SDE") for s in (6, 60)])
for column, (kind, steps) in enumerate([("ODE", 6), ("ODE", 60), ("SDE", 6), ("SDE", 60)], 1):
    torch.manual_seed(1)
    grid, start = edm_grid(steps), 80 * torch.randn(400, 2, dtype=torch.float64)
    fresh = torch.randn(steps, *start.shape, dtype=torch.float64)
    end = walk_ode(exact, start, grid) if kind == "ODE" else walk_sde(exact, start, grid, fresh)
    off = (end.mean(0) - WEIGHTS @ MEANS).norm()
    deviation = (end - (WEIGHTS @ MEANS)).square().mean().sqrt()
    wanted = (SPREAD**2 + ((MEANS - WEIGHTS @ MEANS).square().mean(1) @ WEIGHTS)).sqrt()
    print(f"{kind}, {steps:2} steps: mean off by {off:.2f}, deviation {deviation:.2f} of {wanted:.2f}")
    figure.add_scatter(x=end[:, 0], y=end[:, 1], mode="markers", marker_size=3, row=1, col=column)
figure.update_layout(showlegend=False, height=300, margin_t=40)
show(figure, alt="Four clouds of points around three centres, by ODE and SDE, with six and with sixty steps")

# %% [markdown]
# ## Task 3 · A loss, and a model
#
# *About 50 minutes.*
#
# A network F is given the noisy image at size 1, $x/\sqrt{1 + \sigma^2}$, the level as $\ln(\sigma)/4$, in the image's
# dtype, and a label. What should it answer? With $x = x_0 + \sigma\varepsilon$ each of these says as much as the
# others:
#
# - `"epsilon"`: the noise $\varepsilon$;
# - `"x0"`: the image $x_0$;
# - `"v"`: $\sqrt{\bar\alpha}\,\varepsilon - \sqrt{1 - \bar\alpha}\,x_0$, where $\bar\alpha = 1/(1 + \sigma^2)$.
#
# **3a.** `target(prediction, x0, sigma, noise)`: what ought to be answered. `denoised_from(prediction, answer, x,
# sigma)`: the denoised image that an answer says. `loss_weight(prediction, sigma)`, (B,): how much a squared error of
# the denoised image weighs in the squared error of the answer.
#
# **3b.** `p_losses(network, prediction, x0, sigma, noise, label)`: the mean squared error of each image's answer, (B,),
# by one call `network(x, noise_level, label)` of the things above.
#
# **3c.** For guidance (Task 5) a network must also do without a class. `drop_labels(label, uniforms, share, null)`:
# labels whose number from `uniforms` (B,) is below `share` give way to `null`.
#
# **3d.** Samples are better with averaged weights. `update_average(average, weights, decay)`: in place, each tensor
# becomes `decay` times itself plus 1 − `decay` times the weight of its place, be it trained or frozen, and tracks no
# gradient.
#
# **3e.** `train_step(...)`: one step on a batch. The loss is the mean of `p_losses`; clear gradients first,
# since there may be some from before; let `optimizer` step; the average, a tensor for each of `network.parameters()` in
# their order, takes them in *after* the step. (The optimizer may have only some of them, in an order of its own.)
# Return the loss, as a number that keeps no graph. It calls the network once.
#
# **Size:** about 7, 7, 4, 3, 1, 3 and 6 lines. **Cost:** a forward and a backward pass, 3 times the FLOPs of an
# evaluation.


# %% nbgrader={"solution": true, "grade_id": "task-3-loss"}
#| export
def target(prediction: str, x0: torch.Tensor, sigma: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """What a network ought to answer for x0 with noise, both (B, ...), of levels sigma (B,). About 7 lines."""
    ### BEGIN SOLUTION
    if prediction == "epsilon":
        return noise
    if prediction == "x0":
        return x0
    level = per_image(sigma, x0)
    return (noise - level * x0) / (1 + level**2).sqrt()
    ### END SOLUTION


def denoised_from(prediction: str, answer: torch.Tensor, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """The denoised images (B, ...) that an answer (B, ...) to x (B, ...) at levels sigma (B,) says. About 7 lines."""
    ### BEGIN SOLUTION
    level = per_image(sigma, x)
    if prediction == "epsilon":
        return x - level * answer
    if prediction == "x0":
        return answer
    length = (1 + level**2).sqrt()
    return (x / length - level * answer) / length
    ### END SOLUTION


def loss_weight(prediction: str, sigma: torch.Tensor) -> torch.Tensor:
    """Weight of the denoised images' squared error in the answers', at levels sigma (B,): (B,). About 4 lines."""
    ### BEGIN SOLUTION
    if prediction == "x0":
        return torch.ones_like(sigma)
    return 1 / sigma**2 + (prediction == "v")
    ### END SOLUTION


def p_losses(
    network: torch.nn.Module,
    prediction: str,
    x0: torch.Tensor,
    sigma: torch.Tensor,
    noise: torch.Tensor,
    label: torch.Tensor | None,
) -> torch.Tensor:
    """Mean squared error of each answer about x0 (B, ...) with noise of levels sigma (B,): (B,). About 3 lines."""
    ### BEGIN SOLUTION
    x = q_sample(x0, sigma, noise) / per_image((1 + sigma**2).sqrt(), x0)
    answer = network(x, (sigma.log() / 4).to(x), label)
    return (answer - target(prediction, x0, sigma, noise)).square().flatten(1).mean(1)
    ### END SOLUTION


def drop_labels(label: torch.Tensor, uniforms: torch.Tensor, share: float, null: int) -> torch.Tensor:
    """Labels (B,), of which those with uniforms (B,) below `share` are `null`: (B,). About 1 line."""
    ### BEGIN SOLUTION
    return label.masked_fill(uniforms < share, null)
    ### END SOLUTION


def update_average(average: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], decay: float) -> None:
    """Let the average, tensor for tensor, take in the weights, in place. About 3 lines."""
    ### BEGIN SOLUTION
    with torch.no_grad():
        for mean, weight in zip(average, weights, strict=True):
            mean.mul_(decay).add_((1 - decay) * weight)
    ### END SOLUTION


def train_step(
    network: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Sequence[torch.Tensor],
    prediction: str,
    x0: torch.Tensor,
    sigma: torch.Tensor,
    noise: torch.Tensor,
    label: torch.Tensor | None,
    decay: float,
) -> float:
    """Train on x0 (B, ...) with noise of levels sigma (B,): the loss before the step. About 6 lines."""
    ### BEGIN SOLUTION
    loss = p_losses(network, prediction, x0, sigma, noise, label).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_average(average, list(network.parameters()), decay)
    return loss.item()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "predictions"}
check("predictions")

# %% nbgrader={"grade": true, "grade_id": "loss_weight"}
check("loss_weight")

# %% nbgrader={"grade": true, "grade_id": "p_losses"}
check("p_losses")

# %% nbgrader={"grade": true, "grade_id": "drop_labels"}
check("drop_labels")

# %% nbgrader={"grade": true, "grade_id": "update_average"}
check("update_average")

# %% nbgrader={"grade": true, "grade_id": "train_step"}
check("train_step")

# %% [markdown]
# **Train it.** scikit-learn's digits of 8 × 8 pixels, in [−1, 1], and a small network that answers with $v$. Levels are
# drawn log-normal, as EDM has them, and a tenth of the labels is dropped. Training takes some ten seconds.

# %%
from sklearn.datasets import load_digits

from mlsys_lab.widgets.progress import track

pixels, digits = load_digits(return_X_y=True)
images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
digits = torch.tensor(digits)
NULL = 10


class SmallNetwork(torch.nn.Module):
    """A residual MLP on pixels, shifted in each layer by what level and label say."""

    def __init__(self, pixels: int = 64, width: int = 192, layers: int = 3) -> None:
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(-1, 5))
        self.label = torch.nn.Embedding(NULL + 1, width)
        self.level = torch.nn.Linear(2 * len(self.frequencies), width)
        self.begin, self.end = torch.nn.Linear(pixels, width), torch.nn.Linear(width, pixels)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(2 * layers))

    def forward(self, x: torch.Tensor, noise: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Answer to x (B, 1, 8, 8), whose levels noise (B,) tells, of classes label (B,)."""
        angles = noise[:, None] * self.frequencies
        told = self.level(torch.cat([angles.sin(), angles.cos()], 1)) + self.label(label)
        h = self.begin(x.flatten(1))
        for inner, outer in zip(self.layers[::2], self.layers[1::2], strict=True):
            h = h + outer(torch.nn.functional.silu(inner(h + told)))
        return self.end(torch.nn.functional.silu(h)).view_as(x)


@torch.no_grad()
def model(x, sigma, label):
    """The trained network as a denoiser."""
    answer = network(x / per_image((1 + sigma**2).sqrt(), x), (sigma.log() / 4).to(x), label)
    return denoised_from("v", answer, x, sigma)


torch.manual_seed(0)
network = SmallNetwork()

# %%
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
average = [weight.detach().clone() for weight in network.parameters()]
losses = []
for _ in track(range(3000)):
    chosen = torch.randint(len(images), (128,))
    label = drop_labels(digits[chosen], torch.rand(128), share=0.1, null=NULL)
    sigma = (torch.randn(128, dtype=torch.float64) * 1.2 - 0.5).exp()
    noise = torch.randn(128, 1, 8, 8)
    losses.append(train_step(network, optimizer, average, "v", images[chosen], sigma, noise, label, decay=0.998))
with torch.no_grad():
    for weight, mean in zip(network.parameters(), average, strict=True):
        weight.copy_(mean)
first, last = (sum(some) / len(some) for some in (losses[:100], losses[-100:]))
print(f"loss {first:.2f} in the first hundred steps, {last:.2f} in the last")


# %% [markdown]
# ## Task 4 · Samplers
#
# *About 40 minutes.*
#
# A sampler is a pure step from one level to the next; whoever repeats it decides on the grid. Given x at level
# $\sigma$ and a clean image $x_0$, a cleaner one at level $\sigma' < \sigma$ can be drawn from a Gaussian with the mean
# and variance
#
# $$x_0 + \sqrt{\sigma'^2 - \tau^2}\;\frac{x - x_0}{\sigma}, \qquad \tau^2 = \eta^2\,\sigma'^2 \Big(1 -
# \frac{\sigma'^2}{\sigma^2}\Big).$$
#
# For every $\eta$ in [0, 1] x' has noise of level $\sigma'$, neither more nor less. $\eta = 1$ is **DDPM**, whose
# $\tau$ is, in its own scale, $\tilde\beta_t$, not $\beta_t$; $\eta = 0$ is **DDIM**, the same as Euler's step of the
# ODE.
#
# **4a.** `posterior(x0, x, sigma, sigma_next, eta)`: the mean, and the deviation $\tau$, a number.
#
# **4b.** `ddim_step(denoiser, x, sigma, sigma_next, noise, eta, label)`: a step by the posterior of the denoised image
# with $\tau$ times `noise`. To level 0 that leaves nothing but the denoised image.
#
# **4c.** `heun_step(denoiser, x, sigma, sigma_next, label)`: Euler's step, the slope where it ends, *at the level
# there*, and then from x along the mean of both. At level 0 there is no slope: the step to 0 is Euler's, of one call.
#
# **Size:** about 3, 3 and 7 lines. **Cost:** one call a step; Heun two, but one to level 0.


# %% nbgrader={"solution": true, "grade_id": "task-4-samplers"}
#| export
def posterior(
    x0: torch.Tensor, x: torch.Tensor, sigma: float, sigma_next: float, eta: float
) -> tuple[torch.Tensor, float]:
    """Mean (B, ...) and deviation of x at level `sigma_next`, given x at `sigma` and x0. About 3 lines."""
    ### BEGIN SOLUTION
    variance = eta**2 * sigma_next**2 * (1 - sigma_next**2 / sigma**2)
    mean = x0 + math.sqrt(sigma_next**2 - variance) / sigma * (x - x0)
    return mean, math.sqrt(variance)
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
    """Step x (B, ...) from level `sigma` to `sigma_next` with noise (B, ...): (B, ...). About 3 lines."""
    ### BEGIN SOLUTION
    denoised = denoiser(x, level_of(sigma, x), label)
    mean, deviation = posterior(denoised, x, sigma, sigma_next, eta)
    return mean + deviation * noise
    ### END SOLUTION


def heun_step(
    denoiser: Denoiser, x: torch.Tensor, sigma: float, sigma_next: float, label: torch.Tensor | None = None
) -> torch.Tensor:
    """Step x (B, ...) from level `sigma` to `sigma_next` by Heun's method: (B, ...). About 7 lines."""
    ### BEGIN SOLUTION
    here, there = level_of(sigma, x), level_of(sigma_next, x)
    first = slope(denoiser(x, here, label), x, here)
    ahead = x + (sigma_next - sigma) * first
    if sigma_next == 0:
        return ahead
    second = slope(denoiser(ahead, there, label), ahead, there)
    return x + (sigma_next - sigma) * (first + second) / 2
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "posterior"}
check("posterior")

# %% nbgrader={"grade": true, "grade_id": "ddim_step"}
check("ddim_step")

# %% nbgrader={"grade": true, "grade_id": "heun_step"}
check("heun_step")

# %% [markdown]
# Ask for the second slope at a wrong level, and a model of noise may forgive you: x − D is σ times its answer, whatever
# σ is, and the slope divides by the same σ. A model of $v$ does not.
#
# An exact law: for one Gaussian the ODE keeps each point at the same number of deviations from the mean, on every
# level. The last check walks your steps down to a known end, with S and with 2S steps. Twice the steps must leave about
# half the error with DDIM, and a quarter with Heun.

# %% nbgrader={"grade": true, "grade_id": "convergence"}
check("convergence")

# %% [markdown]
# **See it.** The mixture of Task 2: error against calls. And your digits.

# %%


def walk(step, x, grid):
    """Take a step from each level to the next."""
    for sigma, sigma_next in pairwise(grid.tolist()):
        x = step(x, sigma, sigma_next)
    return x


def ddim(x, sigma, sigma_next):
    """A step of DDIM on the mixture."""
    return ddim_step(exact, x, sigma, sigma_next, torch.zeros_like(x))


def heun(x, sigma, sigma_next):
    """A step of Heun on the mixture."""
    return heun_step(exact, x, sigma, sigma_next)


def draw(denoiser, label, steps=16, seed=0):
    """Digits (B, 1, 8, 8) of the classes in label (B,), by Heun's steps from one seed."""
    grid = edm_grid(steps, sigma_min=0.02, sigma_max=20)
    noise = torch.randn(len(label), 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return walk(lambda x, sigma, sigma_next: heun_step(denoiser, x, sigma, sigma_next, label), 20 * noise, grid)


def sheet(rows, alt):
    """Show rows of ten digits."""
    pixels = torch.cat([torch.cat(list(row[:, 0]), dim=1) for row in rows])
    figure = go.Figure(go.Heatmap(z=pixels.clamp(-1, 1).flip(0).tolist(), colorscale="gray_r", showscale=False))
    figure.update_layout(width=640, height=64 * len(rows) + 20, margin={"t": 10, "b": 10, "l": 10, "r": 10})
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    show(figure, alt=alt)


classes = torch.arange(10)

# %%
torch.manual_seed(2)
start = 80 * torch.randn(200, 2, dtype=torch.float64)
truth = walk(heun, start, edm_grid(400))
figure = go.Figure()
for name, step, evaluations in (("DDIM", ddim, lambda s: s), ("Heun", heun, lambda s: 2 * s - 1)):
    counts = [4, 8, 16, 32, 64, 128]
    errors = [(walk(step, start, edm_grid(s)) - truth).norm(dim=1).mean().item() for s in counts]
    print(f"{name}: {errors[-2] / errors[-1]:.1f} times less error with 128 steps than with 64")
    figure.add_scatter(x=[evaluations(s) for s in counts], y=errors, mode="lines+markers", name=name)
figure.update_xaxes(type="log", title="calls of the denoiser")
figure.update_yaxes(type="log", title="mean error")
figure.update_layout(margin_t=30)
show(figure, alt="Error against calls for DDIM and Heun: Heun's line falls twice as steeply")

sheet([draw(model, classes, seed=seed) for seed in range(3)], "Three rows of digits 0 to 9 that your model drew")

# %% [markdown]
# ## Task 5 · Guidance
#
# *About 25 minutes.*
#
# A network that was trained with dropped labels gives two guesses, $D_c$ with the class and $D_u$ without.
# **Classifier-free guidance** goes through the one and beyond: $D = D_u + s\,(D_c - D_u)$. Scale 1 is no guidance, 0
# leaves the class out. (Ho and Salimans write $(1 + w)\,\varepsilon_c - w\,\varepsilon_u$: what is $s$ then?) It helps
# most at middle levels (Kynkäänniemi et al. 2024), so it shall act from level `low` to `high`, both included.
#
# **Write** `guide(denoiser, x, sigma, label, scale, null, low, high)`: one denoised image for each of B, each with its
# own level, label and scale, (B,); `low` and `high` are two numbers, or both (B,). All guesses come from **one call**:
# on the B images with their labels, and once more, with label `null`, the G of them that guidance acts on: those
# inside the interval whose scale is not 1, however near it is. There may be none. The order within the call is yours.
#
# **Size:** about 8 lines. **Cost:** one call, of B + G images.


# %% nbgrader={"solution": true, "grade_id": "task-5-guidance"}
#| export
def guide(
    denoiser: Denoiser,
    x: torch.Tensor,
    sigma: torch.Tensor,
    label: torch.Tensor,
    scale: torch.Tensor,
    null: int,
    low: float | torch.Tensor = 0.0,
    high: float | torch.Tensor = math.inf,
) -> torch.Tensor:
    """Denoise x (B, ...) at levels sigma (B,), guided to label (B,) by scale (B,): (B, ...). About 8 lines."""
    ### BEGIN SOLUTION
    guided = ((sigma >= low) & (sigma <= high) & (scale != 1)).nonzero().flatten()  # (G,)
    labels = torch.cat([label, torch.full_like(label[guided], null)])
    both = denoiser(torch.cat([x, x[guided]]), torch.cat([sigma, sigma[guided]]), labels)
    denoised, without = both[: len(x)], both[len(x) :]
    further = without + per_image(scale[guided], without) * (denoised[guided] - without)
    return denoised.index_copy(0, guided, further)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "guide"}
check("guide")

# %% [markdown]
# **See it.** Scales 1, 2 and 4 from the same noise: what do the digits gain, and what do they lose?

# %%


def guided_by(scale):
    """The model, guided at all levels."""

    def denoise(x, sigma, label):
        return guide(model, x, sigma, label, torch.full_like(sigma, scale), NULL)

    return denoise


sheet([draw(guided_by(scale), classes, seed=4) for scale in (1.0, 2.0, 4.0)], "Digits by guidance of scale 1, 2 and 4")
same = torch.full((40,), 3)
for scale in (1.0, 2.0, 4.0):
    threes = draw(guided_by(scale), same).flatten(1)
    print(f"scale {scale:g}: 40 threes are {torch.pdist(threes).mean():.1f} apart, real ones", end=" ")
    print(f"{torch.pdist(images[digits == 3].flatten(1)).mean():.1f}")

# %% [markdown]
# ## Task 6 · Predict an image, then measure it
#
# *About 30 minutes.*
#
# A diffusion transformer (DiT) cuts an image of `size` × `size` into patches of `patch` × `patch`, T tokens of width D,
# and runs L blocks over them. Its matrix products, for one image:
#
# - patches into tokens: $T \cdot P^2 C \cdot D$ multiply-adds; tokens into patches of `out_channels`: as many with
#   these; C are `channels`, P is `patch`;
# - the level: 256 sines and cosines into D, and D into D, **once an image**;
# - the label and level's say in each block, six vectors, and two before the end: $(6L + 2)\,D^2$, **once an image**;
# - in each block: $4D^2$ a token for queries, keys, values and output; $8D^2$ a token for the MLP; $2 T^2 D$ for scores
#   and sums.
#
# Weights: each of these matrices but for scores and sums, which have none. (Biases and labels hardly count.) They are
# read once a step, however many images it has, and nothing else is counted; a multiply-add is two FLOPs.
#
# **6a.** `dit_work(config, images, element_bytes)`: FLOPs and bytes of a call over so many images, as integers.
#
# **6b.** `predict_step(config, images, machine, element_bytes)`: the seconds of the slower of the two, and which binds,
# `"compute"` or `"memory"` (`"memory"` if they tie; in the checks ties are exact in floats, too).
#
# **6c.** `least_batch(config, machine, element_bytes)`: the least number of images of which a call is bound by compute.
#
# **6d.** `predict_image_s(config, machine, steps, solver, guided, requests, element_bytes)`: the seconds until
# `requests` images are done together, down to level 0 in `steps` steps of `"ddim"` or `"heun"`. Guided, every call has
# each image twice.
#
# **Size:** about 9, 3, 4 and 3 lines. **Cost:** none; that is the point.


# %%
#| export
@dataclass(frozen=True)
class DiT:
    """Sizes of a diffusion transformer."""

    n_layers: int
    d_model: int
    size: int
    patch: int
    channels: int
    out_channels: int


@dataclass(frozen=True)
class Machine:
    """What a machine can do at best: FLOP/s, and bytes a second from memory."""

    flops_per_s: float
    bytes_per_s: float


# %% nbgrader={"solution": true, "grade_id": "task-6-cost"}
#| export
def dit_work(config: DiT, images: int, element_bytes: int = 2) -> tuple[int, int]:
    """FLOPs and least bytes of a call over so many images. About 9 lines."""
    ### BEGIN SOLUTION
    c, D, L = config, config.d_model, config.n_layers
    T = (c.size // c.patch) ** 2
    once = 256 * D + D * D + (6 * L + 2) * D * D
    each = c.patch**2 * (c.channels + c.out_channels) * D + 12 * L * D * D
    flops = 2 * images * (once + T * each + 2 * L * T * T * D)
    return flops, element_bytes * (once + each)
    ### END SOLUTION


def predict_step(config: DiT, images: int, machine: Machine, element_bytes: int = 2) -> tuple[float, str]:
    """Least seconds of a call over so many images, and what binds: "compute" or "memory". About 3 lines."""
    ### BEGIN SOLUTION
    flops, moved = dit_work(config, images, element_bytes)
    compute_s, memory_s = flops / machine.flops_per_s, moved / machine.bytes_per_s
    return max(compute_s, memory_s), "compute" if compute_s > memory_s else "memory"
    ### END SOLUTION


def least_batch(config: DiT, machine: Machine, element_bytes: int = 2) -> int:
    """Least number of images of which a call is bound by compute. About 4 lines."""
    ### BEGIN SOLUTION
    images = 1
    while predict_step(config, images, machine, element_bytes)[1] == "memory":
        images += 1
    return images
    ### END SOLUTION


def predict_image_s(
    config: DiT,
    machine: Machine,
    steps: int,
    solver: str = "ddim",
    guided: bool = False,
    requests: int = 1,
    element_bytes: int = 2,
) -> float:
    """Least seconds until so many requests, drawn together, are done. About 3 lines."""
    ### BEGIN SOLUTION
    calls = 2 * steps - 1 if solver == "heun" else steps
    images = 2 * requests if guided else requests
    return calls * predict_step(config, images, machine, element_bytes)[0]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "dit_work"}
check("dit_work")

# %% nbgrader={"grade": true, "grade_id": "predict_step"}
check("predict_step")

# %% nbgrader={"grade": true, "grade_id": "least_batch"}
check("least_batch")

# %% nbgrader={"grade": true, "grade_id": "predict_image"}
check("predict_image")

# %% [markdown]
# **Predict.** DiT-XL/2 in bf16 on a device of 989 TFLOP/s and 3.35 TB/s. From how many images on is a step bound by
# compute? And a step of decoding, by a language model of as many weights: from how many sequences?

# %%
guess = None  # images, sequences

XL, H100 = DiT(n_layers=28, d_model=1152, size=32, patch=2, channels=4, out_channels=8), Machine(989e12, 3.35e12)
flops, moved = dit_work(XL, 1)
print(f"a call of one image: {flops / 1e9:.0f} GFLOPs, {moved / 1e9:.2f} GB of weights: {flops / moved:.0f} FLOP/B")
print(f"DiT: from {least_batch(XL, H100)} images; decoding: from {math.ceil(H100.flops_per_s / H100.bytes_per_s)}")
for requests in (1, 4, 16):
    guided_s = predict_image_s(XL, H100, 50, guided=True, requests=requests)
    tokens_s = 256 * max(moved / H100.bytes_per_s, requests * moved / H100.flops_per_s)
    print(f"{requests:2} at once, ms each: {1e3 * guided_s / requests:5.1f} by 50 guided steps,", end=" ")
    print(f"{1e3 * tokens_s / requests:5.1f} by 256 tokens")
print("Write down your guess, too." if guess is None else f"yours: {guess}")

# %% [markdown]
# A weight that is read serves all tokens of an image, and there are 256 of them: a step of diffusion is like a prefill.
# A guided one is a batch of two already. A decoding step has one token a sequence, so only a crowd fills the machine.

# %% [markdown]
# **Measure.** This machine's two limits first, then calls of the course's own DiT, of a few sizes and batches.

# %%
from mlsys_lab.benchmark import compare
from mlsys_lab.diffusion.networks import DiT as Network
from mlsys_lab.flops.dit import DiTConfig

square, tall, vector = torch.randn(1024, 1024), torch.randn(4096, 4096), torch.randn(4096)
calls, works = {"product": lambda: square @ square, "read": lambda: tall @ vector}, {}


def prepare(config, images):
    """A call of a network of these sizes on so many images."""
    sizes = DiTConfig("ours", config.n_layers, config.d_model, 8, config.size, config.patch, config.channels, NULL)
    built = Network(sizes).requires_grad_(False)
    x, level = torch.randn(images, config.channels, config.size, config.size), torch.zeros(images)
    return lambda: built(x, level, torch.zeros(images, dtype=torch.int64))


for patch in (2, 8):
    for batch in (1, 4):
        sizes = DiT(n_layers=4, d_model=512, size=16, patch=patch, channels=4, out_channels=4)
        name = f"{(16 // patch) ** 2} tokens, batch {batch}"
        works[name], calls[name] = (sizes, batch), prepare(sizes, batch)
timings = compare(calls, samples=7, warmup=1).timings
here = Machine(2 * 1024**3 / timings["product"].p50_s, 4 * 4096**2 / timings["read"].p50_s)
print(f"this machine: {here.flops_per_s / 1e9:.0f} GFLOP/s, {here.bytes_per_s / 1e9:.1f} GB/s")
predicted = {name: predict_step(*work, here, element_bytes=4) for name, work in works.items()}
for name, (seconds, bound) in predicted.items():
    measured = timings[name].p50_s
    print(f"{name:20} {seconds * 1e3:6.1f} ms ({bound}), measured {measured * 1e3:6.1f} ms: {seconds / measured:.0%}")
times_ms = {"predicted": [1e3 * seconds for seconds, _ in predicted.values()]}
times_ms |= {"measured": [1e3 * timings[name].p50_s for name in works]}
figure = go.Figure([go.Bar(name=name, x=list(works), y=values) for name, values in times_ms.items()])
figure.update_layout(yaxis_title="ms a call", margin_t=30)
show(figure, alt="Milliseconds of four kinds of call, predicted by the bound and measured")

# %% [markdown]
# ## Task 7 · Requests that share calls
#
# *About 30 minutes.*
#
# Requests come with their own label, their own levels and their own guidance, and a network is told the level of each
# *image*. So one call can serve them all, each at its own step (**continuous batching**). A request needs no cache that
# grows: all that it keeps is its image and where it stands.
#
# **Write** `serve(denoiser, requests, null, slots)`: images of all requests, in their order, each as DDIM ($\eta = 0$)
# would draw it alone from `grid[0]` times its noise, guided as it asks. At most `slots` requests, at least one, are
# under way at a time. As long as any is left: while there is a free slot, the next request that waits gets it; then
# **one call**, by way of `guide`, takes each request under way one step further; a request that has reached the end of
# its grid leaves, and its slot is free for the next call. All noises have one shape, (...), and one dtype; each grid
# has at least one step. If nobody asks there is no call, and no image.
#
# **Size:** about 20 lines. **Cost:** as many calls as the fullest slot has steps, not as all requests together have.


# %%
#| export
@dataclass(frozen=True)
class Request:
    """An image asked for: noise (...), label, falling levels grid (S + 1,), guidance from level `low` to `high`."""

    noise: torch.Tensor
    label: int
    grid: torch.Tensor
    scale: float = 1.0
    low: float = 0.0
    high: float = math.inf


# %% nbgrader={"solution": true, "grade_id": "task-7-serve"}
#| export
def serve(denoiser: Denoiser, requests: Sequence[Request], null: int, slots: int) -> list[torch.Tensor]:
    """Images (...) of all requests, drawn by calls that up to `slots` of them share. About 20 lines."""
    ### BEGIN SOLUTION
    waiting, running = deque(range(len(requests))), []
    images = [request.grid[0].to(request.noise) * request.noise for request in requests]
    step = [0] * len(requests)

    def of_all(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.popleft())
        now = [requests[i] for i in running]
        x = torch.stack([images[i] for i in running])
        sigma = of_all([float(requests[i].grid[step[i]]) for i in running])
        sigma_next = of_all([float(requests[i].grid[step[i] + 1]) for i in running])
        scale, low, high = (of_all([getattr(one, name) for one in now]) for name in ("scale", "low", "high"))
        denoised = guide(denoiser, x, sigma, torch.tensor([one.label for one in now]), scale, null, low, high)
        x = denoised + per_image(sigma_next / sigma, x) * (x - denoised)
        for i, image in zip(running, x, strict=True):
            images[i], step[i] = image, step[i] + 1
        running = [i for i in running if step[i] < len(requests[i].grid) - 1]
    return images
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "serve"}
check("serve")

# %% [markdown]
# **See it.** Ten requests of different lengths, half of them guided, on your digits: together and alone. How many calls
# does each way make, and do the images agree?

# %%
calls_made = []


def counted(x, sigma, label):
    """The model; notes how many images each call has."""
    calls_made.append(len(x))
    return model(x, sigma, label)


torch.manual_seed(3)
asked = [
    Request(torch.randn(1, 8, 8), digit, edm_grid(4 + 20 * (7 * digit % 10) // 9, 0.02, 20.0), 1.0 + digit % 2)
    for digit in range(10)
]
together = torch.stack(serve(counted, asked, NULL, slots=4))
shared, calls_made = calls_made, []
alone = torch.stack([serve(counted, [request], NULL, slots=1)[0] for request in asked])
print(f"{len(shared)} calls together, {len(calls_made)} alone; images differ by {(together - alone).abs().max():.0e}")
sheet([together, alone], "Digits 0 to 9, drawn together above and one by one below: the same")
figure = go.Figure([go.Bar(y=shared)])
figure.update_layout(xaxis_title="call", yaxis_title="images in it", margin_t=30)
show(figure, alt="Images in each shared call: up to eight, fewer once the last requests are under way")

# %% [markdown]
# ## Answer for yourself
#
# - A network that was trained on 1,000 levels is sampled at 20 others. Why may it be?
# - Your DDIM and a rectified flow's Euler step are one formula. Which scaling of x makes them look different?
# - Guidance at all levels, or at the middle ones only: what does a request cost in each case?
# - Requests that share a call wait for the slowest image of it. Why does that matter less than for prompts and decode?
# - Halve the patch: what becomes of the FLOPs, the weights, and the batch from which a call is bound by compute?
#
# When all checks pass, save the notebook and run `mlsys-lab check diffusion` in a terminal.
