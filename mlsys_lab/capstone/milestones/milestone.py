"""A milestone: a published number, what a stack gives for it, and one line that says why where they differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mlsys_lab.capstone.stack import Stack
from mlsys_lab.errors import CourseError
from mlsys_lab.models.training import one_thread


@dataclass(frozen=True)
class Figure:
    """A number that was published, or else that must come out for the run to count, next to what the code gave.

    They agree if they differ by at most `tolerance`, in the same unit; or, where the paper states a bound, if
    `obtained` is at most ("<") or at least (">") `expected`. `reason` says where the tolerance comes from.
    """

    what: str
    expected: float
    obtained: float
    tolerance: float
    reason: str
    relation: Literal["=", "<", ">"] = "="
    is_published: bool = True

    @classmethod
    def check(cls, what: str, expected: float, obtained: float, reason: str, tolerance: float = 0) -> Figure:
        """A number of no paper, such as the wrong elements of a sum."""
        return cls(what, expected, obtained, tolerance, reason, is_published=False)

    @property
    def condition(self) -> str:
        """What `obtained` must be, such as "1.5 ± 0.01" or "at most 4"."""
        number = format_number(self.expected)
        if self.relation == "=":
            return f"{number} ± {self.tolerance:.2g}" if self.tolerance else number
        return f"at {'most' if self.relation == '<' else 'least'} {number}"

    @property
    def agrees(self) -> bool:
        """Whether the code gives the expected number; never for NaN."""
        difference = self.obtained - self.expected
        if self.relation == "=":
            return abs(difference) <= self.tolerance
        return difference <= 0 if self.relation == "<" else difference >= 0


@dataclass(frozen=True)
class Milestone:
    """A result that a paper printed, and the function that reproduces it on a stack.

    Args:
        name: by which `mlsys-lab milestones` finds it.
        year: of the paper.
        title: what was shown.
        source: paper, and the figure, table or section that prints the number.
        needs: names that the stack's layers must have, by the layer's field.
        scope: what of the paper is reproduced, and what is only a formula.
        figures: runs the stack's code and yields the figures, quick ones first.
    """

    name: str
    year: int
    title: str
    source: str
    needs: Mapping[str, Sequence[str]]
    scope: str
    figures: Callable[[Stack], Iterable[Figure]]


@dataclass(frozen=True)
class Result:
    """What a stack gave for a milestone: figures, whose code ran, seconds, and the problem in one line, "" if none."""

    milestone: Milestone
    figures: Sequence[Figure]
    code: Mapping[str, str]
    time_s: float
    problem: str

    @property
    def is_reproduced(self) -> bool:
        """Whether every figure agrees with the published number."""
        return not self.problem


def reproduce(milestone: Milestone, stack: Stack) -> Result:
    """Run a milestone on a stack, up to the first figure that differs from the published one.

    Code that fails, or gives another number, becomes the result's `problem`, and raises nothing.
    """
    code = {field: str(stack.sources[field]) for field in milestone.needs}
    start_s, figures, problem = time.perf_counter(), list[Figure](), _find_missing(milestone, stack)
    try:
        with one_thread():
            for figure in () if problem else milestone.figures(stack):
                figures.append(figure)
                if not figure.agrees:
                    problem = f"{figure.what}: got {format_number(figure.obtained)}, expected {figure.condition}"
                    break
    except Exception as error:  # the learner's code may raise anything
        said = " ".join(str(error).split())
        problem = f"the code failed: {said if isinstance(error, CourseError) else f'{type(error).__name__}: {said}'}"
    whose = ", ".join(f"{field}: {owner}" for field, owner in code.items())
    line = f"{milestone.name}: {problem}; code that ran: {whose}" if problem else ""
    return Result(milestone, figures, code, time.perf_counter() - start_s, line)


def format_number(number: float) -> str:
    """Write a whole number with all of its digits, any other with four."""
    return f"{number:,.0f}" if number == round(number, 0) else f"{number:.4g}"


def _find_missing(milestone: Milestone, stack: Stack) -> str:
    for field, names in milestone.needs.items():
        if missing := [name for name in names if not hasattr(getattr(stack, field), name)]:
            return f"the {field} layer has no {missing[0]}"
    return ""
