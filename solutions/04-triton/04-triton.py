# %% [markdown]
# # Lab 04 · Triton kernels: from a mask to attention over pages
#
# A kernel is right when its numbers are right, and good when it moves no byte twice that it could have kept. In this
# lab you write the kernels that a language model spends its time in, and every load and store that they make is written
# down and counted. No GPU is needed: Triton's interpreter runs your kernels as they stand, one program after the other.
# For a GPU the very same text is compiled; there `softmax_kernel[(rows,)](x, y, columns, BLOCK=1024)` launches it on
# tensors of that GPU.
#
# **You will build**
#
# 1. an elementwise kernel whose mask ends where the array ends;
# 2. a softmax of rows that reads each number once;
# 3. RMS norm, forward, and
# 4. backward, with the weight's gradient in partial sums;
# 5. an order of tiles that finds its data in the cache;
# 6. a tiled matrix product;
# 7. flash attention, with a softmax that never sees a whole row;
# 8. attention of one new token over a paged cache, each key read once for all heads that share it.
#
# **At the end you can answer**
#
# - What does a program have that a thread has not, and what takes the place of `if i < n`?
# - Why does flash attention move fewer bytes, though it does as many FLOPs, and how many fewer?
# - What does the order in which tiles are worked on change, if not the result?
# - Why do grouped query heads make decoding faster?
#
# **Time:** about 265 minutes (each task says its share). **Points:** 100. **You need:** Linux (Triton is published for
# no other system; Colab will do) and `pip install "mlsys-lab[kernels]"`, NumPy's broadcasting, what attention computes.
# Lab 02, which counts FLOPs, bytes and sectors, comes first; Lab 03 is no condition. Chapter 06, *Triton*, gives the
# background.
#
# **Readings it leans on:** *Introducing Triton: Open-source GPU programming for neural networks* (`openai-triton`),
# *Making Deep Learning Go Brrrr From First Principles* (`he-brrrr`), *Matrix Multiplication on Blackwell: Part 1 -
# Introduction* (`modular-blackwell-matmul`).
#
# **How it works.** Put your code in place of each line that raises `NotImplementedError`, run the cell, then run the
# `check` cell below it. Cells that begin with `#| export` make up the module that is graded. You write kernels and
# nothing around them: how many programs are launched, and with which blocks, is said in each task and done by the
# check. Grading runs the same checks with other numbers and a few more cases.
#
# **What a kernel may hold.** Arithmetic, branches, loops (`for` over a range, or `while`), calls of other kernels, and
# what `tl` offers for computing, loading and storing. No imports, no Python lists, no printing: what is counted has to
# be all that happens. A constant beside the kernels is written as the compiler asks: `NAME = tl.constexpr(number)`.
# The compiler for a GPU is stricter than the interpreter: an `if` asks about one number, never about a block; a
# variable keeps its type and shape through a loop; no loop is left by `break`. So each check asks the compiler too, as
# for an H100, which takes no GPU either. In one point the interpreter is the stricter one: conditions on blocks are
# joined by `&`, `|` and `~`; `and`, `or` and `not` are for single numbers. Parameters keep their names and order; one
# that you have no use for may stay unused.
#
# **What arrays hold.** What a launch reads is float32 or float16 (half precision), all of one kind, but for what a task
# calls float32 or int32. What it writes is of the same kind, or float32: so a number that is rounded on its way shows.
# All numbers are finite, unless a task says otherwise, and may lie anywhere: no finite number is far enough below all
# of them to stand for $-\infty$, and a row may be all zeros. Where a task says to compute in float32, float64 is right,
# too. Sides of blocks are powers of two.
#
# **What is counted.** A lane is one element of a block. Lanes whose mask is false touch nothing and cost nothing.
# A load or a store beyond the end of its array is an error in every check, whatever becomes of the number.
# *Least* means: each element that is needed is read once, and each element of the result is written once. A check about
# traffic allows 1.1 times what the task says: of each array for all programs together, and for any one program as many
# times what the program with the largest share has to move. So one program that does the work of all fails.

# %%
import torch
from rich import print as show_table

from mlsys_lab.checks import lab
from mlsys_lab.kernels.trace.report import report
from mlsys_lab.kernels.trace.triton_interpreter import record

check = lab("triton")

# %%
#| export
from mlsys_lab.kernels.triton_language import tl, triton

# %% [markdown]
# ## Task 1 · A mask for the rest
#
# *About 15 minutes.*
#
# The MLP of a Llama model ends its first half with $y = \mathrm{silu}(g) \odot u$, where
# $\mathrm{silu}(g) = g\,\sigma(g) = g / (1 + e^{-g})$. Done by two operations of a library, the product in between goes
# to memory and back. Done by one kernel, it does not: that is all that *fusion* means.
#
# A Triton **program** works on a block of numbers at once. `tl.program_id(0)` says which program this is,
# `tl.arange(0, BLOCK)` is the block $0, 1, \dots,$ BLOCK − 1, and pointer plus block is a block of addresses. Arrays
# seldom end where a block does: where `mask` is false nothing is loaded and nothing is stored. What such a lane holds
# after a load is not defined (here it is NaN), unless `other=` of `tl.load` says it.
#
# **Launch:** ⌈`size` / `BLOCK`⌉ programs; program `p` has the elements from `p * BLOCK` on. **Write**
# `silu_mul_kernel`. Compute in float32, whatever the arrays hold (`.to(tl.float32)`); `tl.store` turns the result into
# the array's own kind of number.
#
# **Size:** about 6 lines. **Cost:** three bytes moved for each one that a result has, and hardly any arithmetic.


