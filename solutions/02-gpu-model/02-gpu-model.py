# %% [markdown]
# # Lab 02 · A model of the GPU: predict, then measure
#
# How long must this take, and what is it waiting for? A few short functions answer that for most programs, before they
# have run. In this lab you write them, put them to the test on the machine in front of you, and then look inside a GPU:
# what a warp asks of memory, how many warps there are, and two kernels that you mend. No GPU is needed.
#
# **You will build**
#
# 1. FLOPs and least bytes of the operations that a transformer is made of, and the roofline's verdict on them;
# 2. a timing loop that can be trusted, and this machine's overhead and bandwidth out of a fit;
# 3. a prediction of how long real operations take, and what binds each: compute, memory or overhead;
# 4. the sectors and bank conflicts of a warp's request, from its addresses;
# 5. the blocks and warps that a multiprocessor holds, and the bytes that have to be in flight;
# 6. a kernel that diverges, rewritten so that no warp does;
# 7. a kernel that reads scattered memory, rewritten so that warps read side by side.
#
# **At the end you can answer**
#
# - Why does a softmax take so much longer than its arithmetic?
# - When does a faster processor not help at all?
# - How is a piece of code timed, if every single time is wrong?
# - Why can two kernels with the same loads differ eightfold?
# - How many warps does it take to keep a GPU's memory busy?
#
# **Time:** about 215 minutes (each task says its share). **Points:** 100. **You need:** Python, some NumPy, and what a
# matrix product is. Lab 01 comes first. Chapter 04, *The GPU model*, gives the background.
#
# **Readings it leans on:** *How GPU Computing Works (GTC 2021)* (`jones-how-gpu-computing-works`), *Making Deep
# Learning Go Brrrr From First Principles* (`he-brrrr`), *GPU Performance Background User's Guide*
# (`nvidia-gpu-background`).
#
# **How it works.** Put your code in place of each line that raises `NotImplementedError`, run the cell, then run the
# `check` cell below it. Cells that begin with `#| export` make up the module that is graded. Counts are whole numbers
# and must be exact, however large: use `//`, never `/`, where a count is asked for. What a function is given it leaves
# as it is. Grading runs the same checks with other numbers and a few more cases.

# %%
import time

from rich import print as show_table

from mlsys_lab.checks import lab

check = lab("gpu-model")

# %%
#| export
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# %% [markdown]
# ## Task 1 · FLOPs and bytes
#
# *About 40 minutes.*
#
# Two numbers say most about an operation: its FLOPs $F$ and the bytes $b$ that it has to move. Count them by these
# rules. **FLOPs:** every addition, subtraction, multiplication, division, maximum, exponential and root is one, and a
# sum of $n$ numbers is $n$ additions (the first one, to zero, counts; so does the first comparison of a maximum).
# **Bytes:** every array that comes in is read from memory once, and every result written once; what is computed in
# between never leaves the chip. An element takes `element_bytes`. Sizes are at least 1.
#
# **1a.** Write a function for each of these, which gives the pair (FLOPs, bytes):
#
# - `elementwise_work`: one output of n elements from `inputs` arrays of as many, which may be none; `flops_each` FLOPs
#   an element, 0 in a copy.
# - `softmax_work`: of each of `rows` rows of `columns` numbers: $m = \max_j x_j$, $e_j = \exp(x_j - m)$, $s = \sum_j
#   e_j$, $y_j = e_j / s$.
# - `layer_norm_work`: of each row: $\mu = (\sum_j x_j) / D$, $d_j = x_j - \mu$, $v = (\sum_j d_j \cdot d_j) / D$, $r =
#   1 / \sqrt{v + \epsilon}$, $y_j = d_j \cdot r \cdot w_j + b_j$. Weight $w$ and bias $b$ have D elements, the same for
#   all rows.
# - `matmul_work`: (m, k)·(k, n), each element of the result a sum of k products.
# - `decode_attention_work`: attention of *one* new token of each of `batch` sequences, over `tokens` keys and values.
#   Of each of its `heads` query heads, H numbers wide: scores $q \cdot k_t$ (a sum of H products), each multiplied by a
#   constant; a softmax as above; and an output of H numbers, each a sum over all `tokens` of weight times value. There
#   are only `kv_heads` heads of keys and values; a group of query heads shares one, and its bytes are read once.
#
# **1b.** `bound`: on a device that does `flops_per_s` at most and moves `bytes_per_s`, work of $F$ FLOPs (0 for a copy)
# and $b > 0$ bytes has the intensity $F / b$ and takes $\max(F / \pi,\ b / \beta)$ at least. The larger of the two
# limits: `"compute"` or `"memory"` (`"compute"` where they are exactly equal).
#
# **Size:** about 1, 1, 3, 1, 4 and 3 lines. **Cost:** none. But see what 1a says: 5 FLOPs for every 2 elements moved,
# in softmax; a device that can do 295 for a byte waits.


