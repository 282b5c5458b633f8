"""Run CUDA C++ kernels on the CPU to check their results without a GPU. Needs g++ on Linux.

g++ compiles the source against `emulation/cuda_on_cpu.h` into a separate program, which shares one file with this
process: the launch, its numbers and its tensors. So a kernel that crashes or never ends harms only itself. Threads run
one at a time, each up to its next barrier, in forward or reverse order. g++ instruments each load and store for its
thread sanitizer; `emulation/runtime.cpp` implements these calls, and finds out-of-bounds accesses, races, and loads
from uninitialized shared memory.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.kernels.cuda_cpp.compiler import HEADERS
from mlsys_lab.kernels.cuda_cpp.launcher import Argument, Extent, Source, check_extents, pass_arguments
from mlsys_lab.kernels.cuda_cpp.memory import Memory, Part
from mlsys_lab.kernels.cuda_cpp.reports import Launched
from mlsys_lab.kernels.cuda_cpp.signature import Parameter, parameters
from mlsys_lab.kernels.trace.events import Buffer

EMULATION = Path(__file__).parent / "emulation"
WAITING, DIVERGED, NO_ADDRESSES, FAULT = 1, 2, 3, 4
"""Exit status of a program: threads wait at a barrier that others never reach, threads wait at two barriers for one
another, no address space for a large array, or a faulty access was reported."""
FLAGS = ("-U_FORTIFY_SOURCE", "-std=c++17", "-pipe", "-w", "-fmax-errors=1", "-fno-pie", "-fno-stack-protector")
INSTRUMENTED = (
    *("-O1", "-g1", "-gdwarf-4", "-fdata-sections"),
    *("-fno-builtin-memcpy", "-fno-builtin-memmove", "-fno-builtin-memset"),
    "-fwrapv",  # integers wrap around, as on a GPU
    *(
        "-fsanitize=thread,alignment",
        "--param=tsan-instrument-func-entry-exit=0",
    ),
)
GUARD_BYTES = 1 << 16
"""Guard bytes before and after each shared array, so that overruns do not hit another array."""
SHARED = re.compile(r"(\n\t\.section\t\.tbss[^\n]*(?:\n\t\.[^\n]*)*\n)([^\s:]+:)(\n\t\.zero\t\d+)")
"""A shared array in assembly: its section, its label, its bytes."""
COPY = re.compile(r"^(\t\w+\t)(memcpy|memmove|memset)$", re.M)
"""A call of a memory-copying function, in assembly."""
SYMBOL = re.compile(r"^(?P<offset>\w+) (?P<bytes>\w+) [bBuV] (?P<name>.+)$", re.M)
"""A variable among a program's symbols."""
DYNAMIC_SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
OTHER_DYNAMIC_SHARED = re.compile(r"extern\s+__shared__[^;]*;")
UNDEFINED = re.compile(r"undefined reference to [`‘'](?P<what>[^'’]+)['’]")
INCLUDE = re.compile(r"^[ \t]*(?:#|%:)[ \t]*include\w*[ \t]*(.*)", re.M)
ASSEMBLY = re.compile(r"\b(?:__)?asm(?:__)?\b")
VARIABLE = re.compile(r"^(.+?) *\|\w*\| *\w *\| *OBJECT\|\w*\|[^|]*\|\.(?:data(?!\.rel\.ro)|bss).*$", re.M)
"""A static variable (not shared memory) in a table of compiled symbols."""
OWN = ("emulation::", "guard variable for ", "DW.ref.")
"""Name prefixes of the emulator's and the compiler's own variables."""
ERROR = re.compile(r"^(?P<place>[^:\n]+:\d+):(?:\d+:)? (?:fatal )?error: (?P<what>.+)$", re.M)


