"""A run of which every array that was sent is kept, to see what travelled and not only how many bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mlsys_lab.comm.rank import Endpoint, Rank, Request
from mlsys_lab.comm.world import Run, run


def record(function: Callable[[Rank, Any], Any], inputs: Sequence[Any]) -> tuple[Run, list[list[torch.Tensor]]]:
    """Run `function(rank, input)` on threads; returns the run, and a copy of what each rank sent, in its order.

    >>> def pass_right(rank, x):
    ...     request = rank.isend(x, (rank.rank + 1) % rank.size)
    ...     got = rank.recv((rank.rank - 1) % rank.size)
    ...     request.wait()
    ...     return got
    >>> (results, ledger), sent = record(pass_right, [torch.tensor(r) for r in range(2)])
    >>> results, sent
    ([tensor(1), tensor(0)], [[tensor(0)], [tensor(1)]])
    """

    def recorded(rank: Rank, given: Any) -> tuple[Any, list[torch.Tensor]]:
        endpoint = _Recorder(rank._endpoint)
        return function(Rank(endpoint), given), endpoint.sent

    both, ledger = run(recorded, inputs)
    return Run([result for result, _ in both], ledger), [sent for _, sent in both]


class _Recorder(Endpoint):
    def __init__(self, inner: Endpoint) -> None:
        self.inner, self.address, self.size = inner, inner.address, inner.size
        self.sent: list[torch.Tensor] = []

    def post_send(self, array: torch.Tensor, destination: int, purpose: str, channel: str) -> Request:
        self.sent.append(array.clone())
        return self.inner.post_send(array, destination, purpose, channel)

    def post_receive(self, source: int, like: torch.Tensor | None, channel: str) -> Request:
        return self.inner.post_receive(source, like, channel)
