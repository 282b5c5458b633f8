# %% [markdown]
# # Lab 16 · Capstone: one model, trained and served on your own stack
#
# Meta pretrained Llama 3 405B with 3.8 × 10²⁵ FLOPs on 16,384 H100s, each of which sustained about 400 TFLOP/s: 67 days
# of computing. A run of that size is planned on paper first. FLOPs, bytes and messages are known before the first step,
# and every second that the plan does not explain is a bug or a bottleneck. In this lab you connect what you built in
# the labs before into one stack, train a small model on it and serve it, and predict every cost before you run.
#
# ```text
#             Tasks 1, 2                 Task 3                          Task 5
#  lab 01 ──► GPT on your engine ──────► train_rank on 4 ranks ──► weights ──► BlockCache ──► answers to many
#             (operations, decoder)         ▲            ▲                     ▲        ▲     requests at once
#                                         lab 07       lab 08                lab 10   lab 11
#                                       collectives  sharded optimizer      extend   scheduler
#
#  Task 4   labs 05, 07, 10 ──► prediction sheet:  FLOPs, bytes, messages, seconds   =?   counts and clock of the run
#  Task 6   swap one layer: predict the gain, then measure it;  waterfall from the bound to the measurement
# ```
#
# **You will build**
#
# - **Part 1, a model that trains** (about 145 minutes)
#   1. operations that the engine records as a whole (`35 min`);
#   2. a LLaMA-like decoder on your engine, with the weights of the course's `Transformer` (`45 min`);
#   3. training on four ranks, which stops and resumes (`65 min`).
# - **Part 2, what it costs** (about 125 minutes)
#
#   4. the prediction sheet (`70 min`);
#   5. a KV cache between your attention and your scheduler (`25 min`);
#   6. a swapped layer, and the waterfall of the report (`30 min`).
#
# Each part is complete in itself, so the end of Part 1 is a good place to stop for the day.
#
# **At the end you can answer**
#
# - Which costs of a training run are known exactly before it starts, and which only roughly?
# - What connects an engine, collectives, a KV cache and a scheduler so that any of them can be replaced?
# - Where did the time go that no calculation predicted?
#
# **Time:** about 270 minutes. **Points:** 100. **You need:** [lab 01](01-autograd.ipynb) (record, VJPs),
# [lab 05](05-transformer-arithmetic.ipynb) (FLOPs and bytes), [lab 07](07-collectives.ipynb) and
# [lab 08](08-data-parallel.ipynb) (ranks, sharded optimizer), [lab 10](10-kv-cache.ipynb) and
# [lab 11](11-serving.ipynb) (cache, scheduler). Background: chapter 18, *Your own stack*.
#
# **Readings:** *The Ultra-Scale Playbook: Training LLMs on GPU Clusters* (`ultrascale-playbook`), *karpathy/llm.c*
# (`llm-c`).
#
# **How it works.** Replace each line that raises `NotImplementedError`, run the cell, paste the example into a new cell
# to see whether it does what the text says, then run the `check` below. Cells that start with `#| export` are what is
# graded. All checks but `train_budget` supply correct versions of what earlier tasks build and of the other labs, so a
# mistake in one task costs no points in the next. Names are those of the course's package, `mlsys_lab.capstone`.
#
# **Letters:** B sequences of a batch, T tokens of a sequence, R = B·T rows, D hidden size, N query heads, K KV heads, G
# = N/K, H head dimension, V vocabulary, S tokens of a sequence with the cached ones, p ranks.

# %%
import torch

from mlsys_lab.capstone import load_stack
from mlsys_lab.checks import lab

torch.set_num_threads(1)  # the ranks take turns, and the matrices are small
check = lab("capstone")
stack = load_stack(notebook=globals())
print(stack.report())

# %% [markdown]
# This is your **stack**: one line for each layer, with the lab that it comes from. A layer is yours if `mlsys-lab
# check` has accepted it. Otherwise the solved lab stands in, so you can start with any number of labs done; a layer
# that is accepted later takes its place when you run this cell again. `stack.engine` has the names of lab 01 (`Tensor`,
# `record`, `cross_entropy`, `no_grad`), `stack.collectives` those of lab 07, and so on.
#
# The layer `capstone` is this notebook. Its functions get the other layers as arguments (`engine`, `job.stack`,
# `stack`) and never import them: that is what makes a layer replaceable.

# %%
#| export
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from mlsys_lab.capstone.job import Calibration, Serving, State, TrainJob
from mlsys_lab.comm import Rank
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.models.positions import rotary_angles, rotate
from mlsys_lab.models.training import (
    BETAS,
    GRADIENT_NORM,
    WEIGHT_DECAY,
    Batches,
    learning_rate,
    windows,
)

Tensor = Any  # a Tensor of the stack's engine

# %% [markdown]
# ## Part 1 · A model that trains
#
# ## Task 1 · Operations recorded as a whole
#
# *About 35 minutes.*
#
# **Goal.** If your engine composes RMS norm from elementary operations, each of them leaves an array that stays until
# the backward pass. Write RMS norm, the causal softmax and SwiGLU's product as *one* recorded operation each: you
# supply the derivative, and the graph keeps what it needs and nothing else.
#
# `engine.record(data, (operand, vjp), ...)` makes the result of an operation, with an edge to each operand. The rotary
# position embedding is written out below. It rotates pairs of numbers; the VJP of a rotation by an angle is the
# rotation by the negative angle, which negates the sines. It keeps the angles and no array of its own.


# %%
#| export
def rotary(engine: Any, x: Tensor, angles: torch.Tensor) -> Tensor:
    """Rotary embedding: (..., T, H), angles (2, ..., T, H/2) -> (..., T, H)."""
    signs = torch.tensor([1.0, -1.0], dtype=angles.dtype)
    back = angles * signs.view(2, *[1] * (angles.ndim - 1))
    return engine.record(rotate(x.data, angles), (x, lambda g: rotate(g, back)))


# %% [markdown]
# **Interface**
#
# | | data of the result | edges to |
# |---|---|---|
# | `causal_softmax(engine, scores, scale)` | (…, T, T): each query's weights over keys up to itself | `scores` |
# | `rms_norm(engine, x, weight, eps)` | (R, D): $w \, x / \sqrt{\overline{x^2} + \varepsilon}$ | `x`, `weight` (D,) |
# | `silu_mul(engine, gate, up)` | $\text{gate} \cdot \sigma(\text{gate}) \cdot \text{up}$ | `gate`, `up` |
#
# Operands are `engine.Tensor`s, whose `data` are torch tensors; `gate` and `up` have one shape. `scale` and `eps` are
# floats.
#
# **Derive** the VJP of RMS norm. In one row let $r = (\overline{x^2} + \varepsilon)^{-1/2}$ and $n_i = x_i r$, so the
# result is $w_i n_i$. With $h_i = g_i w_i$ the gradient of $x_j$ is
#
# $$\sum_i h_i \frac{\partial n_i}{\partial x_j} = r\, h_j + \frac{\partial r}{\partial x_j} \sum_i h_i x_i.$$
#
# Work out $\partial r/\partial x_j$, and replace every $x$ in the second term by $n$. The powers of $r$ combine, the
# sum becomes a mean, and the result needs $x$, $r$ and $w$ only. (For the softmax, take $p_i$ for the weights of a row
# and $\partial p_i/\partial s_j = p_i([i = j] - p_j)$.)
#
# **Example**
#
# ```python
# from mlsys_lab import autograd as engine
# scores = engine.Tensor([[0.0, 9.0], [1.0, 1.0]], requires_grad=True)
# causal_softmax(engine, scores, 0.5).data.tolist()  # → [[1.0, 0.0], [0.5, 0.5]]
# x = engine.Tensor([[1.0, 7.0]], requires_grad=True)  # the mean of the squares is 25
# w = engine.Tensor([10.0, 20.0], requires_grad=True)
# y = rms_norm(engine, x, w, 0.0)
# [round(number, 3) for number in y.data[0].tolist()]  # → [2.0, 28.0]
# y.sum().backward()
# [round(number, 3) for number in x.grad[0].tolist()]  # → [1.4, -0.2]
# [round(number, 3) for number in w.grad.tolist()]  # → [0.2, 1.4]
# round(silu_mul(engine, x, x).data[0, 0].item(), 3)  # → 0.731
# ```
#
# **Requirements**
#
# - Each function calls `engine.record` once.
# - Besides the result and the operands, the graph keeps no array as large as an operand. What else a VJP needs, it
#   computes again. (A number per row, such as $r$, may be kept.)
# - A VJP returns the gradient of its operand, in its shape and dtype. All of them work in float32 and float64.
# - The weights of later keys are exactly 0, and scores of any size give finite weights.
# - The operands' data stay as they are.
#
# **Size:** about 7, 7 and 7 lines.
#
# <details><summary>Details</summary>
#
# - `scores` may have any number of leading axes, and T may be 1.
# - `torch.Tensor.softmax` subtracts the largest score. `masked_fill_` overwrites an array that you have just made.
# - The gradient of `weight` adds up over rows.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-1-operations"}
#| export
def causal_softmax(engine: Any, scores: Tensor, scale: float) -> Tensor:
    """Softmax of scale * scores (..., T, T), each query over itself and the past.

    About 7 lines.
    """
    ### BEGIN SOLUTION
    T = scores.data.shape[-1]
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    weights = (scores.data * scale).masked_fill_(future, -math.inf).softmax(-1)

    def vjp(g: torch.Tensor) -> torch.Tensor:
        weighted = g * weights
        return scale * (weighted - weights * weighted.sum(-1, keepdim=True))

    return engine.record(weights, (scores, vjp))
    ### END SOLUTION


