"""One rank of a submission's program, in a process of its own; the judge routes its messages.

rank ── post ──▶ judge     a send with its array, or a receive; no reply rank ── wait ──▶ judge     the number of a
post, from 0; the reply "done" carries the array of a receive rank ── reveal ──▶ judge   the index of a deferred input;
the reply "done" carries its value
"""

from __future__ import annotations

import socket
from typing import Any

import torch

from mlsys_checks.sandboxed.ranks import bind_rank
from mlsys_checks.sandboxed.spec import Call
from mlsys_grader.sandbox.inside import replies, wire
from mlsys_lab.comm.errors import MessageError
from mlsys_lab.comm.rank import Endpoint, Rank, Request, Snapshot, check_received
from mlsys_lab.errors import InputError


def answer_rank(channel: socket.socket, module: Any, request: wire.Frame, call: Call) -> wire.Frame:
    """Call the learner's code as one of several ranks; it posts messages between request and answer."""
    endpoint = RoutedEndpoint(channel, request.meta["nonce"], request.meta["rank"], request.meta["size"])
    bound = bind_rank(call, Rank(endpoint), endpoint.reveal if request.meta["has_deferred"] else None)
    try:
        return replies.answer(bound, module, request.arrays)
    finally:
        endpoint.closed = True


class RoutedEndpoint(Endpoint):
    """Posts as frames to the judge. `nonce` is that of the request being served; then the endpoint is `closed`."""

    def __init__(self, channel: socket.socket, nonce: str, address: int, size: int) -> None:
        self.address, self.size = address, size
        self._channel, self._nonce, self._posts, self.closed = channel, nonce, 0, False

    def post_send(self, array: torch.Tensor, destination: int, purpose: str, channel: str) -> Request:
        snapshot = Snapshot(array)
        if str(array.dtype).removeprefix("torch.") not in wire.DTYPES:
            raise InputError(
                "a check cannot carry arrays of this type", got=array.dtype, expected=", ".join(wire.DTYPES)
            )
        number = self._post("send", destination, channel, {"array": snapshot.copy.numpy()})
        return _RoutedRequest(self, number, destination, snapshot=snapshot)

    def post_receive(self, source: int, like: torch.Tensor | None, channel: str) -> Request:
        return _RoutedRequest(self, self._post("recv", source, channel, {}), source, like=like)

    def _post(self, kind: str, peer: int, channel: str, arrays: dict[str, Any]) -> int:
        self._tell("post", {"kind": kind, "peer": peer, "channel": channel}, arrays)
        self._posts += 1
        return self._posts - 1

    def wait(self, number: int) -> torch.Tensor | None:
        """Wait for a post; returns the array of a receive, allocated by torch so that the budget counts it."""
        self._tell("wait", {"post": number}, {})
        arrays = wire.receive(self._channel).arrays
        return torch.from_numpy(arrays["array"]).clone() if arrays else None

    def reveal(self, i: int) -> float:
        """Request a deferred input."""
        self._tell("reveal", {"index": i}, {})
        return float(wire.receive(self._channel).meta["value"])

    def _tell(self, kind: str, meta: dict[str, Any], arrays: dict[str, Any]) -> None:
        if self.closed:  # the learner's code kept a rank of an earlier call
            raise MessageError.from_finished_rank(self.address)
        wire.send(self._channel, wire.Frame(kind, {"nonce": self._nonce, **meta}, arrays))


class _RoutedRequest(Request):
    def __init__(
        self,
        endpoint: RoutedEndpoint,
        number: int,
        peer: int,
        snapshot: Snapshot | None = None,
        like: torch.Tensor | None = None,
    ) -> None:
        self._endpoint, self._number, self._peer = endpoint, number, peer
        self._snapshot, self._like = snapshot, like
        self._received: torch.Tensor | None = None
        self._finished = False

    def wait(self) -> torch.Tensor | None:
        """Wait for the peer; returns the array of a receive, None for a send."""
        if not self._finished:
            self._received = self._endpoint.wait(self._number)
            self._finished = True
        if self._snapshot is not None:
            self._snapshot.require_unchanged(self._endpoint.address, self._peer)
        elif self._received is not None:
            check_received(self._received, self._like, self._peer, self._endpoint.address)
        return self._received
