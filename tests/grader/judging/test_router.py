"""What a rank posts is refused unless it is a message of its own; deadlocks are found, and who failed is named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mlsys_checks.sandboxed.spec import Mismatch
from mlsys_grader.judging.problem import Ending
from mlsys_grader.judging.router import InvalidPostError, MessageRouter, RunAbortedError, count_bytes
from mlsys_grader.sandbox.inside.wire import Frame


def send(peer=1, array=(1.0,), **meta) -> Frame:
    return Frame("post", {"kind": "send", "peer": peer, "channel": ""} | meta, {"array": np.array(array)})


def receive(peer=0, **meta) -> Frame:
    return Frame("post", {"kind": "recv", "peer": peer, "channel": ""} | meta)


def wait(number) -> Frame:
    return Frame("wait", {"post": number})


def test_an_array_crosses_from_the_send_to_the_receive_that_meets_it() -> None:
    router = MessageRouter(2)
    router.post(0, send(array=[1.0, 2.0]))
    router.post(0, send(array=[3.0]))
    router.post(1, receive())
    router.post(1, receive())
    assert router.wait(0, wait(1)) is None
    got = [router.wait(1, wait(number)) for number in (1, 0)]
    assert [array.tolist() for array in got if array is not None] == [[3.0], [1.0, 2.0]]
    assert router.find_unreceived() is None


def test_groups_are_apart() -> None:
    router = MessageRouter(2)
    router.post(0, send(channel="/0.1#1"))
    router.post(1, receive())
    unreceived = router.find_unreceived()
    assert unreceived is not None and "rank 0 waits to send to rank 1" in unreceived.what


@pytest.mark.parametrize(
    "frame",
    [
        send(peer=0),
        send(peer=2),
        send(peer=-1),
        send(peer=True),
        send(peer="1"),
        send(kind="barrier"),
        send(channel=7),
        send(channel="c" * 1000),
        Frame("post", {"kind": "send", "peer": 1, "channel": ""}),
        Frame("post", {"kind": "recv", "peer": 1, "channel": ""}, {"array": np.zeros(1)}),
        Frame("post", {}),
    ],
)
def test_a_post_that_is_no_message_of_this_rank_is_refused(frame: Frame) -> None:
    router = MessageRouter(2)
    with pytest.raises(InvalidPostError, match="the grader's own channel"):
        router.post(0, frame)
    assert router.logs == [[], []]


@pytest.mark.parametrize("number", [0, -1, True, 1.0, None, "0", 10**30])
def test_a_wait_for_what_was_never_posted_is_refused(number) -> None:
    with pytest.raises(InvalidPostError, match="the grader's own channel"):
        MessageRouter(2).wait(0, wait(number))


def test_a_receive_gives_its_array_once() -> None:
    router = MessageRouter(2)
    router.post(0, send())
    router.post(1, receive())
    assert router.wait(1, wait(0)) is not None and router.wait(1, wait(0)) is None


def test_inputs_are_held_back_until_they_are_asked_for() -> None:
    router = MessageRouter(2, [[0.5, -1.0], None])
    assert router.reveal(0, Frame("reveal", {"index": 1})) == -1.0
    router.post(0, send())
    assert router.reveal(0, Frame("reveal", {"index": 0})) == 0.5
    assert router.marks == [[(1, 0), (0, 1)], []]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("index", [-1, 2, True, 1.0, None, "0", 10**30])
def test_a_question_for_an_input_that_there_is_not_is_refused(rank, index) -> None:
    router = MessageRouter(2, [[0.5, -1.0], None])
    with pytest.raises(InvalidPostError, match="the grader's own channel"):
        router.reveal(rank, Frame("reveal", {"index": index}))
    assert router.marks == [[], []]


def test_a_question_for_an_input_carries_nothing() -> None:
    with pytest.raises(InvalidPostError, match="the grader's own channel"):
        MessageRouter(1, [[0.5]]).reveal(0, Frame("reveal", {"index": 0}, {"array": np.zeros(0)}))


def test_an_empty_array_weighs_what_its_shape_can_say() -> None:
    shapes = (3, 0, (0, 5), (2, 0, 9), (0, 70_000), (255, 0, 255))
    assert [count_bytes(np.zeros(shape)) for shape in shapes] == [24, 0, 0, 0, 2, 2]


def test_a_deadlock_is_told_when_the_last_rank_waits() -> None:
    router = MessageRouter(2)
    router.post(0, send())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(router.wait, 0, wait(0))
        router.end(1)
        with pytest.raises(RunAbortedError):
            waiting.result()
    assert router.problem is not None
    mismatch, ending = router.problem
    assert (mismatch.got, ending) == ("rank 0 waits to send to rank 1; rank 1 has ended", Ending.WRONG)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_rank_that_is_named_hangs_on_no_race(order) -> None:
    """Rank 0 came to no end, which may be the machine's doing; of the other two the lower is named."""
    router = MessageRouter(3)
    failures = {0: Ending.TIMEOUT, 1: Ending.WRONG, 2: Ending.WRONG}
    for rank in order:
        assert not router.is_aborted
        router.fail(rank, Mismatch(f"slip {rank}"), failures[rank])
    assert router.problem is not None and router.problem[0].what == "on rank 1: slip 1"
