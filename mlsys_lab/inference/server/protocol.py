"""Requests in OpenAI's form, checked field by field: what is asked of the engine, and how it is to be sent.

A field that would change the answer and is not offered is an error, never ignored. `null` is as good as absent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from mlsys_lab.inference.server.errors import ApiError, bad_request
from mlsys_lab.inference.server.messages import GenerateRequest

MODEL = "mlsys-lab-target"
"""Name of the model that is served."""
MOST_TEXTS, MOST_STOPS, MOST_STOP_CHARACTERS, MOST_SHOWN = 8, 4, 100, 40
MOST_TOKENS = 2**31 - 1
"""Largest number of tokens, and largest token id, that is looked at: more digits than its are never echoed."""
COMPLETION_TOKENS = 16
"""Tokens of a completion that names no number, as OpenAI has it; a chat takes what room there is."""
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
"""Fields that are not offered, with the one value that asks for nothing."""
SILENT = ("metadata", "store", "user")
"""Fields that change no answer."""


@dataclass(frozen=True)
class Wanted:
    """A request: what to ask the engine, whether a chat, as a stream or whole, a stream with or without usage."""

    ask: GenerateRequest
    chat: bool
    stream: bool
    include_usage: bool


class Fields:
    """Fields of a JSON object that have not been read yet; ApiError where the body is none."""

    def __init__(self, body: object) -> None:
        if not isinstance(body, dict):
            raise bad_request("the body is no JSON object")
        self.left = {name: value for name, value in body.items() if value is not None}

    def take(self, name: str, check: Callable[[Any], bool], expected: str) -> Any:
        """Value of a field, None where it is absent; ApiError where the check says no."""
        value = self.left.pop(name, None)
        if value is not None and not check(value):
            raise bad_request(f"{name}: got {shorten(value)}, expected {expected}", name)
        return value

    def need(self, name: str, check: Callable[[Any], bool], expected: str) -> Any:
        """Value of a field that must be there."""
        value = self.take(name, check, expected)
        if value is None:
            raise bad_request(f"{name} is missing, expected {expected}", name)
        return value

    def end(self) -> None:
        """Raise ApiError for a field that nobody has read, unless it asks for nothing."""
        for name, value in self.left.items():
            if name in NEUTRAL and value != NEUTRAL[name]:
                raise bad_request(f"{name} is not offered: got {shorten(value)}", name)
            if name not in NEUTRAL and name not in SILENT:
                raise bad_request(f"unknown field: got {shorten(name)}")


def read_completion(body: object, adapters: Collection[str] = ()) -> Wanted:
    """Request of `/v1/completions` where these adapters are served too; ApiError for a body that is none."""
    fields = Fields(body)
    prompt = fields.need("prompt", _is_prompt, "one prompt: text, or a list of token ids")
    logprobs = fields.take("logprobs", _whole(0, 0), "0: of the tokens written, of no others")
    most = fields.take("max_tokens", *_AT_LEAST_ONE)
    ask = GenerateRequest(0, prompt=prompt, max_tokens=most or COMPLETION_TOKENS, logprobs=logprobs is not None)
    return _read_common(fields, ask, adapters, chat=False)


def read_chat(body: object, adapters: Collection[str] = ()) -> Wanted:
    """Request of `/v1/chat/completions` where these adapters are served too; ApiError for a body that is none."""
    fields = Fields(body)
    messages = fields.need("messages", _is_conversation, "a list of objects with role and content, both text")
    logprobs = fields.take("logprobs", _is_flag, "true or false")
    fields.take("top_logprobs", _whole(0, 0), "0: of the tokens written, of no others")
    older, newer = (fields.take(name, *_AT_LEAST_ONE) for name in ("max_tokens", "max_completion_tokens"))
    turns = [(message["role"], message["content"]) for message in messages]
    ask = GenerateRequest(0, messages=turns, max_tokens=older if newer is None else newer, logprobs=bool(logprobs))
    return _read_common(fields, ask, adapters, chat=True)


def no_model(model: str, adapters: Collection[str]) -> ApiError:
    """Error 404 of a model that is neither the one that is served nor one of its adapters."""
    expected = ", ".join(ascii(name) for name in (MODEL, *adapters))
    text = f"no such model: got {shorten(model)}, expected {'one of ' if adapters else ''}{expected}"
    return ApiError(HTTPStatus.NOT_FOUND, text, param="model", code="model_not_found")


def _read_common(fields: Fields, ask: GenerateRequest, adapters: Collection[str], *, chat: bool) -> Wanted:
    model = fields.need("model", lambda value: isinstance(value, str), f"{MODEL!r}")
    if model != MODEL and model not in adapters:
        raise no_model(model, adapters)
    temperature = fields.take("temperature", lambda value: _is_number(value) and 0 <= value <= 2, "0 to 2")
    stop = fields.take(
        "stop", _is_stop, f"a string or up to {MOST_STOPS} of 1 to {MOST_STOP_CHARACTERS} characters each"
    )
    stream = fields.take("stream", _is_flag, "true or false")
    options = fields.take("stream_options", _is_stream_options, "an object with include_usage, true or false")
    ask = replace(
        ask,
        adapter=None if model == MODEL else model,
        n=fields.take("n", _whole(1, MOST_TEXTS), f"1 to {MOST_TEXTS}") or 1,
        temperature=1.0 if temperature is None else float(temperature),
        top_p=fields.take("top_p", lambda value: _is_number(value) and 0 < value <= 1, "above 0, at most 1"),
        seed=fields.take("seed", _whole(0, 2**63 - 1), "a whole number from 0, of 63 bits"),
        stop=[stop] if isinstance(stop, str) else stop or [],
    )
    fields.end()
    return Wanted(ask, chat, bool(stream), bool((options or {}).get("include_usage")))


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


_AT_LEAST_ONE = (_whole(1, MOST_TOKENS), f"a whole number, 1 to {MOST_TOKENS}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_prompt(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and bool(value) and all(map(_whole(0, MOST_TOKENS), value))
    )


def _is_conversation(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(message, dict)
        and message.keys() <= {"role", "content", "name"}
        and all(isinstance(message.get(key), str) for key in ("role", "content"))
        for message in value
    )


def _is_stop(value: object) -> bool:
    stops = [value] if isinstance(value, str) else value
    return (
        isinstance(stops, list)
        and len(stops) <= MOST_STOPS
        and all(isinstance(stop, str) and 1 <= len(stop) <= MOST_STOP_CHARACTERS for stop in stops)
    )


def _is_stream_options(value: object) -> bool:
    return isinstance(value, dict) and value.keys() <= {"include_usage"} and all(map(_is_flag, value.values()))


def shorten(value: object) -> str:
    """What a client sent, as Python writes it, on one line and not for long."""
    text = ascii(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
