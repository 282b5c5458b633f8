"""An answer on its way to a client: whole or as server-sent events, given up in time or when the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mlsys_lab.inference.server.engine_process import Answer
from mlsys_lab.inference.server.errors import ApiError
from mlsys_lab.inference.server.events import START, dump, event, unless_gone
from mlsys_lab.inference.server.objects import Shape, Usage

LAST_WORD_S = 1.0
"""Time in which a client that may have stopped to read can be told of an error."""


class JSON(Response):
    """HTTP response that holds an object as JSON."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Write an object as JSON, in UTF-8."""
        return dump(content)


def show_error(error: ApiError) -> JSON:
    """Make the HTTP response that tells a client of an error."""
    return JSON(error.body, error.status, headers=error.headers)


class Reply:
    """ASGI application that sends one answer, and closes it whatever happens.

    After `timeout_s` the engine forgets the request: a client that waits is told so, one that reads too slowly loses
    its connection. Where the client goes away, the engine forgets the request too.
    """

    def __init__(self, answer: Answer, shape: Shape, timeout_s: float) -> None:
        self.answer, self.shape, self.timeout_s = answer, shape, timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; ApiError, before anything was sent, where there is none."""
        try:
            work = self._stream(send) if self.shape.wanted.stream else self._send_whole(scope, receive, send)
            await unless_gone(receive, work)
        except ClientDisconnect:
            pass  # nobody is left to be told
        finally:
            self.answer.close()

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._in_time():
            usage, deltas = Usage(await self.answer.begin()), []
            async for delta in self.answer.deltas():
                usage.add(delta)
                deltas.append(delta)
        await JSON(self.shape.whole(deltas, usage))(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        started = False
        try:
            async with self._in_time():
                usage = Usage(await self.answer.begin())
                await send(START)
                started = True
                for chunk in self.shape.first():
                    await send(event(chunk))
                async for delta in self.answer.deltas():
                    usage.add(delta)
                    await send(event(self.shape.chunk(delta)))
                    await asyncio.sleep(0)  # only between two turns of the loop does it hear of a client that has gone
                for chunk in self.shape.last(usage):
                    await send(event(chunk))
                await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        except ApiError as error:
            if not started:
                raise
            self.answer.close()
            with suppress(TimeoutError):  # of one who reads nothing the connection is closed
                async with asyncio.timeout(LAST_WORD_S):
                    await send(event(error.body, last=True))

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.timeout_s):
                yield
        except TimeoutError:
            text = f"no answer within {self.timeout_s:g} s"
            raise ApiError(HTTPStatus.GATEWAY_TIMEOUT, text, code="timeout") from None
