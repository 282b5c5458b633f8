"""One operation in several languages: which module holds a language's steps, and how one of them is run.

In Triton an operation is an operator of torch's, which torch.compile takes as one node of its graph. In the other
languages it is none: keep it out of what is compiled.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import torch

from mlsys_lab.errors import InputError

LANGUAGES = {"numba": "numba_steps", "cuda": "cuda_steps", "triton": "triton_steps"}
"""Name of the module that holds a language's steps, in the folder of each operation that has them."""


def steps_in(operation: str, language: str) -> ModuleType:
    """The module of an operation's steps in a language: `STEPS` (name: a sentence) and `run(step, *tensors)`.

    Raises InputError for a language that there is not, or that the operation is not written in.
    """
    if language not in LANGUAGES:
        raise InputError("unknown language", got=language, expected=" or ".join(LANGUAGES))
    name = f"mlsys_lab.kernels.{operation}.{LANGUAGES[language]}"
    if not _imported(name):
        folder = Path(__file__).parent / operation
        written = [one for one, steps in LANGUAGES.items() if (folder / f"{steps}.py").exists()]
        raise InputError(f"{operation} is not written in this language", got=language, expected=" or ".join(written))
    return sys.modules[name]


def _imported(name: str) -> bool:
    """Import a module; returns whether it exists."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return False
    return True


# torch.compile cannot trace an import; of what is marked so it asks for the result while it traces. This is what
# torch.compiler.assume_constant_result does, which would import the whole compiler here: seconds.
_imported._dynamo_marked_constant = True  # type: ignore[attr-defined]


def perform(operation: str, language: str, step: str | None, *tensors: torch.Tensor) -> torch.Tensor:
    """Run one step of an operation (by default the last, the fastest) on tensors. InputError, MissingToolError."""
    module = steps_in(operation, language)
    result: torch.Tensor = module.run(step or list(module.STEPS)[-1], *tensors)
    return result
