"""Watchers of the engine: `GET /watch` streams its snapshots as server-sent events, up to ten a second.

The engine takes snapshots only while there is a watcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

import msgspec
from msgspec import structs

from mlsys_lab.inference.server.errors import RETRY_AFTER, ApiError
from mlsys_lab.inference.server.messages import EngineSnapshot

MAX_WATCHERS = 32
MAX_STEPS = 200
"""Steps of one event: a watcher that reads slowly misses the oldest ones."""
PAUSE_S = 0.1


class Subscription:
    """Snapshots for one watcher, merged into one until the watcher takes it."""

    def __init__(self) -> None:
        self._snapshot: EngineSnapshot | None = None
        self._has_changed = asyncio.Event()
        self._is_closed = False

    def publish(self, snapshot: EngineSnapshot) -> None:
        """Replace the snapshot that was not taken yet, keeping its steps."""
        earlier_steps = self._snapshot.steps if self._snapshot else []
        self._snapshot = structs.replace(snapshot, steps=(earlier_steps + snapshot.steps)[-MAX_STEPS:])
        self._has_changed.set()

    def close(self) -> None:
        """Let `next` return None from now on."""
        self._is_closed = True
        self._has_changed.set()

    async def next(self) -> EngineSnapshot | None:
        """Wait for a snapshot; None once closed."""
        await self._has_changed.wait()
        self._has_changed.clear()
        snapshot, self._snapshot = self._snapshot, None
        return None if self._is_closed else snapshot


class Watchers:
    """Subscriptions of all watchers; `enable_snapshots` starts and stops the engine's snapshots."""

    def __init__(self, enable_snapshots: Callable[[bool], None]) -> None:
        self.enable_snapshots = enable_snapshots
        self._subscriptions: set[Subscription] = set()

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        """Add a watcher for the body of a `with`."""
        subscription = Subscription()
        self._subscriptions.add(subscription)
        self.enable_snapshots(True)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            if not self._subscriptions:
                self.enable_snapshots(False)

    async def events(self) -> AsyncIterator[str]:
        """Add a watcher, and yield its snapshots as JSON."""
        with self.subscribe() as subscription:
            while snapshot := await subscription.next():
                yield msgspec.json.encode(structs.asdict(snapshot)).decode()  # without the type
                await asyncio.sleep(PAUSE_S)

    def require_capacity(self) -> None:
        """Raise ApiError (429) if there are as many watchers as allowed."""
        if len(self._subscriptions) >= MAX_WATCHERS:
            text = f"too many watchers: got {MAX_WATCHERS} already"
            raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, text, code="too_many_watchers", headers=RETRY_AFTER)

    def resume(self) -> None:
        """Enable the snapshots of a restarted engine if there are watchers."""
        if self._subscriptions:
            self.enable_snapshots(True)

    def publish(self, snapshot: EngineSnapshot) -> None:
        """Pass a snapshot to every watcher."""
        for subscription in self._subscriptions:
            subscription.publish(snapshot)

    def close(self) -> None:
        """End the stream of every watcher."""
        for subscription in self._subscriptions:
            subscription.close()
