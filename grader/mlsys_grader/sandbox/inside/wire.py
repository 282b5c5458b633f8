"""Frames between the judge and a submission's process: a JSON header, then the arrays' raw bytes.

    magic  b"MLS1"  |  header length, uint32 little-endian  |  header, UTF-8 JSON  |  array bytes, in the header's order

The header is `{"kind": str, "meta": {...}, "arrays": [[name, dtype, shape], ...]}`. The peer is hostile: every length
is checked against `Limits` before anything is allocated, dtypes come from a short list, and nothing is unpickled or
evaluated. Every wait ends at a deadline (`time.monotonic` seconds).
"""

from __future__ import annotations

import json
import math
import socket
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAGIC = b"MLS1"
PREFIX = struct.Struct("<4sI")
DTYPES = {
    name: np.dtype(name)
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64")
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
NAME_CHARACTERS = 100
CHUNK_BYTES = 1 << 20
"""Bytes read or written at a time."""


class WireError(Exception):
    """The peer broke the protocol: the frame is rejected."""


class TooLargeError(WireError):
    """The arrays of a frame exceed its limit."""


class ClosedError(WireError):
    """The process at the other end is gone."""


class DeadlineError(WireError):
    """The deadline passed before the frame was complete."""


@dataclass(frozen=True)
class Limits:
    """Limits of one frame. Towards the sandbox a header carries the submission's source, back only messages."""

    header_bytes: int = 4 << 20
    array_bytes: int = 256 << 20  # all arrays of the frame together
    arrays: int = 256
    dims: int = 8


@dataclass(frozen=True)
class Frame:
    """One message: its kind, small JSON values, and named arrays."""

    kind: str
    meta: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def send(sock: socket.socket, frame: Frame, *, deadline: float = math.inf) -> None:
    """Write one frame.

    Raises `WireError` for a value that may not cross, `ClosedError` and `DeadlineError` as their names say.
    """
    listed, bodies = [], []
    for name, value in frame.arrays.items():
        array = np.ascontiguousarray(np.asarray(value)) if np.ndim(value) else np.asarray(value)
        if not _is_name(name):
            raise WireError(f"array name {name!r:.100} may not cross the wire")
        dtype = NAMES.get(array.dtype) or array.dtype.name  # the name is slow to get, and differs in byte order only
        if dtype not in DTYPES:
            raise WireError(f"array {name!r} has dtype {array.dtype}, which may not cross the wire")
        listed.append([name, dtype, list(array.shape)])
        bodies.append(array.astype(DTYPES[dtype], copy=False).tobytes())
    header = json.dumps({"kind": frame.kind, "meta": frame.meta, "arrays": listed}, allow_nan=False).encode()
    message = memoryview(b"".join([PREFIX.pack(MAGIC, len(header)), header, *bodies]))
    while message:
        _arm(sock, deadline)
        try:
            message = message[sock.send(message[:CHUNK_BYTES]) :]
        except TimeoutError:
            raise DeadlineError("the other side did not read in time") from None
        except OSError as error:
            raise ClosedError(str(error)) from None


def receive(sock: socket.socket, *, limits: Limits | None = None, deadline: float = math.inf) -> Frame:
    """Read one frame into fresh, writable arrays.

    Raises `WireError` for a malformed or oversized frame, `ClosedError` and `DeadlineError` as their names say.
    """
    limits = limits or Limits()
    magic, length = PREFIX.unpack(_read(sock, PREFIX.size, deadline))
    if magic != MAGIC or length > limits.header_bytes:
        raise WireError("not a frame, or its header is too long")
    kind, meta, listed = _header(bytes(_read(sock, length, deadline)), limits)
    sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape in listed]
    together = (
        _read(sock, sum(sizes), deadline) if sum(sizes) <= CHUNK_BYTES else None
    )  # small arrays: one call for all
    arrays: dict[str, np.ndarray] = {}
    start = 0
    for (name, dtype, shape), size in zip(listed, sizes, strict=True):
        raw = _read(sock, size, deadline) if together is None else together[start : start + size]
        start += size
        if dtype == np.bool_:  # a byte other than 0 and 1 is no bool
            arrays[name] = np.frombuffer(raw, np.uint8).reshape(shape) != 0
        else:
            arrays[name] = np.frombuffer(raw, dtype).reshape(shape)
    return Frame(kind, meta, arrays)


