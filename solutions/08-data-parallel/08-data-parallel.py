# %% [markdown]
# # Lab 08 · Data-parallel training: from DDP to FSDP
#
# Llama 3 8B has 8 billion parameters. In mixed precision with Adam each takes 16 bytes (2 weight, 2 gradient, 12
# optimizer states): 128 GB, and an H100 has 80 GB. With plain data parallelism each GPU keeps all of it; with FSDP on
# eight GPUs, each keeps 16 GB. You build both, and the steps in between, on the collectives of lab 07.
#
# ```text
#              rank 0                rank 1                     sent per step
#  DDP         W W  G G  S S         W W  G G  S S              all-reduce of G, in buckets, during backward
#  ZeRO-1      W W  G G  S .         W W  G G  . S              reduce-scatter of G, all-gather of W
#  ZeRO-3      W .  G .  S .         . W  . G  . S              all-gather of W twice, reduce-scatter of G
#
#  W weights   G gradients   S optimizer states   . is on the other rank
# ```
#
# **You will build**
#
# 1. a data-parallel step on lab 01's `Tensor`, exact for any number of tokens on each rank (`35 min`);
# 2. DDP: gradient buckets that are averaged while the backward pass goes on (`50 min`);
# 3. gradient accumulation over micro-batches that communicates once (`25 min`);
# 4. ZeRO-1: an optimizer whose states are sharded over the ranks, and gradient clipping (`50 min`);
# 5. ZeRO-3, or FSDP: layers whose weights are complete only while they compute (`50 min`);
# 6. checkpoints that resume exactly, also on another number of ranks (`30 min`).
#
# **At the end you can answer**
#
# - When is the mean of the ranks' gradients not the gradient of the mean loss?
# - Which gradients can be sent first, and why must all ranks agree on the order?
# - What does each ZeRO stage save in memory, and what does it cost in communication?
# - What must a checkpoint hold for training to continue as if it had never stopped?
#
# **Time:** about 240 minutes. **Points:** 100. **You need:** [lab 07](07-collectives.ipynb) (ranks and collectives),
# [lab 01](01-autograd.ipynb) (gradients), and torch's `backward()` from Task 2 on. Background: chapter 10, *Data
# parallelism*.
#
# **Readings:** *The Ultra-Scale Playbook: Training LLMs on GPU Clusters* (`ultrascale-playbook`).
#
# **How it works.** Replace each line that raises `NotImplementedError`, run the cell, paste the example to see
# whether it does what the text says, then run the `check` below. Cells that start with `#| export` are what is
# graded. Names are those of the course's package, `mlsys_lab.parallel`, whose classes take a module where yours take
# a list of parameters. Each check runs on correct versions of what earlier tasks build, so a mistake costs points once.

# %%
from mlsys_lab.checks import lab
from mlsys_lab.comm import run

check = lab("data-parallel")

# %%
#| export
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from mlsys_lab import stack
from mlsys_lab.comm import Rank

collectives = stack.load("collectives")
engine = stack.load("autograd")
Tensor = engine.Tensor

# %% [markdown]
# ## Ranks and collectives
#
# As in lab 07, a program is a function that all ranks run at the same time. `run` passes it an object, here called
# `group`, that connects a rank with all others: `group.rank` is this rank's number, `group.size` the number of ranks
# ($p$ in formulas). All communication goes through lab 07's collectives (yours, if they are accepted):
#
# | call | returns |
# |---|---|
# | `collectives.broadcast(group, x)` | rank 0's x |
# | `collectives.all_reduce(group, x)` | the sum of all ranks' x, in the shape of x |
# | `collectives.reduce_scatter(group, x)` | this rank's chunk, flat, of that sum |
# | `collectives.all_gather(group, x)` | a list of all ranks' x, whose lengths may differ |
# | `collectives.split_chunks(x, parts)` | flat chunks of x whose lengths differ by at most one, longer ones first |
#
# None of them changes x, and x may be empty. **Every rank must make the same calls in the same order.**
#
# Results are compared with those of a single process, up to rounding. The judge also counts bytes and messages; sending
# less than the stated cost is fine. In this lab all parameters of a model have one dtype and no two share memory, but a
# parameter may be of any shape, even one without axes or without elements, and need not be contiguous (a transposed
# matrix).
#
# ## Task 1 · The same step on every rank
#
# *About 35 minutes.*
#
# **Goal.** Ranks that start with the same weights and apply the same gradients stay identical. So you broadcast rank
# 0's weights once, and make every rank's gradient that of the mean loss over the tokens of *all* ranks.
#
# A rank's loss is a mean over its own tokens. With 3 tokens on rank 0 and 1 on rank 1, the mean of the two gradients
# counts the token of rank 1 three times as much as one of rank 0. What training wants is the gradient of the mean
# over all tokens, $\frac1T \sum_r t_r g_r$, where rank $r$ has $t_r$ tokens, $T = \sum_r t_r$, and $g_r$ is the
# gradient of its mean loss. After the backward pass, gradients are summed over the ranks and divided by $p$. Derive
# the factor by which a rank must multiply its loss *before* `backward()` so that the result is the wanted gradient.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `broadcast_tensors(tensors, group)` | – | overwrites each tensor's `data` with rank 0's |
# | `loss_weights(tokens, group)` | list of floats | a weight for each micro-batch of this rank |
# | `backward_and_average(loss, tokens, parameters, group)` | – | runs the backward pass and averages the gradients |
#
# A rank may split its part of the batch into **micro-batches** and process one after the other, as you will in Task 3.
# `tensors` and `parameters` are `Tensor`s of lab 01: values in `data`, the gradient in `grad` (both torch tensors;
# `grad` is `None` before). For `loss_weights`, `tokens` lists the numbers of tokens of this rank's micro-batches; for
# `backward_and_average`, it is the number of tokens (1 or more) of which `loss` is the mean.
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# weights = [[torch.tensor([1.0, 2.0])], [torch.zeros(2)]]  # on rank 0, on rank 1
# _ = run(lambda group, tensors: broadcast_tensors(tensors, group), weights)
# weights[1][0].tolist()  # → [1.0, 2.0]
# list(run(lambda group, tokens: loss_weights(tokens, group), [[2, 1], [1]]).results)  # → [[1.0, 0.5], [0.5]]
# ```
#
# **Requirements**
#
# - `broadcast_tensors` also takes torch tensors, and overwrites frozen ones (`requires_grad=False`) too.
# - `loss_weights`: the gradients of a rank's micro-batches will be *added*, those of the ranks averaged. One
#   all-reduce of one number. A micro-batch without tokens gets weight 0, and a rank may have no micro-batch.
# - `backward_and_average` leaves in every `grad` the gradient of the mean loss over all ranks' tokens. It
#   concatenates all gradients, so that **one** all-reduce carries them.
# - A parameter that a rank's loss does not use has `grad` `None` there. It counts as zeros, and gets the mean too.
#
# **Size:** about 2, 3 and 8 lines.
#
# <details><summary>Details</summary>
#
# - Token counts in the billions must stay exact: use integers. $T$ is at least 1.
# - A parameter that no rank uses gets a gradient of zeros.
# - You may write into `grad` or assign a new tensor, also a view of a flat buffer.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-1-step"}
#| export
def broadcast_tensors(tensors: Iterable[Any], group: Rank) -> None:
    """Overwrite the data of each tensor with that of rank 0. About 2 lines."""
    ### BEGIN SOLUTION
    for tensor in tensors:
        tensor.data.copy_(collectives.broadcast(group, tensor.data))
    ### END SOLUTION


