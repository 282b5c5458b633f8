"""Calls of task 8: the transpose and the matrix product in CUDA C++, from the learner's texts.

The text has to compile for a GPU, and is then run by the emulator, in both orders of blocks and threads: what the other
order gives is named after it. torch is imported where it is used: the lab's other calls need none.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mlsys_lab.checks.learner.cuda.launches import ROWS, SIDE, TILE, blocks
from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.texts import text_of
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from mlsys_lab.kernels.cuda_cpp import Launcher, Source
    from mlsys_lab.kernels.cuda_cpp.launcher import Argument, Extent

ARCH = "sm_90"
"""A GPU that the texts are compiled for."""
OTHER_ORDER = "{}, last to first"
EVERY = 3
"""One block in so many is not run, so that no other can do its work."""


def is_run(x: Any, y: Any, skipped: int) -> Any:
    """Which blocks, by their x and y, are run: all where `skipped` is no remainder."""
    return (x + 2 * y) % EVERY != skipped


def transpose(artifact: Any, arrays: Arrays) -> Arrays:
    """What `transpose` leaves in y, in either order, with some of the blocks."""
    return _emulate(artifact, "transpose", launch_transpose, arrays, "y")


def matmul(artifact: Any, arrays: Arrays) -> Arrays:
    """What `matmul` leaves in c, in either order, with some of the blocks; and the side of a block's square."""
    found = _emulate(artifact, "matmul", launch_matmul, arrays, "c")
    return found | {"CPP_TILE": np.array(side_of(artifact))}


def side_of(artifact: Any) -> int:
    """CPP_TILE; InputError where it is no side of a square."""
    tile = artifact.CPP_TILE
    if isinstance(tile, bool) or not isinstance(tile, int) or not 1 <= tile <= 1 << 20:
        raise InputError("CPP_TILE is no side of a tile", got=repr(tile)[:80], expected="a whole number from 1 on")
    return tile


def launch_transpose(artifact: Any, x: Tensor, y: Tensor, *, launch: Launcher | None = None) -> None:
    """y (columns, rows) = x (rows, columns) transposed; `launch` stands in for a GPU."""
    rows, columns = x.shape
    grid = (blocks(columns, TILE), blocks(rows, TILE))
    _launch(artifact, "transpose", grid, (TILE, ROWS), x, y, rows, columns, launch=launch)


def launch_matmul(artifact: Any, a: Tensor, b: Tensor, c: Tensor, *, launch: Launcher | None = None) -> None:
    """c (m, n) = a (m, k) · b (k, n); `launch` stands in for a GPU."""
    (m, k), n, tile = a.shape, b.shape[1], side_of(artifact)
    grid = (blocks(n, tile), blocks(m, tile))
    _launch(artifact, "matmul", grid, (SIDE, SIDE), a, b, c, m, n, k, launch=launch)


def _launch(
    artifact: Any,
    kernel: str,
    grid: tuple[int, int],
    block: tuple[int, int],
    *arguments: Tensor | int,
    launch: Launcher | None,
) -> None:
    from mlsys_lab.kernels.cuda_cpp import Source
    from mlsys_lab.kernels.cuda_cpp import launch as on_gpu

    text = text_of(artifact, f"{kernel}_cpp")
    (launch or on_gpu)(Source(text, f"{kernel}.cu"), kernel, grid, block, *arguments)


def _emulate(artifact: Any, kernel: str, launch_kernel: Any, arrays: Arrays, output: str) -> Arrays:
    """What a kernel leaves in the array `output`, in either order; arrays with axes are its tensors, in their order."""
    import torch

    from mlsys_lab.kernels.cuda_cpp import Emulator, compile_cuda

    compile_cuda(text_of(artifact, f"{kernel}_cpp"), (kernel,), name=f"{kernel}.cu", arch=ARCH)
    skipped, found = int(arrays["skipped"]), {}

    def run(source: Source, kernel: str, grid: Extent, block: Extent, *arguments: Argument, reversed: bool) -> None:
        y, x = np.divmod(np.arange(math.prod(grid)), grid[0])
        some = np.flatnonzero(is_run(x, y, skipped)).tolist()
        Emulator(reversed=reversed, blocks=some)(source, kernel, grid, block, *arguments)

    for name, reversed in ((output, False), (OTHER_ORDER.format(output), True)):
        tensors = {one: torch.from_numpy(array.copy()) for one, array in arrays.items() if array.ndim}
        launch_kernel(artifact, *tensors.values(), launch=partial(run, reversed=reversed))
        found[name] = tensors[output].numpy()
    return found
