"""Real ranks over a link of a chosen speed: messages that are there sooner are kept back until the link would be done.

For processes of one machine, which read one clock: what a program hides behind its computing can be measured without a
network, and without sharing the processor with one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from mlsys_lab.comm.rank import Endpoint, Rank, Request

if TYPE_CHECKING:
    from mlsys_lab.comm.cost.alpha_beta import LinkCost  # a lab may withhold costs

CLOCK = "clock"
"""The purpose of the 8 bytes that go before each message and say when it may be had."""


def pace(rank: Rank, link: LinkCost) -> Rank:
    """The rank of a whole world as one that sends over a link of its own, one message after the other.

    A message comes when the link has carried it, at the link's cost, if the ranks themselves are faster than that. All
    ranks must be paced.

    >>> from mlsys_lab.comm import run
    >>> from mlsys_lab.comm.cost.alpha_beta import LinkCost
    >>> def swap(rank, x):
    ...     rank, start = pace(rank, LinkCost(0.0, 800.0)), time.monotonic()
    ...     request = rank.isend(x, 1 - rank.rank)
    ...     rank.recv(1 - rank.rank)
    ...     request.wait()
    ...     return time.monotonic() - start >= 0.05
    >>> run(swap, [torch.ones(10)] * 2).results
    [True, True]
    """
    return Rank(_Paced(rank._endpoint, link))


class _Paced(Endpoint):
    def __init__(self, inner: Endpoint, link: LinkCost) -> None:
        self.inner, self.address, self.size = inner, inner.address, inner.size
        self.device, self.torch_group = inner.device, inner.torch_group
        self.link, self.free_s = link, 0.0

    def post_send(self, array: torch.Tensor, destination: int, purpose: str, channel: str) -> Request:
        self.free_s = max(self.free_s, time.monotonic()) + self.link.time_s(1, array.nbytes)
        until = torch.tensor(self.free_s, dtype=torch.float64)
        clock = self.inner.post_send(until, destination, CLOCK, channel)
        return _PacedRequest(clock, self.inner.post_send(array, destination, purpose, channel), until)

    def post_receive(self, source: int, like: torch.Tensor | None, channel: str) -> Request:
        return _PacedRequest(
            self.inner.post_receive(source, None, channel), self.inner.post_receive(source, like, channel), None
        )


class _PacedRequest(Request):
    def __init__(self, clock: Request, message: Request, until: torch.Tensor | None) -> None:
        self.clock, self.message, self.until = clock, message, until

    def wait(self) -> torch.Tensor | None:
        """Wait for the other side, and then until the link is done."""
        told = self.clock.wait()
        until = self.until if told is None else told
        array = self.message.wait()
        assert until is not None
        time.sleep(max(0.0, until.item() - time.monotonic()))
        return array
