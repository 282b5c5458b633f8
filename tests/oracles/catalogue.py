"""Published figures that the course reproduces: one YAML file a topic, read into records.

An entry has an id and says what was published (`quantity`, `expected`), from which `inputs`, how close a computation
comes (`rel_tol`), where (`source`), and how the figure was got hold of (`evidence`): "quoted" from the source,
"primary", worked out in the source, "derived" from its formula, from "notes" or "memory". `owner` names the
later topic that will compute it.

Where a source contradicts itself `contradiction` says how, `printed` is what stands there and `arithmetic` what follows
from its own inputs; one of the two may be missing, and is then `expected`. `rounded` are what explains `printed`.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
EVIDENCE = ("quoted", "primary", "derived", "notes", "memory")
LATER = ("collectives", "model-parallel", "serving", "quantisation", "diffusion", "reliability")
IN_A_NAME = re.compile(r"(?<![A-Z0-9])[A-Z]{2}\d{2}(?![A-Z0-9])")


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

    @property
    def figures(self) -> list[float]:
        """What is expected, always as a list."""
        return self.expected if isinstance(self.expected, list) else [self.expected]

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
def named_in_tests() -> dict[str, list[str]]:
    """Ids that tests name, each with those tests: as keys of a module's COMPUTED, or in a test function's name."""
    found: dict[str, list[str]] = {}
    for path in sorted(HERE.glob("test_*.py")):
        module = importlib.import_module(f"tests.oracles.{path.stem}")
        names = [*getattr(module, "COMPUTED", ()), *(name for name in vars(module) if name.startswith("test_"))]
        for name in names:
            for oracle in IN_A_NAME.findall(name.upper().replace("_", " ")):
                found.setdefault(oracle, []).append(f"{path.name}:{name}")
    return found
