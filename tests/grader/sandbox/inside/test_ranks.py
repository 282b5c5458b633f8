"""A rank's end of its channel to the judge: what comes over it."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from mlsys_grader.sandbox.inside import wire
from mlsys_grader.sandbox.inside.ranks import RoutedEndpoint
from mlsys_lab.benchmark.memory import track_memory
from mlsys_lab.comm.errors import MessageError


def test_an_array_that_a_rank_receives_counts_as_memory_that_it_holds():
    here, judge = socket.socketpair()
    with here, judge:
        wire.send(judge, wire.Frame("done", {}, {"array": np.arange(1000.0)}))
        with track_memory() as memory:
            received = RoutedEndpoint(here, "nonce", 0, 2).wait(0)
    assert received.tolist() == list(range(1000))
    assert memory.current_bytes == memory.peak_bytes == 8000


def test_a_rank_kept_from_an_earlier_call_is_told_so_and_sends_nothing():
    here, judge = socket.socketpair()
    with here, judge:
        endpoint = RoutedEndpoint(here, "nonce", 1, 2)
        endpoint.closed = True
        for post in (lambda: endpoint.post_receive(0, None, ""), lambda: endpoint.wait(0)):
            with pytest.raises(MessageError, match="rank 1 of a run that has ended posts a message"):
                post()
        judge.setblocking(False)
        with pytest.raises(BlockingIOError):
            judge.recv(1)
