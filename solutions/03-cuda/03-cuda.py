# %% [markdown]
# # Lab 03 · CUDA kernels: ten kernels, each seen at work
#
# A GPU runs one small program in thousands of threads. To write that program is easy; to have its threads share the
# work without stepping on each other, and to have a warp's 32 threads ask for memory in the way that memory likes, is
# the craft. In this lab you write the kernels that every course on GPUs is built of, and look at each through a
# microscope: a simulator that records every load and every store. It needs no GPU, and nothing of the kernels changes
# on one.
#
# **You will build**
#
# 1. maps over one and two dimensions, with guards, broadcasts and strides over the grid;
# 2. a prediction, by hand, of what two naive kernels ask of memory, held against the count;
# 3. a moving average and a dot product whose threads share what they have read;
# 4. the sum of an array by a tree of additions;
# 5. a transpose that reads and writes whole sectors, without bank conflicts;
# 6. a matrix product by tiles that reads each number sixteen times less often than the naive one;
# 7. both once more in CUDA C++, compiled here for an H100, and timed where there is a GPU.
#
# **At the end you can answer**
#
# - Why can the same kernel be eight times slower with two indices exchanged?
# - When must threads wait for each other, and what goes wrong if a barrier stands in a branch?
# - What is shared memory for, if not to be faster?
# - Why does a transpose want a tile of 33 columns?
# - How often must a matrix product read its operands, and what decides it?
#
# **Time:** about 280 minutes (each task says its share). **Points:** 100. **You need:** Python, and what a grid, a
# block and a warp are. Lab 02 comes first. Chapter 05, *CUDA*, gives the background.
#
# **Readings it leans on:** *An Even Easier Introduction to CUDA* (`harris-easier-cuda`), *GPU Puzzles* (`gpu-puzzles`),
# *Getting Started With CUDA for Python Programmers* (`howard-cuda-python`).
#
# **How it works.** Put your code in place of each line that raises `NotImplementedError`, run the cell, then run the
# `check` cell below it. Cells that begin with `#| export` make up the module that is graded. Of these, only the kernels
# and constants are run when memory is counted: a kernel may use arithmetic, `if`, `while`, `for` over `range`, its own
# variables, the constants, other kernels, what `cuda` and `math` offer, and of Python's functions `abs`, `min`, `max`,
# `int`, `float`, `bool` and `len`. It cannot print, import, or call any other. A constant is a name for a number, or
# for what arithmetic, `math`, `int` and `float` make of numbers. Grid and block are the course's: each task says how
# its kernel is launched. Grading runs the same checks with other numbers and a few more cases.
#
# **The compiler** for a GPU is stricter than Python: through loops and branches a variable keeps its type, `None` is no
# number, a tuple does not grow, and one that holds several types is indexed by constants alone. So each check asks
# Numba's compiler too, as for an H100; no GPU is needed for that.
#
# **Numbers** are fp32. They may be 0 or infinite, and are never NaN. Right is what fp32 makes of a formula as it
# stands: 0 · ∞ and ∞ − ∞ are NaN, and a sum with one infinity in it is infinite. The order in which you add is yours.
# **Sizes** are any that a launch of at least one block can have. So most are 1 or more; the others may be 0, and a sum
# of nothing is 0.
#
# **What a check asks,** in this order: is the result right; does every access lie within its array; is nothing read
# before it was written; are no two threads at one element without a barrier between (for lanes of one warp,
# `cuda.syncwarp()` is one); do all threads reach each barrier; and then what the kernel costs, in loads, sectors and
# bank conflicts.

# %%
import numpy as np
from rich import print as show_table

from mlsys_lab.checks import lab
from mlsys_lab.hardware import device
from mlsys_lab.kernels.trace.numba_simulator import record
from mlsys_lab.kernels.trace.report import report

check = lab("cuda")

# %%
#| export
import math

from mlsys_lab.kernels.numba_language import cuda, float32

THREADS = 128  # of a block, in the tasks with one dimension
WINDOW = THREADS + 2
TILE = 32  # side of the square that a block transposes
ROWS = 8  # rows of threads that do it
SIDE = 16  # of the tiles of the matrix product, and of its blocks

