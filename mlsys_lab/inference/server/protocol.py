"""Requests in OpenAI's format, validated field by field.

A field that would change the answer and is not supported is an error, never ignored. `null` counts as absent.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from msgspec import Meta, Struct, ValidationError, convert, field, structs

from mlsys_lab.inference.server.errors import ApiError, bad_request
from mlsys_lab.inference.server.messages import GenerateRequest

MODEL = "mlsys-lab-target"
"""Name of the model that is served."""
MAX_N, MAX_STOPS, MAX_STOP_CHARACTERS, MAX_ECHOED_CHARACTERS = 8, 4, 100, 40
MAX_TOKENS = 2**31 - 1
"""Largest `max_tokens`, and largest token id."""
NEUTRAL: dict[str, object] = {
    "best_of": 1,
    "echo": False,
    "frequency_penalty": 0,
    "logit_bias": {},
    "presence_penalty": 0,
    "response_format": {"type": "text"},
    "suffix": "",
    "tools": [],
}
"""Unsupported fields, each with the one value that changes nothing."""
IGNORED = ("metadata", "store", "user")
"""Fields that change no answer."""

Flag = Annotated[bool, Meta(description="true or false")]
NoAlternatives = Annotated[int, Meta(ge=0, le=0, description="0: no alternative tokens")] | None
TokenCount = Annotated[int, Meta(ge=1, le=MAX_TOKENS, description=f"a whole number, 1 to {MAX_TOKENS}")] | None
TokenIds = Annotated[list[Annotated[int, Meta(ge=0, le=MAX_TOKENS)]], Meta(min_length=1)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopStrings = Annotated[
    StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)],
    Meta(description=f"a string or up to {MAX_STOPS}, of 1 to {MAX_STOP_CHARACTERS} characters each"),
]


class ChatMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a conversation."""

    role: str
    content: str
    name: Any = None


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool = False


class ApiRequest(Struct, frozen=True, kw_only=True):
    """Fields of completions and chats; a field's description is what its error message says was expected."""

    model: Annotated[str, Meta(description=f"{MODEL!r}")]
    n: Annotated[int, Meta(ge=1, le=MAX_N, description=f"1 to {MAX_N}")] = 1
    temperature: Annotated[float, Meta(ge=0, le=2, description="0 to 2")] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1, description="above 0, at most 1")] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="a whole number from 0, of 63 bits")] | None = None
    stop: StopStrings = field(default_factory=list)
    stream: Flag = False
    stream_options: Annotated[StreamOptions, Meta(description="an object with include_usage, true or false")] = (
        StreamOptions()
    )

    def to_engine(self) -> GenerateRequest:
        """Request for the engine, which gives it its id."""
        raise NotImplementedError

    def _sampling(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "adapter": None if self.model == MODEL else self.model,
        }


class CompletionRequest(ApiRequest, frozen=True, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: Annotated[str | TokenIds, Meta(description="one prompt: text, or a list of token ids")]
    max_tokens: TokenCount = 16
    logprobs: NoAlternatives = None

    def to_engine(self) -> GenerateRequest:
        """Request for the engine, which gives it its id."""
        has_logprobs = self.logprobs is not None
        return GenerateRequest(0, self.prompt, None, self.max_tokens, logprobs=has_logprobs, **self._sampling())


class ChatCompletionRequest(ApiRequest, frozen=True, kw_only=True):
    """Body of `/v1/chat/completions`; `max_completion_tokens` is the newer name of `max_tokens`."""

    messages: Annotated[list[ChatMessage], Meta(description="a list of objects with role and content, both text")]
    max_tokens: TokenCount = None
    max_completion_tokens: TokenCount = None
    logprobs: Flag = False
    top_logprobs: NoAlternatives = None

    def to_engine(self) -> GenerateRequest:
        """Request for the engine, which gives it its id."""
        messages = [(message.role, message.content) for message in self.messages]
        max_tokens = self.max_completion_tokens or self.max_tokens
        return GenerateRequest(0, None, messages, max_tokens, logprobs=self.logprobs, **self._sampling())


R = TypeVar("R", bound=ApiRequest)


def parse_request(body: object, request_type: type[R], adapters: Collection[str] = ()) -> R:
    """Validate a body; ApiError that names the first invalid field, or a model that is not served."""
    if not isinstance(body, dict):
        raise bad_request("the body is not a JSON object")
    fields = {name: value for name, value in body.items() if value is not None}
    hints = get_type_hints(request_type, include_extras=True)
    for name, value in fields.items():
        if name in hints:
            try:
                convert(value, hints[name])
            except ValidationError:
                message = f"{name}: got {shorten(value)}, expected {_expected(hints[name])}"
                raise bad_request(message, name) from None
        elif name in NEUTRAL:
            if value != NEUTRAL[name]:
                raise bad_request(f"{name} is not supported: got {shorten(value)}", name)
        elif name not in IGNORED:
            raise bad_request(f"unknown field: got {shorten(name)}")
    for info in structs.fields(request_type):
        if info.required and info.name not in fields:
            raise bad_request(f"{info.name} is missing, expected {_expected(hints[info.name])}", info.name)
    request = convert(fields, request_type)
    if request.model != MODEL and request.model not in adapters:
        raise model_not_found(request.model, adapters)
    return request


def _expected(hint: Any) -> str:
    """Description of an annotated type, which may be optional."""
    annotated = hint if hasattr(hint, "__metadata__") else get_args(hint)[0]
    return str(annotated.__metadata__[0].description)


def model_not_found(model: str, adapters: Collection[str]) -> ApiError:
    """Error 404: neither the model that is served nor one of its adapters."""
    expected = ", ".join(ascii(name) for name in (MODEL, *adapters))
    text = f"no such model: got {shorten(model)}, expected {'one of ' if adapters else ''}{expected}"
    return ApiError(HTTPStatus.NOT_FOUND, text, param="model", code="model_not_found")


def shorten(value: object) -> str:
    """Representation of a value that a client sent: ASCII, on one line, cut to `MAX_ECHOED_CHARACTERS`."""
    text = ascii(value)
    return text if len(text) <= MAX_ECHOED_CHARACTERS else f"{text[:MAX_ECHOED_CHARACTERS]}…"