# %% nbgrader={"solution": true, "grade_id": "task-1-work"}
#| export
def elementwise_work(n: int, inputs: int, flops_each: int, *, element_bytes: int = 2) -> tuple[int, int]:
    """FLOPs and bytes of one output of n elements from as many of each input. About 1 line."""
    ### BEGIN SOLUTION
    return n * flops_each, (inputs + 1) * n * element_bytes
    ### END SOLUTION


def softmax_work(rows: int, columns: int, *, element_bytes: int = 2) -> tuple[int, int]:
    """FLOPs and bytes of the softmax of each row. About 1 line."""
    ### BEGIN SOLUTION
    return 5 * rows * columns, 2 * rows * columns * element_bytes
    ### END SOLUTION


def layer_norm_work(rows: int, width: int, *, element_bytes: int = 2) -> tuple[int, int]:
    """FLOPs and bytes of the layer norm of each row, with weight and bias. About 3 lines."""
    ### BEGIN SOLUTION
    sums, scalars, scaled = 4 * width, 5, 3 * width
    elements = 2 * rows * width + 2 * width
    return rows * (sums + scalars + scaled), elements * element_bytes
    ### END SOLUTION


def matmul_work(m: int, n: int, k: int, *, element_bytes: int = 2) -> tuple[int, int]:
    """FLOPs and bytes of (m, k)·(k, n). About 1 line."""
    ### BEGIN SOLUTION
    return 2 * m * n * k, (m * k + k * n + m * n) * element_bytes
    ### END SOLUTION


def decode_attention_work(
    batch: int, tokens: int, heads: int, kv_heads: int, head_dim: int, *, element_bytes: int = 2
) -> tuple[int, int]:
    """FLOPs and bytes of attention of one new token of each sequence. About 4 lines."""
    ### BEGIN SOLUTION
    flops = batch * heads * tokens * (4 * head_dim + 1 + 5)
    queries_and_outputs = 2 * batch * heads * head_dim
    cache = 2 * batch * tokens * kv_heads * head_dim
    return flops, (queries_and_outputs + cache) * element_bytes
    ### END SOLUTION


def bound(flops: float, size_bytes: float, flops_per_s: float, bytes_per_s: float) -> tuple[float, float, str]:
    """Intensity in FLOP/B, least seconds, and "compute" or "memory". About 3 lines."""
    ### BEGIN SOLUTION
    compute_s, memory_s = flops / flops_per_s, size_bytes / bytes_per_s
    limit = "compute" if compute_s >= memory_s else "memory"
    return flops / size_bytes, max(compute_s, memory_s), limit
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "work"}
check("work")

# %% nbgrader={"grade": true, "grade_id": "bound"}
check("bound")

# %% [markdown]
# **See it.** Your counts on rows of the course's device table. Before you run it: which of these six is limited by
# compute on an H100, and does an older device change any verdict?

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
for name in ("T4", "A100 80GB", "H100"):
    row = device(name)
    peak, bandwidth = row.peak("fp16"), row.memory_bandwidth_bytes_per_s
    print(f"{name}: ridge at {row.ridge_point('fp16'):.0f} FLOP/B")
    for work, (flops, size_bytes) in works.items():
        intensity, least_s, limit = bound(flops, size_bytes, peak, bandwidth)
        share = flops / least_s / peak
        print(f"  {work:32}{intensity:8.1f} FLOP/B {1e6 * least_s:10,.0f} µs {limit:>8} {share:7.1%} of peak")

