"""What lab 05 says of a case: its inputs as the code that makes them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.transformer_arithmetic.models import CHOICES, FLAGS, SIZES, fields_of
from mlsys_checks.trusted import describe

WIDTH = 84
GLUE = "\N{NO-BREAK SPACE}"


def code_of(model: np.ndarray) -> str:
    """A model's array as the code that makes its configuration: sizes, choices, and flags that are set."""
    fields = fields_of(model)
    sizes = [f"{name}={fields[name]}" for name in SIZES]
    choices = [f'{name}="{fields[name]}"' for name in CHOICES]
    flags = [f"{name}=True" for name in FLAGS if fields[name]]
    return "\n".join(["config = TransformerConfig(", *wrap_entries(['"a model"', *sizes, *choices, *flags]), ")"])


def wrap_entries(entries: Iterable[str]) -> list[str]:
    """Entries of a list as indented lines, each entry whole."""
    lines = textwrap.wrap(", ".join(entry.replace(" ", GLUE) for entry in entries), WIDTH)
    return [f"    {line.replace(GLUE, ' ')}" for line in lines]


def describe_calls(*calls: str, further: Callable[[Arrays], list[str]] | None = None) -> Callable[[Arrays], str]:
    """A check's `describe`: the model if there is one, `further` inputs, and calls whose {names} are numbers."""

    def given(arrays: Arrays) -> list[str]:
        model = [code_of(arrays["model"])] if "model" in arrays else []
        return [*model, *(further(arrays) if further else [])]

    return describe.describe_calls(*calls, given=given)
