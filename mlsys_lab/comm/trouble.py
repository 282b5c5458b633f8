"""How a run of several ranks can go wrong, each told in one line that names the ranks."""

from __future__ import annotations

from typing import Any

from mlsys_lab.errors import CourseError, InputError


class MessageError(CourseError):
    """A message that does not fit: another array than its receiver waits for, or one changed while it was sent."""

    @classmethod
    def of_ended(cls, rank: int) -> MessageError:
        """The error of a rank that was kept from an earlier run, and now posts a message."""
        return cls(
            f"rank {rank} of a run that has ended posts a message", help="use the rank that the program is given"
        )


class DeadlockError(CourseError):
    """No rank can go on: each waits for another, or for one that has ended."""


class RankError(CourseError):
    """A rank raised an exception, died or did not end; `rank` is its number."""

    def __init__(self, what: str, rank: int) -> None:
        super().__init__(what)
        self.rank = rank

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.rank)

    @classmethod
    def of(cls, rank: int, problem: BaseException) -> RankError:
        """The error that says what `problem` says, and which rank raised it; the rank last where input is at fault."""
        if isinstance(problem, InputError):
            return cls(f"{problem} (on rank {rank})", rank)
        text = str(problem) if isinstance(problem, CourseError) else f"{type(problem).__name__}: {problem}"
        return cls(f"rank {rank} failed: {text}", rank)


class SilentRankError(RankError):
    """A rank has run to its limit without posting a message."""


class LostError(CourseError):
    """The other side of a connection went away: another rank is to blame, or has ended."""
