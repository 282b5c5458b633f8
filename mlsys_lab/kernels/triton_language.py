"""`triton` and `tl` for a file of kernels: ready to interpret without a GPU and to compile with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlsys_lab.kernels.runtime import load_triton

if TYPE_CHECKING:
    import triton
    from triton import language as tl
else:
    triton, tl = load_triton()

__all__ = ["tl", "triton"]
