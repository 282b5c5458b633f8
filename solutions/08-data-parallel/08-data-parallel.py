# %% [markdown]
# # Lab 08 · Data-parallel training: from DDP to FSDP
#
# Give each of eight GPUs an eighth of the batch, average the gradients, and training is eight times as fast. That is
# the idea, and its first version takes ten lines. It is also wrong as soon as sequences differ in length, it lets the
# network sleep while the GPUs compute, it keeps the same optimiser states eight times over, and it cannot hold a model
# that is larger than one GPU. Here you write the ten lines, and then take away these faults, one after the other.
#
# **You will build**
#
# 1. a step of data parallelism on your own engine, exact for any number of tokens on each rank;
# 2. buckets of gradients that leave while the backward pass goes on, by hooks: DDP;
# 3. accumulation over micro-batches that sends once;
# 4. an optimiser whose states are divided over the ranks: ZeRO 1, with clipping by the global norm;
# 5. layers whose weights are whole only while they compute: ZeRO 3, as in FSDP;
# 6. checkpoints that resume exactly, and on another number of ranks.
#
# **At the end you can answer**
#
# - When is the mean of the ranks' gradients not the gradient of the mean loss?
# - Which gradients can leave first, and why must all ranks agree on the order?
# - What does each stage of ZeRO save, and what does it cost in bytes sent?
# - What must a checkpoint hold so that nobody can tell that training was interrupted?
#
# **Time:** about 240 minutes (each task says its share). **Points:** 100. **You need:** collectives (lab 07),
# gradients (lab 01), and torch's `backward()`, which computes them from Task 2 on. Chapter 10, *Data parallelism*,
# gives the background.
#
# **Readings it leans on:** *The Ultra-Scale Playbook: Training LLMs on GPU Clusters* (`ultrascale-playbook`).
#
# **How it works.** Put your code in place of each line that raises `NotImplementedError`, run the cell, then run the
# `check` cell below it. Cells that begin with `#| export` make up the module that is graded. Grading runs the same
# checks with other numbers and a few more cases, each rank in a process of its own; whoever carries the messages counts
# them. Results must be those of one process, to rounding in float64, so whether you divide before or after you add up
# is all the same; where numbers come back, NumPy's or tensors of one element will do. Marked are also the bytes and
# messages, and what a rank keeps in memory.
#
# **Ranks** are those of lab 07: a program is a function `(rank, x)` that all ranks run at once; `rank.rank` is this
# one's number, `rank.size` how many there are. All your talking goes through lab 07's collectives: yours, if you have
# handed it in.
#
# | call | gives |
# |---|---|
# | `collectives.broadcast(rank, x)` | rank 0's x |
# | `collectives.all_reduce(rank, x)` | the sum of all ranks' x, in the shape of x |
# | `collectives.reduce_scatter(rank, x)` | this rank's chunk, flat, of that sum |
# | `collectives.all_gather(rank, x)` | a list of all ranks' x, whose lengths may differ |
# | `collectives.split_chunks(x, parts)` | flat pieces of x whose lengths differ by at most one, the longer ones first |
#
# None of them changes x. They work on any tensor, also an empty one, and *every rank must make the same calls in the
# same order*. **Letters:** p ranks, n parameters in all.

# %%
from mlsys_lab.checks import lab
from mlsys_lab.comm import run

check = lab("data-parallel")

# %%
#| export
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mlsys_lab import stack
from mlsys_lab.comm import Rank

collectives = stack.load("collectives")
engine = stack.load("autograd")
Tensor = engine.Tensor

# %% [markdown]
# ## Task 1 · The same step on every rank
#
# *About 35 minutes.*
#
# This task runs on lab 01's `Tensor`: yours, if you have handed it in. A parameter has its numbers in `data` and its
# gradient in `grad`, both torch tensors, and `grad` may be `None`. (Parameters of torch look alike, so 1a will do for
# them, too.) In this lab all parameters have one dtype, in which their numbers and gradients are sent, too. Each has
# memory of its own (none are tied) and any shape, also no axes (a scale) or no elements, and may lie in memory
# otherwise than row by row, as a transposed matrix does. There is at least one.
#
# **1a.** Ranks that make the same steps stay alike only if they *start* alike. `copy_from_first(rank, parameters)`
# gives every rank the numbers of rank 0, of frozen parameters too.
#
# **1b.** A rank's loss is a mean over its own tokens. With 6 tokens on rank 0 and 2 on rank 1, the mean of the two
# ranks' gradients counts a token of rank 1 three times as much as one of rank 0. What you want is the gradient of the
# mean over **all** tokens: $\frac1T \sum_r t_r g_r$, with $T = \sum_r t_r$ and $g_r$ the gradient of rank r's mean.
# What comes later divides by p, always. So each rank multiplies its loss by a **weight** before it goes back.
#
# **Predict first.** Which weights are these, for 6 and 2 tokens?

# %%
weight_0 = None  # your number
weight_1 = None  # your number

if None in (weight_0, weight_1):
    print("Write both numbers first, then go on.")
else:
    print("right" if (weight_0, weight_1) == (1.5, 0.5) else "no: weighted so, the mean of 2 ranks must be the sum / 8")

