"""Launch CUDA C++ kernels on torch tensors and torch's current stream."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch

from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.kernels.arguments import STATIC_SHARED_BYTES
from mlsys_lab.kernels.cuda_cpp.compiler import HELP, compile_cuda
from mlsys_lab.kernels.cuda_cpp.signature import POINTED, SCALARS, Parameter, parameters
from mlsys_lab.kernels.runtime import require_gpu

Argument = torch.Tensor | int | float | bool
Extent = tuple[int, ...]

MAX_BLOCKS = (2**31 - 1, 65535, 65535)
MAX_THREADS = 1024


@dataclass(frozen=True)
class Source:
    """CUDA C++ source text and the file name for messages."""

    text: str
    name: str = "kernel.cu"

    @classmethod
    def read(cls, path: Path) -> Source:
        """Read the text of a file, named like the file."""
        return cls(path.read_text(encoding="utf-8"), path.name)


class Launcher(Protocol):
    """Type of functions that run a kernel: `launch`, or an `Emulator` of a GPU."""

    def __call__(
        self, source: Source, kernel: str, grid: Extent, block: Extent, *arguments: Argument, shared_bytes: int = 0
    ) -> None:
        """Run `kernel` on `grid` blocks of `block` threads with `shared_bytes` of dynamic shared memory."""


def launch(
    source: Source, kernel: str, grid: Extent, block: Extent, *arguments: Argument, shared_bytes: int = 0
) -> None:
    """Compile `kernel` of `source` for the tensors' GPU, once per process, and launch it on torch's current stream.

    `kernel` is a name or a template with its arguments; `grid` and `block` have one to three extents, x first.
    Raises InputError for arguments that do not match the kernel's parameters, for extents or shared memory beyond the
    GPU's limits, and for source that does not compile; MissingToolError without a GPU or NVRTC.
    """
    wanted = parameters(source.text, kernel, source.name)
    values = pass_arguments(kernel, wanted, arguments)
    check_extents(kernel, grid, block)
    device = _device_of(kernel, arguments)
    driver = load_driver()
    with torch.cuda.device(device):
        function = _load(source, kernel, device.index)
        if shared_bytes > STATIC_SHARED_BYTES:
            _allow_shared(function, kernel, shared_bytes, device.index)
        stream = torch.cuda.current_stream(device).cuda_stream
        extents = ((*extent, 1, 1)[:3] for extent in (grid, block))
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        sizes = [number for extent in extents for number in extent]
        status = driver.cuLaunchKernel(function, *sizes, shared_bytes, stream, ctypes.addressof(addresses), 0)
    _require_success(driver, kernel, status)


def pass_arguments(kernel: str, wanted: Sequence[Parameter], arguments: Sequence[Argument]) -> list[Any]:
    """Convert arguments to C: a tensor to its address, a number to the parameter's type.

    Raises InputError for a wrong number of arguments, a tensor of the wrong dtype or not contiguous, or a number out of
    range.
    """
    if len(arguments) != len(wanted):
        what = f"{kernel} is launched with {len(arguments)} arguments and has {len(wanted)} parameters"
        raise InputError(what, got=", ".join(map(str, wanted)))
    return [_convert(kernel, one, given) for one, given in zip(wanted, arguments, strict=True)]


def _convert(kernel: str, wanted: Parameter, given: Argument) -> Any:
    what = f"{kernel}: argument {wanted.name!r}"
    if wanted.pointer:
        if not isinstance(given, torch.Tensor):
            raise InputError(f"{what} is no tensor", got=type(given).__name__, expected=wanted)
        allowed = POINTED.get(wanted.type)
        if allowed is None:
            raise InputError(f"{what} has a type that no tensor can be passed as", got=wanted)
        if given.dtype not in allowed:
            raise InputError(f"{what} has the wrong dtype", got=given.dtype, expected=f"{allowed[0]} for {wanted}")
        if not given.is_contiguous():
            raise InputError(f"{what} is not contiguous", got=f"strides {given.stride()}", help="call .contiguous()")
        return ctypes.c_void_p(given.data_ptr())
    if isinstance(given, torch.Tensor):
        raise InputError(f"{what} is a tensor", expected=wanted, help="pass a number: .item()")
    if wanted.type not in SCALARS:
        raise InputError(f"{what} has a type that no number can be passed as", got=wanted)
    try:
        value = SCALARS[wanted.type](given)
    except TypeError:
        raise InputError(f"{what} is of the wrong type", got=type(given).__name__, expected=wanted) from None
    if isinstance(given, int) and value.value != given and "float" not in wanted.type:
        raise InputError(f"{what} is out of range", got=given, expected=wanted)
    return value


def check_extents(kernel: str, grid: Extent, block: Extent) -> None:
    """Raise InputError for a grid or block beyond the limits of every GPU."""
    for what, extents in (("grid", grid), ("block", block)):
        if not 1 <= len(extents) <= 3 or min(extents) < 1:
            raise InputError(f"{kernel}: the {what} is no size", got=extents, expected="one to three numbers from 1 on")
    if any(extent > most for extent, most in zip(grid, MAX_BLOCKS, strict=False)):
        raise InputError(f"{kernel}: the grid is too large", got=grid, expected=f"at most {MAX_BLOCKS}")
    threads = 1
    for extent in block:
        threads *= extent
    if threads > MAX_THREADS or (len(block) == 3 and block[2] > 64):
        raise InputError(f"{kernel}: the block is too large", got=block, expected=f"at most {MAX_THREADS} threads")


def starts_at_16_bytes(*tensors: torch.Tensor) -> bool:
    """Whether all tensors are aligned to 16 bytes, as 16-byte accesses need; a slice may not be."""
    return all(one.data_ptr() % 16 == 0 for one in tensors)


def blocks_that_fill(tensor: torch.Tensor, each: int) -> int:
    """Number of blocks that fill the tensor's GPU with `each` per multiprocessor; on the CPU, as if it had two."""
    if tensor.is_cuda:
        return each * torch.cuda.get_device_properties(tensor.device).multi_processor_count
    return each * 2


