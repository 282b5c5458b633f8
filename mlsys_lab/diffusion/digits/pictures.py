"""Contact sheets of images, written as PNG without an image library."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import torch

from mlsys_lab.errors import InputError


def sheet(images: torch.Tensor, columns: int = 10, *, zoom: int = 6, gap: int = 1) -> torch.Tensor:
    """Arrange images (B, 1, S, S) in [-1, 1] in rows of `columns`: pixels (height, width), uint8, ink black on white.

    Each pixel becomes `zoom` × `zoom`, with `gap` white pixels around an image; values out of range are clipped.
    """
    if images.ndim != 4 or images.shape[1] != 1 or not len(images) or columns < 1:
        raise InputError("not images for a sheet", got=tuple(images.shape), expected="(B, 1, S, S), one or more")
    rows = -(-len(images) // columns)
    framed = torch.nn.functional.pad(images[:, 0].clamp(-1, 1), (gap,) * 4, value=-1.0)
    S = framed.shape[-1]
    cells = framed.new_full((rows * columns, S, S), -1.0)
    cells[: len(images)] = framed
    whole = cells.reshape(rows, columns, S, S).transpose(1, 2).reshape(rows * S, columns * S)
    grey = ((1 - whole) * 127.5).round().to(torch.uint8)
    return grey.repeat_interleave(zoom, 0).repeat_interleave(zoom, 1)


def encode_png(pixels: torch.Tensor) -> bytes:
    """Encode grey pixels (height, width), uint8, as PNG."""
    height, width = pixels.shape
    rows = torch.nn.functional.pad(pixels, (1, 0)).numpy().tobytes()  # each row begins with its filter, 0: none
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = _chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows)), _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def write_png(path: Path, pixels: torch.Tensor) -> None:
    """Write grey pixels (height, width), uint8, as PNG; InputError if the file cannot be written."""
    try:
        path.write_bytes(encode_png(pixels))
    except OSError as error:
        raise InputError("cannot write the picture", got=path, help=error.strerror or str(error)) from None


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
