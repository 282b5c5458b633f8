# %% [markdown]
# # Lab 03 · CUDA kernels: from one thread per element to a tiled matrix product
#
# A published worklog (Boehm 2022) multiplies two 4,092 × 4,092 matrices on an RTX A6000. Its first kernel is correct
# and reaches 309 GFLOP/s. Exchanging two indices takes it to 1,987; loading tiles through shared memory to 2,980;
# NVIDIA's cuBLAS reaches 23,250. All of them do the same arithmetic. They differ in how often they ask memory for a
# number, and in how the 32 threads of a warp ask for theirs. In this lab you write such kernels, and a simulator counts
# every load and every store, so you can see the difference without a GPU.
#
# ```text
#   grid                 thread block                      warp: 32 threads, one request at a time
#   ┌───┬───┬───┐        ┌─────────────────────────┐
#   │ 0 │ 1 │ 2 │ ─────► │ warp 0 │ warp 1 │  …    │ ───►  global memory:  sectors of 32 bytes, 1 to 32 per request
#   └───┴───┴───┘        ├─────────────────────────┤
#                        │ shared memory, barrier  │ ───►  shared memory:  32 banks, 1 to 32 passes per request
#                        └─────────────────────────┘
# ```
#
# **You will build**
#
# - **Part 1, threads and memory** (about 125 minutes)
#   1. maps, with one thread for each element (`25 min`);
#   2. two dimensions, and loops over the grid (`35 min`);
#   3. a prediction, by hand, of what two naive kernels ask of memory (`25 min`);
#   4. a moving average and a dot product through shared memory (`40 min`).
# - **Part 2, tiles** (about 190 minutes)
#
#   5. a sum by a tree of additions (`35 min`);
#   6. a transpose in whole sectors, without bank conflicts (`35 min`);
#   7. a matrix product that reads each number 16 times less often than the naive one (`45 min`);
#   8. both again in CUDA C++, compiled for an H100 (`75 min`).
#
# Each part is complete in itself, so the end of Part 1 is a good place to stop for the day.
#
# **At the end you can answer**
#
# - Why can the same kernel be eight times slower with two indices exchanged?
# - When must threads wait for each other, and what goes wrong if a barrier is inside a branch?
# - Why does a tile of 32 columns slow a transpose down, and what is the smallest change that helps?
# - How often must a matrix product read its operands, and what decides that?
#
# **Time:** about 315 minutes. **Points:** 100. **You need:** Python, and grids, blocks and warps as in
# [lab 02](02-gpu-model.ipynb). Background: [chapter 05](../chapters/05-cuda.md).
#
# **Readings:** *An Even Easier Introduction to CUDA* (`harris-easier-cuda`), *GPU Puzzles* (`gpu-puzzles`), *Getting
# Started With CUDA for Python Programmers* (`howard-cuda-python`).
#
# **How it works.** Replace each line that raises `NotImplementedError`, run the cell, paste the example to see whether
# your kernel does what the text says, then run the `check` below. A check asks in this order: is the result right, is
# every access within its array, is nothing read before it is written, do no two threads race, do all threads reach each
# barrier, and then what the kernel costs. Cells that start with `#| export` are graded, on other sizes and numbers.
#
# <details><summary>What a kernel may contain, and which numbers it meets</summary>
#
# - A kernel may use arithmetic, `if`, `while`, `for` over `range`, its own variables, number constants of exported
#   cells, functions of yours under `@cuda.jit` (which may return a value), what `cuda` and `math` offer, and `abs`,
#   `min`, `max`, `int`, `float`, `bool` and `len`. It cannot print, import or call anything else.
# - Each check also compiles your kernel with Numba's compiler, for an H100. The compiler is stricter than Python: a
#   variable keeps its type through loops and branches, and the shape of a shared array is a constant.
# - Numbers are fp32. They may be 0 or infinite and are never NaN. The right result is what fp32 arithmetic gives for
#   the formula as written, up to rounding, so 0 · ∞ and ∞ − ∞ are NaN. The order in which you add is up to you.
# - Two threads that store the same value to one element do not race.
# - Arrays may have any size for which a launch has at least one block. A sum of nothing is 0.
#
# </details>

# %%
import numpy as np
import plotly.graph_objects as go
from rich import print as show_table

from mlsys_lab.checks import lab
from mlsys_lab.hardware import device
from mlsys_lab.kernels.trace.events import STORE
from mlsys_lab.kernels.trace.numba_simulator import record
from mlsys_lab.kernels.trace.report import report
from mlsys_lab.widgets import show
from mlsys_lab.widgets.accesses import Accesses

check = lab("cuda")

# %%
#| export
import math

from mlsys_lab.kernels.numba_language import cuda, float32

THREADS = 128  # per block, in tasks with one dimension
WINDOW = THREADS + 2
TILE = 32  # side of the square that a block transposes
ROWS = 8  # rows of threads that transpose it
SIDE = 16  # of the matrix product's tiles, and of its blocks

# %% [markdown]
# ## Part 1 · Threads and memory
#
# ## Task 1 · One thread per element
#
# *About 25 minutes.*
#
# **Goal.** A kernel is the program of *one* thread, and a launch runs it in thousands of them. Write two maps, in which
# each thread handles one element, and keep threads without an element away from memory.
#
# `kernel[grid, block](x, y)` starts `grid` blocks of `block` threads. A thread knows its position in its block,
# `cuda.threadIdx.x`, the number of its block, `cuda.blockIdx.x`, and the size of a block, `cuda.blockDim.x`. Its
# position among *all* threads is `cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x`, or `cuda.grid(1)`.
#
# **Interface.** A kernel returns nothing; it stores its results in arrays that it is given.
#
# | launch | computes | for |
# |---|---|---|
# | `relu[n // THREADS, THREADS](x, y)` | `y[i] = max(x[i], 0)` | n elements, a multiple of `THREADS` |
# | `sgd_step[ceil(n / THREADS), THREADS](w, g, lr)` | `w[i] -= lr * g[i]`, in place | any n |
#
# **Example**
#
# ```python
# x, y = np.float32([-1, 2] * 64), np.empty(128, np.float32)
# trace = record(relu, 1, THREADS, x, y, outputs=("y",))
# y[:4].tolist()  # → [0.0, 2.0, 0.0, 2.0]
# w, g = np.ones(100, np.float32), np.full(100, 2, np.float32)
# trace = record(sgd_step, 1, THREADS, w, g, np.float32(0.25))
# w[:2].tolist(), len(report(trace).faults)  # → ([0.5, 0.5], 0)
# ```
#
# (`record` launches a kernel in the simulator; `outputs` names the arrays whose contents are undefined before the
# launch. 128 threads for 100 elements: the last 28 must not touch anything. A GPU would not stop them, and they would
# change whatever lies behind the array.)
#
# **Requirements**
#
# - Each element is loaded once and stored once: 8 bytes per element for `relu`, 12 for `sgd_step`. Every `x[i]` in
#   your code is a load, so keep in a variable what you need twice.
# - A thread beyond the last element touches neither `w` nor `g`.
#
# **Size:** about 2 and 3 lines.


