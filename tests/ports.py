"""A port for a server that a test starts in a process of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from book.serve import HOST


@contextmanager
def held_port() -> Iterator[int]:
    """A port of this machine that the system gives to no other process before the block ends.

    The holder does not listen and lets its address be used again, so that a server which asks for that, as Tornado's
    do, can listen there.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        yield holder.getsockname()[1]