# %% [markdown]
# ## Task 2 · A clock, and a line through its readings
#
# *About 40 minutes.*
#
# A single time is mostly wrong. The first calls are slow: memory is allocated, code is loaded, the clock of the chip
# rises. Any call may be interrupted. And a call whose input was just used finds it in the cache. So: call a few times
# without counting (**warm-up**), make a **fresh input** for every call, outside of what is timed, and take the
# **median**, which a few disturbed samples do not move.
#
# **2a.** `median_time_s(make, call, clock, samples, warmup)`: in each of `warmup + samples` turns, make an input with
# `make()`, no sooner, and time `call(input)` between two readings of `clock()`, in seconds. A time is their difference,
# also where it is 0 or the clock itself takes some; in turns that do not count the clock may as well be left alone.
# Give the median of the last `samples` times, of which there is at least one; of an even number, the mean of the middle
# two. The clock is passed in: the check brings one on which nothing is left to chance.
#
# **2b.** `fit_overhead_and_bandwidth`: calls that move bytes take about $t = o + b / \beta$. From measured sizes $b_i$
# and times $t_i$, find the overhead $o$ and the bandwidth $\beta$. Sizes differ a millionfold, so errors have to count
# *relative to the time*, or the largest sizes alone would decide: minimise
#
# $$\sum_i \Big(\frac{o + b_i / \beta}{t_i} - 1\Big)^2,$$
#
# which is linear in the unknowns $o$ and $1 / \beta$. Every call counts, also one of size 0, which moves nothing. And
# whatever is least counts: where times rise faster than sizes, $o$ comes out below 0, and where times fall, $\beta$
# does; either says that a line is no model of them.
#
# **Size:** about 9 and 3 lines. **Cost:** with m sizes, a least-squares problem of m rows and 2 columns.


# %% nbgrader={"solution": true, "grade_id": "task-2-clock"}
#| export
def median_time_s(
    make: Callable[[], Any], call: Callable[[Any], Any], clock: Callable[[], float], *, samples: int, warmup: int
) -> float:
    """Median seconds of `call` on fresh inputs, after some calls that do not count. About 9 lines."""
    ### BEGIN SOLUTION
    times = []
    for _ in range(warmup + samples):
        value = make()
        start = clock()
        call(value)
        times.append(clock() - start)
    return float(np.median(times[warmup:]))
    ### END SOLUTION


def fit_overhead_and_bandwidth(sizes_bytes: np.ndarray, times_s: np.ndarray) -> tuple[float, float]:
    """Seconds of overhead and bytes per second from sizes and times, both (m,). About 3 lines."""
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
# **See it.** Now real times, of this machine: negations that move 128 bytes to 128 MiB, on one thread. Note a guess
# first: how many microseconds does PyTorch take for the smallest, and how many GB a second for the largest? The line is
# fitted to the ends alone: calls so short that only overhead counts, and arrays so long that no cache holds them.

# %%
import plotly.graph_objects as go
import torch

from mlsys_lab.widgets import show

torch.set_num_threads(1)


def timed_s(make, call, samples=9, warmup=3):
    return median_time_s(make, call, time.perf_counter, samples=samples, warmup=warmup)