# %% [markdown]
# ## Task 1 · A thread for each element
#
# *About 25 minutes.*
#
# `kernel[grid, block](x, y)` starts `grid` blocks of `block` threads. Each runs the same function, and differs in
# nothing but its place: `cuda.threadIdx.x` in its block, `cuda.blockIdx.x` of its block. Its place among all threads is
# `cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x`, or `cuda.grid(1)` for short. A kernel returns nothing: it
# stores to arrays that it was given.
#
# **1a. Map.** `relu`: $y_i = \max(x_i, 0)$, also where $x_i$ is infinite. There are exactly as many threads as
# elements, so no loop is needed. Launched as `relu[n // THREADS, THREADS](x, y)`.
#
# **1b. Guard.** `sgd_step`: $w_i \leftarrow w_i - \eta\, g_i$, in place. Blocks have a fixed size, and arrays do not
# divide by it: launched as `sgd_step[ceil(n / THREADS), THREADS](w, g, rate)`, so that there are threads beyond the
# last element. These must not touch anything. On a GPU nobody stops them: they change what happens to lie behind the
# array.
#
# **Size:** about 2 and 3 lines. **Cost:** a map reads each element once and writes each once, 8 bytes an element here
# (fp32); `sgd_step` 12. Each `x[i]` in the text counts as a read, so keep in a variable what you need twice.


# %% nbgrader={"solution": true, "grade_id": "task-1-map"}
#| export
@cuda.jit
def relu(x, y):
    """y[i] = max(x[i], 0), with exactly one thread for each element. About 2 lines."""
    ### BEGIN SOLUTION
    i = cuda.grid(1)
    y[i] = max(x[i], float32(0))
    ### END SOLUTION


@cuda.jit
def sgd_step(w, g, rate):
    """w[i] -= rate · g[i], with at least one thread for each element. About 3 lines."""
    ### BEGIN SOLUTION
    i = cuda.grid(1)
    if i < w.size:
        w[i] -= rate * g[i]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "relu"}
check("relu")

# %% nbgrader={"grade": true, "grade_id": "sgd_step"}
check("sgd_step")

# %% [markdown]
# **See it.** Your own kernel, request by request. The 32 threads of a warp ask for memory together; what they ask for
# is fetched in **sectors** of 32 bytes, 8 numbers of fp32. Step through with the slider or the arrow keys: which
# threads write at once, how many sectors is that, and what do the last threads of the second block do?

# %%
from mlsys_lab.widgets.accesses import Accesses

w, g = np.ones(200, np.float32), np.ones(200, np.float32)
trace = record(sgd_step, 2, THREADS, w, g, np.float32(0.1))
Accesses.from_trace(trace)

# %% [markdown]
# The same as a table. You can print it for every kernel of this lab: `record` launches a kernel and keeps what it did
# to memory, `report` says what that cost and what was wrong.

# %%
show_table(report(record(sgd_step, 2, THREADS, w, g, np.float32(0.1))).table())

# %% [markdown]
# ## Task 2 · Two dimensions, and more elements than threads
#
# *About 35 minutes.*
#
# A grid and its blocks may have two dimensions. `x` runs fastest: the threads of a warp are neighbours along `x`.
# `cuda.grid(2)` gives the place along x and the place along y, *in this order*, while an element of a matrix is
# `x[row, column]`. In memory, the elements of a *row* are neighbours. Decide which of the two the threads of a warp
# should run along.
#
# **2a. Two dimensions.** `causal_mask`: attention may not look ahead. Of T × T scores (row: query, column: key),
# $\mathrm{masked}_{rc} = s_{rc}$ where $c \le r$, and $-\infty$ (`-math.inf`) elsewhere. A score that is masked need
# not be read: do not.
#
# **2b. Broadcast.** `outer`: the gradient of a linear layer's weight from one token is
# $\mathrm{out}_{rc} = u_r\, v_c$, for `u` of R elements and `v` of C.
#
# Both are launched with blocks of 32 × 4 threads, `kernel[(ceil(columns / 32), ceil(rows / 4)), (32, 4)](...)`.
#
# **2c. Stride over the grid.** `axpy`: $y_i \leftarrow y_i + a\, x_i$, for *any* number of elements, with the threads
# there are: launched as `axpy[blocks, THREADS](a, x, y)`, with two blocks or more. `cuda.gridsize(1)` is the number of
# all threads. Each thread takes every so-many-th element, so that in each turn of the loop the threads of a warp stand
# side by side.
#
# **Size:** about 6, 3 and 2 lines. **Cost:** `causal_mask` reads T(T+1)/2 elements and writes T². `outer` reads at most
# one element of `u` and one of `v` for each that it writes: threads beyond the last row or column touch nothing. `axpy`
# reads 2n and writes n.


