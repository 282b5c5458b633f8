"""What is timed of task 8 on a GPU: the transpose and the matrix product in CUDA C++, from the learner's texts.

torch is imported where it is used: without a GPU nothing here runs, and the lab's other calls need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlsys_lab.checks.learner.cuda.launches import ROWS, SIDE, TILE, blocks
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from mlsys_lab.kernels.cuda_cpp import Launcher

TURNED = (8160, 8224)
"""Rows and columns of the matrix that is transposed, fp32; not powers of two, whose transposes in a row are one."""
TURNS = 16
"""Transposes of a call, each of the elements in the order in which the one before left them."""
EDGE = 4096
"""Rows and columns of both factors, fp32."""


def make_transpose(seed: int, device: str) -> tuple[Tensor]:
    """A matrix of `TURNED` numbers."""
    return (_drawn(seed, device, 1, TURNED)[0],)


def transpose(artifact: Any, x: Tensor, *, launch: Launcher | None = None) -> Tensor:
    """x (rows, columns) transposed `TURNS` times, what comes of it taken as (rows, columns) each time."""
    rows, columns = x.shape
    grid = (blocks(columns, TILE), blocks(rows, TILE))
    for _ in range(TURNS):
        y = x.new_empty(columns, rows)
        _launch(artifact.transpose_cpp(), "transpose", grid, (TILE, ROWS), x, y, rows, columns, launch=launch)
        x = y.view(rows, columns)
    return x


def make_matmul(seed: int, device: str) -> tuple[Tensor, ...]:
    """Two factors, each (EDGE, EDGE)."""
    return _drawn(seed, device, 2, (EDGE, EDGE))


def matmul(artifact: Any, a: Tensor, b: Tensor, *, launch: Launcher | None = None) -> Tensor:
    """a · b, for a (m, k) and b (k, n)."""
    (m, k), n, tile = a.shape, b.shape[1], artifact.CPP_TILE
    if not isinstance(tile, int) or tile < 1:
        raise InputError("CPP_TILE is no side of a tile", got=repr(tile)[:80], expected="a whole number from 1 on")
    c = a.new_empty(m, n)
    grid = (blocks(n, tile), blocks(m, tile))
    _launch(artifact.matmul_cpp(), "matmul", grid, (SIDE, SIDE), a, b, c, m, n, k, launch=launch)
    return c


def _launch(
    text: Any,
    kernel: str,
    grid: tuple[int, int],
    block: tuple[int, int],
    *arguments: Tensor | int,
    launch: Launcher | None,
) -> None:
    """Run a kernel of a learner's text; `launch` stands in for a GPU."""
    from mlsys_lab.kernels.cuda_cpp import Source
    from mlsys_lab.kernels.cuda_cpp import launch as on_gpu

    if not isinstance(text, str):
        raise InputError(f"{kernel}_cpp() gives no text", got=type(text).__name__, expected="str")
    (launch or on_gpu)(Source(text, f"{kernel}.cu"), kernel, grid, block, *arguments)


def _drawn(seed: int, device: str, count: int, shape: tuple[int, int]) -> tuple[Tensor, ...]:
    """So many matrices of normal numbers, all of them from the seed."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator, device=device) for _ in range(count))
