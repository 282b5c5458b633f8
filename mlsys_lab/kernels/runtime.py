"""Where kernels run: on the GPU if there is one, else in Triton's interpreter and a simulator of CUDA threads.

Triton and Numba read an environment variable at import that decides whether they compile. `load_triton` and
`load_numba` set it if there is no GPU and it is unset, then import. To interpret on a machine with a GPU, set
`TRITON_INTERPRET=1` or `NUMBA_ENABLE_CUDASIM=1` before Python starts.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any

from mlsys_lab.errors import MissingToolError
from mlsys_lab.kernels.triton_members import original_members

MIN_VERSIONS = {"triton": (3, 6), "numba": (0, 61), "numba-cuda": (0, 22), "greenlet": (3, 1)}
"""Oldest supported release of each library."""

INSTALL = 'pip install "mlsys-lab[kernels]"'


def on_gpu() -> bool:
    """Whether this machine has a CUDA device that torch can use."""
    import torch

    return torch.cuda.is_available()


def require_gpu(what: str) -> None:
    """Raise MissingToolError if there is no GPU; `what` names the caller."""
    if not on_gpu():
        raise MissingToolError(
            f"{what} needs a GPU", got="no CUDA device", help="every step but the compiled ones runs without one"
        )


def load_triton() -> tuple[Any, Any]:
    """Import `triton` and `triton.language`, set to interpret without a GPU and to compile with one.

    Raises MissingToolError if Triton is not published for this system, not installed, or too old.
    """
    if platform.system() != "Linux":
        raise MissingToolError("Triton is published for Linux only", got=platform.system(), help="use the Numba steps")
    _check_version("triton")
    _default_without_gpu("TRITON_INTERPRET")
    triton, tl = _import("triton"), _import("triton.language")
    original_members()  # must be read before any kernel is interpreted: the compiler needs them
    return triton, tl


def load_numba() -> Any:
    """Import `numba.cuda`, set to simulate without a GPU and to compile with one.

    Raises MissingToolError if Numba is not installed, too old, or incompatible with its CUDA package.
    """
    for library in ("numba", "numba-cuda"):
        _check_version(library)
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")  # small grids are intended
    _default_without_gpu("NUMBA_ENABLE_CUDASIM")
    return _import("numba.cuda")


def load_numba_for_cpu() -> Any:
    """Import `numba`, to compile for the CPU. Raises MissingToolError if it is not installed or too old."""
    _check_version("numba")
    _default_without_gpu("NUMBA_ENABLE_CUDASIM")  # for `load_numba`, since Numba reads it at the first import
    return _import("numba")


def compile_for_cpu(function: Callable[..., Any]) -> Any:
    """Compile a function with Numba at its first call; machine code is kept on disk, where a folder can be written.

    Floating-point operations may be reordered, so that loops are vectorised. Raises MissingToolError if Numba is not
    installed or too old.
    """
    njit = partial(load_numba_for_cpu().njit, fastmath=True, nogil=True, error_model="numpy")
    try:
        return njit(function, cache=True)
    except RuntimeError:  # no folder for a cache
        return njit(function)


def triton_interprets() -> bool:
    """Whether Triton kernels are interpreted in Python; valid after `load_triton`."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def numba_simulates() -> bool:
    """Whether Numba kernels run in the simulator; valid after `load_numba`."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"


def _default_without_gpu(variable: str) -> None:
    if variable not in os.environ and not on_gpu():
        os.environ[variable] = "1"


def _check_version(library: str) -> None:
    oldest = MIN_VERSIONS[library]
    try:
        found = metadata.version(library)
    except metadata.PackageNotFoundError:
        raise MissingToolError(f"{library} is not installed", help=INSTALL) from None
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[: len(oldest)])
    if numbers < oldest:
        raise MissingToolError(
            f"this {library} is too old for the kernels", got=found, expected=".".join(map(str, oldest)), help=INSTALL
        )


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, AttributeError) as error:  # incompatible packages fail with either
        libraries = (name for name in MIN_VERSIONS if name.split("-")[0] in module)
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in libraries)
        raise MissingToolError(
            f"{module} cannot be imported ({error})", got=versions, help=INSTALL.replace("install", "install -U")
        ) from error