# %% nbgrader={"solution": true, "grade_id": "task-2-dimensions"}
#| export
@cuda.jit
def causal_mask(scores, masked):
    """masked[r, c] = scores[r, c] where c <= r, else -inf; both (T, T). About 6 lines."""
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
    """out[r, c] = u[r] · v[c]; u (R,), v (C,), out (R, C). About 3 lines."""
    ### BEGIN SOLUTION
    column, row = cuda.grid(2)
    if row < u.size and column < v.size:
        out[row, column] = u[row] * v[column]
    ### END SOLUTION


@cuda.jit
def axpy(a, x, y):
    """y[i] += a · x[i], for any number of elements with any number of threads. About 2 lines."""
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
# **See it.** Which thread of its block wrote which element of your mask: threads 0 to 31 are the first warp, 32 to 63
# the second. Along a row the numbers rise one by one. That is what coalesced looks like.

# %%
import plotly.graph_objects as go

from mlsys_lab.kernels.trace.events import STORE
from mlsys_lab.widgets import show

scores, masked = np.zeros((12, 12), np.float32), np.empty((12, 12), np.float32)
trace = record(causal_mask, (1, 3), (32, 4), scores, masked, outputs=("masked",))
written = trace.of(buffer="masked", kinds=(STORE,))
who = np.full(masked.size, np.nan)
who[written["offset"] // masked.itemsize] = written["thread"]
figure = go.Figure(go.Heatmap(z=who.reshape(masked.shape), texttemplate="%{z}", colorscale="Blues", showscale=False))
figure.update_layout(xaxis_title="column", yaxis_title="row", yaxis_autorange="reversed", height=460, width=560)
figure.update_xaxes(dtick=1)
figure.update_yaxes(dtick=1)
show(figure, alt="The matrix of the mask; in each element the number of the thread that wrote it")

# %% [markdown]
# ## Task 3 · Predict, then measure
#
# *About 25 minutes.*
#
# Here are two kernels as one writes them first. They are right, and slow. Nothing is to be mended yet: work out on
# paper what they ask of memory, and only then count it.


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
# All arrays are fp32, begin at the start of a sector, and have sides that are multiples of 32. Both kernels have blocks
# of 32 × 4 threads, so that a warp is 32 threads along x. A request of a warp touches as many sectors as its 32
# addresses lie in; a sector that two requests touch counts twice. Threads of a request that want the same bytes share
# them.
#
# **3a.** `predict_transpose(rows, columns)`: the sectors that all warps together read of `x` (rows × columns), and
# those that they write of `y`.
#
# **3b.** `predict_matmul(m, n, k)`: for `a` (m × k), `b` (k × n) and `c` (m × n), the sectors read of `a`, those read
# of `b`, and those written of `c`. Here, too, a warp is one request for each time it comes to a load.
#
# **3c.** `predict_loads(m, n, k, side)`: now let the threads of a block of `side` × `side` make as many elements of
# `c`, and let the block load each number that it needs *once*, to share it. How many elements do all blocks together
# load from `a`, and how many from `b`? (`side` is any number that divides m and n, also where no GPU has such a block.
# With `side` 1 it is the naive kernel.)
#
# Each returns a tuple, in the order of the sentence. All are whole numbers, and of any size: divide by `//`, and count
# by formula, in Python's own `int`. The checks ask for matrices that fit into no memory, whose counts pass 2⁶³.
#
# **Size:** about 2, 2 and 1 lines. **Cost:** none; but what you predict here is what Tasks 6 and 7 are for.


# %% nbgrader={"solution": true, "grade_id": "task-3-predict"}
#| export
def predict_transpose(rows, columns):
    """Sectors read of x and written of y by naive_transpose. About 2 lines."""
    ### BEGIN SOLUTION
    warps = rows * columns // 32
    return 4 * warps, 32 * warps
    ### END SOLUTION


def predict_matmul(m, n, k):
    """Sectors read of a, read of b and written of c by naive_matmul. About 2 lines."""
    ### BEGIN SOLUTION
    warps = m * n // 32
    return 32 * k * warps, k * warps, 32 * warps
    ### END SOLUTION


def predict_loads(m, n, k, side):
    """Elements loaded from a and from b where side × side threads share what they load. About 1 line."""
    ### BEGIN SOLUTION
    return m * n * k // side, m * n * k // side
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "predict_sectors"}
check("predict_sectors")

# %% nbgrader={"grade": true, "grade_id": "predict_loads"}
check("predict_loads")

# %% [markdown]
# **Measure.** The microscope counts what you predicted. For the matrix product, look at the line that reads `a`: each
# request touches 32 sectors for 128 bytes.

