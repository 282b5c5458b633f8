"""Mutants that are right after all: `equivalent.toml` beside a lab's variants.diff, each group with the reason.

[[equivalent]]
reason = "a block beyond the last token adds nothing: all of it is masked"
mutants = ["reference flash_kernel: for start in range(…) => for start in range(…)"]

[[equivalent]]
reason = "how many steps a search takes is its own affair: what it finds is judged"
families = ["reference fit_law: options = <any>"]

`mutants` are named one by one, and none of them may be killed. A family is every mutant whose change fits, told as in
its name but without "…", and `<any>` being any text. It is for changes that are right for one reason, and excuses those
that survive. Some of it may be killed, as what raises an exception; half of it, and the family is too wide.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlsys_grader.proving.mutation.mutants import Mutant
from mlsys_lab.errors import InputError, did_you_mean

FILE = "equivalent.toml"
ANY = "<any>"
FEWEST = 3
"""Mutants of a family; fewer are named one by one."""


@dataclass(frozen=True)
class Reasons:
    """Why mutants are right after all: by the name of each, and by the pattern of each family."""

    mutants: dict[str, str] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)

    def family_of(self, mutant: Mutant) -> str | None:
        """The family that a mutant belongs to; None for one that is named itself or by nothing."""
        if mutant.name in self.mutants:
            return None
        return next((family for family in self.families if _fits(family, mutant.change)), None)

    def excuse(self, mutant: Mutant) -> bool:
        """Whether a mutant that survives has a reason."""
        return mutant.name in self.mutants or self.family_of(mutant) is not None

    def refuse_stale(self, mutants: Sequence[Mutant]) -> None:
        """Raise `InputError` for an entry that names none of all mutants, or too few: its line was changed."""
        known = {mutant.name for mutant in mutants}
        for name in self.mutants:
            if name not in known:
                help = did_you_mean(name, known) or "mend its line in the file, or take it out"
                raise InputError(f"{FILE} names no mutant", got=name, help=help)
        sizes = Counter(self.family_of(mutant) for mutant in mutants)
        for family in self.families:
            if sizes[family] < FEWEST:
                what = f"{FILE}: a family has fewer than {FEWEST} mutants that are not named themselves"
                raise InputError(
                    what, got=f"{sizes[family]} of {family}", help="name them, or mend its line in the file"
                )


def read_equivalent(folder: Path) -> Reasons:
    """The reasons in a lab's file; none where it has no such file.

    Raises `InputError` where the file is no TOML, a group has no reason or a mutant or a family is named twice.
    """
    path, reasons = folder / FILE, Reasons()
    if not path.is_file():
        return reasons
    try:
        groups = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML", got=error) from None
    for group in groups:
        named = {"mutants": group.get("mutants", []), "families": group.get("families", [])}
        if not str(group.get("reason", "")).strip():
            raise InputError(f"{path}: a group has no reason", got=", ".join([*named["mutants"], *named["families"]]))
        for kind, names in named.items():
            known = getattr(reasons, kind)
            for name in names:
                if name in known:
                    raise InputError(f"{path}: named twice", got=name)
                known[name] = group["reason"]
    return reasons


def _fits(family: str, change: str) -> bool:
    """Whether a change is one of a family, in which ANY stands for any text."""
    return re.fullmatch(".*".join(map(re.escape, family.split(ANY))), change, re.DOTALL) is not None