def loss_weights(tokens: Sequence[int], group: Rank) -> list[float]:
    """Weights of this rank's mean losses, by their token counts. About 3 lines."""
    ### BEGIN SOLUTION
    own = torch.tensor([sum(tokens)], dtype=torch.int64)
    total = int(collectives.all_reduce(group, own))
    return [count * group.size / total for count in tokens]
    ### END SOLUTION


def backward_and_average(
    loss: Tensor, tokens: int, parameters: Sequence[Tensor], group: Rank
) -> None:
    """Leave in each grad that of the mean loss of all ranks' tokens. About 8 lines."""
    ### BEGIN SOLUTION
    (weight,) = loss_weights([tokens], group)
    (loss * weight).backward()
    grads = [torch.zeros_like(p.data) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    mean = collectives.all_reduce(group, flat) / group.size
    chunks = torch.split(mean, [grad.numel() for grad in grads])
    for parameter, chunk in zip(parameters, chunks, strict=True):
        parameter.grad = chunk.reshape(parameter.data.shape)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "copy_from_first"}
check("copy_from_first")

# %% nbgrader={"grade": true, "grade_id": "loss_weights"}
check("loss_weights")

# %% nbgrader={"grade": true, "grade_id": "backward_together"}
check("backward_together")

# %% [markdown]
# **Predict, then measure.** A line is fitted to 64 points by one process, and by two ranks that have 60 points and 4.
# By which weight does rank 0 multiply its mean loss? Write your number into the next cell before you run the one
# after it.

# %%
guess = None  # weight of rank 0's loss, which is a mean over 60 points

# %%
import plotly.graph_objects as go

from mlsys_lab.widgets import show

torch.manual_seed(1)
X = torch.linspace(-1, 1, 64, dtype=torch.float64)
Y = 2 * X + 0.2 * torch.randn(64, dtype=torch.float64)
Y[60:] -= 3  # the points of rank 1 are outliers


def fit(group, rows, is_weighted=True, steps=60):
    """Slope after each step, of a line fitted to this rank's rows."""
    zero = torch.zeros(1, dtype=torch.float64)
    slope, offset = parameters = [Tensor(zero, requires_grad=True) for _ in range(2)]
    tokens, slopes = rows.stop - rows.start if is_weighted else 1, []
    for _ in range(steps):
        slope.grad = offset.grad = None
        error = slope * Tensor(X[rows]) + offset - Tensor(Y[rows])
        backward_and_average((error * error).mean(), tokens, parameters, group)
        for parameter in parameters:
            parameter.data = parameter.data - 0.3 * parameter.grad
        slopes.append(slope.data.item())
    return slopes


two_ranks = [slice(0, 60), slice(60, 64)]
unweighted = run(lambda group, rows: fit(group, rows, is_weighted=False), two_ranks)
curves = {
    "one process": run(fit, [slice(0, 64)]).results[0],
    "two ranks, weighted": run(fit, two_ranks).results[0],
    "two ranks, unweighted": unweighted.results[0],
}
figure = go.Figure()
for (name, slopes), dash in zip(curves.items(), ("solid", "dot", "solid"), strict=True):
    line = {"dash": dash, "width": 3}
    figure.add_scatter(y=slopes, mode="lines", name=name, line=line)
    print(f"{name:22} slope {slopes[-1]:+.3f}")
figure.update_layout(xaxis_title="step", yaxis_title="slope", margin_t=30, height=320)
show(figure, alt="Slope by step: weighted, two ranks agree with one process")
weights = run(lambda group, tokens: loss_weights(tokens, group), [[60], [4]]).results
check.predict(guess, weights[0][0], "as rank 0's weight", within=0.01)

