"""The client side of a check's partner, which lives with the judge.

child ── query ──▶ judge    a word and an integer; the frame "reply" brings a number, "refused" a reason
"""

from __future__ import annotations

import socket
from types import TracebackType

from mlsys_grader.sandbox.inside import wire
from mlsys_lab.errors import InputError


class PartnerClient:
    """Send queries as frames to the judge. `nonce` is that of the request being served; closed after the block."""

    def __init__(self, channel: socket.socket, nonce: str) -> None:
        self._channel, self._nonce, self._closed = channel, nonce, False

    def __enter__(self) -> PartnerClient:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._closed = True

    def query(self, what: str, value: int) -> float:
        """Send a query and wait for the reply. Raises `InputError` if it is refused or comes after the end."""
        if self._closed:  # the learner's code kept the client of an earlier call
            raise InputError("what an earlier call was given is used again", expected="what this call was given")
        wire.send(self._channel, wire.Frame("query", {"nonce": self._nonce, "what": what, "value": value}))
        reply = wire.receive(self._channel)
        if reply.kind == "refused":
            raise InputError(reply.meta["what"], got=reply.meta["got"] or None, expected=reply.meta["expected"])
        return float(reply.meta["value"])
