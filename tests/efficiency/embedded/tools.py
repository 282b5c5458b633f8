"""What tests of the C program need of the machine."""

from __future__ import annotations

import shutil

import pytest

PROGRAMS = ("arm-none-eabi-gcc", "qemu-system-arm")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="the C program needs gcc, which is not here")
needs_board = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)), reason=f"the emulated board needs {' and '.join(PROGRAMS)}: make packages"
)
