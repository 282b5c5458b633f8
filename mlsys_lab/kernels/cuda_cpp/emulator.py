"""Kernels of CUDA C++ text run on the CPU: right or wrong, without a GPU. Needs g++ on Linux.

g++ compiles the text against `emulation/cuda_on_cpu.h` into a program of its own, which shares one file with this
process: the launch, its numbers, and its tensors with guards between them. So a kernel that runs wild, or never ends,
takes nothing along but itself. Threads run one at a time, each up to its next barrier, in one order or in the other:
what depends on the order is a race.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.kernels.cuda_cpp.compiler import HEADERS
from mlsys_lab.kernels.cuda_cpp.launcher import Argument, Extent, Source, check_extents, pass_arguments
from mlsys_lab.kernels.cuda_cpp.signature import Parameter, parameters

EMULATION = Path(__file__).parent / "emulation"
GUARD_BYTES = 16 << 10
"""Bytes around each tensor that hold NaN, so that a read beyond it shows in the result, and a write in the guard."""
NAN, PAYLOAD = 0x7FC00000, 0x3FFFFF
"""Each four bytes of guards hold a NaN of their own: who copies one over another is seen."""
ALIGNED = 256
"""Tensors begin at multiples of so many bytes, as what CUDA allocates does."""
WAITING = 1
"""Exit status of a program in which threads wait for others that never come."""
FLAGS = ("-O1", "-U_FORTIFY_SOURCE", "-std=c++17", "-pipe", "-w", "-fmax-errors=1")
DYNAMIC_SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
INCLUDE = re.compile(r"^[ \t]*(?:#|%:)[ \t]*include\w*[ \t]*(.*)", re.M)
ASSEMBLY = re.compile(r"\b(?:__)?asm(?:__)?\b")
ERROR = re.compile(r"^(?P<place>[^:\n]+:\d+):(?:\d+:)? (?:fatal )?error: (?P<what>.+)$", re.M)


class Emulator:
    """A `Launcher` for tensors in the host's memory.

    `reversed` runs blocks, warps and threads last to first. `blocks` are the numbers of those blocks that are run, x
    counting first, in their order; None runs all. Raises InputError for text that does not compile or cannot be
    emulated, for threads that wait at a barrier which others never reach, and for a kernel that writes beyond a tensor
    or touches memory that is nobody's; MissingToolError without g++.
    """

    def __init__(self, *, reversed: bool = False, blocks: Sequence[int] | None = None) -> None:
        self.reversed, self.blocks = reversed, blocks

    def __call__(
        self, source: Source, kernel: str, grid: Extent, block: Extent, *arguments: Argument, shared_bytes: int = 0
    ) -> None:
        """Run `kernel` on `grid` blocks of `block` threads with `shared_bytes` of dynamic shared memory."""
        wanted = parameters(source.text, kernel, source.name)
        values = pass_arguments(kernel, wanted, arguments)
        check_extents(kernel, grid, block)
        program = _build(source, kernel, wanted)
        extents = [*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3]]
        blocks = range(math.prod(extents[:3])) if self.blocks is None else self.blocks
        memory = _Memory([*extents, shared_bytes, self.reversed, len(blocks), *blocks], arguments, values)
        with tempfile.NamedTemporaryFile(dir=program.parent) as file:
            file.write(memory.given.tobytes())
            file.flush()
            status, _ = _run([str(program), file.name])
            file.seek(0)
            left = np.frombuffer(file.read(memory.given.size), np.uint8)
        if status == WAITING:
            raise InputError(f"{kernel}: threads wait at a barrier that others never reach")
        if status != 0:
            ended = signal.Signals(-status).name if status < 0 else f"status {status}"
            raise InputError(f"{kernel} touches memory that is nobody's", got=f"a program that ended with {ended}")
        memory.copy_back(kernel, left)


def need_emulator() -> None:
    """Raise MissingToolError where kernels cannot be emulated, for want of g++."""
    if shutil.which("g++") is None:
        raise MissingToolError("running CUDA C++ without a GPU needs g++", help="apt install g++")


class _Memory:
    """What a program shares, in bytes: where each argument lies, the launch, and then the arguments between guards."""

    def __init__(self, launch: Sequence[int], arguments: Sequence[Argument], values: Sequence[Any]) -> None:
        contents = [
            _view_bytes(one).numpy() if isinstance(one, torch.Tensor) else np.frombuffer(value, np.uint8)
            for one, value in zip(arguments, values, strict=True)
        ]
        places, end = [], 8 * (len(contents) + len(launch))
        for content in contents:
            start = -(-(end + GUARD_BYTES) // ALIGNED) * ALIGNED
            end = start + content.size
            places.append(slice(start, end))
        header = np.array([*(place.start for place in places), *launch], np.uint64).view(np.uint8)
        words = np.arange(-(-(end + GUARD_BYTES) // 4), dtype=np.uint32)
        self.given = (NAN + words % PAYLOAD).view(np.uint8)
        for place, content in zip([slice(header.size), *places], [header, *contents], strict=True):
            self.given[place] = content
        self._arguments = list(zip(arguments, places, strict=True))

    def copy_back(self, kernel: str, left: np.ndarray) -> None:
        """Give tensors what a program has left of them; InputError where it wrote to anything else."""
        outside = left != self.given
        for argument, place in self._arguments:
            if isinstance(argument, torch.Tensor):
                outside[place] = False
                _view_bytes(argument).copy_(torch.from_numpy(left[place].copy()))
        if outside.any():
            shapes = " and ".join(str(tuple(one.shape)) for one, _ in self._arguments if isinstance(one, torch.Tensor))
            raise InputError(f"{kernel} writes beyond its tensors", expected=f"within those of shape {shapes}")


def _view_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


@lru_cache(maxsize=256)
def _build(source: Source, kernel: str, wanted: tuple[Parameter, ...]) -> Path:
    """Compile a program that runs the kernel with the parameters `wanted` on what a file holds; returns its path."""
    need_emulator()
    _refuse_foreign(source)
    text = DYNAMIC_SHARED.sub(r"\1* \2 = emulation::dynamic_shared<\1>();", source.text)
    passed = (f"given.at<{one.type}{'*' if one.pointer else ''}>({place})" for place, one in enumerate(wanted))
    lines = (
        '#include "cuda_on_cpu.h"',
        f'#line 1 "{source.name}"',
        text,
        "int main(int, char** path) {",
        f"    emulation::Given given(path[1], {len(wanted)});",
        f"    return emulation::launch(given, [&] {{ {kernel}({', '.join(passed)}); }});",
        "}",
    )
    folder = Path(tempfile.mkdtemp(dir=_folder().name))
    (folder / "program.cpp").write_text("\n".join(lines), encoding="utf-8")
    folders = (f"-I{EMULATION}", f"-I{HEADERS}")
    status, log = _run(["g++", *FLAGS, *folders, "-o", str(folder / "program"), str(folder / "program.cpp")])
    if status != 0:
        error = ERROR.search(log)
        said = f"{error['place']}: {error['what']}" if error else f"g++ ended with {status}"
        raise InputError(f"{source.name} cannot be emulated: {said[:400]}")
    return folder / "program"


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Folder of this process's programs, which goes with it."""
    return tempfile.TemporaryDirectory(prefix="mlsys-lab-emulator-")


def _refuse_foreign(source: Source) -> None:
    """Raise InputError for a text with headers that are not the course's, or with assembly: no CPU runs that."""
    text = source.text.replace("\\\n", "")
    own = {f'"{path.name}"' for path in HEADERS.glob("*.cuh")}
    for include in INCLUDE.finditer(text):
        if include[1].strip() not in own:
            raise InputError(
                f"{source.name} includes what is not there", got=include[1], expected=" or ".join(sorted(own))
            )
    if ASSEMBLY.search(text):
        raise InputError(f"{source.name} has assembly in it, which runs on a GPU only")


def _run(command: list[str]) -> tuple[int, str]:
    """Run a program to its end: status and what it said of errors. It ends with whatever stops this process's wait."""
    running = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        said = running.communicate()[1]
    except BaseException:
        os.killpg(running.pid, signal.SIGKILL)  # the compiler runs programs of its own
        running.communicate()
        raise
    return running.returncode, said.decode(errors="replace")