# %% nbgrader={"solution": true, "grade_id": "task-1-elementwise"}
#| export
@triton.jit
def silu_mul_kernel(gate_ptr, up_ptr, y_ptr, size, BLOCK: tl.constexpr):
    """y = silu(gate) · up of `size` elements, BLOCK of them in each program. About 6 lines."""
    ### BEGIN SOLUTION
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    gate = tl.load(gate_ptr + at, mask=inside).to(tl.float32)
    up = tl.load(up_ptr + at, mask=inside).to(tl.float32)
    tl.store(y_ptr + at, gate * tl.sigmoid(gate) * up, mask=inside)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "silu_mul"}
check("silu_mul")

# %% [markdown]
# **See it.** Your kernel's requests, one after the other, on arrays of 70 numbers: 32 lanes at a time, as a warp asks
# for them. Go through them with the arrow keys. What does the last program leave out? Then take the mask out of one
# load, run the cell of the kernel and this one again, and look at the end of the array.

# %%
from mlsys_lab.widgets.accesses import Accesses

gate, up = torch.randn(70), torch.randn(70)
trace = record(silu_mul_kernel, 3, gate, up, torch.empty(70), 70, BLOCK=32, outputs=["y_ptr"])
Accesses.from_trace(trace)

# %% [markdown]
# ## Task 2 · Softmax of rows
#
# *About 25 minutes.*
#
# $$y_{j} = \frac{e^{x_j - m}}{\sum_i e^{x_i - m}}, \qquad m = \max_i x_i.$$
#
# The maximum is subtracted because $e^{89}$ has no place in float32; the quotient stays the same. Read off the page,
# this is three passes over a row: its maximum, its sum, its quotients. A program that holds the whole row in registers
# reads memory once.
#
# **Launch:** one program for each row; `BLOCK` is the smallest power of two that a row fits into, so a mask cuts off
# the rest. Rows follow one another without gaps: row `r` begins `r * columns` elements after the first. **Write**
# `softmax_kernel`, again computing in float32. What has to stand in the lanes beyond the row's end, so that it changes
# neither the maximum nor the sum? (`-float("inf")` is a number that a kernel may use.) A row may hold $-\infty$ itself,
# as rows of masked scores do, but never that alone; its softmax there is 0.
#
# **Size:** about 6 lines. **Cost:** each element read once and written once. Points for traffic ask for just that.


# %% nbgrader={"solution": true, "grade_id": "task-2-softmax"}
#| export
@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    """Softmax of one row a program, of `columns` elements, at most BLOCK. About 6 lines."""
    ### BEGIN SOLUTION
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * columns
    x = tl.load(x_ptr + row + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row + at, e / tl.sum(e, axis=0), mask=at < columns)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "softmax"}
check("softmax")

# %% nbgrader={"grade": true, "grade_id": "softmax_traffic"}
check("softmax_traffic")

# %% [markdown]
# **See it.** All that the microscope says about your kernel, on 7 rows of 37. *Sectors* are the 32-byte pieces in which
# memory answers. Rows of 37 floats do not begin at a sector's start: what does that cost, and would rows of 40?

# %%
x = torch.randn(7, 37)
y = torch.empty_like(x)
show_table(report(record(softmax_kernel, 7, x, y, 37, BLOCK=64, outputs=["y_ptr"])).table())
print("largest difference from torch:", (y - torch.softmax(x, dim=1)).abs().max().item())

# %% [markdown]
# ## Task 3 · RMS norm
#
# *About 20 minutes.*
#
# $$r = \frac{1}{\sqrt{\frac{1}{D}\sum_j x_j^2 + \varepsilon}}, \qquad y_j = x_j\, r\, w_j.$$
#
# The weight $w$ has D numbers for all rows. The backward pass will want $r$ again: keep it, one float32 number for each
# row.
#
# **Launch:** one program for each row, `BLOCK` as before, D is `columns`. **Write** `rms_norm_kernel`, here and
# in Task 4 computing in float32, too. Divide by D, not by the length of the block.
#
# **Size:** about 8 lines. **Cost:** x once, y once, r once, and w once in each program. (A cache answers for w: all
# programs want the same.)


# %% nbgrader={"solution": true, "grade_id": "task-3-rms-norm"}
#| export
@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, r_ptr, columns, eps, BLOCK: tl.constexpr):
    """RMS norm of one row a program, and its r. About 8 lines."""
    ### BEGIN SOLUTION
    at = tl.arange(0, BLOCK)
    inside = at < columns
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + at, mask=inside).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / columns + eps)
    tl.store(r_ptr + row, r)
    tl.store(y_ptr + row * columns + at, x * r * w, mask=inside)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "rms_norm"}
