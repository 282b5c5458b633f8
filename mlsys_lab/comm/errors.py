"""What can go wrong in a run of several ranks: one-line errors that name the ranks."""

from __future__ import annotations

from typing import Any

from mlsys_lab.errors import CourseError, InputError


class MessageError(CourseError):
    """A message that does not fit: not the array that its receiver expects, or one changed while it was being sent."""

    @classmethod
    def from_finished_rank(cls, rank: int) -> MessageError:
        """The error of a rank object that was kept from an earlier run and now posts a message."""
        return cls(
            f"rank {rank} of a run that has ended posts a message", help="use the rank that the program is given"
        )


class DeadlockError(CourseError):
    """No rank can continue: each waits for another rank, or for one that has ended."""


class RankError(CourseError):
    """A rank raised an exception, died or did not end; `rank` is its number."""

    def __init__(self, what: str, rank: int) -> None:
        super().__init__(what)
        self.rank = rank

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.rank)

    @classmethod
    def from_exception(cls, rank: int, problem: BaseException) -> RankError:
        """The error that says which rank raised `problem`, and what it says; the rank comes last for a bad input."""
        if isinstance(problem, InputError):
            return cls(f"{problem} (on rank {rank})", rank)
        text = str(problem) if isinstance(problem, CourseError) else f"{type(problem).__name__}: {problem}"
        return cls(f"rank {rank} failed: {text}", rank)


class RankTimeoutError(RankError):
    """A rank has run to its time limit without posting a message."""


class ConnectionLostError(CourseError):
    """The other side of a connection is gone: another rank failed, or has ended."""
