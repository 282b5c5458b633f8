# %% [markdown]
# # Lab 04 · Triton kernels: from a mask to paged attention
#
# Causal attention of 32 heads over 8,192 tokens, with head dimension 128, needs 0.6 ms of arithmetic on an H100.
# Written as three library calls, it stores its scores, 8.6 GB in float32, loads them for the softmax, stores the
# attention weights, and loads those again: 10 ms for the memory alone. FlashAttention computes the same result and
# stores no score at all. In this lab you write that kernel, and the others that a language model spends its time in,
# and every byte that they load and store is counted.
#
# ```text
#        program p, on one SM                          GPU memory
#   ┌─────────────────────────────┐     load    ┌─────────────────────┐
#   │ offsets = p·BLOCK + 0 1 2 … │ ◄────────── │ x  ▒▒▒▒ ▒▒▒▒ ▒▒▒▒ ▒ │
#   │ mask    = offsets < n       │             │                     │
#   │ compute in registers        │ ──────────► │ y  ▒▒▒▒ ▒▒▒▒ ▒▒▒▒ ▒ │
#   └─────────────────────────────┘    store    └─────────────────────┘
#     a block of elements   ·   a row   ·   a tile   ·   the blocks of a KV cache
# ```
#
# **You will build**
#
# - *Part 1, rows:* an elementwise kernel (`15 min`), a softmax (`25 min`), RMS norm (`20 min`) and its backward pass
#   (`45 min`).
# - *Part 2, tiles:* grouped tile order (`25 min`), a matrix product (`40 min`), FlashAttention (`75 min`), and decode
#   attention over a paged KV cache (`45 min`).
#
# The parts are independent, except that one measurement of part 2 uses your softmax: you can stop after part 1 and come
# back another day.
#
# **At the end you can answer**
#
# - What replaces `if i < n` in a language without threads?
# - Why does FlashAttention move fewer bytes although it does as many FLOPs?
# - What does the order of the tiles change, if not the result?
# - Why do grouped query heads make decoding faster?
#
# **Time:** about 290 minutes, 105 for part 1 and 185 for part 2. **Points:** 100. **You need:** Linux (or Colab) with
# `pip install "mlsys-lab[kernels]"`, but no GPU; [lab 02](02-gpu-model.ipynb) (FLOPs, bytes, sectors); what attention
# computes. Background: [chapter 6](../chapters/06-triton.md).
#
# **Readings:** *Introducing Triton: Open-source GPU programming for neural networks* (`openai-triton`), *Making Deep
# Learning Go Brrrr From First Principles* (`he-brrrr`), *Matrix Multiplication on Blackwell: Part 1 - Introduction*
# (`modular-blackwell-matmul`).
#
# **How it works.** Replace each line that raises `NotImplementedError`, run the cell, paste the example into a new
# cell, then run the `check` below. Cells that start with `#| export` are graded. Parameters have the names of the
# course's kernels, `mlsys_lab.kernels`. You write kernels only: each task says how its kernel is launched, and the
# check launches it. `record(kernel, grid, *arguments, **constants)` launches it in Triton's interpreter, one program
# after another, and returns a trace of its loads and stores; `outputs=` names arrays that start as NaN. On a GPU,
# `kernel[grid](…)` compiles the same text.
#
# <details><summary>What a kernel may contain, what arrays hold, and how traffic is counted</summary>
#
# - **Language.** Arithmetic, `if`, `for` over a range, `while`, calls of other kernels, and `tl`. No imports, no
#   printing. A kernel takes a constant from outside only as `NAME = tl.constexpr(number)`. Each check also compiles
#   your kernel for an H100 with Triton's compiler, which is stricter than the interpreter: `if` takes a single number,
#   not a block; a variable keeps its type and shape through a loop; there is no `break`. Combine conditions on blocks
#   with `&`, `|` and `~`.
# - **Numbers.** A launch's inputs are all float32 or all float16, unless a table says float32; outputs are of the same
#   dtype or float32. Compute in float32; float64 is right too: `tl.store` converts to the array's dtype. Values are
#   finite unless a task says otherwise, but may be very large. Arrays hold at least one element and fewer than 2³¹.
#   Sides of blocks are powers of two.
# - **Traffic** counts bytes requested; lanes whose mask is false request none. A check of traffic allows 1.1 times the
#   minimum that the task states, for each array and for each program's part, and no block larger than the task's.
#   Results must be right too. An access beyond the end of an array is an error in every check.
#
# </details>

# %%
import plotly.graph_objects as go
import torch
from plotly.colors import qualitative
from rich import print as show_table

from mlsys_lab.checks import lab
from mlsys_lab.kernels.trace.report import report
from mlsys_lab.kernels.trace.traffic import total, traffic
from mlsys_lab.kernels.trace.triton_interpreter import record
from mlsys_lab.widgets import show
from mlsys_lab.widgets.accesses import Accesses

check = lab("triton")

# %%
#| export
from mlsys_lab.kernels.triton_language import tl, triton

# %% [markdown]
# ## Part 1 · Rows
#
# ## Task 1 · An elementwise kernel with a mask
#
# *About 15 minutes.*
#
# **Goal.** The MLP of a Llama model multiplies $\mathrm{silu}(g) = g\,\sigma(g) = g / (1 + e^{-g})$ by $u$, element by
# element. As two library calls, silu(g) goes to memory and back; write one kernel that keeps it in registers, which is
# what *fusion* means.
#
# A Triton **program** works on a whole block of elements. `tl.program_id(0)` is the number of this program,
# `tl.arange(0, BLOCK)` the block 0, 1, …, BLOCK - 1, and a pointer plus a block of offsets is a block of addresses.
# An array seldom ends where a block ends: where the `mask` is false, `tl.load` and `tl.store` touch nothing. What such
# a lane holds after a load is undefined (the interpreter shows NaN), unless you pass `other=`.
#
# **Interface**
#
# | parameter | shape | |
# |---|---|---|
# | `gate_ptr`, `up_ptr` | (n,) | inputs |
# | `y_ptr` | (n,) | output |
# | `BLOCK` | | elements per program |
#
# **Launch:** ⌈`n` / `BLOCK`⌉ programs. Program p computes the elements from `p * BLOCK` on.
#
# **Example** (three programs, the last with a single element)
#
# ```python
# gate, up = torch.tensor([0.0, 1.0, -2.0, 3.0, 0.5]), torch.tensor([5.0, 2.0, 1.0, 1.0, 4.0])
# y = torch.empty(5)
# trace = record(silu_mul_kernel, 3, gate, up, y, 5, BLOCK=2)
# [round(value, 3) for value in y.tolist()]  # → [0.0, 1.462, -0.238, 2.858, 1.245]
# len(trace.accesses)  # → 15
# ```
#
# (15 accesses: two loads and a store for each of 5 elements, and none for the sixth lane.)
#
# **Requirements**
#
# - Each element is loaded once, computed in float32 (`.to(tl.float32)`) and stored once. Only the store may round to
#   float16.
# - No access beyond the end of an array.
# - Right for any finite gate, however large or small.
#
# **Size:** about 6 lines.


