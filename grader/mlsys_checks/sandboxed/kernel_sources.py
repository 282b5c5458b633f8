"""Kernel sources in another language (CUDA C++), returned by functions of a submission.

Where a source runs for marks or is timed, nothing else of the submission may have run in the process: a process of its
own calls the functions, and only the sources are passed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import decode_text, describe_value, encode_text
from mlsys_lab.errors import InputError

MAX_BYTES = 64 << 10


def name_sources(names: Sequence[str]) -> Arrays:
    """Arrays that request the sources of these functions from `give_sources`."""
    return {"names": encode_text(" ".join(names))}


def give_sources(artifact: Any, arrays: Arrays) -> Arrays:
    """Call functions without arguments; return each source as bytes by name.

    Raises InputError for a function that returns no text, or too long a one.
    """
    return {name: encode_text(source_of(artifact, name)) for name in decode_text(arrays["names"]).split()}


def source_of(artifact: Any, name: str) -> str:
    """The source that a function of the artifact returns; InputError for anything else."""
    text = getattr(artifact, name)()
    if not isinstance(text, str):
        raise InputError(f"{name}() gives no text", got=describe_value(text), expected="str")
    _require_short(name, len(text.encode()))
    return text


def lend_sources(kernels: Any, artifact: Any, names: Sequence[str]) -> None:
    """Give a module of kernels the artifact's own functions of these names; only for trusted sources."""
    vars(kernels).update((name, getattr(artifact, name)) for name in names if hasattr(artifact, name))


def read_sources(names: Sequence[str], got: Arrays) -> dict[str, str]:
    """Decode an answer of `give_sources`; raise InputError for an invalid one, from either side."""
    if missing := [name for name in names if name not in got]:
        raise InputError(f"{missing[0]}() gives no text")
    for name in names:
        _require_short(name, got[name].nbytes)
    return {name: decode_text(got[name]) for name in names}


def _require_short(name: str, size_bytes: int) -> None:
    if size_bytes > MAX_BYTES:
        raise InputError(f"{name}() gives too long a text", got=f"{size_bytes:,} bytes", expected=f"{MAX_BYTES:,}")
