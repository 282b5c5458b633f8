"""The two sides of a lab's checks as files: what goes into a sandbox, and what a verdict depends on.

`sandboxed/` runs in the submission's process, `trusted/` never does. In both, a file or folder named after a topic
belongs to that lab; every other file serves all labs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import mlsys_lab
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import LabInfo
from mlsys_lab.stack.solved import export_solved, find_solved

CHECKS = Path(__file__).parent
SANDBOXED, TRUSTED = CHECKS / "sandboxed", CHECKS / "trusted"
PACKAGE = Path(mlsys_lab.__file__).parent
HOMES = tuple(dict.fromkeys((PACKAGE.parent, CHECKS.parent)))
"""Folders that hold `mlsys_lab` and `mlsys_checks`: two in a checkout, one where both are installed."""
COURSE = ("mlsys_lab", "mlsys_checks", "mlsys_grader")
"""Packages of the course. Where they are installed, all other packages are their siblings."""
ALWAYS_PROVIDED = ("mlsys_lab.errors", "mlsys_lab.hardware", "mlsys_lab.stack")
"""Modules that exported cells of every lab may import."""
TRUSTED_PACKAGE = "mlsys_checks.trusted"
DEFINES_LAB = re.compile(r"^LAB\b[^=\n]*=", re.MULTILINE)


def find_modules() -> tuple[str, ...]:
    """Names of the modules in `trusted/` that define a lab, found by their text ("gpu_model")."""
    found = {path.stem: path for path in TRUSTED.glob("*.py")}
    found |= {path.parent.name: path for path in TRUSTED.glob("*/__init__.py")}
    return tuple(name for name, path in sorted(found.items()) if DEFINES_LAB.search(path.read_text(encoding="utf-8")))


def find_other_labs(side: Path, checks_module: str) -> set[Path]:
    """Files of a side that belong to other labs than `checks_module`'s."""
    others = {name for name in find_modules() if f"{TRUSTED_PACKAGE}.{name}" != checks_module}
    return {path for path in side.iterdir() if path.stem in others}


def find_files(side: Path, checks_module: str) -> list[Path]:
    """Files of a side that serve every lab, plus those of `checks_module`'s lab."""
    others = find_other_labs(side, checks_module)
    return sorted(path for path in side.rglob("*.py") if not others.intersection((path, *path.parents)))


def find_provided(lab: LabInfo, withheld: Iterable[str], others: Iterable[Path] = ()) -> list[Path]:
    """Files of the package available where a lab's exported cells are graded.

    These are the sandboxed side of the lab's checks, `ALWAYS_PROVIDED`, what lab.toml has `provided`, all that these
    modules, the solved labs of its `stack` and the files `others` import, and their parent packages; without
    `withheld`. Nothing else is available: a module that computes the same as a withheld one would give it away.
    """
    roots = [*find_files(SANDBOXED, lab.checks_module), *others]
    for path in find_stack(lab):
        roots += _imported(export_solved(path.read_text(encoding="utf-8")).encode(), ())
    found = set(
        add_imports([*roots, *(file for name in (*ALWAYS_PROVIDED, *lab.provided) for file in find_module(name))])
    )
    while packages := {file for file in _packages_above(found) if _may_be_inside(file)} - found:
        found.update(add_imports(packages))
    found -= {file for name in withheld for file in find_module(name)}
    return sorted(filter(_may_be_inside, found))


def find_stack(lab: LabInfo) -> list[Path]:
    """Find the solved labs that a lab's exported cells may load, as far as they are installed."""
    return [path for path in map(find_solved, lab.stack) if path]


def _packages_above(files: Iterable[Path]) -> Iterator[Path]:
    return (file for one in files if (file := one.parent.parent / "__init__.py").is_file())


def _may_be_inside(file: Path) -> bool:
    return PACKAGE in file.parents or SANDBOXED in file.parents


def find_module(name: str) -> list[Path]:
    """The file of a module of the package, or all files of a package; `InputError` if there is none."""
    path = PACKAGE.parent.joinpath(*name.split("."))
    files = [path.with_suffix(".py")] if path.with_suffix(".py").is_file() else sorted(path.rglob("*.py"))
    if not files:
        raise InputError("lab.toml names a module that there is not", got=name)
    return files


def add_imports(files: Iterable[Path], folders: Sequence[Path] = ()) -> list[Path]:
    """Return files with everything of the course, or from `folders`, that they import directly or indirectly.

    Imports anywhere in a file count. Parent packages of an imported module do not: they hold names, not behaviour.
    """
    found, waiting = set[Path](), list(files)
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += _imported(file.read_bytes(), folders)
    return sorted(found)


def _imported(source: bytes, folders: Sequence[Path]) -> Iterator[Path]:
    for name in _names(source):
        for folder in HOMES if name.partition(".")[0] in COURSE else folders:
            path = folder.joinpath(*name.split("."))
            yield from (one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file())


@cache
def _names(source: bytes) -> tuple[str, ...]:
    """Modules that a source imports; for `from a import b` both a and a.b, since either may be one."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    return tuple(names)