# %% [markdown]
# `loss_weights(rank, tokens)` does it for several **micro-batches** on each rank: `tokens` is a list of how many tokens
# each of this rank's has, and what comes back is a weight for each of them, a `float`. The gradients of a rank's
# micro-batches will be *added*, those of the ranks averaged. A micro-batch may have no tokens at all (weight 0) or
# billions, a rank no micro-batch; somebody has a token. Counts are other ones in each step, on other ranks too.
#
# **1c.** `backward_together(rank, parameters, loss, tokens)`: go back from this rank's mean loss over so many tokens
# (one at least), so that in the end `grad` of every parameter is the gradient of the mean over all ranks' tokens.
# All parameters want gradients. `loss` is a `Tensor`, and `loss.backward()`, which works also where it uses none of
# them, adds to each `grad`, which are `None` before. Lay all gradients end to end, so that **one** all-reduce carries
# them. A parameter without a gradient on this rank counts as zeros here, and gets the mean too: zeros, if no rank has
# one. You may write into a `grad` or put another there, a view of a buffer of yours, say, but no two may overlap.
#
# **Size:** about 2, 3 and 8 lines. **Cost:** 1a: each parameter once to each rank; 1b: one all-reduce of one number;
# 1c: that, and one all-reduce of n numbers.


# %% nbgrader={"solution": true, "grade_id": "task-1-step"}
#| export
def copy_from_first(rank: Rank, parameters: Sequence[Any]) -> None:
    """Give the data of every parameter the numbers that rank 0 has there. About 2 lines."""
    ### BEGIN SOLUTION
    for one in parameters:
        one.data.copy_(collectives.broadcast(rank, one.data))
    ### END SOLUTION


def loss_weights(rank: Rank, tokens: Sequence[int]) -> list[float]:
    """Factors for this rank's mean losses over so many tokens each. About 3 lines."""
    ### BEGIN SOLUTION
    own = torch.tensor([sum(tokens)], dtype=torch.int64)
    total = int(collectives.all_reduce(rank, own))
    return [count * rank.size / total for count in tokens]
    ### END SOLUTION


def backward_together(rank: Rank, parameters: Sequence[Tensor], loss: Tensor, tokens: int) -> None:
    """Leave in each grad that of the mean loss over all ranks' tokens; `loss` is this rank's mean. About 8 lines."""
    ### BEGIN SOLUTION
    (weight,) = loss_weights(rank, [tokens])
    (loss * weight).backward()
    grads = [torch.zeros_like(one.data) if one.grad is None else one.grad for one in parameters]
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    mean = collectives.all_reduce(rank, flat) / rank.size
    for one, part in zip(parameters, torch.split(mean, [grad.numel() for grad in grads]), strict=True):
        one.grad = part.reshape(one.data.shape)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "copy_from_first"}
check("copy_from_first")

# %% nbgrader={"grade": true, "grade_id": "loss_weights"}
check("loss_weights")

# %% nbgrader={"grade": true, "grade_id": "backward_together"}
check("backward_together")

# %% [markdown]
# **See it.** A line through points, learned by one process and by two ranks that have 60 points and 4. Those 4 lie
# off: whoever counts ranks instead of points learns another line.

# %%
import plotly.graph_objects as go

from mlsys_lab.widgets import show

torch.manual_seed(1)
X = torch.linspace(-1, 1, 64, dtype=torch.float64)
Y = 2 * X + 0.2 * torch.randn(64, dtype=torch.float64)
Y[60:] -= 3


def fit(rank, rows, weighted=True, steps=60):
    """Slope after each step, of a line fitted to this rank's rows."""
    slope, offset = parameters = [Tensor(torch.zeros(1, dtype=torch.float64), requires_grad=True) for _ in range(2)]
    slopes = []
    for _ in range(steps):
        error = slope * Tensor(X[rows]) + offset - Tensor(Y[rows])
        for one in parameters:
            one.grad = None
        backward_together(rank, parameters, (error * error).mean(), rows.stop - rows.start if weighted else 1)
        for one in parameters:
            one.data = one.data - 0.3 * one.grad
        slopes.append(slope.data.item())
    return slopes


whole, halves = [slice(0, 64)], [slice(0, 60), slice(60, 64)]
curves = {
    "one process": run(fit, whole).results[0],
    "two ranks, by tokens": run(fit, halves).results[0],
    "two ranks, by ranks": run(lambda rank, rows: fit(rank, rows, weighted=False), halves).results[0],
}
figure = go.Figure()
for (name, slopes), dash in zip(curves.items(), ("solid", "dot", "solid"), strict=True):
    figure.add_scatter(y=slopes, mode="lines", name=name, line={"dash": dash, "width": 3})
    print(f"{name:22} slope {slopes[-1]:+.3f}")
figure.update_layout(xaxis_title="step", yaxis_title="slope", margin_t=30)
show(figure, alt="Slope against step: weighted by tokens two ranks agree with one process, else they do not")

