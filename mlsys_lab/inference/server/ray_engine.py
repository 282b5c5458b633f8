"""Replicas of the engine as a deployment of Ray Serve, with the face of an `EngineProcess`.

HTTP stays with our own server, which knows OpenAI's form, keys and bounds; Ray Serve starts replicas, keeps their
number, routes by prefix, and streams what they write. Needs the extra `replicas`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from http import HTTPStatus
from typing import Any, NamedTuple

from mlsys_lab.errors import MissingToolError
from mlsys_lab.inference.server.engine_process import EngineProcess
from mlsys_lab.inference.server.errors import ApiError
from mlsys_lab.inference.server.messages import Abort, Accepted, GenerateRequest, Message, OutputDelta, Rejected, Start
from mlsys_lab.inference.server.metrics import Metrics
from mlsys_lab.local_ray import import_ray, start_ray


class ServedBy(NamedTuple):
    """The replica that serves a request, by name, and how often its engine had crashed before."""

    replica: str
    crashes: int


class EngineReplica:
    """One replica: an engine in a process of its own, which is started again where it crashes."""

    def __init__(self, start: Start, room: int) -> None:
        self.engine = EngineProcess(start, room, Metrics(start.num_blocks))
        self.name = _import_ray()[1].get_replica_context().replica_id.unique_id
        self._starting = asyncio.Lock()

    async def answer(self, ask: GenerateRequest) -> AsyncIterator[ServedBy | Message]:
        """Yield the replica that serves a request, then its outputs; ApiError if the engine crashes.

        It waits for an engine that is being started. Closed early, the request is aborted.
        """
        await self.check_health()
        await self.engine.ready.wait()
        answer = self.engine.open(ask)
        try:
            yield ServedBy(self.name, self.engine.num_restarts)
            yield Accepted(ask.request_id, await answer.begin())
            async for delta in answer.deltas():
                yield replace(delta, request_id=ask.request_id)
        except ApiError as error:
            if error.status != HTTPStatus.BAD_REQUEST:
                raise
            yield Rejected(ask.request_id, error.message)
        finally:
            answer.close()

    async def check_health(self) -> None:
        """Start the engine the first time that Ray Serve asks."""
        async with self._starting:
            if self.engine.process is None:
                await self.engine.start()


class RayEngine(EngineProcess):
    """Engine of several replicas on a Ray of this machine's own, with up to `room` texts open at a time in all.

    A replica that has `sequences` requests under way is passed over. Where a replica dies, its requests get an error,
    and Ray Serve starts another; `num_restarts` counts crashes that cost a request, of a replica or its engine.
    The engine's gauges stay 0: steps and blocks are the replicas' own.
    """

    def __init__(self, start: Start, room: int, metrics: Metrics, replicas: int) -> None:
        super().__init__(start, room, metrics)
        self.replicas = replicas
        self.answered: Counter[str] = Counter()  # requests, by the name of the replica that took them
        self._streams: dict[int, asyncio.Task[None]] = {}
        self._crashed: set[ServedBy] = set()
        self._handle: Any = None

    def require_watchable(self) -> None:
        """Raise ApiError (501): what the page shows are one engine's steps and blocks."""
        text = "steps and blocks are the replicas' own; without --engine ray they can be watched"
        raise ApiError(HTTPStatus.NOT_IMPLEMENTED, text, code="not_watchable")

    async def start(self) -> None:
        """Start Ray and all replicas; MissingToolError where it is not installed, CourseError where it fails.

        One engine is started and ended before: why it cannot start it tells in one line, Ray in pages.
        """
        trial = EngineProcess(self.start_message, self.room, self.metrics)
        try:
            await trial.start()
        finally:
            await trial.stop()
        await asyncio.to_thread(self._deploy)
        self.ready.set()

    async def stop(self) -> None:
        """End the replicas and Ray; requests that are still open get no answer."""
        for stream in self._streams.values():
            stream.cancel()
        await asyncio.to_thread(_shut_down)

    def _deploy(self) -> None:
        ray, serve = _import_ray()
        start_ray(ray, self.replicas, gpus=0, help="serve without --engine ray")
        from ray.serve.config import RequestRouterConfig

        from mlsys_lab.inference.server.prefix_router import PrefixRouter

        serve.start(http_options={"location": "NoServer"}, logging_config={"log_level": "ERROR"})
        deployment = serve.deployment(
            EngineReplica,
            num_replicas=self.replicas,
            max_ongoing_requests=self.start_message.max_num_seqs,
            request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),  # type: ignore[arg-type]
        )
        application = deployment.bind(self.start_message, self.room)
        self._handle = serve.run(application, name="engine", route_prefix=None).options(stream=True)

    def _send(self, message: Message) -> None:
        if isinstance(message, GenerateRequest):
            stream = asyncio.create_task(self._relay(message))
            self._streams[message.request_id] = stream
            stream.add_done_callback(lambda _: self._streams.pop(message.request_id))
        elif isinstance(message, Abort) and message.request_id in self._streams:
            self._streams[message.request_id].cancel()

    async def _relay(self, ask: GenerateRequest) -> None:
        """Deliver what a replica writes, until its last word or a cancel."""
        answers, served_by = self._handle.answer.remote(ask), None
        try:
            served_by = await anext(answers)
            self.answered[served_by.replica] += 1
            async for message in answers:
                assert isinstance(message, Accepted | Rejected | OutputDelta)
                self._deliver(message)
        except asyncio.CancelledError:
            answers.cancel()
            raise
        except Exception:  # whatever Ray wraps: the replica died, or its engine did
            if served_by is not None and served_by not in self._crashed:
                self._crashed.add(served_by)
                self._count_restart()
            if ask.request_id in self._answers:
                self._answers[ask.request_id].inbox.put_nowait(None)


def _import_ray() -> tuple[Any, Any]:
    """The modules `ray` and `ray.serve`."""
    ray = import_ray(own=True, extra="replicas")
    try:
        from ray import serve
    except ModuleNotFoundError as error:
        raise MissingToolError(f"{error.name} is not installed", help="pip install 'mlsys-lab[replicas]'") from None
    logging.getLogger("ray.serve").setLevel("ERROR")  # of replicas that come and go, /metrics tells
    return ray, serve


def _shut_down() -> None:
    ray, serve = _import_ray()
    if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()