def rms_norm(engine: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / √(mean of squares + eps) · weight: (R, D), (D,) -> (R, D). About 7 lines."""
    ### BEGIN SOLUTION
    inverse = (x.data.square().mean(-1, keepdim=True) + eps).rsqrt()  # (R, 1)

    def vjp(g: torch.Tensor) -> torch.Tensor:
        normed, g = x.data * inverse, g * weight.data
        return inverse * (g - normed * (g * normed).mean(-1, keepdim=True))

    def weight_vjp(g: torch.Tensor) -> torch.Tensor:
        return (g * x.data * inverse).sum(0)

    return engine.record(x.data * inverse * weight.data, (x, vjp), (weight, weight_vjp))
    ### END SOLUTION


def silu_mul(engine: Any, gate: Tensor, up: Tensor) -> Tensor:
    """gate · sigmoid(gate) · up, elementwise. About 7 lines."""

    ### BEGIN SOLUTION
    def gate_vjp(g: torch.Tensor) -> torch.Tensor:
        s = gate.data.sigmoid()
        return g * up.data * s * (1 + gate.data * (1 - s))

    def up_vjp(g: torch.Tensor) -> torch.Tensor:
        return g * gate.data * gate.data.sigmoid()

    out = gate.data * gate.data.sigmoid() * up.data
    return engine.record(out, (gate, gate_vjp), (up, up_vjp))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "operations"}
check("operations")

# %% [markdown]
# **Predict, then measure.** The next cell composes the same three operations from elementary ones of lab 01. SwiGLU's
# product is `gate * ((gate * -1.0).exp() + 1.0) ** -1.0 * up` there, on the same operands. How many times the bytes of
# yours does the graph of the composed version keep?

# %%
guess = None  # times as many bytes

# %%
import plotly.graph_objects as go

from mlsys_lab.benchmark.memory import track_memory
from mlsys_lab.widgets import show

tensor, rows = stack.engine.Tensor, 1024
gate, up = (tensor(torch.randn(rows, 64), requires_grad=True) for _ in range(2))
weight = tensor(torch.ones(64), requires_grad=True)
scores = tensor(torch.randn(4, 128, 128), requires_grad=True)
future = torch.full((128, 128), -math.inf).triu(1)


def composed_softmax():
    """Exponentials over their sum."""
    powers = (scores * 0.125 + future).exp()
    return powers * powers.sum(-1, keepdims=True) ** -1.0


composed = {
    "causal_softmax": composed_softmax,
    "rms_norm": lambda: (
        gate * ((gate * gate).mean(-1, keepdims=True) + 1e-5) ** -0.5 * weight
    ),
    "silu_mul": lambda: gate * ((gate * -1.0).exp() + 1.0) ** -1.0 * up,
}
whole = {
    "causal_softmax": lambda: causal_softmax(stack.engine, scores, 0.125),
    "rms_norm": lambda: rms_norm(stack.engine, gate, weight, 1e-5),
    "silu_mul": lambda: silu_mul(stack.engine, gate, up),
}


def kept_bytes(operation):
    """Bytes that are alive once the operation has run and its result is held."""
    with track_memory() as memory:
        result = operation()
        kept = memory.current_bytes
    return kept, result


figure, ratios = go.Figure(), {}
for label, versions in (("composed", composed), ("whole", whole)):
    kept = {name: kept_bytes(operation)[0] for name, operation in versions.items()}
    figure.add_bar(
        x=list(kept), y=[number / 1e6 for number in kept.values()], name=label
    )
    ratios[label] = kept["silu_mul"]
for name, operation in whole.items():
    error = (kept_bytes(operation)[1].data - composed[name]().data).abs().max()
    print(f"{name:15} differs by {error:.0e}")
figure.update_layout(yaxis_title="MB that the graph keeps", height=320, margin_t=30)
show(figure, alt="Megabytes kept by each operation: composed several times the whole")
check.predict(
    guess, ratios["composed"] / ratios["whole"], "times the bytes of yours", within=0.05
)

# %% [markdown]
# Each elementary operation returns an array of its own, and each of them stays alive because some VJP refers to it. The
# whole operation returns one array; its VJP computes the sigmoid a second time. That is activation checkpointing on the
# scale of a single operation, and what a fused kernel (lab 04) does on a GPU: the intermediate arrays never reach
# memory.
#
# ## Task 2 · The decoder
#
# *About 45 minutes.*
#
# **Goal.** Write a LLaMA-like decoder on your engine, with the weights of the course's `Transformer` under the same
# names. Then no step of the stack ever renames or converts a weight: what your ranks train, your server loads.

# %%
from mlsys_lab.models import Transformer

CONFIG = TransformerConfig(
    "small",
    n_layers=2,
    d_model=128,
    n_heads=4,
    n_kv_heads=2,
    d_ff=320,
    vocab_size=256,  # a token is a byte
    context=128,
)
for name, one in Transformer(CONFIG).named_parameters():
    if "blocks.1" not in name:
        print(f"{name:34} {tuple(one.shape)}")

# %% [markdown]
# A linear layer's weight is (outputs, inputs). `blocks.1` has the names of `blocks.0`. A model with `config.tied` has
# no `head.weight`: the embedding is its head.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `GPT(engine, config, weights)`, given | the model; `gpt.parameters` are its leaves (`engine.Tensor`) by name |
# | `gpt.linear(name, x)`, given | (R, O): product of x (R, I) with the weight (O, I) of that name |
# | `gpt.norm(name, x)`, given | (R, D): RMS norm by the weight (D,) of that name |
# | `gpt.attention(block, x, B, angles)` | (R, D): causal attention of B sequences of T tokens, R = B·T |
# | `gpt.mlp(block, x)` | (R, D): SwiGLU, $\text{down}(\text{silu}(\text{gate}(x)) \cdot \text{up}(x))$ |
# | `gpt(tokens)` | (R, V): logits of the next token at each position of ids (B, T) |
# | `gpt.loss(sequences)` | scalar: mean cross-entropy of ids (B, T + 1), each token from those before it |
#
# `block` is a prefix such as `"blocks.0"`. A block is $x + \text{attention}(\text{norm}(x))$, then $x +
# \text{mlp}(\text{norm}(x))$; after the last block come the norm `"norm"` and the head. `rotary_angles(positions, H,
# theta, like)` of positions (T,) gives the angles (2, T, H/2) that `rotary` takes, in the dtype of `like`.
#
# **Grouped heads.** Query head i uses KV head i // G. So the N·H outputs of the query projection are (K, G, H) in this
# order, those of keys and values (K, 1, H), and the axis of size 1 broadcasts: one product serves all heads.
#
# **Example** (all weights are 0.1 but those of the embedding and the head)
#
# ```python
# from mlsys_lab import autograd as engine
# from mlsys_lab.models import Transformer
# sizes = {"d_model": 4, "n_heads": 2, "n_kv_heads": 1, "d_ff": 6, "vocab_size": 5, "context": 8}
# tiny = TransformerConfig("tiny", n_layers=1, **sizes)
# weights = {name: torch.full(one.shape, 0.1) for name, one in Transformer(tiny).named_parameters()}
# weights["embedding.weight"] = torch.arange(20.0).reshape(5, 4)
# weights["head.weight"] = torch.arange(20.0).reshape(5, 4) / 10
# gpt = GPT(engine, tiny, weights)
# logits = gpt(torch.tensor([[1, 2, 3], [4, 0, 0]])).data
# logits.shape, [round(number, 2) for number in logits[0, :3].tolist()]  # → (torch.Size([6, 5]), [0.07, 0.22, 0.38])
# loss = gpt.loss(torch.tensor([[1, 2, 3, 4]]))
# round(loss.item(), 4)  # → 1.4751
# loss.backward()
# round(gpt.parameters["head.weight"].grad.abs().sum().item(), 3)  # → 0.244
# ```
#
# **Requirements**
#
# - Attention uses your `rotary` on queries and keys and your `causal_softmax` with the scale $1/\sqrt H$.
# - Sequences of a batch do not see each other. T may be anything from 1 to `config.context`.
# - Any `config` with grouped heads, a `head_dim` other than D/N, and tied or untied embeddings works.
# - Use the operations of the engine only, so that every leaf gets its gradient: `@` (broadcasting), `.T` (swaps the
#   last two axes), `reshape`, `permute`, `+`, `[ids]`, and `engine.cross_entropy(logits, targets)`.
# - The loss of B sequences is the mean over their B·T tokens.
#
# **Size:** about 15, 2, 11 and 3 lines.
#
# <details><summary>Details</summary>
#
# - `tokens` are int64. Ids may occur several times: their rows of the embedding get the sum of the gradients.
# - `len(x.data) // B` is T.
# - The config's `norm_eps` and `rope_theta` differ between checks.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-2-decoder"}
#| export
class GPT:
    """Decoder on an engine; `parameters` are its leaves, by the weights' names."""

    def __init__(
        self,
        engine: Any,
        config: TransformerConfig,
        weights: Mapping[str, torch.Tensor],
    ) -> None:
        self.engine, self.config = engine, config
        self.parameters: dict[str, Tensor] = {
            name: engine.Tensor(weight.detach(), requires_grad=True)
            for name, weight in weights.items()
        }

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Product with a weight (O, I): (R, I) -> (R, O)."""
        return x @ self.parameters[f"{name}.weight"].T

    def norm(self, name: str, x: Tensor) -> Tensor:
        """RMS norm by a weight (D,): (R, D) -> (R, D)."""
        weight = self.parameters[f"{name}.weight"]
        return rms_norm(self.engine, x, weight, self.config.norm_eps)

    def attention(self, block: str, x: Tensor, B: int, angles: torch.Tensor) -> Tensor:
        """Causal grouped-query attention of B sequences: (B·T, D) -> (B·T, D).

        About 15 lines.
        """
        ### BEGIN SOLUTION
        c = self.config
        K, G, H, T = (
            c.n_kv_heads,
            c.n_heads // c.n_kv_heads,
            c.head_dim,
            len(x.data) // B,
        )

        def heads(name: str, groups: int) -> Tensor:
            projected = self.linear(f"{block}.attention.{name}", x)
            return projected.reshape(B, T, K, groups, H).permute(0, 2, 3, 1, 4)

        q = rotary(self.engine, heads("query", G), angles)  # (B, K, G, T, H)
        k = rotary(self.engine, heads("key", 1), angles)  # (B, K, 1, T, H)
        weights = causal_softmax(self.engine, q @ k.T, H**-0.5)  # (B, K, G, T, T)
        out = (weights @ heads("value", 1)).permute(0, 3, 1, 2, 4)  # (B, T, K, G, H)
        return self.linear(f"{block}.attention.out", out.reshape(B * T, K * G * H))
        ### END SOLUTION

    def mlp(self, block: str, x: Tensor) -> Tensor:
        """SwiGLU: down(silu(gate(x)) · up(x)), (B·T, D) -> (B·T, D). About 2 lines."""
        ### BEGIN SOLUTION
        gate, up = (self.linear(f"{block}.mlp.{name}", x) for name in ("gate", "up"))
        return self.linear(f"{block}.mlp.down", silu_mul(self.engine, gate, up))
        ### END SOLUTION

    def __call__(self, tokens: torch.Tensor) -> Tensor:
        """Logits of the next token at each position: ids (B, T) -> (B·T, V).

        About 11 lines.
        """
        ### BEGIN SOLUTION
        (B, T), c = tokens.shape, self.config
        embedding = self.parameters["embedding.weight"]
        positions = torch.arange(T)
        angles = rotary_angles(positions, c.head_dim, c.rope_theta, embedding.data)
        x = embedding[tokens.reshape(-1)]  # (B·T, D)
        for layer in range(c.n_layers):
            block = f"blocks.{layer}"
            normed = self.norm(f"{block}.attention_norm", x)
            x = x + self.attention(block, normed, B, angles)
            x = x + self.mlp(block, self.norm(f"{block}.mlp_norm", x))
        return self.linear("embedding" if c.tied else "head", self.norm("norm", x))
        ### END SOLUTION

    def loss(self, sequences: torch.Tensor) -> Tensor:
        """Mean next-token cross-entropy of ids (B, T + 1), in nats per token.

        About 3 lines.
        """
        ### BEGIN SOLUTION
        logits = self(sequences[:, :-1])
        loss: Tensor = self.engine.cross_entropy(logits, sequences[:, 1:].reshape(-1))
        return loss
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "decoder"}
check("decoder")

# %% nbgrader={"grade": true, "grade_id": "gradients"}
check("gradients")

# %% [markdown]
# **See it.** One file of weights, three ways to the same logits: the course's `Transformer`, your `GPT` on your engine,
# and the `Transformer` whose attention is lab 10's `extend`, token by token through a KV cache. The next cell saves
# random weights in float64 and reports the largest difference to the `Transformer`.

# %%
import tempfile
from pathlib import Path

from mlsys_lab.capstone.logits import logit_errors
from mlsys_lab.models.saving import save

torch.manual_seed(0)
model = Transformer(CONFIG).double()
for one in model.parameters():
    one.data.normal_(std=0.3)
with tempfile.TemporaryDirectory() as folder:
    save(model, Path(folder), dtype=torch.float64)
    files = sorted(path.name for path in Path(folder).iterdir())
    errors = logit_errors(stack, Path(folder), [7, 0, 255, 7, 9, 101])
print(f"{', '.join(files)}: the logits differ by")
print(f"  {errors.engine:.0e} on the engine, {errors.cache:.0e} through the KV cache")

# %% [markdown]
# Differences of about 10⁻¹⁴ are rounding. Every port of a model to another framework has to pass this test first; where
# it fails, compare the results layer by layer.
#
# ## Task 3 · Train on four ranks
#
# *About 65 minutes.*
#
# **Goal.** Write what each rank does in a training run: your `GPT` computes, lab 07's collectives send, lab 08's
# `ShardedOptimizer` updates. The steps are those of `mlsys_lab.models.training.train`, a loop of one process; four
# ranks must produce its losses, whatever the number of sequences of each rank, and continue after a stop as if nothing
# had happened.
#
# **Interface.** `train_rank(rank, job)` returns `(losses, weights, state)`:
#
# | | |
# |---|---|
# | `losses` | floats: mean loss over the tokens of **all** ranks, before the update, of each step of this call |
# | `weights` | the trained weights by name, torch tensors |
# | `state` | what this rank needs to resume: lab 08's `save_state(optimizer, position)` after the last step |
#
# A `job` has `stack`, `config`, `weights` (by name; they are shared with other ranks), `ids` (D,), `train` (a
# `TrainConfig` with `batch_size`, `seq_len`, `steps`, `lr`, `seed`), `state` (from an earlier stop, or `None`) and
# `until`: the step after which this call stops. Steps count from 1.
#
# | given | |
# |---|---|
# | `Batches(len(job.ids), batch_size, seq_len, seed)` | iterator over (B,): start positions of a step's whole batch |
# | `windows(ids, starts, seq_len)` | the sequences of a step, (B, T + 1) |
# | `learning_rate(step, steps, lr)` | learning rate of a step |
# | `BETAS`, `WEIGHT_DECAY` | options `betas` and `weight_decay` of `torch.optim.AdamW`, next to `lr` |
# | `GRADIENT_NORM` | to which `clip_grad_norm` clips |
#
# **Two kinds of parameters.** Your engine's leaves have `data` and `grad`. Lab 08's optimizer takes torch parameters.
# So make an `nn.Parameter` of each leaf's `data`, hand the gradients over after each backward pass, and make sure
# before each forward pass that the leaves see the new weights: an optimizer may overwrite a parameter's memory or
# assign new `data`.
#
# **Derive** the loss to report. A rank multiplies its mean loss by the weight of lab 08's `loss_weights`, $w_r = t_r p
# / \sum_s t_s$ for $t_r$ tokens. After one all-reduce of the weighted losses, what must be done to their sum to get the
# mean over all tokens? Why would the sum of the *unweighted* losses be wrong for 3 sequences on 2 ranks?
#
# **Example**
#
# ```python
# import numpy as np
# from mlsys_lab.comm import run
# from mlsys_lab.models.training import new_model
# stack = load_stack(notebook=globals())
# sizes = {"d_model": 8, "n_heads": 2, "d_ff": 16, "vocab_size": 10, "context": 8}
# tiny = TransformerConfig("tiny", n_layers=1, **sizes)
# weights = {name: one.detach() for name, one in new_model(tiny, seed=0).named_parameters()}
# plan = TrainConfig(batch_size=3, seq_len=8, steps=30, lr=0.1)
# job = TrainJob(stack, tiny, weights, np.arange(100) % 10, plan, None, until=30)
# alone = run(train_rank, [job]).results[0][0]
# two_ranks = run(train_rank, [job, job]).results
# losses, new_weights, state = two_ranks[1]
# len(losses), losses == two_ranks[0][0], losses[-1] < 0.1 * losses[0]  # → (30, True, True)
# max(abs(one - two) for one, two in zip(alone, losses)) < 1e-3  # → True
# int(state["position"]), sorted(new_weights) == sorted(weights)  # → (30, True)
# ```
#
# **Requirements**
#
# - In each step a rank takes its part of the batch, as `tensor_split` divides it among the ranks in order.
# - Gradients are those of the mean loss over all tokens; they are reduced, clipped by the norm over all ranks, and
#   applied with the learning rate of the step.
# - Communicate through `job.stack` only: `loss_weights`, `ShardedOptimizer`, `clip_grad_norm` of `data_parallel`, and
#   one all-reduce of the loss by `collectives`. Nothing but the chunks of gradients and weights and three single
#   numbers is sent in a step.
# - With a `state`, `load_state(optimizer, state)` returns the number of steps that were taken. Draw their batches and
#   skip them: the run continues with the batch that would have come next.
# - `job.weights` stay as they are.
#
# **Size:** about 37 lines.
#
# <details><summary>Details</summary>
#
# - The learning rate and the shards to clip are in `optimizer.optimizer.param_groups`, each a dictionary with `"lr"`
#   and `"params"`.
# - A leaf's `grad` must be `None` before the next backward pass, or gradients add up.
# - If the data-parallel layer has no `save_state` (the course's package has none), `state` is `None`.
# - If `state` is already at `until`, no step is taken; the losses are empty and the state is the same.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-3-train"}
#| export
def train_rank(
    rank: Rank, job: TrainJob
) -> tuple[list[float], dict[str, torch.Tensor], State | None]:
    """Train as one rank: mean losses of all ranks, weights, and this rank's state.

    About 37 lines.
    """
    ### BEGIN SOLUTION
    layer, train = job.stack.data_parallel, job.train
    copies = {name: one.detach().clone() for name, one in job.weights.items()}
    model = GPT(job.stack.engine, job.config, copies)
    leaves = list(model.parameters.values())
    parameters = [nn.Parameter(leaf.data) for leaf in leaves]
    options = {"lr": train.lr, "betas": BETAS, "weight_decay": WEIGHT_DECAY}
    optimizer = layer.ShardedOptimizer(parameters, torch.optim.AdamW, rank, **options)
    groups = optimizer.optimizer.param_groups
    shards = [shard for group in groups for shard in group["params"]]
    done = layer.load_state(optimizer, job.state) if job.state else 0

    def share_weights() -> None:
        for leaf, parameter in zip(leaves, parameters, strict=True):
            leaf.data = parameter.data

    losses = []
    batches = Batches(len(job.ids), train.batch_size, train.seq_len, train.seed)
    for step, starts in zip(range(1, job.until + 1), batches, strict=False):
        if step <= done:
            continue
        share_weights()
        sequences = windows(job.ids, starts, train.seq_len)
        own = sequences.tensor_split(rank.size)[rank.rank]
        (weight,) = layer.loss_weights([own[:, 1:].numel()], rank)
        loss = model.loss(own) * weight  # the ranks' mean is that of all tokens
        loss.backward()
        for leaf, parameter in zip(leaves, parameters, strict=True):
            parameter.grad, leaf.grad = leaf.grad, None
        optimizer.reduce_gradients()
        layer.clip_grad_norm(shards, GRADIENT_NORM, rank)
        for group in groups:
            group["lr"] = learning_rate(step, train.steps, train.lr)
        optimizer.step()
        total = job.stack.collectives.all_reduce(rank, loss.data.reshape(1))
        losses.append(total.item() / rank.size)
    share_weights()
    has_states = hasattr(layer, "save_state")  # the package's layer has none
    state = layer.save_state(optimizer, max(done, job.until)) if has_states else None
    return losses, {name: one.data for name, one in model.parameters.items()}, state
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "train_steps"}
check("train_steps")

# %% nbgrader={"grade": true, "grade_id": "resume"}
check("resume")

# %% [markdown]
# The last check of this task trains your own decoder on four ranks, on text that the judge generates. The judge routes
# and counts the messages, and it evaluates the weights that rank 0 returns with its own forward pass.

# %% nbgrader={"grade": true, "grade_id": "train_budget"}
check("train_budget")

# %% [markdown]
# Now the model of Task 2 and the book's own text, byte by byte. (`trained` is what Task 5 will serve.)

# %%
import numpy as np

from mlsys_lab.capstone.training import train
from mlsys_lab.models.training import new_model
from mlsys_lab.scaling.text import course_text

TEXT = np.frombuffer(course_text().encode(), dtype=np.uint8).astype(np.int64)
TRAIN = TrainConfig(batch_size=8, seq_len=128, steps=24, lr=3e-3)
START = {name: one.detach() for name, one in new_model(CONFIG, 0).named_parameters()}
trained, num_parameters = START, sum(one.numel() for one in START.values())
print(f"{len(TEXT):,} bytes of text, {num_parameters:,} parameters")

# %% [markdown]
# **Predict, then measure.** The model has n parameters in float32. It trains on 4 ranks. How many bytes does a
# rank send in a step, **per parameter**? (Lab 08: a reduce-scatter of the gradients and an all-gather of the weights.)

# %%
guess = None  # bytes sent by a rank in a step, per parameter

# %%
STOP = 12
one_rank = train(stack, CONFIG, START, TEXT, TRAIN, 1)
print(f"{TRAIN.steps} steps on 1 rank")
four_ranks = train(stack, CONFIG, START, TEXT, TRAIN, 4)
print(f"{TRAIN.steps} steps on 4 ranks")
stopped = train(stack, CONFIG, START, TEXT, TRAIN, 4, until=STOP)
resumed = train(stack, CONFIG, START, TEXT, TRAIN, 2, states=stopped.states)
trained = four_ranks.weights

figure, steps = go.Figure(), list(range(1, TRAIN.steps + 1))
for name, x, losses, dash in (
    ("1 rank", steps, one_rank.losses, "solid"),
    ("4 ranks", steps, four_ranks.losses, "dot"),
    ("4 ranks, then 2", steps[STOP:], resumed.losses, "dash"),
):
    bits = [loss / math.log(2) for loss in losses]
    figure.add_scatter(
        x=x, y=bits, mode="lines", name=name, line={"dash": dash, "width": 3}
    )
figure.update_layout(
    xaxis_title="step", yaxis_title="bits per byte", margin_t=30, height=340
)
show(figure, alt="Bits per byte by step: 1 rank, 4 ranks and the resumed run coincide")
for what, one, other in (
    ("1 and 4 ranks", one_rank.losses, four_ranks.losses),
    ("after the stop", resumed.losses, four_ranks.losses[STOP:]),
):
    difference = max(abs(a - b) for a, b in zip(one, other, strict=True))
    print(f"{what}: losses differ by {difference:.0e}")
for rank, sent in enumerate(four_ranks.ledger.sent_bytes()):
    print(f"rank {rank} sent {sent / TRAIN.steps:11,.0f} bytes per step")
last = four_ranks.ledger.sent_bytes()[-1] / TRAIN.steps
check.predict(guess, last / num_parameters, "bytes per parameter", within=0.02)

# %% [markdown]
# Each of the two halves sends 3/4 of an array of 4 bytes per parameter. The lower ranks send a little more, because
# rank 0 broadcasts the initial weights once. The losses of 1 and 4 ranks differ by rounding, which grows with each
# step: the same sums in another order.
#
# **End of Part 1.** One model trains on your engine, your collectives and your optimizer. Part 2 asks what every part
# of it costs, before it runs, and serves it.
#
# ## Part 2 · What it costs
#
# ## Task 4 · The prediction sheet
#
# *About 70 minutes.*
#
# **Goal.** Compute what a training step and a generated sequence cost **before** they run, with your functions of labs
# 05, 07 and 10. A sheet is a function of the configuration and of three calibrations of a machine, so it can be
# evaluated for machines that you do not have. It never measures.
#
# **Interface.** Four functions return dictionaries of numbers, with exactly these keys.
#
# `predict_training(stack, config, train, world_size)`: a step of all ranks, and the bytes that rank 0 holds.
#
# | key | | with |
# |---|---|---|
# | `training_flops` | FLOPs of a step, all ranks | `stack.arithmetic`: `step_products`, `flops_of` |
# | `parameters` | elements | `count_parameters` |
# | `weight_bytes`, `gradient_bytes` | bytes of weights and gradients | `states` |
# | `master_bytes`, `optimizer_bytes` | bytes of the optimizer's copy of its shard, and of Adam's moments | `states` |
# | `activation_bytes` | bytes that the backward pass keeps | `activation_bytes` |
# | `peak_bytes` | the sum of these five | |
#
# `predict_messages(stack, parameters, world_size)`: what all ranks together send in a step, with
# `stack.collectives.ring_elements`.
#
# | key | |
# |---|---|
# | `gradient_elements_sent`, `gradient_bytes_sent`, `gradient_messages` | the reduce-scatter of the gradients |
# | `weight_elements_sent`, `weight_bytes_sent`, `weight_messages` | the all-gather of the weights |
# | `loss_elements_sent` | the all-reduce of the loss |
# | `scalar_elements_sent` | the all-reduces of the number of tokens and of the squared norm |
#
# `predict_serving(stack, config, serving)`: one sequence of `serving.prompt_tokens`, of which `serving.decode_steps()`
# lists the (new, cached) tokens of each step after the prefill.
#
# | key | | with |
# |---|---|---|
# | `prefill_flops` | FLOPs of the prefill's layers, without the head | `stack.arithmetic`: `forward_products` |
# | `decode_flops`, `decode_weight_bytes` | FLOPs and bytes of weights, all decode steps | `stack.cache`: `step_cost` |
# | `decode_cache_read_bytes`, `decode_cache_written_bytes` | bytes of the KV cache, all decode steps | the same |
#
# `predict_seconds(stack, config, train, world_size, calibration, serving)`:
#
# | key | seconds of | with |
# |---|---|---|
# | `products_s` | the matrix products of a step, all ranks | `predict_training_step_s` without elementwise work |
# | `communication_s` | all messages of a step | `stack.collectives`: `all_reduce_s`, `LinkCost` |
# | `training_step_s` | products, elementwise work and messages | |
# | `decode_s` | the decode steps, at least | `stack.cache`: `least_time`, `Machine` |
#
# A `calibration` has `rates` (FLOP/s by shape) and `unit_s` for lab 05, `latency_s` and `bytes_per_s` of a link for lab
# 07, `peak_flops_per_s` and `memory_bytes_per_s` for lab 10.
#
# **Conversions.** The labs describe GPUs, and this run differs from them. Work out each correction before you write it:
#
# - Lab 05 counts weights, gradients and activations in **bf16**, 2 bytes per number. This run is in **fp32**. The
#   master copy and the moments are fp32 already, and so are the probabilities of the loss, 4 bytes for each token and
#   each entry of the vocabulary.
# - The optimizer is ZeRO-1. Ranks get unequal numbers of sequences if p does not divide B; rank 0 has no fewer than
#   another.
# - A ring all-reduce is two **halves**. What do all ranks together send in one of them, and in how many messages?
# - Lab 05 counts the head for every token. A server needs the logits of the last prompt token only, and lab 10 counts
#   them; `prefill_flops` leaves the head out.
# - The ranks are threads that **take turns**, so their times add up. Lab 07's `all_reduce_s` is for ranks that send at
#   the same time. Lab 05's step is that of one rank with all parameters to update: take it as it is for each rank,
#   although ZeRO-1 updates a shard.
#
# **Example**
#
# ```python
# stack = load_stack(notebook=globals())
# sizes = {"d_model": 4, "n_heads": 2, "n_kv_heads": 1, "d_ff": 6, "vocab_size": 10, "context": 16}
# tiny = TransformerConfig("tiny", n_layers=1, **sizes)
# plan, serving = TrainConfig(batch_size=3, seq_len=5, steps=1, lr=0.1), Serving(prompt_tokens=4, new_tokens=3)
# numbers = predict_training(stack, tiny, plan, world_size=2)
# numbers["training_flops"], numbers["parameters"]  # → (18000, 212)
# numbers["weight_bytes"], numbers["optimizer_bytes"], numbers["activation_bytes"]  # → (848, 848, 3200)
# sent = predict_messages(stack, parameters=10, world_size=4)
# sent["gradient_elements_sent"], sent["gradient_messages"], sent["scalar_elements_sent"]  # → (30, 12, 12)
# served = predict_serving(stack, tiny, serving)
# served["prefill_flops"], served["decode_flops"], served["decode_cache_read_bytes"]  # → (1216, 816, 144)
# shapes = {(m, k, n) for B in (1, 2) for _, _, m, k, n in stack.arithmetic.step_products(tiny, 5, B)}
# rates = dict.fromkeys(shapes, 1e6)
# machine = Calibration(rates, 1e-6, latency_s=1e-3, bytes_per_s=1e6, peak_flops_per_s=1e9, memory_bytes_per_s=1e9)
# seconds = predict_seconds(stack, tiny, plan, 2, machine, serving)
# round(seconds["products_s"], 6), round(seconds["communication_s"], 6)  # → (0.018, 0.01772)
# round(seconds["training_step_s"], 6)  # → 0.038664
# ```
#
# (212 parameters of 4 bytes are 848 bytes; the moments are 8 bytes for each of the 106 parameters of a shard. The
# products take 18,000 FLOPs at 10⁶ FLOP/s. A decode step reads 4 or 5 cached tokens of 2 · 2 numbers.)
#
# **Requirements**
#
# - Functions of other labs do the counting. Numbers of layers, heads or bytes per layer appear nowhere in your code.
# - Counts are exact, also if p divides neither the batch nor the parameters, and for p = 1.
# - Seconds depend on the calibration alone; a machine that is twice as slow takes twice as long.
# - No function runs, times or counts anything: the judge evaluates the sheet with calibrations of its own.
#
# **Size:** about 17, 15, 14 and 28 lines.
#
# <details><summary>Details</summary>
#
# - All FLOPs and bytes may be floats, as long as they are exact.
# - `weight_bytes=4` and `cache_bytes=4` tell `step_cost` that numbers are fp32.
# - A calibration's `rates` have the shapes of every rank's step, and of the transposes.
# - Messages of a step, for `communication_s`: an all-reduce of all parameters (both halves), and three of one number.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-4-sheet"}
#| export
Numbers = dict[str, float]


def predict_training(
    stack: Any, config: TransformerConfig, train: TrainConfig, world_size: int
) -> Numbers:
    """FLOPs of a training step of all ranks, and bytes that rank 0 holds.

    About 17 lines.
    """
    ### BEGIN SOLUTION
    layer, B, T = stack.arithmetic, train.batch_size, train.seq_len
    parameters = layer.count_parameters(config)
    kept = layer.states(parameters, data=world_size, zero_stage=1)
    batch = -(-B // world_size)  # rank 0 has no fewer sequences than another rank
    probabilities = 4 * batch * T * config.vocab_size  # of the loss: fp32 already
    numbers: Numbers = {
        "training_flops": layer.flops_of(layer.step_products(config, T, B)),
        "parameters": parameters,
        "weight_bytes": 2 * kept.weights,
        "gradient_bytes": 2 * kept.gradients,
        "master_bytes": kept.master,
        "optimizer_bytes": kept.moments,
        "activation_bytes": 2 * layer.activation_bytes(config, T, batch)
        - probabilities,
    }
    held = ("weight", "gradient", "master", "optimizer", "activation")
    return numbers | {"peak_bytes": sum(numbers[f"{name}_bytes"] for name in held)}
    ### END SOLUTION


def predict_messages(stack: Any, parameters: int, world_size: int) -> Numbers:
    """What all ranks send in a training step. About 15 lines."""
    ### BEGIN SOLUTION
    layer = stack.collectives
    half = sum(layer.ring_elements(parameters, world_size)) / 2
    one_number = sum(layer.ring_elements(1, world_size))
    messages = world_size * (world_size - 1)
    both = {
        f"{array}_{what}": number
        for array in ("gradient", "weight")
        for what, number in (
            ("elements_sent", half),
            ("bytes_sent", 4 * half),
            ("messages", messages),
        )
    }
    once = {"loss_elements_sent": one_number, "scalar_elements_sent": 2 * one_number}
    return both | once
    ### END SOLUTION


def predict_serving(stack: Any, config: TransformerConfig, serving: Serving) -> Numbers:
    """FLOPs of prefill and decode steps, and bytes that the decode steps move.

    About 14 lines.
    """
    ### BEGIN SOLUTION
    layer, prompt = stack.arithmetic, serving.prompt_tokens
    head_flops = 2 * config.d_model * config.vocab_size * prompt
    forward_flops = layer.flops_of(layer.forward_products(config, prompt))
    steps = [
        stack.cache.step_cost(config, [part], weight_bytes=4, cache_bytes=4)
        for part in serving.decode_steps()
    ]
    return {
        "prefill_flops": forward_flops - head_flops,
        "decode_flops": sum(step.flops for step in steps),
        "decode_weight_bytes": sum(step.weight_bytes for step in steps),
        "decode_cache_read_bytes": sum(step.cache_read_bytes for step in steps),
        "decode_cache_written_bytes": sum(step.cache_written_bytes for step in steps),
    }
    ### END SOLUTION


def predict_seconds(
    stack: Any,
    config: TransformerConfig,
    train: TrainConfig,
    world_size: int,
    calibration: Calibration,
    serving: Serving,
) -> Numbers:
    """Seconds of a training step whose ranks take turns, and of the decode steps.

    About 28 lines.
    """
    ### BEGIN SOLUTION
    T, batch_size = train.seq_len, train.batch_size
    batches = [
        batch_size // world_size + (rank < batch_size % world_size)
        for rank in range(world_size)
    ]

    def compute_s(unit_s: float) -> float:
        predict = stack.arithmetic.predict_training_step_s
        rates = calibration.rates
        return sum(predict(config, T, batch, rates, unit_s) for batch in batches)

    parameters = stack.arithmetic.count_parameters(config)
    link = stack.collectives.LinkCost(calibration.latency_s, calibration.bytes_per_s)
    sizes = [4 * parameters, 4, 4, 4]
    communication_s = world_size * sum(
        stack.collectives.all_reduce_s("ring", world_size, size, link) for size in sizes
    )
    machine = stack.cache.Machine(
        calibration.peak_flops_per_s, calibration.memory_bytes_per_s
    )
    steps = [
        stack.cache.step_cost(config, [part], weight_bytes=4, cache_bytes=4)
        for part in serving.decode_steps()
    ]
    return {
        "products_s": compute_s(0.0),
        "communication_s": communication_s,
        "training_step_s": compute_s(calibration.unit_s) + communication_s,
        "decode_s": sum(stack.cache.least_time(one, machine).time_s for one in steps),
    }
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "predict_training"}
check("predict_training")

# %% nbgrader={"grade": true, "grade_id": "predict_messages"}
check("predict_messages")

# %% nbgrader={"grade": true, "grade_id": "predict_serving"}
check("predict_serving")

# %% nbgrader={"grade": true, "grade_id": "predict_seconds"}
check("predict_seconds")

# %% [markdown]
# The next cell calibrates this machine in a few seconds: it times products of the shapes that lab 05 lists, elementwise
# work of your engine, messages between two ranks, and copies of memory. It runs no training step.

# %%
from mlsys_lab.capstone.calibration import calibrate

calibration = calibrate(stack, CONFIG, TRAIN, 4)
SERVING = Serving(prompt_tokens=48, new_tokens=16)
print(f"products at up to {calibration.peak_flops_per_s / 1e9:.0f} GFLOP/s")
print(f"memory at {calibration.memory_bytes_per_s / 1e9:.1f} GB/s")
print(f"a message: {1e6 * calibration.latency_s:.0f} µs, then", end=" ")
print(f"{calibration.bytes_per_s / 1e9:.1f} GB/s")

# %% [markdown]
# **Predict, then measure.** A rule of thumb says that training takes 6 FLOPs per parameter and token. The rule leaves
# out attention, and it counts the embedding, whose rows are only looked up. What fraction of the rule's FLOPs does the
# step of Task 3 take? Estimate it from the shapes printed in Task 2.

# %%
guess = None  # FLOPs of a step / (6 · parameters · tokens)

# %%
from mlsys_lab.capstone.sheet import Sheet

numbers = predict_training(stack, CONFIG, TRAIN, 4)
numbers |= predict_messages(stack, numbers["parameters"], 4)
numbers |= predict_serving(stack, CONFIG, SERVING)
numbers |= predict_seconds(stack, CONFIG, TRAIN, 4, calibration, SERVING)
sheet = Sheet(numbers)
rule = 6 * numbers["parameters"] * TRAIN.batch_size * TRAIN.seq_len
step_ms = 1e3 * sheet["training_step_s"]
print(f"a step: {step_ms:.0f} ms, {sheet['training_flops']:,} FLOPs")

# %% [markdown]
# The sheet is filled in. Now the run: a few steps on four ranks and one generated sequence, with the products, arrays
# and messages counted where they happen. Counts must be equal. Estimates and seconds are compared.

# %%
from mlsys_lab.capstone.measurement import compare, measure

measured = measure(stack, CONFIG, START, TEXT, TRAIN, 4, serving=SERVING)
rows = compare(sheet, measured)
print(f"{'':44} {'predicted':>16} {'measured':>16}")
for row in rows:
    print(row)
check.predict(guess, measured["training_flops"] / rule, "of the rule", within=0.03)

# %% [markdown]
# The 6 FLOPs per parameter include 6 for each number of the embedding, which takes no product; attention adds
# 12·L·N·H·T per token, and at this size it adds more than the embedding takes away.
#
# The counts are exact because nothing about them depends on the machine. Activations are an estimate: lab 05 lists what
# a backward pass needs, and your engine keeps a few more arrays, such as the copies that `reshape` makes of permuted
# heads. The seconds come from a formula for each operation, and there is none for what Python does between two
# operations.
#
# ## Task 5 · Serve the trained model
#
# *About 25 minutes.*
#
# **Goal.** Lab 10's `extend` computes new tokens through a cache with rows; lab 11's scheduler allocates *blocks*.
# Write the cache between them: lab 10's interface, with keys and values in the blocks of lab 11's tables.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `cache.length(sequence)` | tokens of a sequence that are in the cache before this step |
# | `cache.slots(sequence, end)` | (end,) int64: the slots of its tokens 0 to end - 1 |
# | `cache.update(layer, sequence, k, v)` | all keys and values (K, S, H), and positions (S,); stores k, v (K, T, H) |
# | `cache.advance(sequence, num_tokens)`, given | – |
#
# `cache.sequences[sequence]` is a scheduled sequence of lab 11, with `block_table` and `num_computed_tokens`. Slot
# `block * block_size + offset` belongs to the token at `offset` of a block. `cache.kv_cache` is the memory:
# `store(layer, slots, k, v)` writes keys and values (T, K, H) of slots (T,), and `load(layer, slots)` returns both, (S,
# K, H) each.
#
# **Why does `advance` do nothing?** Who counts the computed tokens of a sequence here, and what would happen if the
# cache counted them as well?
#
# **Example** (a sequence in blocks 2 and 0, of 4 tokens each; 5 tokens are in the cache)
#
# ```python
# from types import SimpleNamespace
# from mlsys_lab.inference.engine.model_runner import KVCache
# from mlsys_lab.models import Transformer
# sizes = {"d_model": 4, "n_heads": 2, "n_kv_heads": 1, "d_ff": 6, "vocab_size": 10, "context": 16}
# model = Transformer(TransformerConfig("tiny", n_layers=1, **sizes))
# cache = BlockCache(KVCache(model, num_slots=12), block_size=4)
# cache.sequences = {7: SimpleNamespace(block_table=[2, 0], num_computed_tokens=5)}
# cache.length(7), cache.slots(7, 6).tolist()  # → (5, [8, 9, 10, 11, 0, 1])
# k = torch.ones(1, 1, 2)  # one new token
# keys, values, positions = cache.update(0, 7, k, 2 * k)
# keys.shape, values[0, 5].tolist(), positions.tolist()  # → (torch.Size([1, 6, 2]), [2.0, 2.0], [0, 1, 2, 3, 4, 5])
# cache.kv_cache.load(0, torch.tensor([1]))[0].tolist()  # → [[[1.0, 1.0]]]
# ```
#
# **Requirements**
#
# - New tokens go after the computed ones, in the slots of the sequence's own blocks. No other slot changes.
# - `update` is called for every layer before the scheduler counts the tokens: it does not change the length.
# - Remember nothing of a sequence between steps: its number changes, and a preempted one starts again with no computed
#   tokens and other blocks.
# - A block table may be longer than the sequence needs, in any order, and share blocks with other sequences' tables (a
#   common prefix).
#
# **Size:** about 1, 3 and 5 lines.


# %% nbgrader={"solution": true, "grade_id": "task-5-serve"}
#| export
class BlockCache:
    """KV cache of lab 10's interface in blocks that lab 11's scheduler allocates.

    `sequences` are the scheduled ones, by their number in this step.
    """

    def __init__(self, kv_cache: Any, block_size: int) -> None:
        self.kv_cache, self.block_size = kv_cache, block_size
        self.sequences: dict[int, Any] = {}

    def length(self, sequence: int) -> int:
        """Tokens of a sequence in the cache. About 1 line."""
        ### BEGIN SOLUTION
        return int(self.sequences[sequence].num_computed_tokens)
        ### END SOLUTION

    def advance(self, sequence: int, num_tokens: int) -> None:
        """Nothing: the scheduler counts computed tokens."""

    def slots(self, sequence: int, end: int) -> torch.Tensor:
        """Slots of tokens 0 to end - 1 of a sequence: (end,). About 3 lines."""
        ### BEGIN SOLUTION
        table, size = self.sequences[sequence].block_table, self.block_size
        positions = torch.arange(end)
        return torch.tensor(table)[positions // size] * size + positions % size
        ### END SOLUTION

    def update(
        self, layer: int, sequence: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Store k, v (K, T, H); return all keys, values (K, S, H), positions (S,).

        About 5 lines.
        """
        ### BEGIN SOLUTION
        start = self.length(sequence)
        slots = self.slots(sequence, start + k.shape[1])
        self.kv_cache.store(layer, slots[start:], k.transpose(0, 1), v.transpose(0, 1))
        keys, values = self.kv_cache.load(layer, slots)  # (S, K, H) each
        return keys.transpose(0, 1), values.transpose(0, 1), torch.arange(len(slots))
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "block_cache"}
check("block_cache")

