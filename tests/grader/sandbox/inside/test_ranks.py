"""A rank's end of its channel to the judge: what comes over it."""

from __future__ import annotations

import socket

import numpy as np

from mlsys_grader.sandbox.inside import wire
from mlsys_grader.sandbox.inside.ranks import RoutedEndpoint
from mlsys_lab.benchmark.memory import track_memory


def test_an_array_that_a_rank_receives_counts_as_memory_that_it_holds():
    here, judge = socket.socketpair()
    with here, judge:
        wire.send(judge, wire.Frame("done", {}, {"array": np.arange(1000.0)}))
        with track_memory() as memory:
            received = RoutedEndpoint(here, "nonce", 0, 2).wait(0)
    assert received.tolist() == list(range(1000))
    assert memory.current_bytes == memory.peak_bytes == 8000