def require_listable(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise `WireError` for more arrays than a frame may hold, or names that may not cross."""
    if len(arrays) > Limits().arrays:
        raise WireError(f"more than {Limits().arrays} arrays")
    if long := [name for name in arrays if not _is_name(name)]:
        raise WireError(f"an array's name is not a line of at most {NAME_CHARACTERS} characters: {long[0]!r:.40}")


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS and name.isprintable()


def _header(raw: bytes, limits: Limits) -> tuple[str, dict[str, Any], list[tuple[str, np.dtype[Any], tuple[int, ...]]]]:
    def refuse(token: str) -> None:
        raise ValueError(token)

    try:
        header = json.loads(raw.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError):
        raise WireError("the header is not JSON") from None
    if not isinstance(header, dict) or set(header) != {"kind", "meta", "arrays"}:
        raise WireError("the header has other fields than kind, meta, arrays")
    kind, meta, arrays = header["kind"], header["meta"], header["arrays"]
    if not isinstance(kind, str) or not isinstance(meta, dict) or not isinstance(arrays, list):
        raise WireError("a field of the header has the wrong type")
    if len(arrays) > limits.arrays:
        raise WireError(f"more than {limits.arrays} arrays")
    listed, total = [], 0
    for entry in arrays:
        name, dtype, shape = _array_entry(entry, limits)
        total += math.prod(shape) * dtype.itemsize
        if total > limits.array_bytes:
            raise TooLargeError(f"more than {limits.array_bytes:,} bytes")
        listed.append((name, dtype, shape))
    if len({name for name, _, _ in listed}) != len(listed):
        raise WireError("an array's name comes twice")
    return kind, meta, listed


def _array_entry(entry: object, limits: Limits) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    if not isinstance(entry, list) or len(entry) != 3:
        raise WireError("an array is listed as [name, dtype, shape]")
    name, dtype, shape = entry
    if not _is_name(name):
        raise WireError(f"an array's name is not a line of at most {NAME_CHARACTERS} characters")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise WireError(f"array {name!r} has a dtype that may not cross the wire")
    if not isinstance(shape, list) or len(shape) > limits.dims:
        raise WireError(f"array {name!r} has more than {limits.dims} dimensions")
    # A zero elsewhere in the shape would hide an absurd extent from the byte count: each is bounded by itself.
    if not all(type(extent) is int and 0 <= extent <= limits.array_bytes for extent in shape):
        raise WireError(f"array {name!r} has an impossible shape")
    # Of an array of no entries NumPy takes the other extents together, and raises where no index could hold that.
    if math.prod(extent or 1 for extent in shape) * DTYPES[dtype].itemsize > sys.maxsize:
        raise WireError(f"array {name!r} has an impossible shape")
    return name, DTYPES[dtype], tuple(shape)


def _read(sock: socket.socket, count: int, deadline: float) -> bytearray:
    buffer = bytearray()
    while len(buffer) < count:
        _arm(sock, deadline)
        try:
            chunk = sock.recv(min(count - len(buffer), CHUNK_BYTES))
        except TimeoutError:
            raise DeadlineError("nothing more came in time") from None
        except OSError as error:
            raise ClosedError(str(error)) from None
        if not chunk:
            raise ClosedError("the connection ended")
        buffer += chunk
    return buffer


def _arm(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineError("the deadline has passed")
    sock.settimeout(None if math.isinf(left) else left)
