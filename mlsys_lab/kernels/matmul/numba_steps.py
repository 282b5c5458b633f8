"""a·b in Numba's CUDA, step by step, in fp32 and fp64.

A block computes ROWS × COLUMNS elements of c, DEPTH steps along k at a time. The next step, 16-byte loads and stores,
is not possible in Numba, whose arrays have scalar elements; the CUDA C++ ladder has it.
"""

from __future__ import annotations

import math

import torch

from mlsys_lab.kernels import arguments
from mlsys_lab.kernels.numba_language import cuda, float32
from mlsys_lab.kernels.numba_launch import Launcher, launch

DTYPES = (torch.float32, torch.float64)
TILE = 16
"""Side of the square tiles of "shared_tile", whose blocks have one thread per element of a tile."""
ROWS = 64
COLUMNS = 64
DEPTH = 8
UP = 8
"""Rows that a thread of "register_tile_1d" computes."""
SIDE = 4
"""Rows, and columns, that a thread of "register_tile_2d" computes."""
THREADS_1D = ROWS * COLUMNS // UP
THREADS_2D = ROWS * COLUMNS // (SIDE * SIDE)
ACROSS = COLUMNS // SIDE
"""Threads along a row of a "register_tile_2d" block, and the stride between the columns (and rows) of one thread."""

STEPS = {
    "naive": "one thread per element, neighbours in neighbouring rows",
    "coalesced": "neighbours in neighbouring columns: a warp loads and stores consecutive elements of a row",
    "shared_tile": "tiles in shared memory: a block loads each of its elements once",
    "register_tile_1d": "a thread computes 8 elements of a column: b's element stays in a register",
    "register_tile_2d": "a thread computes 4×4 elements: 8 loads from shared memory for 16 multiply-adds",
}


@cuda.jit
def naive(a, b, c):
    """Product with one element of c per thread; neighbours along x go down a column of c."""
    row, column = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, column]
        c[row, column] = total


@cuda.jit
def coalesced(a, b, c):
    """Product with one element of c per thread; neighbours along x go along a row of c."""
    column, row = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, column]
        c[row, column] = total


@cuda.jit
def shared_tile(a, b, c):
    """Product with tiles in shared memory: each thread loads one element of each tile and uses TILE of each."""
    a_tile = cuda.shared.array((TILE, TILE), a.dtype)
    b_tile = cuda.shared.array((TILE, TILE), a.dtype)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    total = float32(0)
    for start in range(0, a.shape[1], TILE):
        a_tile[ty, tx] = a[row, start + tx] if row < a.shape[0] and start + tx < a.shape[1] else float32(0)
        b_tile[ty, tx] = b[start + ty, column] if start + ty < b.shape[0] and column < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(TILE):
            total += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


@cuda.jit(device=True)
def fetch(a, b, a_tile, b_tile, top, left, start, threads):
    """Load both tiles of a block from `start` along k, with zeros outside the matrices."""
    t = cuda.threadIdx.x
    for n in range(t, ROWS * DEPTH, threads):
        row, k = n // DEPTH, n % DEPTH
        inside = top + row < a.shape[0] and start + k < a.shape[1]
        a_tile[row, k] = a[top + row, start + k] if inside else float32(0)
    for n in range(t, DEPTH * COLUMNS, threads):
        k, column = n // COLUMNS, n % COLUMNS
        inside = start + k < b.shape[0] and left + column < b.shape[1]
        b_tile[k, column] = b[start + k, left + column] if inside else float32(0)


