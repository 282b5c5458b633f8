# %% [markdown]
# # Lab 02 · A model of the GPU: predict, then measure
#
# A server generates one token for each of 16 sequences of 8,192 tokens. In one layer of Llama 3 8B, attention then does
# 2.2 billion FLOPs, which an H100 could finish in 2 µs. Yet it takes at least 160 µs: 0.5 GB of keys and values must
# come from memory first. A GPU with twice the FLOP/s would be no faster. In this lab you write the functions that say
# so *before* anything runs, and test them against a clock on your own machine. Then you look inside a GPU and find out
# why a kernel often falls short even of the memory's bandwidth.
#
# ```text
#                 ┌─► FLOPs ──► ÷ peak FLOP/s ──┐
#  an operation ──┼─► bytes ──► ÷ bandwidth ────┼──► the longest is the bound ◄──► measured time
#                 └─► a call ─► overhead ───────┘
#                         │
#                         ▼  why does a kernel fall short of it?
#  addresses of a warp ──────────► sectors, passes through the banks
#  registers, shared memory ─────► resident warps ──► bytes in flight ──► fraction of the bandwidth
#  branches, order of the loads ─► two kernels that you fix
# ```
#
# **You will build**
#
# - **Part 1, a machine in three numbers** (about 110 minutes)
#   1. FLOPs and bytes of a transformer's operations, and their roofline bound (`45 min`);
#   2. a timing loop that can be trusted, and a fit of overhead and bandwidth (`40 min`);
#   3. predictions for eight operations of PyTorch, and what limits each of them (`25 min`).
# - **Part 2, inside the GPU** (about 110 minutes)
#
#   4. sectors and bank conflicts of a warp's request, from its addresses (`35 min`);
#   5. occupancy, and the warps that it takes to keep the memory busy (`35 min`);
#   6. a kernel that diverges, rewritten so that no warp does (`30 min`);
#   7. a kernel with scattered loads, rewritten so that they coalesce (`10 min`).
#
# Each part is complete in itself, so the end of Part 1 is a good place for a break.
#
# **At the end you can answer**
#
# - Why does a softmax take so much longer than its arithmetic?
# - When does a faster processor not help at all?
# - Why can two kernels with the same loads differ by a factor of eight?
#
# **Time:** about 220 minutes. **Points:** 100. **You need:** Python, some NumPy, and what a matrix product is; no GPU.
# [Lab 01](01-autograd.ipynb) comes first. Background: chapter 4, *The GPU model*.
#
# **Readings:** *How GPU Computing Works (GTC 2021)* (`jones-how-gpu-computing-works`), *Making Deep Learning Go Brrrr
# From First Principles* (`he-brrrr`), *GPU Performance Background User's Guide* (`nvidia-gpu-background`).
#
# **How it works.** Replace each line that raises `NotImplementedError`, run the cell, paste lines of the example to
# see whether it does what the text says, then run the `check` below. Cells that start with `#| export` are what is
# graded, with the same checks on other numbers. Names and signatures are those of the course's package, `mlsys_lab`,
# wherever it has the same function. Counts are exact ints, from `//`; ratios, rates and times are floats, from `/`. If
# a function calls one from an earlier task, its check supplies a correct version of the earlier one, so that a mistake
# costs points only once.

# %%
from rich import print as show_table

from mlsys_lab.checks import lab

check = lab("gpu-model")

# %%
#| export
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# %% [markdown]
# ## Part 1 · A machine in three numbers
#
# ## Task 1 · FLOPs, bytes and the roofline
#
# *About 45 minutes.*
#
# **Goal.** The FLOPs of an operation and the bytes that it must move are enough to say how long it takes *at least*.
# Count both for four operations of a transformer, and write the roofline, which turns them into a bound. The
# **arithmetic intensity** of the work is its FLOPs divided by its bytes; the **ridge point** of a device is its peak
# FLOP/s divided by its bandwidth. Work whose intensity is below the ridge point is memory-bound.
#
# The operations, element by element:
#
# | operation | what it computes |
# |---|---|
# | softmax of a row | $m = \max_j x_j$, $e_j = \exp(x_j - m)$, $s = \sum_j e_j$, $y_j = e_j / s$ |
# | layer norm of a row of width $D$ | $\mu = (\sum_j x_j) / D$, $d_j = x_j - \mu$, $v = (\sum_j d_j \cdot d_j) / D$ |
# | | $r = 1 / \sqrt{v + \epsilon}$, $y_j = d_j \cdot r \cdot w_j + b_j$ |
# | matrix product | $c_{ij} = \sum_k a_{ik} \cdot b_{kj}$ |
# | decode attention, one head | $s_t = (\sum_i q_i k_{ti}) \cdot a$ ($a$ given), softmax $p$, $o = \sum_t p_t\, v_t$ |
#
# **Interface.** Each of the first four returns the pair (FLOPs, bytes). `elementwise_work` below is written out.
#
# | | counts |
# |---|---|
# | `softmax_work(rows, columns, element_bytes=2)` | the softmax of each row |
# | `layer_norm_work(rows, width, element_bytes=2)` | the layer norm of each row; $w$ and $b$ serve all rows |
# | `matmul_work(m, n, k, element_bytes=2)` | a matrix of m rows and k columns times one of k rows and n columns |
# | `decode_attention_work(batch, tokens, heads, kv_heads, head_dim, element_bytes=2)` | one new token per sequence |
# | `bound(flops, size_bytes, *, peak_flops_per_s, bandwidth_bytes_per_s)` | a `Bound`, see the record below |
#
# **Example**
#
# ```python
# elementwise_work(4, inputs=2, flops_each=1)  # → (4, 24)
# softmax_work(2, 8)  # → (80, 64)
# layer_norm_work(1, 4)  # → (33, 32)
# matmul_work(2, 3, 4)  # → (48, 52)
# decode_attention_work(1, tokens=10, heads=4, kv_heads=2, head_dim=8)  # → (1520, 768)
# one = bound(flops=100, size_bytes=50, peak_flops_per_s=8, bandwidth_bytes_per_s=2)
# one.intensity, one.ridge, one.limit  # → (2.0, 4.0, "memory")
# one.time_s, one.flops_per_s, one.fraction  # → (25.0, 4.0, 0.5)
# ```
#
# (Why 80: softmax does a maximum, a subtraction, an exponential, an addition and a division for each of 16 elements.
# Why 64 bytes: 16 elements of 2 bytes come in, and 16 go out.)
#
# **Requirements**
#
# - Each addition, subtraction, multiplication, division, maximum, exponential and root is one FLOP. A sum of $n$
#   numbers counts $n$ additions, and a maximum of $n$ numbers counts $n$.
# - Bytes: each input array is read once and each output array is written once. Intermediate results stay on the chip.
# - Decode attention: every sequence of the batch has `tokens` keys and values. There are `kv_heads` heads of them, and
#   a group of query heads shares one, which is read once.
# - `bound`: arithmetic and memory traffic overlap, so the work takes as long as the slower of the two. `limit` is
#   `"compute"` if both take equally long.
#
# **Size:** about 1, 4, 1, 4 and 9 lines.
#
# <details><summary>Details</summary>
#
# - All sizes are at least 1, and `heads` is a multiple of `kv_heads`.
# - `size_bytes` is above 0. `flops` may be 0, as in a copy.
# - $1/D$ is not precomputed: dividing by $D$ is one FLOP wherever it occurs.
# - Counts stay exact beyond 64 bits, as ints of Python are: keep NumPy and floats out of them.
#
# </details>


