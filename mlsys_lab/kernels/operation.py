"""Dispatch of an operation to one of the languages and steps in which it is written.

In Triton an operation is a torch operator, which torch.compile takes as one node of its graph. In the other languages
it is not: keep it out of compiled functions.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import torch

from mlsys_lab.errors import InputError

LANGUAGES = {"numba": "numba_steps", "cuda": "cuda_steps", "triton": "triton_steps"}
"""Module with an operation's steps in each language."""


def steps_in(operation: str, language: str) -> ModuleType:
    """Import the module of an operation's steps in a language: `STEPS` (name: description) and `run(step, *tensors)`.

    Raises InputError for an unknown language, or one that the operation is not written in.
    """
    if language not in LANGUAGES:
        raise InputError("unknown language", got=language, expected=" or ".join(LANGUAGES))
    name = f"mlsys_lab.kernels.{operation}.{LANGUAGES[language]}"
    if not _import(name):
        folder = Path(__file__).parent / operation
        written = [one for one, steps in LANGUAGES.items() if (folder / f"{steps}.py").exists()]
        raise InputError(f"{operation} is not written in this language", got=language, expected=" or ".join(written))
    return sys.modules[name]


def _import(name: str) -> bool:
    """Import a module and return whether it exists."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return False
    return True


# torch.compile cannot trace an import; it calls a function with this mark while tracing and keeps the result. This is
# what torch.compiler.assume_constant_result does, but that imports the compiler, which takes seconds.
_import._dynamo_marked_constant = True  # type: ignore[attr-defined]


def perform(operation: str, language: str, step: str | None, *tensors: torch.Tensor) -> torch.Tensor:
    """Run one step of an operation (by default the last, the fastest). Raises InputError and MissingToolError."""
    module = steps_in(operation, language)
    result: torch.Tensor = module.run(step or list(module.STEPS)[-1], *tensors)
    return result