# %% nbgrader={"solution": true, "grade_id": "task-1-elementwise"}
#| export
@triton.jit
def silu_mul_kernel(gate_ptr, up_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Store silu(gate) · up for one block of elements. About 6 lines."""
    ### BEGIN SOLUTION
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    gate = tl.load(gate_ptr + offsets, mask=mask).to(tl.float32)
    up = tl.load(up_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(y_ptr + offsets, gate * tl.sigmoid(gate) * up, mask=mask)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "silu_mul"}
check("silu_mul")

# %% [markdown]
# **See it.** Your kernel's requests on arrays of 70 elements, 32 lanes at a time, as a warp makes them. Step through
# them with the arrow keys. Which lanes does the last program leave out? Then remove the mask from one load, run the
# kernel's cell and this one again, and look at the end of the array. Put the mask back afterwards.

# %%
gate, up, y = torch.randn(70), torch.randn(70), torch.empty(70)
trace = record(silu_mul_kernel, 3, gate, up, y, 70, BLOCK=32, outputs=["y_ptr"])
Accesses.from_trace(trace)

# %% [markdown]
# ## Task 2 · Softmax of rows
#
# *About 25 minutes.*
#
# **Goal.** A softmax needs the maximum of a row, then its sum of exponentials, then the quotients: three passes over
# memory, if each is a loop of its own. Write a kernel whose programs hold a whole row in registers, so that memory is
# read once.
#
# $$y_j = \frac{e^{x_j - m}}{\sum_i e^{x_i - m}}, \qquad m = \max_i x_i$$
#
# Subtracting $m$ changes no quotient, but $e^{89}$ does not fit into float32.
#
# **Interface**
#
# | parameter | shape | |
# |---|---|---|
# | `x_ptr`, `y_ptr` | (rows, D) | input and output, contiguous: row r starts at element `r * D` |
# | `BLOCK` | | smallest power of two that D fits into |
#
# **Launch:** one program per row.
#
# **Example**
#
# ```python
# x, y = torch.tensor([[1.0, 1.0, 1.0], [0.0, 100.0, 100.0]]), torch.empty(2, 3)
# trace = record(softmax_kernel, 2, x, y, 3, BLOCK=4)
# [[round(value, 3) for value in row] for row in y.tolist()]  # → [[0.333, 0.333, 0.333], [0.0, 0.5, 0.5]]
# ```
#
# (Each row has one lane too many. Which value there changes neither the maximum nor the sum?)
#
# **Requirements**
#
# - Each element is loaded once and stored once (`softmax_traffic`).
# - Rows of any finite values: no finite number is so far below zero that it can stand for $-\infty$.
# - A row may contain $-\infty$ itself, as masked scores do, but always has at least one finite value; the softmax of
#   $-\infty$ is 0. (`-float("inf")` works in a kernel.)
#
# **Size:** about 6 lines.


# %% nbgrader={"solution": true, "grade_id": "task-2-softmax"}
#| export
@triton.jit
def softmax_kernel(x_ptr, y_ptr, D, BLOCK: tl.constexpr):
    """Store the softmax of one row of D elements. About 6 lines."""
    ### BEGIN SOLUTION
    columns = tl.arange(0, BLOCK)
    offsets, mask = tl.program_id(0) * D + columns, columns < D
    x = tl.load(x_ptr + offsets, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + offsets, e / tl.sum(e, axis=0), mask=mask)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "softmax"}
check("softmax")

# %% nbgrader={"grade": true, "grade_id": "softmax_traffic"}
check("softmax_traffic")

# %% [markdown]
# **Predict, then measure.** Memory answers in sectors of 32 bytes, 8 floats, and each request for a part of a sector
# moves all of it. Eight rows of 37 floats follow one another without gaps, so most rows start in the middle of a
# sector. A program loads its row in two requests, of 32 lanes and of 5. On average, how many sectors does a program
# load per row? (A row of 40 floats takes exactly 5.)

# %%
guess = None  # sectors loaded per row of 37 floats

# %%
sectors_per_row = {}
for D in (37, 40):
    x, y = torch.randn(8, D), torch.empty(8, D)
    trace = record(softmax_kernel, 8, x, y, D, BLOCK=64, outputs=["y_ptr"])
    (reads,) = (one.read for one in traffic(trace) if one.buffer == "x_ptr")
    sectors_per_row[D] = reads.moved_bytes / 32 / 8
    show_table(report(trace).table())
print("sectors per row, by length of row:", sectors_per_row)
check.predict(guess, sectors_per_row[37], "sectors per row of 37 floats")

# %% [markdown]
# Rows of 37 floats move more than rows of 40: requests that start in the middle of a sector touch one sector more, and
# two requests share a sector that each of them loads. The L2 cache serves some of these, but alignment is free: this is
# one reason why models pad vocabularies and head dimensions to multiples of 8 or 64. (The other is that tensor cores
# work on whole tiles.)
#
# ## Task 3 · RMS norm
#
# *About 20 minutes.*
#
# **Goal.** RMS norm scales each row to mean square 1 and multiplies by a learned weight. Write the forward pass, which
# also stores one number per row that the backward pass needs again.
#
# $$r = \frac{1}{\sqrt{\frac{1}{D}\sum_j x_j^2 + \varepsilon}}, \qquad y_j = x_j\, r\, w_j$$
#
# **Interface**
#
# | parameter | shape | |
# |---|---|---|
# | `x_ptr`, `y_ptr` | (rows, D) | input and output, contiguous |
# | `w_ptr` | (D,) | weight, the same for all rows |
# | `r_ptr` | (rows,), float32 | output: r of each row |
# | `eps` | | ε, under the root |
#
# **Launch:** one program per row, `BLOCK` as in Task 2.
#
# **Example**
#
# ```python
# x, w = torch.tensor([[3.0, 4.0, 0.0]]), torch.tensor([1.0, 1.0, 2.0])
# y, r = torch.empty(1, 3), torch.empty(1)
# trace = record(rms_norm_kernel, 1, x, w, y, r, 3, 0.0, BLOCK=4)
# round(r.item(), 4)  # → 0.3464
# [round(value, 4) for value in y[0].tolist()]  # → [1.0392, 1.3856, 0.0]
# ```
#
# (0.3464 is $1/\sqrt{25/3}$: the mean is over 3 elements, not over the 4 lanes of the block.)
#
# **Requirements**
#
# - x is loaded once, y and r are stored once, and w is loaded once per program (`rms_norm_traffic`).
# - Everything is computed in float32: in float16, ε may round to 0 and squares may overflow. Here neither happens in
#   float32.
#
# **Size:** about 8 lines.


# %% nbgrader={"solution": true, "grade_id": "task-3-rms-norm"}
#| export
@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, r_ptr, D, eps, BLOCK: tl.constexpr):
    """Store the RMS norm of one row, and its r. About 8 lines."""
    ### BEGIN SOLUTION
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    offsets, mask = row * D + columns, columns < D
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + columns, mask=mask).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / D + eps)
    tl.store(r_ptr + row, r)
    tl.store(y_ptr + offsets, x * r * w, mask=mask)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "rms_norm"}
check("rms_norm")

# %% nbgrader={"grade": true, "grade_id": "rms_norm_traffic"}
check("rms_norm_traffic")

# %% [markdown]
# ## Task 4 · RMS norm, the backward pass
#
# *About 45 minutes.*
#
# **Goal.** The gradient of x is computed row by row, but the gradient of w is a sum over *all* rows, and programs
# cannot wait for each other. So a few persistent programs take many rows each and keep a **partial sum** of dw in
# registers, and a second kernel adds the partial sums.
#
# **Derive it first.** Let $dy$ be the gradient of y, $g_j = dy_j\, w_j$ and $\hat x_j = x_j\, r$, so $y_j = x_j\, r\,
# w_j$. An $x_j$ enters the loss twice: through its own $y_j$, and through $r$, which every $y_i$ of the row contains:
#
# $$dx_j = r\, g_j + \frac{\partial r}{\partial x_j} \sum_i g_i\, x_i.$$
#
# Write r as $s^{-1/2}$ with $s = \frac{1}{D}\sum_i x_i^2 + \varepsilon$, differentiate, and express the result in
# $r$, $g$ and $\hat x$ only. What is $dw_j$?
#
# **Interface**
#
# | parameter | shape | |
# |---|---|---|
# | `dy_ptr`, `x_ptr`, `dx_ptr` | (N, D) | inputs dy and x, output dx |
# | `w_ptr`, `dw_ptr` | (D,) | weight, and its gradient |
# | `r_ptr` | (N,), float32 | r of each row, from Task 3 |
# | `partials_ptr` | (P, D), float32 | partial sums of dw, a row per program |
#
# **Launch:** `rms_norm_backward_kernel` with P programs (`tl.num_programs(0)`, at most N), `BLOCK` as in Task 2; then
# `sum_rows_kernel` with ⌈D / `BLOCK`⌉ programs, each of which sums `BLOCK` columns over all P rows, with a `BLOCK` of
# its own that need not divide D.
#
# **Example** (two rows, a single program: its partial sum is dw itself)
#
# ```python
# x, dy = torch.tensor([[3.0, 4.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, -1.0]])
# w, r = torch.tensor([1.0, 2.0]), x.square().mean(1).rsqrt()
# dx, partials, dw = torch.empty(2, 2), torch.empty(1, 2), torch.empty(2)
# trace = record(rms_norm_backward_kernel, 1, dy, x, w, r, dx, partials, 2, 2, BLOCK=2)
# trace = record(sum_rows_kernel, 1, partials, dw, 1, 2, BLOCK=2)
# [[round(value, 3) for value in row] for row in dx.tolist()]  # → [[0.181, -0.136], [1.5, -1.5]]
# [round(value, 3) for value in dw.tolist()]  # → [1.849, -1.0]
# ```
#
# (To test your derivation: torch's autograd gives the same dx.)
#
# **Requirements**
#
# - Program p takes the rows p, p + P, p + 2P, …, one at a time, and stores its partial sum as row p of `partials_ptr`.
# - `sum_rows_kernel` adds the partial sums one row at a time, in a fixed order, so that every run gives the same bits.
#   Atomics would not.
# - dy and x are loaded once, dx is stored once, w is loaded once per program, partial sums are stored once and loaded
#   once (`rms_norm_backward_traffic`).
#
# **Size:** about 15 and 6 lines.


# %% nbgrader={"solution": true, "grade_id": "task-4-rms-norm-backward"}
#| export
@triton.jit
def rms_norm_backward_kernel(
    dy_ptr, x_ptr, w_ptr, r_ptr, dx_ptr, partials_ptr, N, D, BLOCK: tl.constexpr
):
    """Store dx of every P-th row and this program's part of dw. About 15 lines."""
    ### BEGIN SOLUTION
    program, columns = tl.program_id(0), tl.arange(0, BLOCK)
    mask = columns < D
    w = tl.load(w_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, N, tl.num_programs(0)):
        offsets = row * D + columns
        r = tl.load(r_ptr + row)
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        g, x_hat = dy * w, x * r
        dx = r * (g - x_hat * (tl.sum(g * x_hat, axis=0) / D))
        tl.store(dx_ptr + offsets, dx, mask=mask)
        dw += dy * x_hat
    tl.store(partials_ptr + program * D + columns, dw, mask=mask)
    ### END SOLUTION


@triton.jit
def sum_rows_kernel(partials_ptr, dw_ptr, P, D, BLOCK: tl.constexpr):
    """Store dw of BLOCK columns, the sum of P partial sums. About 6 lines."""
    ### BEGIN SOLUTION
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dw = tl.zeros((BLOCK,), tl.float32)
    for row in range(0, P):
        dw += tl.load(partials_ptr + row * D + columns, mask=columns < D, other=0.0)
    tl.store(dw_ptr + columns, dw, mask=columns < D)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "rms_norm_backward"}