check("rms_norm")

# %% nbgrader={"grade": true, "grade_id": "rms_norm_traffic"}
check("rms_norm_traffic")

# %% [markdown]
# ## Task 4 · RMS norm, the backward pass
#
# *About 40 minutes.*
#
# Given $dy$, the gradient of the loss with respect to y, and with $\hat x_j = x_j r$ and $g_j = dy_j\, w_j$:
#
# $$dx_j = r\,\Bigl(g_j - \hat x_j\, \frac{1}{D} \sum_i g_i \hat x_i\Bigr), \qquad dw_j = \sum_{\text{rows}} dy_j\, \hat
# x_j.$$
#
# Each row has its own dx. But dw sums over rows, and programs cannot wait for one another. So few programs stay for
# many rows: each adds up its **share** of dw in registers and writes it once, and a second kernel adds the shares. The
# order of additions is then the same at every run, which atomics would not give.
#
# **4a.** `rms_norm_backward_kernel`. **Launch:** P programs (`tl.num_programs(0)`), no more than rows; program $p$ has
# the rows $p, p + P, p + 2P, \dots$, one at a time: its blocks are one row long. It stores dx of these, and its share
# of dw as row $p$ of `share_ptr`, (P, `columns`), float32. So is r.
#
# **4b.** `sum_shares_kernel`. **Launch:** ⌈`columns` / `BLOCK`⌉ programs, each with BLOCK columns of all P rows, a row
# at a time.
#
# **Size:** about 15 and 6 lines. **Cost:** x and dy once, dx once; w once in each program; the shares are written once
# and read once.


# %% nbgrader={"solution": true, "grade_id": "task-4-rms-norm-backward"}
#| export
@triton.jit
def rms_norm_backward_kernel(dy_ptr, x_ptr, w_ptr, r_ptr, dx_ptr, share_ptr, rows, columns, BLOCK: tl.constexpr):
    """dx of every P-th row, and this program's share of dw. About 15 lines."""
    ### BEGIN SOLUTION
    program = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    share = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        r = tl.load(r_ptr + row)
        x_hat = tl.load(x_ptr + row * columns + at, mask=inside, other=0.0).to(tl.float32) * r
        dy = tl.load(dy_ptr + row * columns + at, mask=inside, other=0.0).to(tl.float32)
        g = dy * w
        dx = r * (g - x_hat * (tl.sum(g * x_hat, axis=0) / columns))
        tl.store(dx_ptr + row * columns + at, dx, mask=inside)
        share += dy * x_hat
    tl.store(share_ptr + program * columns + at, share, mask=inside)
    ### END SOLUTION


@triton.jit
def sum_shares_kernel(share_ptr, dw_ptr, programs, columns, BLOCK: tl.constexpr):
    """dw of BLOCK columns: the sum of all shares. About 6 lines."""
    ### BEGIN SOLUTION
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dw = tl.zeros((BLOCK,), tl.float32)
    for p in range(0, programs):
        dw += tl.load(share_ptr + p * columns + at, mask=at < columns, other=0.0)
    tl.store(dw_ptr + at, dw, mask=at < columns)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "rms_norm_backward"}
check("rms_norm_backward")

# %% nbgrader={"grade": true, "grade_id": "rms_norm_backward_traffic"}
check("rms_norm_backward_traffic")

# %% [markdown]
# **See it.** The price of programs: bytes that your two kernels move for 16 rows of 24, by the number of programs. A
# GPU wants as many programs as it has multiprocessors, and no more. Say before you run it what the curve looks like.

# %%
import plotly
import plotly.graph_objects as go

from mlsys_lab.kernels.trace.traffic import total
from mlsys_lab.widgets import show

rows, columns = 16, 24
x, dy, w = torch.randn(rows, columns), torch.randn(rows, columns), torch.randn(columns)
r = (x.square().mean(1) + 1e-6).rsqrt()
counts = [1, 2, 4, 8, 16]
moved = []
for programs in counts:
    share, dx, dw = torch.empty(programs, columns), torch.empty_like(x), torch.empty(columns)
    arrays = (dy, x, w, r, dx, share)
    first = record(
        rms_norm_backward_kernel, programs, *arrays, rows, columns, BLOCK=32, outputs=["dx_ptr", "share_ptr"]
    )
    second = record(sum_shares_kernel, 2, share, dw, programs, columns, BLOCK=16, outputs=["dw_ptr"])
    moved.append((total(first) + total(second)).asked_bytes)
figure = go.Figure(go.Scatter(x=counts, y=moved, mode="lines+markers", name="counted"))
least = 4 * (3 * rows * columns + 2 * columns + rows)
figure.add_hline(y=least, line_dash="dot", annotation_text="least", annotation_position="bottom right")
figure.update_layout(xaxis_title="programs", yaxis_title="bytes moved", yaxis_rangemode="tozero", margin_t=30)
figure.update_xaxes(tickvals=counts)
show(figure, alt="Bytes that the backward pass moves rise in a line with the number of programs", height=340)