# %%
x, y = np.ones((64, 96), np.float32), np.empty((96, 64), np.float32)
transposed = report(record(naive_transpose, (3, 16), (32, 4), x, y, outputs=("y",)))
a, b, c = np.ones((32, 64), np.float32), np.ones((64, 32), np.float32), np.empty((32, 32), np.float32)
multiplied = report(record(naive_matmul, (1, 8), (32, 4), a, b, c, outputs=("c",)))


def sectors(found):
    """Sectors by array, in the order of the kernel's parameters."""
    return {one.buffer: one.both.moved_bytes // 32 for one in found.traffic}


print("transpose: predicted", predict_transpose(64, 96), "measured", sectors(transposed))
print("matmul:    predicted", predict_matmul(32, 32, 64), "measured", sectors(multiplied))
show_table(multiplied.table())

# %% [markdown]
# ## Task 4 · Threads that share
#
# *About 40 minutes.*
#
# `cuda.shared.array(shape, float32)` gives all threads of a block *one* array, on the chip, which lives as long as the
# block. (The shape must be constant: numbers, or names of constants such as `WINDOW`. Numba takes no arithmetic there:
# what you would write as `2 * THREADS` gets a name beside `WINDOW`.) One thread loads a number from global memory, and
# others use it. But the threads do not run in step: a thread that wants what another one stores has to wait until it is
# there. `cuda.syncthreads()` is the barrier: no thread passes it before all threads of the block have come. So *all*
# have to come, and to the same one: never put it into a branch that some threads do not take, nor one into each of two
# branches.
#
# (A GPU of today does not wait for a thread that has returned. The checks ask that all threads of the block come all
# the same: one that returns early is not there to load for the others either.)
#
# **4a. Neighbours.** `smooth`: the moving average over three, $y_i = (x_{i-1} + x_i + x_{i+1}) / 3$, where $x_{-1}$ and
# $x_n$ count as 0. Launched as `smooth[ceil(n / THREADS), THREADS](x, y)`. Reading all three from global memory would
# read everything three times. A block's THREADS elements need THREADS + 2 of `x`: load these once into shared memory,
# wait, then add. (Numba counts an index below 0 from the end, as Python does: `x[-1]` is the last element, and no fault
# that anybody would tell you of.)
#
# **4b. A dot product.** `dot`: $\mathrm{out}_0 = \sum_i a_i b_i$ of at most THREADS elements, by *one* block:
# `dot[1, THREADS](a, b, out)`. Each thread has its product at hand, and none of the others'. Let every thread store its
# product into shared memory, and after the barrier let thread 0 add them up and store the sum. (Task 5 does better than
# to let all others wait for one. A tree is as right here; atomic additions to one number are not, for they wait for
# each other.)
#
# **Size:** about 11 and 10 lines. **Cost:** a block of `smooth` reads its elements and their neighbours once, as far as
# there are any: at most THREADS + 2. `dot` reads each element once and stores once.


# %% nbgrader={"solution": true, "grade_id": "task-4-share"}
#| export
@cuda.jit
def smooth(x, y):
    """y[i] = (x[i-1] + x[i] + x[i+1]) / 3, each block's elements read once. About 11 lines."""
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
def dot(a, b, out):
    """out[0] = Σ a[i] · b[i] of at most THREADS elements, by one block. About 10 lines."""
    ### BEGIN SOLUTION
    products = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    if t < a.size:
        products[t] = a[t] * b[t]
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for i in range(a.size):
            total += products[i]
        out[0] = total
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "smooth"}
check("smooth")

# %% nbgrader={"grade": true, "grade_id": "dot"}
check("dot")

# %% [markdown]
# **See it.** Shared memory as your block fills and uses it. At each step, the figure says whether a request takes one
# pass through the banks or more.

# %%
x, y = np.arange(200, dtype=np.float32), np.empty(200, np.float32)
trace = record(smooth, 2, THREADS, x, y, outputs=("y",))
Accesses.from_trace(trace)

