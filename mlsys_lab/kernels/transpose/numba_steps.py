"""Transpose of a matrix in Numba's CUDA, step by step."""

from __future__ import annotations

import math

import torch

from mlsys_lab.kernels import arguments
from mlsys_lab.kernels.numba_language import cuda
from mlsys_lab.kernels.numba_launch import Launcher, launch

DTYPES = (torch.float16, torch.float32, torch.float64)
TILE = 32
"""Side of the tile that a block transposes: one warp wide."""
PITCH = TILE + 1
"""Elements in a row of a padded tile; Numba takes only constants, no sums, as the shape of a shared array."""
ROWS = 8
"""Rows of threads in a block: each thread moves TILE / ROWS elements."""

STEPS = {
    "naive": "one thread per element: loads are coalesced, stores are a row apart",
    "tiled": "a tile is transposed in shared memory: both are coalesced, but a column of the tile lies in one bank",
    "padded": "the tile padded by one column: a column lies in 32 banks",
}


@cuda.jit
def naive(x, y):
    """Transpose with one element per thread; neighbouring threads store to neighbouring rows of y."""
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        y[column, row] = x[row, column]


@cuda.jit
def tiled(x, y):
    """Transpose with tiles in shared memory: a block loads rows of x and stores rows of y."""
    tile = cuda.shared.array((TILE, TILE), x.dtype)
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(ty, TILE, ROWS):
        if top + k < x.shape[0] and left + tx < x.shape[1]:
            tile[k, tx] = x[top + k, left + tx]
    cuda.syncthreads()
    for k in range(ty, TILE, ROWS):
        if left + k < y.shape[0] and top + tx < y.shape[1]:
            y[left + k, top + tx] = tile[tx, k]


@cuda.jit
def padded(x, y):
    """Transpose with tiles of row length PITCH, so that a column's elements lie in different banks."""
    tile = cuda.shared.array((TILE, PITCH), x.dtype)
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(ty, TILE, ROWS):
        if top + k < x.shape[0] and left + tx < x.shape[1]:
            tile[k, tx] = x[top + k, left + tx]
    cuda.syncthreads()
    for k in range(ty, TILE, ROWS):
        if left + k < y.shape[0] and top + tx < y.shape[1]:
            y[left + k, top + tx] = tile[tx, k]


def run(step: str, x: torch.Tensor, *, launch: Launcher = launch) -> torch.Tensor:
    """Contiguous transpose of a contiguous matrix, by one of `STEPS`.

    Raises InputError for an unknown step and for a tensor that is no such matrix.
    """
    arguments.check_step(step, STEPS)
    arguments.check_contiguous(DTYPES, x=x)
    arguments.check_rank(2, x=x)
    rows, columns = x.shape
    y = x.new_empty(columns, rows)
    if y.numel() == 0:
        return y
    if step == "naive":
        launch(naive, (math.ceil(columns / TILE), math.ceil(rows / ROWS)), (TILE, ROWS), x, y, outputs=("y",))
    else:
        grid = (math.ceil(columns / TILE), math.ceil(rows / TILE))
        launch(tiled if step == "tiled" else padded, grid, (TILE, ROWS), x, y, outputs=("y",))
    return y
