"""When messages left during a backward pass, read from the log of a rank.

Between other messages the log has marks: empty messages on the first channel, one for each layer that the backward pass
has left.
"""

from __future__ import annotations

from mlsys_lab.checks.deciding import traffic
from mlsys_lab.checks.deciding.ledger import read_ledger
from mlsys_lab.checks.deciding.ranks import compare_ranks
from mlsys_lab.checks.learner.spec import Arrays, Mismatch
from mlsys_lab.comm.ledger import Finish, Ledger, Log, Post

MARKS = "0"
"""The channel of marks: the first that is used."""


def compare_leaving(got: Arrays, expected: Arrays) -> Mismatch | None:
    """What is wrong with values, then with what was sent besides marks, then with when it was sent.

    What leaves is expected for each rank as an array of steps and layers.
    """
    if (mismatch := compare_ranks(got, expected)) is not None:
        return mismatch
    ledger, limits = read_ledger(got), traffic.limits_of(expected)
    others = Ledger([_without_marks(log) for log in ledger.logs])
    excess = traffic.find_unwaited(others) or traffic.find_excess(others, limits)
    if excess is not None or len(ledger.logs) == 1:
        return excess
    for rank, (log, leaving) in enumerate(zip(ledger.logs, limits["leaving"], strict=True)):
        layers = leaving.shape[1]
        for number, (posts, leave) in enumerate(zip(_count_posts(log, layers), leaving.ravel().tolist(), strict=True)):
            if posts < leave:  # each sends or receives at least once
                what = f"on rank {rank} a bucket does not leave when its last gradient has come"
                goes_on = f"goes on from layer {layers - number % layers} of {layers}"
                ends = "of the last micro-batch ends"
                where = f"the backward pass {goes_on if layers > 1 else ends}"
                return Mismatch(what, f"{posts} messages", f"{leave} all-reduce{'s' * (leave > 1)} before {where}")
    return None


def _without_marks(log: Log) -> Log:
    numbers: dict[int, int] = {}
    kept: Log = []
    post = 0
    for event in log:
        if isinstance(event, Post):
            if event.channel != MARKS:
                numbers[post] = len(numbers)
                kept.append(event)
            post += 1
        elif event.post in numbers:
            kept.append(Finish(numbers[event.post]))
    return kept


def _count_posts(log: Log, layers: int) -> list[int]:
    """How many posts stand in the log while the backward pass is in each layer, step after step."""
    counts = [0]  # by the marks before them: one at the start, then in each step one before it and one for each layer
    for event in log:
        if isinstance(event, Post):
            if event.channel == MARKS:
                counts += [0] * (event.kind == "send")
            else:
                counts[-1] += 1
    begins = range(2, len(counts), layers + 1)
    return [posts for begin in begins for posts in counts[begin : begin + layers]]