# %% [markdown]
# ## Task 5 · A sum by a tree
#
# *About 35 minutes.*
#
# With one thread adding, 128 numbers take 128 steps. In a **tree**, half of the threads add one number each to their
# own, then a quarter do, and so on: 7 steps. Between two steps lies a barrier, for each reads what another wrote.
#
# `block_sum`: launched as `block_sum[blocks, THREADS](x, sums)` for `x` of any size. Together, the elements of `sums`
# (one a block) add up to the sum of `x`:
#
# 1. Each thread adds up its share of `x` in a variable: a stride over the grid, as in `axpy`.
# 2. It stores that into shared memory. The block then adds by a tree, and its thread 0 stores `sums[blockIdx.x]`.
#
# *Which* threads add decides what it costs. If those do whose number is a multiple of 2, then of 4, and so on, nearly
# every warp has to run in nearly every step, most of its lanes idle. **Sequential addressing** lets the first 64
# threads add the numbers of the last 64, then the first 32 those of the next 32: whole warps are done early, and the
# lanes of a warp are at neighbouring words. With n threads left at work, thread t < n adds `part[t + n]` to `part[t]`.
#
# **Size:** about 15 lines. **Cost:** each element of `x` is read once. In the tree, warps ask shared memory 29 times a
# block: 4 times to store, $3 \cdot (2 + 1 + 1 + 1 + 1 + 1 + 1)$ times to add, once to read the sum. Interleaved it
# would be 74. The check asks for at most 40, and does not mind fewer, such as with shuffles for the last steps.


# %% nbgrader={"solution": true, "grade_id": "task-5-sum"}
#| export
@cuda.jit
def block_sum(x, sums):
    """sums[block] = the sum of the block's share of x, by a tree in shared memory. About 15 lines."""
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
# **See it.** Threads that are at work in shared memory, barrier by barrier: your tree beside the single thread of
# `dot`. The work is the same, one addition for each number; the time is the number of steps that wait for one another.

# %%
x, sums = np.ones(THREADS, np.float32), np.empty(1, np.float32)
tree = record(block_sum, 1, THREADS, x, sums, outputs=("sums",))
line = record(dot, 1, THREADS, x, x.copy(), sums, outputs=("out",))
figure = go.Figure()
for name, trace in (("block_sum", tree), ("dot", line)):
    asked = trace.of(space="shared")
    phases = range(int(asked["phase"].max()) + 1)
    busy = [len(np.unique(asked["thread"][asked["phase"] == phase])) for phase in phases]
    figure.add_bar(x=list(phases), y=busy, name=name, text=busy)
    lane = np.bincount(asked["thread"]).max()
    print(f"{name}: the busiest thread asks shared memory {lane} times, one after the other")
figure.update_layout(
    xaxis_title="barriers passed", yaxis_title="threads at work", yaxis_type="log", xaxis_dtick=1, barmode="group"
)
figure.update_yaxes(dtick=1)
show(figure, alt="Threads at work after each barrier: halving in block_sum, all and then one in dot")

# %% [markdown]
# ## Task 6 · Transpose
#
# *About 35 minutes.*
#
# You predicted that the naive transpose writes 32 sectors in each request, for data that would fill 4. Whichever way
# round its threads stand, either the reads or the writes go down a column. The way out is to turn the matrix *inside*
# the chip: a block reads a tile of 32 × 32 by rows, keeps it in shared memory, and writes rows of the result, which are
# columns of the tile.
#
# `transpose`: `y[c, r] = x[r, c]`, launched as
# `transpose[(ceil(columns / TILE), ceil(rows / TILE)), (TILE, ROWS)](x, y)`, rows and columns being those of `x`. The
# block has 32 × 8 threads, so each moves 4 elements: rows `ty`, `ty + ROWS`, … of the tile. The block at
# (`blockIdx.x`, `blockIdx.y`) reads the tile whose first column is `TILE * blockIdx.x` and whose first row is
# `TILE * blockIdx.y`, and writes it to the place where it belongs in `y`. Sides need not be multiples of TILE.
#
# **Banks.** Shared memory is spread over 32 banks, word after word: word $i$ lies in bank $i \bmod 32$. A request is
# done in one pass if its lanes want 32 different banks (or the same word); two different words of one bank take two
# passes. In which bank is `tile[r, c]` of a tile with 32 columns? What does that mean for a warp that reads a column,
# and what is the least that you can change about the tile's shape? The second check asks for a transpose without
# conflicts, whichever way you come to it.
#
# **Size:** about 11 lines. **Cost:** each element is read once and written once, both in whole sectors.


# %% nbgrader={"solution": true, "grade_id": "task-6-transpose"}
#| export
@cuda.jit
def transpose(x, y):
    """y[c, r] = x[r, c] through a tile in shared memory; x (rows, columns), y (columns, rows). About 11 lines."""
    ### BEGIN SOLUTION
    tile = cuda.shared.array((TILE, 33), float32)  # a column more than is used: its columns lie in 32 banks
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
# **See it.** One tile through your kernel: the warps that write `y`, and the columns of the tile that they read. Then
# the sectors of the naive kernel beside yours and the least possible.

# %%
x, y = np.arange(1024, dtype=np.float32).reshape(32, 32), np.empty((32, 32), np.float32)
trace = record(transpose, 1, (TILE, ROWS), x, y, outputs=("y",))
Accesses.from_trace(trace)

