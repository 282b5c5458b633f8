"""Instrumented ranks: a rank that counts the bytes it sends, records the arrays, or sends over an emulated link."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from mlsys_lab.comm.launcher import Run, run
from mlsys_lab.comm.rank import Endpoint, Rank, Request

if TYPE_CHECKING:
    from mlsys_lab.comm.cost.alpha_beta import LinkCost  # a lab may withhold costs

CLOCK = "clock"
"""Purpose of the 8 bytes sent before each message over an emulated link, which say when it arrives."""


def count_sent_bytes(rank: Rank) -> tuple[Rank, Counter[str]]:
    """Wrap a rank of a full world so that it counts; return it with its bytes sent by purpose, updated as it runs.

    >>> def send(rank, x):
    ...     rank, sent = count_sent_bytes(rank)
    ...     if rank.rank:
    ...         rank.recv(0)
    ...     else:
    ...         rank.send(x, 1, "greeting")
    ...     return dict(sent)
    >>> run(send, [torch.ones(3)] * 2).results
    [{'greeting': 12}, {}]
    """
    endpoint = _CountingEndpoint(rank._endpoint)
    return Rank(endpoint), endpoint.sent_bytes


@dataclass
class Phase:
    """The part of a program in which a rank is; the program sets its name."""

    name: str


class SentArray(NamedTuple):
    """What a rank sent: the phase in which it did, and the array's size."""

    phase: str
    elements: int
    size_bytes: int


def record_phases(rank: Rank, phase: Phase) -> tuple[Rank, list[SentArray]]:
    """Wrap a rank of a full world so that it records the size of each array that it sends, and in which phase.

    >>> def send(rank, x):
    ...     rank, sent = record_phases(rank, phase := Phase("greeting"))
    ...     if rank.rank:
    ...         rank.recv(0)
    ...     else:
    ...         rank.send(x, 1)
    ...     return sent
    >>> run(send, [torch.ones(3)] * 2).results[0]
    [SentArray(phase='greeting', elements=3, size_bytes=12)]
    """
    endpoint = _PhaseEndpoint(rank._endpoint, phase)
    return Rank(endpoint), endpoint.sent


def record_sends(function: Callable[[Rank, Any], Any], inputs: Sequence[Any]) -> tuple[Run, list[list[torch.Tensor]]]:
    """Run `function(rank, input)` on threads; return the run, and copies of the arrays that each rank sent, in order.

    >>> def pass_right(rank, x):
    ...     request = rank.isend(x, (rank.rank + 1) % rank.size)
    ...     got = rank.recv((rank.rank - 1) % rank.size)
    ...     request.wait()
    ...     return got
    >>> (results, ledger), sent = record_sends(pass_right, [torch.tensor(r) for r in range(2)])
    >>> results, sent
    ([tensor(1), tensor(0)], [[tensor(0)], [tensor(1)]])
    """

    def recorded(rank: Rank, given: Any) -> tuple[Any, list[torch.Tensor]]:
        endpoint = _RecordingEndpoint(rank._endpoint)
        return function(Rank(endpoint), given), endpoint.sent

    both, ledger = run(recorded, inputs)
    return Run([result for result, _ in both], ledger), [sent for _, sent in both]


def emulate_link(rank: Rank, link: LinkCost) -> Rank:
    """Wrap a rank of a full world so that it sends over a link of its own, one message after the other.

    A message that arrives sooner than the link could have carried it is held back until then. All ranks must be
    wrapped, and share a clock: processes of one machine. Measures what a program hides behind its computation, without
    a network.

    >>> from mlsys_lab.comm.cost.alpha_beta import LinkCost
    >>> def swap(rank, x):
    ...     rank, start = emulate_link(rank, LinkCost(0.0, 800.0)), time.monotonic()
    ...     request = rank.isend(x, 1 - rank.rank)
    ...     rank.recv(1 - rank.rank)
    ...     request.wait()
    ...     return time.monotonic() - start >= 0.05
    >>> run(swap, [torch.ones(10)] * 2).results
    [True, True]
    """
    return Rank(_EmulatedLink(rank._endpoint, link))


class _Wrapper(Endpoint):
    """An endpoint that passes everything on to another one."""

    def __init__(self, inner: Endpoint) -> None:
        self.inner, self.address, self.size = inner, inner.address, inner.size
        self.device, self.torch_group = inner.device, inner.torch_group

    def post_send(self, array: torch.Tensor, destination: int, purpose: str, channel: str) -> Request:
        return self.inner.post_send(array, destination, purpose, channel)

    def post_receive(self, source: int, like: torch.Tensor | None, channel: str) -> Request:
        return self.inner.post_receive(source, like, channel)


class _CountingEndpoint(_Wrapper):
    def __init__(self, inner: Endpoint) -> None:
        super().__init__(inner)
        self.sent_bytes: Counter[str] = Counter()

    def post_send(self, array: torch.Tensor, destination: int, purpose: str, channel: str) -> Request:
        self.sent_bytes[purpose] += array.nbytes
        return super().post_send(array, destination, purpose, channel)


class _PhaseEndpoint(_Wrapper):
    def __init__(self, inner: Endpoint, phase: Phase) -> None:
        super().__init__(inner)
        self.phase = phase
        self.sent: list[SentArray] = []

    def post_send(self, array: torch.Tensor, destination: int, purpose: str, channel: str) -> Request:
        self.sent.append(SentArray(self.phase.name, array.numel(), array.nbytes))
        return super().post_send(array, destination, purpose, channel)


class _RecordingEndpoint(_Wrapper):
    def __init__(self, inner: Endpoint) -> None:
        super().__init__(inner)
        self.sent: list[torch.Tensor] = []

    def post_send(self, array: torch.Tensor, destination: int, purpose: str, channel: str) -> Request:
        self.sent.append(array.clone())
        return super().post_send(array, destination, purpose, channel)


class _EmulatedLink(_Wrapper):
    def __init__(self, inner: Endpoint, link: LinkCost) -> None:
        super().__init__(inner)
        self.link, self.free_s = link, 0.0

    def post_send(self, array: torch.Tensor, destination: int, purpose: str, channel: str) -> Request:
        self.free_s = max(self.free_s, time.monotonic()) + self.link.time_s(1, array.nbytes)
        arrival_s = torch.tensor(self.free_s, dtype=torch.float64)
        clock = self.inner.post_send(arrival_s, destination, CLOCK, channel)
        return _DelayedRequest(clock, self.inner.post_send(array, destination, purpose, channel), arrival_s)

    def post_receive(self, source: int, like: torch.Tensor | None, channel: str) -> Request:
        clock = self.inner.post_receive(source, None, channel)
        return _DelayedRequest(clock, self.inner.post_receive(source, like, channel), None)


class _DelayedRequest(Request):
    def __init__(self, clock: Request, message: Request, arrival_s: torch.Tensor | None) -> None:
        self.clock, self.message, self.arrival_s = clock, message, arrival_s

    def wait(self) -> torch.Tensor | None:
        """Wait for the other side, and then until the link has carried the message."""
        received_s = self.clock.wait()
        arrival_s = self.arrival_s if received_s is None else received_s
        array = self.message.wait()
        assert arrival_s is not None
        time.sleep(max(0.0, arrival_s.item() - time.monotonic()))
        return array
