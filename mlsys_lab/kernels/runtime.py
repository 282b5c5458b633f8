"""Where kernels run: on the GPU where there is one, else in Triton's interpreter and in a simulator of CUDA's threads.

Triton and Numba decide when they are imported whether they compile, by a variable of the environment. `load_triton` and
`load_numba` set it where there is no GPU and nobody has set it before, then import; whoever wants the interpreter on a
machine with a GPU sets `TRITON_INTERPRET=1` or `NUMBA_ENABLE_CUDASIM=1` before Python starts.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
from importlib import metadata
from typing import Any

from mlsys_lab.errors import MissingToolError
from mlsys_lab.kernels.triton_members import original_members

OLDEST = {"triton": (3, 6), "numba": (0, 61), "numba-cuda": (0, 22), "greenlet": (3, 1)}
"""The oldest release of each library that the kernels are written for."""

INSTALL = 'pip install "mlsys-lab[kernels]"'


def on_gpu() -> bool:
    """Whether this machine has a CUDA device that torch can use."""
    import torch

    return torch.cuda.is_available()


def need_gpu(what: str) -> None:
    """Raise MissingToolError, naming `what` asked for it, where there is no GPU."""
    if not on_gpu():
        raise MissingToolError(
            f"{what} needs a GPU", got="no CUDA device", help="every step but the compiled ones runs without one"
        )


def load_triton() -> tuple[Any, Any]:
    """Import `triton` and `triton.language`, ready to interpret without a GPU and to compile with one.

    Raises MissingToolError where Triton is not published for this system, not installed, or too old.
    """
    if platform.system() != "Linux":
        raise MissingToolError("Triton is published for Linux only", got=platform.system(), help="use the Numba steps")
    _check_version("triton")
    _without_gpu("TRITON_INTERPRET")
    triton, tl = _import("triton"), _import("triton.language")
    original_members()  # read before a kernel is interpreted: the compiler needs them
    return triton, tl


def load_numba() -> Any:
    """Import `numba.cuda`, ready to simulate without a GPU and to compile with one.

    Raises MissingToolError where Numba is not installed, too old, or does not fit its CUDA package.
    """
    for library in ("numba", "numba-cuda"):
        _check_version(library)
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")  # small grids are meant: they can be looked at
    _without_gpu("NUMBA_ENABLE_CUDASIM")
    return _import("numba.cuda")


def triton_interprets() -> bool:
    """Whether Triton's kernels are interpreted in Python; valid after `load_triton`."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def numba_simulates() -> bool:
    """Whether Numba's kernels are run by the simulator; valid after `load_numba`."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"


def _without_gpu(variable: str) -> None:
    if variable not in os.environ and not on_gpu():
        os.environ[variable] = "1"


def _check_version(library: str) -> None:
    oldest = OLDEST[library]
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
    except (ImportError, AttributeError) as error:  # two packages that do not fit one another fail with either
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in OLDEST if name.split("-")[0] in module)
        raise MissingToolError(
            f"{module} cannot be imported ({error})", got=versions, help=INSTALL.replace("install", "install -U")
        ) from error
