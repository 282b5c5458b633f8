"""Asynchronous collectives: generators that yield while messages are in flight, so that a rank can compute."""

from __future__ import annotations

from collections.abc import Generator
from typing import Generic, TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""A collective that yields after posting the messages of each step, and returns its result."""


def run_steps(steps: Steps[Result]) -> Result:
    """Run all steps without other work in between, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


class InFlight(Generic[Result]):
    """A collective in flight, which progresses whenever the program calls `advance`, as with MPI_Iallreduce.

    Every rank of the group must start its collectives, and advance them, in the same order.
    """

    def __init__(self, steps: Steps[Result]) -> None:
        self._steps = steps
        self._result: Result
        self.done = False
        self.advance()

    def advance(self) -> None:
        """Wait for the current step's messages and post those of the next one; no-op once it is complete."""
        if not self.done:
            try:
                next(self._steps)
            except StopIteration as end:
                self._result, self.done = end.value, True

    def wait(self) -> Result:
        """Run the remaining steps and return the result."""
        while not self.done:
            self.advance()
        return self._result