# %% [markdown]
# The weights of all micro-batches add up to $p$, in proportion to their tokens. Unweighted, each of the 4 outliers
# counts 15 times as much as any other point, and the line is wrong although every rank computed correctly.
#
# ## Task 2 · DDP: gradient buckets
#
# *About 50 minutes.*
#
# **Goal.** From here on torch computes the gradients. The backward pass produces them from the last layer to the
# first, so the last layers' gradients can be on the network while the first layers still compute: `DDP` averages
# them in **buckets**, during `backward()`.
#
# One all-reduce per parameter would pay the latency many times; a single one for all could start only at the end.
# Buckets of a few megabytes lie between (Li et al. 2020; torch's default is 25 MB).
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `assign_buckets(parameters, bucket_bytes)` | list of lists of parameters | neighbours together, last ones first |
# | `DDP(parameters, group, bucket_bytes)` | – | broadcasts rank 0's parameters, makes buckets, registers hooks |
# | `ddp.mark_ready(parameter)` | – | the hook: torch calls it as soon as the parameter's `grad` is complete |
# | `ddp.average_bucket(bucket)` | – | replaces a bucket's gradients by their means over ranks: one all-reduce |
# | `ddp.finish_gradient_synchronization()` | – | after `backward()`: averages the remaining buckets |
#
# A hook is registered by `parameter.register_post_accumulate_grad_hook(function)`; torch calls `function(parameter)` in
# the middle of `backward()`. `ddp.no_sync()` is given: in this context `require_backward_grad_sync` is `False`.
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# parameters = [torch.zeros(n) for n in (2, 3, 1, 4)]  # 8, 12, 4 and 16 bytes
# [[len(p) for p in bucket] for bucket in assign_buckets(parameters, 20)]  # → [[4, 1], [3, 2]]
# w = [[torch.ones(2, requires_grad=True)] for rank in range(2)]
# def train(group, x):
#     ddp = DDP(w[group.rank], group)
#     (w[group.rank][0] * x).sum().backward()
#     ddp.finish_gradient_synchronization()
#
# _ = run(train, [1.0, 3.0])
# w[0][0].grad.tolist(), w[1][0].grad.tolist()  # → ([2.0, 2.0], [2.0, 2.0])
# ```
#
# **Requirements**
#
# - Go from the last parameter to the first. A parameter joins the current bucket if the bucket then holds at most
#   `bucket_bytes` (`tensor.nbytes` each); otherwise it starts the next one, even if it is larger by itself.
# - A bucket is averaged in the hook that completes it, provided that **all buckets before it have been averaged**;
#   otherwise it is averaged as soon as they have been. An all-reduce needs all ranks: if two ranks started different
#   buckets first, they would deadlock or add up different gradients. So all ranks average bucket 0, then bucket 1, and
#   so on.
# - A parameter that this rank's loss did not use gets no hook call. Its bucket waits for
#   `finish_gradient_synchronization()`, where it counts as zeros and gets the mean too, as in Task 1.
# - After `finish_gradient_synchronization()` every `grad` is the mean, and the next step may use other parameters.
# - While `require_backward_grad_sync` is `False`, the hook does nothing at all.
#
# **Size:** about 7, 8, 4, 6 and 3 lines.
#
# <details><summary>Details</summary>
#
# - Without parameters there is no bucket. `bucket_bytes` may be 0: then each parameter that has elements is alone.
# - All parameters require gradients. Before each step `grad` is `None` everywhere.
# - Gradients are sent in the parameters' dtype.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-2-ddp"}
#| export
def assign_buckets(
    parameters: Sequence[torch.Tensor], bucket_bytes: int
) -> list[list[torch.Tensor]]:
    """Group parameters into buckets, the last parameters first. About 7 lines."""
    ### BEGIN SOLUTION
    buckets: list[list[torch.Tensor]] = []
    filled = 0
    for parameter in reversed(parameters):
        if not buckets or filled + parameter.nbytes > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += parameter.nbytes
    return buckets
    ### END SOLUTION


class DDP:
    """Averages gradients over all ranks, bucket by bucket, during `backward()`."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        group: Rank,
        bucket_bytes: int = 25 << 20,
    ) -> None:
        """Take rank 0's parameters; make buckets; register hooks. About 8 lines."""
        self.group, self.require_backward_grad_sync = group, True
        ### BEGIN SOLUTION
        broadcast_tensors(parameters, group)
        self.buckets = assign_buckets(parameters, bucket_bytes)
        self.ready: set[torch.Tensor] = set()
        self.num_averaged = 0
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.mark_ready)
        ### END SOLUTION

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context in which gradients accumulate on this rank and nothing is sent."""
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = True

    def mark_ready(self, parameter: torch.Tensor) -> None:
        """Note a complete gradient; average the buckets that can go. About 4 lines."""
        ### BEGIN SOLUTION
        if self.require_backward_grad_sync:
            self.ready.add(parameter)
            for bucket in self.buckets[self.num_averaged :]:
                if not self.ready.issuperset(bucket):
                    break
                self.average_bucket(bucket)
        ### END SOLUTION

    def average_bucket(self, bucket: Sequence[torch.Tensor]) -> None:
        """Replace a bucket's gradients by their means over ranks. About 6 lines."""
        ### BEGIN SOLUTION
        self.num_averaged += 1
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        mean = collectives.all_reduce(self.group, flat) / self.group.size
        chunks = torch.split(mean, [grad.numel() for grad in grads])
        for parameter, chunk in zip(bucket, chunks, strict=True):
            parameter.grad = chunk.view(parameter.shape)
        ### END SOLUTION

    def finish_gradient_synchronization(self) -> None:
        """Average the remaining buckets; prepare the next step. About 3 lines."""
        ### BEGIN SOLUTION
        for bucket in self.buckets[self.num_averaged :]:
            self.average_bucket(bucket)
        self.ready, self.num_averaged = set(), 0
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "assign_buckets"}
check("assign_buckets")

# %% nbgrader={"grade": true, "grade_id": "ddp"}
check("ddp")

# %% [markdown]
# **Predict, then measure.** Your all-reduces block the backward pass; real ones are *started* in the hook and run next
# to the computation. From the order of events in your `DDP`, the next cells compute how much time that saves. Twelve
# layers of 2 MB take 1 ms each in the backward pass; a bucket takes 0.4 ms plus 0.5 ms per megabyte on the network, and
# the network carries one bucket at a time. With buckets of 6 MB, how long does communication go on after the backward
# pass has ended (the *exposed* communication)?

# %%
guess = None  # exposed milliseconds with buckets of 6 MB

# %%
LAYERS, LAYER_MS, LATENCY_MS, MS_PER_MB = 12, 1.0, 0.4, 0.5
COLOURS = {"backward": "#4269d0", "buckets": "#efb118"}


def trace_step(group, bucket_bytes):
    """Events of a DDP step, in order: ("layer", 0) and ("bucket", megabytes)."""
    events = []

    class TracedDDP(DDP):
        def average_bucket(self, bucket):
            events.append(("bucket", sum(p.nbytes for p in bucket) / 1e6))
            super().average_bucket(bucket)

    weights = [torch.ones(500_000, requires_grad=True) for _ in range(LAYERS)]
    ddp = TracedDDP(weights, group, bucket_bytes)
    h = torch.ones((), requires_grad=True) * 1
    for weight in weights:
        h.register_hook(lambda _: events.append(("layer", 0)))  # its layer is done
        h = h * weight.mean()
    h.backward()
    ddp.finish_gradient_synchronization()
    return events


def lay_out(events):
    """Bars (row, start, length) in ms; the network carries a bucket at a time."""
    bars, free, done = [], 0.0, 0.0
    for what, megabytes in events:
        if what == "layer":
            bars.append(("backward", done, LAYER_MS))
            done += LAYER_MS
        else:  # the hook of a layer's weight runs before the layer is counted as done
            start = max(free, min(done + LAYER_MS, LAYERS * LAYER_MS))
            bars.append(("buckets", start, LATENCY_MS + megabytes * MS_PER_MB))
            free = start + bars[-1][2]
    return bars


