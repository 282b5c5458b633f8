# %% [markdown]
# # Lab 09 · Splitting a model: tensor, pipeline, context and expert parallelism
#
# Training takes about 16 bytes per parameter (weights, gradients and Adam's states). For 70 billion parameters that is
# 1,120 GB, and an H100 has 80 GB: the model itself must be divided among at least 14 GPUs. There are four places to
# cut: through the matrices, between the layers, along the sequence, and between experts. Each cut sends different
# tensors at different moments. Here you write all four, count every byte, and choose the layout of a cluster.
#
# ```text
#   tensor parallel          pipeline parallel       context parallel        expert parallel
#   W1 = [ A | B ]           layers 1-2   rank 0     tokens 0-3   rank 0     experts 0-1  rank 0
#   W2 = [ A ]  rank 0             │ activations        K, V ↓ ↑             ↕ all-to-all of tokens
#        [ B ]  rank 1       layers 3-4   rank 1     tokens 4-7   rank 1     experts 2-3  rank 1
#   all-reduce per layer     send per micro-batch    K, V go round a ring    twice per layer
# ```
#
# **You will build**
#
# - *Part 1, dividing the weights:* column- and row-parallel layers (`50 min`), a cross-entropy loss whose logits are
#   never gathered (`40 min`), a 1F1B pipeline (`70 min`).
# - *Part 2, dividing the tokens:* ring attention in zigzag order (`60 min`), a mixture of experts with token dispatch
#   (`60 min`), a predictor of step times that chooses a layout (`40 min`).
#
# Part 2 uses no code of part 1, only the idle time of Task 3's pipeline (in Task 6): stop after part 1, and come back
# another day.
#
# **At the end you can answer**
#
# - Why is the first matrix of an MLP cut by columns and the second by rows, and what does each pass send?
# - What fraction of a pipeline's time is idle, and what does 1F1B improve if not that?
# - Why does a causal mask unbalance ring attention, and what fixes it?
# - Where does a layout lose its time?
#
# **Time:** about 320 minutes, 160 for each part. **Points:** 100. **You need:** [lab 07](07-collectives.ipynb) (ranks,
# all-reduce, all-gather) and `torch.autograd.Function` ([lab 08](08-data-parallel.ipynb) introduces it too).
# Background: [chapter 11](../chapters/11-model-parallel.md).
#
# **Readings:** *How to Scale Your Model* (`scaling-book`), *The Technology Behind BLOOM Training* (`bekman-bloom`),
# *DeepSpeed: Advancing MoE inference and training to power next-generation AI scale* (`deepspeed-moe`).
#
# **How it works.** Replace each line that raises `NotImplementedError`, run the cell, paste the example into a new cell
# and run it, then run the `check` below it. Cells that start with `#| export` are graded. Names and signatures are
# those of the course's package, `mlsys_lab.parallel`, and mostly Megatron's.
#
# **Ranks** are those of lab 07. A program is a function that all p ranks run at the same time; `group.rank` is this
# rank's number and `group.size` is p. `run(program, inputs)` runs it with `inputs[r]` on rank r, and returns the
# results and a ledger of all messages.
#
# | call | what it does |
# |---|---|
# | `group.send(x, r)`, `group.recv(r)` | wait until rank r has received, or until its tensor is here |
# | `group.isend(x, r)` | starts to send and returns a request; `x` must not change until its `wait()` returns |
# | `group.irecv(r)` | starts to receive and returns a request, whose `wait()` returns the tensor |
# | `collectives.all_reduce(group, x)` | the sum of all ranks' `x`; every rank must call it |
# | `collectives.all_gather(group, x)` | a list of all ranks' `x`; every rank must call it |
#
# Every request needs its `wait()`. The collectives come from lab 07: yours if you have handed it in. Never write into a
# tensor that you are given: its owner still needs it. All numbers are float64, so that every way of dividing the work
# gives the same result to within rounding.

# %%
from mlsys_lab.checks import lab
from mlsys_lab.comm import run

check = lab("model-parallel")

# %%
#| export
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab import stack
from mlsys_lab.comm import Rank

collectives = stack.load("collectives")

# %% [markdown]
# ## Part 1 · Dividing the weights
#
# ## Task 1 · Column- and row-parallel layers
#
# *About 50 minutes.*
#
# **Goal.** An MLP computes `down(relu(up(x)))`. Give each rank some columns of the first matrix and the same rows of
# the second, so that both products and the ReLU run without communication and only the result has to be summed: this is
# Megatron's tensor parallelism (Shoeybi et al. 2019).
#
# ```text
#              ┌─ copy ─► x @ A ─► relu ─► h_A @ A' ─┐
#   x (T, D) ──┤          columns          rows      ├─ reduce ─► + bias ─► y (T, O), on every rank
#              └─ copy ─► x @ B ─► relu ─► h_B @ B' ─┘
# ```
#
# | region | forward | backward |
# |---|---|---|
# | copy, before the columns | identity | ? |
# | reduce, after the rows | all-reduce | ? |
#
# Fill in the two question marks before you write code. Every rank uses all of $x$, but only its own columns: what part
# of the gradient of $x$ does it find? And if $y = y_A + y_B$, what is the gradient of $y_A$, given that of $y$?
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `shard_parameter(parameter, dim, group)` | `nn.Parameter` | this rank's shard along `dim`, in its own storage |
# | `CopyToTensorParallelRegion` | – | the first row of the table, as a `torch.autograd.Function` |
# | `ReduceFromTensorParallelRegion` | – | the second row |
# | `ColumnParallelLinear(linear, group)` | module | (T, I) → (T, O/p), without communication |
# | `RowParallelLinear(linear, group)` | module | (T, I/p) → (T, O): products are summed over the ranks |
# | `ParallelMLP(up, down, group)` | module | (T, D) → (T, O), from two full `nn.Linear` layers |
#
# `linear` is a full `nn.Linear(I, O)`, equal on all ranks: its `weight` has shape (O, I), its `bias` (O,).
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# full = nn.Parameter(torch.arange(8.0).view(2, 4))
# shards = run(lambda group, x: shard_parameter(x, 1, group).tolist(), [full] * 2).results
# shards  # → [[[0.0, 1.0], [4.0, 5.0]], [[2.0, 3.0], [6.0, 7.0]]]
# torch.manual_seed(0)
# up, down = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
# x = torch.randn(5, 3).double()
# results, ledger = run(lambda group, x: ParallelMLP(up, down, group)(x), [x] * 2)
# torch.allclose(results[1], down(up(x).relu()))  # → True
# sum(ledger.sent_bytes()) == 2 * (2 - 1) * 5 * 2 * 8  # → True
# ```
#
# (The last line: one all-reduce of 5 × 2 numbers of 8 bytes, over 2 ranks.)
#
# **Requirements**
#
# - The layers keep their shards as parameters `weight` and `bias`, the MLP its layers as `up` and `down`.
# - Each rank keeps all of the row-parallel layer's bias as it is. It is added **once**, after the sum.
# - The MLP sends one all-reduce of T·O numbers forward and one of T·D numbers backward.
# - `x` may be used elsewhere too, as by a residual connection. Gradients from there are complete already, so only the
#   gradient that comes through the layer may be summed. It may also be data, which needs no gradient.
#
# **Size:** about 2, 2, 1, 1, 1, 2, 1, 3, 2, 3 and 2 lines.
#
# <details><summary>Details</summary>
#
# - p divides the sharded dimension. `torch.Tensor.chunk` returns views; a shard must not change with the full
#   parameter.
# - An autograd function's `forward(ctx, x, group)` may store what `backward(ctx, gradient)` needs as an attribute of
#   `ctx`. `backward` returns one gradient for each argument of `forward`: `None` for the group.
# - A `forward` without work returns `x.view_as(x)`, because autograd needs a tensor of its own.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-1-columns-rows"}
#| export
def shard_parameter(parameter: torch.Tensor, dim: int, group: Rank) -> nn.Parameter:
    """This rank's shard of a parameter, in its own storage. About 2 lines."""
    ### BEGIN SOLUTION
    shard = parameter.detach().chunk(group.size, dim)[group.rank]
    return nn.Parameter(shard.clone())
    ### END SOLUTION


