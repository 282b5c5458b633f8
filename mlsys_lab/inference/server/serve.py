"""A server from its first to its last moment: both processes, one socket, and signals."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import uvicorn

from mlsys_lab.errors import InputError
from mlsys_lab.inference.server.app import Bounds, build_app
from mlsys_lab.inference.server.connection import Connection
from mlsys_lab.inference.server.engine_process import EngineProcess
from mlsys_lab.inference.server.messages import Start
from mlsys_lab.inference.server.metrics import Metrics
from mlsys_lab.inference.server.protocol import MODEL
from mlsys_lab.validation import require_at_least_one, require_non_negative

CLOSE_S = 5
"""Seconds that connections have to close after the last answer."""
UNREAD_BYTES = 64 * 1024
"""What the system may hold back for each client; left to itself it takes megabytes for one that does not read."""


@dataclass(frozen=True)
class Settings:
    """How to serve; InputError for what cannot be.

    `blocks` is the size of the KV cache, `sequences` the number of sequences of a step, and `queue` how many more may
    wait. A request may take `answer_s` seconds; a client may take `client_s` seconds to send the head of its request,
    to send the body, or to read on. `port` 0 takes a free one. With `replicas` the engine is a deployment of Ray Serve
    with as many replicas. `scheduler` is a Python file with a `build(num_blocks, block_size, config)` of your own.
    `adapters` are folders in PEFT's format, by the model names of requests. `hosts` are further names by which clients
    may call the server, besides `host` and loopback names.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    blocks: int = 256
    sequences: int = 16
    queue: int = 64
    body_bytes: int = 64 * 1024
    client_s: int = 10
    answer_s: float = 120.0
    replicas: int | None = None
    scheduler: str | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)
    hosts: Collection[str] = ()

    def __post_init__(self) -> None:
        require_at_least_one(blocks=self.blocks, sequences=self.sequences, body_bytes=self.body_bytes)
        require_at_least_one(client_s=self.client_s)
        require_non_negative(queue=self.queue)
        require_at_least_one(replicas=1 if self.replicas is None else self.replicas)
        if self.scheduler is not None and not Path(self.scheduler).is_file():
            raise InputError("no such scheduler", got=self.scheduler, expected="a Python file")
        for name, folder in self.adapters.items():
            if name == MODEL or not re.fullmatch(r"[\w.-]{1,64}", name, re.ASCII):
                expected = f"1 to 64 letters, digits, dots, hyphens or underscores, not {MODEL}"
                raise InputError("an adapter's name", got=ascii(name), expected=expected)
            if not Path(folder).is_dir():
                raise InputError("no such adapter", got=folder, expected="a folder in PEFT's format")
        if not 0 <= self.port < 2**16:
            raise InputError("port out of range", got=self.port, expected="0 to 65535")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable() and self.api_key):
            raise InputError("the key is not one that a header can hold", expected="printable ASCII characters")
        if not self.answer_s > 0:
            raise InputError("answer_s out of range", got=self.answer_s, expected="seconds above 0")


class Server(uvicorn.Server):
    """Server that at the first SIGTERM or SIGINT refuses requests and finishes what runs, and at the second stops."""

    def __init__(self, config: uvicorn.Config, engine: EngineProcess, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self.engine, self.announce, self.loop = engine, announce, asyncio.get_running_loop()
        self.draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and print the address on standard output."""
        await super().startup(sockets)
        self.announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal, at whatever moment it comes."""
        self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self.draining is None:
            self.draining = self.loop.create_task(self._drain())
        else:
            self.should_exit = self.force_exit = True
            for connection in list(self.server_state.connections):
                connection.transport.abort()  # else what answers on it is cancelled later, with a traceback

    async def _drain(self) -> None:
        await self.engine.drain()
        self.should_exit = True


async def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until a signal has come and what ran then is finished; `announce` gets the address once it answers.

    It is a process's last work: signals that come after it are ignored. InputError for an address that cannot be had,
    CourseError where the engine does not start.
    """
    listener = _bind(settings.host, settings.port)
    metrics = Metrics(settings.blocks)
    engine = _build_engine(settings, metrics)
    hosts = frozenset([settings.host, *settings.hosts])
    bounds = Bounds(settings.body_bytes, settings.client_s, settings.answer_s, settings.api_key, hosts)
    config = uvicorn.Config(
        build_app(engine, bounds),
        http=Connection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=settings.client_s,
        timeout_graceful_shutdown=CLOSE_S,
    )
    try:
        await engine.start()
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{host}:{listener.getsockname()[1]}"
        server = Server(config, engine, lambda: announce(address))
        with _signals_for(server):
            await server.serve([listener])
    finally:
        listener.close()
        await engine.stop()


@contextmanager
def _signals_for(server: Server) -> Iterator[None]:
    """Leave signals to the server from its first moment to its last, and to nobody after it.

    uvicorn takes them while it serves, and gives them back to whoever had them before: left as they were, one that came
    while the engine was being stopped would kill this process.
    """
    signals = signal.SIGINT, signal.SIGTERM
    for one in signals:
        signal.signal(one, server.handle_exit)
    try:
        yield
    finally:
        for one in signals:
            signal.signal(one, signal.SIG_IGN)


def _build_engine(settings: Settings, metrics: Metrics) -> EngineProcess:
    start = Start(settings.blocks, settings.sequences, settings.scheduler, dict(settings.adapters))
    if settings.replicas is None:
        return EngineProcess(start, settings.sequences + settings.queue, metrics)
    from mlsys_lab.inference.server.ray_engine import RayEngine

    return RayEngine(start, settings.replicas * settings.sequences + settings.queue, metrics, settings.replicas)


def _bind(host: str, port: int) -> socket.socket:
    """Socket with an address that nobody else can have, which does not listen yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
        listener.bind(address)
    except OSError as error:
        help_ = "choose another with --port, or 0 for any"
        raise InputError(f"cannot listen at {host}, port {port}", got=error, help=help_) from None
    return listener
