"""The engine's process as the HTTP side sees it: requests go in, outputs come out, and a crashed engine restarts."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import replace
from http import HTTPStatus

from mlsys_lab.errors import CourseError
from mlsys_lab.inference.server.errors import RETRY, ApiError, bad_request, unavailable
from mlsys_lab.inference.server.messages import (
    Abort,
    Accepted,
    EngineState,
    Failed,
    GenerateRequest,
    Lines,
    Message,
    OutputDelta,
    Ready,
    Rejected,
    Start,
    View,
    Watch,
)
from mlsys_lab.inference.server.metrics import Metrics
from mlsys_lab.inference.server.watchers import Watchers

WORKER = (sys.executable, "-P", "-m", "mlsys_lab.inference.server.worker")
LINE_BYTES = 2**24
"""Longest message: a view of very many blocks has some hundred thousand bytes."""
RESTART_PAUSE_S = 1.0
"""Pause before the engine is started again after it ended without having become ready."""


class Answer:
    """The outputs of one request; closed early, the request is aborted within a step."""

    def __init__(self, engine: EngineProcess, ask: GenerateRequest) -> None:
        self.engine, self.ask = engine, ask
        self.inbox: asyncio.Queue[Accepted | Rejected | OutputDelta | None] = (
            asyncio.Queue()
        )  # None: the engine crashed
        self._left = ask.n
        self._last_s: list[float | None] = [None] * ask.n
        self._asked_s = time.monotonic()

    async def begin(self) -> int:
        """Wait until the request is accepted; returns its number of prompt tokens. ApiError if it is rejected."""
        message = await self._receive()
        assert isinstance(message, Accepted)
        self.engine.metrics.prompt_tokens.inc(message.num_prompt_tokens)
        return message.num_prompt_tokens

    async def deltas(self) -> AsyncIterator[OutputDelta]:
        """Yield outputs of all sequences until each has finished; ApiError if the engine crashes meanwhile."""
        while self._left:
            delta = await self._receive()
            assert isinstance(delta, OutputDelta)
            self._measure(delta)
            self._left -= delta.finish_reason is not None
            yield delta

    def close(self) -> None:
        """Let go of the request, answered or not."""
        self.engine.forget(self, under_way=self._left > 0)

    async def _receive(self) -> Accepted | OutputDelta:
        message = await self.inbox.get()
        if message is None:
            text = "the engine crashed while it worked on this request, and is started again"
            raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, text, code="engine_crashed")
        if isinstance(message, Rejected):
            self._left = 0
            raise bad_request(message.reason)
        return message

    def _measure(self, delta: OutputDelta) -> None:
        now, last, metrics = time.monotonic(), self._last_s[delta.index], self.engine.metrics
        if last is None:
            metrics.time_to_first_token.observe(now - self._asked_s)
        else:
            metrics.inter_token_latency.observe(now - last)
        self._last_s[delta.index] = now
        metrics.generation_tokens.inc(delta.num_tokens)


class EngineProcess:
    """A worker in a process of its own, with up to `room` texts open at a time; whoever comes then gets a 429.

    A single request is taken whatever its size while no other is open. Where the worker crashes, every open request
    gets an error, and another worker is started.
    """

    def __init__(self, start: Start, room: int, metrics: Metrics) -> None:
        self.start_message, self.room, self.metrics = start, room, metrics
        self.ready, self.draining = asyncio.Event(), False
        self.num_open_sequences = self.num_restarts = 0
        self.process: Process | None = None
        self.watchers = Watchers(self._watch_engine)
        self._answers: dict[int, Answer] = {}
        self._numbers = itertools.count()
        self._supervision: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def status(self) -> str:
        """One word: "ready", "starting" or "draining"."""
        return "draining" if self.draining else "ready" if self.ready.is_set() else "starting"

    def require_watchable(self) -> None:
        """Raise ApiError where nobody may watch now: the engine is not ready (503), or enough watch (429)."""
        self.require_ready()
        self.watchers.require_room()

    async def start(self) -> None:
        """Start the worker, and wait until it has loaded the model; CourseError, with its reason, where it cannot."""
        await self._begin()
        self._supervision = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """End the worker; requests that are still open get no answer."""
        if self._supervision:
            self._supervision.cancel()
        if self.process and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def drain(self) -> None:
        """Refuse requests from now on, wait until those that are open have been answered, and let watchers go."""
        self.draining = True
        await self._idle.wait()
        self.watchers.end()

    def require_ready(self) -> None:
        """Raise ApiError (503) where the server is shutting down, or its engine is being started."""
        if self.draining:
            raise unavailable("the server is shutting down", code="draining")
        if not self.ready.is_set():
            raise unavailable("the engine is starting", code="engine_starting")

    def open(self, ask: GenerateRequest) -> Answer:
        """Pass a request on, under a number of our own; ApiError where the server is full or has no engine."""
        self.require_ready()
        if self._answers and self.num_open_sequences + ask.n > self.room:
            text = f"the queue is full: {self.num_open_sequences} texts are under way, up to {self.room} may be"
            raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, text, code="queue_full", headers=RETRY)
        ask = replace(ask, request_id=next(self._numbers))
        answer = self._answers[ask.request_id] = Answer(self, ask)
        self._count_open(ask.n)
        self._idle.clear()
        self._send(ask)
        return answer

    def forget(self, answer: Answer, *, under_way: bool) -> None:
        """Take an answer off the list of those open, and its request from the engine if it is still at it."""
        if self._answers.pop(answer.ask.request_id, None) is None:
            return
        self._count_open(-answer.ask.n)
        if under_way and self.ready.is_set():
            self._send(Abort(answer.ask.request_id))
        if not self._answers:
            self._idle.set()

    def _count_open(self, added: int) -> None:
        self.num_open_sequences += added
        self.metrics.num_requests_open.set(self.num_open_sequences)

    def _count_restart(self) -> None:
        self.num_restarts += 1
        self.metrics.engine_restarts.inc()

    def _watch_engine(self, on: bool) -> None:
        if self.ready.is_set():
            self._send(Watch(on))

    def _send(self, message: Message) -> None:
        assert self.process and self.process.stdin
        self.process.stdin.write(Lines.encode(message))

    async def _begin(self) -> None:
        """Start a worker, and wait for its first message; CourseError where it ends instead."""
        # A session of its own: Ctrl-C in a terminal goes to all processes of one.
        self.process = await asyncio.create_subprocess_exec(
            *WORKER, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=LINE_BYTES
        )
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(Lines.encode(self.start_message))
        line = await self.process.stdout.readline()
        first = Lines.decode(line) if line.endswith(b"\n") else None
        if not isinstance(first, Ready):
            code = await self.process.wait()
            if isinstance(first, Failed):
                raise CourseError(first.reason)
            raise CourseError("the engine did not start", got=f"exit code {code}")
        self.metrics.adapter_bytes.set(first.adapter_bytes)
        self.ready.set()

    async def _supervise(self) -> None:
        """Deliver messages as long as the worker lives, then start another, again and again."""
        while True:
            assert self.process and self.process.stdout
            while line := await self.process.stdout.readline():
                if line.endswith(b"\n"):  # else it was cut short by a crash
                    self._deliver(Lines.decode(line))
            self._lose()
            await self.process.wait()
            while not self.ready.is_set():
                try:
                    await self._begin()
                except CourseError as error:
                    print(f"mlsys-lab: {error}", file=sys.stderr)
                    await asyncio.sleep(RESTART_PAUSE_S)
            self.watchers.resume()

    def _deliver(self, message: Message) -> None:
        if isinstance(message, EngineState):
            self.metrics.record(message)
        elif isinstance(message, View):
            self.watchers.deliver(message)
        elif isinstance(message, Accepted | Rejected | OutputDelta) and message.request_id in self._answers:
            self._answers[message.request_id].inbox.put_nowait(message)

    def _lose(self) -> None:
        self.ready.clear()
        self._count_restart()
        self.metrics.record(EngineState(0, 0, 0, 0, 0))
        for answer in self._answers.values():
            answer.inbox.put_nowait(None)
