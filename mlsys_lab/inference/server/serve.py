"""Running a server: both processes, its socket, and signals."""

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
from mlsys_lab.inference.server.app import AccessConfig, build_app
from mlsys_lab.inference.server.connection import Connection
from mlsys_lab.inference.server.engine_process import EngineProcess
from mlsys_lab.inference.server.images.process import ImageProcess
from mlsys_lab.inference.server.images.protocol import IMAGE_MODEL
from mlsys_lab.inference.server.messages import EngineArgs
from mlsys_lab.inference.server.metrics import Metrics
from mlsys_lab.inference.server.protocol import MODEL
from mlsys_lab.inference.text.loading import BUNDLED, load_tokenizer
from mlsys_lab.validation import require_at_least_one, require_non_negative

SHUTDOWN_TIMEOUT_S = 5
"""Time for connections to close after the last response."""
SEND_BUFFER_BYTES = 64 * 1024
"""The system's send buffer for each client; its default holds megabytes for a client that does not read."""


@dataclass(frozen=True)
class ServerConfig:
    """Configuration of a server; InputError for an invalid value.

    `model` is the folder of a checkpoint with its tokenizer, None the model that comes with the course; `draft` is the
    folder of a smaller model with the same vocabulary, which drafts tokens for it.

    `num_blocks` is the size of the KV cache; up to `max_num_seqs` sequences run and `max_queued_seqs` wait. A request
    may take `request_timeout_s` seconds; a client may take `client_timeout_s` seconds to send the head or the body of
    its request, or to read on. `port` 0 takes a free one. With `num_replicas` the engine is a Ray Serve deployment with
    as many replicas. `scheduler` is a Python file that defines `build(num_blocks, block_size, config)`. `adapters` are
    folders in PEFT's format, by model name. `trace` is a file for the engine's steps and requests, token ids included.
    `allowed_hosts` are names by which clients may address the server, in addition to `host` and loopback names.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    model: str | None = None
    draft: str | None = None
    num_blocks: int = 256
    max_num_seqs: int = 16
    max_queued_seqs: int = 64
    client_timeout_s: int = 10
    request_timeout_s: float = 120.0
    num_replicas: int | None = None
    scheduler: str | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)
    trace: str | None = None
    allowed_hosts: Collection[str] = ()

    def __post_init__(self) -> None:
        require_at_least_one(
            num_blocks=self.num_blocks, max_num_seqs=self.max_num_seqs, client_timeout_s=self.client_timeout_s
        )
        require_non_negative(max_queued_seqs=self.max_queued_seqs)
        require_at_least_one(num_replicas=1 if self.num_replicas is None else self.num_replicas)
        if self.scheduler is not None and not Path(self.scheduler).is_file():
            raise InputError("no such scheduler", got=self.scheduler, expected="a Python file")
        for name, given in (("model", self.model), ("draft", self.draft)):
            if given is not None and not (Path(given) / "config.json").is_file():
                raise InputError(f"no such {name}", got=given, expected="a folder with config.json and safetensors")
        if self.trace is not None and self.num_replicas is not None:
            raise InputError("a trace is of one engine", got=f"{self.num_replicas} replicas", help="leave one out")
        if self.trace is not None and Path(self.trace).exists():
            raise InputError("the trace exists already", got=self.trace, help="name another file, or remove this one")
        if self.trace is not None and not Path(self.trace).parent.is_dir():
            raise InputError("no such folder for the trace", got=Path(self.trace).parent)
        if self.draft is not None and (self.scheduler is not None or self.adapters):
            raise InputError("drafts go with the package's own scheduler and without adapters", help="leave one out")
        for name, folder in self.adapters.items():
            if name in (self.model_name, IMAGE_MODEL) or not re.fullmatch(r"[\w.-]{1,64}", name, re.ASCII):
                expected = f"1 to 64 letters, digits, dots, hyphens or underscores, not {self.model_name}"
                raise InputError("invalid adapter name", got=ascii(name), expected=expected)
            if not Path(folder).is_dir():
                raise InputError("no such adapter", got=folder, expected="a folder in PEFT's format")
        if not 0 <= self.port < 2**16:
            raise InputError("port out of range", got=self.port, expected="0 to 65535")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable() and self.api_key):
            raise InputError("the API key does not fit into a header", expected="printable ASCII characters")
        if not self.request_timeout_s > 0:
            raise InputError("request_timeout_s out of range", got=self.request_timeout_s, expected="seconds above 0")

    @property
    def model_name(self) -> str:
        """The name by which clients ask for the model: its folder's."""
        return MODEL if self.model is None else Path(self.model).resolve().name