# %%
#| export
@dataclass(frozen=True)
class Bound:
    """What the roofline says about one piece of work on one device."""

    intensity: float  # FLOP/byte of the work
    ridge: float  # FLOP/byte at which the device's two limits meet
    time_s: float  # least time
    flops_per_s: float  # highest rate
    fraction: float  # of peak, from 0 to 1
    limit: str  # "memory" or "compute"


def elementwise_work(
    n: int, inputs: int, flops_each: int, element_bytes: int = 2
) -> tuple[int, int]:
    """FLOPs and bytes of n outputs, each computed from an element of each input."""
    return n * flops_each, (inputs + 1) * n * element_bytes


# %% nbgrader={"solution": true, "grade_id": "task-1-work"}
#| export
def softmax_work(rows: int, columns: int, element_bytes: int = 2) -> tuple[int, int]:
    """FLOPs and bytes of the softmax of each row. About 1 line."""
    ### BEGIN SOLUTION
    return 5 * rows * columns, 2 * rows * columns * element_bytes
    ### END SOLUTION


def layer_norm_work(rows: int, width: int, element_bytes: int = 2) -> tuple[int, int]:
    """FLOPs and bytes of the layer norm of each row. About 4 lines."""
    ### BEGIN SOLUTION
    mean, variance, scale = width + 1, 3 * width + 1, 3
    flops = rows * (mean + variance + scale + 3 * width)
    elements = 2 * rows * width + 2 * width
    return flops, elements * element_bytes
    ### END SOLUTION


def matmul_work(m: int, n: int, k: int, element_bytes: int = 2) -> tuple[int, int]:
    """FLOPs and bytes of (m, k)·(k, n). About 1 line."""
    ### BEGIN SOLUTION
    return 2 * m * n * k, (m * k + k * n + m * n) * element_bytes
    ### END SOLUTION


def decode_attention_work(
    batch: int,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    element_bytes: int = 2,
) -> tuple[int, int]:
    """FLOPs and bytes of attention of one new token per sequence. About 4 lines."""
    ### BEGIN SOLUTION
    flops = batch * heads * tokens * (4 * head_dim + 1 + 5)
    queries_and_outputs = 2 * batch * heads * head_dim
    cache = 2 * batch * tokens * kv_heads * head_dim
    return flops, (queries_and_outputs + cache) * element_bytes
    ### END SOLUTION


def bound(
    flops: float,
    size_bytes: float,
    *,
    peak_flops_per_s: float,
    bandwidth_bytes_per_s: float,
) -> Bound:
    """The least time of this work on a device, and what limits it. About 9 lines."""
    ### BEGIN SOLUTION
    compute_s = flops / peak_flops_per_s
    memory_s = size_bytes / bandwidth_bytes_per_s
    time_s = max(compute_s, memory_s)
    return Bound(
        intensity=flops / size_bytes,
        ridge=peak_flops_per_s / bandwidth_bytes_per_s,
        time_s=time_s,
        flops_per_s=flops / time_s,
        fraction=compute_s / time_s,
        limit="compute" if compute_s >= memory_s else "memory",
    )
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "work"}
check("work")

# %% nbgrader={"grade": true, "grade_id": "bound"}
check("bound")

# %% [markdown]
# **Predict, then measure.** Take the decode attention of the opening: 16 sequences of 8,192 tokens, 32 query heads, 8
# key/value heads of width 128, bf16. An H100 does 989 TFLOP/s and reads 3.35 TB/s. What percentage of its peak can
# this operation reach at most? Hint: how many query heads use each key that is read?

# %%
guess = None  # percent of peak

# %%
from mlsys_lab.hardware import device

works = {
    "addition, 64 Mi elements": elementwise_work(2**26, 2, 1),
    "softmax, 8,192 × 8,192": softmax_work(8192, 8192),
    "layer norm, 8,192 × 4,096": layer_norm_work(8192, 4096),
    "product, 4,096 × 4,096 × 4,096": matmul_work(4096, 4096, 4096),
    "product, 16 × 4,096 × 4,096": matmul_work(16, 4096, 4096),
    "decode attention, 8,192 tokens": decode_attention_work(16, 8192, 32, 8, 128),
}
bounds = {}
for name in ("T4", "A100 80GB", "H100"):
    row = device(name)
    roof = {
        "peak_flops_per_s": row.peak("fp16"),
        "bandwidth_bytes_per_s": row.memory_bandwidth_bytes_per_s,
    }
    bounds = {work: bound(*counts, **roof) for work, counts in works.items()}
    print(f"{name}: ridge at {row.ridge_point('fp16'):.0f} FLOP/byte")
    for work, one in bounds.items():
        print(f"  {work:31} {one.intensity:7.1f} FLOP/byte", end=" ")
        print(f"{1e6 * one.time_s:7,.0f} µs {one.limit:>8} {one.fraction:6.1%} of peak")
reached = bounds["decode attention, 8,192 tokens"].fraction
check.predict(guess, 100 * reached, "% of peak")

