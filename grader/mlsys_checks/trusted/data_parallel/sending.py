"""When each bucket was sent during a backward pass, read from the log of each rank.

A backward pass multiplies gradients by signs that are held back from the rank. The log says how many posts the rank had
made when it first asked for each: posts between two signs were made after the gradients that the first one leads to
could be known, and before those that the second one leads to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from mlsys_checks.sandboxed.ranks import MARKS
from mlsys_checks.sandboxed.spec import Arrays, Mismatch
from mlsys_checks.sandboxed.trees import nest
from mlsys_checks.trusted import traffic
from mlsys_checks.trusted.ledger import read_ledger
from mlsys_lab.comm.ledger import Post

Sending = list[tuple[int, int, int]]
"""Buckets that are sent in a backward pass: index, and the signs that are revealed before and after."""


def find_sending(
    layers: Sequence[int], used: Sequence[bool], signs: Sequence[int], buckets: Sequence[range]
) -> Sending:
    """Find the buckets that are complete, as are all before them, while a backward pass goes through `layers`.

    It asks for signs[k] before layers[k], and for one more in the end.
    """
    came: set[int] = set()
    sending: Sending = []
    for layer, before, after in zip(layers, signs, signs[1:], strict=False):
        came |= {layer} if used[layer] else set()
        while len(sending) < len(buckets) and came.issuperset(buckets[len(sending)]):
            sending.append((len(sending), before, after))
    return sending


def expect_sending(passes: Sequence[Sequence[Sending]], sizes: Sequence[int], signs: int, steps: int) -> Arrays:
    """What is expected of each rank's backward passes, as limits: of the last of each step only, whichever that is.

    sizes: bytes of the buckets. signs: how many there are for each pass.
    """
    rows = [
        (rank, number, bucket, number * signs + before, number * signs + after)
        for rank, passes_of in enumerate(passes)
        for number, sending in enumerate(passes_of)
        for bucket, before, after in sending
    ]
    return {
        "sending": np.array(rows, dtype=np.int64).reshape(-1, 5),
        "bucket_bytes": np.array(sizes),
        "signs": np.array(signs),
        "passes": np.array([len(passes_of) // steps for passes_of in passes]),
    }


def compare_sending(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Find what is wrong with values, then with what was sent, then with when it was sent."""
    if (mismatch := traffic.compare_run(got, expected)) is not None:
        return mismatch
    posts = [[event for event in log if isinstance(event, Post)] for log in read_ledger(got).logs]
    if len(posts) == 1:
        return None
    limits, asked = traffic.limits_of(expected), _read_marks(got, len(posts))
    passes: list[int] = limits["passes"].tolist()
    last = {(rank, i // limits["signs"] // passes[rank]): i // limits["signs"] for rank in asked for i in asked[rank]}
    sending = [
        row
        for row in limits["sending"].tolist()
        if row[1] == last.get((row[0], row[1] // passes[row[0]]), row[1])  # of a step that is not seen all
    ]
    together = Counter((rank, after) for rank, _, _, _, after in sending)
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, number, bucket, before, after in sending:
        if before not in asked[rank] or after not in asked[rank]:
            return Mismatch(
                f"on rank {rank} a backward pass did not run to its end", expected="backward() of each loss"
            )
        between = posts[rank][asked[rank][before] : asked[rank][after]]
        if len(between) < (least := together[rank, after]):  # each sends or receives at least once
            what = f"on rank {rank} a bucket is not averaged when its last gradient is complete"
            wanted = f"{least} all-reduce{'s' * (least > 1)} before the backward pass goes on"
            return Mismatch(what, f"{len(between)} messages", wanted)
        sent[number // passes[rank], bucket].append(sum(post.size_bytes for post in between))
    for (_, bucket), by_rank in sent.items():
        size = int(limits["bucket_bytes"][bucket])
        if len(by_rank) == len(posts) and sum(by_rank) < size:  # no algorithm begins with less
            what = "a bucket's gradients are not sent when the last of them is complete"
            return Mismatch(what, f"{sum(by_rank):,} bytes from all ranks", f"{size:,} bytes or more")
    return None


def _read_marks(got: Arrays, size: int) -> dict[int, dict[int, int]]:
    """For each rank the signs in the order in which it first asked for them, and how many posts it had made by then."""
    marks = nest(got).get(MARKS, {})
    asked: dict[int, dict[int, int]] = {rank: {} for rank in range(size)}
    for rank in asked:
        for i, posts in marks[str(rank)].tolist() if marks else ():
            asked[rank].setdefault(i, posts)
    return asked
