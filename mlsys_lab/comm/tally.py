"""Bytes that a rank sends, added up by purpose while its program runs."""

from __future__ import annotations

from collections import Counter

import torch

from mlsys_lab.comm.rank import Endpoint, Rank, Request


def tally(rank: Rank) -> tuple[Rank, Counter[str]]:
    """The rank of a whole world as one that counts, and its bytes sent by purpose, which grow from now on.

    >>> from mlsys_lab.comm import run
    >>> def send(rank, x):
    ...     rank, sent = tally(rank)
    ...     if rank.rank:
    ...         rank.recv(0)
    ...     else:
    ...         rank.send(x, 1, "greeting")
    ...     return dict(sent)
    >>> run(send, [torch.ones(3)] * 2).results
    [{'greeting': 12}, {}]
    """
    endpoint = _Tally(rank._endpoint)
    return Rank(endpoint), endpoint.sent


class _Tally(Endpoint):
    def __init__(self, inner: Endpoint) -> None:
        self.inner, self.address, self.size = inner, inner.address, inner.size
        self.device, self.torch_group = inner.device, inner.torch_group
        self.sent: Counter[str] = Counter()

    def post_send(self, array: torch.Tensor, destination: int, purpose: str, channel: str) -> Request:
        self.sent[purpose] += array.nbytes
        return self.inner.post_send(array, destination, purpose, channel)

    def post_receive(self, source: int, like: torch.Tensor | None, channel: str) -> Request:
        return self.inner.post_receive(source, like, channel)