def _device_of(kernel: str, arguments: Sequence[Argument]) -> torch.device:
    devices = {one.device for one in arguments if isinstance(one, torch.Tensor)}
    require_gpu(kernel)
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        named = " and ".join(sorted(map(str, devices))) or "no tensor"
        raise InputError(f"{kernel}: tensors must be on one GPU", got=named)
    return devices.pop()


def load_driver() -> Any:
    """Import `cuda.bindings.driver`; MissingToolError if it is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingToolError("launching CUDA C++ needs cuda-bindings", got=error, help=HELP) from None
    return driver


@lru_cache(maxsize=256)
def _load(source: Source, kernel: str, device: int) -> Any:
    """Load the kernel on GPU `device`, which must be the current one, and return the driver's function."""
    major, minor = torch.cuda.get_device_capability(device)
    compiled = compile_cuda(source.text, (kernel,), name=source.name, arch=f"sm_{major}{minor}")
    driver = load_driver()
    module = _require_success(driver, kernel, driver.cuModuleLoadData(compiled.cubin))
    return _require_success(driver, kernel, driver.cuModuleGetFunction(module, compiled.symbols[kernel].encode()))


@lru_cache(maxsize=256)
def _allow_shared(function: Any, kernel: str, shared_bytes: int, device: int) -> None:
    """Allow launches of a kernel this much dynamic shared memory; InputError beyond the GPU's limit."""
    properties: Any = torch.cuda.get_device_properties(device)
    most = properties.shared_memory_per_block_optin
    if shared_bytes > most:
        raise InputError(f"{kernel}: too much shared memory for this GPU", got=shared_bytes, expected=f"at most {most}")
    driver = load_driver()
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _require_success(driver, kernel, driver.cuFuncSetAttribute(function, attribute, shared_bytes))


def _require_success(driver: Any, kernel: str, result: tuple[Any, ...]) -> Any:
    """Return a driver call's result without its status; InputError with the driver's error name if it failed."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise InputError(f"{kernel}: the GPU's driver refuses", got=status.name)
    return values[0] if values else None
