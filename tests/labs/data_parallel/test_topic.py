"""Lab 08: when buckets were sent, as read from what the judge saw; where figures in the text come from."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_checks.sandboxed.ranks import join_ranks
from mlsys_checks.trusted.data_parallel.sending import compare_sending, expect_sending, find_sending
from mlsys_checks.trusted.traffic import expect_ranks
from mlsys_lab.comm.ledger import Finish, Post
from tests.labs.figures import assert_held
from tests.labs.harness import labs

DATA_PARALLEL = next(lab for lab in labs() if lab.info.topic == "data-parallel")
IN_CODE = ("A line is fitted to 64 points by one process, and by two ranks that have 60 points and 4",)
GIVEN = (
    "DDP again takes 4 + 4 + 8 = 16 bytes per parameter",
    "[lab 07](07-collectives.ipynb) (ranks and collectives), [lab 01](01-autograd.ipynb)",
    "Llama 3 8B has 8 billion parameters",
    "each takes 16 bytes (2 weight, 2 gradient, 12 optimizer states): 128 GB, and an H100 has 80 GB",
    "FSDP on eight GPUs, each keeps 16 GB",
    "counts 15 times as much as any other point",
    "torch's default is 25 MB",
    "Twelve layers of 2 MB take 1 ms each",
    "takes 0.4 ms plus 0.5 ms per megabyte",
    "2 of gradient and 12 of optimizer states",
)
GRADIENT = {"w0.grad": np.ones(4)}
BUCKETS, SIZES = [range(1, 2), range(1)], [32, 32]
IN_TIME = [(2, 0), (1, 2), (0, 4)]
"""Sign, and posts by then: of two layers behind each other, each with a bucket of its own."""


def exchange_buckets(peer, sizes=(32, 32)):
    """Each rank sends the other its bucket, twice."""
    posts = [post for size in sizes for post in (Post("send", peer, size), Post("recv", peer))]
    return [*posts, *(Finish(number) for number in range(len(posts)))]


def judge(marks, sizes=(32, 32)):
    sending = find_sending([1, 0], [True, True], [2, 1, 0], BUCKETS)
    limits = expect_sending([[sending]] * 2, SIZES, signs=3, steps=1)
    expected = expect_ranks([GRADIENT] * 2, total_bytes=128, total_messages=8, **limits)
    got = join_ranks([GRADIENT] * 2, [exchange_buckets(1, sizes), exchange_buckets(0, sizes)], marks)
    mismatch = compare_sending(got, expected)
    return None if mismatch is None else mismatch.what


def test_figures_are_in_code_or_given() -> None:
    assert_held(DATA_PARALLEL, in_code=IN_CODE, given=GIVEN)


def test_buckets_sent_in_time_pass():
    assert judge([IN_TIME, IN_TIME]) is None


def test_the_first_question_for_a_sign_counts():
    assert judge([[*IN_TIME, (1, 4), (0, 4)], IN_TIME]) is None
    assert "is not averaged" in judge([[(2, 0), (1, 0), (0, 0), *IN_TIME], IN_TIME])


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
def test_a_bucket_that_is_sent_at_another_time_is_noticed(marks):
    assert "on rank 1" in judge([IN_TIME, marks])


def test_a_message_that_says_nothing_is_no_bucket():
    first_empty = (0, 32)
    assert judge([IN_TIME, IN_TIME], sizes=first_empty) == (
        "a bucket's gradients are not sent when the last of them is complete"
    )
    assert judge([[(2, 0), (1, 3), (0, 4)], IN_TIME], sizes=first_empty) is None, "no algorithm needs to send more"


def test_a_receive_that_is_posted_early_is_no_bucket():
    """Both ranks post their receives in the hooks, and send when all is over."""
    early = [Post("recv", 1), Post("recv", 1), Post("send", 1, 32), Post("send", 1, 32), *map(Finish, range(4))]
    other = [event if isinstance(event, Finish) else Post(event.kind, 0, event.size_bytes) for event in early]
    sending = find_sending([1, 0], [True, True], [2, 1, 0], BUCKETS)
    limits = expect_sending([[sending]] * 2, SIZES, signs=3, steps=1)
    expected = expect_ranks([GRADIENT] * 2, total_bytes=128, total_messages=8, **limits)
    marks = [(2, 0), (1, 1), (0, 2)]
    mismatch = compare_sending(join_ranks([GRADIENT] * 2, [early, other], [marks, marks]), expected)
    assert mismatch is not None and mismatch.got == "0 bytes from all ranks"


def test_the_last_pass_of_a_step_counts_whichever_it_is():
    sending = find_sending([1, 0], [True, True], [1, 0, 2], BUCKETS)
    limits = expect_sending([[sending] * 2] * 2, SIZES, signs=3, steps=1)
    expected = expect_ranks([GRADIENT] * 2, total_bytes=128, total_messages=8, **limits)
    first = [(1, 0), (0, 2), (2, 4)]
    for order in ([(4, 0), (3, 0), (5, 0), *first], [*((i, 0) for i, _ in first), (4, 0), (3, 2), (5, 4)]):
        got = join_ranks([GRADIENT] * 2, [exchange_buckets(1), exchange_buckets(0)], [order, order])
        assert compare_sending(got, expected) is None


def test_a_bucket_with_an_unused_weight_is_sent_in_no_pass():
    assert find_sending([1, 0], [False, True], [2, 1, 0], BUCKETS) == [(0, 2, 1)]
    assert find_sending([1, 0], [True, False], [2, 1, 0], BUCKETS) == []