# %% [markdown]
# ## Task 2 · Buckets that leave early
#
# *About 50 minutes.*
#
# From here on torch computes the gradients. The backward pass finishes them from the last layer to the first, and while
# it still works on the first layers, the last ones' gradients could be on the network. One message for each parameter
# would pay latency many times over, one for all of them can only start at the end. DDP lies between: **buckets**.
#
# **2a.** `assign_buckets(sizes, bucket_bytes)`: go through the parameters from the *last* to the first, `sizes` being
# their bytes, exact however many, and put neighbours into one bucket as long as it has at most `bucket_bytes`. A
# parameter that is larger alone is a bucket of its own. Return the buckets in that order, each a list of the
# parameters' numbers; without parameters there is none. There may be thousands of them, and `bucket_bytes` may be 0.
#
# **2b.** `DDP(rank, parameters, bucket_bytes)`, for parameters that all want gradients. When it is made, all ranks get
# rank 0's parameters, and each parameter gets a **hook**: its method `register_post_accumulate_grad_hook` takes a
# function, which torch calls with it as soon as its `grad` is there, in the middle of `backward()`. The hook notes who
# has come, and averages a bucket (one all-reduce, then divide by p) as soon as all of its gradients are there **and all
# buckets before it have left**.
#
# Why the second condition? An all-reduce needs all ranks. If one rank's last bucket is ready first and another's is
# not, they would wait for each other, or worse, add up different buckets. So all ranks send bucket 0, then 1, and so
# on.
#
# `finish()` is called after `backward()`. Which buckets can be left then? Those with a parameter that this rank's loss
# did not use: no hook will ever be called for it. It counts as zeros, and gets the mean too, as in 1c. After `finish()`
# every `grad` is the mean, and everything is ready for the next step, whose loss may use other parameters, and before
# which each `grad` is set to `None` again.
#
# Give it an attribute `sync`, `True` at first. While it is `False`, hooks note nothing and send nothing. (Task 3.)
#
# **Size:** about 7, 9, 4, 6 and 3 lines. **Cost:** one all-reduce for each bucket, n numbers in all.


# %% nbgrader={"solution": true, "grade_id": "task-2-buckets"}
#| export
def assign_buckets(sizes: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    """Numbers of the parameters in each bucket, from the last parameter to the first. About 7 lines."""
    ### BEGIN SOLUTION
    buckets: list[list[int]] = []
    filled = 0
    for number in reversed(range(len(sizes))):
        if not buckets or filled + sizes[number] > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(number)
        filled += sizes[number]
    return buckets
    ### END SOLUTION


class DDP:
    """Averages the gradients of `parameters` over all ranks, bucket by bucket, while `backward()` goes on."""

    def __init__(self, rank: Rank, parameters: Sequence[torch.Tensor], bucket_bytes: int = 25 << 20) -> None:
        """Start from rank 0's numbers, make buckets, and hang a hook on each parameter. About 9 lines."""
        ### BEGIN SOLUTION
        copy_from_first(rank, parameters)
        self.rank, self.sync = rank, True
        numbers = assign_buckets([one.nbytes for one in parameters], bucket_bytes)
        self.buckets = [[parameters[number] for number in bucket] for bucket in numbers]
        self.came: set[torch.Tensor] = set()
        self.left = 0  # how many buckets have left
        for one in parameters:
            one.register_post_accumulate_grad_hook(self.note)
        ### END SOLUTION

    def note(self, parameter: torch.Tensor) -> None:
        """The hook: this parameter's gradient has come; average the buckets that can leave now. About 4 lines."""
        ### BEGIN SOLUTION
        if self.sync:
            self.came.add(parameter)
            while self.left < len(self.buckets) and self.came.issuperset(self.buckets[self.left]):
                self.average(self.buckets[self.left])
        ### END SOLUTION

    def average(self, bucket: Sequence[torch.Tensor]) -> None:
        """Replace the gradients of the next bucket by their means over all ranks. About 6 lines."""
        ### BEGIN SOLUTION
        self.left += 1
        grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in bucket]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        mean = collectives.all_reduce(self.rank, flat) / self.rank.size
        for one, part in zip(bucket, torch.split(mean, [one.numel() for one in bucket]), strict=True):
            one.grad = part.view(one.shape)
        ### END SOLUTION

    def finish(self) -> None:
        """Average the buckets that have not left, and be ready for the next step. About 3 lines."""
        ### BEGIN SOLUTION
        while self.left < len(self.buckets):
            self.average(self.buckets[self.left])
        self.came, self.left = set(), 0
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "assign_buckets"}
check("assign_buckets")

# %% nbgrader={"grade": true, "grade_id": "ddp"}
check("ddp")

# %% [markdown]
# Each of your all-reduces ends before the backward pass goes on: on threads that take turns, nothing is gained. Real
# ones are only *started* in the hook, and run beside the computation; `finish()` waits for them. What that gains
# depends on your buckets only, so let us work it out from what your `DDP` does: twelve layers that each take 1 ms on
# the backward pass, and a network that needs a while for each bucket and each byte.

# %%
LAYERS, LAYER_MS, START_MS, MS_A_MB = 12, 1.0, 0.4, 0.5
COLOURS = ("#4269d0", "#efb118")


