# %% [markdown]
# # Lab 09 · Splitting a model: matrices, layers, texts, experts
#
# Data parallelism copies the model, and a model of 70 billion parameters leaves no card room for a copy. So the model
# itself must be cut: through its matrices, between its layers, along the text, or between experts. Each cut sends
# something else at another moment, and each has a mistake that still trains, only worse. Here you cut a model in each
# of these ways, watch every byte, and in the end decide how a cluster should be divided.
#
# **You will build**
#
# 1. an MLP whose matrices are cut into columns and rows, with one sum forward and one backward;
# 2. a cross-entropy of logits that are never put together;
# 3. the 1F1B schedule of a pipeline, and a rank that carries it out;
# 4. attention over a text that is divided among ranks: a ring, an online softmax, and a fair division;
# 5. experts that live on other ranks: routing with a capacity, and tokens that travel there and back;
# 6. a prediction of a step's time by layout, and the best layout for a cluster.
#
# **At the end you can answer**
#
# - Which product of two can be cut into columns so that nothing is sent between them, and what is sent backward?
# - How much of a pipeline's time is idle, and what does a schedule change about memory but not about time?
# - Why does a causal mask make a ring of attention lopsided, and how is it made even?
# - What does a layout of a cluster lose its time by?
#
# **Time:** about 255 minutes (each task says its share). **Points:** 100. **You need:** collectives (lab 07), and
# `torch.autograd.Function`, which lab 08 introduces too. Chapter 11, *Model parallelism*, gives the background.
#
# **Readings it leans on:** *How to Scale Your Model* (`scaling-book`), *The Technology Behind BLOOM Training*
# (`bekman-bloom`), *DeepSpeed: Advancing MoE inference and training to power next-generation AI scale*
# (`deepspeed-moe`).
#
# **How it works.** Put your code in place of each line that raises `NotImplementedError`, run the cell, then run the
# `check` cell below it. Cells that begin with `#| export` make up the module that is graded. Grading runs the same
# checks with other numbers and a few more cases, each rank in a process of its own; whoever carries the messages counts
# them. Results must be those of one process, to rounding in float64. Marked are also bytes, messages, idle time and
# memory.
#
# **Ranks** are those of lab 07: a program is a function `(rank, …)` that all ranks run at once; `rank.rank` is this
# one's number, `rank.size` how many there are. `rank.send`, `rank.recv`, `rank.isend` and `rank.irecv` are as there: a
# `send` returns only when the other side has received, an `isend` at once, and its request wants a `wait()` in the end.
# Where all ranks talk, use lab 07's collectives: yours, if you have handed it in.
#
# | call | gives |
# |---|---|
# | `collectives.all_reduce(rank, x)` | the sum of all ranks' x, in the shape of x |
# | `collectives.all_gather(rank, x)` | a list of all ranks' x, whose shapes may differ |
#
# None of them changes x, and *every rank must make the same calls in the same order*. Nothing that you are given may be
# changed, and each call gives a list or dictionary of its own, which the caller may change. **Letters:** p ranks, T
# tokens, D width of the model, F of the MLP between its products, V tokens of the vocabulary, m micro-batches, E
# experts.

# %%
from mlsys_lab.checks import lab
from mlsys_lab.comm import run

check = lab("model-parallel")

# %%
#| export
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mlsys_lab import stack
from mlsys_lab.comm import Rank

collectives = stack.load("collectives")

# %% [markdown]
# ## Task 1 · Columns, then rows
#
# *About 45 minutes.*
#
# An MLP is $Y = \phi(X W_1 + b_1)\,W_2 + b_2$. Cut $W_1$ into **columns**: each rank then has some columns of the
# hidden layer, and applies $\phi$ to them by itself. Cut $W_2$ into the same **rows**: each rank's product is one of p
# parts of the result, which have to be added up. That is Megatron's tensor parallelism (Shoeybi et al. 2019).
#
# Backward the arrows turn round. All ranks used the whole $X$, each with its own columns, so each finds only a part of
# the gradient of $X$. And every rank had the sum as its result, so that the gradient of the sum is, as it is, the
# gradient of every part.
#
# | | forward | backward |
# |---|---|---|
# | before the columns | nothing | add up over the ranks |
# | behind the rows | add up over the ranks | nothing |
#
# **1a.** `take_part(rank, x, dim)`: this rank's part of x along `dim`, in memory of its own. Parts differ in length by
# one at most, the longer ones first, as `torch.tensor_split` cuts. `dim` is any of x's dimensions, counted from 0.
# There may be more ranks than columns, or no columns at all. The part wants no gradient, even where x does.
#
# **1b.** `CopyToTensorParallelRegion` and `ReduceFromTensorParallelRegion` are the two rows of the table, each a
# `torch.autograd.Function`: `forward(ctx, x, rank)` gives the result, and may put away what `backward(ctx, grad)`
# needs as an attribute of `ctx`; `backward` returns a gradient for each argument of `forward`, and `None` for the
# rank. `CopyToTensorParallelRegion.apply(x, rank)` uses it. (A `forward` that has nothing to do returns
# `x.view_as(x)`: autograd wants a tensor of its own.) Like all else that you are given, neither x nor the gradient may
# be changed.
#
# With these, `column_parallel_linear(rank, x, weight, bias)` takes the whole x (T, D), this rank's columns (D, F/p)
# and its entries of the bias, and gives this rank's columns of the result. `row_parallel_linear(rank, x, weight,
# bias)` takes this rank's columns of x (T, F/p), its rows (F/p, D) and the whole bias (D,), and gives the whole result
# on every rank. The bias is added **once**. The x may be data, which want no gradient, or may be used elsewhere too,
# as beside a residual connection: what comes back from there is whole already.
#
# **1c.** `ParallelMLP(rank, up, up_bias, down, down_bias)` is made of whole parameters, alike on all ranks, with shapes
# (D, F), (F,), (F, O), (O,), which may want gradients. Its attributes of the same names are this rank's parts of them,
# each in memory of its own (`down_bias` is copied whole), which want gradients of their own whatever the whole ones
# want. Called with x (T, D) it gives $Y$ (T, O), with a ReLU as $\phi$, whose derivative at 0 is 0.
#
# **Size:** about 1, 2 and 1 for `CopyToTensorParallelRegion`, 1 and 1 for `ReduceFromTensorParallelRegion`, 1, 1, 5
# and 2 lines. **Cost:** one all-reduce of T·O numbers forward, one of T·D backward.