# %% nbgrader={"grade": true, "grade_id": "serve"}
check("serve")

# %% [markdown]
# **Predict, then measure.** The model that your four ranks trained now serves 12 requests of 16 output tokens each. At
# most 4 run at a time, and the prompts of 4 requests fit into one step. Without a cache and a scheduler, 192 forward
# passes over whole sequences generate these tokens. How many forward passes does your stack need?

# %%
guess = None  # forward passes

# %%
from mlsys_lab.capstone.serving import build_engine, generate_greedy
from mlsys_lab.inference.engine import Request, SamplingParams, SchedulerConfig

model = Transformer(CONFIG).double().eval()
for name, one in model.named_parameters():
    one.data = trained[name].double()
prompts = [TEXT[999 * i : 999 * i + 8 + i % 7].tolist() for i in range(12)]
NUM_BLOCKS, NEW_TOKENS, LIMITS = 32, 16, SchedulerConfig(4, 64)


def new_engine():
    """An engine on the stack: its scheduler, its attention, this notebook's cache."""
    return build_engine(
        stack, model, num_blocks=NUM_BLOCKS, block_size=8, config=LIMITS
    )


def decode_uncached(prompt):
    """The likeliest tokens, each from a forward pass over all tokens before it."""
    tokens = list(prompt)
    for _ in range(NEW_TOKENS):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


