"""Who watches the engine: `GET /watch` sends views of it as server-sent events, up to ten a second.

Each event is the JSON object of a `messages.View`: sequences by number and length, blocks, and the steps since the
event before; no text, no token. While nobody watches, the engine makes no views.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http import HTTPStatus

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from mlsys_lab.inference.server.errors import RETRY, ApiError
from mlsys_lab.inference.server.events import START, event, unless_gone
from mlsys_lab.inference.server.messages import View

MOST, MOST_STEPS = 32, 200
"""Watchers at a time, and steps that one event tells of: of a watcher that reads slowly the older ones are left out."""
PAUSE_S = 0.1


class Inbox:
    """Views for one watcher, joined to one until it takes it."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._news = asyncio.Event()
        self._ended = False

    def put(self, view: View) -> None:
        """Add a view: it takes the place of the one before, with the steps of both."""
        before = self._view.steps if self._view else []
        self._view = replace(view, steps=(before + view.steps)[-MOST_STEPS:])
        self._news.set()

    def end(self) -> None:
        """Say that no view will come any more."""
        self._ended = True
        self._news.set()

    async def take(self) -> View | None:
        """Wait for a view; None where none will come."""
        await self._news.wait()
        self._news.clear()
        view, self._view = self._view, None
        return None if self._ended else view


class Watchers:
    """All who watch; `ask` tells the engine that somebody wants a view, or that nobody does any more."""

    def __init__(self, ask: Callable[[bool], None]) -> None:
        self.ask = ask
        self._inboxes: set[Inbox] = set()

    @contextmanager
    def join(self) -> Iterator[Inbox]:
        """Watch for the body of a `with`."""
        inbox = Inbox()
        self._inboxes.add(inbox)
        self.ask(True)
        try:
            yield inbox
        finally:
            self._inboxes.discard(inbox)
            if not self._inboxes:
                self.ask(False)

    def require_room(self) -> None:
        """Raise ApiError (429) where as many watch as may."""
        if len(self._inboxes) >= MOST:
            text = f"{MOST} watch already, no more may"
            raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, text, code="too_many_watchers", headers=RETRY)

    def resume(self) -> None:
        """GenerateRequest an engine that has just been started for views, if somebody watches."""
        if self._inboxes:
            self.ask(True)

    def deliver(self, view: View) -> None:
        """Give a view of the engine to every watcher."""
        for inbox in self._inboxes:
            inbox.put(view)

    def end(self) -> None:
        """End the stream of every watcher."""
        for inbox in self._inboxes:
            inbox.end()


class Watching:
    """ASGI application that shows one watcher what happens, until it goes away or the server ends."""

    def __init__(self, watchers: Watchers) -> None:
        self.watchers = watchers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send views as they come."""
        with suppress(ClientDisconnect):
            await unless_gone(receive, self._stream(send))

    async def _stream(self, send: Send) -> None:
        with self.watchers.join() as inbox:
            await send(START)
            while view := await inbox.take():
                await send(event(vars(view)))
                await asyncio.sleep(PAUSE_S)
            await send({"type": "http.response.body", "body": b""})
