"""A connection with time limits: for a request's head, for the next request, and for a client that stops reading."""

from __future__ import annotations

import asyncio
import re

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mlsys_lab.inference.server.body import MAX_BODY_BYTES

METHOD = re.compile(rb"[A-Z]{1,16}(?: |$)")
"""The start of a request: its method, or the part of it that has arrived."""
PROBE_S = 0.1
"""Seconds between two probes of a client that has closed its sending side."""
MAX_DISCARDED_BYTES = MAX_BODY_BYTES
"""Bytes of a body that a client may still send after its request was rejected: many read the response only then."""


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, for clients that may stop at any point.

    The connection is closed if the client does not complete a request's head, or does not read the response, for
    `timeout_keep_alive` seconds; its request is then aborted as after any disconnect. It is also closed if the client
    sends something other than a request, or keeps sending the body of a rejected one.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the head of the first request."""
        super().connection_made(transport)
        self._head_timeout, self._write_timeout = _Timeout(self), _Timeout(self)
        self._discarded_bytes = 0
        self._head_timeout.start()

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a client; a part of a head does not extend its timeout."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._head_timeout.start()
        else:
            self._head_timeout.stop()
        is_refused = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        self._discarded_bytes = self._discarded_bytes + len(data) if is_refused else 0
        if self._discarded_bytes > MAX_DISCARDED_BYTES:
            self.transport.abort()

    def handle_events(self) -> None:
        """Handle requests, and reject bytes that cannot become one before their line ends."""
        super().handle_events()
        head, _ = self.conn.trailing_data
        if self.conn.their_state is h11.IDLE and head and not METHOD.match(head):
            self.send_400_response("Invalid HTTP request received.")

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection until the response to a complete request is sent; close any other."""
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            self.transport.abort()
            return False
        self.cycle.keep_alive = False
        self._probe()
        return True

    def _probe(self) -> None:
        """Detect, until the response starts, whether the client has disconnected or only closed its sending side.

        Both look the same until something is sent. A disconnected client then resets the connection, and the next write
        fails; the other ignores an interim response, as HTTP/1.1 requires.
        """
        is_waiting = not self.cycle.response_started and self.cycle.scope["http_version"] == "1.1"
        if is_waiting and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.loop.call_later(PROBE_S, self._probe)

    def pause_writing(self) -> None:
        """Start the timeout for a client that reads too slowly."""
        super().pause_writing()
        self._write_timeout.start()

    def resume_writing(self) -> None:
        """Stop the timeout: the client has read on."""
        super().resume_writing()
        self._write_timeout.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeouts of the closed connection."""
        self._head_timeout.stop()
        self._write_timeout.stop()
        super().connection_lost(exc)


class _Timeout:
    """Aborts a connection `timeout_keep_alive` seconds after `start`, unless stopped."""

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