class Emulator:
    """A `Launcher` for tensors in host memory.

    `reversed` runs blocks, warps and threads last to first. `blocks` are the linear indices (x fastest) of the blocks
    to run, in order; None runs all. `parts` are, in the order of the tensors, the parts of the kernel's arrays that
    they hold; None: all of each.

    Raises InputError for source that does not compile, cannot be emulated, or has static variables shared by all
    blocks; for threads that wait at a barrier which others never reach, or at two barriers for one another; and for the
    first access that is out of bounds, races with another, or reads uninitialized shared memory, with its source line,
    thread and element. Raises MissingToolError without g++, or if the address space is too small for a part's array.
    `notes` are the source lines of the last launch where threads store one equal value without order, which is
    harmless.
    """

    def __init__(
        self, *, reversed: bool = False, blocks: Sequence[int] | None = None, parts: Sequence[Part] | None = None
    ) -> None:
        self.reversed, self.blocks, self.parts = reversed, blocks, parts
        self.notes: list[str] = []

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
        launch = [*extents, shared_bytes, self.reversed, len(blocks), *blocks]
        memory = Memory(launch, arguments, values, self.parts)
        with tempfile.NamedTemporaryFile(dir=program.path.parent) as file:
            file.write(memory.given.tobytes())
            file.flush()
            status, said = _run([str(program.path), file.name, *program.places])
            file.seek(0)
            left = np.frombuffer(file.read(memory.given.size), np.uint8)
        arrays = memory.buffers([one.name for one in wanted])
        arrays += [Buffer(program.dynamic, "shared", (shared_bytes,), 1, (1,), initialized=False), *program.shared]
        launched = Launched(source, program.path, kernel, grid, block, arrays)
        self.notes = launched.sentences(said, equal=True)
        if status == WAITING:
            raise InputError(f"{kernel}: threads wait at a barrier that others never reach")
        if status == DIVERGED:
            raise InputError(
                f"{kernel}: threads of a block wait for one another at two barriers",
                got=said.splitlines()[-1],
                expected="each barrier where all threads of a block reach it",
            )
        if status == NO_ADDRESSES:
            raise MissingToolError("a large array needs more addresses than a program gets here", help="ulimit -v")
        if status == FAULT:
            raise InputError(f"{source.name}: {launched.sentences(said, equal=False)[0]}")
        if status != 0:
            ended = signal.Signals(-status).name if status < 0 else f"status {status}"
            raise InputError(
                f"{kernel} touches memory that is nobody's",
                got=f"a program that ended with {ended}",
                expected="reads and writes within the arrays of the launch",
            )
        memory.copy_back(left)


@dataclass(frozen=True)
class Program:
    """A compiled kernel, with its arrays in shared memory."""

    path: Path
    dynamic: str  # the name of shared memory without a size
    shared: tuple[Buffer, ...]

    @property
    def places(self) -> list[str]:
        """Where the shared arrays lie among the program's variables, as it reads it."""
        return [f"{one.start}:{one.size_bytes}" for one in self.shared]


def need_emulator() -> None:
    """Raise MissingToolError where kernels cannot be emulated, for want of g++."""
    if shutil.which("g++") is None:
        raise MissingToolError("running CUDA C++ without a GPU needs g++", help="apt install g++")


@lru_cache(maxsize=256)
def _build(source: Source, kernel: str, wanted: tuple[Parameter, ...]) -> Program:
    """Compile a program that runs the kernel with the parameters `wanted` on what a file holds."""
    need_emulator()
    _refuse_foreign(source)
    dynamic = DYNAMIC_SHARED.search(source.text)
    text = DYNAMIC_SHARED.sub(r"\1* \2 = emulation::dynamic_shared<\1>();", source.text)
    if other := OTHER_DYNAMIC_SHARED.search(text):
        line = text.count("\n", 0, other.start()) + 1
        raise InputError(
            f"{source.name}:{line}: shared memory without a size has one dimension",
            got=f"`{' '.join(other[0].split())}`",
            expected="`extern __shared__ float name[];`, or a size: `__shared__ float name[32][33];`",
        )
    types = (f"{one.type}{'*' if one.pointer else ''}" for one in wanted)
    passed = (f"({one})given[{n}]" if one.endswith("*") else f"*({one}*)given[{n}]" for n, one in enumerate(types))
    sizes = (f"sizeof({one.type})" if one.pointer else "0" for one in wanted)
    lines = (
        '#include "cuda_on_cpu.h"',
        f'#line 1 "{source.name}"',
        text,
        "int main(int, char** given) {",
        f"    return emulation::launch(given, {{{', '.join(sizes)}}},",
        f"                             [](char* const* given) {{ {kernel}({', '.join(passed)}); }});",
        "}",
    )
    folder = Path(tempfile.mkdtemp(dir=_folder().name))
    (folder / "program.cpp").write_text("\n".join(lines), encoding="utf-8")
    folders = (f"-I{EMULATION}", f"-I{HEADERS}")
    assembly, compiled, program = (folder / name for name in ("program.s", "program.o", "program"))
    status, log = _run(["g++", *FLAGS, *INSTRUMENTED, *folders, "-S", "-o", str(assembly), str(folder / "program.cpp")])
    if status == 0:
        guard = f"\t.zero\t{GUARD_BYTES}"
        changed = SHARED.sub(rf"\1{guard}\n\2\3\n{guard}", assembly.read_text())
        assembly.write_text(COPY.sub(r"\1emulation_\2", changed))
        status, log = _run(["g++", "-c", "-o", str(compiled), str(assembly)])
    if status == 0:
        _refuse_common(source, str(compiled))
        status, log = _run(["g++", "-no-pie", "-o", str(program), str(compiled), str(_runtime())])
    if status != 0:
        error = ERROR.search(log)
        said = f"{error['place']}: {error['what']}" if error else f"g++ ended with {status}"
        if error is None and (missing := UNDEFINED.search(log)):
            said = f"`{missing['what']}` is declared and nowhere defined"
        raise InputError(f"{source.name} cannot be emulated: {said[:400]}")
    return Program(program, dynamic[2] if dynamic else "shared memory", _find_shared(compiled, program))


