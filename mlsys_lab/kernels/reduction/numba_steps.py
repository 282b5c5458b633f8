"""Sum of a tensor in Numba's CUDA, step by step.

The first five steps leave one partial sum per block and are launched again on these until one is left. `THREADS` is a
power of two.
"""

from __future__ import annotations

import math

import torch

from mlsys_lab.kernels import arguments
from mlsys_lab.kernels.numba_language import cuda, float32
from mlsys_lab.kernels.numba_launch import Launcher, launch

DTYPES = (torch.float32, torch.float64)
THREADS = 128
WARPS = THREADS // 32
MAX_BLOCKS = 1056
"""Largest grid: eight for each of an H100's 132 multiprocessors."""

STEPS = {
    "interleaved": "a tree with partners 1, 2, 4 … apart: every warp diverges",
    "strided": "the same tree by consecutive threads: whole warps retire, but accesses have bank conflicts",
    "sequential": "partners THREADS / 2 … 2, 1 apart: whole warps retire, without bank conflicts",
    "first_add": "each thread adds two elements while loading: half the blocks, no idle thread at first",
    "warp_shuffle": "a warp reduces by shuffles in registers: shared memory holds one number per warp",
    "grid_stride": "each thread adds many elements first, each block ends with one atomic: one launch",
}


@cuda.jit
def interleaved(x, sums):
    """Sum by block: thread t adds if t is a multiple of twice the distance."""
    part = cuda.shared.array(THREADS, x.dtype)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    part[t] = x[i] if i < x.size else 0
    cuda.syncthreads()
    apart = 1
    while apart < THREADS:
        if t % (2 * apart) == 0:
            part[t] += part[t + apart]
        cuda.syncthreads()
        apart *= 2
    if t == 0:
        sums[cuda.blockIdx.x] = part[0]


@cuda.jit
def strided(x, sums):
    """Sum by block: thread t takes the t-th pair, so that the first threads of the block make all additions."""
    part = cuda.shared.array(THREADS, x.dtype)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    part[t] = x[i] if i < x.size else 0
    cuda.syncthreads()
    apart = 1
    while apart < THREADS:
        left = 2 * apart * t
        if left < THREADS:
            part[left] += part[left + apart]
        cuda.syncthreads()
        apart *= 2
    if t == 0:
        sums[cuda.blockIdx.x] = part[0]


@cuda.jit
def sequential(x, sums):
    """Sum by block: the lower half of the threads adds the upper half's numbers, again and again."""
    part = cuda.shared.array(THREADS, x.dtype)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    part[t] = x[i] if i < x.size else 0
    cuda.syncthreads()
    apart = THREADS // 2
    while apart > 0:
        if t < apart:
            part[t] += part[t + apart]
        cuda.syncthreads()
        apart //= 2
    if t == 0:
        sums[cuda.blockIdx.x] = part[0]


@cuda.jit
def first_add(x, sums):
    """Sum by block of 2·THREADS numbers: each thread adds two as it loads them."""
    part = cuda.shared.array(THREADS, x.dtype)
    t = cuda.threadIdx.x
    i = 2 * THREADS * cuda.blockIdx.x + t
    mine = float32(0)
    if i < x.size:
        mine = x[i]
    if i + THREADS < x.size:
        mine += x[i + THREADS]
    part[t] = mine
    cuda.syncthreads()
    apart = THREADS // 2
    while apart > 0:
        if t < apart:
            part[t] += part[t + apart]
        cuda.syncthreads()
        apart //= 2
    if t == 0:
        sums[cuda.blockIdx.x] = part[0]


@cuda.jit(device=True)
def warp_sum(value):
    """Sum of `value` over a warp, in lane 0."""
    apart = 16
    while apart > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, apart)
        apart //= 2
    return value


@cuda.jit(device=True)
def block_sum(value, x):
    """Sum of `value` over a block, in thread 0; `x` lends its precision."""
    part = cuda.shared.array(WARPS, x.dtype)
    t = cuda.threadIdx.x
    value = warp_sum(value)
    if t % 32 == 0:
        part[t // 32] = value
    cuda.syncthreads()
    value = float32(0)
    if t < WARPS:
        value = part[t]
    if t < 32:
        value = warp_sum(value)
    return value


@cuda.jit
def warp_shuffle(x, sums):
    """Sum by block with one barrier, in place of one for each level of the tree."""
    i = 2 * THREADS * cuda.blockIdx.x + cuda.threadIdx.x
    mine = float32(0)
    if i < x.size:
        mine = x[i]
    if i + THREADS < x.size:
        mine += x[i + THREADS]
    mine = block_sum(mine, x)
    if cuda.threadIdx.x == 0:
        sums[cuda.blockIdx.x] = mine


@cuda.jit
def grid_stride(x, sums):
    """Sum into one number, which must be 0 before; the order of the blocks' additions is the device's."""
    mine = float32(0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        mine += x[i]
    mine = block_sum(mine, x)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(sums, 0, mine)


KERNELS = {
    "interleaved": interleaved,
    "strided": strided,
    "sequential": sequential,
    "first_add": first_add,
    "warp_shuffle": warp_shuffle,
}
NUMBERS = {"first_add": 2 * THREADS, "warp_shuffle": 2 * THREADS}
"""Numbers that a block sums, by step, where it is not one number a thread."""


def run(step: str, x: torch.Tensor, *, blocks: int = MAX_BLOCKS, launch: Launcher = launch) -> torch.Tensor:
    """Sum of a contiguous tensor by one of `STEPS`, as a tensor of no dimension; 0 for an empty one.

    `blocks` is the most that "grid_stride" starts. Raises InputError for an unknown step and another dtype.
    """
    arguments.check_step(step, STEPS)
    arguments.check_contiguous(DTYPES, x=x)
    if x.numel() == 0:
        return x.new_zeros(())
    left = x.view(-1)
    if step == "grid_stride":
        added = x.new_zeros(1)
        launch(grid_stride, min(math.ceil(left.numel() / THREADS), blocks), THREADS, left, added)
        return added[0]
    while True:
        sums = x.new_empty(math.ceil(left.numel() / NUMBERS.get(step, THREADS)))
        launch(KERNELS[step], sums.numel(), THREADS, left, sums, outputs=("sums",))
        if sums.numel() == 1:
            return sums[0]
        left = sums
