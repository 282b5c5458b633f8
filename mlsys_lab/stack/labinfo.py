"""What lab.toml says of a lab, and which labs are released."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlsys_lab
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.stack.commands import is_exported

FOLDER = re.compile(r"(\d{2})-([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")
FIELDS = {
    "title",
    "summary",
    "minutes",
    "points",
    "withheld",
    "provided",
    "traced",
    "stack",
    "readings",
    "extras",
    "prerequisites",
    "checks",
}


@dataclass(frozen=True)
class LabInfo:
    """One lab: its folder (`01-autograd`) and what its lab.toml says.

    `withheld` are the modules of mlsys_lab that the lab asks learners to write, `provided` those that exported cells
    may import, `traced` those that are there only where nothing but kernels is run, and traced. `stack` are the topics
    that exported cells load from `mlsys_lab.stack`. `extras` are the extras of pyproject.toml that the lab needs.
    `checks_module` defines `LAB`: this topic's package in mlsys_checks.trusted, unless lab.toml names another.
    """

    folder: Path
    title: str
    summary: str
    minutes: int
    points: float
    withheld: tuple[str, ...] = ()
    provided: tuple[str, ...] = ()
    traced: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()
    readings: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    prerequisite_labs: tuple[str, ...] = ()
    prerequisite_chapters: tuple[str, ...] = ()
    checks_module: str = ""

    @property
    def name(self) -> str:
        """The folder's name, number included."""
        return self.folder.name

    @property
    def number(self) -> int:
        """The number in the folder's name."""
        return int(self.name[:2])

    @property
    def topic(self) -> str:
        """The folder's name without its number."""
        return self.name[3:]

    @property
    def chapter(self) -> str:
        """The chapter that the lab belongs to, as in 06-triton: the first that it asks for, or ""."""
        return next(iter(self.prerequisite_chapters), "")

    @property
    def notebook(self) -> Path:
        """The released notebook, which need not have been built."""
        return self.folder / f"{self.name}.ipynb"

    @property
    def version(self) -> str:
        """Hash of the code that the released notebook exports, 12 hex digits: its interfaces, not its prose."""
        try:
            cells = json.loads(self.notebook.read_text(encoding="utf-8"))["cells"]
            sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.notebook} is no notebook", got=error, help="run `make labs`") from None
        exported = "\n".join(source for source in sources if is_exported(source))
        return hashlib.sha256(exported.encode()).hexdigest()[:12]


def labs_root() -> Path:
    """The folder of the released labs: inside an installed package, or next to the package in a checkout."""
    package = Path(str(mlsys_lab.__file__)).parent
    inside = package / "_labs"
    return inside if inside.is_dir() else package.parent / "labs"


def default_checks(topic: str) -> str:
    """The module that defines the checks of a topic whose lab.toml names none."""
    return f"mlsys_checks.trusted.{topic.replace('-', '_')}"


def read_lab(folder: Path) -> LabInfo:
    """Read and validate `folder/lab.toml`; `InputError` names the file and the field that is wrong."""
    path = folder / "lab.toml"
    if not FOLDER.fullmatch(folder.name):
        raise InputError("a lab's folder is misnamed", got=folder.name, expected="a name like 01-autograd")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{folder} has no lab.toml") from None
    except OSError as error:
        raise InputError(f"cannot read {path}", got=error.strerror) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML", got=error) from None
    if unknown := sorted(set(table) - FIELDS):
        raise InputError(f"{path}: unknown field", got=unknown[0], help=did_you_mean(unknown[0], FIELDS))
    before = _field(path, table, "prerequisites", dict, {})
    return LabInfo(
        folder=folder,
        title=_text(path, table, "title"),
        summary=_text(path, table, "summary"),
        minutes=int(_positive(path, table, "minutes")),
        points=_positive(path, table, "points"),
        withheld=_names(path, table, "withheld"),
        provided=_names(path, table, "provided"),
        traced=_names(path, table, "traced"),
        stack=_names(path, table, "stack"),
        readings=_names(path, table, "readings"),
        extras=_names(path, table, "extras"),
        prerequisite_labs=_names(path, before, "labs"),
        prerequisite_chapters=_names(path, before, "chapters"),
        checks_module=_field(path, table, "checks", str, default_checks(folder.name[3:])),
    )


def released_labs(root: Path | None = None) -> tuple[LabInfo, ...]:
    """All labs below `root` (`labs_root()` if None) whose notebook is there, in the order of their numbers."""
    infos = [read_lab(path.parent) for path in sorted((root or labs_root()).glob("*/lab.toml"))]
    return tuple(info for info in infos if info.notebook.is_file())


def require_labs(root: Path | None = None) -> tuple[LabInfo, ...]:
    """The released labs; `InputError` where there are none."""
    if labs := released_labs(root):
        return labs
    where = root or labs_root()
    raise InputError("no released labs", expected=f"notebooks in {where}", help="in a checkout, run `make labs`")


def find_lab(name: str, root: Path | None = None) -> LabInfo:
    """The released lab called `01-autograd`, `autograd` or `1`; `InputError` with a suggestion where there is none."""
    infos = require_labs(root)
    for info in infos:
        if name in (info.name, info.topic) or (name.isdecimal() and int(name) == info.number):
            return info
    names = [info.name for info in infos]
    near = did_you_mean(name, [*names, *(info.topic for info in infos)])
    raise InputError("unknown lab", got=repr(name), expected=f"one of {', '.join(names)}", help=near)


def _field(path: Path, table: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = table.get(name, default)
    if not isinstance(value, kind):
        got = "nothing" if value is None else repr(value)
        raise InputError(f"{path}: field {name!r} is wrong", got=got, expected=f"a {kind.__name__}")
    return value


def _text(path: Path, table: Mapping[str, Any], name: str) -> str:
    text: str = _field(path, table, name, str)
    if not text.strip():
        raise InputError(f"{path}: field {name!r} is empty")
    return text


def _positive(path: Path, table: Mapping[str, Any], name: str) -> float:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        got = "nothing" if value is None else repr(value)
        raise InputError(f"{path}: field {name!r} is wrong", got=got, expected="a positive number")
    return value


def _names(path: Path, table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = _field(path, table, name, list, [])
    if not all(isinstance(value, str) for value in values):
        raise InputError(f"{path}: field {name!r} is wrong", got=values, expected="a list of texts")
    return tuple(values)