def _find_shared(compiled: Path, program: Path) -> tuple[Buffer, ...]:
    """The arrays that a text declares as shared."""
    listed = subprocess.run(["nm", "--format=sysv", str(compiled)], capture_output=True, check=True, text=True)
    own = {line.split("|")[0].strip() for line in listed.stdout.splitlines() if "|TLS|" in line.replace(" ", "")}
    listed = subprocess.run(["nm", "--print-size", str(program)], capture_output=True, check=True, text=True)
    found = [one for one in SYMBOL.finditer(listed.stdout) if one["name"] in own]
    names = "\n".join(one["name"] for one in found)
    demangled = subprocess.run(["c++filt"], input=names, capture_output=True, check=True, text=True).stdout
    return tuple(
        Buffer(name.rpartition("::")[2], "shared", (int(one["bytes"], 16),), 1, (1,), False, int(one["offset"], 16))
        for one, name in zip(found, demangled.splitlines(), strict=True)
    )


@cache
def _runtime() -> Path:
    """What all programs share, compiled once in a process."""
    compiled = Path(_folder().name) / "runtime.o"
    status, log = _run(["g++", *FLAGS, "-O1", "-c", "-o", str(compiled), str(EMULATION / "runtime.cpp")])
    if status != 0:
        raise MissingToolError("running CUDA C++ without a GPU needs another g++", got=log[:400])
    return compiled


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Folder of this process's programs, which goes with it."""
    return tempfile.TemporaryDirectory(prefix="mlsys-lab-emulator-")


def _refuse_foreign(source: Source) -> None:
    """Raise InputError for a text with headers that are not the course's, or with assembly: no CPU runs that."""
    text = source.text.replace("\\\n", "")
    own = {f'"{path.name}"' for path in HEADERS.glob("*.cuh")} | {"<cuda_fp16.h>", "<cuda_bf16.h>"}
    for include in INCLUDE.finditer(text):
        if include[1].strip() not in own:
            raise InputError(
                f"{source.name} includes what is not there", got=include[1], expected=" or ".join(sorted(own))
            )
    if ASSEMBLY.search(text):
        raise InputError(f"{source.name} has assembly in it, which runs on a GPU only")


def _refuse_common(source: Source, compiled: str) -> None:
    """Raise InputError for a text that keeps variables outside of its blocks: these race for them on a GPU."""
    listed = subprocess.run(["nm", "--format=sysv", "--demangle", compiled], capture_output=True, check=True)
    for name in VARIABLE.findall(listed.stdout.decode(errors="replace")):
        if not name.startswith(OWN):
            raise InputError(
                f"{source.name}: all blocks share one `{name.rpartition('::')[2]}`, and race for it",
                help="only what is declared __shared__ is a block's own; constants are const or __constant__",
            )


def _run(command: list[str]) -> tuple[int, str]:
    """Run a program to its end: status and what it said of errors. It ends with whatever stops this process's wait."""
    running = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        said = running.communicate()[1]
    except BaseException:
        os.killpg(running.pid, signal.SIGKILL)  # the compiler runs programs of its own
        end = threading.Thread(target=running.communicate)  # an alarm that rings again ends no thread's wait
        end.start()
        end.join()
        raise
    return running.returncode, said.decode(errors="replace")
