"""What is timed of task 8 on a GPU: the transpose and the matrix product in CUDA C++, from the learner's texts.

torch is imported where it is used: without a GPU nothing here runs, and the lab's other calls need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlsys_checks.sandboxed.cuda import cpp

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
    """Draw a matrix of shape `TURNED`."""
    return (_drawn(seed, device, 1, TURNED)[0],)


def transpose(artifact: Any, x: Tensor, *, launch: Launcher | None = None) -> Tensor:
    """x (rows, columns) transposed `TURNS` times, what comes of it taken as (rows, columns) each time."""
    rows, columns = x.shape
    for _ in range(TURNS):
        y = x.new_empty(columns, rows)
        cpp.launch_transpose(artifact, x, y, launch=launch)
        x = y.view(rows, columns)
    return x


def make_matmul(seed: int, device: str) -> tuple[Tensor, ...]:
    """Draw two factors of a product, each (EDGE, EDGE)."""
    return _drawn(seed, device, 2, (EDGE, EDGE))


def matmul(artifact: Any, a: Tensor, b: Tensor, *, launch: Launcher | None = None) -> Tensor:
    """a · b, for a (m, k) and b (k, n)."""
    c = a.new_empty(len(a), b.shape[1])
    cpp.launch_matmul(artifact, a, b, c, launch=launch)
    return c


def _drawn(seed: int, device: str, count: int, shape: tuple[int, int]) -> tuple[Tensor, ...]:
    """So many matrices of normal numbers, all of them from the seed."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator, device=device) for _ in range(count))