# %% [markdown]
# Each number of a key or value is 2 bytes and serves four query heads, with two FLOPs for each of them: 4 FLOP/byte,
# where the H100 needs 295 to keep its arithmetic units busy. Only one of the six operations is limited by compute, on
# all three devices. For the others the FLOP/s do not matter, and a device with more bandwidth is faster.
#
# ## Task 2 · A clock, and a line through its readings
#
# *About 40 minutes.*
#
# **Goal.** A single measured time is usually misleading: the first calls allocate memory and load code, any call may be
# interrupted, and an input that was just used is still in the cache. Write a timing loop that deals with the first two
# and gives every call new arguments, and then fit a line through its readings that gives this machine's overhead per
# call and its memory bandwidth.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `median_s(samples_s)` | the median of one or more times in seconds; `timing.p50_s` calls it |
# | `measure(call, *, samples=30, warmup=3, make_args, clock=time.perf_counter)` | `Timing`, in the calls' order |
# | `fit_overhead_and_bandwidth(sizes_bytes, times_s)` | overhead in seconds, bandwidth in bytes/s, from arrays (m,) |
#
# `make_args()` makes a fresh tuple of arguments, so that a call is `call(*make_args())`. (An array that it has just
# written may be in a cache as well: `make_args`, not the loop, decides how cold the input is.) `clock()` returns the
# time in seconds.
#
# **Example**
#
# ```python
# readings = iter([0.0, 1.0, 5.0, 8.0])
# timing = measure(
#     abs, samples=2, warmup=0, make_args=lambda: (-1,), clock=lambda: next(readings)
# )
# timing.samples_s, timing.p50_s  # → ((1.0, 3.0), 2.0)
# sizes_bytes = np.array([0, 1e6, 4e6])
# times_s = np.array([2e-6, 12e-6, 42e-6])
# overhead_s, bandwidth = fit_overhead_and_bandwidth(sizes_bytes, times_s)
# round(1e6 * overhead_s, 3), round(bandwidth / 1e9, 3)  # → (2.0, 100.0)
# ```
#
# **Requirements**
#
# - `measure` makes `warmup + samples` calls. Each gets new arguments, made once the previous call has ended and
#   before the clock is read. Between the two readings of the clock there is nothing but the call.
# - The first `warmup` calls do not count, however long they take.
# - The median of an even number of samples is the mean of the middle two.
# - The fit minimises errors *relative to the time*, or else the largest sizes alone would decide. With overhead $o$ and
#   bandwidth $\beta$, sizes $b_i$ and times $t_i$:
#
# $$\sum_i \Big(\frac{o + b_i / \beta}{t_i} - 1\Big)^2$$
#
# This sum is quadratic in $o$ and a second unknown. Which one, and what is the matrix of the least-squares problem?
#
# **Size:** about 1, 8 and 3 lines.
#
# <details><summary>Details</summary>
#
# - In `measure`, a clock may be so coarse that samples are 0 or equal: all of them count.
# - In the fit, all times are above 0. A size may be 0: such a call measures the overhead alone.
# - The minimum may lie where the overhead is negative. Return it: it says that a line does not fit these times.
#
# </details>


# %%
#| export
@dataclass(frozen=True)
class Timing:
    """Seconds that a call took, one for each sample."""

    samples_s: tuple[float, ...]

    @property
    def p50_s(self) -> float:
        """Median in seconds: the figure to quote."""
        return median_s(self.samples_s)


# %% nbgrader={"solution": true, "grade_id": "task-2-clock"}
#| export
def median_s(samples_s: Sequence[float]) -> float:
    """The median of one or more times. About 1 line."""
    ### BEGIN SOLUTION
    return float(np.median(samples_s))
    ### END SOLUTION