served = generate_greedy(new_engine(), prompts, NEW_TOKENS)
same = sum(
    tokens == decode_uncached(p) for p, tokens in zip(prompts, served, strict=True)
)
print(f"{same} of {len(prompts)} answers equal uncached greedy decoding")

engine, owners = new_engine(), []
for prompt in prompts:
    engine.add_request(Request(prompt, NEW_TOKENS, SamplingParams(temperature=0)))
while not engine.is_idle:
    engine.step()
    owner = [None] * NUM_BLOCKS
    for seq in engine.scheduler.running:
        for block in seq.block_table:
            owner[block] = seq.seq_id
    owners.append(owner)
figure = go.Figure(
    go.Heatmap(
        z=list(zip(*owners, strict=True)),
        colorscale="Turbo",
        colorbar_title="request",
    )
)
figure.update_layout(xaxis_title="step", yaxis_title="block", margin_t=30, height=340)
show(figure, alt="Blocks by step, coloured by request: requests come and go in turns")
check.predict(guess, len(owners), "forward passes", within=0)

# %% [markdown]
# Each request takes 16 steps, because its prefill gives the first token, and 4 requests share each step. The colours
# are requests: a block belongs to one request after another, and no request has more blocks than its tokens fill.
#
# ## Task 6 · Swap a layer, and report
#
# *About 30 minutes.*
#
# **Goal.** The layers are replaceable, so ask before you replace one: what will it gain? Predict the cost of plain data
# parallelism in place of ZeRO-1: all ranks keep all optimizer states, and gradients go through one all-reduce, by one
# of two algorithms. Then write the **waterfall**, which leads from the bound of a step to its measured time.
#
# **Interface.** `predict_swap(stack, config, world_size, algorithm, calibration)` returns a dictionary; `algorithm` is
# `"ring"` or `"halving_doubling"`, and `world_size` a power of two.
#
# | key | |
# |---|---|
# | `gradient_elements_sent` | elements that all ranks send in the all-reduce of the gradients |
# | `gradient_messages` | messages of all ranks |
# | `master_bytes`, `optimizer_bytes` | bytes of rank 0, as in Task 4 |
# | `communication_s` | seconds of the all-reduce, for ranks that take turns |
#
# `waterfall(predicted, measured, peak_flops_per_s)` takes the numbers of a sheet and those of the run. It returns five
# `Bar(name, start_s, end_s)`, of which each starts where the last one ends, the first one at 0:
#
# | name | ends at |
# |---|---|
# | `"products at peak"` | the bound: all FLOPs of the step at the machine's peak |
# | `"products at their rates"` | predicted seconds of the products |
# | `"elementwise work"` | predicted seconds of a step without communication |
# | `"communication"` | predicted seconds of a step |
# | `"not predicted"` | measured seconds of a step |
#
# **Derive** for p = 4: a rank's messages and elements in a ring, and in recursive halving and doubling. Which of the
# two numbers differs, and what does this say about when the swap pays?
#
# **Example**
#
# ```python
# stack = load_stack(notebook=globals())
# sizes = {"d_model": 4, "n_heads": 2, "n_kv_heads": 1, "d_ff": 6, "vocab_size": 10, "context": 16}
# tiny = TransformerConfig("tiny", n_layers=1, **sizes)  # 212 parameters
# machine = Calibration({}, 1e-9, latency_s=0.001, bytes_per_s=1e6, peak_flops_per_s=1e9, memory_bytes_per_s=1e9)
# ring = predict_swap(stack, tiny, 4, "ring", machine)
# ring["gradient_elements_sent"], ring["gradient_messages"], ring["optimizer_bytes"]  # → (1272, 24, 1696)
# round(ring["communication_s"], 6)  # → 0.029088
# predicted = {"training_flops": 1e9, "products_s": 3.0, "communication_s": 1.0, "training_step_s": 5.0}
# [bar.end_s for bar in waterfall(predicted, {"training_step_s": 9.0}, 1e9)]  # → [1.0, 3.0, 4.0, 5.0, 9.0]
# ```
#
# **Requirements**
#
# - Counts are exact. `communication_s` is that of lab 07's model, with every rank's messages one after another.
# - A bar ends before it starts if the measurement is below the prediction; that is a finding, and stays in the report.
#
# **Size:** about 14 and 12 lines.


