"""The line from a submission's process to a check's partner, who lives with the judge.

child ── question ──▶ judge    a word and a whole number; the reply "reply" brings a number, "refused" says why not
"""

from __future__ import annotations

import socket
from types import TracebackType

from mlsys_grader.sandbox.inside import wire
from mlsys_lab.errors import InputError


class PartnerClient:
    """Questions as frames to the judge. `nonce` is that of the question being answered; after the block all is over."""

    def __init__(self, channel: socket.socket, nonce: str) -> None:
        self._channel, self._nonce, self._closed = channel, nonce, False

    def __enter__(self) -> PartnerClient:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._closed = True

    def query(self, what: str, value: int) -> float:
        """Put a question and wait for the reply. Raises `InputError` where it is refused, or comes after the end."""
        if self._closed:  # by the learner's code, which has kept what it was given in an earlier call
            raise InputError("what an earlier call was given is used again", expected="what this call was given")
        wire.send(self._channel, wire.Frame("query", {"nonce": self._nonce, "what": what, "value": value}))
        reply = wire.receive(self._channel)
        if reply.kind == "refused":
            raise InputError(reply.meta["what"], got=reply.meta["got"] or None, expected=reply.meta["expected"])
        return float(reply.meta["value"])