class Server(uvicorn.Server):
    """Server that drains at the first SIGTERM or SIGINT, and stops at the second."""

    def __init__(
        self, config: uvicorn.Config, engine: EngineProcess, images: ImageProcess, announce: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self.engine, self.images, self.announce = engine, images, announce
        self.loop = asyncio.get_running_loop()
        self.drain_task: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and announce it."""
        await super().startup(sockets)
        self.announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal in the event loop."""
        self.loop.call_soon_threadsafe(self._shut_down)

    def _shut_down(self) -> None:
        if self.drain_task is None:
            self.drain_task = self.loop.create_task(self._drain())
        else:
            self.should_exit = self.force_exit = True
            for connection in list(self.server_state.connections):
                connection.transport.abort()  # else its response is cancelled later, with a traceback

    async def _drain(self) -> None:
        await self.engine.drain()
        await self.images.drain()
        self.should_exit = True


async def serve(config: ServerConfig, announce: Callable[[str], None]) -> None:
    """Serve until a signal and the end of the requests then open; `announce` gets the address when the server is ready.

    Signals are ignored from then on: the process should exit. InputError if the address is not available, CourseError
    if the engine does not start.
    """
    tokenizer = load_tokenizer(BUNDLED if config.model is None else Path(config.model))
    listener = _bind(config.host, config.port)
    engine = _build_engine(config)
    images = ImageProcess(engine.metrics)
    access = AccessConfig(
        config.client_timeout_s,
        config.request_timeout_s,
        config.api_key,
        frozenset([config.host, *config.allowed_hosts]),
    )
    uvicorn_config = uvicorn.Config(
        build_app(engine, images, access, config.model_name, tokenizer),
        http=Connection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=config.client_timeout_s,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
    )
    try:
        await engine.start()
        host = f"[{config.host}]" if ":" in config.host else config.host
        address = f"http://{host}:{listener.getsockname()[1]}"
        server = Server(uvicorn_config, engine, images, lambda: announce(address))
        with _signals_for(server):
            await server.serve([listener])
    finally:
        listener.close()
        await images.stop()
        await engine.stop()


@contextmanager
def _signals_for(server: Server) -> Iterator[None]:
    """Let the server handle signals, and ignore them afterwards.

    uvicorn restores the previous handlers when it has finished; with Python's own, a signal while the engine is being
    stopped would kill this process.
    """
    signals = signal.SIGINT, signal.SIGTERM
    for one in signals:
        signal.signal(one, server.handle_exit)
    try:
        yield
    finally:
        for one in signals:
            signal.signal(one, signal.SIG_IGN)


def _build_engine(config: ServerConfig) -> EngineProcess:
    args = EngineArgs(
        config.num_blocks,
        config.max_num_seqs,
        config.model,
        config.draft,
        config.scheduler,
        dict(config.adapters),
        config.trace,
    )
    max_open_seqs = (config.num_replicas or 1) * config.max_num_seqs + config.max_queued_seqs
    metrics = Metrics(config.num_blocks)
    if config.num_replicas is None:
        return EngineProcess(args, max_open_seqs, metrics)
    from mlsys_lab.inference.server.ray_engine import RayEngine

    return RayEngine(args, max_open_seqs, metrics, config.num_replicas)


def _bind(host: str, port: int) -> socket.socket:
    """Bind a socket that does not listen yet; InputError if the address is taken or invalid."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listener.bind(address)
    except OSError as error:
        help_ = "choose another with --port, or 0 for any"
        raise InputError(f"cannot listen at {host}, port {port}", got=error, help=help_) from None
    return listener
