"""The routes: OpenAI's three, those for who watches the server, and the page."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlsys_lab.inference.server.body import read_json
from mlsys_lab.inference.server.engine_process import EngineProcess
from mlsys_lab.inference.server.errors import ApiError
from mlsys_lab.inference.server.metrics import Metrics
from mlsys_lab.inference.server.objects import Shape
from mlsys_lab.inference.server.page import Page
from mlsys_lab.inference.server.protocol import MODEL, Wanted, no_model, read_chat, read_completion, shorten
from mlsys_lab.inference.server.reply import JSON, Reply, show_error
from mlsys_lab.inference.server.watchers import Watching

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Bounds:
    """What a client may take: bytes of a body, seconds for it and for an answer; `api_key` None asks for no key.

    `hosts` are the names that requests may give the server, apart from those of loopback.
    """

    body_bytes: int
    body_s: float
    answer_s: float
    api_key: str | None
    hosts: frozenset[str] = frozenset()


class Routes:
    """Handlers of the routes, on one engine."""

    def __init__(self, engine: EngineProcess, bounds: Bounds) -> None:
        self.engine, self.bounds, self.adapters = engine, bounds, engine.start_message.adapters

    async def complete(self, request: Request) -> ASGIApp:
        """Handle /v1/completions: continue a prompt, whole or as a stream."""
        return await self._answer(request, read_completion)

    async def chat(self, request: Request) -> ASGIApp:
        """Handle /v1/chat/completions: answer a conversation, whole or as a stream."""
        return await self._answer(request, read_chat)

    async def models(self, request: Request) -> Response:
        """List the model, and its adapters as further ones."""
        self._require_key(request)
        return JSON({"object": "list", "data": [_describe(name) for name in (MODEL, *self.adapters)]})

    async def model(self, request: Request) -> Response:
        """Describe the model or an adapter; 404 for another."""
        self._require_key(request)
        name = request.path_params["name"]
        if name != MODEL and name not in self.adapters:
            raise no_model(name, self.adapters)
        return JSON(_describe(name))

    async def health(self, request: Request) -> Response:
        """Say whether requests are accepted: 200 or 503."""
        self._require_key(request)
        status = self.engine.status
        return JSON({"status": status}, HTTPStatus.OK if status == "ready" else HTTPStatus.SERVICE_UNAVAILABLE)

    async def metrics(self, request: Request) -> Response:
        """Show all metrics in Prometheus' format."""
        self._require_key(request)
        return Response(self.engine.metrics.render(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def watch(self, request: Request) -> ASGIApp:
        """Show what the engine does, as it happens."""
        self._require_key(request)
        self.engine.require_watchable()
        return Watching(self.engine.watchers)

    async def _answer(self, request: Request, read: Callable[[object, Collection[str]], Wanted]) -> ASGIApp:
        self._require_key(request)
        body = await read_json(request, most_bytes=self.bounds.body_bytes, timeout_s=self.bounds.body_s)
        wanted = read(body, self.adapters)
        return Reply(self.engine.open(wanted.ask), Shape(wanted), self.bounds.answer_s)

    def _require_key(self, request: Request) -> None:
        if self.bounds.api_key is None:
            return
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.bounds.api_key}".encode()):
            text = "no valid key: expected the header 'Authorization: Bearer KEY'"
            raise ApiError(HTTPStatus.UNAUTHORIZED, text, code="invalid_api_key")


class CountResponses:
    """ASGI middleware that counts responses by route and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: frozenset[str]) -> None:
        self.app, self.metrics, self.routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count what is answered."""

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in self.routes else "other"
                self.metrics.http_requests.labels(path, message["status"]).inc()
            await send(message)

        await self.app(scope, receive, count)


class RequireHost:
    """ASGI middleware that refuses requests whose Host header names another server (421).

    A page on another site can point its own name at this address (DNS rebinding). To the browser the two are then one
    site, but the Host header still holds the page's name. Accepted are `names` and the address that the connection
    came in at.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app, self.names = app, frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        header = Headers(scope=scope).get("host", "")
        address = scope["server"][0].removeprefix("::ffff:")  # how a socket for IPv6 writes an address of IPv4
        app = self.app
        if _host_of(header) not in self.names | {address}:
            text = f"Host: got {shorten(header)}, which is no name of this server; --allow-host NAME adds one"
            app = show_error(ApiError(HTTPStatus.MISDIRECTED_REQUEST, text))
        await app(scope, receive, send)


def _host_of(header: str) -> str:
    """The host in a Host header, without its port; "" where there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def build_app(engine: EngineProcess, bounds: Bounds) -> ASGIApp:
    """ASGI application of a server; every error, also of routes that do not exist, is in OpenAI's form."""
    routes, page = Routes(engine, bounds), Page()
    listed = [
        Route("/v1/completions", routes.complete, methods=["POST"]),
        Route("/v1/chat/completions", routes.chat, methods=["POST"]),
        Route("/v1/models", routes.models),
        Route("/v1/models/{name}", routes.model),
        Route("/health", routes.health),
        Route("/metrics", routes.metrics),
        Route("/watch", routes.watch),
        Route("/", page.show),
        Route("/page/{name}", page.show),
    ]
    handlers = {ApiError: _tell, HTTPException: _tell_http, ClientDisconnect: _tell_nobody, Exception: _tell_nothing}
    app = Starlette(routes=listed, exception_handlers=handlers)  # type: ignore[arg-type]
    app.router.redirect_slashes = False
    guarded = RequireHost(app, bounds.hosts.union(LOOPBACK))
    return CountResponses(guarded, engine.metrics, frozenset(route.path for route in listed))


async def _tell(request: Request, error: ApiError) -> Response:
    return show_error(error)


async def _tell_http(request: Request, error: HTTPException) -> Response:
    headers = dict(error.headers) if error.headers else None
    return show_error(ApiError(HTTPStatus(error.status_code), error.detail, headers=headers))


async def _tell_nobody(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=HTTPStatus.BAD_REQUEST)


async def _tell_nothing(request: Request, error: Exception) -> Response:
    return show_error(ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "the server made a mistake"))


def _describe(name: str) -> dict[str, object]:
    """Object of a model; an adapter's says of which model it is one, as vLLM has it."""
    parent = {} if name == MODEL else {"parent": MODEL}
    return {"id": name, "object": "model", "created": 0, "owned_by": "mlsys-lab"} | parent
