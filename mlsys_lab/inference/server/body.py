"""Request bodies: JSON, limited in size and time."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import msgspec
from starlette.requests import Request

from mlsys_lab.inference.server.errors import ApiError, bad_request
from mlsys_lab.inference.server.protocol import MAX_PROMPTS

BYTES_PER_TOKEN = 16
"""Bytes of a request for each token of its prompts: more than a token's text or its id take, even escaped as JSON."""
MIN_BODY_BYTES, MAX_BODY_BYTES = 64 * 1024, 32 * 1024**2


def max_body_bytes(max_model_len: int) -> int:
    """Size of the largest body: room for as many prompts as a request may have, of `max_model_len` tokens each."""
    return min(max(MIN_BODY_BYTES, BYTES_PER_TOKEN * max_model_len * MAX_PROMPTS), MAX_BODY_BYTES)


async def read_json(request: Request, *, max_bytes: int, timeout_s: float) -> object:
    """Read and decode the body; ApiError if it is not JSON (415, 400), too large (413) or too slow (408).

    Requiring the content type keeps pages of other sites out: a browser sends JSON across sites only with permission.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        text = f"Content-Type: got {content_type!a}, expected 'application/json'"
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    data = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                data += chunk
                if len(data) > max_bytes:
                    raise _too_large(max_bytes)
    except TimeoutError:
        raise ApiError(HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {timeout_s:g} s") from None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not valid JSON: {error}") from None


def _too_large(max_bytes: int) -> ApiError:
    text = f"the body is too large, expected up to {max_bytes} bytes"
    return ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
