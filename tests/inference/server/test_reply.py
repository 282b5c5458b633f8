"""Answers on their way to a client, with an engine that has everything ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

from mlsys_lab.inference.server.reply import Reply
from tests.loops import run

DELTAS = 200


class Ready:
    """An answer of which all deltas are there."""

    closed = False

    async def begin(self) -> int:
        return 1

    async def deltas(self) -> AsyncIterator[SimpleNamespace]:
        for _ in range(DELTAS):
            yield SimpleNamespace(num_kept_tokens=0)

    def close(self) -> None:
        self.closed = True


async def send_to_one_who_goes() -> tuple[int, Ready]:
    """Parts of a body that are sent to a client who goes at the first of them, and the answer."""
    sent, gone, answer = 0, asyncio.Event(), Ready()

    async def send(message: dict[str, object]) -> None:
        nonlocal sent
        if message["type"] == "http.response.body":
            sent += 1
            gone.set()

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    shape = SimpleNamespace(
        wanted=SimpleNamespace(stream=True), first=lambda: [], chunk=lambda delta: {}, last=lambda usage: []
    )
    await Reply(answer, shape, timeout_s=600)({"type": "http"}, receive, send)  # type: ignore[arg-type]
    return sent, answer


def test_a_client_that_goes_is_noticed_before_all_that_is_ready_is_written() -> None:
    sent, answer = run(send_to_one_who_goes())
    assert answer.closed and sent < DELTAS / 10, sent
