"""The engine's process as the HTTP side sees it: requests go in, outputs come out, and a crashed engine restarts."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from http import HTTPStatus

from msgspec import structs

from mlsys_lab.errors import CourseError
from mlsys_lab.inference.server.errors import RETRY_AFTER, ApiError, bad_request, unavailable
from mlsys_lab.inference.server.messages import (
    Abort,
    Accepted,
    Command,
    EngineArgs,
    EngineSnapshot,
    EngineState,
    Event,
    GenerateRequest,
    OutputDelta,
    Ready,
    Rejected,
    StartupFailed,
    Watch,
    decode_event,
    encode,
)
from mlsys_lab.inference.server.metrics import Metrics
from mlsys_lab.inference.server.watchers import Watchers

WORKER_COMMAND = (sys.executable, "-P", "-m", "mlsys_lab.inference.server.worker")
MAX_LINE_BYTES = 2**28
"""Longest message: the alternatives to all tokens of a prompt, 20 each, take some hundred bytes a token."""
RESTART_PAUSE_S = 1.0
"""Pause before another start of an engine that ended before it was ready."""


class OutputStream:
    """The outputs of one request; closed early, the request is aborted within a step."""

    def __init__(self, engine: EngineProcess, request: GenerateRequest) -> None:
        self.engine, self.request = engine, request
        self.queue: asyncio.Queue[Accepted | Rejected | OutputDelta | None] = asyncio.Queue()  # None: engine crashed
        self._num_unfinished = request.num_sequences
        self._submitted_s = time.monotonic()
        self._last_output_s: list[float | None] = [None] * request.num_sequences

    async def accepted(self) -> int:
        """Wait until the request is accepted; returns its number of prompt tokens. ApiError if it is rejected."""
        message = await self._receive()
        assert isinstance(message, Accepted)
        self.engine.metrics.prompt_tokens.inc(message.num_prompt_tokens)
        return message.num_prompt_tokens

    async def deltas(self) -> AsyncIterator[OutputDelta]:
        """Yield outputs of all sequences until each has finished; ApiError if the engine crashes meanwhile."""
        while self._num_unfinished:
            delta = await self._receive()
            assert isinstance(delta, OutputDelta)
            if delta.num_tokens:
                self._measure(delta)
            if delta.finish_reason is not None:
                self._measure_finished(delta)
            self._num_unfinished -= delta.finish_reason is not None
            yield delta

    def close(self) -> None:
        """Release the request, finished or not."""
        self.engine.release(self, is_unfinished=self._num_unfinished > 0)

    async def _receive(self) -> Accepted | OutputDelta:
        message = await self.queue.get()
        if message is None:
            text = "the engine crashed while it worked on this request, and is restarting"
            raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, text, code="engine_crashed")
        if isinstance(message, Rejected):
            self._num_unfinished = 0
            raise bad_request(message.reason)
        return message

    def _measure(self, delta: OutputDelta) -> None:
        now_s, last_s, metrics = time.monotonic(), self._last_output_s[delta.index], self.engine.metrics
        if last_s is None:
            metrics.time_to_first_token.observe(now_s - self._submitted_s)
        else:
            metrics.inter_token_latency.observe(now_s - last_s)
        self._last_output_s[delta.index] = now_s
        metrics.generation_tokens.inc(delta.num_tokens)

    def _measure_finished(self, delta: OutputDelta) -> None:
        metrics = self.engine.metrics
        metrics.e2e_request_latency.observe(time.monotonic() - self._submitted_s)
        metrics.request_queue_time.observe(delta.queue_time_s)
        metrics.preemptions.inc(delta.num_preemptions)
        metrics.prefix_cache_queries.inc(len(self.request.prompts[delta.index // self.request.n]))
        metrics.prefix_cache_hits.inc(delta.num_cached_tokens)


class EngineProcess:
    """A worker in a process of its own, with at most `max_open_seqs` sequences open at a time.

    A request of any size is accepted while no other is open. When the worker crashes, every open request gets an error,
    and another worker is started.
    """

    def __init__(self, engine_args: EngineArgs, max_open_seqs: int, metrics: Metrics) -> None:
        self.engine_args, self.max_open_seqs, self.metrics = engine_args, max_open_seqs, metrics
        self.ready, self.is_draining = asyncio.Event(), False
        self.num_open_seqs = self.num_restarts = self.max_model_len = 0
        self.process: Process | None = None
        self.watchers = Watchers(self._enable_snapshots)
        self._streams: dict[int, OutputStream] = {}
        self._request_ids = itertools.count()
        self._supervision: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def status(self) -> str:
        """One word: "ready", "starting" or "draining"."""
        return "draining" if self.is_draining else "ready" if self.ready.is_set() else "starting"

    def require_watchable(self) -> None:
        """Raise ApiError if the engine is not ready (503) or has too many watchers (429)."""
        self.require_ready()
        self.watchers.require_capacity()

    async def start(self) -> None:
        """Start the worker and wait until it has loaded the model; CourseError, with the reason, if it cannot."""
        await self._start_worker()
        self._supervision = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """End the worker; requests that are still open get no answer."""
        if self._supervision:
            self._supervision.cancel()
        if self.process and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def drain(self) -> None:
        """Reject new requests, wait until the open ones have been answered, and end the watchers' streams."""
        self.is_draining = True
        await self._idle.wait()
        self.watchers.close()

    def require_ready(self) -> None:
        """Raise ApiError (503) if the server is shutting down or its engine is starting."""
        if self.is_draining:
            raise unavailable("the server is shutting down", code="draining")
        if not self.ready.is_set():
            raise unavailable("the engine is starting", code="engine_starting")

    def submit(self, request: GenerateRequest) -> OutputStream:
        """Send a request to the worker under a new id; ApiError if the queue is full or there is no engine."""
        self.require_ready()
        if self._streams and self.num_open_seqs + request.num_sequences > self.max_open_seqs:
            text = f"the queue is full: got {self.num_open_seqs} open sequences, expected at most {self.max_open_seqs}"
            raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, text, code="queue_full", headers=RETRY_AFTER)
        request = structs.replace(request, request_id=next(self._request_ids))
        stream = self._streams[request.request_id] = OutputStream(self, request)
        self._count_open(request.num_sequences)
        self._idle.clear()
        self._send(request)
        return stream

    def release(self, stream: OutputStream, *, is_unfinished: bool) -> None:
        """Remove a stream from the open ones, and abort its request if it is unfinished."""
        request = stream.request
        if self._streams.pop(request.request_id, None) is None:
            return
        self._count_open(-request.num_sequences)
        if is_unfinished and self.ready.is_set():
            self._send(Abort(request.request_id))
        if not self._streams:
            self._idle.set()

    def _count_open(self, added: int) -> None:
        self.num_open_seqs += added
        self.metrics.num_requests_open.set(self.num_open_seqs)

    def _count_restart(self) -> None:
        self.num_restarts += 1
        self.metrics.engine_restarts.inc()

    def _enable_snapshots(self, is_enabled: bool) -> None:
        if self.ready.is_set():
            self._send(Watch(is_enabled))

    def _send(self, command: Command) -> None:
        assert self.process and self.process.stdin
        self.process.stdin.write(encode(command))

    async def _start_worker(self) -> None:
        """Start a worker and wait for its first event; CourseError if that is not `Ready`."""
        # In a session of its own, because Ctrl-C in a terminal goes to all processes of one.
        self.process = await asyncio.create_subprocess_exec(
            *WORKER_COMMAND, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=MAX_LINE_BYTES
        )
        assert self.process.stdout
        self._send(self.engine_args)
        line = await self.process.stdout.readline()
        first = decode_event(line) if line.endswith(b"\n") else None
        if not isinstance(first, Ready):
            code = await self.process.wait()
            if isinstance(first, StartupFailed):
                raise CourseError(first.reason)
            raise CourseError("the engine did not start", got=f"exit code {code}")
        self.metrics.adapter_bytes.set(first.adapter_bytes)
        self.max_model_len = first.max_model_len
        self.ready.set()

    async def _supervise(self) -> None:
        """Dispatch events as long as the worker lives, then restart it, forever."""
        while True:
            assert self.process and self.process.stdout
            while line := await self.process.stdout.readline():
                if line.endswith(b"\n"):  # else a crash cut it short
                    self._dispatch(decode_event(line))
            self._fail_open_requests()
            await self.process.wait()
            while not self.ready.is_set():
                try:
                    await self._start_worker()
                except CourseError as error:
                    print(f"mlsys-lab: {error}", file=sys.stderr)
                    await asyncio.sleep(RESTART_PAUSE_S)
            self.watchers.resume()

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, EngineState):
            self.metrics.record(event)
        elif isinstance(event, EngineSnapshot):
            self.watchers.publish(event)
        elif isinstance(event, Accepted | Rejected | OutputDelta) and event.request_id in self._streams:
            self._streams[event.request_id].queue.put_nowait(event)

    def _fail_open_requests(self) -> None:
        self.ready.clear()
        self._count_restart()
        self.metrics.record(EngineState(0, 0, 0, 0, 0))
        for stream in self._streams.values():
            stream.queue.put_nowait(None)
