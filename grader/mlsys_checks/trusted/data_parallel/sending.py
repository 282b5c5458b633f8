"""When each bucket was sent during a backward pass, read from the log of each rank; what messages say of the call.

A backward pass multiplies gradients by signs that are held back from the rank. The log says how many posts the rank had
made when it first asked for each: posts between two signs were made after the gradients that the first one leads to
could be known, and before those that the second one leads to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mlsys_checks.sandboxed.ranks import MARKS
from mlsys_checks.sandboxed.spec import Arrays, Mismatch
from mlsys_checks.sandboxed.trees import nest
from mlsys_checks.sandboxed.values import decode_text
from mlsys_checks.trusted import traffic
from mlsys_checks.trusted.ledger import read_ledger
from mlsys_checks.trusted.ranks import compare_ranks
from mlsys_lab.comm.ledger import Post

Sending = list[tuple[int, int, int]]
"""Buckets that are sent in a backward pass: index, and the signs that are revealed before and after."""
CALL = "call"
"""Name of the text, among the expected values, that says what was called with what."""


Compare = Callable[[Arrays, Arrays], Mismatch | None]


def explain(wrong: str, sent: str, compare: Compare = traffic.compare_run) -> Compare:
    """Have messages of `compare` begin with the call, and end with the usual cause of wrong values or of traffic."""

    def compare_and_explain(got: Arrays, expected: Arrays) -> Mismatch | None:
        if (mismatch := compare(got, expected)) is None:
            return None
        cause = "" if mismatch.is_form else f". Usual cause: {wrong if compare_ranks(got, expected) else sent}"
        what = f"{decode_text(expected[CALL])} {mismatch.what[0].upper()}{mismatch.what[1:]}"
        return replace(mismatch, what=what, expected=f"{mismatch.expected}{cause}")

    return compare_and_explain


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
            what = f"on rank {rank} the backward pass of a loss did not run to its end"
            return Mismatch(what, "not all gradients were asked for", "`backward()` of each loss")
        between = posts[rank][asked[rank][before] : asked[rank][after]]
        if len(between) < (min_posts := together[rank, after]):  # each sends or receives at least once
            what = f"on rank {rank} bucket {bucket} is not averaged by the hook that completes it"
            wanted = f"an all-reduce of {min_posts} bucket{'s' * (min_posts > 1)} before the backward pass goes on"
            return Mismatch(what, f"{len(between)} messages by then", wanted)
        sent[number // passes[rank], bucket].append(sum(post.size_bytes for post in between))
    for (_, bucket), by_rank in sent.items():
        size = int(limits["bucket_bytes"][bucket])
        if len(by_rank) == len(posts) and sum(by_rank) < size:  # no algorithm begins with less
            what = f"the gradients of bucket {bucket} are not sent by the hooks that complete it"
            return Mismatch(what, f"{sum(by_rank):,} bytes from all ranks by then", f"{size:,} bytes or more")
    return None


def _read_marks(got: Arrays, size: int) -> dict[int, dict[int, int]]:
    """For each rank the signs in the order in which it first asked for them, and how many posts it had made by then."""
    marks = nest(got).get(MARKS, {})
    asked: dict[int, dict[int, int]] = {rank: {} for rank in range(size)}
    for rank in asked:
        for i, posts in marks[str(rank)].tolist() if marks else ():
            asked[rank].setdefault(i, posts)
    return asked
