"""Lab 08: when buckets were sent, as read from what the judge saw; where figures in the text come from."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_checks.runner import run_check
from mlsys_checks.sandboxed.data_parallel import CLASSES
from mlsys_checks.sandboxed.ranks import join_ranks
from mlsys_checks.trusted.data_parallel.sending import compare_sending, expect_sending, find_sending
from mlsys_checks.trusted.traffic import expect_ranks
from mlsys_lab.comm.ledger import Finish, Post
from tests.labs.figures import assert_held
from tests.labs.harness import labs, module_of

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


LOGS = exchange_buckets(1), exchange_buckets(0)


def judge(*marks, logs=LOGS, signs=(2, 1, 0), passes=1):
    """Judge a step of two ranks with these marks; "" if it passes."""
    sending = find_sending([1, 0], [True, True], signs, BUCKETS)
    limits = expect_sending([[sending] * passes] * 2, SIZES, signs=3, steps=1)
    expected = expect_ranks([GRADIENT] * 2, total_bytes=128, total_messages=8, **limits)
    mismatch = compare_sending(join_ranks([GRADIENT] * 2, logs, marks), expected)
    return "" if mismatch is None else f"{mismatch.what}: {mismatch.got}"


def test_figures_are_in_code_or_given() -> None:
    assert_held(DATA_PARALLEL, in_code=IN_CODE, given=GIVEN)


@pytest.mark.parametrize(("name", "check"), [("DDP", "ddp"), ("ShardedOptimizer", "sharded_optimizer")])
def test_a_class_that_is_lent_fails_the_check_of_its_own_name(name, check):
    module = module_of(DATA_PARALLEL.reference, "reference.ipynb")
    setattr(module, name, CLASSES[name])
    assert not run_check(DATA_PARALLEL.checks[check], module).passed


def test_buckets_sent_in_time_pass_and_the_first_question_for_a_sign_counts():
    assert judge(IN_TIME, IN_TIME) == ""
    assert judge([*IN_TIME, (1, 4), (0, 4)], IN_TIME) == ""
    assert "is not averaged" in judge([(2, 0), (1, 0), (0, 0), *IN_TIME], IN_TIME)


@pytest.mark.parametrize(
    "marks",
    [
        [(2, 0), (1, 0), (0, 0)],
        [(2, 0), (1, 0), (0, 4)],
        [(2, 0), (1, 4), (0, 4)],
        [(2, 4), (1, 2), (0, 4)],
        [(0, 4), (1, 2)],
        [],
    ],
    ids=["after the backward pass", "one late", "one early", "begun late", "begun without a sign", "never seen"],
)
def test_a_bucket_that_is_sent_at_another_time_is_noticed(marks):
    assert "on rank 1" in judge(IN_TIME, marks)


def test_a_message_that_says_nothing_is_no_bucket():
    logs = exchange_buckets(1, sizes=(0, 32)), exchange_buckets(0, sizes=(0, 32))
    assert "of bucket 0 are not sent" in judge(IN_TIME, IN_TIME, logs=logs)
    assert judge([(2, 0), (1, 3), (0, 4)], IN_TIME, logs=logs) == "", "no algorithm needs to send more"


def test_a_receive_that_is_posted_early_is_no_bucket():
    """Both ranks post their receives in the hooks, and send when all is over."""
    logs = [
        [Post("recv", peer), Post("recv", peer), Post("send", peer, 32), Post("send", peer, 32), *map(Finish, range(4))]
        for peer in (1, 0)
    ]
    marks = [(2, 0), (1, 1), (0, 2)]
    assert judge(marks, marks, logs=logs).endswith("0 bytes from all ranks by then")


def test_the_last_pass_of_a_step_counts_whichever_it_is():
    first = [(1, 0), (0, 2), (2, 4)]
    for order in ([(4, 0), (3, 0), (5, 0), *first], [*((i, 0) for i, _ in first), (4, 0), (3, 2), (5, 4)]):
        assert judge(order, order, signs=(1, 0, 2), passes=2) == ""


def test_a_bucket_with_an_unused_weight_is_sent_in_no_pass():
    assert find_sending([1, 0], [False, True], [2, 1, 0], BUCKETS) == [(0, 2, 1)]
    assert find_sending([1, 0], [True, False], [2, 1, 0], BUCKETS) == []