figure, exposed_ms = go.Figure(), {}
for megabytes in (1, 6, 100):
    events = run(trace_step, [megabytes * 10**6]).results[0]
    bars = lay_out(events)
    for row, start, length in sorted(bars):  # the backward pass above its buckets
        figure.add_bar(
            y=[f"{row}, {megabytes} MB"],
            x=[length],
            base=[start],
            orientation="h",
            marker={"color": COLOURS[row], "line": {"color": "white", "width": 1}},
            hovertext=[f"{row}: {start:.1f} to {start + length:.1f} ms"],
            hoverinfo="text",
            showlegend=False,
        )
    exposed_ms[megabytes] = max(sum(bar[1:]) for bar in bars) - LAYERS * LAYER_MS
    count = sum(what == "bucket" for what, _ in events)
    exposed = f"{exposed_ms[megabytes]:4.1f} ms exposed"
    print(f"up to {megabytes:3} MB: {count:2} buckets, {exposed}")
figure.update_yaxes(autorange="reversed")
figure.update_layout(barmode="overlay", xaxis_title="ms", margin={"t": 30, "l": 130})
show(figure, alt="Backward pass and buckets, for three bucket sizes", height=320)
check.predict(guess, exposed_ms[6], "ms exposed", within=0.05)

# %% [markdown]
# A bucket of three layers takes longer on the network than three layers take to compute, so each one starts a little
# later than it could. Small buckets start early but pay the latency for each; one large bucket overlaps with nothing.
#
# ## Task 3 · Gradient accumulation
#
# *About 25 minutes.*
#
# **Goal.** A batch that does not fit into memory is processed in micro-batches, whose gradients torch adds up in
# `grad`. If every `backward()` also averaged, bytes would be sent in vain, and gradients that are averaged already
# would be averaged again; so only the last micro-batch may communicate.
#
# **Interface:** `accumulate_gradients(ddp, losses, tokens, group)` leaves in every `grad` the gradient of the mean loss
# over all tokens of all ranks. `losses` are functions without arguments, one per micro-batch: `losses[i]()` computes
# the mean loss over `tokens[i]` tokens.
#
# **Example** (4 tokens on 2 ranks: the gradient is (2 · 1 + 1 · 4 + 1 · 2) / 4)
#
# ```python
# from mlsys_lab.comm import run
# w = [[torch.ones(2, requires_grad=True)] for rank in range(2)]
# def train(group, batch):  # its loss is scale · (w[0] + w[1])
#     own, (scales, tokens) = w[group.rank], batch
#     losses = [lambda scale=scale: scale * own[0].sum() for scale in scales]
#     accumulate_gradients(DDP(own, group), losses, tokens, group)
#
# _ = run(train, [([1.0, 4.0], [2, 1]), ([2.0], [1])])
# w[0][0].grad.tolist(), w[1][0].grad.tolist()  # → ([2.0, 2.0], [2.0, 2.0])
# ```
#
# **Requirements**
#
# - The messages of *one* step of `DDP` and one all-reduce of one number, however many micro-batches there are.
# - Buckets are averaged during the last backward pass, as soon as they can be.
# - Run the backward pass of one loss before you compute the next: all micro-batches use the same memory for their
#   activations.
# - Ranks may have different numbers of micro-batches, or none.
# - A micro-batch without tokens has no mean: its loss is 0/0, NaN, and NaN times weight 0 is NaN. Never compute it.
# - Every other loss goes through `backward()`, whatever its value. A loss of 0 may have a gradient, and skipping NaN
#   would hide that training diverges.
#
# **Size:** about 9 lines.
#
# <details><summary>Details</summary>
#
# - The same function may occur in `losses` twice.
# - `require_backward_grad_sync` is `True` before and after. Both lists stay as they are.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-3-accumulate"}
#| export
def accumulate_gradients(
    ddp: DDP,
    losses: Sequence[Callable[[], torch.Tensor]],
    tokens: Sequence[int],
    group: Rank,
) -> None:
    """Leave in each grad that of the mean loss over all tokens. About 9 lines."""
    ### BEGIN SOLUTION
    pairs = zip(losses, loss_weights(tokens, group), strict=True)
    work = [(loss, weight) for loss, weight in pairs if weight]
    with ddp.no_sync():
        for loss, weight in work[:-1]:
            (loss() * weight).backward()
    for loss, weight in work[-1:]:
        (loss() * weight).backward()
    ddp.finish_gradient_synchronization()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "accumulate"}
check("accumulate")