# %% [markdown]
# ## Task 5 · Which tile is mine?
#
# *About 25 minutes.*
#
# The next task cuts a matrix C into tiles, `tiles_m` × `tiles_n` of them, and gives each to a program. To make tile
# $(m, n)$, a program reads row $m$ of A's tiles and column $n$ of B's. Which tile program $p$ takes changes nothing
# about the result, nor about what is read altogether. But programs with neighbouring numbers run at the same time, and
# what one of them has read the others find in the L2 cache.
#
# Row after row, $m = \lfloor p / \mathtt{tiles\_n} \rfloor$ and $n = p \bmod \mathtt{tiles\_n}$. **In groups:** the
# rows of tiles are cut into groups of `GROUP`, from the top; the last group has what is left. Groups come one after the
# other. Within a group one goes down a column of it, then down the next column. GROUP is any whole number from 1 on.
# For 3 × 4 tiles and GROUP = 2:
#
# | | n = 0 | 1 | 2 | 3 |
# |---|---|---|---|---|
# | m = 0 | 0 | 2 | 4 | 6 |
# | m = 1 | 1 | 3 | 5 | 7 |
# | m = 2 | 8 | 9 | 10 | 11 |
#
# **Write** `tile_of`, which another kernel calls: `m, n = tile_of(program, tiles_m, tiles_n, GROUP)`. GROUP = 1 is row
# after row. (`tl.swizzle2d` is Triton's own; a check of this lab does not take it: write the order out.)
#
# **Predict first.** 16 × 16 tiles, and 16 programs run at once, 0 to 15. How many rows of A's tiles and columns of B's
# do these 16 read, taken together, row after row? And in groups of 4?

# %%
guess_row_after_row = None  # rows of A's tiles and columns of B's, added up
guess_in_groups = None

# %% [markdown]
# **Size:** about 5 lines. **Cost:** a few integer operations a program.