check("rms_norm_backward")

# %% nbgrader={"grade": true, "grade_id": "rms_norm_backward_traffic"}
check("rms_norm_backward_traffic")

# %% [markdown]
# **Predict, then measure.** More programs keep more SMs busy, but each loads w, stores a partial sum and has it loaded
# again. With 16 rows of 24 floats, how many times as many bytes do both kernels request (bytes,
# not sectors) with 16 programs as with 1?

# %%
guess = None  # bytes with 16 programs / bytes with 1 program

# %%
N, D = 16, 24
x, dy, w = torch.randn(N, D), torch.randn(N, D), torch.randn(D)
r = (x.square().mean(1) + 1e-6).rsqrt()
requested = {}
for P in (1, 2, 4, 8, 16):
    dx, partials, dw = torch.empty(N, D), torch.empty(P, D), torch.empty(D)
    arrays, outputs = (dy, x, w, r, dx, partials), ["dx_ptr", "partials_ptr"]
    first = record(
        rms_norm_backward_kernel, P, *arrays, N, D, BLOCK=32, outputs=outputs
    )
    second = record(sum_rows_kernel, 2, partials, dw, P, D, BLOCK=16, outputs="dw_ptr")
    requested[P] = (total(first) + total(second)).asked_bytes
counts = list(requested)
figure = go.Figure(
    go.Scatter(x=counts, y=list(requested.values()), mode="lines+markers")
)
figure.update_layout(xaxis_title="programs", yaxis_title="bytes requested", height=340)
figure.update_xaxes(tickvals=counts)
figure.update_yaxes(rangemode="tozero")
show(figure, alt="Bytes that the backward pass requests, by number of programs")
check.predict(guess, requested[16] / requested[1], "times as many bytes")

