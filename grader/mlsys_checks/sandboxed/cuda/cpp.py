"""Calls of task 8: the transpose and the matrix product in CUDA C++, from the learner's texts.

The text has to compile for a GPU, and is then run by the emulator, in both orders of blocks and threads: what the other
order gives is named after it. torch is imported where it is used: the lab's other calls need none.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mlsys_checks.sandboxed.cuda.launches import ROWS, SIDE, TILE, blocks
from mlsys_checks.sandboxed.kernel_sources import source_of
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import whole
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


MOST_BLOCKS_DOWN = 65_535
"""Blocks that a grid may have along y."""


def is_run(x: Any, y: Any, skipped: int) -> Any:
    """Which blocks, by their x and y, are run: all where `skipped` is no remainder."""
    return (x + 2 * y) % EVERY != skipped


def transpose(artifact: Any, arrays: Arrays) -> Arrays:
    """What `transpose` leaves in y, in either order, with some of the blocks; of large matrices in the last tile."""
    if "rows" not in arrays:
        return _emulate(artifact, "transpose", launch_transpose, arrays, "y")
    rows, columns = int(arrays["rows"]), int(arrays["columns"])
    tiles = {
        "x": (arrays["x"], (rows - TILE) * columns + columns - TILE, columns),
        "y": (arrays["y"], (columns - TILE) * rows + rows - TILE, rows),
    }
    return _emulate_last(artifact, "transpose", (columns // TILE, rows // TILE), (TILE, ROWS), tiles, (rows, columns))


def matmul(artifact: Any, arrays: Arrays) -> Arrays:
    """What `matmul` leaves in c, in either order, with some of the blocks; and the side of a block's square.

    Of large matrices it is the last element of c. If they have many rows, all rows of these a are one row; if they have
    many columns, all columns of these b are one column.
    """
    tile = np.array(side_of(artifact))
    if "m" in arrays:
        return _multiply_last_rows(artifact, arrays, int(tile)) | {"CPP_TILE": tile}
    if "n" in arrays:
        return _multiply_last_columns(artifact, arrays, int(tile)) | {"CPP_TILE": tile}
    return _emulate(artifact, "matmul", launch_matmul, arrays, "c") | {"CPP_TILE": tile}


def _multiply_last_rows(artifact: Any, arrays: Arrays, tile: int) -> Arrays:
    (_, k), n = arrays["a"].shape, arrays["b"].shape[1]
    m = min(int(arrays["m"]), MOST_BLOCKS_DOWN * tile)
    grid = (blocks(n, tile), blocks(m, tile))
    top = (grid[1] - 1) * tile
    held = {
        "a": (np.broadcast_to(arrays["a"], (m - top, k)), top * k, 0),
        "b": (arrays["b"], 0, 0),
        "c": (np.broadcast_to(arrays["c"], (m - top, n)), top * n, 0),
    }
    found = _emulate_last(artifact, "matmul", grid, (SIDE, SIDE), held, (m, n, k))
    return {name: values[-1:, -1:] for name, values in found.items()}


def _multiply_last_columns(artifact: Any, arrays: Arrays, tile: int) -> Arrays:
    (m, k), n = arrays["a"].shape, int(arrays["n"])
    grid = (blocks(n, tile), blocks(m, tile))
    left = (grid[0] - 1) * tile
    held = {
        "a": (arrays["a"], 0, 0),
        "b": (np.broadcast_to(arrays["b"], (k, n - left)), left, n),
        "c": (np.broadcast_to(arrays["c"], (m, n - left)), left, n),
    }
    found = _emulate_last(artifact, "matmul", grid, (SIDE, SIDE), held, (m, n, k))
    return {name: values[-1:, -1:] for name, values in found.items()}


def side_of(artifact: Any) -> int:
    """CPP_TILE; InputError where it is no side of a square."""
    tile = int(whole("CPP_TILE", artifact.CPP_TILE))
    if not 1 <= tile <= 1 << 20:
        raise InputError("CPP_TILE is no side of a tile", got=tile, expected="a whole number from 1 on")
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

    text = source_of(artifact, f"{kernel}_cpp")
    (launch or on_gpu)(Source(text, f"{kernel}.cu"), kernel, grid, block, *arguments)


def _emulate(artifact: Any, kernel: str, launch_kernel: Any, arrays: Arrays, output: str) -> Arrays:
    """What a kernel leaves in the array `output`, in either order; arrays with axes are its tensors, in their order."""
    import torch

    from mlsys_lab.kernels.cuda_cpp import Emulator, compile_cuda

    compile_cuda(source_of(artifact, f"{kernel}_cpp"), (kernel,), name=f"{kernel}.cu", arch=ARCH)
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


def _emulate_last(
    artifact: Any,
    kernel: str,
    grid: tuple[int, int],
    block: tuple[int, int],
    held: dict[str, tuple[np.ndarray, int, int]],
    numbers: tuple[int, ...],
) -> Arrays:
    """What the last block of a kernel leaves in the last of some matrices, in either order.

    What is `held` of a matrix: its values, and which element of how long rows of the whole matrix they begin with; a
    length of 0 stands for their own.
    """
    import torch

    from mlsys_lab.kernels.cuda_cpp import Emulator, Part, Source

    source, found = Source(source_of(artifact, f"{kernel}_cpp"), f"{kernel}.cu"), {}
    output, parts = list(held)[-1], [Part(first, pitch) for _, first, pitch in held.values()]
    for name, reversed in ((output, False), (OTHER_ORDER.format(output), True)):
        tensors = {one: torch.from_numpy(np.array(values, order="C")) for one, (values, _, _) in held.items()}
        run = Emulator(reversed=reversed, blocks=[math.prod(grid) - 1], parts=parts)
        run(source, kernel, grid, block, *tensors.values(), *numbers)
        found[name] = tensors[output].numpy()
    return found
