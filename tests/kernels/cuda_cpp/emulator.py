"""Kernels of CUDA C++ text run on the CPU, compiled by g++ against emulation/: right or wrong, without a GPU."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from mlsys_lab.kernels.cuda_cpp import Source
from mlsys_lab.kernels.cuda_cpp.compiler import HEADERS
from mlsys_lab.kernels.cuda_cpp.launcher import check_extents, pass_arguments
from mlsys_lab.kernels.cuda_cpp.signature import Parameter, parameters

EMULATION = Path(__file__).parent / "emulation"
GUARD = 64
"""Bytes of 0xff (NaN) around each tensor, so that a read beyond it shows in the result, a write in the guard."""

FLAGS = ("-O1", "-U_FORTIFY_SOURCE", "-std=c++17", "-shared", "-fPIC", "-fno-gnu-unique", "-Wno-unknown-pragmas")
DYNAMIC_SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")

needs_gxx = pytest.mark.skipif(
    shutil.which("g++") is None, reason="kernels of CUDA C++ are emulated by g++, which is not on this machine"
)


class Emulator:
    """A `Launcher` for CPU tensors. `reversed` runs threads and blocks last to first: a race gives another result."""

    def __init__(self, folder: Path, reversed: bool = False) -> None:
        self.folder, self.reversed = folder, reversed

    def __call__(self, source: Source, kernel: str, grid, block, *arguments, shared_bytes: int = 0) -> None:
        wanted = parameters(source.text, kernel, source.name)
        pass_arguments(kernel, wanted, arguments)
        check_extents(kernel, grid, block)
        run = compiled(source, kernel, wanted, self.folder)
        guarded = [Guarded(one) if isinstance(one, torch.Tensor) else one for one in arguments]
        values = pass_arguments(kernel, wanted, [one.inner if isinstance(one, Guarded) else one for one in guarded])
        extents = (ctypes.c_uint * 6)(*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3])
        status = run(extents, ctypes.c_size_t(shared_bytes), ctypes.c_bool(self.reversed), *values)
        assert status == 0, f"{kernel}: threads wait at a barrier that others never reach"
        for one in guarded:
            if isinstance(one, Guarded):
                one.back(kernel)


class Guarded:
    """A copy of a tensor with guards before and behind it, aligned to 16 bytes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.size = tensor.numel() * tensor.element_size()
        self.memory = torch.full((self.size + 3 * GUARD,), 0xFF, dtype=torch.uint8)
        self.start = GUARD + -(self.memory.data_ptr() + GUARD) % 16
        self.bytes = self.memory[self.start : self.start + self.size]
        self.inner = self.bytes.view(tensor.dtype).view(tensor.shape)
        self.inner.copy_(tensor)

    def back(self, kernel: str) -> None:
        guards = torch.cat([self.memory[: self.start], self.memory[self.start + self.size :]])
        assert bool((guards == 0xFF).all()), f"{kernel} wrote beyond a tensor of shape {tuple(self.tensor.shape)}"
        self.tensor.copy_(self.inner)


@lru_cache
def compiled(source: Source, kernel: str, wanted: tuple[Parameter, ...], folder: Path):
    """A function of extents, shared bytes, order and the kernel's arguments."""
    declared = ", ".join(f"{one.type}{'*' if one.pointer else ''} {one.name}" for one in wanted)
    names = ", ".join(one.name for one in wanted)
    text = DYNAMIC_SHARED.sub(r"\1* \2 = emulation::dynamic_shared<\1>();", source.text)
    program = f"""#include "cuda_on_cpu.h"
#line 1 "{source.name}"
{text}
extern "C" int run(const unsigned* e, size_t shared_bytes, bool reversed, {declared}) {{
    dim3 grid{{e[0], e[1], e[2]}}, block{{e[3], e[4], e[5]}};
    return emulation::launch(grid, block, shared_bytes, reversed, [&] {{ {kernel}({names}); }});
}}
"""
    stem = folder / hashlib.sha256(program.encode()).hexdigest()[:16]
    if not stem.with_suffix(".so").exists():
        stem.with_suffix(".cpp").write_text(program, encoding="utf-8")
        command = ["g++", *FLAGS, f"-I{EMULATION}", f"-I{HEADERS}", "-o", f"{stem}.so", f"{stem}.cpp"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:2000]
    return ctypes.CDLL(f"{stem}.so").run