# %% [markdown]
# Each program adds three rows of D floats: w, a partial sum stored, a partial sum loaded. Here that is as much as a row
# of x, dy and dx, so a program per row nearly doubles the traffic. With 8,192 rows and one program for each of an
# H100's 132 SMs, the extra traffic is less than 2 %.
#
# Part 1 ends here. Part 2 uses nothing of it but the softmax, for one measurement: on another day, run the first three
# cells of code and the softmax's cell, and continue below.
#
# ## Part 2 · Tiles
#
# ## Task 5 · Grouped tile order
#
# *About 25 minutes.*
#
# **Goal.** A matrix product cuts C into tiles, one per program; tile (m, n) needs row m of A's tiles and column n of
# B's. Which program computes which tile changes neither the result nor the bytes requested, but programs with
# neighbouring numbers run at the same time, and share what they load through the L2 cache: write the order that lets
# them share most.
#
# In row-major order, program p has row `p // columns` and column `p % columns` of the tiles. In **grouped order**, rows
# of tiles are taken in groups of `GROUP_M`, from the top. Within a group, programs go down one column of it, then down
# the next. The last group has the rows that are left. For 3 × 4 tiles and `GROUP_M = 2`:
#
# | | n = 0 | 1 | 2 | 3 |
# |---|---|---|---|---|
# | m = 0 | 0 | 2 | 4 | 6 |
# | m = 1 | 1 | 3 | 5 | 7 |
# | m = 2 | 8 | 9 | 10 | 11 |
#
# **Predict first.** C has 16 × 16 tiles, and programs 0 to 15 run at once, as a **wave**. Call a row of A's tiles, or a
# column of B's, a **strip**. How many strips do they need together, in row-major order (`GROUP_M = 1`)? And in groups
# of 4 rows?

# %%
guess_row_major = None  # rows of A's tiles + columns of B's, GROUP_M = 1
guess_grouped = None  # GROUP_M = 4

# %% [markdown]
# **Interface**
#
# `m, n = tile_index(program, M, N, BLOCK_M, BLOCK_N, GROUP_M)`: row and column of a program's tile. C is (M, N), with
# ⌈M / BLOCK_M⌉ × ⌈N / BLOCK_N⌉ tiles. Another kernel calls it.
#
# **Example** (the table above: 3 × 4 tiles of 16 × 16, the last ones cut off)
#
# ```python
# programs = torch.empty(3, 4, dtype=torch.int32)
# trace = record(order_kernel, 12, programs, 40, 64, BLOCK_M=16, BLOCK_N=16, GROUP_M=2)
# programs.tolist()  # → [[0, 2, 4, 6], [1, 3, 5, 7], [8, 9, 10, 11]]
# ```
#
# (`order_kernel`, below your function, stores the number of each tile's program. Leave it as it is.)
#
# **Requirements**
#
# - `GROUP_M` is any number from 1 on, and may exceed the rows of tiles.
# - Integer arithmetic only. (`tl.swizzle2d` is not accepted: write the order out.)
#
# **Size:** about 6 lines.