class CopyToTensorParallelRegion(torch.autograd.Function):
    """What stands before the columns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank) -> torch.Tensor:
        """Return x unchanged. About 2 lines."""
        ### BEGIN SOLUTION
        ctx.group = group
        return x.view_as(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient of x, given that of this rank's copy. About 1 line."""
        ### BEGIN SOLUTION
        return collectives.all_reduce(ctx.group, gradient), None
        ### END SOLUTION


class ReduceFromTensorParallelRegion(torch.autograd.Function):
    """What stands after the rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank) -> torch.Tensor:
        """Return the sum of all ranks' x. About 1 line."""
        ### BEGIN SOLUTION
        return collectives.all_reduce(group, x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient of this rank's x, given that of the sum. About 1 line."""
        ### BEGIN SOLUTION
        return gradient, None
        ### END SOLUTION


def copy_to_tensor_parallel_region(x: torch.Tensor, group: Rank) -> torch.Tensor:
    """Apply the autograd function."""
    return CopyToTensorParallelRegion.apply(x, group)


def reduce_from_tensor_parallel_region(x: torch.Tensor, group: Rank) -> torch.Tensor:
    """Apply the autograd function."""
    return ReduceFromTensorParallelRegion.apply(x, group)


class ColumnParallelLinear(nn.Module):
    """Linear layer sharded by output features: (T, I) -> (T, O/p)."""

    def __init__(self, linear: nn.Linear, group: Rank) -> None:
        """Keep this rank's shards of the weight and the bias. About 2 lines."""
        super().__init__()
        ### BEGIN SOLUTION
        self.weight = shard_parameter(linear.weight, 0, group)
        self.bias = shard_parameter(linear.bias, 0, group)
        ### END SOLUTION

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute this rank's output features. About 1 line."""
        ### BEGIN SOLUTION
        return F.linear(x, self.weight, self.bias)
        ### END SOLUTION


class RowParallelLinear(nn.Module):
    """Linear layer sharded by input features: (T, I/p) -> (T, O)."""

    def __init__(self, linear: nn.Linear, group: Rank) -> None:
        """Keep this rank's shard of the weight, and all of the bias. About 3 lines."""
        super().__init__()
        ### BEGIN SOLUTION
        self.group = group
        self.weight = shard_parameter(linear.weight, 1, group)
        self.bias = nn.Parameter(linear.bias.detach().clone())
        ### END SOLUTION

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sum the ranks' products, then add the bias. About 2 lines."""
        ### BEGIN SOLUTION
        product = F.linear(x, self.weight)
        return reduce_from_tensor_parallel_region(product, self.group) + self.bias
        ### END SOLUTION


class ParallelMLP(nn.Module):
    """MLP down(relu(up(x))), sharded by hidden features: (T, D) -> (T, O)."""

    def __init__(self, up: nn.Linear, down: nn.Linear, group: Rank) -> None:
        """Shard both layers. About 3 lines."""
        super().__init__()
        ### BEGIN SOLUTION
        self.group = group
        self.up = ColumnParallelLinear(up, group)
        self.down = RowParallelLinear(down, group)
        ### END SOLUTION

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the MLP to all of x. About 2 lines."""
        ### BEGIN SOLUTION
        hidden = self.up(copy_to_tensor_parallel_region(x, self.group)).relu()
        return self.down(hidden)
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "take_part"}
check("take_part")

# %% nbgrader={"grade": true, "grade_id": "column_linear"}
check("column_linear")

# %% nbgrader={"grade": true, "grade_id": "row_linear"}
check("row_linear")

# %% nbgrader={"grade": true, "grade_id": "parallel_mlp"}
check("parallel_mlp")

# %% [markdown]
# ## Task 2 · Vocabulary-parallel cross-entropy
#
# *About 40 minutes.*
#
# **Goal.** The widest matrix of all is the LM head. Sharded by columns, it leaves each rank with the logits of V/p
# tokens of the vocabulary, and gathering them would send V numbers per token, where the other layers send about D.
# Compute the loss without gathering them.
#
# For a token with logits $z_v$ and target $y$, the loss is $\log \sum_v e^{z_v - M} - (z_y - M)$ with $M = \max_v z_v$.
# Three numbers determine it: the largest logit, the sum of exponentials and the target's logit. Each rank knows its
# part of all three. How do the parts combine, and which of them cannot be summed?
#
# **Predict, then measure.** There are 4 ranks, 256 tokens and a vocabulary of 8,192, and a logit has 8 bytes. If all
# logits are gathered round a ring, how many megabytes does each rank send? The cells after the task measure it.

# %%
guess = None  # MB that each rank sends to gather all logits

# %% [markdown]
# **Interface.** `vocab_parallel_cross_entropy(logits, targets, group)` returns the mean loss over T tokens, a scalar
# (zero-dimensional) tensor, equal on every rank.
#
# | | shape | |
# |---|---|---|
# | `logits` | (T, V/p) | rank r has tokens r·V/p to (r + 1)·V/p - 1 of the vocabulary |
# | `targets` | (T,) | token ids, the same on all ranks: the logits of most targets are on other ranks |
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# logits = torch.tensor([[1.0, 2.0, 0.0, 1000.0], [3.0, 0.0, 1.0, 2.0]]).double()
# targets = torch.tensor([3, 0])
# program = lambda group, own: vocab_parallel_cross_entropy(own, targets, group).item()
# losses = run(program, list(logits.chunk(2, 1))).results
# expected = F.cross_entropy(logits, targets).item()
# [abs(loss - expected) < 1e-9 for loss in losses]  # → [True, True]
# ```
#
# **Requirements**
#
# - `backward()` gives each rank the gradient of its own logits, (softmax - one-hot)/T times the incoming gradient, and
#   sends nothing. Derive it for one token first, if you have not seen it before.
# - Each rank sends at most 3(p - 1) numbers per token in all.
# - Logits may be large: $e^{1000}$ overflows, and a rank's own maximum is not the maximum of all.
# - The collectives add, and a maximum is not a sum: gather the ranks' maxima, and take the largest yourself.
#
# **Size:** about 11 and 4 lines.
#
# <details><summary>Details</summary>
#
# - Some logits may be $-\infty$, as those of a padded vocabulary are; but each rank has at least one finite logit for
#   every token, and every target's logit is finite.
# - The backward pass may run twice (`retain_graph=True`), so it must not write into what `forward` saved.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-2-loss"}
#| export
class VocabParallelCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of sharded logits, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, group: Rank
    ) -> torch.Tensor:
        """Return the mean loss. About 11 lines."""
        ### BEGIN SOLUTION
        maxima = collectives.all_gather(group, logits.max(1).values)
        largest = torch.stack(maxima).max(0).values  # (T,)
        exponentials = (logits - largest[:, None]).exp()
        local_ids = targets - group.rank * logits.shape[1]
        is_local = (local_ids >= 0) & (local_ids < logits.shape[1])
        tokens, columns = is_local.nonzero()[:, 0], local_ids[is_local]
        target_logit = torch.zeros_like(largest)
        target_logit[tokens] = logits[tokens, columns] - largest[tokens]
        parts = torch.stack([exponentials.sum(1), target_logit])
        total, target_logit = collectives.all_reduce(group, parts)
        ctx.save_for_backward(exponentials / total[:, None], tokens, columns)
        return (total.log() - target_logit).mean()
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the gradient of this rank's logits. About 4 lines."""
        ### BEGIN SOLUTION
        probabilities, tokens, columns = ctx.saved_tensors
        difference = probabilities.clone()
        difference[tokens, columns] -= 1
        return difference * gradient / len(difference), None, None
        ### END SOLUTION


def vocab_parallel_cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, group: Rank
) -> torch.Tensor:
    """Mean cross-entropy of logits (T, V/p) and targets (T,)."""
    return VocabParallelCrossEntropy.apply(logits, targets, group)


