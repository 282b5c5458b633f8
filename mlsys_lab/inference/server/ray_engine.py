"""Replicas of the engine as a deployment of Ray Serve, with the interface of `EngineProcess`.

Our own server keeps HTTP, with OpenAI's format, keys and limits; Ray Serve starts the replicas, keeps their number,
routes by prefix, and streams their outputs. Needs the extra `replicas`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, NamedTuple

from msgspec import structs

from mlsys_lab.errors import MissingToolError
from mlsys_lab.inference.server.engine_process import EngineProcess
from mlsys_lab.inference.server.errors import ApiError
from mlsys_lab.inference.server.messages import (
    Abort,
    Accepted,
    Command,
    EngineArgs,
    GenerateRequest,
    OutputDelta,
    Rejected,
)
from mlsys_lab.inference.server.metrics import Metrics
from mlsys_lab.local_ray import import_ray, start_ray


class ServedBy(NamedTuple):
    """The replica that serves a request, and how often its engine had crashed before."""

    replica: str
    num_restarts: int


class EngineReplica:
    """One replica: an engine in a process of its own, which restarts when it crashes."""

    def __init__(self, engine_args: EngineArgs, max_open_seqs: int) -> None:
        self.engine = EngineProcess(engine_args, max_open_seqs, Metrics(engine_args.num_blocks))
        self.name = _import_ray()[1].get_replica_context().replica_id.unique_id
        self._starting = asyncio.Lock()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[ServedBy | Accepted | Rejected | OutputDelta]:
        """Yield the replica that serves a request, then its outputs; ApiError if the engine crashes.

        Waits while the engine starts. Closed early, the request is aborted.
        """
        await self.check_health()
        await self.engine.ready.wait()
        stream = self.engine.submit(request)
        try:
            yield ServedBy(self.name, self.engine.num_restarts)
            yield Accepted(request.request_id, await stream.accepted())
            async for delta in stream.deltas():
                yield structs.replace(delta, request_id=request.request_id)
        except ApiError as error:
            if error.status != HTTPStatus.BAD_REQUEST:
                raise
            yield Rejected(request.request_id, error.message)
        finally:
            stream.close()

    async def check_health(self) -> None:
        """Start the engine when Ray Serve calls this for the first time."""
        async with self._starting:
            if self.engine.process is None:
                await self.engine.start()


class RayEngine(EngineProcess):
    """Several replicas of the engine on a local Ray, with at most `max_open_seqs` sequences open in total.

    A replica with `max_num_seqs` requests is skipped. When a replica dies, its requests get an error, and Ray Serve
    starts another; `num_restarts` counts the crashes, of replicas or their engines, that failed a request. The engine's
    gauges stay 0: steps and blocks are the replicas' own.
    """

    def __init__(self, engine_args: EngineArgs, max_open_seqs: int, metrics: Metrics, num_replicas: int) -> None:
        super().__init__(engine_args, max_open_seqs, metrics)
        self.num_replicas = num_replicas
        self.num_served: Counter[str] = Counter()  # requests, by replica
        self._relays: dict[int, asyncio.Task[None]] = {}
        self._crashed: set[ServedBy] = set()
        self._handle: Any = None

    def require_watchable(self) -> None:
        """Raise ApiError (501): the page shows the steps and blocks of one engine."""
        text = "replicas cannot be watched; help: serve without --engine ray"
        raise ApiError(HTTPStatus.NOT_IMPLEMENTED, text, code="not_watchable")

    async def start(self) -> None:
        """Start Ray and all replicas; MissingToolError if Ray is not installed, CourseError if an engine cannot start.

        A trial engine is started and stopped first, because its error is one line, and Ray's is pages.
        """
        trial = EngineProcess(self.engine_args, self.max_open_seqs, self.metrics)
        try:
            await trial.start()
            self.max_model_len = trial.max_model_len
        finally:
            await trial.stop()
        await asyncio.to_thread(self._deploy)
        self.ready.set()

    async def stop(self) -> None:
        """End the replicas and Ray; requests that are still open get no answer."""
        for relay in self._relays.values():
            relay.cancel()
        await asyncio.to_thread(_shut_down)

    def _deploy(self) -> None:
        ray, serve = _import_ray()
        start_ray(ray, self.num_replicas, gpus=0, help="serve without --engine ray")
        from ray.serve.config import RequestRouterConfig

        from mlsys_lab.inference.server.prefix_router import PrefixRouter

        serve.start(http_options={"location": "NoServer"}, logging_config={"log_level": "ERROR"})
        deployment = serve.deployment(
            EngineReplica,
            num_replicas=self.num_replicas,
            max_ongoing_requests=self.engine_args.max_num_seqs,
            request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),  # type: ignore[arg-type]
        )
        application = deployment.bind(self.engine_args, self.max_open_seqs)
        self._handle = serve.run(application, name="engine", route_prefix=None).options(stream=True)

    def _send(self, command: Command) -> None:
        if isinstance(command, GenerateRequest):
            relay = self._relays[command.request_id] = asyncio.create_task(self._relay(command))
            relay.add_done_callback(lambda _: self._relays.pop(command.request_id))
        elif isinstance(command, Abort) and command.request_id in self._relays:
            self._relays[command.request_id].cancel()

    async def _relay(self, request: GenerateRequest) -> None:
        """Dispatch a replica's outputs of a request until it has finished or is aborted."""
        outputs, served_by = self._handle.generate.remote(request), None
        try:
            served_by = await anext(outputs)
            self.num_served[served_by.replica] += 1
            async for event in outputs:
                self._dispatch(event)
        except asyncio.CancelledError:
            outputs.cancel()
            raise
        except Exception:  # whatever Ray wraps: the replica died, or its engine did
            if served_by is not None and served_by not in self._crashed:
                self._crashed.add(served_by)
                self._count_restart()
            if request.request_id in self._streams:
                self._streams[request.request_id].queue.put_nowait(None)


def _import_ray() -> tuple[Any, Any]:
    """The modules `ray` and `ray.serve`."""
    ray = import_ray(own=True, extra="replicas")
    try:
        from ray import serve
    except ModuleNotFoundError as error:
        raise MissingToolError(f"{error.name} is not installed", help="pip install 'mlsys-lab[replicas]'") from None
    logging.getLogger("ray.serve").setLevel("ERROR")  # /metrics counts restarts
    return ray, serve


def _shut_down() -> None:
    ray, serve = _import_ray()
    if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()
