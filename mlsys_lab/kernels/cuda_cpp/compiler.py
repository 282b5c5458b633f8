"""CUDA C++ to machine code, by NVRTC: no GPU, no host compiler and no toolkit needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.kernels.cuda_cpp.diagnostics import failure

HEADERS = Path(__file__).parent
"""Where `#include "ptx.cuh"` is looked for."""

HELP = 'pip install "mlsys-lab[kernels]"'

REPORT = re.compile(
    r"Compiling entry function '(?P<symbol>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.S,
)


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel asks of a multiprocessor, as ptxas reports it."""

    registers: int  # of 4 bytes, each thread
    shared_bytes: int  # declared in the kernel, each block; what a launch adds is not known here
    stack_bytes: int  # each thread, in local memory: arrays that are not in registers
    spill_bytes: int  # stored to local memory for want of registers, each thread


@dataclass(frozen=True, eq=False)
class Compiled:
    """Machine code of some kernels of one source file for one architecture."""

    name: str
    arch: str
    cubin: bytes
    symbols: Mapping[str, str]  # kernel as asked for -> its name in the machine code
    resources: Mapping[str, Resources]  # by kernel as asked for


@lru_cache(maxsize=256)
def compile_cuda(source: str, kernels: tuple[str, ...], *, name: str = "kernel.cu", arch: str = "sm_90") -> Compiled:
    """Compile `kernels` of CUDA C++ text: names, or templates with their arguments like `tiled<32, 8>`.

    The same text for the same kernels and architecture is compiled once in a process. Raises InputError with the
    first error at its line for text that does not compile, for no kernels or an unknown architecture, and
    MissingToolError without NVRTC.
    """
    if not kernels:
        raise InputError(f"{name}: no kernel to compile", expected="the names of one or more")
    if not re.fullmatch(r"sm_\d{2,3}[a-z]?", arch):
        raise InputError("no such architecture", got=repr(arch), expected="like 'sm_90'")
    core = load_core()
    log = StringIO()
    options = core.ProgramOptions(
        arch=arch, name=name, include_path=[str(HEADERS)], ptxas_options=["-v"], disable_warnings=True
    )
    try:
        code = core.Program(source, "c++", options).compile("cubin", name_expressions=kernels, logs=log)
    except Exception as error:  # cuda.core keeps its exception types to itself
        raise _explained(error, source, name, arch) from None
    symbols = {kernel: code.symbol_mapping[kernel].decode() for kernel in kernels}
    reported = _reports(log.getvalue())
    return Compiled(name, arch, code.code, symbols, {kernel: reported[symbols[kernel]] for kernel in kernels})


def load_core() -> Any:
    """The module `cuda.core`; MissingToolError where it is not installed or too old."""
    try:
        import cuda.core as core

        _ = core.Program, core.ObjectCode, core.launch
    except (ImportError, AttributeError) as error:
        raise MissingToolError("compiling CUDA C++ needs cuda-core 0.5.1 or newer", got=error, help=HELP) from None
    return core


def _reports(log: str) -> dict[str, Resources]:
    found = {}
    for report in REPORT.finditer(log):
        shared = re.search(r"(\d+) bytes smem", report["rest"])
        spilled = max(int(report["stores"]), int(report["loads"]))
        found[report["symbol"]] = Resources(
            int(report["registers"]), int(shared[1]) if shared else 0, int(report["stack"]), spilled
        )
    return found


def _explained(error: Exception, source: str, name: str, arch: str) -> InputError | MissingToolError:
    text = str(error)
    if "libnvrtc" in text:
        return MissingToolError("compiling CUDA C++ needs NVRTC, which is not on this machine", help=HELP)
    if "INVALID_OPTION" in text or "gpu-architecture" in text:
        return InputError("this NVRTC compiles for no such architecture", got=repr(arch), expected="like 'sm_90'")
    return failure(text.partition("compilation log:")[2].replace("\0", "\n"), source, name)