# %% nbgrader={"grade": true, "grade_id": "cross_entropy"}
check("cross_entropy")

# %% [markdown]
# **Measure** what you predicted.

# %%
RANKS, TOKENS, VOCABULARY = 4, 256, 8192
torch.manual_seed(0)
all_logits = torch.randn(TOKENS, VOCABULARY).double()
targets = torch.randint(VOCABULARY, (TOKENS,))


def gathered_loss(group, own):
    """The loss of all logits, gathered on every rank."""
    logits = torch.cat(collectives.all_gather(group, own), 1)
    return F.cross_entropy(logits, targets).item()


def sharded_loss(group, own):
    """The loss without a gather."""
    return vocab_parallel_cross_entropy(own, targets, group).item()


sent = {}
for program in (gathered_loss, sharded_loss):
    losses, ledger = run(program, list(all_logits.chunk(RANKS, 1)))
    sent[program] = ledger.sent_bytes()[0]
    print(f"{program.__name__}: {losses[0]:.12f}, {sent[program]:>10,} bytes per rank")
print(f"{sent[gathered_loss] / sent[sharded_loss]:,.0f} times fewer bytes")
check.predict(guess, sent[gathered_loss] / 1e6, "MB", within=0.05)

# %% [markdown]
# In a ring all-gather each rank sends p - 1 shards, its own and p - 2 that it passes on, so the bytes grow with V;
# those of three numbers per token do not. With the 128,256 tokens of Llama 3's vocabulary the ratio is 16 times larger
# still.
#
# ## Task 3 · A pipeline
#
# *About 70 minutes.*
#
# **Goal.** Between two layers there is one activation to send, so cutting there sends least. Rank r becomes **stage**
# r, and the batch passes through in m micro-batches: write the 1F1B schedule, and the loop in which a rank carries out
# any schedule.
#
# A schedule lists the actions of each rank in order: `Action("forward", i)` or `Action("backward", i)` for micro-batch
# i. From its forward to its backward pass the activations of micro-batch i are kept: the micro-batch is *in flight*.
# GPipe runs all forward passes first, and keeps m micro-batches in flight. **1F1B** (one forward, one backward)
# alternates: rank r first runs the forward passes of `ranks - r` micro-batches, or of all if there are fewer. Then it
# runs one backward and one forward pass in turn, and finally the remaining backward passes.
#
# **Predict, then measure.** Let a forward pass take 1 s and a backward pass 2 s on each of 4 stages, with 8
# micro-batches, and let messages take no time. What fraction of the step is a stage idle under 1F1B? Draw it first.

# %%
guess = None  # fraction of the step that a stage is idle

# %% [markdown]
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `one_forward_one_backward(ranks, micro_batches)` | list of lists of `Action` | the schedule of all ranks |
# | `Pipeline(chunks, group)` | – | given: `chunks[0](x)` runs this rank's layers, (T, D) → (T, D') |
# | `pipeline.step(schedule, inputs, targets, loss)` | mean loss, or `None` | runs this rank's actions |
#
# `inputs` and `targets` are lists of m tensors. Only the first rank may read the inputs, only the last rank the
# targets. `loss(output, target)` returns a scalar tensor.
#
# **Example** (two ranks, three micro-batches; F is a forward and B a backward pass)
#
# ```python
# from mlsys_lab.comm import run
# schedule = one_forward_one_backward(ranks=2, micro_batches=3)
# show_actions = lambda actions: " ".join(f"{a.kind[0].upper()}{a.micro_batch}" for a in actions)
# show_actions(schedule[0])  # → "F0 F1 B0 F2 B1 B2"
# show_actions(schedule[1])  # → "F0 B0 F1 B1 F2 B2"
# x = [torch.ones(1, 1).double() * i for i in (1, 2, 3)]
# layers = [nn.Linear(1, 1).double() for _ in range(2)]
# loss = lambda output, target: (output - target).square().mean()
# program = lambda group, layer: Pipeline([layer], group).step(schedule, x, x, loss)
# means = run(program, layers).results
# expected = sum(loss(layers[1](layers[0](one)), one).item() for one in x) / 3
# means[0], abs(means[1] - expected) < 1e-12  # → (None, True)
# ```
#
# **Requirements**
#
# - 1F1B: rank r has at most `ranks - r` micro-batches in flight, and the step takes no longer than under GPipe, however
#   long forward and backward passes are.
# - `step`, forward: take the input, or receive it from the rank before; run the chunk; keep what the backward pass
#   needs; send the output on.
# - `step`, backward: start from the loss **divided by m** on the last rank, elsewhere from the received gradient of the
#   output. Then send the gradient of the chunk's input to the rank before. Gradients of the parameters accumulate in
#   `grad`.
# - Run the actions in the given order, whichever it is, and release the activations and the graph of a finished
#   micro-batch: what a rank holds is counted.
# - `step` returns the mean loss on the last rank (a float, or a tensor without a graph) and `None` elsewhere.
#
# **Size:** about 9 and 20 lines.
#
# <details><summary>Details</summary>
#
# - Two neighbours that both `send` wait for each other forever. Which call does not wait? And when may you wait for it?
#   Requests may be posted early, and kept until the end of the step.
# - All ranks run the micro-batches in the same order forward, and in the same order backward; it need not be 1F1B's.
# - A received tensor has no gradient yet: call `requires_grad_()` on it. The inputs are data; leave them as they are.
# - Micro-batches may have different numbers of tokens. Running a chunk again in the backward pass is allowed.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-3-pipeline"}
#| export
class Action(NamedTuple):
    """A pass of one micro-batch through a rank's chunk."""

    kind: str  # "forward" or "backward"
    micro_batch: int
    chunk: int = 0  # always 0 in this lab


