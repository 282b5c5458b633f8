"""One operation in several languages: which module holds a language's steps."""

from __future__ import annotations

import importlib
from types import ModuleType

from mlsys_lab.errors import InputError

LANGUAGES = {"numba": "numba_steps", "cuda": "cuda_steps", "triton": "triton_steps"}
"""The module that holds a language's steps, in each operation's folder that has them."""


def steps_in(operation: str, language: str) -> ModuleType:
    """The module of an operation's steps in a language, with `STEPS` (name: a sentence) and `run(step, …)`.

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