# %% nbgrader={"solution": true, "grade_id": "task-5-order"}
#| export
@triton.jit
def tile_of(program, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a program's tile, in groups of GROUP rows. About 5 lines."""
    ### BEGIN SOLUTION
    group = program // (GROUP * tiles_n)
    within = program % (GROUP * tiles_n)
    height = min(tiles_m - group * GROUP, GROUP)
    return group * GROUP + within % height, within // height
    ### END SOLUTION


@triton.jit
def order_kernel(m_ptr, n_ptr, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Write down where each program works."""
    program = tl.program_id(0)
    m, n = tile_of(program, tiles_m, tiles_n, GROUP)
    tl.store(m_ptr + program, m)
    tl.store(n_ptr + program, n)


# %% nbgrader={"grade": true, "grade_id": "tile_order"}
check("tile_order")


# %%
def order(tiles_m: int, tiles_n: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of every program's tile, by your function."""
    m, n = torch.empty(tiles_m * tiles_n, dtype=torch.int32), torch.empty(tiles_m * tiles_n, dtype=torch.int32)
    record(order_kernel, tiles_m * tiles_n, m, n, tiles_m, tiles_n, GROUP=group, outputs=["m_ptr", "n_ptr"])
    return m.long(), n.long()


AT_ONCE = 16
for group, guess in ((1, guess_row_after_row), (4, guess_in_groups)):
    m, n = order(16, 16, group)
    strips = len(m[:AT_ONCE].unique()) + len(n[:AT_ONCE].unique())
    print(f"GROUP = {group}: 16 programs read {strips} strips of A and B; you said {guess}")
    numbers = torch.empty(16, 16, dtype=torch.long)
    numbers[m, n] = torch.arange(16 * 16)
    first = [[str(p) if p < AT_ONCE else "" for p in row] for row in numbers.tolist()]
    waves = (numbers // AT_ONCE * 3 % 8).tolist()
    colours = [[i / 7, colour] for i, colour in enumerate(plotly.colors.qualitative.Safe[:8])]
    tiles = go.Heatmap(z=waves, text=first, customdata=numbers.tolist(), colorscale=colours, showscale=False)
    tiles.update(texttemplate="%{text}", hovertemplate="tile (%{y}, %{x}): program %{customdata}<extra></extra>")
    figure = go.Figure(tiles)
    figure.update_yaxes(autorange="reversed", scaleanchor="x", constrain="domain", title="m", dtick=4)
    figure.update_xaxes(constrain="domain", title="n", dtick=4)
    figure.update_layout(title=f"GROUP = {group}: sixteen programs a colour", margin=dict(t=50, l=50, r=10, b=50))
    show(figure, alt=f"Tiles of C in groups of {group}, coloured by which sixteen programs run at once", height=420)

# %% [markdown]
# ## Task 6 · A tiled matrix product
#
# *About 40 minutes.*
#
# $C = A B$, with A of shape (M, K) and B of shape (K, N). A program makes one tile of C, BLOCK_M × BLOCK_N, and walks
# along K: it loads a BLOCK_M × BLOCK_K tile of A and a BLOCK_K × BLOCK_N tile of B, and adds their product to its sums.
# `tl.dot(a, b, sums)` does that, on tensor cores where there are some.
#
# Sums are float32, whatever A and B hold: a float16 that has grown to 2,048 no longer notices that one is added. (On a
# GPU `tl.dot` also rounds float32 tiles to 10 bits of mantissa, unless it is told `input_precision="ieee"`. The
# interpreter never does.)
#
# `a_m` is how many elements lie between two rows of A, `a_k` between two of its columns, `b_k` and `b_n` the same for
# B: so a transposed matrix need not be copied. C has no gaps: its rows are N elements long.
#
# **Launch:** ⌈M / BLOCK_M⌉ · ⌈N / BLOCK_N⌉ programs in one dimension; your `tile_of` says which tile is whose.
# **Write** `matmul_kernel`. A block of two dimensions comes from broadcasting:
# `rows[:, None] * a_m + columns[None, :] * a_k`. Mind three edges: M, N and K. Which of them may be left without a mask
# in the loads, and what would a missing one do to C? (Rows that wrap around, `% M`, as in Triton's own tutorial, are as
# good as a mask: the check of traffic allows for whole tiles.) The three sides of tiles are at least 16, and any of
# them may be the longest.
#
# **Size:** about 16 lines. **Cost:** 2MKN FLOPs. A is read ⌈N / BLOCK_N⌉ times, B ⌈M / BLOCK_M⌉ times, C is written
# once. Larger tiles read less, until registers and shared memory are full. The check of traffic also asks that each
# tile is made by the program whose it is, by `tile_of` with the launch's GROUP.


# %% nbgrader={"solution": true, "grade_id": "task-6-matmul"}
#| export
@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    a_m,
    a_k,
    b_k,
    b_n,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of C = A·B, summed in float32. About 16 lines."""
    ### BEGIN SOLUTION
    m, n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    rows = m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = n * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, K, BLOCK_K):
        depth = first + tl.arange(0, BLOCK_K)
        a_at = rows[:, None] * a_m + depth[None, :] * a_k
        b_at = depth[:, None] * b_k + columns[None, :] * b_n
        a = tl.load(a_ptr + a_at, mask=(rows < M)[:, None] & (depth < K)[None, :], other=0.0)
        b = tl.load(b_ptr + b_at, mask=(depth < K)[:, None] & (columns < N)[None, :], other=0.0)
        sums = tl.dot(a, b, sums)
    c_at = rows[:, None] * N + columns[None, :]
    tl.store(c_ptr + c_at, sums, mask=(rows < M)[:, None] & (columns < N)[None, :])
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "matmul"}
check("matmul")

# %% nbgrader={"grade": true, "grade_id": "matmul_traffic"}
check("matmul_traffic")

# %% [markdown]
# **See it.** What 16 programs that run at once ask for, and how much of it is different data: the part that has to come
# from memory even with a cache that forgets nothing meanwhile. You predicted it in strips. Here it is counted in bytes,
# out of your own kernel's loads.


# %%
def multiply(a: torch.Tensor, b: torch.Tensor, block: int = 16, group: int = 4):
    """Your product of two matrices, with square tiles, and its trace."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n)
    programs = -(-m // block) * -(-n // block)
    sizes = dict(BLOCK_M=block, BLOCK_N=block, BLOCK_K=block, GROUP=group)
    strides = (*a.stride(), *b.stride())
    return c, record(matmul_kernel, programs, a, b, c, m, n, k, *strides, **sizes, outputs=["c_ptr"])


a, b = torch.randn(256, 16), torch.randn(16, 256)
for group in (1, 4):
    c, trace = multiply(a, b, group=group)
    asked = different = 0
    for name in ("a_ptr", "b_ptr"):
        rows = trace.of(buffer=name)
        rows = rows[rows["block"] < AT_ONCE]
        asked += 4 * len(rows)
        different += 4 * len(set(rows["offset"].tolist()))
    print(
        f"GROUP = {group}: {asked:,} bytes asked for, {different:,} of them different, {asked / different:.1f} to one"
    )
print("largest difference from torch:", (c - a @ b).abs().max().item())

# %% [markdown]
# ## Task 7 · Flash attention
#
# *About 60 minutes.*
#
# $$O = \mathrm{softmax}(s\, Q K^{\mathsf T})\, V$$
#
# with Q, K, V of shape (S, D) in each head, and a scale $s > 0$. The plain way makes an S × S matrix of scores, writes
# it, reads it for the softmax, writes that, and reads it again for the product with V. For S = 100,000 that matrix has
# 40 GB, for one head. It need not exist: a softmax can be computed **online**, a block of keys at a time. Keep for each
# query the largest score so far $m$, the sum so far $l$, and the weighted values so far $a$, all relative to $m$. For a
# block of new scores $z$ with values V:
#
# $$m' = \max(m, \max z), \quad p = e^{z - m'}, \quad l' = l\, e^{m - m'} + \sum p, \quad a' = a\, e^{m - m'} + p V.$$
#
# What was summed before is shrunk to the new maximum, and nothing is lost. At the end $O = a / l$, and $m + \ln l$ is
# the **log-sum-exp** of the query's scores, one number a query, from which the backward pass has all weights again.
#
# **7a. Predict first**, as functions of S, D and a block B: all in float32 (4 bytes), one head, S a multiple of B, D at
# most B. Bytes *asked for* by the kernels, as they are counted in this lab, as exact whole numbers: at a million
# tokens, too, and for a B that is no power of two.
#
# - `naive_attention_bytes`: three launches. Your `matmul_kernel` with tiles of B × B makes all S × S scores; your
#   `softmax_kernel` reads and writes them; your `matmul_kernel` multiplies them by V. There is no
#   causal mask.
# - `flash_attention_bytes`: each program has B queries and reads them once, reads keys and values in blocks of B, **up
#   to the block that holds its last query** (a causal mask: query $i$ sees keys 0 to $i$), and writes O and the
#   log-sum-exp.
#
# **7b.** `flash_kernel`. **Launch:** ⌈S / BLOCK_M⌉ × heads programs in two dimensions: `tl.program_id(0)` is the block
# of queries, `tl.program_id(1)` the head. Q, K, V and O are (heads, S, D) without gaps, the log-sum-exp is (heads, S),
# float32. BLOCK_D is the smallest power of two that D fits into, at least 16; BLOCK_M and BLOCK_N are at least 16, too,
# and either may be the larger. The mask is causal. Compute scores, $m$, $l$ and $a$ in float32, and give `tl.dot` tiles
# of one kind: `p.to(v.dtype)`, for that product alone ($l$ adds up $p$ as it is).
#
# `tl.trans(k)` turns a tile. Every query sees at least key 0, which lies in the first block: so $m$ is a number from
# then on, and $e^{-\infty - m'}$ is 0 as it should be.
#
# **Size:** about 4, 3 and 26 lines. **Cost:** 4·D FLOPs for each pair of a query and a key. Q, O and the log-sum-exp
# once; keys and values once for each block of queries that sees them. No S × S array.


# %% nbgrader={"solution": true, "grade_id": "task-7-flash"}
#| export
def naive_attention_bytes(S: int, D: int, block: int) -> int:
    """Bytes that two products and a softmax move for one head without a mask, in float32. About 4 lines."""
    ### BEGIN SOLUTION
    scores = 2 * S * D * (S // block) + S * S
    softmax = 2 * S * S
    mixed = S * S + S * D * (S // block) + S * D
    return 4 * (scores + softmax + mixed)
    ### END SOLUTION


def flash_attention_bytes(S: int, D: int, block: int) -> int:
    """Bytes that flash attention moves for one head with a causal mask, in float32. About 3 lines."""
    ### BEGIN SOLUTION
    blocks = S // block
    keys_read = block * blocks * (blocks + 1) // 2
    return 4 * (2 * S * D + 2 * keys_read * D + S)
    ### END SOLUTION


@triton.jit
def flash_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    S,
    D,
    scale,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """BLOCK_M queries of one head against all keys that they see, BLOCK_N at a time. About 26 lines."""
    ### BEGIN SOLUTION
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1) * S
    queries = first + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    q_at = (head + queries)[:, None] * D + d[None, :]
    q_inside = (queries < S)[:, None] & (d < D)[None, :]
    q = tl.load(q_ptr + q_at, mask=q_inside, other=0.0)
    largest = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, min(first + BLOCK_M, S), BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k_at = (head + keys)[:, None] * D + d[None, :]
        k_inside = (keys < S)[:, None] & (d < D)[None, :]
        k = tl.load(k_ptr + k_at, mask=k_inside, other=0.0)
        v = tl.load(v_ptr + k_at, mask=k_inside, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(keys[None, :] <= queries[:, None], scores, -float("inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        p = tl.exp(scores - larger[:, None])
        shrink = tl.exp(largest - larger)
        total = total * shrink + tl.sum(p, axis=1)
        mixed = tl.dot(p.to(v.dtype), v, mixed * shrink[:, None])
        largest = larger
    tl.store(out_ptr + q_at, mixed / total[:, None], mask=q_inside)
    tl.store(lse_ptr + head + queries, largest + tl.log(total), mask=queries < S)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "attention_bytes"}
check("attention_bytes")

# %% nbgrader={"grade": true, "grade_id": "flash"}
check("flash")

# %% nbgrader={"grade": true, "grade_id": "flash_traffic"}
check("flash_traffic")

# %% [markdown]
# **Measure it.** The lines are your predictions, the points are counted while your kernels run: attention the plain way
# out of your own product and softmax, and flash attention. Before you run it: how many times more does the plain way
# move at 256 tokens? And does the quotient grow with the length?

# %%
guess = None  # bytes of the plain way over those of flash attention, at 256 tokens

if guess is None:
    print("Write a number first, then go on.")

# %%
D = BLOCK = 16
lengths = [32, 64, 128, 256]
counted = {"two products and a softmax": [], "flash attention": []}
for S in lengths:
    q, k, v = torch.randn(3, S, D)
    scores, first = multiply(q, k.T)
    weights, out, lse = torch.empty(S, S), torch.empty(S, D), torch.empty(S)
    second = record(softmax_kernel, S, scores, weights, S, BLOCK=S, outputs=["y_ptr"])
    mixed, third = multiply(weights, v)
    counted["two products and a softmax"].append(sum(total(one).asked_bytes for one in (first, second, third)))
    flash = record(
        flash_kernel, (S // BLOCK, 1), q, k, v, out, lse, S, D, D**-0.5,
        BLOCK_M=BLOCK, BLOCK_N=BLOCK, BLOCK_D=D, outputs=["out_ptr", "lse_ptr"],
    )  # fmt: skip
    counted["flash attention"].append(total(flash).asked_bytes)

predicted = {"two products and a softmax": naive_attention_bytes, "flash attention": flash_attention_bytes}
figure = go.Figure()
for (name, formula), symbol, colour in zip(
    predicted.items(), ("circle", "square"), plotly.colors.qualitative.Plotly, strict=False
):
    axis, look = list(range(32, 257, 16)), {"line_color": colour, "marker_color": colour}
    figure.add_scatter(x=axis, y=[formula(S, D, BLOCK) for S in axis], name=f"{name}, predicted", mode="lines", **look)
    figure.add_scatter(
        x=lengths, y=counted[name], name="counted", mode="markers", marker_symbol=symbol, marker_size=10, **look
    )
figure.update_layout(
    xaxis_title="tokens", yaxis_title="bytes moved", xaxis_type="log", yaxis_type="log", xaxis_tickvals=lengths
)
figure.update_yaxes(dtick=1, exponentformat="power")
figure.update_layout(legend={"orientation": "h", "y": -0.25}, margin_t=30)
show(
    figure,
    alt="Bytes of plain and of flash attention against the length: counted points on predicted lines",
    height=480,
)
naive, flash_bytes = (values[-1] for values in counted.values())
print(f"at {lengths[-1]} tokens: {naive / flash_bytes:.2f} to one; you said {guess}")

# %% [markdown]
# Both curves are squares in the end, since keys and values are read again for each block of queries. But those are the
# same S · D numbers again and again, which the L2 cache holds; the scores are new ones each time. And a larger block
# makes the flash curve lower, while the S × S scores stay what they are.
#
# ## Task 8 · One new token, and a cache of pages
#
# *About 40 minutes.*
#
# To make the next token, attention has one query a head and sequence, and all keys and values of that sequence from its
# **cache**. A server does not know how long a sequence will become, so the cache is cut into **pages** of PAGE tokens
# each, and a sequence takes another page when its last one is full. A table says which page of the cache is its first,
# its second, and so on. Pages of one sequence lie anywhere. What is in a slot that no token has filled yet is not
# defined: it may be NaN. Nor is what stands in a row of the table after the sequence's last page.
#
# Query heads come in groups of GROUP that share one key/value head. So a program takes all queries of one group: each
# key that it reads serves GROUP of them.
#
# | array | shape | what |
# |---|---|---|
# | `q_ptr`, `out_ptr` | (sequences, heads, D) | query heads; those of one group are neighbours |
# | `k_ptr`, `v_ptr` | (pages of the cache, PAGE, kv_heads, D) | |
# | `table_ptr` | (sequences, `most_pages`), int32 | the number of each page of a sequence |
# | `length_ptr` | (sequences,), int32 | tokens of a sequence, at least 1 |
#
# **Launch:** sequences × kv_heads programs in two dimensions: `tl.program_id(0)` is the sequence, `tl.program_id(1)`
# the key/value head, `tl.num_programs(1)` how many of these there are. D, PAGE and GROUP are powers of two and
# constants, D and PAGE at least 16. The scale is above 0.
#
# **Write** `decode_kernel`: the online softmax once more, all of it in float32 (the weights, too, for the sum of
# values), a page at a time, over as many pages as the sequence has. There is no mask but the sequence's end. `tl.dot`
# works on tiles of at least 16 rows, of which GROUP queries mostly fill few: here it does as well to multiply with
# broadcasting and sum, `tl.sum(q[:, None, :] * k[None, :, :], axis=2)`.
#
# **Size:** about 24 lines. **Cost:** each key and value that the sequence has, once for its group, and no other; what
# else a program needs, once: a page's number serves for its keys and for its values. So the FLOPs for a byte of cache
# grow with GROUP: that is what grouped heads are for.


# %% nbgrader={"solution": true, "grade_id": "task-8-decode"}
#| export
@triton.jit
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    length_ptr,
    out_ptr,
    most_pages,
    scale,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    D: tl.constexpr,
):
    """Attention of one group's queries over the pages of one sequence. About 24 lines."""
    ### BEGIN SOLUTION
    sequence, kv_head, kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    length = tl.load(length_ptr + sequence)
    d = tl.arange(0, D)
    heads = (sequence * kv_heads + kv_head) * GROUP + tl.arange(0, GROUP)
    q_at = heads[:, None] * D + d[None, :]
    q = tl.load(q_ptr + q_at).to(tl.float32)
    largest = tl.full((GROUP,), -float("inf"), tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    mixed = tl.zeros((GROUP, D), tl.float32)
    for page in range(0, tl.cdiv(length, PAGE)):
        number = tl.load(table_ptr + sequence * most_pages + page)
        slots = tl.arange(0, PAGE)
        there = page * PAGE + slots < length
        k_at = ((number * PAGE + slots) * kv_heads + kv_head)[:, None] * D + d[None, :]
        k = tl.load(k_ptr + k_at, mask=there[:, None], other=0.0).to(tl.float32)
        v = tl.load(v_ptr + k_at, mask=there[:, None], other=0.0).to(tl.float32)
        scores = tl.sum(q[:, None, :] * k[None, :, :], axis=2) * scale
        scores = tl.where(there[None, :], scores, -float("inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        p = tl.exp(scores - larger[:, None])
        shrink = tl.exp(largest - larger)
        total = total * shrink + tl.sum(p, axis=1)
        mixed = mixed * shrink[:, None] + tl.sum(p[:, :, None] * v[None, :, :], axis=1)
        largest = larger
    tl.store(out_ptr + q_at, mixed / total[:, None])
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "decode"}
check("decode")

# %% nbgrader={"grade": true, "grade_id": "decode_traffic"}
check("decode_traffic")

# %% [markdown]
# **See it.** Eight query heads, two sequences of 37 and 20 tokens, pages of 16: what your kernel moves when 8, 4, 2 or
# 1 key/value heads serve them, and the FLOPs that it does for each byte.

# %%
lengths_now = torch.tensor([37, 20], dtype=torch.int32)
table = torch.tensor([[5, 1, 3], [0, 4, -1]], dtype=torch.int32)
bars = {"keys and values": [], "everything else": []}
intensity = []
groups = [1, 2, 4, 8]
for group in groups:
    q = torch.randn(2, 8, 16)
    out = torch.empty_like(q)
    k, v = torch.randn(2, 6, 16, 8 // group, 16)
    trace = record(
        decode_kernel, (2, 8 // group), q, k, v, table, lengths_now, out, 3, 0.25,
        GROUP=group, PAGE=16, D=16, outputs=["out_ptr"],
    )  # fmt: skip
    cache = 4 * sum(len(trace.of(buffer=name)) for name in ("k_ptr", "v_ptr"))
    bars["keys and values"].append(cache)
    bars["everything else"].append(total(trace).asked_bytes - cache)
    intensity.append(4 * 8 * 16 * int(lengths_now.sum()) / total(trace).asked_bytes)
names = [f"{8 // group}<br>({x:.1f})" for group, x in zip(groups, intensity, strict=True)]
figure = go.Figure([go.Bar(x=names, y=values, name=name) for name, values in bars.items()])
figure.update_layout(barmode="stack", yaxis_title="bytes moved", xaxis_title="key/value heads (FLOPs for a byte)")
figure.update_layout(legend={"orientation": "h", "y": -0.3}, margin_t=30)
show(
    figure, alt="Bytes of a decode step fall with the number of key/value heads, nearly all of them cached", height=380
)

# %% [markdown]
# ## With a GPU · Points for speed
#
# Ten extra points are for speed; who has no GPU loses nothing. On a machine with one, grading compiles your kernels and
# times them at sizes of real models beside torch's softmax, cuBLAS and torch's fused attention, on the same GPU in the
# same run: 2 points for a softmax at 0.65 of torch's speed, 4 for a product at 0.4 of cuBLAS, 4 for attention at 0.35;
# fewer from 0.4, 0.1 and 0.1 on. The time in which inputs are drawn and results looked at counts against you, so aim
# higher. Launches are the course's there, too, with tiles of 128 × 128 × 32 for the product, and 128 queries by 64
# keys. So it is the text that counts: what stands in the innermost loop that need not be there?
#
# To try it on a GPU, start JupyterLab without `TRITON_INTERPRET`, run the exported cells, then this one.

# %%
for name in ("softmax_traffic", "matmul_traffic", "flash_traffic"):
    check.speed(name)

# %% [markdown]
# ## Answer for yourself
#
# - Your softmax holds a whole row. From which length on does it not, and what does the online softmax of Task 7 then
#   cost in traffic?
# - In Task 6, A is read N / BLOCK_N times. With bf16 and square tiles, from which BLOCK on is a large product bound by
#   the tensor cores of an H100 rather than by its memory, if no cache helped? (Lab 02 has the ridge.)
# - Flash attention keeps the log-sum-exp. What would the backward pass have to keep without it?
# - Decoding one token of one sequence leaves most of a GPU idle if a program takes all pages of a sequence. How would
#   you cut a sequence among programs, and what do they have to hand on to be put together?
#
# When all checks pass, save the notebook and run `mlsys-lab check triton` in a terminal.