# %% nbgrader={"solution": true, "grade_id": "task-1-map"}
#| export
@cuda.jit
def relu(x, y):
    """Store max(x[i], 0) in y[i]; one thread for each element. About 2 lines."""
    ### BEGIN SOLUTION
    i = cuda.grid(1)
    y[i] = max(x[i], float32(0))
    ### END SOLUTION


@cuda.jit
def sgd_step(w, g, lr):
    """Subtract lr · g[i] from w[i]; at least one thread for each. About 3 lines."""
    ### BEGIN SOLUTION
    i = cuda.grid(1)
    if i < w.size:
        w[i] -= lr * g[i]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "relu"}
check("relu")

# %% nbgrader={"grade": true, "grade_id": "sgd_step"}
check("sgd_step")

# %% [markdown]
# **See it.** Your own kernel, request by request. The 32 threads of a warp load or store together, and memory answers
# in **sectors** of 32 bytes, which hold 8 numbers in fp32. Step through with the slider or the arrow keys: how many
# sectors does a request touch, and what do the last threads of the second block do?

# %%
w, g = np.ones(200, np.float32), np.ones(200, np.float32)
trace = record(sgd_step, 2, THREADS, w, g, np.float32(0.1))
Accesses.from_trace(trace)

# %% [markdown]
# The same as a table, which you can print for every kernel of this lab.

# %%
trace = record(sgd_step, 2, THREADS, w, g, np.float32(0.1))
show_table(report(trace).table())

# %% [markdown]
# ## Task 2 · Two dimensions, and more elements than threads
#
# *About 35 minutes.*
#
# **Goal.** Matrices have rows and columns, and arrays have more elements than a GPU has threads. Decide which index the
# threads of a warp run along, and write a **grid-stride loop**, in which a thread moves on by the number of threads in
# the whole grid, so that neighbouring threads stay at neighbouring elements.
#
# A grid and its blocks may have two dimensions, x and y, and threads are numbered with x varying fastest: **the threads
# of a warp are neighbours along x**. `cuda.grid(2)` returns a thread's position along x and along y, in this order. An
# element of a matrix is `x[row, column]`, and the elements of a *row* are neighbours in memory.
#
# **Interface**
#
# | launch | computes | for |
# |---|---|---|
# | `causal_mask[grid, (32, 4)](scores, masked)` | `scores[r, c]` where c ≤ r, else `-math.inf` | both (T, T) |
# | `outer[grid, (32, 4)](u, v, out)` | `out[r, c] = u[r] * v[c]` | `u` (R,), `v` (C,), `out` (R, C) |
# | `axpy[blocks, THREADS](a, x, y)` | `y[i] += a * x[i]` | any n, launched with at least two blocks |
#
# The first is the mask of attention: query r must not see later keys. The second is the weight gradient of a linear
# layer for one token. Their grid is `(ceil(columns / 32), ceil(rows / 4))`.
#
# **Example**
#
# ```python
# scores, masked = np.ones((2, 2), np.float32), np.empty((2, 2), np.float32)
# trace = record(causal_mask, (1, 1), (32, 4), scores, masked, outputs=("masked",))
# masked.tolist()  # → [[1.0, -math.inf], [1.0, 1.0]]
# u, v, out = np.float32([1, 2]), np.float32([3, 4, 5]), np.empty((2, 3), np.float32)
# trace = record(outer, (1, 1), (32, 4), u, v, out, outputs=("out",))
# out.tolist()  # → [[3.0, 4.0, 5.0], [6.0, 8.0, 10.0]]
# x, y = np.ones(300, np.float32), np.ones(300, np.float32)
# trace = record(axpy, 2, THREADS, np.float32(2), x, y)
# set(y.tolist())  # → {3.0}
# ```
#
# (256 threads for 300 elements: threads 0 to 43 take a second one.)
#
# **Requirements**
#
# - The threads of a warp access neighbouring elements, in every iteration of a loop too.
# - `causal_mask` does not load a score that is masked: T(T + 1)/2 loads, T² stores.
# - `outer` loads at most one element of `u` and one of `v` for each element that it stores. Threads beyond the last row
#   or column touch nothing.
# - `axpy` works with whatever number of threads there is; `cuda.gridsize(1)` returns it.
#
# **Size:** about 6, 3 and 2 lines.


# %% nbgrader={"solution": true, "grade_id": "task-2-dimensions"}
#| export
@cuda.jit
def causal_mask(scores, masked):
    """Copy scores[r, c] where c <= r, else store -inf; both (T, T). About 6 lines."""
    ### BEGIN SOLUTION
    column, row = cuda.grid(2)
    if row < scores.shape[0] and column < scores.shape[1]:
        if column <= row:
            masked[row, column] = scores[row, column]
        else:
            masked[row, column] = -math.inf
    ### END SOLUTION


@cuda.jit
def outer(u, v, out):
    """Store u[r] · v[c] in out[r, c]; u (R,), v (C,), out (R, C). About 3 lines."""
    ### BEGIN SOLUTION
    column, row = cuda.grid(2)
    if row < u.size and column < v.size:
        out[row, column] = u[row] * v[column]
    ### END SOLUTION


@cuda.jit
def axpy(a, x, y):
    """Add a · x[i] to y[i], for any number of elements and threads. About 2 lines."""
    ### BEGIN SOLUTION
    for i in range(cuda.grid(1), y.size, cuda.gridsize(1)):
        y[i] += a * x[i]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "causal_mask"}
check("causal_mask")

# %% nbgrader={"grade": true, "grade_id": "outer"}
check("outer")

# %% nbgrader={"grade": true, "grade_id": "axpy"}
check("axpy")

# %% [markdown]
# **See it.** Each element of the mask shows which thread stored it, by the thread's number in its block. Threads 0 to
# 31 are the first warp, 32 to 63 the second. Along a row the numbers rise one by one: that is **coalesced** access.

