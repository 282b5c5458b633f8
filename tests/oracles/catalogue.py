"""Published figures that the course reproduces: one YAML file a topic, read into records.

An entry has an id and says what was published (`quantity`, `expected`), from which `inputs`, how close a computation
comes (`rel_tol`), where (`source`), and how the figure was got hold of (`evidence`): "quoted" from the source,
"primary", worked out in the source, "derived" from its formula, from "notes" or "memory". `owner` names the
later topic that will compute it; `by` says what computes it today: functions, methods or properties by their names
below `mlsys_lab`, or "page" where cells of a chapter do. `restated` are the positions of figures that nothing of the
package computes: they follow from the inputs by arithmetic in the test, or stand in a table of the package as printed.

Where a source contradicts itself `contradiction` says how, `printed` is what stands there and `arithmetic` what follows
from its own inputs; one of the two may be missing, and is then `expected`. `rounded` are what explains `printed`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
EVIDENCE = ("quoted", "primary", "derived", "notes", "memory")
LATER = ("reliability",)
STATES = ("package", "in part", "page", "restated", "later")
"""Who computes an entry's figures: the package all or some of them, a chapter's cells, nobody, a later topic."""
IN_A_NAME = re.compile(r"(?<![A-Z0-9])(?!BF16)[A-Z]{2}\d{2}(?![A-Z0-9])")


@dataclass(frozen=True)
class Oracle:
    """One published quantity, of one number or several."""

    id: str
    topic: str
    quantity: str
    inputs: dict[str, Any]
    expected: Any
    rel_tol: float
    source: str
    evidence: str
    note: str = ""
    contradiction: str = ""
    printed: Any = None
    rounded: Any = None
    arithmetic: Any = None
    owner: str = ""
    by: str | list[str] = ""
    restated: Sequence[int] = ()

    @property
    def figures(self) -> list[float]:
        """What is expected, always as a list."""
        return self.expected if isinstance(self.expected, list) else [self.expected]

    @property
    def functions(self) -> list[str]:
        """What of the package computes it, by names below `mlsys_lab`; empty where nothing does."""
        names = self.by if isinstance(self.by, list) else [self.by]
        return [name for name in names if name not in ("", "page")]

    @property
    def state(self) -> str:
        """Where the figure comes from, one of `STATES`."""
        if self.owner:
            return "later"
        if self.functions:
            return "in part" if self.restated else "package"
        return "page" if self.by else "restated"

    def check(self, *computed: float) -> None:
        """Fails unless every figure is within the tolerance."""
        assert [float(figure) for figure in computed] == pytest.approx(self.figures, rel=self.rel_tol)


@cache
def oracles() -> dict[str, Oracle]:
    """Every entry of every file, by id; an id that two files have is an error."""
    found: dict[str, Oracle] = {}
    for path in sorted(HERE.glob("*.yml")):
        for name, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            assert name not in found, f"{name} is in {found[name].topic} and in {path.stem}"
            found[name] = Oracle(id=name, topic=path.stem, **entry)
    return found


@cache
def modules() -> dict[str, ModuleType]:
    """The modules of tests beside this file, by file name."""
    paths = sorted(HERE.glob("test_*.py"))
    return {path.name: importlib.import_module(f"tests.oracles.{path.stem}") for path in paths}


def computations() -> dict[str, Callable[[dict[str, Any]], Sequence[float]]]:
    """How tests compute figures from an entry's inputs, by id; what a chapter's cells compute is not among them."""
    found: dict[str, Callable[[dict[str, Any]], Sequence[float]]] = {}
    for module in modules().values():
        if not hasattr(module, "PAGE"):
            found |= getattr(module, "COMPUTED", {})
    return found


@cache
def named_in_tests() -> dict[str, list[str]]:
    """Ids that tests name, each with those tests: as keys of a module's COMPUTED, or in a test function's name."""
    found: dict[str, list[str]] = {}
    for file, module in modules().items():
        names = [*getattr(module, "COMPUTED", ()), *(name for name in vars(module) if name.startswith("test_"))]
        for name in names:
            for oracle in IN_A_NAME.findall(name.upper().replace("_", " ")):
                found.setdefault(oracle, []).append(f"{file}:{name}")
    return found