# %% nbgrader={"solution": true, "grade_id": "task-1-columns-rows"}
#| export
def take_part(rank: Rank, x: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's part of x along a dimension, in memory of its own. About 1 line."""
    ### BEGIN SOLUTION
    return torch.tensor_split(x.detach(), rank.size, dim)[rank.rank].clone()
    ### END SOLUTION


class CopyToTensorParallelRegion(torch.autograd.Function):
    """What stands before the columns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
        """What the columns are multiplied by. About 2 lines."""
        ### BEGIN SOLUTION
        ctx.rank = rank
        return x.view_as(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient of x, from what this rank's columns found. About 1 line."""
        ### BEGIN SOLUTION
        return collectives.all_reduce(ctx.rank, grad), None
        ### END SOLUTION


class ReduceFromTensorParallelRegion(torch.autograd.Function):
    """What stands behind the rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
        """The result, from this rank's part of it. About 1 line."""
        ### BEGIN SOLUTION
        return collectives.all_reduce(rank, x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient of this rank's part. About 1 line."""
        ### BEGIN SOLUTION
        return grad, None
        ### END SOLUTION


def column_parallel_linear(rank: Rank, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Whole x (T, D), columns (D, F/p) and their bias (F/p,) -> columns of the result (T, F/p). About 1 line."""
    ### BEGIN SOLUTION
    return CopyToTensorParallelRegion.apply(x, rank) @ weight + bias
    ### END SOLUTION


def row_parallel_linear(rank: Rank, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Columns of x (T, F/p), rows (F/p, O) and the whole bias (O,) -> the whole result (T, O). About 1 line."""
    ### BEGIN SOLUTION
    return ReduceFromTensorParallelRegion.apply(x @ weight, rank) + bias
    ### END SOLUTION


class ParallelMLP:
    """An MLP of which each rank has some columns of the first matrix, and the same rows of the second."""

    def __init__(
        self, rank: Rank, up: torch.Tensor, up_bias: torch.Tensor, down: torch.Tensor, down_bias: torch.Tensor
    ) -> None:
        """Keep this rank's parts of (D, F), (F,), (F, O) and (O,). About 5 lines."""
        ### BEGIN SOLUTION
        self.rank = rank
        self.up = take_part(rank, up, 1).requires_grad_()
        self.up_bias = take_part(rank, up_bias, 0).requires_grad_()
        self.down = take_part(rank, down, 0).requires_grad_()
        self.down_bias = down_bias.detach().clone().requires_grad_()
        ### END SOLUTION

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The MLP's whole result (T, O) for the whole x (T, D). About 2 lines."""
        ### BEGIN SOLUTION
        hidden = torch.relu(column_parallel_linear(self.rank, x, self.up, self.up_bias))
        return row_parallel_linear(self.rank, hidden, self.down, self.down_bias)
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
# ## Task 2 · A loss whose logits never meet
#
# *About 35 minutes.*
#
# At the end of the model stands the widest matrix of all. Cut into columns it leaves each rank with logits of V/p
# tokens of the vocabulary, and the loss needs
#
# $$\frac1T \sum_t \Bigl(\log \sum_v e^{z_{tv} - M_t} - (z_{t y_t} - M_t)\Bigr), \qquad M_t = \max_v z_{tv}.$$
#
# Three numbers a token decide it: the largest logit, the sum of exponentials, and the target's logit. Each rank can
# work out its part of all three, so the logits need never be put together.
#
# **Predict first.** 4 ranks, 256 tokens, a vocabulary of 8,192, 8 bytes a number. How many bytes does each rank send
# round the ring to gather all logits, and how many if it gathers the three numbers?

# %%
gathered_bytes = None  # your number
three_bytes = None  # your number

if None in (gathered_bytes, three_bytes):
    print("Write both numbers first, then go on.")
else:
    print("right" if (gathered_bytes, three_bytes) == (3 * 256 * 2048 * 8, 3 * 256 * 3 * 8) else "no: (p - 1) parts")

# %% [markdown]
# **Write** `vocab_parallel_cross_entropy(rank, logits, start, targets)`: the mean loss over all T tokens, the same
# number on every rank, a tensor without axes. `logits` (T, V/p) are this rank's, of the tokens from `start` on; ranks
# may have unequally many, each has one at least. `targets` (T,) are numbers in the whole vocabulary, alike on all
# ranks: most lie on other ranks. `backward()` gives each rank the gradient of its own logits, $(\text{softmax} -
# \text{one-hot})/T$ times the gradient that comes, and sends nothing. Asked again (`retain_graph=True`), maybe with
# another gradient, it does so once more.
#
# Logits may be large: $e^{1000}$ is no number, and a rank's own largest is not the largest of all. Some may be
# $-\infty$, as the padding of a vocabulary is, on one rank perhaps all, but never all of a token on all ranks; and a
# target is no padding.
#
# The collectives add, and a maximum is no sum: gather the T numbers, and take the largest yourself. Whatever you send,
# it may be three numbers a token from each rank to each other, no more.
#
# **Size:** about 10, 4 and 1 lines. **Cost:** forward 3·T·(p - 1) numbers from each rank at most; backward none.


# %% nbgrader={"solution": true, "grade_id": "task-2-loss"}
#| export
class CrossEntropy(torch.autograd.Function):
    """The mean cross-entropy of divided logits, forward and backward."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, rank: Rank, start: int, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss, from this rank's logits (T, V/p). About 10 lines."""
        ### BEGIN SOLUTION
        largest = torch.stack(collectives.all_gather(rank, logits.max(1).values)).max(0).values  # (T,)
        exponentials = (logits - largest[:, None]).exp()
        here = (targets >= start) & (targets < start + logits.shape[1])
        tokens, columns = here.nonzero()[:, 0], targets[here] - start
        of_target = torch.zeros_like(largest)
        of_target[tokens] = logits[tokens, columns] - largest[tokens]
        total, of_target = collectives.all_reduce(rank, torch.stack([exponentials.sum(1), of_target]))
        ctx.save_for_backward(exponentials / total[:, None], tokens, columns)
        return (total.log() - of_target).mean()
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """The gradient of this rank's logits; None for the others. About 4 lines."""
        ### BEGIN SOLUTION
        probabilities, tokens, columns = ctx.saved_tensors
        difference = probabilities.clone()
        difference[tokens, columns] -= 1
        return difference * grad / len(difference), None, None, None
        ### END SOLUTION


def vocab_parallel_cross_entropy(rank: Rank, logits: torch.Tensor, start: int, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of logits (T, V/p), whose first column is token `start`. About 1 line."""
    ### BEGIN SOLUTION
    return CrossEntropy.apply(logits, rank, start, targets)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "cross_entropy"}
check("cross_entropy")

# %% [markdown]
# **Measure** what you predicted.

# %%
P, TOKENS, VOCABULARY = 4, 256, 8192


def divided_loss(rank, gather):
    """The loss of logits that each rank has a part of: gathered, or by your vocab_parallel_cross_entropy."""
    torch.manual_seed(0)
    logits, targets = torch.randn(TOKENS, VOCABULARY).double(), torch.randint(VOCABULARY, (TOKENS,))
    own = take_part(rank, logits, 1)
    if gather:
        logits = torch.cat(collectives.all_gather(rank, own), 1)
        return torch.nn.functional.cross_entropy(logits, targets).item()
    return vocab_parallel_cross_entropy(rank, own, rank.rank * own.shape[1], targets).item()


for name, gather in (("gathered", True), ("three numbers", False)):
    losses, ledger = run(divided_loss, [gather] * P)
    print(f"{name:13}: loss {losses[0]:.12f}, rank 0 sends {ledger.sent_bytes()[0]:>10,} bytes")

# %% [markdown]
# (You may send less than was predicted: a gather of the maxima and an all-reduce of the other two is less than a gather
# of all three.)
#
# ## Task 3 · A pipeline
#
# *About 55 minutes.*
#
# Between two layers there is only one activation to hand on, so cutting there sends least. Rank r becomes **stage** r
# of p, and the batch goes through in m micro-batches, each forward through stages 0 to p - 1 and backward again. While
# the first micro-batch has not reached it, a stage has nothing to do, and at the end once more: the **bubble**.
#
# What a stage does is a list of *actions* in order, `("forward", i)` or `("backward", i)` for micro-batch i. A stage
# must keep the activations of micro-batch i from its forward pass to its backward pass: those are *in flight*. GPipe
# does all forward passes first, and keeps m. **1F1B** (one forward, one backward) first lets in just as many
# micro-batches as it takes until the first one is back, then takes a backward pass after each forward pass, and in the
# end drains.
#
# **Predict first.** Let a micro-batch's forward and backward pass take a stage $f$ and $b$ seconds, and nothing else
# take time. Which share of the time is a stage idle, for p = 4 and m = 8? Does 1F1B have less of it than GPipe?

# %%
idle_share = None  # your number
less_than_gpipe = None  # True or False

if None in (idle_share, less_than_gpipe):
    print("Write both first, then go on.")
else:
    right = abs(idle_share - 3 / 11) < 0.005 and less_than_gpipe is False
    print("right" if right else "no: both end after (m + p - 1)(f + b), of which m (f + b) are work")

# %% [markdown]
# **3a.** `one_forward_one_backward(p, m)`: a list of p lists, the actions of each stage, each micro-batch forward once
# and backward once. Whatever f and b are, the step must end after $(m + p - 1)(f + b)$, and stage r may keep at most
# $\min(p - r, m)$ micro-batches in flight. So how many does stage r let in before its first backward pass?
#
# **3b.** `run_stage(rank, actions, stage, inputs, loss)` carries out one stage's actions on a real rank. `stage(x)`
# computes this rank's layers; `inputs` is a list of micro-batches that only rank 0 may use; `loss(y, i)` is the loss of
# micro-batch i, which only the last rank may ask for, going forward or back. (To ask for either once more, so as to
# keep less, is allowed.) Between them:
#
# - forward: take x from `inputs`, which are data and stay so, or from the rank before, compute, keep what the backward
#   pass needs, send y on;
# - backward: the last rank goes back from its loss divided by m; others receive the gradient of their y and go back
#   from there by `y.backward(gradient)`. Then send the gradient of x to the rank before.
#
# Parameters of the stage gather their gradients in `grad`, where torch adds them up. Result: the mean loss over the
# micro-batches on the last rank, as a float, and `None` on the others. Micro-batches may have different numbers of
# tokens. The actions need not be 1F1B, but all stages take micro-batches in the same order forward, and in the same
# order backward. Two neighbours that *send* to each other at the same time would wait for ever: which call does not?
#
# Take the actions in their order: a schedule that saves memory saves nothing where all forward passes come first all
# the same. What a rank holds is counted.
#
# **Size:** about 9 and 20 lines. **Cost:** m messages to each neighbour; activations of at most as many micro-batches
# as the actions have in flight, and one more while it works.


# %% nbgrader={"solution": true, "grade_id": "task-3-pipeline"}
#| export
Action = tuple[str, int]


def one_forward_one_backward(p: int, m: int) -> list[list[Action]]:
    """The actions of each of p stages for m micro-batches: ("forward", i) and ("backward", i). About 9 lines."""
    ### BEGIN SOLUTION
    schedule = []
    for r in range(p):
        ahead = min(p - 1 - r, m)
        actions = [("forward", i) for i in range(ahead)]
        for i in range(m - ahead):
            actions += [("forward", ahead + i), ("backward", i)]
        actions += [("backward", i) for i in range(m - ahead, m)]
        schedule.append(actions)
    return schedule
    ### END SOLUTION


def run_stage(
    rank: Rank,
    actions: Sequence[Action],
    stage: Callable[[torch.Tensor], torch.Tensor],
    inputs: Sequence[torch.Tensor],
    loss: Callable[[torch.Tensor, int], torch.Tensor],
) -> float | None:
    """Carry out this rank's actions: the mean loss on the last rank, None on others. About 20 lines."""
    ### BEGIN SOLUTION
    r, last, m = rank.rank, rank.size - 1, len(actions) // 2
    kept, sent, total = {}, [], 0.0
    for kind, i in actions:
        if kind == "forward":
            x = inputs[i] if r == 0 else rank.recv(r - 1).requires_grad_()
            y = stage(x)
            if r == last:
                y = loss(y, i) / m
                total += y.item()
            else:
                sent.append(rank.isend(y, r + 1))
            kept[i] = x, y
        else:
            gradient = None if r == last else rank.recv(r + 1)
            x, y = kept.pop(i)
            y.backward(gradient)
            if r > 0:
                sent.append(rank.isend(x.grad, r - 1))
    for request in sent:
        request.wait()
    return total if r == last else None
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "schedule"}
check("schedule")

# %% nbgrader={"grade": true, "grade_id": "run_stage"}
check("run_stage")

# %% [markdown]
# **See it.** Your schedule, carried out by the simulator: one row for each stage, forward light, backward dark, and
# twice as long. Give GPipe's to `draw`, and look for what differs.

# %%
import plotly.graph_objects as go

from mlsys_lab.comm.simulate import Cluster
from mlsys_lab.widgets import show

COLOURS = {"forward": "#a9bce8", "backward": "#4269d0"}


def play(schedule, forward_s=1.0, backward_s=2.0):
    """Simulated times of a schedule: (stage, kind, micro-batch, start, seconds) of each action."""
    cluster, tasks, names = Cluster(len(schedule)), {}, []
    at = [0] * len(schedule)
    while any(place < len(actions) for place, actions in zip(at, schedule, strict=True)):
        before = list(at)
        for r, actions in enumerate(schedule):
            if at[r] == len(actions):
                continue
            kind, i = actions[at[r]]
            source = r - 1 if kind == "forward" else r + 1
            needs = [] if kind == "forward" else [("forward", i, r)]
            needs += [(kind, i, source)] if 0 <= source < len(schedule) else []
            if all(need in tasks for need in needs):
                seconds = forward_s if kind == "forward" else backward_s
                tasks[kind, i, r] = cluster.compute(r, seconds, kind, [tasks[need] for need in needs])
                names.append((r, kind, i, tasks[kind, i, r], seconds))
                at[r] += 1
        if at == before:
            raise ValueError(f"stages wait for each other: {at} actions done")
    starts = cluster.timeline().start
    return [(r, kind, i, starts[task], seconds) for r, kind, i, task, seconds in names]


def draw(schedule):
    """Bars of a schedule, one row for each stage."""
    figure = go.Figure()
    for r, kind, i, start, seconds in play(schedule):
        figure.add_bar(
            y=[f"stage {r}"],
            x=[seconds],
            base=[start],
            orientation="h",
            marker={"color": COLOURS[kind], "line": {"color": "white", "width": 1}},
            text=[str(i)],
            hovertext=[f"{kind} {i}: {start:g} to {start + seconds:g}"],
            hoverinfo="text",
            showlegend=False,
        )
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(barmode="overlay", xaxis_title="seconds", margin_t=30)
    return figure


STAGES, MICRO_BATCHES = 4, 8
schedule = one_forward_one_backward(STAGES, MICRO_BATCHES)
end = max(start + seconds for *_, start, seconds in play(schedule))
print(f"ends after {end:g} s, of which {3 * MICRO_BATCHES} s are work: idle {1 - 3 * MICRO_BATCHES / end:.0%}")
show(draw(schedule), alt="Timeline of four stages under 1F1B: a bubble at both ends, and turns between", height=300)

# %% [markdown]
# ## Task 4 · A ring of keys and values
#
# *About 50 minutes.*
#
# A text that is too long for one card is divided by its tokens. Everything in a transformer works token by token but
# attention, in which a query looks at the keys of all tokens up to its own. In **ring attention** (Liu et al. 2023)
# queries stay, and keys and values go round: a rank works on the block that it has while the next one is on its way.
#
# **4a.** Which tokens should a rank have? With one stretch each, the causal mask leaves the first rank nearly idle, and
# all wait for the last. `zigzag_positions(tokens, p)` cuts the text, of p tokens at least, into 2p stretches (by
# `torch.tensor_split`, so that lengths may differ by one) and gives rank r the r-th from the front and, behind it, the
# r-th from the back, each in ascending order. Result: a list of p tensors of positions, int64.
#
# **4b.** `ring_attention(rank, q, k, v, positions)`: causal attention of this rank's queries with all ranks' keys. q
# and k are (N, T_r, H), v is (N, T_r, G), the result is (N, T_r, G), for N heads; scores are divided by $\sqrt H$.
# `positions` are those of *all* ranks, rank by rank, as `zigzag_positions` or any other division gives them, a rank's
# own in any order: a query sees a key if the key's position is not larger than its own. Ranks may have unequally many
# tokens, each has one at least.
#
# What a query has seen so far is three things: the largest score $M$, the sum of $e^{s - M}$, and that sum with each
# term times its value. A new block may bring a larger $M'$: both sums are then multiplied by $e^{M - M'}$, and the
# block's terms added. In the end divide. A query may see nothing of a block, and if $M$ and $M'$ are both $-\infty$
# their difference is NaN: with which block should a rank begin?
#
# A block goes p - 1 steps, no further. What a rank holds is counted: there is room for the block that it works on and
# for one that is on its way, not for all.
#
# **Size:** about 2 and 24 lines. **Cost:** every block visits every other rank once, in p - 1 steps that all ranks take
# at the same time.


# %% nbgrader={"solution": true, "grade_id": "task-4-ring"}
#| export
def zigzag_positions(tokens: int, p: int) -> list[torch.Tensor]:
    """Positions of each of p ranks: a stretch from the front, and its mirror image from the back. About 2 lines."""
    ### BEGIN SOLUTION
    stretches = torch.arange(tokens).tensor_split(2 * p)
    return [torch.cat([stretches[r], stretches[2 * p - 1 - r]]) for r in range(p)]
    ### END SOLUTION


def ring_attention(
    rank: Rank, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Causal attention: q, k (N, T_r, H), v (N, T_r, G) of this rank -> (N, T_r, G). About 24 lines."""
    ### BEGIN SOLUTION
    p, own = rank.size, positions[rank.rank]
    right, left = (rank.rank + 1) % p, (rank.rank - 1) % p
    largest = q.new_full(q.shape[:2], -torch.inf)  # (N, T_r)
    total = torch.zeros_like(largest)
    weighted = q.new_zeros(*q.shape[:2], v.shape[2])
    block = torch.cat([k, v], 2)
    for step in range(p):
        if step < p - 1:
            sent, coming = rank.isend(block, right), rank.irecv(left)
        seen = positions[(rank.rank - step) % p]
        keys, values = block.split([k.shape[2], v.shape[2]], 2)
        scores = q @ keys.mT / k.shape[2] ** 0.5  # (N, T_r, T_s)
        scores.masked_fill_(seen > own[:, None], -torch.inf)
        before, largest = largest, torch.maximum(largest, scores.max(2).values)
        exponentials = scores.sub_(largest[..., None]).exp_()
        shrink = (before - largest).exp()
        total = total * shrink + exponentials.sum(2)
        weighted = weighted * shrink[..., None] + exponentials @ values
        if step < p - 1:
            sent.wait()
            block = coming.wait()
    return weighted / total[..., None]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "zigzag"}
check("zigzag")

# %% nbgrader={"grade": true, "grade_id": "ring_attention"}
check("ring_attention")

# %% [markdown]
# **See it.** How many pairs of query and key each of eight ranks works out for 4,096 tokens. Everybody waits for the
# tallest bar.

# %%
LENGTH, RING = 4096, 8
divisions = {"one stretch each": torch.arange(LENGTH).tensor_split(RING), "zigzag": zigzag_positions(LENGTH, RING)}
figure = go.Figure()
for name, positions in divisions.items():
    pairs = [int((own + 1).sum()) for own in positions]
    figure.add_bar(x=[f"rank {r}" for r in range(RING)], y=pairs, name=name)
    print(f"{name:16}: the slowest rank has {max(pairs) / (sum(pairs) / RING):.2f} times the mean")
figure.update_layout(yaxis_title="pairs of query and key", margin_t=30)
show(figure, alt="Bars of work by rank: rising with one stretch each, all alike with zigzag", height=320)

# %% [markdown]
# ## Task 5 · Experts elsewhere
#
# *About 40 minutes.*
#
# A mixture of experts has E MLPs in place of one, of which a token uses k. Copying all of them to each rank would be
# absurd, so each expert lives on one rank, and tokens travel: to their experts and back, in two **all-to-alls**.
#
# **5a.** `all_to_all(rank, parts)`: `parts[i]` goes to rank i; result: a list of what all ranks sent here, in order of
# rank, a copy of this rank's own part among them, which is not sent. Shapes differ, and some parts are empty: these may
# be sent like all others.
#
# **5b.** `route(logits, k, capacity)` for this rank's logits (n, E), finite numbers, result `experts, weights, kept`,
# each (n, k). A token's k experts are those of its largest logits, the largest first, of equal ones the lower number
# first. Weights are the softmax over these k. An expert takes at most `capacity` choices from this rank: all tokens'
# first choices come before all second ones, and so on, earlier tokens before later ones. `kept` (bool) tells which
# found room. A dropped choice keeps its place in `weights` and will add nothing to its token; all weights stay as they
# are.
#
# **5c.** `dispatch(rank, x, experts, weights, kept, owners, work)`: for this rank's tokens x (n, D) the sums of their
# kept experts' weighted results (n, D). Expert e lives on rank `owners[e]`, an int64 tensor (E,): a rank may have many
# or none. `work(e, rows)` is what expert e makes of rows (any, D), even of none: only its own rank may ask for it, and
# only once for each row that is meant for it. A rank cannot know which rows will come, nor for which of its experts:
# let the experts' numbers, or how many rows there are for each, travel first.
#
# **Size:** about 7, 8 and 13 lines. **Cost:** each kept choice for an expert elsewhere sends D numbers there and D
# back, and 8 bytes to say which expert, or 8 for each expert of the rank that they go to. Dropped choices send
# nothing.


# %% nbgrader={"solution": true, "grade_id": "task-5-experts"}
#| export
def all_to_all(rank: Rank, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Send parts[i] to each rank i: what all ranks sent here, in order of rank. About 7 lines."""
    ### BEGIN SOLUTION
    received = [part.clone() for part in parts]
    for step in range(1, rank.size):
        to, source = (rank.rank + step) % rank.size, (rank.rank - step) % rank.size
        request = rank.isend(parts[to], to)
        received[source] = rank.recv(source)
        request.wait()
    return received
    ### END SOLUTION


def route(logits: torch.Tensor, k: int, capacity: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits (n, E) -> experts, weights and which found room, each (n, k). About 8 lines."""
    ### BEGIN SOLUTION
    experts = logits.argsort(dim=1, descending=True, stable=True)[:, :k]
    weights = logits.gather(1, experts).softmax(1)
    wanted = experts.T.reshape(-1)  # all first choices, then all second ones
    chosen = torch.zeros(len(wanted), logits.shape[1], dtype=torch.int64)
    chosen[torch.arange(len(wanted)), wanted] = 1
    before = (chosen.cumsum(0) - chosen)[torch.arange(len(wanted)), wanted]
    return experts, weights, (before < capacity).reshape(k, -1).T
    ### END SOLUTION


def dispatch(
    rank: Rank,
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    kept: torch.Tensor,
    owners: torch.Tensor,
    work: Callable[[int, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Weighted sums of what the experts, wherever they live, make of this rank's tokens (n, D). About 13 lines."""
    ### BEGIN SOLUTION
    tokens, choices = kept.nonzero(as_tuple=True)
    homes = owners[experts[tokens, choices]]
    order = homes.argsort(stable=True)  # all that go to rank 0, then all to rank 1, …
    tokens, choices = tokens[order], choices[order]
    going = torch.bincount(homes, minlength=rank.size).tolist()
    numbers = torch.cat(all_to_all(rank, experts[tokens, choices].split(going)))
    arrived = all_to_all(rank, x[tokens].split(going))
    rows = torch.cat(arrived)
    results = torch.zeros_like(rows)
    for e in (owners == rank.rank).nonzero()[:, 0].tolist():
        results[numbers == e] = work(e, rows[numbers == e])
    back = torch.cat(all_to_all(rank, results.split([len(part) for part in arrived])))
    return torch.zeros_like(x).index_add(0, tokens, back * weights[tokens, choices, None])
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "all_to_all"}
check("all_to_all")

# %% nbgrader={"grade": true, "grade_id": "route"}
check("route")

# %% nbgrader={"grade": true, "grade_id": "dispatch"}
check("dispatch")

# %% [markdown]
# **See it.** A router that likes some experts more than others. Room for more choices drops fewer of them, and makes
# everybody wait longer for the fullest expert. What would an even router need?

# %%
torch.manual_seed(5)
TOKENS, EXPERTS, CHOICES = 512, 16, 2
liking = torch.linspace(-1, 1, EXPERTS)
factors = [0.5 + 0.25 * step for step in range(13)]
figure = go.Figure()
for name, logits in (
    ("even router", torch.randn(TOKENS, EXPERTS)),
    ("router with likings", torch.randn(TOKENS, EXPERTS) + liking),
):
    rooms = [int(factor * TOKENS * CHOICES / EXPERTS) for factor in factors]
    dropped = [1 - route(logits, CHOICES, room)[2].double().mean().item() for room in rooms]
    figure.add_scatter(x=factors, y=dropped, mode="lines+markers", name=name)
figure.update_layout(xaxis_title="capacity, of an even share", yaxis_title="choices dropped", yaxis_tickformat=".0%")
show(figure, alt="Share of dropped choices, falling with capacity, more slowly for a router with likings", height=320)

# %% [markdown]
# ## Task 6 · Which layout?
#
# *About 30 minutes.*
#
# A cluster has nodes of a few devices that fast links connect, and a slower network between them. A model of L layers
# has $N = L(4D^2 + 3DF)$ parameters (attention, and a gated MLP; embeddings are left out). A **layout** divides
# devices into data · tensor · pipeline = d · t · p. A step works on a batch of B sequences of T tokens, so each
# pipeline has m = B/d micro-batches of one sequence. Nothing overlaps, numbers that are sent have 2 bytes, and these
# are the seconds of a step:
#
# - `"compute"`: 6 FLOPs for each parameter and token of the batch, shared evenly by all devices.
# - `"bubble"`: (p - 1)/m of these.
# - `"link"`: a device's share of tensor parallelism: 4 all-reduces of T·D numbers for each layer of its stage and each
#   micro-batch, each of which sends 2(t - 1)/t of its bytes from each device. Also what of the gradients stays in the
#   node.
# - `"network"`: a pipeline's T·D/t numbers forward and as many backward for each micro-batch, if p > 1. Also what of
#   the gradients leaves the node.
#
# Gradients of a device's N/(t·p) parameters, S bytes of them, are all-reduced by all d ranks of a data-parallel group,
# of which g = min(d, node/t) lie in a node. That happens in levels, as lab 07's `hierarchical` does it: each device
# sends 2(g - 1)/g · S in its node, and 2(d - g)/(d·g) · S beyond it.
#
# **6a. Predict.** `step_parts(model, machine, layout, batch)`: a dictionary of these four, in seconds.
#
# **6b.** `choose_layout(model, machine, devices, batch)`: the layout that takes least in all, any of them if several
# do, of those that
#
# - divide the devices exactly, t dividing `machine.node` and D, p dividing L, d dividing the batch;
# - fit into `memory_bytes` (exactly full fits): a device keeps 4 bytes for each of its N/(t·p) parameters (weights and
#   gradients) and 12/d more (states, by ZeRO 1), and activations of T·D·(10 + 24/t) bytes (Korthikanti et al. 2022) for
#   each layer of its stage and each of min(p, m) micro-batches in flight.
#
# `None` where none fits.
#
# **Size:** about 14 and 16 lines. **Cost:** none.


# %%
#| export
@dataclass(frozen=True)
class Model:
    """Sizes of a transformer: L layers, D wide, F in the MLP, on sequences of T tokens."""

    layers: int
    width: int
    hidden: int
    tokens: int

    @property
    def parameters(self) -> int:
        """N, without embeddings."""
        return self.layers * (4 * self.width**2 + 3 * self.width * self.hidden)


@dataclass(frozen=True)
class Machine:
    """What a device computes, keeps and sends in a second, and how many devices a node has."""

    flops_per_s: float
    memory_bytes: float
    link_bytes_per_s: float
    network_bytes_per_s: float
    node: int


@dataclass(frozen=True)
class Layout:
    """d, t and p, whose product is the number of devices."""

    data: int
    tensor: int
    pipeline: int


# %% nbgrader={"solution": true, "grade_id": "task-6-layout"}
#| export
def step_parts(model: Model, machine: Machine, layout: Layout, batch: int) -> dict[str, float]:
    """Seconds of a step by "compute", "bubble", "link" and "network". About 14 lines."""
    ### BEGIN SOLUTION
    d, t, p = layout.data, layout.tensor, layout.pipeline
    m, g = batch // d, min(d, machine.node // t)
    activation = 2 * model.tokens * model.width  # bytes
    gradients = 2 * model.parameters / (t * p)
    compute = 6 * model.parameters * batch * model.tokens / (d * t * p) / machine.flops_per_s
    link = 4 * m * model.layers / p * 2 * (t - 1) / t * activation + 2 * (g - 1) / g * gradients
    network = 2 * (d - g) / (d * g) * gradients
    if p > 1:
        network += 2 * m * activation / t
    return {
        "compute": compute,
        "bubble": compute * (p - 1) / m,
        "link": link / machine.link_bytes_per_s,
        "network": network / machine.network_bytes_per_s,
    }
    ### END SOLUTION


def choose_layout(model: Model, machine: Machine, devices: int, batch: int) -> Layout | None:
    """The fastest layout of those that divide evenly and fit; None where none does. About 16 lines."""
    ### BEGIN SOLUTION
    best, least = None, float("inf")
    for t in range(1, min(machine.node, devices) + 1):
        if machine.node % t or model.width % t or devices % t:
            continue
        for p in range(1, min(model.layers, devices // t) + 1):
            d = devices // t // p
            if devices // t % p or model.layers % p or batch % d:
                continue
            kept = model.parameters / (t * p) * (4 + 12 / d)
            in_flight = min(p, batch // d) * model.layers / p
            kept += in_flight * model.tokens * model.width * (10 + 24 / t)
            seconds = sum(step_parts(model, machine, Layout(d, t, p), batch).values())
            if kept <= machine.memory_bytes and seconds < least:
                best, least = Layout(d, t, p), seconds
    return best
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "step_parts"}
check("step_parts")

# %% nbgrader={"grade": true, "grade_id": "choose_layout"}
check("choose_layout")

# %% [markdown]
# **Measure** your prediction against the course's own estimator, which counts more: attention's scores, embeddings, the
# head, and the time that memory takes. The model is LLaMA 2 70B's size with as many heads of keys as of queries, on
# 512 H100s. Your layout comes first; what do the others lose their time by?

# %%
from mlsys_lab import hardware
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.flops.bounds import machine as machine_of
from mlsys_lab.flops.estimate import estimate_training
from mlsys_lab.flops.layout import Layout as TheirLayout
from mlsys_lab.flops.memory import RECIPES

h100 = machine_of(hardware.device("H100"), "bf16")
mine = Machine(h100.peak_flops_per_s, h100.memory_bytes, h100.link_bytes_per_s, h100.network_bytes_per_s, h100.node)
llama = Model(layers=80, width=8192, hidden=28672, tokens=4096)
config = TransformerConfig("70B", 80, 8192, 64, 28672, 32000, 4096)
DEVICES, BATCH = 512, 1024

found = choose_layout(llama, mine, DEVICES, BATCH)
rows = {"yours": found, "no pipeline": Layout(64, 8, 1), "pipeline of 16": Layout(32, 1, 16), "deep": Layout(4, 8, 16)}
bars = {name: step_parts(llama, mine, layout, BATCH) for name, layout in rows.items()}
figure = go.Figure()
for part in ("compute", "bubble", "link", "network"):
    figure.add_bar(y=list(rows), x=[bar[part] for bar in bars.values()], name=part, orientation="h")
for name, layout in rows.items():
    theirs = TheirLayout(data=layout.data, tensor=layout.tensor, pipeline=layout.pipeline, zero_stage=1)
    estimate = estimate_training(config, h100, theirs, RECIPES["mixed16"], batch=BATCH, tokens=4096)
    dtp = f"{layout.data} × {layout.tensor} × {layout.pipeline}"
    told = f"predicted {sum(bars[name].values()):5.1f} s, estimated {estimate.bounds['step'].in_turn_s:5.1f} s"
    print(f"{name:15} {dtp:11}: {told}")
figure.update_layout(barmode="stack", xaxis_title="seconds of a step", yaxis_autorange="reversed", margin_t=30)
show(figure, alt="Seconds of a step by layout, stacked: compute, bubble, link and network", height=320)

# %% [markdown]
# ## Answer for yourself
#
# - An MLP cut into rows first and columns then is right, too. What would it send between the two products?
# - Sequence parallelism replaces each all-reduce of Task 1 by a reduce-scatter and an all-gather. Same bytes: what is
#   gained?
# - Why does 1F1B not have a smaller bubble than GPipe, and how does interleaving get one?
# - Your ring passes keys and values of positions that nobody behind may see. Could it stop earlier with one stretch
#   each? And with zigzag?
# - `dispatch` is forward only. What do its two all-to-alls become in the backward pass?
# - At work: which of your functions are `ColwiseParallel`, `RowwiseParallel`, `loss_parallel`, `Schedule1F1B` and
#   `context_parallel` of torch?
#
# When all checks pass, save the notebook and run `mlsys-lab check model-parallel` in a terminal.
