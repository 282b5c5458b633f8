"""A connection that does not wait for ever: for a request's head, for the next request, or for a client to read on."""

from __future__ import annotations

import asyncio
import re

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

METHOD = re.compile(rb"[A-Z]{1,16}(?: |$)")
"""How a request begins: with its method, as far as it has come."""
PROBE_S = 1.0
"""Seconds between two looks whether a client that says no more still reads."""
DISCARDED_BYTES = 64 * 1024
"""What a client may still send of a body that nobody reads, once its request is answered."""


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 for clients that may stop in the middle of anything.

    Whoever has not sent a whole head, or has not read on, for `timeout_keep_alive` seconds loses the connection; what
    it waited for is then given up like that of any client that went away. A client that sends what is no request, or
    goes on with the body of a request that was refused, is not read on.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock by which a client has to send the head of its first request."""
        super().connection_made(transport)
        self._head, self._unread = _Limit(self), _Limit(self)
        self._discarded_bytes = 0
        self._head.start()

    def data_received(self, data: bytes) -> None:
        """Take bytes of a client; a part of a head puts nothing off."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._head.start()
        else:
            self._head.stop()
        is_refused = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        self._discarded_bytes = self._discarded_bytes + len(data) if is_refused else 0
        if self._discarded_bytes > DISCARDED_BYTES:
            self.transport.abort()

    def handle_events(self) -> None:
        """Handle what has come, and refuse what cannot become a request, before it has a line's end."""
        super().handle_events()
        head, _ = self.conn.trailing_data
        if self.conn.their_state is h11.IDLE and head and not METHOD.match(head):
            self.send_400_response("Invalid HTTP request received.")

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the answer to a whole request, which is the last; let go of any other client."""
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            self.transport.abort()
            return False
        self.cycle.keep_alive = False
        self._probe()
        return True

    def _probe(self) -> None:
        """Find out, as long as nothing of the answer is sent, whether the client reads on or has gone.

        Both look alike until something is sent. A client that has gone resets the connection then, and the next write
        fails; one that only says no more passes over an interim answer, as HTTP/1.1 has it.
        """
        waits = not self.cycle.response_started and self.cycle.scope["http_version"] == "1.1"
        if waits and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.loop.call_later(PROBE_S, self._probe)

    def pause_writing(self) -> None:
        """Begin to wait for a client that reads more slowly than it is written to."""
        super().pause_writing()
        self._unread.start()

    def resume_writing(self) -> None:
        """Go on, as the client has read on."""
        super().resume_writing()
        self._unread.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop whatever waits for this connection, which is closed."""
        self._head.stop()
        self._unread.stop()
        super().connection_lost(exc)


class _Limit:
    """Time after which a connection is cut, from `start` on, unless `stop` comes first."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self.timer is None:
            connection = self.connection
            self.timer = connection.loop.call_later(connection.timeout_keep_alive, connection.transport.abort)

    def stop(self) -> None:
        if self.timer:
            self.timer.cancel()
        self.timer = None
