"""Responses: a completion whole or as server-sent events, aborted at a deadline or when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TypeVar

import msgspec
from sse_starlette.sse import AppStatus, EventSourceResponse
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mlsys_lab.inference.server.engine_process import OutputStream
from mlsys_lab.inference.server.errors import ApiError
from mlsys_lab.inference.server.messages import OutputDelta
from mlsys_lab.inference.server.response_objects import ResponseBuilder

# All streams end when the server drains; the library would cut those that are about to, without the end of their body.
AppStatus.enable_automatic_graceful_drain = False

T = TypeVar("T")
PING_S = 1
"""Seconds between two comments in a stream: a write fails if the client has gone while there is nothing to send."""


class JSONResponse(Response):
    """Response that holds an object as JSON."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Encode an object as JSON."""
        return msgspec.json.encode(content)


def error_response(error: ApiError) -> JSONResponse:
    """Response for an error."""
    return JSONResponse(error.body, error.status, headers=error.headers)


def event_stream(events: AsyncIterator[str]) -> EventSourceResponse:
    """Response of server-sent events, closed when the client disconnects; a comment each `PING_S` finds that out."""
    return EventSourceResponse(events, sep="\n", ping=PING_S)


class GenerationResponse:
    """ASGI application that sends the response of one request.

    The engine aborts the request when the client disconnects, and `timeout_s` seconds after it was submitted; the
    client then gets an error, as a response or as the last event of a stream.
    """

    def __init__(self, outputs: OutputStream, builder: ResponseBuilder, timeout_s: float) -> None:
        self.outputs, self.builder, self.timeout_s = outputs, builder, timeout_s
        self.deadline_s = asyncio.get_running_loop().time() + timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; ApiError if there is an error before anything was sent."""
        try:
            response = await until_disconnect(receive, self._respond())
            await response(scope, receive, send)
        except ClientDisconnect:
            pass
        finally:
            self.outputs.close()

    async def _respond(self) -> Response:
        async with self._deadline():
            num_prompt_tokens = await self.outputs.accepted()
        if self.builder.request.stream:
            return event_stream(self._events(num_prompt_tokens))
        return JSONResponse(self.builder.response(num_prompt_tokens, [delta async for delta in self._deltas()]))

    async def _events(self, num_prompt_tokens: int) -> AsyncIterator[str]:
        try:
            for chunk in self.builder.first_chunks():
                yield _to_json(chunk)
            async for delta in self._deltas():
                if found := self.builder.chunk(delta):
                    yield _to_json(found)
            for chunk in self.builder.last_chunks(num_prompt_tokens):
                yield _to_json(chunk)
            yield "[DONE]"
        except ApiError as error:
            yield _to_json(error.body)

    async def _deltas(self) -> AsyncIterator[OutputDelta]:
        deltas = self.outputs.deltas()
        while True:
            async with self._deadline():
                await asyncio.sleep(0)  # else a deadline or a disconnect goes unnoticed while outputs are ready
                delta = await anext(deltas, None)
            if delta is None:
                return
            yield delta

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(self.deadline_s):
                yield
        except TimeoutError:
            text = f"no answer within {self.timeout_s:g} s"
            raise ApiError(HTTPStatus.GATEWAY_TIMEOUT, text, code="timeout") from None


def _to_json(content: object) -> str:
    return msgspec.json.encode(content).decode()


async def until_disconnect(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """Await `work`; cancel it and raise ClientDisconnect when the client disconnects."""
    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        disconnect.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