def measure(
    call: Callable[..., object],
    *,
    samples: int = 30,
    warmup: int = 3,
    make_args: Callable[[], tuple[Any, ...]],
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time a call on fresh arguments, after warm-up calls. About 8 lines."""
    ### BEGIN SOLUTION
    times = []
    for _ in range(warmup + samples):
        args = make_args()
        start = clock()
        call(*args)
        times.append(clock() - start)
    return Timing(tuple(times[warmup:]))
    ### END SOLUTION


def fit_overhead_and_bandwidth(
    sizes_bytes: np.ndarray, times_s: np.ndarray
) -> tuple[float, float]:
    """Overhead in seconds and bandwidth in bytes/s. About 3 lines."""
    ### BEGIN SOLUTION
    columns = np.stack([1 / times_s, sizes_bytes / times_s], axis=1)
    overhead_s, s_per_byte = np.linalg.lstsq(columns, np.ones(len(times_s)))[0]
    return float(overhead_s), float(1 / s_per_byte)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "median_time"}
check("median_time")

# %% nbgrader={"grade": true, "grade_id": "fit"}
check("fit")

# %% [markdown]
# **Predict, then measure.** Now real times, of this machine: negations that move 128 bytes to 128 MiB, on one thread.
# How many microseconds does PyTorch take for the smallest, in which there is nothing to do but the call itself?

# %%
guess = None  # microseconds

# %%
import plotly.graph_objects as go
import torch

from mlsys_lab.widgets import show

torch.set_num_threads(1)


def timed_s(call, make_args):
    return measure(call, samples=9, warmup=3, make_args=make_args).p50_s


def negation_s(size_bytes):
    """Half of these bytes are read, the other half is written."""
    n = size_bytes // 8
    target = torch.empty(n)
    return timed_s(lambda x: torch.neg(x, out=target), lambda: (torch.ones(n),))


sizes_bytes = 2.0 ** np.arange(7, 28)
times_s = np.array([negation_s(int(size)) for size in sizes_bytes])
ends = (sizes_bytes <= 2**12) | (sizes_bytes >= 2**24)
overhead_s, bandwidth = fit_overhead_and_bandwidth(sizes_bytes[ends], times_s[ends])
print(f"overhead {1e6 * overhead_s:.2f} µs, bandwidth {bandwidth / 1e9:.1f} GB/s")
fitted_us = 1e6 * (overhead_s + sizes_bytes / bandwidth)
figure = go.Figure()
figure.add_scatter(x=sizes_bytes, y=1e6 * times_s, mode="markers", name="measured")
figure.add_scatter(
    x=sizes_bytes, y=fitted_us, mode="lines", name="your fit to the ends"
)
figure.update_traces(marker_size=10)
figure.update_xaxes(title="bytes moved", type="log", exponentformat="SI", dtick=1)
figure.update_yaxes(title="µs", type="log", tickformat=",", dtick=1)
show(figure, alt="Measured times against bytes, flat and then rising, and your fit")
check.predict(guess, 1e6 * times_s[0], "µs for 128 bytes", within=0.5)

# %% [markdown]
# The left half of the plot is flat: a call costs the same whether it moves 128 bytes or a few thousand. The fit uses
# only the two ends, calls so short that overhead is all there is and arrays so long that most caches cannot hold them.
# (A server's last-level cache may hold the smallest of these; the bandwidth then comes out too high.) Arrays of a size
# between them fit into a cache and are faster than the line: this machine has one bandwidth for each level of its
# memory, and the model keeps the slowest.
#
# ## Task 3 · Compute, memory or overhead
#
# *About 25 minutes.*
#
# **Goal.** Predict the time of an operation on a machine that is described by three numbers, without running it. Then
# compare with a measured time, and say what limits the operation, or that the model does not explain it.


# %%
#| export
@dataclass(frozen=True)
class Machine:
    """What a machine does at most, and what a call costs at least."""

    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    overhead_s: float


# %% [markdown]
# On a GPU the host prepares one call while another runs, and arithmetic overlaps with memory traffic. So the bound is
# the *longest* of three times, not their sum. (On a CPU the overhead comes on top, as in the line that you fitted; the
# longest of the three is still a lower bound.)
#
# **Interface**
#
# | | returns |
# |---|---|
# | `predict_s(flops, size_bytes, machine)` | float: least seconds of a call |
# | `regime(time_s, flops, size_bytes, machine)` | (what limits a call that took `time_s`, `predict_s(…)` / `time_s`) |
#
# **Example**
#
# ```python
# slow = Machine(peak_flops_per_s=8.0, bandwidth_bytes_per_s=4.0, overhead_s=0.5)
# predict_s(16, 12, slow)  # → 3.0
# regime(4.0, 16, 12, slow)  # → ("memory", 0.75)
# regime(8.0, 16, 12, slow)  # → ("unexplained", 0.375)
# ```
#
# **Requirements**
#
# - The first entry is `"compute"`, `"memory"` or `"overhead"`, whichever time is longest; of equal ones, the first in
#   this order.
# - It is `"unexplained"` if the bound is less than half of the measured time: the time goes into something that the
#   model does not have.
# - The second entry is the explained fraction in either case. It may be above 1, if a cache made the call faster.
#
# **Size:** about 4 and 8 lines.


# %% nbgrader={"solution": true, "grade_id": "task-3-regime"}
#| export
def predict_s(flops: float, size_bytes: float, machine: Machine) -> float:
    """Least seconds of a call. About 4 lines."""
    ### BEGIN SOLUTION
    compute_s = flops / machine.peak_flops_per_s
    memory_s = size_bytes / machine.bandwidth_bytes_per_s
    return max(compute_s, memory_s, machine.overhead_s)
    ### END SOLUTION


def regime(
    time_s: float, flops: float, size_bytes: float, machine: Machine
) -> tuple[str, float]:
    """What limits a call, and the fraction of its time explained. About 8 lines."""
    ### BEGIN SOLUTION
    parts = {
        "compute": flops / machine.peak_flops_per_s,
        "memory": size_bytes / machine.bandwidth_bytes_per_s,
        "overhead": machine.overhead_s,
    }
    longest = max(parts, key=parts.__getitem__)
    explained = parts[longest] / time_s
    return (longest if explained >= 0.5 else "unexplained"), explained
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "regime"}
check("regime")

# %% [markdown]
# **Predict, then measure.** The rate that one large matrix product reaches stands in for the machine's peak; your fit
# gives its bandwidth and overhead. From these three numbers and your counts of Task 1 the next cell predicts eight
# operations of PyTorch. Here they are:

# %%
functional = torch.nn.functional
square_1024, square_4096 = torch.ones(1024, 1024), torch.ones(4096, 4096)
small, scale = torch.ones(16, 16), torch.ones(2048)
target, square_2048 = torch.empty(2**23), torch.empty(2048, 2048)
keys, values = torch.ones(8, 8, 1024, 64), torch.ones(8, 8, 1024, 64)
OPERATIONS = {  # what counts it, its sizes, the shape of the input, the call
    "negation of 64": (elementwise_work, (64, 1, 1, 4), (64,), torch.neg),
    "negation of 8 Mi": (
        elementwise_work,
        (2**23, 1, 1, 4),
        (2**23,),
        lambda x: torch.neg(x, out=target),
    ),
    "softmax, 2,048 × 2,048": (
        softmax_work,
        (2048, 2048, 4),
        (2048, 2048),
        lambda x: torch.softmax(x, -1, out=square_2048),
    ),
    "layer norm, 2,048 × 2,048": (
        layer_norm_work,
        (2048, 2048, 4),
        (2048, 2048),
        lambda x: functional.layer_norm(x, (2048,), scale, scale),
    ),
    "product, 16 × 16 × 16": (
        matmul_work,
        (16, 16, 16, 4),
        (16, 16),
        lambda x: x @ small,
    ),
    "product, 1 × 4,096 × 4,096": (
        matmul_work,
        (1, 4096, 4096, 4),
        (1, 4096),
        lambda x: x @ square_4096,
    ),
    "product, 512 × 1,024 × 1,024": (
        matmul_work,
        (512, 1024, 1024, 4),
        (512, 1024),
        lambda x: x @ square_1024,
    ),
    "decode attention, 1,024 tokens": (
        decode_attention_work,
        (8, 1024, 8, 8, 64, 4),
        (8, 8, 1, 64),
        lambda q: functional.scaled_dot_product_attention(q, keys, values),
    ),
}


def describe_this_machine():
    """Peak of a product of 768 × 768 × 768; bandwidth and overhead as fitted."""
    flops, _ = matmul_work(768, 768, 768)
    square = torch.ones(768, 768)
    product_s = timed_s(lambda x: x @ square, lambda: (torch.ones(768, 768),))
    return Machine(flops / product_s, bandwidth, overhead_s)


machine = describe_this_machine()
peak = machine.peak_flops_per_s
ridge = peak / machine.bandwidth_bytes_per_s
print(f"{peak / 1e9:.0f} GFLOP/s, ridge at {ridge:.1f} FLOP/byte")
predicted_s = {
    name: predict_s(*work(*sizes), machine)
    for name, (work, sizes, *_) in OPERATIONS.items()
}
for name, least_s in predicted_s.items():
    print(f"{name:32} predicted {1e6 * least_s:10,.1f} µs")

# %% [markdown]
# How many of these eight will be explained, that is, take at most twice as long as predicted?

# %%
guess = None  # operations of eight

# %%
figure, explained = go.Figure(), 0
for symbol, (name, operation) in enumerate(OPERATIONS.items()):
    work, sizes, shape, call = operation
    measured_s = timed_s(call, lambda shape=shape: (torch.rand(shape),))
    flops, size_bytes = work(*sizes)
    limit, fraction = regime(measured_s, flops, size_bytes, machine)
    explained += limit != "unexplained"
    print(f"{name:32} predicted {1e6 * predicted_s[name]:9,.1f} µs,", end=" ")
    print(f"measured {1e6 * measured_s:9,.1f} µs: {fraction:4.0%} explained, {limit}")
    x, y = flops / size_bytes, flops / measured_s / 1e9
    figure.add_scatter(x=[x], y=[y], mode="markers", name=name, marker_symbol=symbol)
axis = sorted([*(2.0**power for power in range(-5, 9)), ridge])
roof = [min(peak, x * machine.bandwidth_bytes_per_s) / 1e9 for x in axis]
figure.add_scatter(x=axis, y=roof, mode="lines", name="this machine's roofline")
figure.update_traces(marker_size=12, line_color="gray")
figure.update_xaxes(title="FLOP/byte", type="log", dtick=1)
figure.update_yaxes(title="GFLOP/s", type="log", exponentformat="none", dtick=1)
show(figure, alt="Eight operations below this machine's roofline", height=520)
check.predict(guess, explained, "of eight operations explained")

# %% [markdown]
# Where an operation took longer than predicted, it does something that the model leaves out. An exponential is one FLOP
# in your count and dozens of instructions here; a matrix product needs more setup per call than a negation; the layer
# norm writes into new memory, whose pages the operating system must provide first. Where it was faster, its data was in
# a cache. The small operations lie far below the roof because of overhead, which the roofline does not have: moving
# fewer bytes would not help them. Multiply overhead and bandwidth to get the bytes below which a call is
# overhead-bound.
#
# (On a busy machine, long calls are interrupted more often than short ones, so fewer operations are explained, and
# their number changes from run to run. Pass `clock=time.thread_time` to `measure` then, which stands still while other
# programs run, and run all cells with measurements again.)
#
# ## Part 2 · Inside the GPU
#
# ## Task 4 · Sectors and banks
#
# *About 35 minutes.*
#
# **Goal.** A **kernel**, a function that runs on a GPU, is launched as many **blocks** of threads. The threads of a
# block run on the same multiprocessor and can use its **shared memory**, which is small and on the chip; **global
# memory** is the GPU's large memory, which all blocks see. The threads of a block run in warps of 32 lanes, and one
# instruction makes all lanes of a warp ask for memory together. Write two functions that compute from the addresses
# alone what such a request costs, in global and in shared memory: this is what decides whether a kernel gets the
# bandwidth of the roofline or an eighth of it.
#
# ```text
# global memory   | sector 0: bytes 0–31 | sector 1: bytes 32–63 | sector 2: bytes 64–95 | …
# shared memory   word 0 → bank 0, word 1 → bank 1, …, word 31 → bank 31, word 32 → bank 0, …
# ```
#
# Global memory is read in **sectors** of 32 bytes. A request costs as many sectors as its lanes touch, and lanes that
# touch the same sector share it. Shared memory has 32 **banks** of words of 4 bytes. In a **pass**
# (NVIDIA's profiler says *wavefront*) each bank delivers one word, to all lanes that want it. All banks work at once.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `sectors_touched(addresses, size_bytes)` | sectors that a request touches, at `size_bytes` bytes for each lane |
# | `bank_passes(addresses)` | passes that a request takes; each lane asks for bytes within one word |
#
# `addresses` has the first byte of each active lane: up to 32 ints, in any order. `size_bytes` is at most 16.
#
# **Example**
#
# ```python
# sectors_touched(range(0, 128, 4), 4)  # → 4
# sectors_touched(range(4, 132, 4), 4)  # → 5
# sectors_touched([28], 8)  # → 2
# bank_passes(range(0, 128, 4))  # → 1
# bank_passes([0, 128, 256, 4])  # → 3
# bank_passes([64, 64, 66])  # → 1
# ```
#
# (Why 5: 128 bytes again, but shifted by one number, so they reach into a fifth sector. Why 3: words 0, 32 and 64 are
# all in bank 0. Why 1 at the end: all three lanes want word 16.)
#
# **Requirements**
#
# - The bytes of one lane may lie in two sectors.
# - A request without active lanes takes 0 sectors and 0 passes.
# - `addresses` stays as it is.
#
# **Size:** about 4 and 5 lines.


# %% nbgrader={"solution": true, "grade_id": "task-4-requests"}
#| export
def sectors_touched(addresses: Sequence[int], size_bytes: int) -> int:
    """Sectors of 32 bytes that a warp's request touches. About 4 lines."""
    ### BEGIN SOLUTION
    touched = set()
    for address in addresses:
        touched.update(range(address // 32, (address + size_bytes - 1) // 32 + 1))
    return len(touched)
    ### END SOLUTION


def bank_passes(addresses: Sequence[int]) -> int:
    """Passes of a warp's request through 32 banks of 4-byte words. About 5 lines."""
    ### BEGIN SOLUTION
    words_of_bank = [0] * 32
    for word in {address // 4 for address in addresses}:
        words_of_bank[word % 32] += 1
    return max(words_of_bank)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "sectors"}
check("sectors")

# %% nbgrader={"grade": true, "grade_id": "banks"}
check("banks")

# %% [markdown]
# **Predict, then measure.** 32 lanes read numbers of 4 bytes from shared memory, each 24 numbers after the one before,
# as in a column of a matrix that is 24 numbers wide. How many passes does the request take?

# %%
guess = None  # passes

# %%
strides = range(1, 41)
requests = {stride: range(0, 4 * 32 * stride, 4 * stride) for stride in strides}
passes = {stride: bank_passes(request) for stride, request in requests.items()}
sectors = [sectors_touched(request, 4) for request in requests.values()]
figure = go.Figure()
figure.add_bar(x=list(passes), y=list(passes.values()), name="passes, shared memory")
figure.add_scatter(x=list(passes), y=sectors, name="sectors, global memory")
figure.update_xaxes(title="numbers from one lane to the next", dtick=4)
figure.update_yaxes(title="per request")
show(figure, alt="Sectors and bank passes of a warp's request against its stride")
check.predict(guess, passes[24], "passes", within=0)

# %% [markdown]
# A stride of 24 hits only every eighth bank: 24 and 32 have 8 as their greatest common divisor, and 8 lanes share each
# bank. Every odd stride is free of conflicts. That is why a tile of 32 columns in shared memory is often stored with
# 33: its columns then have an odd stride. No such trick helps with sectors. From a stride of 8 on, every lane has a
# sector of its own, and 7/8 of the bytes that the memory delivers are not used.
#
# ## Task 5 · Occupancy, and how much of it is enough
#
# *About 35 minutes.*
#
# **Goal.** A warp that waits for memory costs nothing while another warp can run, so a streaming multiprocessor (SM)
# holds many. Compute how many warps are resident, which the resources of a block decide, and then by Little's law what
# fraction of the memory's bandwidth they can use.
#
# An SM accepts whole blocks until one of four resources would be exceeded. The first record below is what an SM has,
# with the names of the course's device table; the second is the result.


# %%
#| export
@dataclass(frozen=True)
class Device:
    """What one multiprocessor has, named as in the course's device table."""

    warps_per_unit: int
    blocks_per_unit: int
    register_bytes_per_unit: int  # a register has 4 bytes
    shared_bytes_per_unit: int


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps of a launch on one multiprocessor."""

    blocks: int
    warps: int
    occupancy: float  # resident warps / warps_per_unit
    by: dict[str, int]  # blocks that each resource alone would allow

    @property
    def limits(self) -> tuple[str, ...]:
        """The resources that limit the number of blocks."""
        return tuple(name for name, blocks in self.by.items() if blocks == self.blocks)


# %% [markdown]
# | key of `by` | blocks that it allows |
# |---|---|
# | `"blocks"` | `blocks_per_unit` |
# | `"warps"` | as many as fit into `warps_per_unit`; a block has a whole number of warps, rounded up |
# | `"registers"` | see below; a warp gets 32 · `registers` registers of 4 bytes, rounded up to a multiple of 256 |
# | `"shared memory"` | as many as fit; a block gets `shared_bytes` + 1,024 bytes, rounded up to a multiple of 128 |
#
# An SM has 4 schedulers, and each has a quarter of the registers for its own warps. Count the warps that fit into one
# quarter, multiply by 4, and divide by the warps of a block, rounding down: a block's warps may be in any quarters.
#
# Little's law: bytes in flight = bandwidth · latency. While a load is on its way for `latency_s` seconds, the memory
# could deliver this many bytes, so this many must have been requested already. A warp with `loads` loads of
# `bytes_per_lane` bytes per lane has 32 · `bytes_per_lane` · `loads` bytes in flight.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `occupancy(device, threads, *, registers, shared_bytes=0)` | `Occupancy` for blocks of `threads` threads |
# | `warps_needed(bandwidth_bytes_per_s, latency_s, units, bytes_per_lane, *, loads=1)` | int: warps per SM |
# | `bandwidth_fraction(warps, bandwidth_bytes_per_s, latency_s, units, bytes_per_lane, *, loads=1)` | float, up to 1 |
#
# `registers` counts per thread, `shared_bytes` per block. The device has `units` SMs, and `bandwidth_bytes_per_s` is
# that of the whole device.
#
# **Example**
#
# ```python
# sm = Device(64, 32, register_bytes_per_unit=262_144, shared_bytes_per_unit=233_472)
# one = occupancy(sm, 256, registers=128)
# one.by  # → {"blocks": 32, "warps": 8, "registers": 2, "shared memory": 228}
# one.blocks, one.warps, one.occupancy, one.limits  # → (2, 16, 0.25, ("registers",))
# warps_needed(4096.0, 0.5, units=4, bytes_per_lane=4)  # → 4
# warps_needed(4096.0, 0.5, units=4, bytes_per_lane=4, loads=3)  # → 2
# bandwidth_fraction(3, 4096.0, 0.5, units=4, bytes_per_lane=4)  # → 0.75
# ```
#
# (Why 4 warps: 4096 · 0.5 = 2048 bytes must be in flight, 512 on each SM, and a warp has 32 · 4 = 128. Why 2 blocks: a
# warp takes 4,096 registers, 4 warps fit into each quarter of 16,384, and these 16 warps make 2 blocks of 8.)
#
# **Requirements**
#
# - The number of blocks is the smallest of the four. It is 0 if not even one block fits.
# - `warps_needed` is rounded up to whole warps.
# - `bandwidth_fraction` is the part of the bandwidth that `warps` warps on each SM can use, and never above 1.
#
# **Size:** about 13, 3 and 3 lines.


# %% nbgrader={"solution": true, "grade_id": "task-5-warps"}
#| export
def occupancy(
    device: Device, threads: int, *, registers: int, shared_bytes: int = 0
) -> Occupancy:
    """Resident blocks and warps of one multiprocessor. About 13 lines."""
    ### BEGIN SOLUTION
    warps = -(-threads // 32)
    per_warp = -(-32 * registers // 256) * 256
    per_block = -(-(shared_bytes + 1024) // 128) * 128
    quarter = device.register_bytes_per_unit // 4 // 4
    by = {
        "blocks": device.blocks_per_unit,
        "warps": device.warps_per_unit // warps,
        "registers": 4 * (quarter // per_warp) // warps,
        "shared memory": device.shared_bytes_per_unit // per_block,
    }
    blocks = min(by.values())
    resident = blocks * warps
    return Occupancy(blocks, resident, resident / device.warps_per_unit, by)
    ### END SOLUTION


def warps_needed(
    bandwidth_bytes_per_s: float,
    latency_s: float,
    units: int,
    bytes_per_lane: int,
    *,
    loads: int = 1,
) -> int:
    """Warps per multiprocessor that use the whole bandwidth. About 3 lines."""
    ### BEGIN SOLUTION
    bytes_per_unit = bandwidth_bytes_per_s * latency_s / units
    return int(np.ceil(bytes_per_unit / (32 * bytes_per_lane * loads)))
    ### END SOLUTION


def bandwidth_fraction(
    warps: int,
    bandwidth_bytes_per_s: float,
    latency_s: float,
    units: int,
    bytes_per_lane: int,
    *,
    loads: int = 1,
) -> float:
    """The part of the bandwidth that these warps can use. About 3 lines."""
    ### BEGIN SOLUTION
    bytes_per_unit = bandwidth_bytes_per_s * latency_s / units
    return min(1.0, warps * 32 * bytes_per_lane * loads / bytes_per_unit)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "occupancy"}
check("occupancy")

# %% nbgrader={"grade": true, "grade_id": "in_flight"}
check("in_flight")

# %% [markdown]
# **Predict, then measure.** On an H100 at 1.98 GHz a load takes about 500 clock cycles. A kernel has blocks of 256
# threads and 128 registers per thread, and every lane has one load of 4 bytes in flight at a time. What percentage of
# the bandwidth of 3.35 TB/s, spread over 132 SMs, can it reach?

# %%
guess = None  # percent of the bandwidth

# %%
h100 = device("H100")
memory = (h100.memory_bandwidth_bytes_per_s, 500 / h100.clock_hz, h100.units)
counts = list(range(16, 256))
figure = go.Figure()
for bytes_per_lane, color in ((4, "teal"), (16, "darkorange")):
    print(
        f"{bytes_per_lane} bytes: {warps_needed(*memory, bytes_per_lane)} warps needed"
    )
    for threads, dash in ((256, "solid"), (1024, "dot")):
        warps = [occupancy(h100, threads, registers=each).warps for each in counts]
        usable = [100 * bandwidth_fraction(w, *memory, bytes_per_lane) for w in warps]
        name = f"{threads:,} threads, {bytes_per_lane} bytes per lane"
        figure.add_scatter(x=counts, y=usable, name=name, line={"dash": dash})
        figure.data[-1].line.color = color
figure.update_xaxes(title="registers per thread")
figure.update_yaxes(title="% of bandwidth, at most", range=[0, 105])
show(figure, alt="Usable bandwidth falls in steps as registers per thread rise")
resident = occupancy(h100, 256, registers=128).warps
check.predict(guess, 100 * bandwidth_fraction(resident, *memory, 4), "% of bandwidth")

# %% [markdown]
# (The functions work on a row of the course's own device table, because its fields have the same names.) 16 of 64 warps
# are an occupancy of 25 %, and with loads of 4 bytes they keep about a third of the necessary bytes in flight. With 16
# bytes per lane the same warps are enough. Occupancy is only a means to an end: what counts is the number of bytes in
# flight, and wider loads or several loads per thread supply them as well as more warps do.
#
# ## Task 6 · A branch between warps
#
# *About 30 minutes.*
#
# **Goal.** Where the lanes of a warp disagree about a branch, the warp executes both sides, and on each side some
# lanes wait: the warp **diverges**. Rewrite the kernel below so that all lanes of a warp always go the same way.
#
# The kernel clips the elements at even positions, $y_i = \max(x_i, 0)$, and evaluates a polynomial at odd ones, with
# its coefficients in `c`, highest power first. It is correct, but on each side of the branch half of its lanes are
# idle.

# %%
#| export
from mlsys_lab.kernels.numba_language import cuda, float32

THREADS = 128  # per block


# %%
from mlsys_lab.kernels.trace.numba_simulator import record
from mlsys_lab.kernels.trace.report import report


@cuda.jit
def mixed_by_lane(x, c, y):
    i = cuda.grid(1)
    if i % 2 == 0:
        y[i] = max(x[i], float32(0))
    else:
        value, result = x[i], c[0]
        for k in range(1, c.size):
            result = result * value + c[k]
        y[i] = result


# %% [markdown]
# **Interface.** `mixed(x, c, y)` is launched as `mixed[n // THREADS, THREADS](x, c, y)`, for n elements, a multiple of
# `THREADS`. In a kernel, `cuda.grid(1)` is the thread's number in the launch, `cuda.threadIdx.x` its number in the
# block, and `cuda.blockIdx.x` the number of the block. Threads 0 to 31 of a block are its first warp, and so on.
#
# **Example**
#
# ```python
# from mlsys_lab.kernels.trace.numba_simulator import record
# x, c = np.arange(128, dtype=np.float32), np.float32([2, 1])  # the polynomial 2x + 1
# y = np.empty_like(x)
# trace = record(mixed, 1, THREADS, x, c, y, outputs=("y",))
# y[:6].tolist()  # → [0.0, 3.0, 2.0, 7.0, 4.0, 11.0]
# ```
#
# **Requirements**
#
# - All 32 lanes of a warp take part in every request to memory.
# - You decide which thread takes which element, but block b handles elements b · `THREADS` to (b + 1) · `THREADS` − 1.
# - No more work than before: each element of `x` is loaded once, each of `y` is stored once, and each coefficient is
#   loaded once for every element at an odd position.
#
# **Size:** about 12 lines.
#
# <details><summary>Details</summary>
#
# - A kernel may use arithmetic, `if`, `for` over `range`, `max`, `min`, `abs`, number types such as `float32`, and its
#   own variables. Numba must be able to compile it for a GPU (the check asks the compiler too): a variable may not be
#   an array on one path and a number on another. Start sums from `float32(0)`; `0.0` would make them `float64`.
# - `c` has at least one coefficient.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-6-divergence"}
#| export
@cuda.jit
def mixed(x, c, y):
    """Clip at even positions, the polynomial at odd ones. About 12 lines."""
    ### BEGIN SOLUTION
    i = cuda.grid(1)
    warp, lane = i // 32, i % 32
    at = 64 * (warp // 2) + 2 * lane + warp % 2
    value = x[at]
    if warp % 2 == 0:
        y[at] = max(value, float32(0))
    else:
        total = float32(0)
        for k in range(c.size):
            total = total * value + c[k]
        y[at] = total
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "mixed"}
check("mixed")

# %% [markdown]
# The simulator records every load and store of both kernels. How many lanes take part in each request of a warp?


# %%
def lanes_of_requests(kernel):
    x, c = np.linspace(-1, 1, THREADS, dtype=np.float32), np.ones(4, np.float32)
    trace = record(kernel, 1, THREADS, x, c, np.empty_like(x), outputs=("y",))
    return np.unique(trace.accesses["request"], return_counts=True)[1]


figure = go.Figure()
for name, kernel in (("by lane", mixed_by_lane), ("yours", mixed)):
    lanes = lanes_of_requests(kernel)
    bins = {"start": 0.5, "end": 32.5, "size": 1}
    figure.add_histogram(x=lanes, name=name, xbins=bins)
    print(
        f"{name}: {len(lanes)} requests, {lanes.mean() / 32:.0%} of their lanes active"
    )
figure.update_xaxes(title="active lanes", range=[0, 33])
figure.update_layout(yaxis_title="requests", barmode="group")
show(figure, alt="Requests by number of active lanes: 16 by lane, 32 in your kernel")

# %% [markdown]
# Half as many requests do the same work. The sectors stay the same in total: 32 lanes that are two elements apart touch
# 8 sectors per request, where 16 such lanes touched 4, so every sector of `x` and `y` is still requested twice. The
# rewrite pays off once the polynomial is long enough for its arithmetic, and not the memory, to limit the kernel.
#
# ## Task 7 · Coalesced loads
#
# *About 10 minutes.*
#
# **Goal.** Multiply each row of a matrix by a number of its own, $y_{rc} = s_r\, x_{rc}$, with one block for each row.
# The kernel below gives every thread neighbouring columns, as one would on a CPU. Write one whose warps read
# neighbouring addresses together: its requests are **coalesced**.


# %%
@cuda.jit
def scale_rows_by_chunks(x, s, y):
    row = cuda.blockIdx.x
    each = (x.shape[1] + THREADS - 1) // THREADS
    first = each * cuda.threadIdx.x
    for column in range(first, min(first + each, x.shape[1])):
        y[row, column] = s[row] * x[row, column]


# %% [markdown]
# With 8 columns per thread, your function of Task 4 says how many sectors a request of this kernel touches, and how
# many would be enough:

# %%
chunked, coalesced = range(0, 1024, 4 * 8), range(0, 128, 4)
print(sectors_touched(chunked, 4), "sectors,", sectors_touched(coalesced, 4), "needed")

# %% [markdown]
# **Interface.** `scale_rows(x, s, y)` is launched as `scale_rows[rows, THREADS](x, s, y)`. `x` and `y` have the shape
# (rows, columns), with any number of columns, and `s` has the shape (rows,).
#
# **Example**
#
# ```python
# from mlsys_lab.kernels.trace.numba_simulator import record
# x, s = np.ones((2, 3), np.float32), np.float32([5, 7])
# y = np.empty_like(x)
# trace = record(scale_rows, 2, THREADS, x, s, y, outputs=("y",))
# y.tolist()  # → [[5.0, 5.0, 5.0], [7.0, 7.0, 7.0]]
# ```
#
# **Requirements**
#
# - In each request the lanes of a warp access neighbouring columns.
# - The threads of a block divide the row evenly: none takes more than columns / `THREADS`, rounded up.
# - Each element is loaded once and stored once, and each thread loads `s[row]` once.
#
# **Size:** about 4 lines.


# %% nbgrader={"solution": true, "grade_id": "task-7-coalescing"}
#| export
@cuda.jit
def scale_rows(x, s, y):
    """y[r, c] = s[r] · x[r, c], with one block for each row. About 4 lines."""
    ### BEGIN SOLUTION
    row = cuda.blockIdx.x
    scale = s[row]
    for column in range(cuda.threadIdx.x, x.shape[1], THREADS):
        y[row, column] = scale * x[row, column]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "scale_rows"}
check("scale_rows")

# %% [markdown]
# Step through the requests of `scale_rows` with the slider or the arrow keys, and see which address each lane accesses.
# Then pass `chunks` instead of `trace` in the last line, to see those of `scale_rows_by_chunks`.

# %%
from mlsys_lab.widgets.accesses import Accesses

x, s, y = np.ones((1, 512), np.float32), np.ones(1, np.float32), np.empty((1, 512))
y = y.astype(np.float32)
chunks = record(scale_rows_by_chunks, 1, THREADS, x, s, y, outputs=("y",))
trace = record(scale_rows, 1, THREADS, x, s, y, outputs=("y",))
show_table(report(chunks).table())
show_table(report(trace).table())
Accesses.from_trace(trace)

# %% [markdown]
# A chunk of 4 columns per thread already makes each request touch 16 sectors for 128 bytes, where your kernel touches
# 4. Caches may hide some of this, but the requests still queue up. Chunks are right on a CPU, where *one* thread reads
# a whole cache line, and wrong on a GPU, where a warp does. (The report also calls `s` slow, because every thread loads
# the same number. That costs only one sector per warp.)
#
# ## Stretch: no points
#
# - **One bandwidth for each cache.** Fit your line to the middle of the measured sizes, and draw a roofline with a
#   roof for each level of this machine's memory. Which of the eight operations move?
# - **Vector loads.** Let each thread of `scale_rows` take four neighbouring columns in a turn of its loop. How many
#   sectors do four such requests touch together, and what would a load of 16 bytes per lane make of them?
# - **A better order.** If you could store `x` in another order, `mixed` would need neither 8 sectors nor a branch
#   within a warp. Write both the kernel and the order.
#
# ## What you can read now
#
# - Triton, `python/triton/testing.py`: `do_bench` is your `measure` on a GPU. It also overwrites the L2 cache before
#   every call.
# - PyTorch, `torch/utils/benchmark/utils/timer.py`: `Timer.blocked_autorange`, which chooses by itself how many calls
#   to time as one block, so that the clock's own cost is negligible.
# - CUDA, `cuda_occupancy.h` (part of the toolkit): `cudaOccMaxActiveBlocksPerMultiprocessor` has your four limits.
# - PyTorch, `aten/src/ATen/native/cuda/CUDALoops.cuh`: `vectorized_elementwise_kernel` loads several elements per lane
#   to keep more bytes in flight.
# - The course's own `mlsys_lab/kernels/trace/sectors.py` and `banks.py`, which count for whole traces what you counted
#   for one request.
#
# ## Test yourself
#
# <details><summary>Softmax does 5 FLOPs per element. On an H100 with inputs and outputs in bf16, how many could it do
# before it took any longer?</summary>
#
# An element moves 4 bytes, and the ridge is at 295 FLOP/byte: about 1,180 FLOPs per element. Real exponentials take
# many instructions and do not reach the peak of the tensor cores, so the true limit is far lower, but still well
# above 5.
#
# </details>
#
# <details><summary>The product of 16 rows by a matrix of 4,096 × 4,096 is memory-bound. From how many rows on is it
# compute-bound, on an H100 and on a T4?</summary>
#
# $B$ rows do $2B \cdot 4096^2$ FLOPs and move $2 \cdot (4096^2 + 2B \cdot 4096)$ bytes in 16 bits. The intensity
# reaches the ridge of the H100 at 346 rows and that of the T4 at 226. Without the inputs and outputs it
# would be the ridge itself, 295 and 203: about one row for each FLOP/byte.
#
# </details>
#
# <details><summary>By the roofline a kernel is memory-bound, yet it reaches only 30 % of the bandwidth. Name three
# reasons, and the function of this lab that reveals each.</summary>
#
# Its requests touch more sectors than they need (`sectors_touched`). It has too few bytes in flight
# (`occupancy` and `bandwidth_fraction`). Or it is so short that overhead is most of its time (`regime`).
#
# </details>
#
# <details><summary>Why is the median the right figure for a timing loop, and when would the minimum be
# better?</summary>
#
# Interruptions only ever make a call slower. The median ignores them as long as they hit fewer than half of the
# samples, and says what a typical call takes. The minimum is better for comparing code with a bound, because it is the
# sample with the least disturbance; but it hides effects that are part of every real run.
#
# </details>
#
# <details><summary>A kernel's occupancy rises from 25 % to 50 %, and it does not get any faster. Why?</summary>
#
# It had enough bytes in flight already, for example with loads of 16 bytes per lane. Or it is limited by something
# that more warps cannot supply: compute, the number of sectors, or bank conflicts.
#
# </details>
#
# When all checks pass, save the notebook and run `mlsys-lab check gpu-model` in a terminal. Lab 03 continues with
# kernels whose threads share what they have read.