def negation_s(size_bytes):
    """Of so many bytes in all, one half is read and the other written."""
    target = torch.empty(size_bytes // 8)
    return timed_s(lambda: torch.ones(size_bytes // 8), lambda x: torch.neg(x, out=target))


sizes_bytes = 2.0 ** np.arange(7, 28)
times_s = np.array([negation_s(int(size)) for size in sizes_bytes])
ends = (sizes_bytes <= 2**12) | (sizes_bytes >= 2**24)
overhead_s, bytes_per_s = fit_overhead_and_bandwidth(sizes_bytes[ends], times_s[ends])
print(f"overhead {1e6 * overhead_s:.2f} µs, bandwidth {bytes_per_s / 1e9:.1f} GB/s")
figure = go.Figure()
figure.add_scatter(x=sizes_bytes, y=1e6 * times_s, mode="markers", name="measured", marker_size=10)
fitted_s = overhead_s + sizes_bytes / bytes_per_s
figure.add_scatter(x=sizes_bytes, y=1e6 * fitted_s, mode="lines", name="your fit to the ends")
figure.update_layout(xaxis_title="bytes moved", yaxis_title="µs", xaxis_type="log", yaxis_type="log")
figure.update_xaxes(exponentformat="SI", dtick=1)
figure.update_yaxes(tickformat=",", dtick=1)
show(
    figure, alt="Measured times against bytes, flat at first and then rising, and the line of your fit above the middle"
)

# %% [markdown]
# Where do the points leave the line? Arrays that fit into a cache are faster than it says: this machine has not one
# bandwidth, but one for each level of memory. The model keeps the slowest, that of memory itself.
#
# ## Task 3 · Compute, memory or overhead
#
# *About 25 minutes.*
#
# A machine in three numbers:


# %%
#| export
@dataclass(frozen=True)
class Machine:
    """What a machine does at most, and what a call costs at least."""

    flops_per_s: float
    bytes_per_s: float
    overhead_s: float


# %% [markdown]
# An operation takes at least as long as its arithmetic, as its bytes, and as the overhead of calling it. The host can
# prepare one call while another runs, and arithmetic overlaps with memory, so the *longest* of the three is the bound,
# not their sum.
#
# **3a.** `predict_s(flops, size_bytes, machine)`: that bound, in seconds. Again a copy has 0 FLOPs, and bytes are more
# than 0. An overhead below 0, as a fit may give, is one of the three as it is.
#
# **3b.** `regime(time_s, flops, size_bytes, machine)`: an operation was measured to take `time_s`. Give what binds it,
# and the share of its time which that explains, bound over time; above one, if a cache made it faster than the model
# thinks. What binds is `"compute"`, `"memory"` or `"overhead"`, of exactly equal ones the first in this order. If the
# share is below one half, by however little, the model has missed what the time goes into: say `"unexplained"`.
#
# **Size:** about 2 and 7 lines. **Cost:** a prediction takes no run at all.


# %% nbgrader={"solution": true, "grade_id": "task-3-regime"}
#| export
def predict_s(flops: float, size_bytes: float, machine: Machine) -> float:
    """Least seconds of a call. About 2 lines."""
    ### BEGIN SOLUTION
    return max(flops / machine.flops_per_s, size_bytes / machine.bytes_per_s, machine.overhead_s)
    ### END SOLUTION


def regime(time_s: float, flops: float, size_bytes: float, machine: Machine) -> tuple[str, float]:
    """What binds a call that took `time_s`, and the share of its time that this explains. About 7 lines."""
    ### BEGIN SOLUTION
    parts = {
        "compute": flops / machine.flops_per_s,
        "memory": size_bytes / machine.bytes_per_s,
        "overhead": machine.overhead_s,
    }
    longest = max(parts, key=lambda name: parts[name])
    share = parts[longest] / time_s
    return (longest if share >= 0.5 else "unexplained"), share
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "regime"}
check("regime")

# %% [markdown]
# **Predict, then measure.** The machine's peak is priced by one large product, its memory and overhead by your fit.
# From these three numbers and your counts of Task 1, predict eight real operations of PyTorch. Before you run the next
# cell, write down what you expect to bind each.

# %%
functional = torch.nn.functional
square_1024, square_4096, small = torch.ones(1024, 1024), torch.ones(4096, 4096), torch.ones(16, 16)
target, square_2048, scale = torch.empty(2**23), torch.empty(2048, 2048), torch.ones(2048)
keys, values = torch.ones(8, 8, 1024, 64), torch.ones(8, 8, 1024, 64)
fp32 = {"element_bytes": 4}


def operations():
    """By name: FLOPs and bytes as you count them, the shape of an input, the call."""
    return {
        "negation of 64": (elementwise_work(64, 1, 1, **fp32), (64,), torch.neg),
        "negation of 8 Mi": (elementwise_work(2**23, 1, 1, **fp32), (2**23,), lambda x: torch.neg(x, out=target)),
        "softmax, 2,048 × 2,048": (
            softmax_work(2048, 2048, **fp32),
            (2048, 2048),
            lambda x: torch.softmax(x, -1, out=square_2048),
        ),
        "layer norm, 2,048 × 2,048": (
            layer_norm_work(2048, 2048, **fp32),
            (2048, 2048),
            lambda x: functional.layer_norm(x, (2048,), scale, scale),
        ),
        "product, 16 × 16 × 16": (matmul_work(16, 16, 16, **fp32), (16, 16), lambda x: x @ small),
        "product, 1 × 4,096 × 4,096": (matmul_work(1, 4096, 4096, **fp32), (1, 4096), lambda x: x @ square_4096),
        "product, 512 × 1,024 × 1,024": (matmul_work(512, 1024, 1024, **fp32), (512, 1024), lambda x: x @ square_1024),
        "decode attention, 1,024 tokens": (
            decode_attention_work(8, 1024, 8, 8, 64, **fp32),
            (8, 8, 1, 64),
            lambda q: functional.scaled_dot_product_attention(q, keys, values),
        ),
    }


def priced():
    """This machine, as a product of 768 × 768 × 768 and your fit say."""
    flops, _ = matmul_work(768, 768, 768, **fp32)
    square = torch.ones(768, 768)
    product_s = timed_s(lambda: torch.ones(768, 768), lambda x: x @ square)
    overhead_s, bytes_per_s = fit_overhead_and_bandwidth(sizes_bytes[ends], times_s[ends])
    return Machine(flops / product_s, bytes_per_s, overhead_s)


works, machine = operations(), priced()
ridge = machine.flops_per_s / machine.bytes_per_s
print(f"{machine.flops_per_s / 1e9:.0f} GFLOP/s, {machine.bytes_per_s / 1e9:.1f} GB/s, ridge at {ridge:.1f} FLOP/B")
predicted_s = {name: predict_s(*work, machine) for name, (work, _, _) in works.items()}
for name, least_s in predicted_s.items():
    print(f"{name:32} predicted {1e6 * least_s:10,.1f} µs")

# %% [markdown]
# And the clock. Where your prediction comes out too low, the operation does something that the model leaves out: an
# exponential is one FLOP in your count and dozens of instructions here, and a product has more to prepare than a
# negation. A result in memory that is new to the process, as that of the layer norm, has to be given its pages first.
# Where your prediction comes out too high, data was in a cache. On a busy machine long calls are disturbed more often
# than short ones. Then give `timed_s` the clock `time.thread_time`, which stands still while other programs have the
# processor, and run all that is timed again, the fit first.

# %%
figure = go.Figure()
for symbol, (name, (work, shape, call)) in enumerate(operations().items()):
    measured_s = timed_s(lambda shape=shape: torch.rand(shape), call)
    binds, share = regime(measured_s, *work, machine)
    print(
        f"{name:32} predicted {1e6 * predicted_s[name]:10,.1f} µs, measured {1e6 * measured_s:10,.1f} µs: "
        f"{share:.0%} explained, {binds}"
    )
    speed = work[0] / measured_s / 1e9
    marker = {"size": 12, "symbol": symbol}
    figure.add_scatter(x=[work[0] / work[1]], y=[speed], mode="markers", name=name, marker=marker)
axis = sorted([*(2.0**power for power in range(-5, 9)), ridge])
roof = [min(machine.flops_per_s, x * machine.bytes_per_s) / 1e9 for x in axis]
figure.add_scatter(x=axis, y=roof, mode="lines", name="this machine's roofline", line_color="gray")
figure.update_layout(xaxis_title="FLOP per byte", yaxis_title="GFLOP/s", xaxis_type="log", yaxis_type="log")
figure.update_xaxes(dtick=1)
figure.update_yaxes(exponentformat="none", dtick=1)
show(figure, alt="This machine's roofline, measured, and eight operations below it at their own speed", height=520)

# %% [markdown]
# The small operations lie far below the roof. That is overhead: the roofline knows nothing of it, and moving fewer
# bytes would not help them. How many elements must a negation have, by your model, before its
# bytes take longer than the call?
#
# ## Task 4 · What a warp asks for
#
# *About 35 minutes.*
#
# From here on, the GPU. Its threads run in warps of 32, and with one instruction all lanes of a warp ask for memory
# together. What that costs depends on *where* they ask.
#
# **4a. Sectors.** Global memory comes in sectors of 32 bytes: bytes 0 to 31, 32 to 63, and so on. A request costs as
# many sectors as its lanes touch, each counted once however many lanes share it. `sectors_touched(addresses,
# size_bytes)`: `addresses` has the first byte of each lane that takes part (others are masked off), and each lane asks
# for `size_bytes` bytes, 16 at most, which may reach into the next sector. Address 0 is one like others.
#
# **4b. Banks.** Shared memory has 32 banks. Words of 4 bytes go to the banks in turn: word 0 to bank 0, word 31 to bank
# 31, word 32 to bank 0 again. In one pass each bank serves one word, to all lanes that want it.
# `bank_passes(addresses)`: the passes that a request takes, if the lanes at these addresses each ask for something
# within one word. A request of no lanes takes none.
#
# **Size:** about 4 and 5 lines. **Cost:** what 128 bytes of a warp cost: 4 sectors at best, 32 at worst; 1 pass at
# best, 32 at worst.


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
    words = {address // 4 for address in addresses}
    of_banks = [0] * 32
    for word in words:
        of_banks[word % 32] += 1
    return max(of_banks)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "sectors"}
check("sectors")

# %% nbgrader={"grade": true, "grade_id": "banks"}
check("banks")

# %% [markdown]
# **See it.** 32 lanes read numbers of 4 bytes that lie 1 to 40 numbers apart. Sectors rise and stay; passes jump up and
# down. Say before you run it: at which strides are there no conflicts at all? A tile of shared memory is often given 33
# columns where 32 would do. Look at both strides.

# %%
strides = list(range(1, 41))
requests = [[4 * stride * lane for lane in range(32)] for stride in strides]
figure = go.Figure()
figure.add_bar(x=strides, y=[bank_passes(request) for request in requests], name="passes through the banks")
figure.add_scatter(
    x=strides, y=[sectors_touched(request, 4) for request in requests], mode="lines+markers", name="sectors"
)
figure.update_layout(xaxis_title="numbers from one lane to the next", yaxis_title="a request", xaxis_dtick=4)
show(figure, alt="Sectors and bank passes of a warp's request against its stride; passes peak at multiples of 32")

# %% [markdown]
# ## Task 5 · How many warps, and how many it takes
#
# *About 35 minutes.*
#
# A warp that waits for memory costs nothing as long as another one can run. How many warps a multiprocessor holds
# depends on what its blocks ask for:


# %%
#| export
@dataclass(frozen=True)
class Unit:
    """What a streaming multiprocessor has."""

    warps: int  # places
    blocks: int  # places
    registers: int  # of 4 bytes
    shared_bytes: int


@dataclass(frozen=True)
class Held:
    """What a multiprocessor holds at once of blocks of one kind, and what allows no more."""

    blocks: int
    warps: int
    limit: str  # "blocks", "warps", "registers" or "shared memory"


# %% [markdown]
# **5a.** `held(unit, threads, registers, shared_bytes)`: whole blocks are taken in until one of four things runs out,
# for blocks of `threads` threads with `registers` registers a thread (of both at least one) and `shared_bytes` of
# shared memory a block.
#
# - *Places for blocks and warps.* A block of `threads` threads is a whole number of warps, rounded up.
# - *Registers.* A warp gets 32 · `registers`, rounded up to a multiple of 256. Each of four schedulers has a quarter of
#   the unit's registers, which divide by four, for its warps: count the warps that fit into a quarter, times four, and
#   then the blocks.
# - *Shared memory.* A block gets `shared_bytes` and 1,024 bytes more for itself, rounded up to a multiple of 128.
#
# `limit` is what allows the fewest blocks; the first in the order of the record's comment where several allow as few. A
# block that does not fit at all is held 0 times, and `limit` is then the first that allows 0.
#
# **5b.** Little's law: what is under way = rate · time on the way. `bytes_in_flight`: bytes that a whole device must
# have under way, to move `bytes_per_s` although each byte takes `latency_s`. `warps_needed`: the warps that each of its
# `units` multiprocessors needs for that (an `int`, rounded up; 0 without latency), if each of the 32 lanes of a warp
# waits for `loads` loads of `bytes_a_lane` bytes.
#
# **Size:** about 11, 1 and 2 lines. **Cost:** occupancy costs nothing by itself; too little of it costs bandwidth.


# %% nbgrader={"solution": true, "grade_id": "task-5-warps"}
#| export
def held(unit: Unit, threads: int, registers: int, shared_bytes: int) -> Held:
    """Blocks and warps that a multiprocessor holds at once, and what limits them. About 11 lines."""
    ### BEGIN SOLUTION
    warps = -(-threads // 32)
    per_warp = -(-32 * registers // 256) * 256
    per_block = -(-(shared_bytes + 1024) // 128) * 128
    allowed = {
        "blocks": unit.blocks,
        "warps": unit.warps // warps,
        "registers": 4 * (unit.registers // 4 // per_warp) // warps,
        "shared memory": unit.shared_bytes // per_block,
    }
    limit = min(allowed, key=lambda name: allowed[name])
    return Held(allowed[limit], allowed[limit] * warps, limit)
    ### END SOLUTION


def bytes_in_flight(bytes_per_s: float, latency_s: float) -> float:
    """Bytes that a device must have under way. About 1 line."""
    ### BEGIN SOLUTION
    return bytes_per_s * latency_s
    ### END SOLUTION


def warps_needed(bytes_per_s: float, latency_s: float, units: int, bytes_a_lane: int, *, loads: int = 1) -> int:
    """Warps that each multiprocessor needs to have that much under way. About 2 lines."""
    ### BEGIN SOLUTION
    of_a_unit = bytes_in_flight(bytes_per_s, latency_s) / units
    return int(np.ceil(of_a_unit / (32 * bytes_a_lane * loads)))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "occupancy"}
check("occupancy")

# %% nbgrader={"grade": true, "grade_id": "in_flight"}
check("in_flight")

# %% [markdown]
# **See it.** Warps of an H100's multiprocessor against registers a thread, and the warps that it needs at 500 clocks of
# latency, if a lane waits for one load of 4 or 16 bytes. Where a curve is below such a line, a kernel with such loads
# cannot reach the bandwidth.

# %%
h100 = device("H100")
unit = Unit(h100.warps_per_unit, h100.blocks_per_unit, h100.register_bytes_per_unit // 4, h100.shared_bytes_per_unit)
latency_s = 500 / h100.clock_hz
registers = list(range(16, 256))
figure = go.Figure()
for threads, dash in ((128, "solid"), (256, "dash"), (1024, "dot")):
    warps = [held(unit, threads, each, 0).warps for each in registers]
    figure.add_scatter(x=registers, y=warps, mode="lines", line_dash=dash, name=f"blocks of {threads} threads")
for lane_bytes, dash in ((4, "longdash"), (16, "longdashdot")):
    wanted = warps_needed(h100.memory_bandwidth_bytes_per_s, latency_s, h100.units, lane_bytes)
    name = f"needed with {lane_bytes} bytes a lane"
    figure.add_scatter(x=registers[:: len(registers) - 1], y=[wanted] * 2, mode="lines", line_dash=dash, name=name)
figure.update_layout(xaxis_title="registers a thread", yaxis_title="warps of a multiprocessor")
show(figure, alt="Warps held against registers a thread, falling in steps, and two lines of warps that are needed")

# %% [markdown]
# ## Task 6 · A branch between warps
#
# *About 25 minutes.*
#
# Where lanes of a warp disagree about a branch, the warp walks both sides, and on each some lanes wait. Here is a
# kernel that is right, and wastes half of its lanes. At even places it clips, $y_i = \max(x_i, 0)$; at odd places it
# evaluates a polynomial whose coefficients are in `c`, the highest power first.

# %%
#| export
from mlsys_lab.kernels.numba_language import cuda, float32

THREADS = 128  # of a block


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
# **Write** `mixed`, which does the same, launched as `mixed[n // THREADS, THREADS](x, c, y)` for n a multiple of
# THREADS, so that all 32 lanes of a warp take part in every request to memory. Numbers are finite, as are polynomials
# of them; `c` holds at least one. A kernel may use arithmetic, `if`, `for` over `range`, `max`, `min`, `abs`, number
# types such as `float32`, and its own variables, nothing else of Python; and it is one that Numba compiles for a GPU,
# where a variable keeps its type through loops and branches, for each check asks the compiler too. `cuda.grid(1)` is
# the thread's number in the launch, `cuda.threadIdx.x` its number in its block, `cuda.blockIdx.x` the number of the
# block; 32 threads in a row are a warp. Which element a thread takes is yours to say; each block keeps to its own
# THREADS elements, those from `cuda.blockIdx.x * THREADS` on. Do no more work than before: each element is loaded once
# and stored once, and coefficients are loaded for elements at odd places only. (A branch that falls *between* warps
# costs nothing.)
#
# **Size:** about 12 lines. **Cost:** reads n + c·n/2 numbers, writes n. A warp's neighbours are now two elements apart,
# 8 sectors a request and not 4: what does that cost, and when is it worth it?


# %% nbgrader={"solution": true, "grade_id": "task-6-divergence"}
#| export
@cuda.jit
def mixed(x, c, y):
    """y[i] = max(x[i], 0) at even i, the polynomial c of x[i] at odd i; no warp diverges. About 12 lines."""
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
# **See it.** The microscope records every load and store of both kernels: requests of their warps, and how many lanes
# take part.


# %%
def lanes_of_requests(kernel):
    x, c = np.linspace(-1, 1, THREADS, dtype=np.float32), np.ones(4, np.float32)
    trace = record(kernel, 1, THREADS, x, c, np.empty_like(x), outputs=("y",))
    return np.unique(trace.accesses["request"], return_counts=True)[1]


figure = go.Figure()
for name, kernel in (("by lane", mixed_by_lane), ("yours", mixed)):
    lanes = lanes_of_requests(kernel)
    figure.add_histogram(x=lanes, name=name, xbins={"start": 0.5, "end": 32.5, "size": 1})
    print(f"{name}: {len(lanes)} requests, {lanes.mean() / 32:.0%} of their lanes at work")
figure.update_layout(xaxis_title="lanes at work", yaxis_title="requests", barmode="group", xaxis_range=[0, 33])
show(figure, alt="Requests by the number of lanes that take part: 16 of the kernel above, 32 of yours")

# %% [markdown]
# ## Task 7 · Side by side
#
# *About 15 minutes.*
#
# The last one is about addresses. `scale_rows` multiplies each row of a matrix by a number of its own, $y_{rc} = s_r\,
# x_{rc}$, with a block for each row. Here each thread takes a piece of neighbouring columns, as one would on a CPU.


# %%
@cuda.jit
def scale_rows_by_pieces(x, s, y):
    row = cuda.blockIdx.x
    each = (x.shape[1] + THREADS - 1) // THREADS
    first = each * cuda.threadIdx.x
    for column in range(first, min(first + each, x.shape[1])):
        y[row, column] = s[row] * x[row, column]


# %% [markdown]
# With 8 columns a thread, how many sectors does a warp's request touch? Ask your function of Task 4:

# %%
apart, side_by_side = range(0, 1024, 4 * 8), range(0, 128, 4)
print(sectors_touched(apart, 4), "sectors, where", sectors_touched(side_by_side, 4), "would do")

# %% [markdown]
# **Write** `scale_rows`, which does the same for finite numbers, launched as `scale_rows[rows, THREADS](x, s, y)` for
# any number of columns, few or many, so that the lanes of a warp are at neighbouring addresses in each request. The
# threads of a block share its row: none takes more columns than an even share, rounded up. Load `s[row]` once a thread.
#
# **Size:** about 4 lines. **Cost:** each element is loaded once and stored once, and each request touches no more
# sectors than hold what it asks for.


# %% nbgrader={"solution": true, "grade_id": "task-7-coalescing"}
#| export
@cuda.jit
def scale_rows(x, s, y):
    """y[r, c] = s[r] · x[r, c], a block for each row, its warps side by side. About 4 lines."""
    ### BEGIN SOLUTION
    row = cuda.blockIdx.x
    scale = s[row]
    for column in range(cuda.threadIdx.x, x.shape[1], THREADS):
        y[row, column] = scale * x[row, column]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "scale_rows"}
check("scale_rows")

# %% [markdown]
# **See it.** Request by request, with the slider or the arrow keys: which lane is where. Then put
# `scale_rows_by_pieces` in its place.

# %%
from mlsys_lab.widgets.accesses import Accesses

x, s, y = np.ones((1, 512), np.float32), np.ones(1, np.float32), np.empty((1, 512), np.float32)
pieces = record(scale_rows_by_pieces, 1, THREADS, x, s, y, outputs=("y",))
trace = record(scale_rows, 1, THREADS, x, s, y, outputs=("y",))
show_table(report(pieces).table())
show_table(report(trace).table())
Accesses.from_trace(trace)

# %% [markdown]
# ## Answer for yourself
#
# - Softmax has 5 FLOPs an element by your count. On an H100, how many could it have before anybody noticed?
# - Your roofline has one bandwidth. Which of the points would move if it had one for each cache?
# - A batch of 16 made the product of Task 1 memory-bound. From which batch on is it not, on an H100 and on a T4?
# - `mixed` trades divergence for sectors. With how many coefficients is it worth it? What if `x` could be stored in
#   another order?
#
# When all checks pass, save the notebook and run `mlsys-lab check gpu-model` in a terminal. Lab 03 goes on from here:
# kernels that share what they have read.