# %%
scores, masked = np.zeros((12, 12), np.float32), np.empty((12, 12), np.float32)
trace = record(causal_mask, (1, 3), (32, 4), scores, masked, outputs=("masked",))
stores = trace.of(buffer="masked", kinds=(STORE,))
thread = np.full(masked.size, np.nan)
thread[stores["offset"] // masked.itemsize] = stores["thread"]
thread = thread.reshape(masked.shape)
heatmap = go.Heatmap(z=thread, texttemplate="%{z}", colorscale="Blues", showscale=False)
figure = go.Figure(heatmap)
figure.update_layout(xaxis_title="column", yaxis_title="row", height=460, width=560)
figure.update_xaxes(dtick=1)
figure.update_yaxes(dtick=1, autorange="reversed")
show(figure, alt="The mask; in each element the number of the thread that stored it")

# %% [markdown]
# **Predict, then measure.** On a CPU each core would get one contiguous chunk of the array. Here is `axpy` written that
# way. For 2,048 elements and 256 threads each thread has 8 neighbouring elements. How many times as many sectors does
# it move as your `axpy`? Write your number into the cell below before you run the one after it.


# %%
@cuda.jit
def chunked_axpy(a, x, y):
    each = (y.size + cuda.gridsize(1) - 1) // cuda.gridsize(1)
    first = each * cuda.grid(1)
    for i in range(first, min(first + each, y.size)):
        y[i] += a * x[i]


# %%
guess = None  # times as many sectors as axpy


# %%
def sectors(found):
    """Sectors of 32 bytes that a launch moves, by array in the kernel's order."""
    return {one.buffer: one.both.moved_bytes // 32 for one in found.traffic}


moved = {}
for kernel in (axpy, chunked_axpy):
    x, y = np.ones(2048, np.float32), np.ones(2048, np.float32)
    launched = report(record(kernel, 2, THREADS, np.float32(2), x, y))
    moved[launched.kernel] = sum(sectors(launched).values())
    print(f"{launched.kernel:12} {moved[launched.kernel]:6,} sectors")
ratio = moved["chunked_axpy"] / moved["axpy"]
check.predict(guess, ratio, "times as many sectors", within=0)

# %% [markdown]
# In each iteration the lanes of a warp are 8 elements apart, so each lane touches a sector of its own: 32 sectors for
# 128 bytes, where 4 would hold them. A cache may keep the other 7 numbers of a sector for later iterations, if it has
# room for all warps at once. A grid-stride loop does not depend on that.
#
# ## Task 3 · Predict, then measure
#
# *About 25 minutes.*
#
# **Goal.** These two kernels are correct and slow. Before you improve them in Part 2, work out on paper what they ask
# of memory; then let the simulator count.


# %%
@cuda.jit
def naive_transpose(x, y):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        y[column, row] = x[row, column]


@cuda.jit
def naive_matmul(a, b, c):
    row, column = cuda.grid(2)  # neighbours along x: neighbouring rows
    if row < c.shape[0] and column < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, column]
        c[row, column] = total


# %% [markdown]
# All arrays are fp32 and start at a sector boundary. Blocks have 32 × 4 threads, so a warp is 32 threads along x.
#
# **Interface.** Each function returns several counts, as Python ints.
#
# | function | returns |
# |---|---|
# | `predict_transpose(rows, columns)` | sectors loaded of `x` (rows, columns), sectors stored of `y` |
# | `predict_matmul(m, n, k)` | sectors loaded of `a` (m, k), loaded of `b` (k, n), stored of `c` (m, n) |
# | `predict_loads(m, n, k, side)` | *elements* loaded of `a`, and of `b`, by a better product: see below |
#
# In the first two, all sides are multiples of 32. In the third, m and n are multiples of `side`: a block of `side` ×
# `side` threads computes as many elements of `c`, one each, and loads each number that it needs *once*, to share it
# among its threads. With `side` 1 it is the naive kernel.
#
# **Example.** A copy, `y[row, column] = x[row, column]`, of a 64 × 96 matrix has 64 · 96 / 32 = 192 warps. Each loads
# 32 neighbours, 128 bytes or 4 sectors, and stores 4 sectors: 768 and 768. The naive product with m = n = 32 and k = 64
# has 1,024 threads, each of which loads 64 numbers of `a` and 64 of `b`:
#
# ```python
# predict_loads(32, 32, 64, 1)  # → (65536, 65536)
# ```
#
# **Requirements**
#
# - A warp makes a request each time it comes to a load or a store. A request touches as many sectors as its 32
#   addresses lie in; a sector that two requests touch counts twice, as if there were no cache.
# - Counts are exact for matrices of any size, also for ones that fit into no memory: use `//`, not `/`.
#
# **Size:** about 2, 2 and 1 lines.


# %% nbgrader={"solution": true, "grade_id": "task-3-predict"}
#| export
def predict_transpose(rows, columns):
    """Sectors that naive_transpose loads of x and stores of y. About 2 lines."""
    ### BEGIN SOLUTION
    warps = rows * columns // 32
    return 4 * warps, 32 * warps
    ### END SOLUTION


def predict_matmul(m, n, k):
    """Sectors that naive_matmul loads of a and b and stores of c. About 2 lines."""
    ### BEGIN SOLUTION
    warps = m * n // 32
    return 32 * k * warps, k * warps, 32 * warps
    ### END SOLUTION


def predict_loads(m, n, k, side):
    """Elements that blocks of side × side load of a and of b. About 1 line."""
    ### BEGIN SOLUTION
    return m * n * k // side, m * n * k // side
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "predict_sectors"}
check("predict_sectors")

# %% nbgrader={"grade": true, "grade_id": "predict_loads"}
check("predict_loads")

# %% [markdown]
# **Measure.** The simulator counts what you predicted.

# %%
x, y = np.ones((64, 96), np.float32), np.empty((96, 64), np.float32)
transposed = report(record(naive_transpose, (3, 16), (32, 4), x, y, outputs=("y",)))
a, b = np.ones((32, 64), np.float32), np.ones((64, 32), np.float32)
c = np.empty((32, 32), np.float32)
multiplied = report(record(naive_matmul, (1, 8), (32, 4), a, b, c, outputs=("c",)))
for name, predicted, found in (
    ("transpose", predict_transpose(64, 96), transposed),
    ("matmul", predict_matmul(32, 32, 64), multiplied),
):
    print(f"{name}: predicted {predicted}, measured {tuple(sectors(found).values())}")
show_table(multiplied.table())