# %% nbgrader={"solution": true, "grade_id": "task-6-swap"}
#| export
def predict_swap(
    stack: Any,
    config: TransformerConfig,
    world_size: int,
    algorithm: str,
    calibration: Calibration,
) -> Numbers:
    """Cost of replicated optimizers: gradients all-reduced, states on every rank.

    About 14 lines.
    """
    ### BEGIN SOLUTION
    parameters = stack.arithmetic.count_parameters(config)
    link = stack.collectives.LinkCost(calibration.latency_s, calibration.bytes_per_s)
    seconds = stack.collectives.all_reduce_s(
        algorithm, world_size, 4 * parameters, link
    )
    ring, exchanges = 2 * (world_size - 1), 2 * math.ceil(math.log2(world_size))
    steps = {"ring": ring, "halving_doubling": exchanges}[algorithm]
    return {
        "gradient_elements_sent": 2 * (world_size - 1) * parameters,
        "gradient_messages": world_size * steps,
        "master_bytes": 4 * parameters,
        "optimizer_bytes": 8 * parameters,
        "communication_s": world_size * seconds,
    }
    ### END SOLUTION


class Bar(NamedTuple):
    """A bar of a waterfall, from one time to another."""

    name: str
    start_s: float
    end_s: float


def waterfall(
    predicted: Numbers, measured: Numbers, peak_flops_per_s: float
) -> list[Bar]:
    """Bars from the bound of a training step to its measurement. About 12 lines."""
    ### BEGIN SOLUTION
    ends = {
        "products at peak": predicted["training_flops"] / peak_flops_per_s,
        "products at their rates": predicted["products_s"],
        "elementwise work": predicted["training_step_s"] - predicted["communication_s"],
        "communication": predicted["training_step_s"],
        "not predicted": measured["training_step_s"],
    }
    starts = [0.0, *ends.values()]
    return [
        Bar(name, start_s, end_s)
        for start_s, (name, end_s) in zip(starts, ends.items(), strict=False)
    ]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "predict_swap"}