# %% [markdown]
# ## Task 4 · ZeRO-1: shard the optimizer
#
# *About 50 minutes.*
#
# **Goal.** Adam keeps two numbers per parameter and, in mixed precision, also an fp32 copy of the weight; DDP keeps all
# of them on every rank. In **ZeRO-1** (Rajbhandari et al. 2020) each rank keeps the optimizer states of one chunk of
# the parameters, updates only this chunk, and the ranks gather each other's new weights.
#
# A rank then needs the mean gradient of its chunk only. A reduce-scatter gives it that, and with the all-gather of the
# weights a step sends as much as one all-reduce.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `ShardedOptimizer(params, optimizer_class, group, **options)` | – | broadcasts rank 0's parameters |
# | `.shard` | tensor | this rank's chunk of all parameters, flattened and concatenated |
# | `.optimizer` | optimizer | `optimizer_class([shard], **options)`, such as `torch.optim.Adam` |
# | `.reduce_gradients()` | – | `shard.grad` becomes this rank's chunk of the mean gradient |
# | `.step()` | – | the optimizer's step, then `gather_weights()` |
# | `.gather_weights()` | – | overwrites every parameter from the shards of all ranks |
# | `clip_grad_norm(shards, max_norm, group)` | float | scales the shards' gradients in place; returns the norm before |
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# w = [[torch.tensor([1.0, 2.0, 3.0], requires_grad=True)] for rank in range(2)]
# def train(group, gradient):
#     optimizer = ShardedOptimizer(w[group.rank], torch.optim.SGD, group, lr=1.0)
#     w[group.rank][0].grad = gradient
#     optimizer.reduce_gradients()
#     optimizer.step()
#     return optimizer.shard.tolist()
#
# list(run(train, [torch.ones(3), 3 * torch.ones(3)]).results)  # → [[-1.0, 0.0], [1.0]]
# w[1][0].tolist()  # → [-1.0, 0.0, 1.0]
# shards = [torch.zeros(1), torch.zeros(1)]
# shards[0].grad, shards[1].grad = torch.tensor([3.0]), torch.tensor([4.0])
# list(run(lambda group, shard: clip_grad_norm([shard], 2.5, group), shards).results)  # → [5.0, 5.0]
# [shard.grad.item() for shard in shards]  # → [1.5, 2.0]
# ```
#
# **Requirements**
#
# - `shard` is a detached copy: a view would keep the memory of all parameters. The chunks are those of `split_chunks`,
#   or equal ones, the last padded with zeros. (Take those of `split_chunks` if you can: `reshard` in Task 6 works on
#   these.)
# - A parameter whose `grad` is `None`, as for a frozen one, counts as zeros.
# - The optimizer takes its step even on a rank whose shard is empty.
# - A step sends as many bytes as one all-reduce of the parameters. The judge tells from this that no rank receives
#   gradients of another rank's shard.
# - `clip_grad_norm` uses the norm of the *whole* gradient, all shards of all ranks. Each rank's own norm would scale
#   each rank's part by a different factor, and change the direction of the step. One all-reduce of one number.
# - Gradients whose norm is at most `max_norm` stay as they are.
#
# **Size:** about 7, 4, 2, 5 and 6 lines.
#
# <details><summary>Details</summary>
#
# - `optimizer_class` may be any optimizer that updates each element by itself, in place, from its `grad`.
# - `max_norm` may be 0 or infinite; the gradient may be zero, but no shard's `grad` is `None`. Squares stay within the
#   range of floats.
# - `shard` may require a gradient or not.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-4-zero-1"}
#| export
class ShardedOptimizer:
    """ZeRO-1: an optimizer whose states are sharded over the ranks."""

    def __init__(
        self,
        params: Sequence[torch.Tensor],
        optimizer_class: Callable[..., Any],
        group: Rank,
        **options: Any,
    ) -> None:
        """Start from rank 0's parameters; optimize this rank's chunk. About 7 lines."""
        ### BEGIN SOLUTION
        broadcast_tensors(params, group)
        self.group, self.params = group, list(params)
        flat = torch.cat([param.detach().reshape(-1) for param in params])
        own = collectives.split_chunks(flat, group.size)[group.rank]
        self.shard = own.clone().requires_grad_()
        self.optimizer = optimizer_class([self.shard], **options)
        ### END SOLUTION

    def reduce_gradients(self) -> None:
        """Set shard.grad to this rank's chunk of the mean gradient. About 4 lines."""
        ### BEGIN SOLUTION
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        total = collectives.reduce_scatter(self.group, flat)
        self.shard.grad = total / self.group.size
        ### END SOLUTION

    def step(self) -> None:
        """Update this rank's shard, then gather all weights. About 2 lines."""
        ### BEGIN SOLUTION
        self.optimizer.step()
        self.gather_weights()
        ### END SOLUTION

    def gather_weights(self) -> None:
        """Overwrite every parameter from the shards of all ranks. About 5 lines."""
        ### BEGIN SOLUTION
        flat = torch.cat(collectives.all_gather(self.group, self.shard.detach()))
        chunks = torch.split(flat, [param.numel() for param in self.params])
        for param, chunk in zip(self.params, chunks, strict=True):
            param.data.copy_(chunk.view(param.shape))
        ### END SOLUTION


def clip_grad_norm(
    shards: Sequence[torch.Tensor], max_norm: float, group: Rank
) -> float:
    """Clip sharded gradients by the norm over all ranks; return it. About 6 lines."""
    ### BEGIN SOLUTION
    grads = [shard.grad for shard in shards]
    squares = torch.stack([grad.square().sum() for grad in grads]).sum()
    norm = float(collectives.all_reduce(group, squares.reshape(1)).sqrt())
    if norm > max_norm:
        for grad in grads:
            grad *= max_norm / norm
    return norm
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "sharded_optimizer"}
check("sharded_optimizer")

# %% nbgrader={"grade": true, "grade_id": "clip_gradient"}
check("clip_gradient")

