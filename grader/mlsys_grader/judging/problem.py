"""How an attempt at a check can fail, and what the judge does next: its state table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mlsys_checks.sandboxed.spec import Case, Mismatch


class Ending(Enum):
    """How an attempt that earned no points ended."""

    NOT_IMPLEMENTED = "the task has not been written"
    WRONG = "an answer that is not accepted, or an exception"
    TIMEOUT = "no answer in time"
    BUDGET_EXCEEDED = "the time of all checks together is over"
    ANSWER_TOO_LARGE = "an answer that is too large, or takes too long to compare"
    KILLED = "its process was killed outright, by itself or by somebody outside the sandbox"
    LOAD_FAILED = "nothing of the submission can be judged"


@dataclass(frozen=True)
class Consequence:
    """What the judge does after an ending.

    `keeps_process`: the process may run the next check. `retries`: how often the same check is retried.
    `retries_alone`: retried once while no other submission runs. `ends_judging`: all remaining checks fail for the same
    reason.
    """

    keeps_process: bool = False
    retries: int = 0
    retries_alone: bool = False
    ends_judging: bool = False


CONSEQUENCES = {
    Ending.NOT_IMPLEMENTED: Consequence(keeps_process=True),
    Ending.WRONG: Consequence(),
    Ending.TIMEOUT: Consequence(retries_alone=True),
    Ending.BUDGET_EXCEEDED: Consequence(ends_judging=True),
    Ending.ANSWER_TOO_LARGE: Consequence(),
    Ending.KILLED: Consequence(retries=3),  # what a submission did itself, it does again
    Ending.LOAD_FAILED: Consequence(ends_judging=True),
}


@dataclass(frozen=True)
class Problem:
    """Why a check earned no points: the mismatch, how the attempt ended, and in which case (None while loading)."""

    mismatch: Mismatch
    ending: Ending = Ending.WRONG
    case: Case | None = None

    @property
    def consequence(self) -> Consequence:
        return CONSEQUENCES[self.ending]
