"""The ASGI application: OpenAI's routes, those for monitoring, and the page."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
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

from mlsys_lab.errors import InputError
from mlsys_lab.inference.server.body import max_body_bytes, read_json
from mlsys_lab.inference.server.engine_process import EngineProcess
from mlsys_lab.inference.server.errors import ApiError, bad_request
from mlsys_lab.inference.server.images.process import ImageProcess
from mlsys_lab.inference.server.images.protocol import IMAGE_MODEL, ImageRequest
from mlsys_lab.inference.server.metrics import Metrics
from mlsys_lab.inference.server.page import Page
from mlsys_lab.inference.server.protocol import (
    ApiRequest,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    model_not_found,
    parse_request,
    shorten,
)
from mlsys_lab.inference.server.response import GenerationResponse, JSONResponse, error_response, event_stream
from mlsys_lab.inference.server.response_objects import ResponseBuilder
from mlsys_lab.inference.text.interface import ChatTokenizer

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class AccessConfig:
    """Limits for clients in seconds, the API key (None: no key needed) and allowed Host headers.

    Loopback names and the address of the connection are always allowed hosts.
    """

    body_timeout_s: float
    request_timeout_s: float
    api_key: str | None
    allowed_hosts: frozenset[str] = frozenset()


class Handlers:
    """Handlers of the routes."""

    def __init__(
        self, engine: EngineProcess, images: ImageProcess, access: AccessConfig, model: str, tokenizer: ChatTokenizer
    ) -> None:
        self.engine, self.images, self.access, self.tokenizer = engine, images, access, tokenizer
        self.models = (model, *engine.engine_args.adapters)
        self.created = int(time.time())
        # One thread: more would take the interpreter's lock from the streams, and make nothing faster.
        self.encoder = ThreadPoolExecutor(1)

    async def create_completion(self, request: Request) -> ASGIApp:
        """Continue a prompt."""
        return await self._generate(request, CompletionRequest)

    async def create_chat_completion(self, request: Request) -> ASGIApp:
        """Answer a conversation."""
        return await self._generate(request, ChatCompletionRequest)

    async def generate_images(self, request: Request) -> Response:
        """Images of a digit."""
        self._require_key(request)
        parsed = parse_request(await self._read(request), ImageRequest, (IMAGE_MODEL,))
        self.engine.require_ready()
        images = await self.images.generate(parsed.to_worker(), self.access.request_timeout_s)
        return JSONResponse({"created": int(time.time()), "data": [{"b64_json": one} for one in images]})

    async def list_models(self, request: Request) -> Response:
        """List the model, its adapters, and the model of images."""
        self._require_key(request)
        names = (*self.models, IMAGE_MODEL)
        return JSONResponse({"object": "list", "data": [self._model_object(name) for name in names]})

    async def retrieve_model(self, request: Request) -> Response:
        """Describe a model or an adapter."""
        self._require_key(request)
        name = request.path_params["name"]
        if name not in (*self.models, IMAGE_MODEL):
            raise model_not_found(name, (*self.models, IMAGE_MODEL))
        return JSONResponse(self._model_object(name))

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or a conversation, as vLLM's route of this name."""
        self._require_key(request)
        (tokens,) = await self._encode(parse_request(await self._read(request), TokenizeRequest, self.models))
        return JSONResponse({"count": len(tokens), "max_model_len": self.engine.max_model_len, "tokens": tokens})

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids, as vLLM's route of this name."""
        self._require_key(request)
        parsed = parse_request(await self._read(request), DetokenizeRequest, self.models)
        try:
            text = b"".join(map(self.tokenizer.token_bytes, parsed.tokens))
        except InputError as error:
            raise bad_request(str(error), "tokens") from None
        return JSONResponse({"prompt": text.decode(errors="replace")})

    async def health(self, request: Request) -> Response:
        """Report the status: 200 if requests are accepted, else 503."""
        self._require_key(request)
        status = self.engine.status
        return JSONResponse({"status": status}, HTTPStatus.OK if status == "ready" else HTTPStatus.SERVICE_UNAVAILABLE)

    async def metrics(self, request: Request) -> Response:
        """Export all metrics in Prometheus' format."""
        self._require_key(request)
        return Response(self.engine.metrics.render(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def watch(self, request: Request) -> ASGIApp:
        """Stream snapshots of the engine."""
        self._require_key(request)
        self.engine.require_watchable()
        return event_stream(self.engine.watchers.events())

    async def _generate(self, request: Request, request_type: type[ApiRequest]) -> ASGIApp:
        self._require_key(request)
        parsed = parse_request(await self._read(request), request_type, self.models)
        self.engine.require_ready()
        prompts = await self._encode(parsed)
        generated = parsed.to_engine(prompts, None if parsed.model == self.models[0] else parsed.model)
        builder = ResponseBuilder(parsed, generated, self.tokenizer)
        return GenerationResponse(self.engine.submit(generated), builder, self.access.request_timeout_s)

    async def _read(self, request: Request) -> object:
        access = self.access
        return await read_json(
            request, max_bytes=max_body_bytes(self.engine.max_model_len), timeout_s=access.body_timeout_s
        )

    async def _encode(self, request: ApiRequest | TokenizeRequest) -> list[list[int]]:
        """Token ids of a request's prompts, in a thread, so that other requests and the engine go on meanwhile."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.encoder, request.encode, self.tokenizer)
        except InputError as error:
            raise bad_request(str(error)) from None

    def _model_object(self, name: str) -> dict[str, object]:
        """Object of a model; as in vLLM, a language model's has its `max_model_len`, and an adapter's its `parent`."""
        extra: dict[str, object] = {} if name == IMAGE_MODEL else {"max_model_len": self.engine.max_model_len}
        if name in self.engine.engine_args.adapters:
            extra["parent"] = self.models[0]
        return {"id": name, "object": "model", "created": self.created, "owned_by": "mlsys-lab"} | extra

    def _require_key(self, request: Request) -> None:
        if self.access.api_key is None:
            return
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.access.api_key}".encode()):
            text = "invalid API key: expected the header 'Authorization: Bearer KEY'"
            raise ApiError(HTTPStatus.UNAUTHORIZED, text, code="invalid_api_key")


class CountResponses:
    """ASGI middleware that counts responses by route and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: frozenset[str]) -> None:
        self.app, self.metrics, self.routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the response to a request."""

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in self.routes else "other"
                self.metrics.http_requests.labels(path, message["status"]).inc()
            await send(message)

        await self.app(scope, receive, count)


class RequireHost:
    """ASGI middleware that rejects requests whose Host header names another server (421).

    A page on another site can point its own name at this address (DNS rebinding). The browser then takes both for the
    same site, but the Host header still holds the page's name. Allowed are `hosts` and the address of the connection.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self.app, self.hosts = app, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it."""
        header = Headers(scope=scope).get("host", "")
        address = scope["server"][0].removeprefix("::ffff:")  # an IPv6 socket's notation of an IPv4 address
        app = self.app
        if _host_of(header) not in self.hosts | {address}:
            text = f"Host: got {shorten(header)}, which is not a name of this server; help: --allow-host NAME adds one"
            app = error_response(ApiError(HTTPStatus.MISDIRECTED_REQUEST, text))
        await app(scope, receive, send)


def _host_of(header: str) -> str:
    """Host in a Host header, without its port; "" if there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def build_app(
    engine: EngineProcess, images: ImageProcess, access: AccessConfig, model: str, tokenizer: ChatTokenizer
) -> ASGIApp:
    """Build the ASGI application of a model by this name; every error is in OpenAI's format, unknown routes' too."""
    handlers, page = Handlers(engine, images, access, model, tokenizer), Page()
    routes = [
        Route("/v1/completions", handlers.create_completion, methods=["POST"]),
        Route("/v1/chat/completions", handlers.create_chat_completion, methods=["POST"]),
        Route("/v1/images/generations", handlers.generate_images, methods=["POST"]),
        Route("/v1/models", handlers.list_models),
        Route("/v1/models/{name}", handlers.retrieve_model),
        Route("/tokenize", handlers.tokenize, methods=["POST"]),
        Route("/detokenize", handlers.detokenize, methods=["POST"]),
        Route("/health", handlers.health),
        Route("/metrics", handlers.metrics),
        Route("/watch", handlers.watch),
        Route("/", page.send_file),
        Route("/page/{name}", page.send_file),
    ]
    kinds = (ApiError, HTTPException, ClientDisconnect, Exception)
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, _handle_error))
    app.router.redirect_slashes = False
    guarded = RequireHost(app, access.allowed_hosts.union(LOOPBACK_HOSTS))
    return CountResponses(guarded, engine.metrics, frozenset(route.path for route in routes))


async def _handle_error(request: Request, error: Exception) -> Response:
    match error:
        case ApiError():
            return error_response(error)
        case HTTPException():
            headers = dict(error.headers) if error.headers else None
            return error_response(ApiError(HTTPStatus(error.status_code), error.detail, headers=headers))
        case ClientDisconnect():
            return Response(status_code=HTTPStatus.BAD_REQUEST)  # which the client does not receive
    return error_response(ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal server error"))