# %% [markdown]
# ## Task 5 · ZeRO-3: shard the weights
#
# *About 50 minutes.*
#
# **Goal.** In **ZeRO-3**, in PyTorch *fully sharded data parallelism* (**FSDP**, Zhao et al. 2023), each rank keeps
# only its shard of each layer's weights. All ranks gather a layer's weights just before it computes and free them
# just after, in the forward pass and again in the backward pass; its gradients are reduce-scattered to the shards.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `FSDPUnit(layer, parameters, group)` | – | keeps this rank's shard of rank 0's `parameters` |
# | `unit.shard` | tensor | this rank's chunk of all parameters, flattened and concatenated; requires a gradient |
# | `unit.unshard()` | list of tensors | all parameters, in order and with their shapes |
# | `unit(x)` | tensor | `layer(x, *parameters)`, through `FSDPFunction` |
# | `FSDPFunction.forward(ctx, x, shard, unit)` | tensor | gathers the parameters and computes the layer |
# | `FSDPFunction.backward(ctx, grad)` | gradients of x and shard, `None` | gathers again, computes gradients |
#
# `layer(x, *parameters)` is a function of `x`, floats of any shape, and of all parameters. `FSDPFunction` is a
# `torch.autograd.Function`: torch records nothing of what happens inside `forward`, and calls `backward` with the
# gradient of the result. You call `FSDPFunction.apply(...)`, never `forward` itself, with all of `forward`'s arguments
# but `ctx`; `backward` returns one result for each of them. What `backward` needs is saved by
# `ctx.save_for_backward(x)` or as attributes of `ctx`.
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# def layer(x, weight, bias):
#     return x @ weight + bias
#
# parameters = [torch.tensor([[1.0], [2.0]]), torch.tensor([3.0])]
# def forward(group, x):
#     unit = FSDPUnit(layer, parameters, group)
#     return unit.shard.tolist(), unit(x).tolist()
#
# list(run(forward, [torch.ones(1, 2), torch.zeros(1, 2)]).results)  # → [([1.0, 2.0], [[6.0]]), ([3.0], [[3.0]])]
# ```
#
# **Requirements**
#
# - `shard` has memory of its own. After `backward()`, `shard.grad` is this rank's chunk of the mean gradient.
# - Save **no gathered parameters** for the backward pass: gather them again there, and compute the layer a second time
#   under `torch.enable_grad()`, with a detached `x` and detached parameters, all of which require gradients.
#   `torch.autograd.grad` then gives their gradients. (This is the *activation checkpointing* of lab 01.)
# - `x` and the incoming gradient stay as they are; a residual connection uses both as well.
# - Gradients add up if a layer is used twice, or if `backward()` runs twice (`retain_graph=True`).
# - Each rank has memory for all shards with their gradients and a few complete layers, not for all layers. The check
#   also changes the shards between the two passes, so parameters that were kept are the wrong ones.
#
# **Size:** about 7, 3, 1, 3 and 10 lines. **Cost:** two all-gathers and one reduce-scatter for each use of a layer.
#
# <details><summary>Details</summary>
#
# - The shard gets its chunk of the gradient of all parameters, whether or not a parameter or x required one.
# - A layer may have a single parameter, one without elements, or one without axes.
# - The chunks are those of Task 4, padded or not. Mixed dtypes do not occur.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-5-zero-3"}
#| export
class FSDPUnit:
    """A layer of which each rank keeps a shard; complete only while it computes."""

    def __init__(
        self,
        layer: Callable[..., torch.Tensor],
        parameters: Sequence[torch.Tensor],
        group: Rank,
    ) -> None:
        """Keep this rank's shard of rank 0's parameters. About 7 lines."""
        ### BEGIN SOLUTION
        self.layer, self.group = layer, group
        self.shapes = [parameter.shape for parameter in parameters]
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        flat = collectives.broadcast(group, flat)
        own = collectives.split_chunks(flat, group.size)[group.rank]
        self.shard = own.clone().requires_grad_()
        ### END SOLUTION

    def unshard(self) -> list[torch.Tensor]:
        """All parameters, gathered from the ranks' shards. About 3 lines."""
        ### BEGIN SOLUTION
        flat = torch.cat(collectives.all_gather(self.group, self.shard.detach()))
        chunks = torch.split(flat, [shape.numel() for shape in self.shapes])
        return [c.view(shape) for c, shape in zip(chunks, self.shapes, strict=True)]
        ### END SOLUTION

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the layer. About 1 line."""
        ### BEGIN SOLUTION
        return FSDPFunction.apply(x, self.shard, self)
        ### END SOLUTION


class FSDPFunction(torch.autograd.Function):
    """Forward and backward pass of a layer, each with parameters gathered for it."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, shard: torch.Tensor, unit: FSDPUnit
    ) -> torch.Tensor:
        """Compute the layer with gathered parameters. About 3 lines."""
        ### BEGIN SOLUTION
        ctx.save_for_backward(x)
        ctx.unit = unit
        return unit.layer(x, *unit.unshard())
        ### END SOLUTION

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Gradients of x and of this rank's shard. About 10 lines."""
        ### BEGIN SOLUTION
        unit, (saved,) = ctx.unit, ctx.saved_tensors
        x = saved.detach().requires_grad_()
        parameters = [one.detach().requires_grad_() for one in unit.unshard()]
        with torch.enable_grad():
            y = unit.layer(x, *parameters)
        grad_x, *grads = torch.autograd.grad(y, [x, *parameters], grad)
        flat = torch.cat([one.reshape(-1) for one in grads])
        mean = collectives.reduce_scatter(unit.group, flat) / unit.group.size
        return grad_x, mean, None
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "sharded_layer"}
check("sharded_layer")

# %% [markdown]
# **Predict.** How many times as many elements does a rank send in a step with ZeRO-3 as with DDP? Write down your
# number; the cell after the next task measures it with your own code.

# %%
guess = None  # elements sent with ZeRO-3, relative to DDP

# %% [markdown]
# ### What each stage costs
#
# **Goal.** Derive memory and communication of the four stages from what you have built: which of weights, gradients
# and optimizer states does each stage shard, and which collectives does a step run?
#
# **Interface:** `zero_step_cost(num_params, world_size, zero_stage)` returns two integers for one rank: the bytes of
# weights, gradients and optimizer states that it keeps, and the *elements* that it sends in a step.
#
# **Example:** DDP (stage 0) on 4 ranks keeps everything, and its ring all-reduce sends 2 · 3/4 of the gradients.
#
# ```python
# zero_step_cost(1000, 4, 0)  # → (16000, 1500)
# ```
#
# **Requirements**
#
# - Mixed precision with Adam: 2 bytes of weight, 2 of gradient and 12 of optimizer states per parameter (an fp32
#   copy of the weight, and two moments in fp32).
# - Stage 1 shards the optimizer states, stage 2 also the gradients, stage 3 also the weights. Stage 2 uses the same
#   collectives as stage 1.
# - All collectives run on rings. `world_size` divides `num_params` and the size of each layer.
# - Exact for any `num_params`: use integers.
#
# **Size:** about 6 lines.


