"""What tests of CUDA C++ need of the machine."""

from __future__ import annotations

import shutil

import pytest

needs_gxx = pytest.mark.skipif(
    shutil.which("g++") is None, reason="kernels of CUDA C++ are emulated by g++, which is not on this machine"
)