check("predict_swap")

# %% nbgrader={"grade": true, "grade_id": "waterfall"}
check("waterfall")

# %% [markdown]
# **Predict, then measure.** `replicate` swaps lab 08's layer for an optimizer that keeps everything on every rank
# (`ReplicatedOptimizer` in `mlsys_lab.capstone.swaps`). On 4 ranks, how many times the bytes of ZeRO-1 does a rank then
# hold for the optimizer's copy of the weights and its moments? And which algorithm is faster on this machine?

# %%
guess = None  # times the bytes of ZeRO-1

# %%
import time

from mlsys_lab.capstone.counting import count_rank
from mlsys_lab.capstone.swaps import replicate
from mlsys_lab.comm import run

ALGORITHMS = {"ring": "all_reduce", "halving_doubling": "halving_doubling"}  # lab 07's
plans = {one: predict_swap(stack, CONFIG, 4, one, calibration) for one in ALGORITHMS}


def time_all_reduce(rank, all_reduce):
    """Seconds of an all-reduce of the gradients, the least of a few."""
    gradients, seconds = torch.zeros(num_parameters), []
    for _ in range(5):
        start = time.perf_counter()
        all_reduce(rank, gradients)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def count_swap(swapped):
    """Counts of a step on a swapped stack, with the names of `predict_swap`."""
    job = TrainJob(swapped, CONFIG, START, TEXT, TRAIN, None, until=1)
    counts = run(count_rank, [job] * 4).results
    sent = [one for rank in counts for one in rank.sent if one.phase == "gradient"]
    kept = ("master_bytes", "optimizer_bytes")
    return {
        "gradient_elements_sent": sum(one.elements for one in sent),
        "gradient_messages": len(sent),
    } | {key: counts[0].kept[key] for key in kept}


