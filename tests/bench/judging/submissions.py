"""A class that hands in lab 01: most have it right, the others made one mistake each."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.proving.variants import Variant
from mlsys_grader.release.build import release
from mlsys_lab.stack.labinfo import find_lab
from tests.grader import classroom
from tests.labs.harness import labs

AUTOGRAD = next(lab for lab in labs() if lab.info.topic == "autograd")
LOCAL = {"value_arithmetic", "value_functions", "tensor_sum", "tensor_index", "cross_entropy"}
MISTAKES = [variant for variant in AUTOGRAD.mutants if LOCAL.intersection(variant.fails) and not variant.hangs]
"""Mistakes that stay where they were made: none ends a kernel or waits for ever, which would be no fair race."""
EVERY = 10
WRONG = (2, 5, 8)
"""Of ten submissions in a row these have a mistake."""

FIXTURES = Path(classroom.__file__).parent / "fixtures"
TINY_ANSWERS = """\
#| export
def double(x):
    return 2 * x


def mean(x):
    return x.sum() / len(x) if len(x) else 0.0


def total(x):
    return (x * x).sum()"""


@dataclass(frozen=True)
class Submission:
    """A student's notebook, and what is wrong with it: "" for nothing."""

    student: str
    notebook: dict[str, Any]
    mistake: str = ""

    @property
    def content(self) -> bytes:
        return json.dumps(self.notebook).encode()


def build(count: int) -> list[Submission]:
    """Seven of ten right, three with a mistake that is another one each time, as long as there are others."""
    solved = classroom.solved_notebook()
    for cell in solved["cells"]:
        cell["source"] = "".join(cell["source"])
    usable = [variant for variant in MISTAKES if len(_cells_with(solved, variant)) == 1]
    found = []
    for number in range(count):
        student = f"student-{number:03}"
        if number % EVERY in WRONG:
            variant = usable[(number // EVERY * len(WRONG) + WRONG.index(number % EVERY)) % len(usable)]
            found.append(Submission(student, _changed(solved, variant), variant.name))
        else:
            found.append(Submission(student, solved))
    return found


def _cells_with(notebook: dict[str, Any], variant: Variant) -> list[dict[str, Any]]:
    """The exported cells that the mistake can be made in; a cell that has the text twice counts twice."""
    exported = [cell for cell in notebook["cells"] if cell["source"].startswith("#| export")]
    return [cell for cell in exported for _ in range(f"{cell['source']}\n".count(variant.old))]


def _changed(notebook: dict[str, Any], variant: Variant) -> dict[str, Any]:
    notebook = copy.deepcopy(notebook)
    (cell,) = _cells_with(notebook, variant)
    cell["source"] = f"{cell['source']}\n".replace(variant.old, variant.new)
    return notebook


def tiny(labs: Path) -> tuple[GradedLab, bytes]:
    """The tiny lab of the grader's tests, released into `labs`, and a submission that has it right."""
    sys.path.append(str(FIXTURES / "checks"))
    released = release(FIXTURES / "solutions" / "01-tiny", classroom.PROJECT / "pyproject.toml")
    released.write(labs)
    notebook = json.loads(released.files["01-tiny.ipynb"])
    notebook["cells"].append(classroom.code_cell(TINY_ANSWERS))
    return GradedLab(find_lab("tiny", labs)), classroom.save(notebook)