# %% nbgrader={"solution": true, "grade_id": "task-5-predict"}
#| export
def zero_step_cost(
    num_params: int, world_size: int, zero_stage: int
) -> tuple[int, int]:
    """Bytes that a rank keeps, and elements that it sends in a step. About 6 lines."""
    ### BEGIN SOLUTION
    bytes_per_param = {"states": 12, "gradients": 2, "weights": 2}
    shards = zip(bytes_per_param.values(), (1, 2, 3), strict=True)
    divisors = [
        (size, world_size if zero_stage >= first else 1) for size, first in shards
    ]
    kept = sum(size * num_params // divisor for size, divisor in divisors)
    num_collectives = 3 if zero_stage == 3 else 2
    return kept, num_collectives * (num_params - num_params // world_size)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "step_cost"}
check("step_cost")

# %% [markdown]
# **Measure.** One step of your `DDP`, `ShardedOptimizer` and `FSDPUnit` with `torch.optim.Adam`, all in float32: bytes
# that a rank holds afterwards, and elements that it has sent. With 4 bytes for every number and no fp32 copy, DDP again
# takes 4 + 4 + 8 = 16 bytes per parameter, but a bar need not match that of `zero_step_cost`. Which one does not, and
# which parts of which bar shrink?

# %%
from mlsys_lab.benchmark.memory import track_memory

P, DEPTH, WIDTH = 4, 8, 32
NUM_PARAMS = DEPTH * (WIDTH * WIDTH + WIDTH)


def affine(x, weight, bias):
    """A layer without its activation function."""
    return x @ weight + bias


def train_one_step(group, stage):
    """Bytes that this rank still holds after one step."""
    torch.manual_seed(group.rank)
    x, adam = torch.randn(2, WIDTH), torch.optim.Adam
    with track_memory() as memory:
        start = [
            [torch.randn(WIDTH, WIDTH) / WIDTH**0.5, torch.zeros(WIDTH)]
            for _ in range(DEPTH)
        ]
        if stage == 3:
            layers = [FSDPUnit(affine, pair, group) for pair in start]
            optimizer = adam([layer.shard for layer in layers], foreach=False)
        else:
            weights = [weight.requires_grad_() for pair in start for weight in pair]
            layers = [lambda x, pair=pair: affine(x, *pair) for pair in start]
        if stage == 0:
            ddp, optimizer = DDP(weights, group, 10**5), adam(weights, foreach=False)
        if stage == 1:
            optimizer = ShardedOptimizer(weights, adam, group, foreach=False)
        del start
        for layer in layers:
            x = layer(x).tanh()
        x.square().mean().backward()
        if stage == 0:
            ddp.finish_gradient_synchronization()
        if stage == 1:
            optimizer.reduce_gradients()
        optimizer.step()
        del x
        group.barrier()  # no message of this rank is on its way any more
    return memory.current_bytes


stages, held, sent = {0: "DDP", 1: "ZeRO-1", 3: "ZeRO-3"}, {}, {}
for stage, name in stages.items():
    (held[name], *_), ledger = run(train_one_step, [stage] * P)
    start_bytes = (P - 1) * NUM_PARAMS * 4  # rank 0's weights, before the first step
    sent[name] = (ledger.total_bytes - start_bytes) / P / 4
    expected = zero_step_cost(NUM_PARAMS, P, stage)[1]
    print(
        f"{name:6}: {held[name] / NUM_PARAMS:4.1f} bytes per parameter held", end="; "
    )
    print(f"{sent[name]:9,.0f} elements sent, {expected:9,} by zero_step_cost")
y = [one / NUM_PARAMS for one in held.values()]
figure = go.Figure([go.Bar(x=list(held), y=y, name="measured, float32")])
y = [zero_step_cost(NUM_PARAMS, P, stage)[0] / NUM_PARAMS for stage in stages]
figure.add_bar(x=list(held), y=y, name="zero_step_cost, mixed precision")
figure.update_layout(yaxis_title="bytes per parameter", margin_t=30, height=340)
show(figure, alt="Bytes per parameter on one of four ranks: DDP, ZeRO-1, ZeRO-3")
check.predict(guess, sent["ZeRO-3"] / sent["DDP"], "times DDP's elements", within=0.05)

# %% [markdown]
# ZeRO-1 and ZeRO-2 send as much as DDP: a reduce-scatter and an all-gather are the two halves of an all-reduce. ZeRO-3
# gathers the weights a second time, for the backward pass, and so sends one more half.
#
# ## Task 6 · Checkpoints
#
# *About 30 minutes.*
#
# **Goal.** Save what training needs to continue as if it had never stopped, each rank its own part, so that no rank
# ever holds all of it. Then convert a checkpoint to another number of ranks: after a failure you may have fewer GPUs.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `save_state(optimizer, position)` | dict of tensors | this rank's part of a checkpoint of a `ShardedOptimizer` |
# | `load_state(optimizer, state)` | int | loads it into a new `ShardedOptimizer`; returns the position |
# | `reshard(states, world_size)` | list of dicts | the states of all ranks, in order, for `world_size` ranks |
#
# | entry | what it is |
# |---|---|
# | `"weights"` | the shard |
# | `"position"` | where in the data training stands: an integer of up to 63 bits, in a tensor without axes |
# | `"random"` | `torch.get_rng_state()`, or dropout would draw other numbers |
# | any other name | an entry of `optimizer.optimizer.state[optimizer.shard]`, such as Adam's `"exp_avg"` and `"step"` |
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# def save(group, w):
#     return save_state(ShardedOptimizer([w], torch.optim.SGD, group, lr=0.1), position=7)
#
# states = list(run(save, [torch.tensor([1.0, 2.0, 3.0])] * 2).results)
# sorted(states[0]), states[1]["weights"].tolist()  # → (['position', 'random', 'weights'], [3.0])
# new = reshard(states, 3)
# [state["weights"].tolist() for state in new], int(new[2]["position"])  # → ([[1.0], [2.0], [3.0]], 7)
# ```
#
# **Requirements**
#
# - What is saved must not change when training continues, neither after `save_state` nor after `load_state`: a state
#   may be loaded twice.
# - `load_state` restores weights, optimizer states (each in its own dtype), random state and all parameters, frozen
#   ones too.
# - Of the inner optimizer use only `state` and `step()`. Before the first step its state may be empty.
# - `reshard` copies entries without axes to every rank. New rank r gets the `"random"` of old rank r modulo the number
#   of old ranks. All other entries, of any name and dtype, are chunks as `split_chunks` cuts them: concatenate, and
#   split again.
# - Each entry that `reshard` returns has memory of its own: saving a view saves all that it is a view of.
#
# **Size:** about 3, 6 and 10 lines. **Cost:** saving sends nothing, loading gathers the weights.
#
# <details><summary>Details</summary>
#
# - The new optimizer that `load_state` gets has made no step; states that it has are replaced.
# - No optimizer state is called `"weights"`, `"position"` or `"random"`.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-6-checkpoint"}
#| export
def save_state(optimizer: ShardedOptimizer, position: int) -> dict[str, torch.Tensor]:
    """This rank's part of a checkpoint. About 3 lines."""
    ### BEGIN SOLUTION
    states = optimizer.optimizer.state[optimizer.shard]
    entries = {"weights": optimizer.shard.detach(), "position": torch.tensor(position)}
    copies = {name: entry.clone() for name, entry in (entries | states).items()}
    return copies | {"random": torch.get_rng_state()}
    ### END SOLUTION


def load_state(optimizer: ShardedOptimizer, state: dict[str, torch.Tensor]) -> int:
    """Load a part of a checkpoint; return the position. About 6 lines."""
    ### BEGIN SOLUTION
    others = ("weights", "position", "random")
    states = {name: one.clone() for name, one in state.items() if name not in others}
    optimizer.shard.data.copy_(state["weights"])
    optimizer.optimizer.state[optimizer.shard] = states
    torch.set_rng_state(state["random"])
    optimizer.gather_weights()
    return int(state["position"])
    ### END SOLUTION


def reshard(
    states: Sequence[dict[str, torch.Tensor]], world_size: int
) -> list[dict[str, torch.Tensor]]:
    """States for `world_size` ranks from those of all old ranks. About 10 lines."""
    ### BEGIN SOLUTION
    new: list[dict[str, torch.Tensor]] = [{} for _ in range(world_size)]
    for name, first in states[0].items():
        if name == "random":
            chunks = [states[r % len(states)][name] for r in range(world_size)]
        elif first.ndim == 0:
            chunks = [first] * world_size
        else:
            flat = torch.cat([state[name] for state in states])
            chunks = collectives.split_chunks(flat, world_size)
        for state, chunk in zip(new, chunks, strict=True):
            state[name] = chunk.clone()
    return new
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "resume"}
check("resume")

# %% nbgrader={"grade": true, "grade_id": "reshard"}
check("reshard")

# %% [markdown]
# **See it.** A network trains on two ranks, stops in the middle, and resumes on three. The batch of each step is drawn
# with its position as the seed, so three ranks see the rows that two would have seen. What will the curve look like if
# Adam's states are lost?

# %%
torch.manual_seed(3)
ROWS, STEPS, STOP = 48, 60, 30
INPUTS = torch.linspace(-3, 3, 400, dtype=torch.float64)[:, None]
TARGETS = torch.sin(2 * INPUTS)
SHAPES = ((1, 24), (24,), (24, 1), (1,))
START = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]


