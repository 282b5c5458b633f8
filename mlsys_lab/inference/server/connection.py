"""A connection that does not wait for ever: for a request's head, for the next request, or for a client to read on."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 for clients that may stop in the middle of anything.

    Whoever has not sent a whole head, or has not read on, for `timeout_keep_alive` seconds loses the connection; what
    it waited for is then given up like that of any client that went away.
    """

    _head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes of a client; a part of a head puts nothing off."""
        super().data_received(data)
        self._watch_head()

    def pause_writing(self) -> None:
        """Begin to wait for a client that reads more slowly than it is written to."""
        super().pause_writing()
        self._unread = self._cut_later()

    def resume_writing(self) -> None:
        """Go on, as the client has read on."""
        super().resume_writing()
        self._unread = _cancel(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all waiting."""
        self._head, self._unread = _cancel(self._head), _cancel(self._unread)
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._head = _cancel(self._head)
        elif self._head is None:
            self._head = self._cut_later()

    def _cut_later(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self.timeout_keep_alive, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer:
        timer.cancel()