def one_forward_one_backward(ranks: int, micro_batches: int) -> list[list[Action]]:
    """1F1B: warm up, alternate, then cool down. About 9 lines."""
    ### BEGIN SOLUTION
    schedule = []
    for rank in range(ranks):
        warm_up = min(ranks - 1 - rank, micro_batches)
        actions = [Action("forward", i) for i in range(warm_up)]
        for i in range(warm_up, micro_batches):
            actions += [Action("forward", i), Action("backward", i - warm_up)]
        cool_down = range(micro_batches - warm_up, micro_batches)
        schedule.append(actions + [Action("backward", i) for i in cool_down])
    return schedule
    ### END SOLUTION


class Pipeline:
    """This rank's stage of a model split by layers over the ranks of `group`."""

    def __init__(self, chunks: Sequence[nn.Module], group: Rank) -> None:
        self.chunks, self.group = list(chunks), group

    def step(
        self,
        schedule: Sequence[Sequence[Action]],
        inputs: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor | float | None:
        """Run this rank's actions; the mean loss on the last rank. About 20 lines."""
        ### BEGIN SOLUTION
        group, last = self.group, self.group.size - 1
        kept, sends, total = {}, [], 0.0
        for kind, i, *_ in schedule[group.rank]:
            if kind == "forward":
                is_first = group.rank == 0
                x = inputs[i] if is_first else group.recv(group.rank - 1)
                x = x if is_first else x.requires_grad_()
                output = self.chunks[0](x)
                if group.rank == last:
                    output = loss(output, targets[i]) / len(inputs)
                    total += output.item()
                else:
                    sends.append(group.isend(output, group.rank + 1))
                kept[i] = x, output
            else:
                gradient = None if group.rank == last else group.recv(group.rank + 1)
                x, output = kept.pop(i)
                output.backward(gradient)
                if group.rank > 0:
                    sends.append(group.isend(x.grad, group.rank - 1))
        for request in sends:
            request.wait()
        return total if group.rank == last else None
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "schedule"}
check("schedule")

# %% nbgrader={"grade": true, "grade_id": "run_stage"}
check("run_stage")

# %% [markdown]
# **Measure** what you predicted. `simulate` plays your schedule; each row is a stage, light is forward, dark backward.

# %%
import plotly.graph_objects as go

from mlsys_lab.widgets import show

FORWARD_S, BACKWARD_S = 1.0, 2.0


def simulate(schedule):
    """Start times by (kind, micro-batch, rank), and the time at which the step ends."""
    starts, ends, free = {}, {}, [0.0] * len(schedule)
    queues = [list(actions) for actions in schedule]
    while any(queues):
        ready = []
        for rank, queue in enumerate(queues):
            kind, i = queue[0][:2] if queue else ("", 0)
            other = rank - 1 if kind == "forward" else rank + 1
            needs = [("forward", i, rank)] if kind == "backward" else []
            needs += [(kind, i, other)] if 0 <= other < len(queues) else []
            if queue and all(need in ends for need in needs):
                ready.append((rank, (kind, i, rank), needs))
        if not ready:
            raise ValueError("the ranks wait for each other")
        for rank, key, needs in ready:
            starts[key] = max([free[rank], *(ends[need] for need in needs)])
            seconds = FORWARD_S if key[0] == "forward" else BACKWARD_S
            free[rank] = ends[key] = starts[key] + seconds
            queues[rank].pop(0)
    return starts, max(free)


def draw(schedule):
    """Bars of a schedule, a row for each stage."""
    figure = go.Figure()
    for (kind, i, rank), start in simulate(schedule)[0].items():
        colour = "#a9bce8" if kind == "forward" else "#4269d0"
        figure.add_bar(
            y=[f"stage {rank}"],
            x=[FORWARD_S if kind == "forward" else BACKWARD_S],
            base=[start],
            orientation="h",
            marker={"color": colour, "line": {"color": "white", "width": 1}},
            text=[str(i)],
            hovertext=[f"{kind} {i} at {start:g} s"],
            hoverinfo="text",
            showlegend=False,
        )
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(barmode="overlay", xaxis_title="seconds", margin_t=30)
    return figure


STAGES, MICRO_BATCHES = 4, 8
gpipe = [
    [Action(kind, i) for kind in ("forward", "backward") for i in range(MICRO_BATCHES)]
] * STAGES
for name, schedule in (
    ("GPipe", gpipe),
    ("1F1B", one_forward_one_backward(STAGES, MICRO_BATCHES)),
):
    _, end_s = simulate(schedule)
    idle = 1 - MICRO_BATCHES * (FORWARD_S + BACKWARD_S) / end_s
    print(f"{name}: the step takes {end_s:g} s, {idle:.1%} of it idle")
check.predict(guess, idle, "of the step idle", within=0.05)
show(draw(schedule), alt="Four stages under 1F1B: idle at both ends", height=300)

# %% [markdown]
# Both schedules lose the same p - 1 forward and backward times: $(p-1)/(m+p-1)$ of the step. This idle time is called
# the pipeline **bubble**. What 1F1B saves is memory, p micro-batches in flight in place of m; so m may grow, and that
# makes the bubble small.
#
# **End of part 1.** You can now divide the weights of a model in both directions. This is a good place to stop; part 2
# uses none of your code from part 1, and only Task 6 needs the bubble again.
# %% [markdown]
# ## Part 2 · Dividing the tokens
#
# ## Task 4 · Ring attention
#
# *About 60 minutes.*
#
# **Goal.** A sequence that is too long for one GPU is divided by its tokens. Only attention mixes tokens: a query needs
# the keys and values of all earlier ones. In **ring attention** (Liu et al. 2023) the queries stay, and keys and values
# go round: a rank computes on the block that it has while the next block is on its way.
#
# Which tokens should a rank have? With one contiguous chunk each, a causal mask gives the last rank the most work, and
# all ranks wait for it. **Zigzag** order balances the work: cut the sequence into 2p chunks; rank r takes chunks r and
# 2p - 1 - r. (Llama 3 was trained with this division, but gathers all keys and values instead of passing them round a
# ring.)
#
# **Predict, then measure.** A sequence of 4,096 tokens is divided into contiguous chunks over 8 ranks, and a query
# attends to itself and all earlier tokens. How many times the mean number of scores does the last rank compute?