def train(group, given):
    """Train from a checkpoint, or from the start: losses, and the next checkpoint."""
    state, until = given
    weights = [one.clone().requires_grad_() for one in START]
    optimizer = ShardedOptimizer(weights, torch.optim.Adam, group, lr=0.05)
    position, losses = load_state(optimizer, state) if state else 0, []
    while position < until:
        generator = torch.Generator().manual_seed(position)
        batch = torch.randint(400, (ROWS,), generator=generator)
        rows = batch.chunk(group.size)[group.rank]
        w1, b1, w2, b2 = weights
        error = (INPUTS[rows] @ w1 + b1).tanh() @ w2 + b2 - TARGETS[rows]
        loss = error.square().mean()
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
    steps = zip(*(losses for losses, _ in results), strict=True)
    return [sum(step) / len(results) for step in steps]


unbroken = mean_losses(run(train, [(None, STEPS)] * 2).results)
states = [state for _, state in run(train, [(None, STOP)] * 2).results]
resumed = run(train, [(state, STEPS) for state in reshard(states, 3)]).results
adam = ("step", "exp_avg", "exp_avg_sq")
lost = [
    state | {name: torch.zeros_like(state[name]) for name in adam} for state in states
]
without_adam = run(train, [(state, STEPS) for state in reshard(lost, 3)]).results
pairs = zip(mean_losses(resumed), unbroken[STOP:], strict=True)
print(
    "largest difference of a loss after the restart: "
    f"{max(abs(a - b) for a, b in pairs):.1e}"
)
curves = (
    ("three ranks, resumed", resumed, "dot"),
    ("without Adam's states", without_adam, "dash"),
)
figure = go.Figure()
figure.add_scatter(y=unbroken, mode="lines", name="two ranks, unbroken", line_width=5)
for name, results, dash in curves:
    x, y = list(range(STOP, STEPS)), mean_losses(results)
    figure.add_scatter(x=x, y=y, mode="lines", name=name, line_dash=dash)
figure.update_layout(
    xaxis_title="step", yaxis_title="loss", yaxis_type="log", margin_t=30
)
show(figure, alt="Loss by step: the resumed run lies on the unbroken one", height=340)

# %% [markdown]
# The resumed run differs from the unbroken one by rounding only: three ranks add up gradients in another order than
# two. Without its states, Adam moves almost every weight by the full learning rate until its averages have recovered.
#
# ## Stretch: no points
#
# - **Prefetch.** Real FSDP gathers the next layer's weights while the current one computes. Change `FSDPUnit` so that
#   each unit starts the all-gather of the next (`isend` and `irecv` of lab 07). How many complete layers are in memory
#   then?
# - **ZeRO-2.** Combine `DDP`'s hooks with `ShardedOptimizer`: reduce-scatter each bucket as it becomes ready, and free
#   its gradients. What has to change in `accumulate_gradients`?
#
# ## What you can read now
#
# - PyTorch, `torch/csrc/distributed/c10d/reducer.cpp`: `Reducer::mark_variable_ready` and `mark_bucket_ready` are your
#   `mark_ready`, `compute_bucket_assignment_by_size` your `assign_buckets`; `no_sync` is in
#   `torch/nn/parallel/distributed.py`.
# - PyTorch, `torch/distributed/optim/zero_redundancy_optimizer.py`: `ZeroRedundancyOptimizer`.
# - PyTorch, `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`: `FSDPParamGroup.unshard` and `post_backward`.
# - Megatron-LM, `megatron/core/optimizer/distrib_optimizer.py`: `DistributedOptimizer`, with a checkpoint that can be
#   resharded.
# - The course's own `mlsys_lab/parallel/buckets.py`, `data/ddp.py`, and `zero/fsdp.py`, which prefetches.
#
# ## Test yourself
#
# <details><summary>Your DDP divides by p after the sum. In fp16, what does dividing before it gain, and what may it
# lose?</summary>
#
# The sum of large gradients can overflow before it is divided; dividing first avoids that. But small gradients may
# then underflow to zero. PyTorch divides first; mixed-precision training often reduces in fp32 instead.
#
# </details>
#
# <details><summary>Why does a bucket take neighbours, and not the parameters that fill it best?</summary>
#
# A bucket can be sent when its last gradient is complete. Neighbours complete within a short time; a bucket with one
# parameter of the last layer and one of the first would wait for the whole backward pass.
#
# </details>
#
# <details><summary>Why can ZeRO-2 not accumulate micro-batches as DDP does, without communication?</summary>
#
# Accumulating locally needs memory for all gradients on every rank, which is what ZeRO-2 saves. It reduce-scatters
# the gradients of each micro-batch and adds up the shards, so communication grows with the number of micro-batches.
#
# </details>
#
# <details><summary>ZeRO-3 gathers a layer twice. When would you keep it between the two passes?</summary>
#
# When memory allows it: then a step gathers the weights once and sends as much as DDP, but holds all weights at the end
# of the forward pass. This is `reshard_after_forward=False` of `fully_shard`. It always pays for the last layer, whose
# backward pass follows at once.
#
# </details>
#
# <details><summary>A rank fails while it writes its part of a checkpoint. How do you make sure that a complete
# checkpoint exists all the same?</summary>
#
# Write into a new folder, and rename it once all ranks have finished; keep the previous checkpoint until then. A reader
# accepts only folders with the final name.
#
# </details>
#
# When all checks pass, save the notebook and run `mlsys-lab check data-parallel` in a terminal.