zero = train(stack, CONFIG, START, TEXT, TRAIN, 4, until=3)
for algorithm, name in ALGORITHMS.items():
    swapped = replicate(stack, f"replicated-{algorithm.replace('_', '-')}")
    losses = train(swapped, CONFIG, START, TEXT, TRAIN, 4, until=3).losses
    difference = max(abs(a - b) for a, b in zip(losses, zero.losses, strict=True))
    print(f"{algorithm}: losses differ from those of ZeRO-1 by {difference:.0e}")
    counted = count_swap(swapped)
    counted["communication_s"] = run(
        time_all_reduce, [getattr(stack.collectives, name)] * 4
    ).results[0]
    for key, number in counted.items():
        digits = ",.4f" if key.endswith("_s") else ",.0f"
        print(f"  {key:24} predicted {plans[algorithm][key]:11{digits}}", end="")
        print(f"   measured {number:11{digits}}")
sharded = predict_training(stack, CONFIG, TRAIN, 4)
held = counted["master_bytes"] + counted["optimizer_bytes"]
held /= sharded["master_bytes"] + sharded["optimizer_bytes"]
check.predict(guess, held, "times the bytes of ZeRO-1", within=0.02)

# %% [markdown]
# The replicated optimizer sends as much as ZeRO-1, whose reduce-scatter and all-gather are the halves of an all-reduce,
# and holds p times as many states. Halving and doubling sends the same elements in fewer messages: it pays where
# latency counts, for short arrays or many ranks. The clock may order the two differently: the model knows messages and
# bytes, but not the arrays that halving and doubling concatenates on its way back. Nothing but one layer changed, and
# the losses are the same.
#
# **See it.** The waterfall of your training step, from the bound to the clock.