# %%
guess = None  # scores of the last rank, divided by the mean

# %% [markdown]
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `zigzag_positions(tokens, ranks)` | list of p int64 tensors (T/p,) | the token positions of each rank, ascending |
# | `ring_attention(q, k, v, group, positions)` | (B, N, T/p, H) | causal attention of this rank's queries |
#
# `q`, `k` and `v` are (B, N, T/p, H): B sequences, N heads, this rank's T/p tokens, head dimension H. `positions[r]`
# are the positions of rank r's tokens; they may be in any order, and divided among the ranks in any way: a query sees a
# key if the key's position is not larger than its own. Scores are divided by $\sqrt H$.
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# [one.tolist() for one in zigzag_positions(8, 2)]  # → [[0, 1, 6, 7], [2, 3, 4, 5]]
# torch.manual_seed(0)
# q, k, v = torch.randn(3, 1, 2, 8, 4).double()  # one sequence of 8 tokens, 2 heads
# positions = zigzag_positions(8, 2)
# program = lambda group, own: ring_attention(*own, group, positions)
# shards = [[x[:, :, own] for x in (q, k, v)] for own in positions]
# result = torch.cat(run(program, shards).results, 2)
# expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
# torch.allclose(result, expected[:, :, torch.cat(positions)])  # → True
# ```
#
# **Requirements**
#
# - For each query keep three things: the largest score so far, $M$; the sum of $e^{s - M}$; the same sum with each term
#   times its value. A block may bring a larger maximum $M'$: by which factor must both sums be multiplied? Derive it.
# - Every block visits each other rank once. A rank computes p times; each time but the last, it sends its block on and
#   receives the next.
# - A rank has memory for its own block, the block that it works on and one in flight: gathering all p is too much.
# - Only the forward pass is asked for; no gradient is taken.
#
# **Size:** about 2 and 22 lines.
#
# <details><summary>Details</summary>
#
# - 2p divides the tokens in `zigzag_positions`; p divides them in `ring_attention`.
# - A query may see nothing of a block. If $M$ and $M'$ are both $-\infty$, their difference is NaN: with which block
#   should a rank start, so that this never happens?
# - One message may hold keys and values together, or there may be two.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-4-ring"}
#| export
def zigzag_positions(tokens: int, ranks: int) -> list[torch.Tensor]:
    """Positions of each rank: a chunk from the front and its mirror. About 2 lines."""
    ### BEGIN SOLUTION
    chunks = torch.arange(tokens).chunk(2 * ranks)
    return [torch.cat([chunks[r], chunks[2 * ranks - 1 - r]]) for r in range(ranks)]
    ### END SOLUTION


def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: Rank,
    positions: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Causal attention of this rank's queries to all ranks' keys. About 22 lines."""
    ### BEGIN SOLUTION
    p, own = group.size, positions[group.rank]
    right, left = (group.rank + 1) % p, (group.rank - 1) % p
    largest = q.new_full(q.shape[:-1], -torch.inf)  # (B, N, T/p)
    total, weighted = torch.zeros_like(largest), torch.zeros_like(q)
    block = torch.stack([k, v])
    for step in range(p):
        if step < p - 1:
            send, receive = group.isend(block, right), group.irecv(left)
        keys, values = block
        scores = q @ keys.mT / q.shape[-1] ** 0.5  # (B, N, T/p, T/p)
        key_positions = positions[(group.rank - step) % p]
        scores.masked_fill_(key_positions > own[:, None], -torch.inf)
        before, largest = largest, torch.maximum(largest, scores.max(-1).values)
        exponentials = (scores - largest[..., None]).exp()
        rescale = (before - largest).exp()
        total = total * rescale + exponentials.sum(-1)
        weighted = weighted * rescale[..., None] + exponentials @ values
        if step < p - 1:
            send.wait()
            block = receive.wait()
    return weighted / total[..., None]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "zigzag"}
check("zigzag")

# %% nbgrader={"grade": true, "grade_id": "ring_attention"}
check("ring_attention")

# %% [markdown]
# **Measure** what you predicted. All ranks wait for the tallest bar.

# %%
import plotly.graph_objects as go

from mlsys_lab.widgets import show

LENGTH, RING = 4096, 8
orders = {
    "zigzag": zigzag_positions(LENGTH, RING),
    "contiguous": torch.arange(LENGTH).chunk(RING),
}
figure = go.Figure()
for name, positions in orders.items():
    scores = [int((own + 1).sum()) for own in positions]
    figure.add_bar(x=[f"rank {r}" for r in range(RING)], y=scores, name=name)
    slowest = max(scores) / (sum(scores) / RING)
    print(f"{name:10}: the slowest rank computes {slowest:.3f} times the mean")
check.predict(guess, slowest, "times the mean", within=0.05)
figure.update_layout(yaxis_title="scores", margin_t=30)
show(
    figure,
    alt="Scores by rank: rising if contiguous, equal in zigzag order",
    height=320,
)

# %% [markdown]
# With contiguous chunks the last rank takes nearly twice the mean, so nearly half of the GPUs' time is idle. In zigzag
# order each rank has an early chunk with little work and a late one with much, and the sum is the same for all.
#
# ## Task 5 · Expert parallelism
#
# *About 60 minutes.*
#
# **Goal.** A mixture of experts has E MLPs in place of one, and a token uses A of them. Rank r holds experts r·E/p to
# (r + 1)·E/p - 1, so the tokens travel: an **all-to-all** dispatches them to their experts, another returns the
# results, which are then combined. An expert has a limited capacity, and what exceeds it is dropped (GShard, Lepikhin
# et al. 2020).
#
# **Predict, then measure.** A router without preferences sends 512 tokens to 2 of 16 experts each. Every expert has
# capacity for exactly the mean number of tokens (capacity factor 1). What fraction of the choices is dropped?

# %%
guess = None  # fraction of choices dropped at capacity factor 1

# %% [markdown]
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `all_to_all(rank, parts)` | list of p tensors | sends `parts[i]` to rank i; what came from each rank, in order |
# | `route(expert_ids, num_experts, capacity_factor=None)` | `Routing` | the choices to dispatch, sorted by expert |
# | `dispatch_and_combine(tokens, weights, routing, experts, group)` | (n, D) | weighted sums of the experts' results |
#
# `expert_ids` (n, A) are the experts that each of this rank's n tokens chose, best first. A **row** is a choice that is
# dispatched. `tokens` are (n, D), `weights` (n, A). `experts` are this rank's own E/p experts: functions from (any, D)
# to (any, D).


# %%
#| export
@dataclass(frozen=True)
class Routing:
    """R rows to dispatch, sorted by expert."""

    token_indices: torch.Tensor  # (R,) the token of each row
    topk_index: torch.Tensor  # (R,) 0 if the row is the token's first choice, …
    tokens_per_expert: torch.Tensor  # (E,) number of rows for each expert
    num_dropped: int


# %% [markdown]
# **Example** (three tokens want expert 0 first, and there is capacity for ⌈0.75 · 4 · 2 / 3⌉ = 2)
#
# ```python
# from mlsys_lab.comm import run
# expert_ids = torch.tensor([[0, 2], [0, 1], [1, 2], [0, 2]])
# routing = route(expert_ids, num_experts=3, capacity_factor=0.75)
# routing.token_indices.tolist()  # → [0, 1, 2, 1, 0, 2]
# routing.topk_index.tolist()  # → [0, 0, 0, 1, 1, 1]
# routing.tokens_per_expert.tolist(), routing.num_dropped  # → ([2, 2, 2], 2)
# parts = [[torch.tensor([r, i]) for i in range(2)] for r in range(2)]
# received = run(all_to_all, parts).results
# [one.tolist() for one in received[1]]  # → [[0, 1], [1, 1]]
# experts = [lambda rows: 2 * rows, lambda rows: 3 * rows, lambda rows: 5 * rows]
# tokens, weights = torch.ones(4, 1), torch.tensor([[0.5, 0.5]] * 4)
# program = lambda group, own: dispatch_and_combine(tokens, weights, routing, own, group)
# run(program, [experts]).results[0].flatten().tolist()  # → [3.5, 2.5, 4.0, 0.0]
# ```
#
# **Requirements**
#
# - `all_to_all`: shapes may differ, and parts may be empty. This rank's own part is returned as a copy, without a
#   message.
# - `route`: each expert takes at most ⌈`capacity_factor` · n · A / E⌉ rows from this rank; `None` means no limit. All
#   tokens' first choices come before all second choices, earlier tokens before later ones. Rows are sorted by expert,
#   and in this order for each expert.
# - `dispatch_and_combine`: a row's result is multiplied by its weight on the token's own rank, and a token's results
#   are added up. Weights are not renormalized; a token without rows gets zeros.
# - Each row sends D numbers there and D back. A rank cannot know which rows will arrive, nor for which of its experts:
#   tell it first, in at most one 8-byte number per expert of the receiving rank, or per row.
# - Each expert sees each of its rows once.
#
# **Size:** about 8, 10 and 12 lines.
#
# <details><summary>Details</summary>
#
# - p divides E. `dispatch_and_combine` is collective: a rank without tokens, or whose experts no token chose, calls it
#   too.
# - Calling an expert with no rows at all is allowed.
# - In the checks, `capacity_factor` is a multiple of 1/4, so that rounding does not matter.
# - `bincount(minlength=…)`, a stable `argsort`, `split` and `index_add` do most of the work without loops over tokens.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-5-experts"}
#| export
def all_to_all(rank: Rank, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Send parts[i] to each rank i; what came from each rank. About 8 lines."""
    ### BEGIN SOLUTION
    received = [parts[rank.rank].clone()] * rank.size
    for step in range(1, rank.size):
        destination = (rank.rank + step) % rank.size
        source = (rank.rank - step) % rank.size
        request = rank.isend(parts[destination], destination)
        received[source] = rank.recv(source)
        request.wait()
    return received
    ### END SOLUTION


