"""Memory layout shared by an emulated launch and the program that runs it: launch parameters and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.cuda_cpp.launcher import Argument
from mlsys_lab.kernels.trace.events import Buffer

PAGE_BYTES = 4096
WORDS = 6
"""Words that describe an argument's location."""


@dataclass(frozen=True)
class Part:
    """The part of a kernel's array that a tensor holds; the array may be larger than memory.

    The tensor starts with element `first` of the array. With a `pitch`, rows of a matrix start that many elements
    apart, a multiple of 4096 bytes; with 0, rows are contiguous.
    """

    first: int = 0
    pitch: int = 0


class Memory:
    """Bytes shared with the program: the location of each argument, the launch, then the arguments."""

    def __init__(
        self, launch: Sequence[int], arguments: Sequence[Argument], values: Sequence[Any], parts: Sequence[Part] | None
    ) -> None:
        """Lay out the numbers of `launch` and the `arguments`; `values` are their C values, `parts` the tensors' parts.

        Raises InputError for a pitch that is not a multiple of a page, or of an argument that is not a matrix.
        """
        left = iter(parts or ())
        held = [
            _Argument(one, value, next(left, Part()) if isinstance(one, torch.Tensor) else Part())
            for one, value in zip(arguments, values, strict=True)
        ]
        header_bytes = 8 * (WORDS * len(held) + len(launch))
        end = _round_up(header_bytes, PAGE_BYTES)
        for one in held:
            end = one.place_at(end)
        words = [word for one in held for word in one.words] + list(launch)
        self.given = np.zeros(end, np.uint8)
        self.given[:header_bytes] = np.array(words, np.uint64).view(np.uint8)
        for one in held:
            one.rows_in(self.given)[...] = one.rows
        self._held = held

    def buffers(self, names: Sequence[str]) -> list[Buffer]:
        """The arguments as buffers, by the parameters' `names`; a number is an array without elements."""
        return [one.buffer(name) for one, name in zip(self._held, names, strict=True)]

    def copy_back(self, left: np.ndarray) -> None:
        """Copy the tensors' final contents back from the program's memory."""
        for one in self._held:
            if isinstance(one.argument, torch.Tensor):
                _view_bytes(one.argument).copy_(torch.from_numpy(one.rows_in(left).flatten()))


class _Argument:
    """An argument of a launch: its bytes by rows, (rows, bytes), and their location in the file.

    In the file, each row has a slot of `slot_bytes`, the first starting at `begin`, and starts `offset` into its slot.
    """

    def __init__(self, argument: Argument, value: Any, part: Part) -> None:
        self.argument = argument
        self.begin = self.slot_bytes = self.offset = 0
        if not isinstance(argument, torch.Tensor):
            self.first_bytes = self.pitch_bytes = 0
            self.rows = np.frombuffer(value, np.uint8)[None]
            return
        self.first_bytes, self.pitch_bytes = (argument.element_size() * n for n in (part.first, part.pitch))
        if self.pitch_bytes % PAGE_BYTES or (self.pitch_bytes and argument.ndim != 2):
            got = f"{self.pitch_bytes} bytes for a tensor of shape {tuple(argument.shape)}"
            raise InputError("the pitch of a part", got=got, expected=f"a matrix, and a multiple of {PAGE_BYTES} bytes")
        self.rows = _view_bytes(argument).numpy().reshape(len(argument) if self.pitch_bytes else 1, -1)

    def buffer(self, name: str) -> Buffer:
        """The argument as a buffer for messages."""
        if not isinstance(self.argument, torch.Tensor):
            return Buffer(name, "global", (0,), 1, (1,), initialized=True)
        size = self.argument.element_size()
        strides = [stride * size for stride in self.argument.stride()]
        strides[:1] = [self.pitch_bytes or one for one in strides[:1]]
        return Buffer(name, "global", tuple(self.argument.shape), size, tuple(strides), initialized=True)

    def place_at(self, start: int) -> int:
        """Place the argument in the file at `start` and return its end. Rows keep their offsets within pages."""
        self.begin, self.offset = start, self.first_bytes % PAGE_BYTES
        self.slot_bytes = _round_up(self.offset + self.rows.shape[1], PAGE_BYTES)
        return self.begin + len(self.rows) * self.slot_bytes

    @property
    def words(self) -> tuple[int, ...]:
        """What `runtime.cpp` reads about an argument: its location and row layout in the file and in the array."""
        count, size = self.rows.shape
        return self.begin, size, count, self.slot_bytes, self.pitch_bytes, self.first_bytes

    def rows_in(self, file: np.ndarray) -> np.ndarray:
        """View of the argument's rows in the bytes of the file."""
        count, size = self.rows.shape
        pages = file[self.begin : self.begin + count * self.slot_bytes].reshape(count, self.slot_bytes)
        return pages[:, self.offset : self.offset + size]


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step


def _view_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