def watched_step(rank, bucket_bytes):
    """What happens in a step of `DDP` on layers of 2 MB, in order: ("layer", number) and ("bucket", megabytes)."""
    events = []

    class Watched(DDP):
        def average(self, bucket):
            events.append(("bucket", sum(one.nbytes for one in bucket) / 1e6))
            super().average(bucket)

    weights = [torch.ones(500_000, requires_grad=True) for _ in range(LAYERS)]
    ddp, h = Watched(rank, weights, bucket_bytes), torch.ones((), requires_grad=True) * 1
    for number, weight in enumerate(weights):
        h.register_hook(lambda _, number=number: events.append(("layer", number)))
        h = h * weight.mean()
    h.backward()
    ddp.finish()
    return events


def lay_out(events):
    """Bars (row, start, length) of the layers and of the buckets, which leave when the layer before them is done."""
    bars, free = [], 0.0
    done = 0.0
    for what, amount in events:
        if what == "layer":
            bars.append(("backward", done, LAYER_MS))
            done += LAYER_MS
        else:  # the hook runs before its layer is left
            start = max(free, done + LAYER_MS if done < LAYERS * LAYER_MS else done)
            bars.append(("buckets", start, START_MS + amount * MS_A_MB))
            free = start + bars[-1][2]
    return bars


figure = go.Figure()
for megabytes in (1, 6, 100):
    events = run(watched_step, [megabytes * 10**6]).results[0]
    bars = lay_out(events)
    for row, start, length in sorted(bars):  # the backward pass above its buckets
        figure.add_bar(
            y=[f"{row}, {megabytes} MB"],
            x=[length],
            base=[start],
            orientation="h",
            marker={"color": COLOURS[row == "buckets"], "line": {"color": "white", "width": 1}},
            hovertext=[f"{row}: {start:.1f} to {start + length:.1f} ms"],
            hoverinfo="text",
            showlegend=False,
        )
    end = max(start + length for _, start, length in bars)
    buckets = sum(what == "bucket" for what, _ in events)
    print(f"up to {megabytes:3} MB: {buckets:2} buckets, {end:4.1f} ms, {end - LAYERS * LAYER_MS:.1f} of them waiting")
figure.update_yaxes(autorange="reversed")
figure.update_layout(barmode="overlay", xaxis_title="ms", margin={"t": 30, "l": 130})
show(
    figure,
    alt="Bars of the backward pass and of the buckets below it, for small, middling and very large buckets",
    height=320,
)

# %% [markdown]
# ## Task 3 · Add up, send once
#
# *About 25 minutes.*
#
# A batch that does not fit into memory goes through in micro-batches, whose gradients add up in `grad`: torch does that
# by itself. If each `backward()` also averages, bytes are sent for nothing, and worse: what has been averaged already
# is added to and averaged again.
#
# **Write** `accumulate(ddp, rank, losses, tokens)`: afterwards every `grad` is that of the mean loss over all tokens of
# all ranks. `losses` are functions without arguments, one for each micro-batch, where the same one may stand twice;
# each computes the mean loss over its tokens, of which there are `tokens[i]`. Weigh each loss (Task 1), go back from
# it, in whatever order, and let gradients leave only in the backward pass of the last one, as soon as they can; `sync`
# is `True` before and afterwards, and both lists stay as they are. Ranks may have different numbers of micro-batches,
# or none. As with a data loader, each micro-batch comes into the memory of the one before, so go back from its loss
# before you compute the next.
#
# A micro-batch without tokens has no mean: its loss is 0/0, NaN, and NaN times weight 0 is NaN still. Never compute it.
# Any other loss goes back, whatever its value: at 0 it may have a gradient all the same, and to pass over NaN would
# hide that training diverges.
#
# **Size:** about 7 lines. **Cost:** the messages of *one* step of `DDP`, and one all-reduce of one number, however many
# micro-batches there are.


# %% nbgrader={"solution": true, "grade_id": "task-3-accumulate"}
#| export
def accumulate(ddp: DDP, rank: Rank, losses: Sequence[Callable[[], torch.Tensor]], tokens: Sequence[int]) -> None:
    """Leave in each grad that of the mean loss over all tokens of all ranks' micro-batches. About 7 lines."""
    ### BEGIN SOLUTION
    weighted = zip(losses, loss_weights(rank, tokens), strict=True)
    work = [(loss, weight) for loss, weight in weighted if weight]
    for number, (loss, weight) in enumerate(work):
        ddp.sync = number == len(work) - 1
        (loss() * weight).backward()
    ddp.sync = True
    ddp.finish()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "accumulate"}
check("accumulate")