def route(
    expert_ids: torch.Tensor, num_experts: int, capacity_factor: float | None = None
) -> Routing:
    """Sort choices by expert, and drop what exceeds the capacity. About 10 lines."""
    ### BEGIN SOLUTION
    num_tokens, top_k = expert_ids.shape
    choices = expert_ids.T.reshape(-1)  # all first choices, then all second ones
    capacity = len(choices)
    if capacity_factor is not None:
        capacity = math.ceil(capacity_factor * num_tokens * top_k / num_experts)
    order = choices.argsort(stable=True)
    counts = choices.bincount(minlength=num_experts)
    first_row = (counts.cumsum(0) - counts)[choices[order]]  # of the row's expert
    rows = order[torch.arange(len(order)) - first_row < capacity]
    num_dropped = len(choices) - len(rows)
    counts = counts.clamp(max=capacity)
    return Routing(rows % num_tokens, rows // num_tokens, counts, num_dropped)
    ### END SOLUTION


def dispatch_and_combine(
    tokens: torch.Tensor,
    weights: torch.Tensor,
    routing: Routing,
    experts: Sequence[Callable[[torch.Tensor], torch.Tensor]],
    group: Rank,
) -> torch.Tensor:
    """Weighted sums of the experts' results for this rank's tokens. About 12 lines."""
    ### BEGIN SOLUTION
    send_counts = routing.tokens_per_expert.view(group.size, -1)  # (p, E/p)
    receive_counts = torch.stack(all_to_all(group, list(send_counts)))  # (p, E/p)
    sends, receives = send_counts.sum(1).tolist(), receive_counts.sum(1).tolist()
    rows = tokens[routing.token_indices].split(sends)
    dispatched = torch.cat(all_to_all(group, rows))
    local_ids = torch.arange(len(experts)).repeat(group.size)
    expert_of_row = local_ids.repeat_interleave(receive_counts.flatten())
    results = torch.empty_like(dispatched)
    for i, expert in enumerate(experts):
        results[expert_of_row == i] = expert(dispatched[expert_of_row == i])
    returned = torch.cat(all_to_all(group, results.split(receives)))
    weighted = returned * weights[routing.token_indices, routing.topk_index, None]
    return torch.zeros_like(tokens).index_add(0, routing.token_indices, weighted)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "all_to_all"}
check("all_to_all")

# %% nbgrader={"grade": true, "grade_id": "route"}
check("route")

# %% nbgrader={"grade": true, "grade_id": "dispatch"}
check("dispatch")

# %% [markdown]
# **Measure** what you predicted. The second router prefers some experts to others.

# %%
torch.manual_seed(5)
TOKENS, EXPERTS, TOP_K = 512, 16, 2
logits = torch.randn(TOKENS, EXPERTS)
routers = {
    "router with preferences": logits + torch.linspace(-1, 1, EXPERTS),
    "even router": logits,
}
factors = [0.5 + 0.25 * step for step in range(13)]
figure = go.Figure()
for name, scores in routers.items():
    expert_ids = scores.topk(TOP_K).indices
    dropped = {
        factor: route(expert_ids, EXPERTS, factor).num_dropped / (TOKENS * TOP_K)
        for factor in factors
    }
    figure.add_scatter(
        x=factors, y=list(dropped.values()), mode="lines+markers", name=name
    )
    loads = route(expert_ids, EXPERTS).tokens_per_expert
    print(f"{name}: fullest expert {loads.max()} rows, {dropped[1.0]:.1%} dropped at 1")
check.predict(guess, dropped[1.0], "of the choices dropped", within=0.5)
figure.update_layout(
    xaxis_title="capacity factor",
    yaxis_title="choices dropped",
    yaxis_tickformat=".0%",
    margin_t=30,
)
show(figure, alt="Dropped choices fall with capacity, later if experts are preferred")

