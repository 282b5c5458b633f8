"""`cuda` and Numba's number types for a file of kernels, simulating without a GPU and compiling with one."""

from __future__ import annotations

from typing import Any

from mlsys_lab.kernels.runtime import load_numba

cuda: Any = load_numba()

from numba import float32, float64, int32  # noqa: E402  # Numba reads its environment when it is imported

__all__ = ["cuda", "float32", "float64", "int32"]