# %% [markdown]
# ## Task 4 · Divide the optimiser
#
# *About 50 minutes.*
#
# Adam keeps two numbers for each parameter, and in mixed precision an exact copy of it besides. All ranks keep the very
# same. **ZeRO 1** (Rajbhandari et al. 2020): rank r keeps the states of a p-th of the parameters only, updates these,
# and tells the others. It then needs the mean gradient of its part only, so a reduce-scatter will do; an all-gather of
# the new weights is the other half of the all-reduce that is saved.
#
# **4a.** `ShardedOptimizer(rank, parameters, optimizer_class, **options)`. When it is made, all ranks get rank 0's
# parameters. All parameters laid end to end are one flat array; `shard` is a tensor with a copy of this rank's chunk of
# it (`split_chunks`, or equal chunks, the last filled up with zeros), detached (it may want a gradient or none), and
# the only parameter of the optimiser inside, `optimizer_class([shard], **options)`. That may be `torch.optim.Adam`, or
# anything that moves each element by itself, in place, by `step()`, as its `grad` says. Whatever else you keep of the
# weights, every rank has them anyway.
#
# - `reduce_gradients()`: `shard.grad` becomes the mean over all ranks of this rank's chunk of the gradients. A
#   parameter whose `grad` is `None`, as that of a frozen one is, counts as zeros. Nobody needs its `grad` afterwards.
# - `step()`: the optimiser's step, on a rank whose shard is empty too, and then `gather_weights()`.
# - `gather_weights()`: every parameter becomes what the shards of all ranks say.
#
# **4b.** Clipping. A gradient whose norm is more than `max_norm` is scaled down to that norm. Norm of *what*? Of the
# whole gradient, of which each rank has a part. By the norm of its own part, every rank would scale by another factor,
# and the step would point elsewhere. `clip_gradient(rank, part, max_norm)` scales `part` in place, and returns the norm
# of the whole gradient, before it was clipped, as a float; adding up in the part's dtype will do. A part is flat and
# may be empty; a gradient may be zero, tiny or huge, as long as its squares are floats, and so may `max_norm`, which
# may be infinite, too: then nothing is clipped.
#
# **Size:** about 7, 4, 2, 5 and 5 lines. **Cost:** a step sends as many bytes as one all-reduce of n numbers. A rank
# cannot keep the states of what it never receives: that is how this is judged, and by what `optimizer_class` is given.


# %% nbgrader={"solution": true, "grade_id": "task-4-zero-1"}
#| export
class ShardedOptimizer:
    """An optimiser whose states are divided over the ranks: each has those of its chunk of all parameters."""

    def __init__(
        self, rank: Rank, parameters: Sequence[torch.Tensor], optimizer_class: Callable[..., Any], **options: Any
    ) -> None:
        """Start from rank 0's numbers, and give this rank's chunk to an optimiser. About 7 lines."""
        ### BEGIN SOLUTION
        copy_from_first(rank, parameters)
        self.rank, self.parameters = rank, list(parameters)
        flat = torch.cat([one.detach().reshape(-1) for one in parameters])
        self.shard = collectives.split_chunks(flat, rank.size)[rank.rank].clone().requires_grad_()
        self.optimizer = optimizer_class([self.shard], **options)
        ### END SOLUTION

    def reduce_gradients(self) -> None:
        """Set shard.grad to this rank's chunk of the mean gradient. About 4 lines."""
        ### BEGIN SOLUTION
        grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in self.parameters]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        self.shard.grad = collectives.reduce_scatter(self.rank, flat) / self.rank.size
        ### END SOLUTION

    def step(self) -> None:
        """Move this rank's chunk, then tell the others. About 2 lines."""
        ### BEGIN SOLUTION
        self.optimizer.step()
        self.gather_weights()
        ### END SOLUTION

    def gather_weights(self) -> None:
        """Set every parameter to what all ranks' shards say. About 5 lines."""
        ### BEGIN SOLUTION
        flat = torch.cat(collectives.all_gather(self.rank, self.shard.detach()))
        parts = torch.split(flat, [one.numel() for one in self.parameters])
        for one, part in zip(self.parameters, parts, strict=True):
            one.data.copy_(part.view(one.shape))
        ### END SOLUTION


def clip_gradient(rank: Rank, part: torch.Tensor, max_norm: float) -> float:
    """Scale this rank's part of a gradient so that the norm of all parts is at most max_norm: the norm before.

    About 5 lines.
    """
    ### BEGIN SOLUTION
    squares = collectives.all_reduce(rank, part.square().sum().reshape(1))
    norm = float(squares.sqrt())
    if norm > max_norm:
        part *= max_norm / norm
    return norm
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "sharded_optimizer"}
check("sharded_optimizer")

# %% nbgrader={"grade": true, "grade_id": "clip_gradient"}
check("clip_gradient")

# %% [markdown]
# ## Task 5 · Divide the weights
#
# *About 50 minutes.*
#
# **ZeRO 3**, which PyTorch calls fully sharded data parallelism, **FSDP** (Zhao et al. 2023): each rank *keeps* a p-th
# of every layer's weights. Just before a layer computes, its weights are gathered; just after, they are forgotten. The
# backward pass needs them once more: it gathers again. Each rank's gradient of the whole layer then goes into a
# reduce-scatter, of which the rank keeps its own chunk.
#
# **Write** `ShardedLayer(rank, layer, weights)`. `layer(x, *weights)` is a function that computes the layer from x,
# floats of any shape, and all of its whole weights; `weights` are this rank's at the start, of which rank 0's count, of
# any shapes, and maybe one only. Whether one of them or x wants a gradient changes nothing for the shard, which gets
# that of all weights.
#
# - `shard`: this rank's chunk of all the layer's weights laid end to end, a tensor with memory of its own that wants a
#   gradient. `shard.grad` is where `backward()` leaves this rank's chunk of the mean gradient.
# - `gather()`: the whole weights, as a list in the order and the shapes of `weights`.
# - calling it with `x` gives what the layer makes of x. A net may call one layer more than once: gradients add up. So
#   they do where `backward()` is asked again (`retain_graph=True`). Neither x nor whether it wants a gradient changes,
#   nor does the gradient that comes, which a residual connection beside the layer has, too.
#
# What torch is to do in the forward and the backward pass is yours to say in `Gathered`, a `torch.autograd.Function`.
# `forward` gathers, and computes the layer; torch records nothing of what happens inside. It may put away what
# `backward` will need: `ctx.save_for_backward(x)` and attributes of `ctx`, but **no whole weights**. `backward` gets
# the gradient of the result. It gathers again, computes the layer once more, now with `torch.enable_grad()`, on an
# `x.detach()` and weights that want gradients, and asks `torch.autograd.grad(y, [x, *weights], grad)` for these. It
# returns a gradient for each argument of `forward`: for x, for the shard, and `None` for the layer. (To compute a layer
# again is *checkpointing*, lab 01; FSDP is mostly used with it.)
#
# The checks see whether you kept anything. Between forward and backward pass they change all shards, so that whole
# weights from before are the wrong ones. And they count what each rank holds at any moment: there is room for all
# shards with their gradients and a few whole layers, not for all layers.
#
# **Size:** about 6, 3, 1, 3 and 10 lines. **Cost:** each layer's weights are gathered twice, and their gradients
# reduced once: half as much again as in DDP.


