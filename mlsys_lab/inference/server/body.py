"""A request's body as JSON: no larger than allowed, no slower than allowed, and said to be JSON."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

from starlette.requests import Request

from mlsys_lab.inference.server.errors import ApiError, bad_request


async def read_json(request: Request, *, most_bytes: int, timeout_s: float) -> object:
    """Read the body; ApiError for another type (415), one too large (413), one too slow (408), and for no JSON (400).

    A page of another site can send JSON only where it is allowed to, which it is not; other types it may send.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        text = f"Content-Type: got {kind!a}, expected 'application/json'"
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) > most_bytes:
        raise _too_large(most_bytes)
    data = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                data += chunk
                if len(data) > most_bytes:
                    raise _too_large(most_bytes)
    except TimeoutError:
        raise ApiError(HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {timeout_s:g} s") from None
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {' '.join(ascii(str(error))[1:-1].split())}") from None


def _too_large(most_bytes: int) -> ApiError:
    text = f"the body is too large, expected up to {most_bytes} bytes"
    return ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, headers={"Connection": "close"})
