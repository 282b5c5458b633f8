"""One solution of each puzzle in Numba's CUDA."""

from __future__ import annotations

from mlsys_lab.kernels.numba_language import cuda, float32
from mlsys_lab.kernels.puzzles.sizes import MAX_TAPS, THREADS

WINDOW = THREADS + 2
"""Size of a block's tile in `pooling`: its numbers and the two neighbours outside of it."""
REACH = THREADS + MAX_TAPS - 1
"""Size of a block's tile in `convolution`: its numbers and those that the filter reaches beyond them."""


@cuda.jit
def each(x, out):
    """Solution of "map": no guard, for there are as many threads as numbers."""
    i = cuda.threadIdx.x
    out[i] = float32(1.8) * x[i] + float32(32)


@cuda.jit
def both(x, y, out):
    """Solution of "zip": each thread reads a number of either input."""
    i = cuda.threadIdx.x
    out[i] = abs(x[i] - y[i])


@cuda.jit
def guard(x, out):
    """Solution of "guard": threads without a number do nothing; a number that is used twice is read once."""
    i = cuda.threadIdx.x
    if i < x.size:
        value = x[i]
        out[i] = value * value


@cuda.jit
def plane(x, out):
    """Solution of "map_2d": x runs along a row, so that a warp's numbers lie side by side."""
    column, row = cuda.threadIdx.x, cuda.threadIdx.y
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = float32(1) - x[row, column]


@cuda.jit
def broadcast(x, y, out):
    """Solution of "broadcast": each thread reads one number of the column and one of the row."""
    column, row = cuda.threadIdx.x, cuda.threadIdx.y
    if row < y.size and column < x.size:
        out[row, column] = x[column] - y[row]


@cuda.jit
def blocks(x, out):
    """Solution of "blocks": a thread's number is counted over all blocks."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < x.size:
        out[i] = min(max(x[i], float32(0)), float32(1))


@cuda.jit
def shared(x, out):
    """Solution of "shared": the turn is made where order costs nothing; the barrier stands outside of every branch."""
    tile = cuda.shared.array(THREADS, float32)
    t, first = cuda.threadIdx.x, cuda.blockIdx.x * THREADS
    here = min(THREADS, x.size - first)
    if t < here:
        tile[t] = x[first + t]
    cuda.syncthreads()
    if t < here:
        out[first + t] = tile[here - 1 - t]


@cuda.jit
def pooling(x, out):
    """Solution of "pooling": tile[t + 1] is the thread's number; the first two threads fetch the outer neighbours."""
    tile = cuda.shared.array(WINDOW, float32)
    t, first = cuda.threadIdx.x, cuda.blockIdx.x * THREADS
    i = first + t
    if i < x.size:
        tile[t + 1] = x[i]
    if t == 0 and first > 0:
        tile[0] = x[first - 1]
    if t == 1 and first + THREADS < x.size:
        tile[THREADS + 1] = x[first + THREADS]
    cuda.syncthreads()
    if i < x.size:
        most = tile[t + 1]
        if i > 0:
            most = max(most, tile[t])
        if i + 1 < x.size:
            most = max(most, tile[t + 2])
        out[i] = most


@cuda.jit
def dot(x, y, out):
    """Solution of "dot": each thread adds up its products, then the threads' sums meet in a tree."""
    part = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for i in range(t, x.size, THREADS):
        total += x[i] * y[i]
    part[t] = total
    cuda.syncthreads()
    apart = THREADS // 2
    while apart > 0:
        if t < apart:
            part[t] += part[t + apart]
        cuda.syncthreads()
        apart //= 2
    if t == 0:
        out[0] = part[0]


@cuda.jit
def convolution(x, taps, out):
    """Solution of "convolution": a block fetches what its windows cover, and the filter, once."""
    tile = cuda.shared.array(REACH, float32)
    weights = cuda.shared.array(MAX_TAPS, float32)
    t, first = cuda.threadIdx.x, cuda.blockIdx.x * THREADS
    for k in range(t, min(THREADS + taps.size - 1, x.size - first), THREADS):
        tile[k] = x[first + k]
    if t < taps.size:
        weights[t] = taps[t]
    cuda.syncthreads()
    if first + t < out.size:
        total = float32(0)
        for k in range(taps.size):
            total += tile[t + k] * weights[k]
        out[first + t] = total


@cuda.jit
def axis_sum(x, out):
    """Solution of "axis_sum": a block's threads go along its row side by side, then add up in a tree."""
    part = cuda.shared.array(THREADS, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    total = float32(0)
    for column in range(t, x.shape[1], THREADS):
        total += x[row, column]
    part[t] = total
    cuda.syncthreads()
    apart = THREADS // 2
    while apart > 0:
        if t < apart:
            part[t] += part[t + apart]
        cuda.syncthreads()
        apart //= 2
    if t == 0:
        out[row] = part[0]


KERNELS = {
    "map": each,
    "zip": both,
    "guard": guard,
    "map_2d": plane,
    "broadcast": broadcast,
    "blocks": blocks,
    "shared": shared,
    "pooling": pooling,
    "dot": dot,
    "convolution": convolution,
    "axis_sum": axis_sum,
}
"""The solving kernel of each puzzle, by the puzzle's name."""
