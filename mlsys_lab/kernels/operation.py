"""One operation in several languages: which module holds a language's steps, and how one of them is run."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from mlsys_lab.errors import InputError

LANGUAGES = {"numba": "numba_steps", "cuda": "cuda_steps", "triton": "triton_steps"}
"""The module that holds a language's steps, in each operation's folder that has them."""


def steps_in(operation: str, language: str) -> ModuleType:
    """The module of an operation's steps in a language: `STEPS` (name: a sentence) and `run(step, *tensors)`.

    Raises InputError for a language that there is not, or that the operation is not written in.
    """
    if language not in LANGUAGES:
        raise InputError("unknown language", got=language, expected=" or ".join(LANGUAGES))
    name = f"mlsys_lab.kernels.{operation}.{LANGUAGES[language]}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise InputError(f"{operation} is not written in {language}") from None


def perform(operation: str, language: str, step: str | None, *tensors: torch.Tensor) -> torch.Tensor:
    """Run one step; without a name the last, which is the fastest. Raises InputError, MissingToolError."""
    module = steps_in(operation, language)
    result: torch.Tensor = module.run(step or list(module.STEPS)[-1], *tensors)
    return result