# %% [markdown]
# Even without preferences, chance alone spreads the loads: with a mean of 64 rows their standard deviation is about
# 7.5. The excess over the mean, counted as 0 for an expert below it, averages 0.4 standard deviations: 3 rows of 64, or
# nearly 5% of the choices. A larger factor drops fewer choices and makes all ranks wait longer for the fullest expert;
# balancing the router itself is the better remedy.
#
# ## Task 6 · Which layout?
#
# *About 40 minutes.*
#
# **Goal.** A cluster has nodes whose GPUs are joined by fast links, and a slower network between them. A **layout**
# uses d·t·p GPUs: d data-parallel replicas, each of t tensor-parallel ranks in p pipeline stages. Predict the time of a
# step from the bytes that each GPU sends, and choose the fastest layout that fits.
#
# A step processes `batch` sequences of T tokens; each replica runs m = `batch`/d micro-batches of one sequence. Nothing
# overlaps, and every number sent takes 2 bytes. The seconds of a step have four parts:
#
# | part | what it is |
# |---|---|
# | `"compute"` | 6 FLOPs per parameter and token of the batch, divided evenly among all GPUs |
# | `"bubble"` | the seconds that the pipeline of Task 3 is idle if its busy seconds are `"compute"` |
# | `"link"` | bytes sent within the node: tensor parallelism's all-reduces, and gradients |
# | `"network"` | bytes sent between nodes: the pipeline's activations, and gradients |
#
# Per GPU, and with the ring algorithms of lab 07:
#
# - *Tensor:* per layer and micro-batch, 4 all-reduces (2 forward, 2 backward) of T·D numbers over the t ranks.
# - *Pipeline:* if p > 1, each micro-batch sends T·D/t numbers forward and as many backward: the t ranks of a stage hold
#   the same activation, so each sends only 1/t of it. (The all-gather that puts it together again in the next stage is
#   not counted.)
# - *Gradients* of the GPU's own parameters, 1/(t·p) of the model, are summed over the d replicas, of which g = min(d,
#   node/t) are in one node. They are reduce-scattered over the g ranks of the node; each GPU then all-reduces its 1/g
#   of the gradients across the d/g nodes, over the network; and an all-gather within the node completes the sum.
#
# So first derive the bytes: a ring all-reduce of S bytes over n ranks sends 2(n - 1)/n · S per rank, and a
# reduce-scatter or an all-gather half of it. How many bytes per GPU do the three steps of the gradient sum send, then?
#
# **Interface**
#
# | | returns |
# |---|---|
# | `step_seconds(config, machine, layout, batch, tokens)` | dictionary with the four parts, in seconds |
# | `choose_layout(config, machine, devices, batch, tokens)` | the fastest `Layout` that fits, or `None` |


# %%
#| export
@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of a transformer with a gated MLP."""

    layers: int
    d_model: int
    d_ff: int

    @property
    def num_parameters(self) -> int:
        """Parameters of attention and the MLP; embeddings are left out."""
        return self.layers * (4 * self.d_model**2 + 3 * self.d_model * self.d_ff)


@dataclass(frozen=True)
class Machine:
    """Limits of a GPU: FLOP/s, bytes, bytes/s; `node` GPUs in a node."""

    peak_flops_per_s: float
    memory_bytes: float
    link_bytes_per_s: float
    network_bytes_per_s: float
    node: int


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism; data · tensor · pipeline GPUs in all."""

    data: int
    tensor: int
    pipeline: int


# %% [markdown]
# **Example** (a small model; all rates are 1, so the values are FLOPs and bytes)
#
# ```python
# config = TransformerConfig(layers=4, d_model=8, d_ff=16)
# config.num_parameters  # → 2560
# unit = Machine(1, math.inf, 1, 1, node=4)
# step_seconds(config, unit, Layout(1, 2, 2), batch=3, tokens=10)["compute"]  # → 115200
# step_seconds(config, unit, Layout(1, 2, 2), batch=3, tokens=10)["bubble"]  # → 38400
# step_seconds(config, unit, Layout(1, 2, 2), batch=3, tokens=10)["link"]  # → 3840
# step_seconds(config, unit, Layout(1, 2, 2), batch=3, tokens=10)["network"]  # → 480
# gradients = step_seconds(config, unit, Layout(8, 1, 1), batch=8, tokens=10)
# gradients["link"], gradients["network"]  # → (7680, 1280)
# machine = Machine(1e15, 24e9, 4.5e11, 5e10, node=8)
# large = TransformerConfig(layers=32, d_model=4096, d_ff=14336)
# choose_layout(large, machine, devices=16, batch=64, tokens=4096)  # → Layout(2, 2, 4)
# ```
#
# **Requirements** for `choose_layout`
#
# - The layout uses all devices; t divides the node and D, p divides the layers, d divides the batch.
# - It fits: at most `memory_bytes` per GPU, and exactly full fits. A GPU holds 1/(t·p) of the parameters. For each of
#   these it stores 4 bytes (weights and gradients) and 12/d bytes (optimizer states, ZeRO-1). Activations come on top.
# - Activations take T·D·(10 + 24/t) bytes per layer of the stage, for each of the min(p, m) micro-batches in flight.
#   (This is Korthikanti et al. 2022 for an MLP with `d_ff` = 4D, without the attention scores, which are recomputed.)
#
# **Size:** about 16 and 17 lines.
#
# <details><summary>Details</summary>
#
# - `step_seconds` is only called with layouts that divide evenly, whether they fit or not.
# - In the checks, g divides d in all of these layouts.
# - If several layouts take the same time, return any of them.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-6-layout"}
#| export
def step_seconds(
    config: TransformerConfig, machine: Machine, layout: Layout, batch: int, tokens: int
) -> dict[str, float]:
    """Seconds of a step by "compute", "bubble", "link", "network". About 16 lines."""
    ### BEGIN SOLUTION
    d, t, p = layout.data, layout.tensor, layout.pipeline
    m, g = batch // d, min(d, machine.node // t)
    flops = 6 * config.num_parameters * batch * tokens
    compute = flops / (d * t * p) / machine.peak_flops_per_s
    activation = 2 * tokens * config.d_model  # bytes
    gradients = 2 * config.num_parameters / (t * p)  # bytes
    link = 4 * m * config.layers / p * 2 * (t - 1) / t * activation
    link += 2 * (g - 1) / g * gradients
    network = 2 * (d / g - 1) / (d / g) * gradients / g
    if p > 1:
        network += 2 * m * activation / t
    return {
        "compute": compute,
        "bubble": compute * (p - 1) / m,
        "link": link / machine.link_bytes_per_s,
        "network": network / machine.network_bytes_per_s,
    }
    ### END SOLUTION