# %% [markdown]
# The line that loads `a` is where this product loses: each request fetches 32 sectors for 128 bytes, because
# neighbouring lanes are a whole row of `a` apart. With row and column exchanged, all lanes of a warp want the *same*
# element of `a` and neighbouring elements of `b`, which takes 1 + 4 sectors in place of 32 + 1. That exchange is the
# worklog's step from 309 to 1,987 GFLOP/s.
#
# ## Task 4 · Shared memory
#
# *About 40 minutes.*
#
# **Goal.** Threads of a block can load a number once and share it. Write a moving average whose blocks load each
# element once, and a dot product in which one thread adds what all of them computed.
#
# `cuda.shared.array(shape, float32)` gives the block *one* array in on-chip memory, which all of its threads share. Its
# shape is a constant: numbers, or names of constants such as `WINDOW`. Threads of a block do not run in step, so a
# thread that reads what another one stores has to wait for it: `cuda.syncthreads()` is the **barrier** that no thread
# passes before all threads of the block have reached it.
#
# **Interface**
#
# | launch | computes | for |
# |---|---|---|
# | `smooth[ceil(n / THREADS), THREADS](x, y)` | `y[i] = (x[i-1] + x[i] + x[i+1]) / 3` | any n; x is 0 outside |
# | `dot[1, THREADS](x, y, out)` | `out[0]` = Σ `x[i] * y[i]` | at most `THREADS` elements, one block |
#
# **Example**
#
# ```python
# x, y = np.float32([3, 6, 9, 12]), np.empty(4, np.float32)
# trace = record(smooth, 1, THREADS, x, y, outputs=("y",))
# y.tolist()  # → [3.0, 6.0, 9.0, 7.0]
# x, y, out = np.float32([1, 2, 3]), np.float32([4, 5, 6]), np.empty(1, np.float32)
# trace = record(dot, 1, THREADS, x, y, out, outputs=("out",))
# out.tolist(), report(trace).problems  # → ([32.0], ())
# ```
#
# **Requirements**
#
# - A block of `smooth` loads its elements and their two outer neighbours once each: at most `WINDOW` numbers, kept in
#   shared memory.
# - **All** threads of a block reach each barrier, and the same one: never put it into a branch that some threads do not
#   take. A thread that returns early does not reach it either.
# - In `dot`, every thread stores its product into shared memory; after the barrier, thread 0 adds them up and stores
#   the sum. Each element is loaded once, and `out` is stored once.
# - Shared memory that no thread has stored to may hold any value.
#
# **Size:** about 11 and 10 lines.
#
# <details><summary>Details</summary>
#
# - An index below 0 counts from the end, in Numba as in Python: `x[-1]` is the last element, and no error.
# - `WINDOW` is `THREADS + 2`. Numba takes no arithmetic in a shape: give a sum a name outside of the kernel.
# - A tree of additions (Task 5) is accepted in `dot` too. Atomic additions to one number are not: their sum is correct,
#   but each waits for the one before.
# - `dot` may be asked for no elements at all; the sum is 0.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-4-share"}
#| export
@cuda.jit
def smooth(x, y):
    """Store the mean of x[i-1], x[i] and x[i+1] in y[i]. About 11 lines."""
    ### BEGIN SOLUTION
    near = cuda.shared.array(WINDOW, float32)  # near[t + 1] is x[i]
    t, i = cuda.threadIdx.x, cuda.grid(1)
    near[t + 1] = x[i] if i < x.size else float32(0)
    if t == 0:
        near[0] = x[i - 1] if i > 0 else float32(0)
    if t == THREADS - 1:
        near[t + 2] = x[i + 1] if i + 1 < x.size else float32(0)
    cuda.syncthreads()
    if i < x.size:
        y[i] = (near[t] + near[t + 1] + near[t + 2]) / float32(3)
    ### END SOLUTION


@cuda.jit
def dot(x, y, out):
    """Store Σ x[i] · y[i] in out[0]: one block, at most THREADS. About 10 lines."""
    ### BEGIN SOLUTION
    products = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    if t < x.size:
        products[t] = x[t] * y[t]
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for i in range(x.size):
            total += products[i]
        out[0] = total
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "smooth"}
check("smooth")

# %% nbgrader={"grade": true, "grade_id": "dot"}
check("dot")

# %% [markdown]
# **See it.** Shared memory as your block fills it and reads it. For each request the figure says in how many passes the
# banks serve it; Task 6 is about those.

# %%
x, y = np.arange(200, dtype=np.float32), np.empty(200, np.float32)
trace = record(smooth, 2, THREADS, x, y, outputs=("y",))
Accesses.from_trace(trace)

