"""Texts of kernels in another language, which functions of a submission give.

Where the text is run for marks, or timed, nothing else of the submission may have run in the process: so a process of
its own calls the functions, and the texts alone are handed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import decode_text, describe_value, encode_text
from mlsys_lab.errors import InputError

MOST_BYTES = 64 << 10


def name_sources(names: Sequence[str]) -> Arrays:
    """Arrays that ask `give_sources` for the texts of the functions with these names."""
    return {"names": encode_text(" ".join(names))}


def give_sources(artifact: Any, arrays: Arrays) -> Arrays:
    """Call functions without arguments; the text that each gives, as bytes by its name.

    Raises InputError for a function that gives no text, or one that is too long.
    """
    return {name: encode_text(source_of(artifact, name)) for name in decode_text(arrays["names"]).split()}


def source_of(artifact: Any, name: str) -> str:
    """The text that a function without arguments of the artifact gives; InputError for anything else."""
    text = getattr(artifact, name)()
    if not isinstance(text, str):
        raise InputError(f"{name}() gives no text", got=describe_value(text), expected="str")
    _refuse_long(name, len(text.encode()))
    return text


def lend_sources(kernels: Any, artifact: Any, names: Sequence[str]) -> None:
    """Let a module of kernels have the artifact's own functions of these names, where no hostile text is awaited."""
    vars(kernels).update((name, getattr(artifact, name)) for name in names if hasattr(artifact, name))


def read_sources(names: Sequence[str], got: Arrays) -> dict[str, str]:
    """The texts by name that an answer of `give_sources` holds; InputError where it does not, whoever wrote it."""
    if missing := [name for name in names if name not in got]:
        raise InputError(f"{missing[0]}() gives no text")
    for name in names:
        _refuse_long(name, got[name].nbytes)
    return {name: decode_text(got[name]) for name in names}


def _refuse_long(name: str, size_bytes: int) -> None:
    if size_bytes > MOST_BYTES:
        raise InputError(f"{name}() gives too long a text", got=f"{size_bytes:,} bytes", expected=f"{MOST_BYTES:,}")
