"""Compile CUDA C++ to machine code with NVRTC: no GPU, host compiler or toolkit needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.kernels.cuda_cpp.diagnostics import compile_error

HEADERS = Path(__file__).parent
"""Include path of `ptx.cuh`."""

TOOLKIT_HEADERS = Path("numba", "cuda", "include")
"""Where numba-cuda keeps CUDA's headers, such as `cuda_fp16.h`, by toolkit version."""

OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--disable-warnings")

HELP = 'pip install "mlsys-lab[kernels]"'

REPORT = re.compile(
    r"Compiling entry function '(?P<symbol>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.S,
)


@dataclass(frozen=True)
class Resources:
    """Registers and memory of a compiled kernel per thread or block, as ptxas reports them."""

    registers: int  # of 4 bytes, per thread
    shared_bytes: int  # per block, declared statically; without dynamic shared memory
    stack_bytes: int  # per thread, in local memory: arrays that are not in registers
    spill_bytes: int  # per thread, spilled from registers to local memory


@dataclass(frozen=True, eq=False)
class Compiled:
    """Machine code of some kernels of one source file for one architecture, with the resources of each."""

    name: str
    arch: str
    cubin: bytes
    symbols: Mapping[str, str]  # kernel as asked for -> its name in the machine code
    resources: Mapping[str, Resources]  # by kernel as asked for


@lru_cache(maxsize=256)
def compile_cuda(source: str, kernels: tuple[str, ...], *, name: str = "kernel.cu", arch: str = "sm_90") -> Compiled:
    """Compile `kernels` of CUDA C++ text: names, or templates with their arguments like `tiled<32, 8>`.

    The same source, kernels and architecture are compiled once per process. Raises InputError with the first error and
    its line for source that does not compile, for no kernels or an unknown architecture, and MissingToolError without
    NVRTC.
    """
    if not kernels:
        raise InputError(f"{name}: no kernel to compile", expected="the names of one or more")
    if not re.fullmatch(r"sm_\d{2,3}[a-z]?", arch):
        raise InputError("no such architecture", got=repr(arch), expected="like 'sm_90'")
    nvrtc = load_nvrtc()
    program = _require_success(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    try:
        for kernel in kernels:
            _require_success(nvrtc.nvrtcAddNameExpression(program, kernel.encode()))
        folders = [f"--include-path={folder}" for folder in (HEADERS, *_toolkit_headers(nvrtc))]
        options = [f"--gpu-architecture={arch}", *folders, *OPTIONS]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode(errors="replace")
        if status == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:
            raise InputError("this NVRTC compiles for no such architecture", got=repr(arch), expected="like 'sm_90'")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise compile_error(log.replace("\0", "\n"), source, name)
        cubin = _text(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        symbols = {
            kernel: _require_success(nvrtc.nvrtcGetLoweredName(program, kernel.encode())).decode() for kernel in kernels
        }
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    reported = _reports(log)
    return Compiled(name, arch, cubin, symbols, {kernel: reported[symbols[kernel]] for kernel in kernels})


def load_nvrtc() -> Any:
    """Import `cuda.bindings.nvrtc`; MissingToolError if it, or NVRTC itself, is not installed."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        got = str(error).strip().splitlines()[0]
        raise MissingToolError("compiling CUDA C++ needs NVRTC and cuda-bindings", got=got, help=HELP) from None
    return nvrtc


def _toolkit_headers(nvrtc: Any) -> list[Path]:
    """The folder of CUDA's headers for this NVRTC, if numba-cuda is installed."""
    found = find_spec("numba_cuda")
    _, major, _ = nvrtc.nvrtcVersion()
    return [Path(found.origin).parent / TOOLKIT_HEADERS / str(major)] if found and found.origin else []


def _require_success(result: tuple[Any, ...]) -> Any:
    """Return an NVRTC call's result without its status, which must be success."""
    status, *values = result
    if status.value:
        raise InputError(f"NVRTC refuses: {status.name}")
    return values[0] if values else None


def _text(program: Any, size: Any, read: Any) -> bytes:
    """Bytes that NVRTC's function `read` returns, of the size that its function `size` returns."""
    buffer: bytes = b"\0" * _require_success(size(program))
    _require_success(read(program, buffer))
    return buffer


def _reports(log: str) -> dict[str, Resources]:
    found = {}
    for report in REPORT.finditer(log):
        shared = re.search(r"(\d+) bytes smem", report["rest"])
        spilled = max(int(report["stores"]), int(report["loads"]))
        found[report["symbol"]] = Resources(
            int(report["registers"]), int(shared[1]) if shared else 0, int(report["stack"]), spilled
        )
    return found
