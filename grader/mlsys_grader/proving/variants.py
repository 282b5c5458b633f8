"""What a lab's checks are proved on: its reference, right solutions built otherwise, and mistakes of all kinds.

A folder per lab, tests/labs/TOPIC in a checkout, holds

    variants.diff      mutants and mishaps: named changes of the reference, each of lines that occur once in it
    alternatives/*.py  correct solutions built differently: definitions that take the place of the reference's

A mutant is a plausible mistake, and must fail the checks that it names. A mishap (unfinished code, a wrong shape, an
endless loop …) must besides be answered in certain words, which follow a `!`. An alternative must pass everything.

    @@ rms @@ the sum of the squares, not their mean
    -    return np.sqrt(np.mean(x**2))
    +    return np.sqrt(np.sum(x**2))
    @@ rms, norm (hangs) @@ an endless loop
    ! did not come to an end
     def rms(x):
    +    while True:
    +        pass

As in any diff, lines go (-), come (+) or stay (a blank). A line that begins with # is a comment.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mlsys_checks.sandboxed.kernels.definitions import is_kernel
from mlsys_checks.trusted.artifact import Artifact, export_cells, parse_notebook, read_notebook
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import LabInfo


@dataclass(frozen=True)
class Variant:
    """The reference with `old`, which occurs exactly once in it, replaced by `new`.

    `fails`: the checks that must not pass. `hangs`: they fail because no answer comes; such checks get one second.
    `says`: words that the message must hold, for a mishap; "" for a mutant.
    """

    name: str
    old: str
    new: str
    fails: tuple[str, ...]
    hangs: bool = False
    says: str = ""


HEAD = re.compile(r"@@ (?P<fails>[\w-]+(?:, [\w-]+)*)(?P<hangs> \(hangs\))? @@ (?P<name>.+)")
"""The first line of a variant: the checks that must fail, and what is wrong."""


def parse_variants(text: str) -> list[Variant]:
    """The variants of a variants.diff, in its order. Raises `InputError` for one that is no diff."""
    before, *blocks = re.split(r"^(?=@@|#)", text, flags=re.MULTILINE)
    if before.strip():
        raise InputError("a line belongs to no variant", got=repr(before.strip().split("\n")[0]), expected="@@ or #")
    return [_parse(block) for block in blocks if block.startswith("@@")]


def _parse(hunk: str) -> Variant:
    head, *lines = hunk.rstrip().split("\n")  # an editor may have cut the blank that begins an empty line that stays
    if (found := HEAD.fullmatch(head)) is None:
        raise InputError("not the head of a variant", got=repr(head), expected="@@ check, check @@ what is wrong")
    says = lines.pop(0).removeprefix("! ") if lines and lines[0].startswith("! ") else ""
    if strange := [line for line in lines if line and line[0] not in " -+"]:
        raise InputError(
            f"variant {found['name']!r} is no diff", got=repr(strange[0]), expected="lines after -, + or a blank"
        )
    old, new = ("".join(f"\n{line[1:]}" for line in lines if line[:1] != sign) + "\n" for sign in "+-")
    if old == new:
        raise InputError(f"variant {found['name']!r} changes nothing", expected="lines after - or +")
    return Variant(found["name"], old, new, tuple(found["fails"].split(", ")), bool(found["hangs"]), says)


@dataclass(frozen=True)
class VariantsOf:
    """The variants of one lab: `info` is its folder in solutions/, `folder` that of its variants.

    Raises `InputError` where a file is missing, or a variant's old text is not in the reference exactly once.
    """

    info: LabInfo
    folder: Path

    @property
    def source(self) -> Path:
        """The py:percent notebook with the solutions."""
        return self.info.folder / f"{self.info.name}.py"

    @cached_property
    def variants(self) -> list[Variant]:
        """Mutants and mishaps, in the order of variants.diff."""
        path = self.folder / "variants.diff"
        if not path.is_file():
            raise InputError(
                f"no variants of {self.info.name}", expected=path, help="--variants DIR names their folder"
            )
        return parse_variants(path.read_text(encoding="utf-8"))

    @property
    def mutants(self) -> list[Variant]:
        """Plausible mistakes, each of which must fail the checks that it names."""
        return [variant for variant in self.variants if not variant.says]

    @property
    def mishaps(self) -> list[Variant]:
        """Code that is unfinished, has the wrong form, or never ends, and must be answered in certain words."""
        return [variant for variant in self.variants if variant.says]

    @property
    def alternatives(self) -> list[Path]:
        """Files of definitions that are right as well."""
        return sorted((self.folder / "alternatives").glob("*.py"))

    @cached_property
    def reference_notebook(self) -> dict[str, Any]:
        """The solved notebook as JSON."""
        import jupytext

        notebook: dict[str, Any] = json.loads(jupytext.writes(jupytext.read(self.source), fmt="ipynb"))
        return notebook

    @cached_property
    def reference(self) -> str:
        """The text of the solved notebook's artifact."""
        return export_cells(parse_notebook(self.reference_notebook, "reference.ipynb")).source

    def substituted(self, variant: Variant) -> str:
        """The reference's text with the variant's change."""
        if (count := len(re.findall(f"(?={re.escape(variant.old)})", self.reference))) != 1:
            what = f"{self.info.name}: the old text of variant {variant.name!r} is not in the reference exactly once"
            raise InputError(what, got=f"{count} times", expected="once")
        return self.reference.replace(variant.old, variant.new)

    def with_definitions(self, path: Path) -> str:
        """The reference's text followed by an alternative's: of a name's definitions the last one counts.

        Kernels and numbers, of which there may be one of a name only, are taken out of the reference.
        """
        definitions = path.read_text(encoding="utf-8")
        names = {_name_of(node) for node in ast.parse(definitions).body}
        lines = self.reference.split("\n")
        for node in ast.parse(self.reference).body:
            if _is_single(node) and _name_of(node) in names:
                first = node.decorator_list[0].lineno if isinstance(node, ast.FunctionDef) else node.lineno
                lines[first - 1 : node.end_lineno] = [""] * ((node.end_lineno or first) - first + 1)
        return "\n".join([*lines, "# %% cell 1000", definitions])


def _name_of(node: ast.stmt) -> str:
    """The name that a statement defines, of a function or of one value; "" for any other."""
    if isinstance(node, ast.FunctionDef):
        return node.name
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) and len(node.targets) == 1 else ""


def _is_single(node: ast.stmt) -> bool:
    """Whether a definition is one of those that may stand once only where kernels are traced."""
    if isinstance(node, ast.FunctionDef):
        return is_kernel(node)
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)


def read_blank(info: LabInfo) -> Artifact:
    """The artifact of the notebook that learners get."""
    return export_cells(read_notebook(info.notebook))