def choose_layout(
    config: TransformerConfig, machine: Machine, devices: int, batch: int, tokens: int
) -> Layout | None:
    """Fastest layout that divides evenly and fits, or None. About 17 lines."""
    ### BEGIN SOLUTION
    best, least_s = None, math.inf
    for t in range(1, min(machine.node, devices) + 1):
        if machine.node % t or config.d_model % t or devices % t:
            continue
        for p in range(1, min(config.layers, devices // t) + 1):
            d = devices // t // p
            if devices // t % p or config.layers % p or batch % d:
                continue
            held = config.num_parameters / (t * p) * (4 + 12 / d)
            in_flight = min(p, batch // d) * config.layers / p
            held += in_flight * tokens * config.d_model * (10 + 24 / t)
            layout = Layout(d, t, p)
            parts = step_seconds(config, machine, layout, batch, tokens)
            if held <= machine.memory_bytes and sum(parts.values()) < least_s:
                best, least_s = layout, sum(parts.values())
    return best
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "step_parts"}
check("step_parts")

# %% nbgrader={"grade": true, "grade_id": "choose_layout"}
check("choose_layout")

# %% [markdown]
# **See it.** Four layouts of a model with Llama 2 70B's layers and widths on 512 H100s (78 billion parameters by the
# formula above, which gives each query head its own keys and values). Next to your seconds stand those of the course's
# own estimator, which counts more: attention's scores, embeddings, the LM head, and memory traffic. Before you run the
# cell: which part will be the largest after compute in each of the last three?

# %%
from mlsys_lab import configs, hardware
from mlsys_lab.flops.bounds import machine as machine_of
from mlsys_lab.flops.estimate import estimate_training
from mlsys_lab.flops.layout import Layout as PackageLayout
from mlsys_lab.flops.memory import RECIPES

h100 = machine_of(hardware.device("H100"), "bf16")
rates = (h100.link_bytes_per_s, h100.network_bytes_per_s)
limits = Machine(h100.peak_flops_per_s, h100.memory_bytes, *rates, h100.node)
llama = TransformerConfig(layers=80, d_model=8192, d_ff=28672)
full = configs.TransformerConfig("70B", 80, 8192, 64, 28672, 32000, 4096)
DEVICES, BATCH, TOKENS = 512, 1024, 4096

layouts = {
    "yours": choose_layout(llama, limits, DEVICES, BATCH, TOKENS),
    "no pipeline": Layout(64, 8, 1),
    "no tensor parallelism": Layout(32, 1, 16),
    "deep": Layout(4, 8, 16),
}
parts = {
    name: step_seconds(llama, limits, layout, BATCH, TOKENS)
    for name, layout in layouts.items()
}
figure = go.Figure()
for part in ("compute", "bubble", "link", "network"):
    seconds = [one[part] for one in parts.values()]
    figure.add_bar(y=list(layouts), x=seconds, name=part, orientation="h")
for name, layout in layouts.items():
    d, t, p = layout.data, layout.tensor, layout.pipeline
    theirs = PackageLayout(data=d, tensor=t, pipeline=p, zero_stage=1)
    estimate = estimate_training(
        full, h100, theirs, RECIPES["mixed16"], batch=BATCH, tokens=TOKENS
    )
    in_turn_s = estimate.bounds["step"].in_turn_s
    yours_s = sum(parts[name].values())
    print(
        f"{name:21} {d:2} × {t} × {p:2}: {yours_s:5.1f} s, estimator {in_turn_s:5.1f} s"
    )
figure.update_layout(
    barmode="stack",
    xaxis_title="seconds of a step",
    yaxis_autorange="reversed",
    margin_t=30,
)
show(figure, alt="Seconds of a step by layout: compute, bubble, link, network")

# %% [markdown]
# Compute is the same everywhere. Tensor parallelism over 8 GPUs costs time on the links. The layout without it loses
# its time in the bubble: 16 stages, and only 32 micro-batches for each replica. That layout does not even fit by the
# rules of Task 6: with t = 1 the activations alone take 91 GB per GPU, so `choose_layout` rejects it. The deep layout
# has 4 replicas with 256 micro-batches each, so its bubble is small although it has just as many stages. Sequence
# parallelism, interleaved stages and overlap, which the package can estimate too, lower the bars; [chapter
# 11](../chapters/11-model-parallel.md) goes through them.
#
# ## Stretch: no points
#
# - **Interleaved 1F1B.** Give each rank two chunks (`chunks[0]` and `chunks[1]`, `Action.chunk`) and let a micro-batch
#   go round the ranks twice (Narayanan et al. 2021). What is the bubble now, and how many messages does it cost?
# - **Ring attention backward.** Gradients of keys and values travel with their block and return home in the last step.
#   Write a `torch.autograd.Function` for it and compare with `mlsys_lab/parallel/context.py`.
# - **Sequence parallelism.** Replace each all-reduce of Task 1 by a reduce-scatter and an all-gather over tokens.
#
# ## What you can read now
#
# - Megatron-LM, `megatron/core/tensor_parallel/mappings.py`: `_CopyToModelParallelRegion` and
#   `_ReduceFromModelParallelRegion`; `layers.py`: `ColumnParallelLinear`, `RowParallelLinear`; `cross_entropy.py`.
# - Megatron-LM, `megatron/core/pipeline_parallel/schedules.py`: `forward_backward_pipelining_without_interleaving` is
#   your `step` with 1F1B built in.
# - PyTorch, `torch/distributed/pipelining/schedules.py`: `ScheduleGPipe`, `Schedule1F1B`, `ScheduleInterleaved1F1B`;
#   and `torch/distributed/tensor/parallel/style.py`: `ColwiseParallel`, `RowwiseParallel`.
# - Megatron-LM, `megatron/core/transformer/moe/token_dispatcher.py`: `MoEAlltoAllTokenDispatcher`.
# - The course's own `mlsys_lab/parallel`: `tensor`, `pipeline`, `context.py`, `expert.py`, the same names as here.
#
# ## Test yourself
#
# <details><summary>What would the MLP send if the first matrix were cut by rows and the second by columns?</summary>
#
# The first product is a sum over ranks, and the ReLU of a sum is not the sum of the ReLUs: the product must be
# all-reduced before the ReLU, which sends T·F numbers (F is the hidden size). The second product then leaves each rank
# some columns of the result, which must be gathered.
#
# </details>
#
# <details><summary>Sequence parallelism sends as many bytes as the all-reduces of Task 1. What is gained?</summary>
#
# Memory: between the two regions (norms, dropout, residual stream) each rank holds T/p tokens in place of all T.
#
# </details>
#
# <details><summary>Why does 1F1B have the same bubble as GPipe, and how does interleaving shrink it?</summary>
#
# In any schedule, the last stage cannot start until the first micro-batch has passed through the p - 1 stages before
# it, and the first stage cannot finish until the last gradient has come back through the p - 1 stages after it. With v
# chunks per rank these passes are v times shorter, for v times as many messages.
#
# </details>
#
# <details><summary>Ring attention sends every block to every rank. Which messages does a causal mask save?</summary>
#
# With contiguous chunks, no rank before r needs the block of rank r: about half of all visits are useless. In zigzag
# order every rank has a late chunk, whose queries see at least the early chunk of every block: no visit can be left
# out.
#
# </details>
#
# <details><summary>What do the two all-to-alls of an expert layer become in the backward pass?</summary>
#
# Two all-to-alls in the other direction: gradients of the results go to the experts, gradients of the rows return. So
# an expert layer sends four times per training step.
#
# </details>
#
# When all checks pass, save the notebook and run `mlsys-lab check model-parallel` in a terminal.
