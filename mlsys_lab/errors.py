"""One short exception tree: every message says what was wrong, got, expected, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CourseError(Exception):
    """A mistake that a person can mend; its text is one line.

    >>> print(CourseError("unknown lab", got="autogard", expected="one of autograd", help="did you mean 'autograd'?"))
    unknown lab: got autogard, expected one of autograd; help: did you mean 'autograd'?
    """

    def __init__(self, what: str, *, got: object = None, expected: object = None, help: str = "") -> None:
        self.what, self.got, self.expected, self.help = what, got, expected, help
        found = [f"got {got}"] if got is not None else []
        wanted = [f"expected {expected}"] if expected is not None else []
        text = what + (": " + ", ".join(found + wanted) if found or wanted else "")
        super().__init__(text + (f"; help: {help}" if help else ""))

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows for this error: its one-line text, without a traceback."""
        return [f"{type(self).__name__}: {self}"]


class InputError(CourseError):
    """An argument, file or field has the wrong name, type, shape or value."""


class UsageError(InputError):
    """A command line that is not understood."""


class MissingToolError(CourseError):
    """Something that must be installed on this machine is missing: a program, a device or a library."""


class UnfinishedError(CourseError):
    """A task of a lab has not been written yet."""


def did_you_mean(name: str, known: Iterable[str], *, nearness: float = 0.6) -> str:
    """A suggestion for a misspelt name, "did you mean '…'?", or "" if no known name is near.

    `nearness`, from 0 to 1, is how alike both must be (`difflib.SequenceMatcher.ratio`).

    >>> did_you_mean("autogard", ["autograd", "cuda"])
    "did you mean 'autograd'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=nearness)
    return f"did you mean {near[0]!r}?" if near else ""