@cuda.jit
def register_tile_1d(a, b, c):
    """Product with UP elements of c per thread: lanes of a warp share the elements of a and have their own of b."""
    a_tile = cuda.shared.array((ROWS, DEPTH), a.dtype)
    b_tile = cuda.shared.array((DEPTH, COLUMNS), a.dtype)
    totals = cuda.local.array(UP, a.dtype)
    top, left = cuda.blockIdx.y * ROWS, cuda.blockIdx.x * COLUMNS
    column, first = cuda.threadIdx.x % COLUMNS, cuda.threadIdx.x // COLUMNS * UP
    for i in range(UP):
        totals[i] = 0
    for start in range(0, a.shape[1], DEPTH):
        fetch(a, b, a_tile, b_tile, top, left, start, THREADS_1D)
        cuda.syncthreads()
        for k in range(DEPTH):
            mine = b_tile[k, column]
            for i in range(UP):
                totals[i] += a_tile[first + i, k] * mine
        cuda.syncthreads()
    for i in range(UP):
        if top + first + i < c.shape[0] and left + column < c.shape[1]:
            c[top + first + i, left + column] = totals[i]


@cuda.jit
def register_tile_2d(a, b, c):
    """Product with SIDE × SIDE elements of c per thread: a shared-memory element is used in SIDE multiply-adds."""
    a_tile = cuda.shared.array((ROWS, DEPTH), a.dtype)
    b_tile = cuda.shared.array((DEPTH, COLUMNS), a.dtype)
    totals = cuda.local.array((SIDE, SIDE), a.dtype)
    of_a = cuda.local.array(SIDE, a.dtype)
    of_b = cuda.local.array(SIDE, a.dtype)
    top, left = cuda.blockIdx.y * ROWS, cuda.blockIdx.x * COLUMNS
    tx, ty = cuda.threadIdx.x % ACROSS, cuda.threadIdx.x // ACROSS
    for i in range(SIDE):
        for j in range(SIDE):
            totals[i, j] = 0
    for start in range(0, a.shape[1], DEPTH):
        fetch(a, b, a_tile, b_tile, top, left, start, THREADS_2D)
        cuda.syncthreads()
        for k in range(DEPTH):
            for i in range(SIDE):
                of_a[i] = a_tile[ty + i * ACROSS, k]
                of_b[i] = b_tile[k, tx + i * ACROSS]
            for i in range(SIDE):
                for j in range(SIDE):
                    totals[i, j] += of_a[i] * of_b[j]
        cuda.syncthreads()
    for i in range(SIDE):
        for j in range(SIDE):
            row, column = top + ty + i * ACROSS, left + tx + j * ACROSS
            if row < c.shape[0] and column < c.shape[1]:
                c[row, column] = totals[i, j]


KERNELS = {
    "naive": naive,
    "coalesced": coalesced,
    "shared_tile": shared_tile,
    "register_tile_1d": register_tile_1d,
    "register_tile_2d": register_tile_2d,
}
BLOCKS = {
    "naive": (32, 4),
    "coalesced": (32, 4),
    "shared_tile": (TILE, TILE),
    "register_tile_1d": (THREADS_1D,),
    "register_tile_2d": (THREADS_2D,),
}
TILES = {
    "naive": (4, 32),
    "coalesced": (32, 4),
    "shared_tile": (TILE, TILE),
    "register_tile_1d": (COLUMNS, ROWS),
    "register_tile_2d": (COLUMNS, ROWS),
}
"""Columns and rows of c that a block computes, by step."""


def run(step: str, a: torch.Tensor, b: torch.Tensor, *, launch: Launcher = launch) -> torch.Tensor:
    """Product a·b of two contiguous matrices, by one of `STEPS`.

    Raises InputError for an unknown step and for tensors that do not match.
    """
    arguments.check_step(step, STEPS)
    arguments.check_contiguous(DTYPES, a=a, b=b)
    arguments.check_rank(2, a=a, b=b)
    (m, k), n = a.shape, b.shape[1]
    arguments.check_shape((k, n), b=b)
    if 0 in (m, n, k):
        return a.new_zeros(m, n)
    c = a.new_empty(m, n)
    wide, high = TILES[step]
    across, down = math.ceil(n / wide), math.ceil(m / high)
    launch(KERNELS[step], (down, across) if step == "naive" else (across, down), BLOCKS[step], a, b, c, outputs=("c",))
    return c
