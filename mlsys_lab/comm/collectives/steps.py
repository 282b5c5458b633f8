"""A collective as steps that pause while messages are under way, so that a rank can do other work in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import Generic, TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""Type of a collective that yields after it has posted the messages of a step, and returns its result."""


def drain(steps: Steps[Result]) -> Result:
    """Go through all steps without other work in between, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


class InFlight(Generic[Result]):
    """A collective that has begun and goes on whenever the program calls `advance`, as with MPI_Iallreduce.

    Every rank of the group must start its collectives, and advance them, in the same order.
    """

    def __init__(self, steps: Steps[Result]) -> None:
        self._steps = steps
        self._result: Result
        self.done = False
        self.advance()

    def advance(self) -> None:
        """Wait for the messages of the step under way, and post those of the next; nothing where all is done."""
        if not self.done:
            try:
                next(self._steps)
            except StopIteration as end:
                self._result, self.done = end.value, True

    def wait(self) -> Result:
        """Go through the steps that are left and return the result."""
        while not self.done:
            self.advance()
        return self._result
