"""When buckets left is read from what the judge saw: posts between two signs that were held back, and their bytes."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_checks.sandboxed.ranks import join_ranks
from mlsys_checks.trusted.data_parallel.leaving import compare_leaving, expect_leaving, find_leaving
from mlsys_checks.trusted.traffic import expect_ranks
from mlsys_lab.comm.ledger import Finish, Post

GRADIENT = {"w0.grad": np.ones(4)}
BUCKETS, SIZES = [range(1, 2), range(1)], [32, 32]
IN_TIME = [(2, 0), (1, 2), (0, 4)]
"""Sign, and posts by then: of two layers behind each other, each with a bucket of its own."""


def exchange_buckets(peer, sizes=(32, 32)):
    """Each rank sends the other its bucket, twice."""
    posts = [post for size in sizes for post in (Post("send", peer, size), Post("recv", peer))]
    return [*posts, *(Finish(number) for number in range(len(posts)))]


def judge(marks, sizes=(32, 32)):
    leaving = find_leaving([1, 0], [True, True], [2, 1, 0], BUCKETS)
    limits = expect_leaving([[leaving]] * 2, SIZES, signs=3, steps=1)
    expected = expect_ranks([GRADIENT] * 2, total_bytes=128, total_messages=8, **limits)
    got = join_ranks([GRADIENT] * 2, [exchange_buckets(1, sizes), exchange_buckets(0, sizes)], marks)
    mismatch = compare_leaving(got, expected)
    return None if mismatch is None else mismatch.what


def test_buckets_leave_in_time():
    assert judge([IN_TIME, IN_TIME]) is None


def test_the_first_question_for_a_sign_counts():
    assert judge([[*IN_TIME, (1, 4), (0, 4)], IN_TIME]) is None
    assert "does not leave" in judge([[(2, 0), (1, 0), (0, 0), *IN_TIME], IN_TIME])


@pytest.mark.parametrize(
    "marks",
    [
        [(2, 0), (1, 0), (0, 0)],
        [(2, 0), (1, 0), (0, 4)],
        [(2, 0), (1, 4), (0, 4)],
        [(2, 4), (1, 2), (0, 4)],
        [(0, 4), (1, 2), (2, 0)][:2],
        [],
    ],
    ids=["after the backward pass", "one late", "one early", "begun late", "begun without a sign", "never seen"],
)
def test_a_bucket_that_leaves_at_another_time_is_noticed(marks):
    assert "on rank 1" in judge([IN_TIME, marks])


def test_a_message_that_says_nothing_is_no_bucket():
    first_empty = (0, 32)
    assert judge([IN_TIME, IN_TIME], sizes=first_empty) == (
        "a bucket's gradients are not sent when the last of them has come"
    )
    assert judge([[(2, 0), (1, 3), (0, 4)], IN_TIME], sizes=first_empty) is None, "no algorithm needs to send more"


def test_a_receive_that_is_posted_early_is_no_bucket():
    """Both ranks post their receives in the hooks, and send when all is over."""
    early = [Post("recv", 1), Post("recv", 1), Post("send", 1, 32), Post("send", 1, 32), *map(Finish, range(4))]
    other = [event if isinstance(event, Finish) else Post(event.kind, 0, event.size_bytes) for event in early]
    leaving = find_leaving([1, 0], [True, True], [2, 1, 0], BUCKETS)
    limits = expect_leaving([[leaving]] * 2, SIZES, signs=3, steps=1)
    expected = expect_ranks([GRADIENT] * 2, total_bytes=128, total_messages=8, **limits)
    marks = [(2, 0), (1, 1), (0, 2)]
    mismatch = compare_leaving(join_ranks([GRADIENT] * 2, [early, other], [marks, marks]), expected)
    assert mismatch is not None and mismatch.got == "0 bytes from all ranks"


def test_the_last_pass_of_a_step_counts_whichever_it_is():
    leaving = find_leaving([1, 0], [True, True], [1, 0, 2], BUCKETS)
    limits = expect_leaving([[leaving] * 2] * 2, SIZES, signs=3, steps=1)
    expected = expect_ranks([GRADIENT] * 2, total_bytes=128, total_messages=8, **limits)
    first = [(1, 0), (0, 2), (2, 4)]
    for order in ([(4, 0), (3, 0), (5, 0), *first], [*((i, 0) for i, _ in first), (4, 0), (3, 2), (5, 4)]):
        got = join_ranks([GRADIENT] * 2, [exchange_buckets(1), exchange_buckets(0)], [order, order])
        assert compare_leaving(got, expected) is None


def test_a_bucket_with_a_weight_that_is_not_used_leaves_in_no_pass():
    assert find_leaving([1, 0], [False, True], [2, 1, 0], BUCKETS) == [(0, 2, 1)]
    assert find_leaving([1, 0], [True, False], [2, 1, 0], BUCKETS) == []