# %% nbgrader={"solution": true, "grade_id": "task-5-zero-3"}
#| export
class ShardedLayer:
    """A layer of which each rank keeps a chunk of the weights; they are whole only while it computes."""

    def __init__(self, rank: Rank, layer: Callable[..., torch.Tensor], weights: Sequence[torch.Tensor]) -> None:
        """Keep this rank's chunk of rank 0's weights. About 6 lines."""
        ### BEGIN SOLUTION
        self.rank, self.layer = rank, layer
        self.shapes = [one.shape for one in weights]
        flat = torch.cat([one.detach().reshape(-1) for one in weights])
        flat = collectives.broadcast(rank, flat)
        self.shard = collectives.split_chunks(flat, rank.size)[rank.rank].clone().requires_grad_()
        ### END SOLUTION

    def gather(self) -> list[torch.Tensor]:
        """The whole weights, from all ranks' shards. About 3 lines."""
        ### BEGIN SOLUTION
        flat = torch.cat(collectives.all_gather(self.rank, self.shard.detach()))
        parts = torch.split(flat, [shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        ### END SOLUTION

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """What the layer makes of x. About 1 line."""
        ### BEGIN SOLUTION
        return Gathered.apply(x, self.shard, self)
        ### END SOLUTION


class Gathered(torch.autograd.Function):
    """A layer's forward and backward pass, each with weights that are gathered for it and forgotten."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, shard: torch.Tensor, layer: ShardedLayer) -> torch.Tensor:
        """Compute the layer with gathered weights. About 3 lines."""
        ### BEGIN SOLUTION
        ctx.save_for_backward(x)
        ctx.layer = layer
        return layer.layer(x, *layer.gather())
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Gradients of x and of this rank's shard; None for the layer. About 10 lines."""
        ### BEGIN SOLUTION
        layer, (saved,) = ctx.layer, ctx.saved_tensors
        x = saved.detach().requires_grad_()
        weights = [one.detach().requires_grad_() for one in layer.gather()]
        with torch.enable_grad():
            y = layer.layer(x, *weights)
        grad_x, *grads = torch.autograd.grad(y, [x, *weights], grad)
        flat = torch.cat([one.reshape(-1) for one in grads])
        mean = collectives.reduce_scatter(layer.rank, flat) / layer.rank.size
        return grad_x, mean, None
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "sharded_layer"}
check("sharded_layer")

# %% [markdown]
# **5b. Predict.** `step_cost(n, p, stage)`: how many bytes a rank keeps, and how many *elements* it sends in a step, as
# integers, exact however large n is, for n parameters on p ranks, with p dividing n and every layer. In mixed precision
# a parameter has 2 bytes of weight, 2 of gradient, and 12 of optimiser states (an exact weight and Adam's two numbers
# in float32). Stage 0 is DDP, which keeps all of them; stage 1 divides the states, stage 2 the gradients too, stage 3
# the weights too. Stage 2 sends what stage 1 does. All collectives go round rings.
#
# **Size:** about 6 lines. **Cost:** none.


# %% nbgrader={"solution": true, "grade_id": "task-5-predict"}
#| export
def step_cost(n: int, p: int, stage: int) -> tuple[int, int]:
    """Bytes that a rank keeps of n parameters, and elements that it sends in a step, by ZeRO stage 0 to 3.

    About 6 lines.
    """
    ### BEGIN SOLUTION
    weights, gradients, states = 2 * n, 2 * n, 12 * n
    kept = weights // (p if stage >= 3 else 1)
    kept += gradients // (p if stage >= 2 else 1)
    kept += states // (p if stage >= 1 else 1)
    collectives_of_n = 3 if stage == 3 else 2
    return kept, collectives_of_n * (n - n // p)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "step_cost"}
check("step_cost")

# %% [markdown]
# **Measure.** One step of your `DDP`, your `ShardedOptimizer` and your `ShardedLayer`s with `torch.optim.Adam`, all in
# float32: what a rank holds after it, and what it has sent, counted and not predicted. (With 4 bytes for each number
# the bars are other ones than `step_cost`'s. Which parts of which bar shrink?)

# %%
from mlsys_lab.benchmark.memory import track_memory

P, DEPTH, WIDTH = 4, 8, 32
FLAT = DEPTH * (WIDTH * WIDTH + WIDTH)


def affine(x, weight, bias):
    """A layer without its non-linearity."""
    return x @ weight + bias


def one_step(rank, stage):
    """Train for one step: bytes that are still held after it, elements of weights sent."""
    torch.manual_seed(rank.rank)
    x = torch.randn(2, WIDTH)
    with track_memory() as memory:
        start = [[torch.randn(WIDTH, WIDTH) / WIDTH**0.5, torch.zeros(WIDTH)] for _ in range(DEPTH)]
        if stage == 3:
            layers = [ShardedLayer(rank, affine, weights) for weights in start]
            optimizer = torch.optim.Adam([layer.shard for layer in layers], foreach=False)
        else:
            weights = [one.requires_grad_() for pair in start for one in pair]
            layers = [lambda x, pair=pair: affine(x, *pair) for pair in start]
            kept = DDP(rank, weights, 10**5) if stage == 0 else None
            adam = {"optimizer_class": torch.optim.Adam, "foreach": False}
            optimizer = ShardedOptimizer(rank, weights, **adam) if stage else torch.optim.Adam(weights, foreach=False)
        del start
        for layer in layers:
            x = layer(x).tanh()
        x.square().mean().backward()
        if stage == 0:
            kept.finish()
        if stage == 1:
            optimizer.reduce_gradients()
        optimizer.step()
        del x
        rank.barrier()  # nobody is still holding a message of this rank's
    return memory.current_bytes


stages = {0: "DDP", 1: "ZeRO 1", 3: "ZeRO 3"}
held = {}
for stage, name in stages.items():
    (held[name], *_), ledger = run(one_step, [stage] * P)
    start_bytes = (P - 1) * FLAT * 4  # rank 0's weights, sent before the first step
    sent = (ledger.total_bytes - start_bytes) / P / 4
    print(f"{name:6}: {held[name] / FLAT:4.1f} bytes a parameter held, {sent:9,.0f} elements sent", end="; ")
    print(f"{step_cost(FLAT, P, stage)[1]:9,} predicted")
figure = go.Figure([go.Bar(x=list(held), y=[one / FLAT for one in held.values()], name="measured, float32")])
predicted = [step_cost(FLAT, P, stage)[0] / FLAT for stage in stages]
figure.add_bar(x=list(held), y=predicted, name="step_cost, mixed precision")
figure.update_layout(yaxis_title="bytes a parameter", margin_t=30)
show(figure, alt="Bytes a parameter that one of four ranks holds: most with DDP, least with ZeRO 3", height=340)

# %% [markdown]
# ## Task 6 · Stop, and go on
#
# *About 30 minutes.*
#
# Jobs die. What must be saved so that the losses after a restart are those that would have come anyway? The weights,
# and all of the optimiser's states, its count of steps among them; where in the data training stands; and the state of
# the random numbers, or dropout will draw other ones. Each rank saves its own part, and none ever has all of it.
#
# **6a.** `save_state(optimizer, position)`: this rank's part of a `ShardedOptimizer`, a dictionary of tensors: a copy
# of the shard as `"weights"`; each entry of `state[optimizer.shard]` of the optimiser inside, `optimizer.optimizer`
# (there torch's optimisers, too, keep a dictionary of tensors for each parameter; some make it in the first step only,
# before which there is nothing to save of it), under its own name, which is none of the other three; `"position"`, a
# whole number without axes, however large (it may count tokens); and `"random"`, from `torch.get_rng_state()`. What is
# saved must not change when training goes on. Use no more of the optimiser inside than `step()` and `state`.
#
# `load_state(optimizer, part)` puts all of it back, each entry in its own dtype, into a new `ShardedOptimizer` that has
# not made a step, the parameters included (frozen ones too), instead of what states that may have, and returns the
# position as an `int`. The part stays as it is, also when training goes on: the job may die again, and load it again.
#
# **6b.** `reshard(parts, size)`: the parts of all ranks, in order, become parts for `size` ranks. Entries without axes
# are alike on all ranks, and every new part has a copy. `"random"` cannot be divided: new rank r takes that of old rank
# r modulo the number of old parts. All others, whatever they are called and whatever their dtype (bfloat16, bytes,
# flags), are chunks of flat arrays of n entries, as `split_chunks` cuts them: join, and cut again. Each entry lies in
# memory of its own, no more than it needs: who saves a view saves all that it is a view of.
#
# **Size:** about 3, 6 and 10 lines. **Cost:** 6a sends nothing to save, and gathers the weights to load.


# %% nbgrader={"solution": true, "grade_id": "task-6-checkpoint"}
#| export
def save_state(optimizer: ShardedOptimizer, position: int) -> dict[str, torch.Tensor]:
    """This rank's part of a checkpoint: weights, states, position and random state. About 3 lines."""
    ### BEGIN SOLUTION
    states = optimizer.optimizer.state[optimizer.shard]
    part = {"weights": optimizer.shard.detach(), "position": torch.tensor(position), **states}
    return {name: one.clone() for name, one in part.items()} | {"random": torch.get_rng_state()}
    ### END SOLUTION


def load_state(optimizer: ShardedOptimizer, part: dict[str, torch.Tensor]) -> int:
    """Put a part back into a new optimiser, and its random state: the position. About 6 lines."""
    ### BEGIN SOLUTION
    optimizer.shard.data.copy_(part["weights"])
    others = ("weights", "position", "random")
    states = {name: one.clone() for name, one in part.items() if name not in others}
    optimizer.optimizer.state[optimizer.shard] = states
    torch.set_rng_state(part["random"])
    optimizer.gather_weights()
    return int(part["position"])
    ### END SOLUTION


def reshard(parts: Sequence[dict[str, torch.Tensor]], size: int) -> list[dict[str, torch.Tensor]]:
    """Parts for `size` ranks from those of all old ranks. About 10 lines."""
    ### BEGIN SOLUTION
    new: list[dict[str, torch.Tensor]] = [{} for _ in range(size)]
    for name, first in parts[0].items():
        if name == "random":
            pieces = [parts[r % len(parts)][name] for r in range(size)]
        elif first.ndim == 0:
            pieces = [first] * size
        else:
            pieces = collectives.split_chunks(torch.cat([part[name] for part in parts]), size)
        for part, piece in zip(new, pieces, strict=True):
            part[name] = piece.clone()
    return new
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "resume"}
check("resume")

# %% nbgrader={"grade": true, "grade_id": "reshard"}
check("reshard")

# %% [markdown]
# **See it.** A network learns on two ranks, dies in the middle, and goes on with three. The batch of each step is drawn
# from its position, so three ranks see the rows that two would have seen. What would the curve look like if you lost
# Adam's states?

# %%
torch.manual_seed(3)
ROWS, STEPS, STOP = 48, 60, 30
INPUTS = torch.linspace(-3, 3, 400, dtype=torch.float64)[:, None]
TARGETS = torch.sin(2 * INPUTS)
SHAPES = ((1, 24), (24,), (24, 1), (1,))
BEGIN = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]