# %%
x, y = np.ones((64, 96), np.float32), np.empty((96, 64), np.float32)
tiled = report(record(transpose, (3, 2), (TILE, ROWS), x, y, outputs=("y",)))
least = {one.buffer: one.both.least_bytes // 32 for one in tiled.traffic}
figure = go.Figure()
for name, moved in (("naive", sectors(transposed)), ("yours", sectors(tiled)), ("least", least)):
    figure.add_bar(name=name, x=["x, read", "y, written"], y=list(moved.values()), text=list(moved.values()))
figure.update_layout(yaxis_title="sectors of 32 bytes", barmode="group")
show(figure, alt="Sectors read and written by the naive transpose, by yours, and the least possible")

# %% [markdown]
# ## Task 7 · Matrix product by tiles
#
# *About 45 minutes.*
#
# The naive product loads two numbers for every multiply-add. But the elements of a row of C all want the same row of A.
# Let a block make a tile of SIDE × SIDE elements of C, and walk along k in steps of SIDE: in each step it loads a tile
# of A and a tile of B into shared memory, one number of each a thread, and every thread then does SIDE multiply-adds
# with what is there. Each number that is loaded serves SIDE threads: as you predicted, global memory is read SIDE times
# less often.
#
# `matmul`: $c = a\,b$, launched as `matmul[(ceil(n / SIDE), ceil(m / SIDE)), (SIDE, SIDE)](a, b, c)`, for `a` (m × k),
# `b` (k × n), `c` (m × n) of any sizes. With k = 0 there is nothing to add up, and `c` is 0.
#
# - Outside of `a` and `b`, store zeros into *both* tiles: they add nothing. (One is not enough: an element may be
#   infinite, and zero times that is NaN.) *All* threads help to load and reach every barrier, also those without an
#   element of `c`: a thread that returns early loads nothing for the others.
# - Two barriers a step. What can go wrong without the first, and what without the second? (With two pairs of tiles in
#   turn, one a step is enough.)
# - The second check looks at memory: whole sectors of global memory, and no bank conflicts. Which index of each
#   tile should run with `threadIdx.x`, when it is filled and when it is read?
#
# **Size:** about 15 lines. **Cost:** 2·m·n·k FLOPs; at most m·k·⌈n/SIDE⌉ + k·n·⌈m/SIDE⌉ loads.


# %% nbgrader={"solution": true, "grade_id": "task-7-matmul"}
#| export
@cuda.jit
def matmul(a, b, c):
    """c = a · b by tiles of SIDE × SIDE in shared memory; a (m, k), b (k, n), c (m, n). About 15 lines."""
    ### BEGIN SOLUTION
    a_tile = cuda.shared.array((SIDE, SIDE), float32)
    b_tile = cuda.shared.array((SIDE, SIDE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    total = float32(0)
    for start in range(0, a.shape[1], SIDE):
        a_tile[ty, tx] = a[row, start + tx] if row < a.shape[0] and start + tx < a.shape[1] else float32(0)
        b_tile[ty, tx] = b[start + ty, column] if start + ty < b.shape[0] and column < b.shape[1] else float32(0)
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
# **See it.** Your prediction, held against your kernel; then both kernels on the roofline of an H100. The bytes are
# those that the warps' requests move, as counted, with no cache to help. Left of the ridge, memory sets the speed.

# %%
a, b, c = np.ones((32, 64), np.float32), np.ones((64, 32), np.float32), np.empty((32, 32), np.float32)
by_tiles = report(record(matmul, (2, 2), (SIDE, SIDE), a, b, c, outputs=("c",)))
for name, found, side in (("naive", multiplied, 1), ("by tiles", by_tiles, SIDE)):
    loads = [one.read.asked_bytes // 4 for one in found.traffic[:2]]
    print(f"{name}: predicted {predict_loads(32, 32, 64, side)} loads of a and b, measured {tuple(loads)}")

flops = 2 * 32 * 32 * 64
h100 = device("H100")
intensity = {
    name: flops / sum(one.both.moved_bytes for one in found.traffic)
    for name, found in (("naive", multiplied), ("by tiles", by_tiles))
}
ridge = h100.peak("fp32") / h100.memory_bandwidth_bytes_per_s
axis = sorted([*(2.0**power for power in range(-5, 9)), ridge])
roof = go.Scatter(x=axis, y=[h100.attainable("fp32", x) / 1e12 for x in axis], mode="lines", name="H100, fp32")
points = [
    go.Scatter(x=[x], y=[h100.attainable("fp32", x) / 1e12], name=name, mode="markers", marker_size=13)
    for name, x in intensity.items()
]
figure = go.Figure([roof, *points])
figure.update_layout(xaxis_title="FLOP per byte", yaxis_title="TFLOP/s at most", xaxis_type="log", yaxis_type="log")
figure.update_xaxes(dtick=1, tickformat=",")
figure.update_yaxes(dtick=1, tickformat=",")
show(figure, alt="The naive and the tiled matrix product on the roofline of an H100, both left of its ridge")
for name, x in intensity.items():
    print(f"{name}: {x:.2f} FLOP/B, at most {h100.attainable('fp32', x) / h100.peak('fp32'):.1%} of the fp32 peak")

# %% [markdown]
# ## Task 8 · The same in CUDA C++
#
# *About 40 minutes.* Needs g++, no GPU; there are extra points for speed where there is one.
#
# What you wrote in Python is CUDA all but for the letters: `cuda.threadIdx.x` is `threadIdx.x`, `cuda.syncthreads()` is
# `__syncthreads()`, `cuda.shared.array((TILE, 33), float32)` is `__shared__ float tile[32][33]`. What C++ does not have
# is shapes: an array is an address, so that `x[r, c]` becomes `x[(size_t)r * columns + c]`. (`size_t` has 64 bits: an
# `int` ends at 2³¹ elements.)
#
# Write both kernels as text; the course compiles it and launches it. Any sizes must come out right, also those of
# matrices with more elements than an `unsigned` counts; and an element may be infinite, or k be 0, as in Task 7. Each
# array begins at a multiple of 256 bytes, and its rows follow one another. Of the toolkit's headers only `cuda_fp16.h`
# and `cuda_bf16.h` can be included.
#
# **Checked without a GPU.** The text must compile for an H100. An *emulator* then runs it on the CPU: g++ makes a
# program of it in which the threads of a block take turns, each up to its next barrier, first to last and then last to
# first. The emulator watches each load and store. It stops at the first one that is out of bounds, that races with
# another thread's, or that reads shared memory before any thread of the block has written it, and names the line, the
# thread and the element. A `float4` has to begin at a multiple of its size, as on a GPU. Some blocks are left out now
# and then, and their tiles must stay as they were: each block does its own. Variables that all blocks would share
# (`__device__`, `static`) are refused, and so is a barrier in each of two branches: on a GPU, blocks run at once, and
# threads meet at one barrier. It is a model of what the language promises, not of a GPU: it knows no caches, no time,
# and no assembly (`asm`). Beside what C++ has, it knows `threadIdx`, `blockIdx`, `blockDim`, `gridDim`, `dim3`,
# `__shared__`, `__constant__`, `__syncthreads`, `__syncwarp`, shuffles and votes (`__shfl_down_sync`, `__ballot_sync`),
# `__threadfence`, atomics (`atomicAdd`, `atomicCAS`), `__ldg`, `__fmaf_rn`, `min`, `max`, `float2` and `float4`,
# functions that are `__device__`, and what only advises a compiler: `__restrict__`, `__launch_bounds__`, `#pragma
# unroll`.
#
# **8a.** `transpose_cpp` gives the text of
# `extern "C" __global__ void transpose(const float* x, float* y, int rows, int columns)`, launched as in Task 6: blocks
# of (32, 8) threads, one for each tile of 32 × 32.
#
# **8b.** `matmul_cpp` gives the text of
# `extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k)`, launched with
# blocks of (16, 16) threads, one for each square of CPP_TILE × CPP_TILE elements of `c`: its `blockIdx.x` counts
# squares along a row. With CPP_TILE 16 it is your kernel of Task 7. With more, each thread makes several elements: two
# numbers from shared memory for each multiply-add become 4 + 4 numbers for 16, if a thread makes 4 × 4 of them and
# keeps the numbers and the sums in variables (`float sums[4][4]`, in registers as long as every index is known when it
# is compiled). Give a thread elements that lie 16 rows and 16 columns apart, so that neighbours stay neighbours. Change
# CPP_TILE as you like.
#
# **What the extra points are for.** Where the course is graded on a GPU, each kernel is timed beside torch's own on the
# same GPU in the same run: 2 points for a transpose at 0.7 of its speed, 4 for a matrix product at 0.4 of cuBLAS in
# fp32; fewer from 0.4 and 0.15 on. The time in which inputs are drawn and results looked at counts against you, so aim
# higher. The checks below have to pass first. Without a GPU these points are *not measured here*: nobody loses a mark,
# and the 100 points of the lab are complete without them.
#
# **Size:** about 14 and 28 lines. **Cost:** the transpose moves 8 bytes an element; the product does 2·m·n·k FLOPs.


# %% nbgrader={"solution": true, "grade_id": "task-8-cuda-cpp"}
#| export
CPP_TILE = 64  # side of the square of c that a block of 16 × 16 threads makes


def transpose_cpp():
    """The text of: transpose(const float* x, float* y, int rows, int columns). About 14 lines."""
    ### BEGIN SOLUTION
    return r"""
extern "C" __global__ void transpose(const float* x, float* y, int rows, int columns) {
    __shared__ float tile[32][33];
    int tx = threadIdx.x, ty = threadIdx.y, top = 32 * blockIdx.y, left = 32 * blockIdx.x;
    for (int k = 0; k < 32; k += 8) {
        int row = top + ty + k, column = left + tx;
        if (row < rows && column < columns) tile[ty + k][tx] = x[(size_t)row * columns + column];
    }
    __syncthreads();
    for (int k = 0; k < 32; k += 8) {
        int row = left + ty + k, column = top + tx;  // of y
        if (row < columns && column < rows) y[(size_t)row * rows + column] = tile[tx][ty + k];
    }
}
"""
    ### END SOLUTION


def matmul_cpp():
    """The text of: matmul(const float* a, const float* b, float* c, int m, int n, int k). About 28 lines."""
    ### BEGIN SOLUTION
    return r"""
const int TILE = 64, STEP = 16, EACH = TILE / 16;  // a thread makes EACH × EACH elements, 16 apart

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float a_tile[TILE][STEP], b_tile[STEP][TILE];
    int tx = threadIdx.x, ty = threadIdx.y, top = TILE * blockIdx.y, left = TILE * blockIdx.x;
    float sums[EACH][EACH] = {};
    for (int start = 0; start < k; start += STEP) {
        for (int i = 0; i < EACH; i++) {
            int row = top + ty + 16 * i, column = left + tx + 16 * i;
            a_tile[ty + 16 * i][tx] = row < m && start + tx < k ? a[(size_t)row * k + start + tx] : 0.0f;
            b_tile[ty][tx + 16 * i] = start + ty < k && column < n ? b[(size_t)(start + ty) * n + column] : 0.0f;
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
            int row = top + ty + 16 * i, column = left + tx + 16 * j;
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
# **See it compiled,** for an H100, with no GPU needed. Messages count lines from the one in which the text's quotes
# open. Registers and shared memory decide how many blocks a multiprocessor holds at once; what *spills* lies in memory
# for want of registers.

# %%
from mlsys_lab.errors import CourseError
from mlsys_lab.kernels.cuda_cpp import compile_cuda
from mlsys_lab.kernels.trace.occupancy import occupancy

try:
    for name, text in (("transpose", transpose_cpp()), ("matmul", matmul_cpp())):
        used = compile_cuda(text, (name,), name=f"{name}.cu", arch="sm_90").resources[name]
        held = occupancy(device("H100"), 256, registers=used.registers, shared_bytes=used.shared_bytes)
        print(f"{name}: {used.registers} registers and {used.spill_bytes} spilled bytes a thread, ", end="")
        print(f"{used.shared_bytes:,} shared bytes a block: {held.blocks} blocks, {held.occupancy:.0%} of all warps")
except CourseError as error:  # an error of yours at its line, or that there is no compiler here
    print(error)

# %% [markdown]
# **See it run,** where there is a GPU: beside torch, at the sizes that are graded.

# %%
for name in ("transpose_cpp", "matmul_cpp"):
    check.speed(name)

# %% [markdown]
# ## Answer for yourself
#
# - A tile of 16 × 16 gives 4 FLOP for each byte loaded. Which side would bring you to the ridge, and does a block have
#   that many threads? (Chapter 05 goes on: each thread makes several elements.)
# - Caches exist. Which of your predictions of Task 3 would they change, and which not?
# - `smooth` reads two elements more than a block's own. For a window of 2h + 1, from which h on is shared memory no
#   better than the naive kernel? Why does the answer depend on THREADS?
# - In `block_sum`, a thread t ≥ 64 does nothing after it has stored but come to barriers. What could go wrong if it
#   skipped them and then stored to `part` for a second sum?
#
# When all checks pass, save the notebook and run `mlsys-lab check cuda` in a terminal. On a machine with a GPU,
# `matmul[grid, block](a, b, c)` compiles and runs the same kernels on arrays made with `cuda.to_device`.