# %% [markdown]
# **End of Part 1.** You can write a kernel for any shape, say in advance what it asks of memory, and have the threads
# of a block work together. Part 2 turns that into three kernels that every GPU library has.
#
# ## Part 2 · Tiles
#
# ## Task 5 · A sum by a tree
#
# *About 35 minutes.*
#
# **Goal.** In `dot` one thread added 128 numbers, one after the other, while 127 threads waited. Add them in a **tree**
# instead: half of the threads add one number each to their own, then a quarter of them, and so on, 7 steps in all.
#
# **Interface.** `block_sum[blocks, THREADS](x, sums)` for `x` of any size. `sums` has one element per block, and
# together they add up to the sum of `x`.
#
# 1. Each thread adds up its elements of `x` in a variable, in a grid-stride loop as in `axpy`.
# 2. It stores that number in shared memory, `part[t]`.
# 3. The block adds by a tree, and thread 0 stores `sums[blockIdx.x]`.
#
# **Example**
#
# ```python
# x, sums = np.ones(300, np.float32), np.empty(2, np.float32)
# trace = record(block_sum, 2, THREADS, x, sums, outputs=("sums",))
# float(sums.sum()), report(trace).problems  # → (300.0, ())
# ```
#
# *Which* threads add decides what a step costs, because a warp issues a request even if only one of its lanes is
# active. **Sequential addressing:** with `half` threads still at work, thread t < `half` adds `part[t + half]` to
# `part[t]`. Whole warps then retire early, and the active lanes are neighbours. A block's warps make 4 requests to
# store, and in each step 3 for each active warp (two loads and a store), $3 \cdot (2 + 1 + 1 + 1 + 1 + 1 + 1)$ in all.
# With the last load, of the sum, that is 29.
#
# **Requirements**
#
# - Each element of `x` is loaded once, by neighbouring threads of a warp.
# - In each step a thread reads what another one stored in the step before: there is a barrier between them, which all
#   threads reach.
# - To shared memory, at most 40 requests of a block and at most 26 accesses of a thread.
#
# **Size:** about 15 lines.
#
# <details><summary>Details</summary>
#
# - A block may have no elements, and `x` may be empty. Such sums are 0.
# - Shuffles between the lanes of a warp are welcome for the last steps. So is `cuda.syncwarp()`, which is a barrier for
#   the lanes of one warp.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-5-sum"}
#| export
@cuda.jit
def block_sum(x, sums):
    """Store the sum of a block's elements in sums[block]. About 15 lines."""
    ### BEGIN SOLUTION
    part = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    mine = float32(0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        mine += x[i]
    part[t] = mine
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            part[t] += part[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        sums[cuda.blockIdx.x] = part[0]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "block_sum"}
check("block_sum")

# %% [markdown]
# **Predict, then measure.** In **interleaved** addressing, thread t adds `part[t + d]` to `part[t]` if t is a multiple
# of 2d, with d = 1, 2, 4 and so on. How many requests to shared memory does a block make? It stores first and loads the
# sum at the end, as your kernel does; so count the warps that have at least one active lane in each of the 7 steps.

# %%
guess = None  # requests of a block to shared memory, interleaved


# %%
from mlsys_lab.kernels.reduction import numba_steps  # has the interleaved tree

x, sums = np.ones(THREADS, np.float32), np.empty(1, np.float32)
tree = record(block_sum, 1, THREADS, x, sums, outputs=("sums",))
interleaved = record(numba_steps.interleaved, 1, THREADS, x, sums, outputs=("sums",))
line = record(dot, 1, THREADS, x, x.copy(), sums, outputs=("out",))
figure = go.Figure()
requests = {}
for name, trace in (("block_sum", tree), ("interleaved", interleaved), ("dot", line)):
    accesses = trace.of(space="shared")
    requests[name] = len(np.unique(accesses["request"]))
    phase, warp = accesses["phase"], accesses["thread"] // 32
    busy = [len(np.unique(warp[phase == p])) for p in range(int(phase.max()) + 1)]
    figure.add_bar(x=list(range(len(busy))), y=busy, name=name, text=busy)
    longest = np.bincount(accesses["thread"]).max()
    print(f"{name:12} {requests[name]:4} requests, busiest thread: {longest} accesses")
figure.update_layout(xaxis_title="barriers passed", yaxis_title="warps at work")
figure.update_xaxes(dtick=1)
show(figure, alt="Warps at work after each barrier, for block_sum, interleaved and dot")
check.predict(guess, requests["interleaved"], "requests to shared memory", within=0)

# %% [markdown]
# Both trees need 127 additions in 7 steps. Interleaved, all 4 warps stay busy until the active threads are more than a
# warp apart: warps, not threads, are what a multiprocessor schedules.
#
# ## Task 6 · Transpose
#
# *About 35 minutes.*
#
# **Goal.** The naive transpose stores 32 sectors per request, for data that fill 4. Whichever way its threads run,
# either the loads or the stores go down a column, so turn the matrix *on the chip*: load a tile of 32 × 32 by rows,
# keep it in shared memory, and store rows of the result, which are columns of the tile.
#
# **Interface.** `transpose[(ceil(columns / TILE), ceil(rows / TILE)), (TILE, ROWS)](x, y)` stores `y[c, r] = x[r, c]`,
# for `x` of shape (rows, columns). A block has 32 × 8 threads, so each moves 4 elements: rows `ty`, `ty + ROWS`, … of
# its tile.
#
# **Example**
#
# ```python
# x, y = np.float32([[1, 2, 3], [4, 5, 6]]), np.empty((3, 2), np.float32)
# trace = record(transpose, (1, 1), (TILE, ROWS), x, y, outputs=("y",))
# y.tolist()  # → [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
# ```
#
# **Banks.** Shared memory is spread over 32 banks: word $i$ is in bank $i \bmod 32$. A request takes one pass if its
# lanes want different banks (or the same word). Different words of one bank take a pass each: a **bank conflict**. In
# which bank is `tile[r, c]` of a tile with 32 columns, what does that mean for a warp that reads a column, and what is
# the smallest change of the tile's shape that helps?
#
# **Requirements**
#
# - Each block loads one tile, such as the one whose first column is `TILE * blockIdx.x` and whose first row is
#   `TILE * blockIdx.y`, and stores it where it belongs in `y`.
# - Sides need not be multiples of `TILE`. Loads and stores each have a guard of their own.
# - Each element is loaded once and stored once, each row in no more sectors than it needs (first check).
# - No bank conflicts, whichever way you avoid them (second check). Numba takes no `TILE + 1` in a shape: write a
#   number, or the name of a constant in an exported cell.
#
# **Size:** about 11 lines.


# %% nbgrader={"solution": true, "grade_id": "task-6-transpose"}
#| export
@cuda.jit
def transpose(x, y):
    """Store x[r, c] in y[c, r] through a tile in shared memory. About 11 lines."""
    ### BEGIN SOLUTION
    tile = cuda.shared.array((TILE, 33), float32)  # 33: a column is in 32 banks
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = TILE * cuda.blockIdx.y, TILE * cuda.blockIdx.x
    for k in range(ty, TILE, ROWS):
        if top + k < x.shape[0] and left + tx < x.shape[1]:
            tile[k, tx] = x[top + k, left + tx]
    cuda.syncthreads()
    for k in range(ty, TILE, ROWS):
        if left + k < y.shape[0] and top + tx < y.shape[1]:
            y[left + k, top + tx] = tile[tx, k]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "transpose"}
check("transpose")

# %% nbgrader={"grade": true, "grade_id": "transpose_banks"}
check("transpose_banks")

# %% [markdown]
# **See it.** One tile through your kernel: step to the warps that store `y`, and look at the columns of the tile that
# they read.

# %%
x, y = np.arange(1024, dtype=np.float32).reshape(32, 32), np.empty((32, 32), np.float32)
trace = record(transpose, 1, (TILE, ROWS), x, y, outputs=("y",))
Accesses.from_trace(trace)

