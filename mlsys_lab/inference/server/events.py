"""Server-sent events on their way to a client that may go away at any time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")],
}
"""What begins a stream of events."""


def dump(content: object) -> bytes:
    """JSON in ASCII, so that half a character is no trouble."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def event(content: object, *, last: bool = False) -> Message:
    """Part of a body, with one event that holds an object as JSON; the last part where it ends the body."""
    return {"type": "http.response.body", "body": b"data: " + dump(content) + b"\n\n", "more_body": not last}


async def unless_gone(receive: Receive, work: Coroutine[object, object, None]) -> None:
    """Await work, and cancel it once the client is gone: ClientDisconnect then."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_wait_until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
