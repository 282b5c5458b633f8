"""Mutants that are right after all: `equivalent.toml` beside a lab's variants.diff, each group with the reason.

[[equivalent]]
reason = "a block beyond the last token adds nothing: all of it is masked"
mutants = ["reference flash_kernel: for start in range(…) => for start in range(…)"]
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from mlsys_lab.errors import InputError, did_you_mean

FILE = "equivalent.toml"


def read_equivalent(folder: Path) -> dict[str, str]:
    """Why each listed mutant is right after all, by the mutant's name: `folder`/equivalent.toml, or nothing without it.

    Raises `InputError` where the file is no TOML, a group has no reason or a mutant is named twice.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        groups = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML", got=error) from None
    reasons: dict[str, str] = {}
    for group in groups:
        if not str(group.get("reason", "")).strip():
            raise InputError(f"{path}: a group has no reason", got=", ".join(group.get("mutants", [])))
        for name in group.get("mutants", []):
            if name in reasons:
                raise InputError(f"{path}: a mutant is named twice", got=name)
            reasons[name] = group["reason"]
    return reasons


def refuse_stale(reasons: Iterable[str], names: Iterable[str]) -> None:
    """Raise `InputError` for the first of `reasons` whose name no mutant has any more, since its line was changed."""
    known = set(names)
    for name in reasons:
        if name not in known:
            help = did_you_mean(name, known) or "mend its line in the file, or take it out"
            raise InputError(f"{FILE} names no mutant", got=name, help=help)