# %%
predicted = predict_training(stack, CONFIG, TRAIN, 4)
predicted |= predict_seconds(stack, CONFIG, TRAIN, 4, calibration, SERVING)
bars = waterfall(predicted, measured, calibration.peak_flops_per_s)
figure = go.Figure(
    go.Waterfall(
        x=[bar.name for bar in bars] + ["measured"],
        y=[1e3 * (bar.end_s - bar.start_s) for bar in bars] + [0],
        measure=["relative"] * len(bars) + ["total"],
    )
)
figure.update_layout(yaxis_title="ms", margin_t=30, height=360)
show(
    figure,
    alt="Waterfall of a training step: from products at peak to the measured time",
)
bound_s, step_s = bars[0].end_s, bars[-1].end_s
print(f"the step takes {step_s / bound_s:.1f} times the bound of its FLOPs")

# %% [markdown]
# Read it from the left: each bar is time that one level of the stack adds. The first is the bound, products at the peak
# rate. Shapes that multiply more slowly, elementwise work and messages follow, all of them predicted. The last bar has
# no formula: it is Python between the operations, allocation, and other programs on your machine. A small model on a
# CPU has much of it, as a small batch on a GPU does. CUDA graphs, compilers and larger batches exist to shrink this
# bar.
#
# ## The whole run
#
# The commands of the capstone do the same with a model of about a million parameters, on your accepted labs; training
# takes about ten minutes. Check this lab first (`mlsys-lab check capstone`); then, in a terminal:
#
# ```text
# mlsys-lab capstone plan      fill in the sheet: three calibrations, then every cost, before anything runs
# mlsys-lab capstone train     train on four ranks; stop it as you like, it continues from its last checkpoint
# mlsys-lab capstone serve     the trained model over HTTP, by your scheduler and your cache
# mlsys-lab capstone report    predictions next to counts and clock, as a table and as a page with the waterfall
# mlsys-lab capstone check     the places where the layers meet, one line each
# mlsys-lab milestones         eight published results, reproduced with your code
# ```
#
# ## Stretch: no points
#
# - **Tensor parallelism.** Replace `linear` by lab 09's `ColumnParallelLinear` and `RowParallelLinear` in attention and
#   MLP. Predict the elements that a layer sends per token before you run it.
# - **Recompute.** Wrap each block in lab 01's `checkpoint`. What does the sheet say about activations and FLOPs now,
#   and what does `track_memory`?
# - **The leaderboard.** Submit your stack and its sheet: bits per byte at a fixed number of FLOPs, fraction of the
#   bound, and error of the prediction are ranked separately.
#
# ## What you can read now
#
# - nanochat, `nanochat/gpt.py` (`GPT.forward`, `CausalSelfAttention`) and `scripts/base_train.py`: your Tasks 2 and 3
#   with torch's autograd, in one file each; `DistMuonAdamW` in `nanochat/optim.py` shards optimizer states as lab 08
#   does.
# - vLLM, `vllm/v1/worker/gpu_model_runner.py`: `GPUModelRunner.execute_model` prepares the scheduled tokens of each
#   sequence and runs one forward pass; the slot mapping in `vllm/v1/worker/block_table.py` is your `slots`.
# - Megatron-LM, `megatron/training/training.py`: `train_step`, and `num_floating_point_operations`, which is
#   `training_flops` of a much larger sheet; `megatron/training/theoretical_memory_usage.py` predicts bytes per GPU.
# - PyTorch FSDP, `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`: `FSDPParamGroup.unshard` gathers weights,
#   `post_backward` reduce-scatters gradients.
# - The course's own `mlsys_lab/capstone`: what counts, measures and serves your stack.
#
# ## Test yourself
#
# <details><summary>Your losses on 4 ranks agree with 1 rank for 20 steps, then drift apart by a few per cent. Is that a
# bug?</summary>
#
# Not necessarily: each step amplifies the rounding of the steps before it, more so with a high learning rate (try
# `lr=1e-2` in Task 3). Compare in float64. Rounding shrinks by almost nine orders of magnitude; the effect of a wrong
# loss weight or of a missing clip does not.
#
# </details>
#
# <details><summary>Which numbers of the sheet change if you train on 8 ranks in place of 4, and which stay?</summary>
#
# FLOPs of a step, parameters, weights and gradients of a rank stay. The shard of the optimizer halves, and so do the
# activations, as a rank has half of the sequences. All ranks together send 7/3 as many elements and 14/3 as many
# messages. Seconds of ranks that take turns grow; real ranks would each compute half as long.
#
# </details>
#
# <details><summary>Keys and values have K heads, queries N. Where in your backward pass are the G gradients of a key
# head added up?</summary>
#
# In the VJP of the product of queries and keys: the key's axis of size 1 was broadcast over G, and `unbroadcast` of lab
# 01 sums over it. Broadcasting copies, and the backward pass of copying is summing.
#
# </details>
#
# <details><summary>Why must a prediction be a function of calibrations, rather than a list of numbers?</summary>
#
# A list can be copied from a run. A function has to be right for a machine and a configuration that its author has not
# seen, and it answers the next question as well: what if the link were ten times as fast?
#
# </details>
#
# <details><summary>A colleague swaps the all-reduce for a faster one, and the step becomes 2 % faster although the
# sheet promised 10 %. Where do you look?</summary>
#
# At the waterfall before and after. Either communication shrank as predicted and another bar grew (ranks now wait for
# the slowest one), or it did not shrink, because latency of small messages or a shared link was not in the model.
#
# </details>
#
# When all checks pass, save the notebook and run `mlsys-lab check capstone` in a terminal.
