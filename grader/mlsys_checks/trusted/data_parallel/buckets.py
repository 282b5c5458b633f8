"""Checks of task 2a: which gradients leave together. Oracle: sums of neighbouring sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlsys_checks.sandboxed.data_parallel import overlap as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close


def fill_buckets(sizes: Sequence[int], bucket_bytes: int) -> list[range]:
    """Parameters of each bucket, from the last: cut wherever the next is too much."""
    buckets, end = [], len(sizes)
    while end:
        begin = end - 1
        while begin and sum(sizes[begin - 1 : end]) <= bucket_bytes:
            begin -= 1
        buckets.append(range(begin, end))
        end = begin
    return buckets


def _draw_sizes(rng: np.random.Generator, case: Case) -> Arrays:
    unit = 4 * int(rng.integers(1, 9))
    sizes = np.array(case.params["sizes"], dtype=np.int64) * unit
    return {"sizes": sizes, "bucket_bytes": np.array(case.params["room"] * unit + case.params.get("more", 0))}


def _expect_buckets(arrays: Arrays) -> Arrays:
    buckets = fill_buckets(arrays["sizes"].tolist(), int(arrays["bucket_bytes"]))
    return calls.name_buckets([np.array(bucket) for bucket in buckets])


CHECKS = (
    Check(
        name="assign_buckets",
        title="Which gradients leave together",
        points=5,
        cases=(
            Case("two buckets", {"sizes": [2, 3, 1, 4], "room": 5}),
            Case("filled to the last byte", {"sizes": [4, 2, 3, 1, 2], "room": 6}),
            Case("one that is larger alone", {"sizes": [1, 9, 1, 2], "room": 4}),
            Case("the largest comes last", {"sizes": [1, 1, 9], "room": 4}),
            Case("the last would fit into the first bucket", {"sizes": [1, 4, 2, 3], "room": 6}),
            Case("room for all", {"sizes": [3, 1, 2, 3, 1, 2], "room": 50}),
            Case("a byte less than there is room for", {"sizes": [4, 2, 3, 1, 2], "room": 6, "more": -1}),
            Case("no parameters", {"sizes": [], "room": 5}),
            Case("no room: a bucket for each", {"sizes": [3, 3, 3], "room": 0}),
            Case("parameters without elements", {"sizes": [0, 9, 0, 9, 2, 0, 9, 0, 3], "room": 3}),
            Case("sizes that float64 cannot tell apart", {"sizes": [2**55 + i for i in (1, 0, -1, 1)], "room": 2**56}),
            Case("many", {"sizes": [17, 5, 17, 3, 40, 90, 2, 33, 8, 8, 1], "room": 50}, hidden=True),
            Case("thousands", {"sizes": [37 * i % 101 for i in range(3000)], "room": 6000}, hidden=True),
            Case("thousands, and no room", {"sizes": [1] * 3000, "room": 0}, hidden=True),
        ),
        inputs=_draw_sizes,
        run=calls.assign_buckets,
        expect=_expect_buckets,
        compare=close,
        first_hint="From which end does the backward pass come? And when does a bucket have no room for the next one?",
        hint="Walk the numbers downwards. Begin a new bucket where there is none yet, or where the bytes in it and the "
        "next parameter's together are more than bucket_bytes; exactly full is allowed.",
        uses=("assign_buckets",),
        snippet="assign_buckets(sizes.tolist(), bucket_bytes)",
    ),
)