# %%
x, y = np.ones((64, 96), np.float32), np.empty((96, 64), np.float32)
tiled = report(record(transpose, (3, 2), (TILE, ROWS), x, y, outputs=("y",)))
least = {one.buffer: one.both.least_bytes // 32 for one in tiled.traffic}
figure = go.Figure()
bars = (("naive", sectors(transposed)), ("yours", sectors(tiled)), ("least", least))
for name, counts in bars:
    y = list(counts.values())
    figure.add_bar(name=name, x=["x, loaded", "y, stored"], y=y, text=y)
figure.update_layout(yaxis_title="sectors of 32 bytes", barmode="group")
show(figure, alt="Sectors of the naive transpose, of yours, and the least possible")

# %% [markdown]
# **Predict, then measure.** If one extra column helps, do two help twice as much? A warp reads a column of 32 numbers
# from a tile with 34 columns. In how many passes? The kernel in the next cell reads such a column for any number of
# columns, the `pitch`.


# %%
@cuda.jit
def read_column(pitch, out):
    words = cuda.shared.array(2048, float32)
    lane = cuda.threadIdx.x
    words[lane * pitch] = lane
    cuda.syncwarp()
    out[lane] = words[lane * pitch]


# %%
guess = None  # passes to read a column of a tile with 34 columns

# %%
passes = {}
for pitch in range(32, 41):
    out = np.empty(32, np.float32)
    trace = record(read_column, 1, 32, pitch, out, outputs=("out",))
    passes[pitch] = max(one.worst.taken for one in report(trace).conflicts)
    print(f"{pitch} columns: {passes[pitch]:2} passes")
check.predict(guess, passes[34], "passes", within=0)

# %% [markdown]
# Row r of the column is in bank (r × pitch) mod 32, so the number of passes is the greatest common divisor of the pitch
# and 32. Any odd pitch is free of conflicts. With 34 columns, two rows share each bank that is used, and half of the
# banks are idle.
#
# ## Task 7 · A matrix product by tiles
#
# *About 45 minutes.*
#
# **Goal.** The naive product loads two numbers for every multiply-add, although neighbouring elements of C want the
# same row of A. Let a block compute a tile of SIDE × SIDE elements of C from tiles of A and B in shared memory, so that
# each number that is loaded serves SIDE threads.
#
# ```text
#                          B   k ↓  ┌──────┐
#                                   │ tile │  step s: rows s·SIDE …
#                                   └──────┘
#      A      ┌──────┐  C           ┌──────┐
#             │ tile │              │ block│  one thread per element:
#             └──────┘              └──────┘  total += a_tile[ty, k] * b_tile[k, tx]
#      k →  columns s·SIDE …
# ```
#
# **Interface.** `matmul[(ceil(n / SIDE), ceil(m / SIDE)), (SIDE, SIDE)](a, b, c)` stores `c = a · b`, for `a` (m, k),
# `b` (k, n) and `c` (m, n) of any sizes.
#
# **Example**
#
# ```python
# a, b = np.float32([[1, 2], [3, 4]]), np.float32([[5, 6], [7, 8]])
# c = np.empty((2, 2), np.float32)
# trace = record(matmul, (1, 1), (SIDE, SIDE), a, b, c, outputs=("c",))
# c.tolist()  # → [[19.0, 22.0], [43.0, 50.0]]
# ```
#
# **Requirements**
#
# - In each step of SIDE along k, every thread fills one element of each tile; then each thread does SIDE multiply-adds
#   with what is in shared memory. At most m·k·⌈n/SIDE⌉ + k·n·⌈m/SIDE⌉ loads in all.
# - Outside of `a` and `b`, store zeros into *both* tiles, so that they add nothing.
# - **All** threads do so, and reach every barrier, those without an element of `c` too.
# - Two barriers per step. Before you write them: what goes wrong without the first, and what without the second?
# - Whole sectors of global memory and no bank conflicts (second check): which index of each tile runs with
#   `threadIdx.x` when the tile is filled, and which when it is read?
#
# **Size:** about 15 lines.
#
# <details><summary>Details</summary>
#
# - Zeros in one tile are not enough: the number opposite may be infinite or left over, and 0 · ∞ is NaN.
# - With k = 0 there is nothing to add, and `c` is 0.
# - With two pairs of tiles that take turns, one barrier per step is enough.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-7-matmul"}
#| export
@cuda.jit
def matmul(a, b, c):
    """Store a · b in c, by tiles of SIDE × SIDE in shared memory. About 15 lines."""
    ### BEGIN SOLUTION
    a_tile = cuda.shared.array((SIDE, SIDE), float32)
    b_tile = cuda.shared.array((SIDE, SIDE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    total = float32(0)
    for start in range(0, a.shape[1], SIDE):
        of_a = row < a.shape[0] and start + tx < a.shape[1]
        of_b = start + ty < b.shape[0] and column < b.shape[1]
        a_tile[ty, tx] = a[row, start + tx] if of_a else float32(0)
        b_tile[ty, tx] = b[start + ty, column] if of_b else float32(0)
        cuda.syncthreads()
        for k in range(SIDE):
            total += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "matmul"}
check("matmul")

# %% nbgrader={"grade": true, "grade_id": "matmul_memory"}
check("matmul_memory")

# %% [markdown]
# **Predict, then measure.** How far does this take you on an H100? In fp32 it computes 67 TFLOP/s and reads 3.35 TB/s,
# so its ridge point is at 20 FLOP/B. Suppose that no cache helps. Per step a block of 16 × 16 loads two tiles and does
# 16 multiply-adds per thread: how many FLOP/B is that, and what percentage of the fp32 peak does memory then allow?

# %%
guess = None  # percent of an H100's fp32 peak that the tiled product can reach

# %%
a, b = np.ones((32, 64), np.float32), np.ones((64, 32), np.float32)
c = np.empty((32, 32), np.float32)
by_tiles = report(record(matmul, (2, 2), (SIDE, SIDE), a, b, c, outputs=("c",)))
h100, flops, points = device("H100"), 2 * 32 * 32 * 64, []
percent = {}
for name, found, side in (("naive", multiplied, 1), ("by tiles", by_tiles, SIDE)):
    loads = tuple(one.read.asked_bytes // 4 for one in found.traffic[:2])
    predicted = predict_loads(32, 32, 64, side)
    print(f"{name}: predicted {predicted} loads, measured {loads}")
    intensity = flops / sum(one.both.moved_bytes for one in found.traffic)
    bound = h100.attainable("fp32", intensity)
    percent[name] = 100 * bound / h100.peak("fp32")
    print(f"{name}: {intensity:.2f} FLOP/B, at most {percent[name]:.1f} % of the peak")
    point = {"x": [intensity], "y": [bound / 1e12], "name": name, "mode": "markers"}
    points.append(go.Scatter(**point, marker_size=13))
ridge = h100.peak("fp32") / h100.memory_bandwidth_bytes_per_s
axis = sorted([*(2.0**power for power in range(-5, 9)), ridge])
roofline = [h100.attainable("fp32", x) / 1e12 for x in axis]
figure = go.Figure([go.Scatter(x=axis, y=roofline, name="H100, fp32"), *points])
figure.update_layout(xaxis_title="FLOP/B", yaxis_title="TFLOP/s at most")
figure.update_xaxes(type="log", dtick=1, tickformat=",")
figure.update_yaxes(type="log", dtick=1, tickformat=",")
show(figure, alt="The naive and the tiled product on the roofline of an H100")
check.predict(guess, percent["by tiles"], "percent of the fp32 peak")

# %% [markdown]
# A tile of side 16 does 2 · 16 FLOPs for every 2 numbers of 4 bytes: 4 FLOP/B, a fifth of the ridge point. (Measured,
# it is a little less, because storing `c` counts too, and here k is only 64.) A side of 32 takes all 1,024 threads that
# a block may have, and still reaches only 8 FLOP/B. Larger tiles are possible only if each thread computes several
# elements. That is Task 8.
#
# ## Task 8 · The same in CUDA C++
#
# *About 75 minutes.* Needs g++, no GPU.
#
# **Goal.** Most kernels that run in production are CUDA C++. Translate your transpose, then write a matrix product in
# which each thread computes several elements of `c`, so that a number from shared memory serves several multiply-adds.
#
# | Python | CUDA C++ |
# |---|---|
# | `cuda.threadIdx.x`, `cuda.blockIdx.y` | `threadIdx.x`, `blockIdx.y` |
# | `cuda.syncthreads()` | `__syncthreads()` |
# | `cuda.shared.array((TILE, 32), float32)` | `__shared__ float tile[32][32]` |
# | `x[r, c]` | `x[(size_t)r * columns + c]`: an array is an address and has no shape |
# | a variable per element | `float sums[4][4] = {}`: in registers, if the loops over it have `#pragma unroll` |
#
# **Interface.** Both functions return the source text of a kernel; the course compiles and launches it.
#
# | function | signature of the kernel in its text | launched with |
# |---|---|---|
# | `transpose_cpp()` | `transpose(const float* x, float* y, int rows, int columns)` | blocks of (32, 8), as in Task 6 |
# | `matmul_cpp()` | `matmul(const float* a, const float* b, float* c, int m, int n, int k)` | blocks of (16, 16) |
#
# Each begins with `extern "C" __global__ void`. A block of `matmul` computes a square of CPP_TILE × CPP_TILE elements
# of `c`, and `blockIdx.x` counts squares along a row. With `CPP_TILE = 16` that is your kernel of Task 7. With 64, each
# thread computes 4 × 4 elements: 4 + 4 numbers from shared memory serve 16 multiply-adds. The tiles of `a` and `b` need
# not be as deep along k as they are wide: with 64 × 16 and 16 × 64 numbers, for example, each thread loads 4 of each
# per step. You may change `CPP_TILE`, in your text too.
#
# **Example**
#
# ```python
# import torch
# from mlsys_lab.kernels.cuda_cpp import Emulator, Source
# x, y = torch.arange(6.0).reshape(2, 3), torch.zeros(3, 2)
# source, block = Source(transpose_cpp(), "transpose.cu"), (32, 8)
# Emulator()(source, "transpose", (1, 1), block, x, y, 2, 3)
# y.tolist()  # → [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
# ```
#
# **Requirements**
#
# - Right for any sizes, as in Tasks 6 and 7, and for matrices of more than 2³² elements: compute positions in `size_t`.
# - The text compiles for an H100, and runs in an *emulator*, which watches each access. It stops at the first one that
#   is out of bounds, races, or reads shared memory that nothing has stored to, and names line, thread and element.
#   Lines count from the one on which the text's quotes open.
# - Each block computes its own tile, and no other: some launches leave blocks out.
#
# **Speed, for extra points.** Where the course is graded on a GPU, each kernel is timed next to torch's own: 2 points
# for a transpose at 0.7 of its speed, 4 for a matrix product at 0.4 of cuBLAS in fp32; partial points start at 0.4 and
# 0.15. The 100 points of the lab are complete without them.
#
# **Size:** about 17 and 33 lines.
#
# <details><summary>Details</summary>
#
# - A thread's elements are best 16 rows and 16 columns apart: neighbouring threads then stay at neighbouring elements.
# - Each array starts at a multiple of 256 bytes, and its rows follow one another. A `float4` has to start at a multiple
#   of 16 bytes.
# - Of the toolkit's headers, `cuda_fp16.h` and `cuda_bf16.h` can be included. The emulator knows shuffles and votes,
#   `__syncwarp`, atomics, `__ldg`, `__fmaf_rn`, `float2`, `float4`, `__device__` functions, `__constant__`,
#   `__restrict__`, `__launch_bounds__` and `#pragma unroll`; it knows no `half2`, no caches, no time and no `asm`, and
#   does not see whether a thread's own variables were ever set.
# - A check runs each launch twice: threads first to last, then last to first. The emulator refuses variables that all
#   blocks would share (`__device__`, `static`), and a barrier in each of two branches that threads of a block take.
# - The measured time includes generating the random inputs and reading the results, so aim higher than the target.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-8-cuda-cpp"}
#| export
CPP_TILE = 64  # side of the square of c that a block of 16 × 16 threads computes


def transpose_cpp():
    """Text of transpose(x, y, rows, columns) in CUDA C++. About 17 lines."""
    ### BEGIN SOLUTION
    return r"""
extern "C" __global__ void transpose(
        const float* x, float* y, int rows, int columns) {
    __shared__ float tile[32][33];
    int tx = threadIdx.x, ty = threadIdx.y;
    int top = 32 * blockIdx.y, left = 32 * blockIdx.x;
    for (int k = ty; k < 32; k += 8) {
        int row = top + k, column = left + tx;
        if (row < rows && column < columns)
            tile[k][tx] = x[(size_t)row * columns + column];
    }
    __syncthreads();
    for (int k = ty; k < 32; k += 8) {
        int row = left + k, column = top + tx;  // of y
        if (row < columns && column < rows)
            y[(size_t)row * rows + column] = tile[tx][k];
    }
}
"""
    ### END SOLUTION


def matmul_cpp():
    """Text of matmul(a, b, c, m, n, k) in CUDA C++. About 33 lines."""
    ### BEGIN SOLUTION
    return r"""
const int TILE = 64, STEP = 16, EACH = TILE / 16;  // EACH × EACH elements per thread

extern "C" __global__ void matmul(
        const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float a_tile[TILE][STEP], b_tile[STEP][TILE];
    int tx = threadIdx.x, ty = threadIdx.y;
    int top = TILE * blockIdx.y + ty, left = TILE * blockIdx.x + tx;
    float sums[EACH][EACH] = {};
    for (int start = 0; start < k; start += STEP) {
        for (int i = 0; i < EACH; i++) {
            int row = top + 16 * i, s = start + tx;
            bool inside = row < m && s < k;
            a_tile[ty + 16 * i][tx] = inside ? a[(size_t)row * k + s] : 0;
        }
        for (int j = 0; j < EACH; j++) {
            int s = start + ty, column = left + 16 * j;
            bool inside = s < k && column < n;
            b_tile[ty][tx + 16 * j] = inside ? b[(size_t)s * n + column] : 0;
        }
        __syncthreads();
        for (int s = 0; s < STEP; s++) {
            float down[EACH], right[EACH];
            for (int i = 0; i < EACH; i++) down[i] = a_tile[ty + 16 * i][s];
            for (int j = 0; j < EACH; j++) right[j] = b_tile[s][tx + 16 * j];
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++) sums[i][j] += down[i] * right[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int row = top + 16 * i, column = left + 16 * j;
            if (row < m && column < n) c[(size_t)row * n + column] = sums[i][j];
        }
}
"""
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "transpose_cpp"}
check("transpose_cpp")

# %% nbgrader={"grade": true, "grade_id": "matmul_cpp"}
check("matmul_cpp")

# %% [markdown]
# **See it compiled** for an H100. Registers and shared memory decide how many blocks a multiprocessor holds at once.
# What *spills* is kept in local memory, which lies in the GPU's DRAM and its caches, because the registers ran out.

# %%
from mlsys_lab.errors import CourseError
from mlsys_lab.kernels.cuda_cpp import compile_cuda
from mlsys_lab.kernels.trace.occupancy import occupancy

try:
    for name, text in (("transpose", transpose_cpp()), ("matmul", matmul_cpp())):
        compiled = compile_cuda(text, (name,), name=f"{name}.cu", arch="sm_90")
        used = compiled.resources[name]
        limits = {"registers": used.registers, "shared_bytes": used.shared_bytes}
        held = occupancy(device("H100"), 256, **limits)
        print(f"{name}, per thread: {used.registers} registers, ", end="")
        print(f"{used.spill_bytes} bytes spilled")
        print(f"  per block: {used.shared_bytes:,} bytes of shared memory; ", end="")
        print(f"per SM: {held.blocks} blocks, {held.occupancy:.0%} of all warps")
except CourseError as error:  # an error at its line, or there is no compiler here
    print(error)

# %% [markdown]
# **See it run,** where there is a GPU: next to torch, at the sizes that are graded.

# %%
for name in ("transpose_cpp", "matmul_cpp"):
    check.speed(name)

# %% [markdown]
# ## Stretch: no points
#
# - **Swizzle.** Avoid the transpose's bank conflicts without padding: store `tile[r, c]` at column `c ^ r`. Why does
#   that work for both the rows that are filled and the columns that are read? TMA and tensor cores use such layouts.
# - **Wider loads.** In `matmul_cpp`, load `float4` where rows allow it. A warp then asks for 512 bytes in one request.
# - **Double buffering.** Load the tiles of the next step while the current ones are multiplied, as the chapter's last
#   versions do. How much shared memory does that take, and how many blocks still fit?
#
# ## What you can read now
#
# - NVIDIA's cuda-samples, `transpose.cu`: `transposeNaive`, `transposeCoalesced` and `transposeNoBankConflicts` are
#   your Task 6; and `reduction_kernel.cu`: `reduce0` is interleaved, `reduce2` has the addressing of your Task 5.
# - PyTorch, `aten/src/ATen/native/cuda/block_reduce.cuh`: `WarpReduceSum` and `BlockReduceSum`, the two levels of a
#   sum; and `CUDALoops.cuh`: `vectorized_elementwise_kernel`, which is `relu` with wider loads.
# - vLLM, `csrc/layernorm_kernels.cu`: `rms_norm_kernel`, a block per token, a sum by a block, and a value in shared
#   memory that all threads read.
# - CUTLASS, `include/cutlass/gemm/threadblock/mma_pipelined.h`: `MmaPipelined`, the loop of Task 8 with two buffers.
# - The course's own `mlsys_lab/kernels/matmul/steps.cu`: the same product, from naive to tensor cores.
#
# ## Test yourself
#
# <details><summary>Which side of a square tile would reach an H100's ridge point, and can a block have that many
# threads?</summary>
#
# A side of s gives s/4 FLOP/B, so 20 FLOP/B need a side of 80: 6,400 threads with one element each, and a block has at
# most 1,024. With 4 × 4 elements per thread, 256 threads compute a side of 64, which gives 16 FLOP/B; with 8 × 8 they
# compute a side of 128.
#
# </details>
#
# <details><summary>Caches exist. Which of the predictions of Task 3 do they change?</summary>
#
# The counts of requests and of sectors per request stay; how many sectors come from DRAM changes. The 32 sectors that
# a request of the naive product touches of `a` hold the numbers of its next 7 iterations, so the L1 cache can serve
# these, if the sectors of all resident warps fit into it. Each request is still served in 32 pieces.
#
# </details>
#
# <details><summary>For a moving average over 2h + 1 elements, how much does shared memory save, and how does that
# depend on THREADS?</summary>
#
# Without it each element is loaded 2h + 1 times. With it a block loads THREADS + 2h numbers for THREADS results. At
# h = 1 that is 130/128 loads per element in place of 3; at h = 64 it is 2 in place of 129. Larger blocks load less of
# their neighbours, and need more shared memory.
#
# </details>
#
# <details><summary>In block_sum, threads t ≥ 64 have nothing to add. May they return before the tree?</summary>
#
# No. They would not reach the barriers. Even where the hardware does not wait for threads that have returned, a thread
# that skips a barrier and goes on, say to store into `part` for a second sum, races with those that still read it.
#
# </details>
#
# <details><summary>Why are two barriers per step needed in matmul?</summary>
#
# The first keeps a thread from multiplying numbers that another one has not stored yet. The second keeps a fast thread
# from storing the next tiles while a slow one still multiplies with the current ones.
#
# </details>
#
# When all checks pass, save the notebook and run `mlsys-lab check cuda` in a terminal. On a machine with a GPU,
# `matmul[grid, block](a, b, c)` compiles and runs the same kernels on arrays made with `cuda.to_device`.
