"""Responses on their way to a client, from an engine whose outputs are all ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from mlsys_lab.inference.server.messages import OutputDelta
from mlsys_lab.inference.server.protocol import MODEL, CompletionRequest
from mlsys_lab.inference.server.response import GenerationResponse
from mlsys_lab.inference.server.response_objects import ResponseBuilder
from tests.inference.server.letters import Letters
from tests.loops import run

NUM_DELTAS = 200


class ReadyStream:
    """An `OutputStream` whose outputs are all there."""

    is_closed = False

    async def accepted(self) -> int:
        return 1

    async def deltas(self) -> AsyncIterator[OutputDelta]:
        for _ in range(NUM_DELTAS):
            yield OutputDelta(0, 0, 1, "a", [], None, 0)

    def close(self) -> None:
        self.is_closed = True


async def disconnect_after_one_event() -> tuple[int, ReadyStream]:
    """Number of events sent to a client that disconnects at the first one, and the stream."""
    num_sent, disconnected, stream = 0, asyncio.Event(), ReadyStream()

    async def send(message: dict[str, object]) -> None:
        nonlocal num_sent
        if message["type"] == "http.response.body":
            num_sent += 1
            disconnected.set()

    async def receive() -> dict[str, str]:
        await disconnected.wait()
        return {"type": "http.disconnect"}

    request = CompletionRequest(model=MODEL, prompt="A", stream=True)
    builder = ResponseBuilder(request, request.to_engine([[65]], None), Letters())
    response = GenerationResponse(stream, builder, timeout_s=600)  # type: ignore[arg-type]
    await response({"type": "http", "method": "POST"}, receive, send)  # type: ignore[arg-type]
    return num_sent, stream


def test_a_disconnect_is_noticed_before_all_ready_outputs_are_sent() -> None:
    num_sent, stream = run(disconnect_after_one_event())
    assert stream.is_closed and num_sent < NUM_DELTAS / 10, num_sent