# %% nbgrader={"solution": true, "grade_id": "task-5-order"}
#| export
@triton.jit
def tile_index(
    program,
    M,
    N,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Row and column of a program's tile, in groups of GROUP_M rows. About 6 lines."""
    ### BEGIN SOLUTION
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group, within = program // (GROUP_M * columns), program % (GROUP_M * columns)
    height = min(rows - group * GROUP_M, GROUP_M)  # the last group may be lower
    return group * GROUP_M + within % height, within // height
    ### END SOLUTION


@triton.jit
def order_kernel(
    programs_ptr,
    M,
    N,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Store the number of each tile's program."""
    program = tl.program_id(0)
    m, n = tile_index(program, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    tl.store(programs_ptr + m * tl.cdiv(N, BLOCK_N) + n, program)


# %% nbgrader={"grade": true, "grade_id": "tile_order"}
check("tile_order")

# %% [markdown]
# **Measure it.** Each patch of one colour is a wave of 16 programs that run at the same time. (There are 16 waves and 8
# colours, so each colour appears twice.)


# %%
AT_ONCE = 16
colours = qualitative.Safe[:8]
colourscale = [[i / 7, colour] for i, colour in enumerate(colours)]
strips = {}
for group in (1, 4):
    numbers = torch.empty(16, 16, dtype=torch.int32)
    sizes = {"BLOCK_M": 16, "BLOCK_N": 16, "GROUP_M": group}
    record(order_kernel, 256, numbers, 256, 256, **sizes, outputs="programs_ptr")
    m, n = torch.nonzero(numbers < AT_ONCE, as_tuple=True)
    strips[group] = len(m.unique()) + len(n.unique())
    waves = (numbers // AT_ONCE * 3 % 8).tolist()
    first = [[str(p) if p < AT_ONCE else "" for p in row] for row in numbers.tolist()]
    tiles = go.Heatmap(z=waves, text=first, colorscale=colourscale, showscale=False)
    figure = go.Figure(tiles.update(texttemplate="%{text}"))
    figure.update_yaxes(autorange="reversed", scaleanchor="x", title="m")
    figure.update_layout(title=f"GROUP_M = {group}", xaxis_title="n", height=420)
    show(figure, alt=f"Tiles in groups of {group} rows, coloured by wave of programs")
check.predict(guess_row_major, strips[1], "strips of A and B in row-major order")
check.predict(guess_grouped, strips[4], "strips of A and B in groups of 4 rows")

# %% [markdown]
# A wave that covers a square needs the fewest strips: of all rectangles with the same area, the square has the smallest
# sum of sides. Row-major order covers a line, which is the worst rectangle. The same data would be requested either
# way; in the square, more of the requests are for strips that another program has just brought into the L2 cache.
#
# ## Task 6 · A tiled matrix product
#
# *About 40 minutes.*
#
# **Goal.** C = A·B. A program computes one tile of C: it walks along K, loads a tile of A and a tile of B per step, and
# adds their product to a float32 accumulator with `tl.dot`, which runs on tensor cores.
#
# ```text
#                    K                       N
#              ┌───────────┐            ┌────┬──┬────┐ K     step along K:
#            M │           │            │    │B ↓    │       a  BLOCK_M × BLOCK_K
#              ├──┬────────┤            │    ├──┤    │       b  BLOCK_K × BLOCK_N
#              │A →        │            │    │  │    │       accumulator += a·b
#              └──┴────────┘            └────┴──┴────┘
# ```
#
# **Interface**
#
# | parameter | shape | |
# |---|---|---|
# | `a_ptr`, `b_ptr` | (M, K), (K, N) | inputs, with any strides |
# | `c_ptr` | (M, N) | output, contiguous |
# | `stride_am`, `stride_ak` | | elements from one row of A to the next, and from one column to the next |
# | `stride_bk`, `stride_bn` | | the same for B |
# | `M`, `N`, `K` | | sizes |
# | `BLOCK_M`, `BLOCK_N`, `BLOCK_K` | | sides of the tiles, at least 16 |
# | `GROUP_M` | | for `tile_index` |
#
# **Launch:** ⌈M / BLOCK_M⌉ · ⌈N / BLOCK_N⌉ programs in one dimension. `tile_index` gives each program its tile. (The
# checks of this task use a `tile_index` of their own, so that a mistake there costs nothing here.)
#
# A block of two dimensions comes from broadcasting: `rows[:, None] * stride_am + columns[None, :] * stride_ak`.
#
# **Example** (one tile, mostly masked; B is stored transposed)
#
# ```python
# a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [5.0, 1.0]]).T
# c = torch.empty(2, 2)
# sizes = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP_M": 1}
# trace = record(matmul_kernel, 1, a, b, c, 2, 2, 2, *a.stride(), *b.stride(), **sizes)
# c.tolist()  # → [[1.0, 7.0], [3.0, 19.0]]
# ```
#
# **Requirements**
#
# - M, N and K need not be multiples of the tile, so the loads need a mask at all three edges. Which of these masks
#   does C itself depend on?
# - The accumulator is float32, whatever A and B hold: a float16 that has grown to 2,048 stays there if 1 is added.
# - Each tile of A and of B is loaded once per step and program: A ⌈N / BLOCK_N⌉ times in total, B ⌈M / BLOCK_M⌉ times.
#   C is stored once, each tile by its program (`matmul_traffic`).
#
# **Size:** about 16 lines.
#
# <details><summary>Details</summary>
#
# - Rows that wrap around (`% M`), as in Triton's tutorial, are as good as a mask in the loads.
# - On a GPU `tl.dot` rounds float32 tiles to 10 bits of mantissa (TF32) unless it gets `input_precision="ieee"`. The
#   interpreter never does, and the checks take either.
#
# </details>


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
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Store one tile of C = A·B, accumulated in float32. About 16 lines."""
    ### BEGIN SOLUTION
    m, n = tile_index(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = (m * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    columns = (n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        a_ptrs = a_ptr + rows * stride_am + k[None, :] * stride_ak
        b_ptrs = b_ptr + k[:, None] * stride_bk + columns * stride_bn
        a = tl.load(a_ptrs, mask=(rows < M) & (k[None, :] < K), other=0.0)
        b = tl.load(b_ptrs, mask=(k[:, None] < K) & (columns < N), other=0.0)
        accumulator = tl.dot(a, b, accumulator)
    c_ptrs = c_ptr + rows * N + columns
    tl.store(c_ptrs, accumulator, mask=(rows < M) & (columns < N))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "matmul"}
check("matmul")

# %% nbgrader={"grade": true, "grade_id": "matmul_traffic"}
check("matmul_traffic")

# %% [markdown]
# **See it.** What the first 16 programs request, and how much of it is distinct data, which must come from memory even
# if the L2 cache keeps everything. Task 5 counted strips; here your own kernel's loads are counted, in bytes.


# %%
def multiply(a: torch.Tensor, b: torch.Tensor, group: int = 4):
    """The product of two matrices by your kernel in tiles of 16 × 16, and its trace."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n)
    programs = triton.cdiv(m, 16) * triton.cdiv(n, 16)
    sizes = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP_M": group}
    arguments = (a, b, c, m, n, k, *a.stride(), *b.stride())
    return c, record(matmul_kernel, programs, *arguments, **sizes, outputs="c_ptr")


a, b = torch.randn(256, 16), torch.randn(16, 256)
for group in (1, 4):
    c, trace = multiply(a, b, group)
    requested = different = 0
    for name in ("a_ptr", "b_ptr"):
        rows = trace.of(buffer=name)
        rows = rows[rows["block"] < AT_ONCE]
        requested += 4 * len(rows)
        different += 4 * len(set(rows["offset"].tolist()))
    ratio = f"{requested / different:.1f} to one"
    print(f"GROUP_M = {group}: {requested:,} bytes, {different:,} distinct, {ratio}")
print("largest difference from torch:", (c - a @ b).abs().max().item())

# %% [markdown]
# ## Task 7 · FlashAttention
#
# *About 75 minutes.*
#
# **Goal.** Attention, $O = \mathrm{softmax}(s\,Q K^{\mathsf T})\,V$, written as a product, a softmax and a product
# stores S × S scores, and as many **attention weights**, which are the softmax of the scores: 40 GB each, in float32,
# for one head at S = 100,000. FlashAttention (Dao et al. 2022) never stores them: it computes the softmax **online**, a
# block of keys at a time.
#
# **Derive it first.** For one query with scores $z_i = s\, q \cdot k_i$, keep the largest score so far $m$, the sum
# $l = \sum_i e^{z_i - m}$, and the weighted values $a = \sum_i e^{z_i - m}\, v_i$. A block of new scores raises the
# maximum to $m'$. By which factor must $l$ and $a$ be multiplied, so that they are relative to $m'$? What does the new
# block add? What are $O$ and the **log-sum-exp** $\ln \sum_i e^{z_i}$ at the end?
#
# With numbers: scores 1 and 3 have $m = 3$ and $l = e^{-2} + 1 = 1.135$. Now 5 arrives. The sum relative to 5 is
# $e^{-4} + e^{-2} + 1 = 1.154$: how does it follow from 1.135, without 1 and 3?
#
# **Interface**
#
# | | |
# |---|---|
# | `naive_attention_bytes(S, D, block)` | `int`: bytes that the naive version requests, without a mask |
# | `flash_attention_bytes(S, D, block)` | `int`: bytes that `flash_kernel` requests, with a causal mask |
#
# Both are for one head in float32. S is a multiple of `block`, D at most `block`, and all tiles have side `block`. The
# naive version is three launches, none with a mask: `matmul_kernel` for the scores, `softmax_kernel`, and
# `matmul_kernel` for the result.
#
# | parameter of `flash_kernel` | shape | |
# |---|---|---|
# | `q_ptr`, `k_ptr`, `v_ptr`, `out_ptr` | (heads, S, D) | contiguous |
# | `lse_ptr` | (heads, S), float32 | output: log-sum-exp of the scores $z_i$, for the backward pass |
# | `scale` | | s, above 0 |
# | `BLOCK_M`, `BLOCK_N` | | queries per program and keys per step, at least 16; either may be the larger of the two |
# | `BLOCK_D` | | smallest power of two that D fits into, at least 16 |
#
# **Launch:** ⌈S / BLOCK_M⌉ × heads programs: `tl.program_id(0)` is the block of queries, `tl.program_id(1)` the head.
#
# **Example** (three tokens; the causal mask lets query 0 see key 0 only)
#
# ```python
# q = k = torch.tensor([[[2.0], [2.0], [2.0]]])
# v = torch.tensor([[[2.0], [4.0], [9.0]]])
# out, lse = torch.empty(1, 3, 1), torch.empty(1, 3)
# sizes = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": 16}
# trace = record(flash_kernel, (1, 1), q, k, v, out, lse, 3, 1, 0.25, **sizes)
# [round(value, 3) for value in out.flatten().tolist()]  # → [2.0, 3.0, 5.0]
# [round(value, 3) for value in lse.flatten().tolist()]  # → [1.0, 1.693, 2.099]
# naive_attention_bytes(16, 16, 16), flash_attention_bytes(16, 16, 16)  # → (8192, 4160)
# ```
#
# (8,192 bytes are 8 tiles of 16 × 16 floats: Q, K, scores stored; scores loaded, weights stored; weights, V loaded, O
# stored. 4,160 are 4 such tiles, and 16 log-sum-exps.)
#
# **Requirements**
#
# - Query i sees keys 0 to i. A program's loop ends with the block that holds the key of its last query below S: later
#   blocks are not loaded.
# - Scores, maximum, sum and weighted values are float32. `tl.dot` takes tiles of one dtype: round the weights to
#   V's, `p.to(v.dtype)`, in that product only; the sum takes them unrounded.
# - Q is loaded once, each block of K and of V once for each block of queries that sees any of it; the outputs are
#   stored once (`flash_traffic`).
#
# **Size:** about 4, 3 and 26 lines.
#
# <details><summary>Details</summary>
#
# - `tl.trans(k)` transposes a tile.
# - Every query sees key 0, which is in the first block. From then on its maximum is a number, and $e^{-\infty - m}$ is
#   0 as it should be.
# - `block` in the two functions need not be a power of two. Divide with `//`, so that both return an `int`.
# - Widening float16 tiles before `tl.dot` is right too, but slower.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-7-flash"}
#| export
def naive_attention_bytes(S: int, D: int, block: int) -> int:
    """Bytes that two products and a softmax request, without a mask. About 4 lines."""
    ### BEGIN SOLUTION
    scores = 2 * S * D * (S // block) + S * S
    softmax = 2 * S * S
    result = S * S + S * D * (S // block) + S * D
    return 4 * (scores + softmax + result)
    ### END SOLUTION


def flash_attention_bytes(S: int, D: int, block: int) -> int:
    """Bytes that FlashAttention requests, with a causal mask. About 3 lines."""
    ### BEGIN SOLUTION
    blocks = S // block
    keys_loaded = block * blocks * (blocks + 1) // 2
    return 4 * (2 * S * D + 2 * keys_loaded * D + S)
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
    """Attention of BLOCK_M queries of a head, BLOCK_N keys at once. About 26 lines."""
    ### BEGIN SOLUTION
    first, head = tl.program_id(0) * BLOCK_M, tl.program_id(1) * S
    queries, d = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)[None, :]
    q_offsets = (head + queries)[:, None] * D + d
    q_mask = (queries < S)[:, None] & (d < D)
    q = tl.load(q_ptr + q_offsets, mask=q_mask, other=0.0)
    row_max = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    accumulator = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, min(first + BLOCK_M, S), BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k_offsets = (head + keys)[:, None] * D + d
        k_mask = (keys < S)[:, None] & (d < D)
        k = tl.load(k_ptr + k_offsets, mask=k_mask, other=0.0)
        v = tl.load(v_ptr + k_offsets, mask=k_mask, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(keys[None, :] <= queries[:, None], scores, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p = tl.exp(scores - new_max[:, None])
        rescale = tl.exp(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(p, axis=1)
        accumulator = tl.dot(p.to(v.dtype), v, accumulator * rescale[:, None])
        row_max = new_max
    tl.store(out_ptr + q_offsets, accumulator / row_sum[:, None], mask=q_mask)
    tl.store(lse_ptr + head + queries, row_max + tl.log(row_sum), mask=queries < S)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "attention_bytes"}
check("attention_bytes")

# %% nbgrader={"grade": true, "grade_id": "flash"}
check("flash")

# %% nbgrader={"grade": true, "grade_id": "flash_traffic"}
check("flash_traffic")

# %% [markdown]
# **Predict, then measure.** The lines below are your two functions, the points are counted from your kernels. How many
# times as many bytes does the naive version (without a mask) request as FlashAttention (with one, so that it skips
# almost half of the blocks) at 256 tokens, with D = 16 and blocks of 16? And does this ratio grow with the length?

# %%
guess = None  # bytes of the naive version / bytes of FlashAttention, 256 tokens

# %%
D = BLOCK = 16
lengths = [32, 64, 128, 256]
counted = {"naive": [], "flash": []}
for S in lengths:
    q, k, v = torch.randn(3, S, D)
    weights, out, lse = torch.empty(S, S), torch.empty(S, D), torch.empty(S)
    scores, first = multiply(q, k.T)
    second = record(softmax_kernel, S, scores, weights, S, BLOCK=S, outputs="y_ptr")
    _, third = multiply(weights, v)
    naive = [total(one).asked_bytes for one in (first, second, third)]
    counted["naive"].append(sum(naive))
    sizes = {"BLOCK_M": BLOCK, "BLOCK_N": BLOCK, "BLOCK_D": D}
    arguments, outputs = (q, k, v, out, lse, S, D, D**-0.5), ["out_ptr", "lse_ptr"]
    flash = record(flash_kernel, (S // BLOCK, 1), *arguments, **sizes, outputs=outputs)
    counted["flash"].append(total(flash).asked_bytes)

predicted = {"naive": naive_attention_bytes, "flash": flash_attention_bytes}
figure = go.Figure()
axis = list(range(32, 257, 16))
for name, formula in predicted.items():
    bytes_of = [formula(S, D, BLOCK) for S in axis]
    figure.add_scatter(x=axis, y=bytes_of, mode="lines", name=f"{name}, predicted")
    points = {"mode": "markers", "marker_size": 10, "name": f"{name}, counted"}
    figure.add_scatter(x=lengths, y=counted[name], **points)
figure.update_xaxes(type="log", title="tokens", tickvals=lengths)
figure.update_yaxes(type="log", title="bytes requested", dtick=1)
show(figure, alt="Bytes of naive attention and FlashAttention by length", height=440)
naive_bytes, flash_bytes = (values[-1] for values in counted.values())
check.predict(guess, naive_bytes / flash_bytes, "times as many bytes")

# %% [markdown]
# Both curves end up quadratic: FlashAttention's, too, because keys and values are loaded again for each block of
# queries. But those are the same S × D numbers again and again, which the L2 cache serves; each of the S × S scores is
# a new number. And a larger block lowers the flash curve, while the scores stay what they are. (Of the ratio of about
# 6, a factor of almost 2 comes from the causal mask, which lets `flash_kernel` skip blocks; the rest is the scores and
# weights that it does not store.)
#
# ## Task 8 · Decode attention over a paged KV cache
#
# *About 45 minutes.*
#
# **Goal.** To generate its next token, a sequence has one query per head, and attends to all keys and values in its KV
# cache. Servers cut the cache into **blocks** of `BLOCK_SIZE` tokens, as in [lab 11](11-serving.ipynb), so the blocks
# of a sequence may lie anywhere in memory, and a **block table** lists them: write the kernel that reads the cache
# through the table (PagedAttention, Kwon et al. 2023).
#
# In grouped-query attention, `GROUP` query heads share one KV head. A program takes all query heads of one group, so
# that each key it loads serves `GROUP` queries.
#
# **Interface**
#
# | parameter | shape | |
# |---|---|---|
# | `q_ptr`, `out_ptr` | (sequences, heads, D) | the heads of a group are neighbours |
# | `k_ptr`, `v_ptr` | (num_blocks, BLOCK_SIZE, kv_heads, D) | the KV cache |
# | `block_table_ptr` | (sequences, stride_table), int32 | ids of the blocks of each sequence, in order |
# | `seq_lens_ptr` | (sequences,), int32 | tokens in the cache, at least 1 |
# | `stride_table` | | elements from one row of the block table to the next |
# | `scale` | | s, above 0 |
# | `D`, `GROUP`, `BLOCK_SIZE` | | powers of two; D and BLOCK_SIZE at least 16 |
#
# **Launch:** sequences × kv_heads programs: `tl.program_id(0)` is the sequence, `tl.program_id(1)` the KV head, and
# `tl.num_programs(1)` the number of KV heads.
#
# **Example** (17 tokens in blocks 2 and 0; all keys are equal, so the output is the mean of the values)
#
# ```python
# q, k, v = torch.zeros(1, 2, 16), torch.zeros(3, 16, 1, 16), torch.full((3, 16, 1, 16), 100.0)
# v[2], v[0, 0] = 1.0, 18.0
# block_table, seq_lens = torch.tensor([[2, 0]], dtype=torch.int32), torch.tensor([17], dtype=torch.int32)
# out = torch.empty(1, 2, 16)
# arguments = (q, k, v, block_table, seq_lens, out, 2, 0.25)
# trace = record(decode_kernel, (1, 1), *arguments, D=16, GROUP=2, BLOCK_SIZE=16)
# out[0, :, 0].tolist()  # → [2.0, 2.0]
# ```
#
# (16 tokens of block 2 have value 1, the first of block 0 has 18: (16 + 18) / 17 = 2. The 100s are in slots that hold
# no token.)
#
# **Requirements**
#
# - Online softmax as in Task 7, one block of the cache per step, all in float32, the weights too.
# - Slots of the cache beyond the sequence's end are undefined, perhaps NaN, and entries of the block table beyond
#   the sequence's last block may be any number: load neither.
# - Each cached key and value is loaded once per group, each block id once, and nothing else of the cache
#   (`decode_traffic`).
#
# **Size:** about 24 lines.
#
# <details><summary>Details</summary>
#
# - `tl.dot` wants tiles of at least 16 rows, and a group seldom has that many queries. Here broadcasting and a sum do
#   as well: `tl.sum(q[:, None, :] * k[None, :, :], axis=2)`.
# - Keep maximum and sum apart: next to a maximum of 10³⁰, ln l is lost.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-8-decode"}
#| export
@triton.jit
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    block_table_ptr,
    seq_lens_ptr,
    out_ptr,
    stride_table,
    scale,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Attention of a group's queries over a sequence's blocks. About 24 lines."""
    ### BEGIN SOLUTION
    seq, kv_head, kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    length = tl.load(seq_lens_ptr + seq)
    d, slots = tl.arange(0, D)[None, :], tl.arange(0, BLOCK_SIZE)
    heads = (seq * kv_heads + kv_head) * GROUP + tl.arange(0, GROUP)
    q_offsets = heads[:, None] * D + d
    q = tl.load(q_ptr + q_offsets).to(tl.float32)
    row_max = tl.full((GROUP,), -float("inf"), tl.float32)
    row_sum = tl.zeros((GROUP,), tl.float32)
    accumulator = tl.zeros((GROUP, D), tl.float32)
    for i in range(0, tl.cdiv(length, BLOCK_SIZE)):
        block = tl.load(block_table_ptr + seq * stride_table + i)
        filled = i * BLOCK_SIZE + slots < length
        rows = (block * BLOCK_SIZE + slots) * kv_heads + kv_head
        kv_offsets, mask = rows[:, None] * D + d, filled[:, None]
        k = tl.load(k_ptr + kv_offsets, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + kv_offsets, mask=mask, other=0.0).to(tl.float32)
        scores = tl.sum(q[:, None, :] * k[None, :, :], axis=2) * scale
        scores = tl.where(filled[None, :], scores, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p = tl.exp(scores - new_max[:, None])
        rescale = tl.exp(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(p, axis=1)
        weighted = tl.sum(p[:, :, None] * v[None, :, :], axis=1)
        accumulator = accumulator * rescale[:, None] + weighted
        row_max = new_max
    tl.store(out_ptr + q_offsets, accumulator / row_sum[:, None])
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "decode"}
check("decode")

# %% nbgrader={"grade": true, "grade_id": "decode_traffic"}
check("decode_traffic")

# %% [markdown]
# **Predict, then measure.** Eight query heads, two sequences of 37 and 20 tokens, blocks of 16, D = 16. How many times
# as many FLOPs per byte does a single KV head give as eight KV heads? (All bytes requested count: queries, output and
# block table too.)

# %%
guess = None  # FLOPs per byte with 1 KV head / with 8 KV heads

# %%
seq_lens = torch.tensor([37, 20], dtype=torch.int32)
block_table = torch.tensor([[5, 1, 3], [0, 4, -1]], dtype=torch.int32)
bars = {"keys and values": [], "everything else": []}
intensity = {}
for kv_heads in (8, 4, 2, 1):
    q, out = torch.randn(2, 8, 16), torch.empty(2, 8, 16)
    k, v = torch.randn(2, 6, 16, kv_heads, 16)
    sizes = {"D": 16, "GROUP": 8 // kv_heads, "BLOCK_SIZE": 16}
    arguments = (q, k, v, block_table, seq_lens, out, 3, 0.25)
    trace = record(decode_kernel, (2, kv_heads), *arguments, **sizes, outputs="out_ptr")
    cached = 4 * sum(len(trace.of(buffer=name)) for name in ("k_ptr", "v_ptr"))
    bars["keys and values"].append(cached)
    bars["everything else"].append(total(trace).asked_bytes - cached)
    flops = 4 * 8 * 16 * int(seq_lens.sum())
    intensity[kv_heads] = flops / total(trace).asked_bytes
names = [f"{n}<br>({value:.1f})" for n, value in intensity.items()]
figure = go.Figure([go.Bar(x=names, y=y, name=name) for name, y in bars.items()])
figure.update_layout(barmode="stack", yaxis_title="bytes requested", height=380)
figure.update_xaxes(title="KV heads (FLOPs per byte)")
show(figure, alt="Bytes of a decode step by number of KV heads")
check.predict(guess, intensity[1] / intensity[8], "times as many FLOPs per byte")

# %% [markdown]
# Each key and value is used by `GROUP` queries, so the FLOPs per byte of cache grow with `GROUP`: by 8 if nothing else
# were moved. Even so, a decode step stays far below the ridge point of a GPU: with 8 queries per key in bf16 it does 8
# FLOPs per byte, where an H100 needs about 300.
#
# ## With a GPU: points for speed
#
# Ten extra points are for speed; without a GPU you lose nothing. On a machine with a GPU, grading compiles your kernels
# and times them next to torch's softmax, cuBLAS and torch's fused attention, at sizes of real models on the same GPU: 2
# points for a softmax at 0.65 of torch's speed, 4 for a product at 0.4 of cuBLAS, 4 for attention at 0.35 (softmax in
# float32, the others in float16); partial points start at 0.4, 0.1 and 0.1. The measured time includes generating the
# random inputs and reading the results, so aim higher. Launches are the course's, with tiles of 128 × 128 × 32 for the
# product, and 128 queries by 64 keys for attention. So look at your innermost loop: what in it need not be there?
#
# To try it, start JupyterLab with the environment variable `TRITON_INTERPRET` unset, run the setup cells at the top and
# the exported cells, then the one below.

# %%
for name in ("softmax_traffic", "matmul_traffic", "flash_traffic"):
    check.speed(name)

# %% [markdown]
# ## Stretch: no points
#
# - **Split the keys.** One program per sequence and KV head leaves most SMs idle. Split a long sequence among several
#   programs, each of which stores its output and log-sum-exp, and write a second kernel that combines them
#   (Flash-Decoding).
# - **Skip the mask.** Blocks of keys that all queries of a program see need no `tl.where`. Split the loop of
#   `flash_kernel` in two. What fraction of the blocks still needs the mask at 8,192 tokens?
# - **Backward.** Recompute the weights from the log-sum-exp, and write dQ, dK and dV (Dao 2023, algorithm 2).
#
# ## What you can read now
#
# - Triton, `python/tutorials/02-fused-softmax.py`, `03-matrix-multiplication.py` (its `GROUP_SIZE_M` is Task 5) and
#   `06-fused-attention.py` (`_attn_fwd` and `_attn_fwd_inner` are Task 7).
# - vLLM, `triton_decode_attention.py` and `triton_unified_attention.py` in `attention/ops`: a block table as in Task 8,
#   and split keys as in the first stretch task.
# - Liger Kernel, `src/liger_kernel/ops/rms_norm.py`: `_rms_norm_backward_kernel` keeps the partial sums of Task 4, one
#   program per SM.
# - The course's own `mlsys_lab/kernels`: `matmul/triton_kernels.py` (`tile_index`), `norms/triton_kernels.py`
#   (`sum_rows_kernel`), `attention` and `decode_attention`.
#
# ## Test yourself
#
# <details><summary>Your softmax holds a whole row. From which length on does it not fit, and what does the online
# softmax cost in traffic?</summary>
#
# An SM has 65,536 registers of 4 bytes, so rows of some ten thousand elements start to spill. An online softmax reads a
# row twice, once for maximum and sum, once for the quotients: 3 bytes moved for every 2 that your kernel moves.
# Attention avoids the second read, because it can rescale its accumulator.
#
# </details>
#
# <details><summary>With bf16 and square tiles, from which tile side on is a large product compute-bound on an H100
# without help from a cache?</summary>
#
# A step along K loads 2·n numbers of 2 bytes per unit of K and does 2·n² FLOPs: n/2 FLOPs per byte. The ridge point is
# about 295 FLOPs per byte, so n must be about 590. Tiles of 128 are fast only because the L2 cache serves most loads.
#
# </details>
#
# <details><summary>Why does the backward pass of FlashAttention want the log-sum-exp, and not m and l?</summary>
#
# A weight is $e^{z - m} / l = e^{z - (m + \ln l)}$: one number per query is enough, and no division is left.
#
# </details>
#
# <details><summary>Why does `rms_norm_backward_kernel` not add its partial sums to dw with atomics?</summary>
#
# Float addition is not associative, and atomics arrive in any order: two runs would differ in the last bits, which
# makes bugs hard to reproduce. They would also need a dw that is cleared first, and kept in float32.
#
# </details>
#
# <details><summary>A decode program takes all blocks of its sequence. What is idle, and what would programs that split
# the sequence have to exchange?</summary>
#
# With 8 sequences and 8 KV heads there are 64 programs for 132 SMs, and the longest sequence decides when the step
# ends. Each part yields an output and a log-sum-exp L; the combined output is the mean of the outputs weighted by
# $e^{L}$.
#
# </details>
#
# When all checks pass, save the notebook and run `mlsys-lab check triton` in a terminal.