def learn(rank, given):
    """Train from a part of a checkpoint, or from the start: this rank's losses, and a part of the next checkpoint."""
    part, until = given
    weights = [one.clone().requires_grad_() for one in BEGIN]
    optimizer = ShardedOptimizer(rank, weights, torch.optim.Adam, lr=0.05)
    position, losses = load_state(optimizer, part) if part else 0, []
    while position < until:
        batch = torch.randint(400, (ROWS,), generator=torch.Generator().manual_seed(position))
        rows = batch.chunk(rank.size)[rank.rank]
        w1, b1, w2, b2 = weights
        loss = ((INPUTS[rows] @ w1 + b1).tanh() @ w2 + b2 - TARGETS[rows]).square().mean()
        for one in weights:
            one.grad = None
        loss.backward()
        optimizer.reduce_gradients()
        optimizer.step()
        position += 1
        losses.append(loss.item())
    return losses, save_state(optimizer, position)


def mean_losses(results):
    """The mean over ranks of each step's loss."""
    return [sum(step) / len(results) for step in zip(*(losses for losses, _ in results), strict=True)]


unbroken = mean_losses(run(learn, [(None, STEPS)] * 2).results)
before = run(learn, [(None, STOP)] * 2).results
saved = [part for _, part in before]
after = run(learn, [(part, STEPS) for part in reshard(saved, 3)]).results
fresh = [part | {name: torch.zeros_like(part[name]) for name in ("step", "exp_avg", "exp_avg_sq")} for part in saved]
forgetful = run(learn, [(part, STEPS) for part in reshard(fresh, 3)]).results
apart = max(abs(a - b) for a, b in zip(mean_losses(after), unbroken[STOP:], strict=True))
print(f"largest difference of a loss after the restart: {apart:.1e}")
figure = go.Figure()
figure.add_scatter(y=unbroken, mode="lines", name="two ranks, unbroken", line_width=5)
for name, results, dash in (("three ranks from there on", after, "dot"), ("without Adam's states", forgetful, "dash")):
    figure.add_scatter(x=list(range(STOP, STEPS)), y=mean_losses(results), mode="lines", name=name, line_dash=dash)
figure.update_layout(xaxis_title="step", yaxis_title="loss", yaxis_type="log", margin_t=30)
show(figure, alt="Loss against step: the run that went on with three ranks lies on the unbroken one")

# %% [markdown]
# ## Answer for yourself
#
# - Your `DDP` divides by p after the sum. In bf16, what is gained by dividing before it, and what may be lost?
# - Why does a bucket take *neighbours*, and not whichever parameters fill it best?
# - ZeRO 2 frees gradients as they come. Why can it not add up micro-batches as DDP does, without sending each time?
# - ZeRO 3 gathers a layer twice. When would you rather keep it between the two, and what would that cost?
# - Your checkpoint has a part for each rank. A rank dies while it writes: how do you make sure that a whole checkpoint
#   is there all the same?
# - At work: which of your classes are `DistributedDataParallel`, `ZeroRedundancyOptimizer` and `fully_shard`, and which
#   argument of theirs is which of yours?
#
# When all checks pass, save the notebook and run `mlsys-lab check data-parallel` in a terminal.
