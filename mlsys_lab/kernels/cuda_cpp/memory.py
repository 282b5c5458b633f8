"""What an emulated launch and the program that runs it share: the launch, its numbers, its tensors between guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.cuda_cpp.launcher import Argument

PAGE_BYTES = 4096
GUARD_BYTES = 4 * PAGE_BYTES
"""Bytes and more around each tensor: pages that nobody may touch, and up to them NaN, so that a read shows there."""
NAN, PAYLOAD = 0x7FC00000, 0x3FFFFF
"""Each four bytes of guards hold a NaN of their own: who copies one over another is seen."""
ALIGNED = 256
"""Tensors begin at multiples of so many bytes, as what CUDA allocates does; the next such is where a page ends."""
EACH = 5
"""Words that tell where an argument lies."""


@dataclass(frozen=True)
class Part:
    """What a tensor holds of a kernel's array, which may be larger than any memory.

    The tensor begins with element `first` of the array. With a `pitch`, each row of a matrix begins so many elements
    after the row before, a multiple of 4096 bytes; with 0, rows follow one another.
    """

    first: int = 0
    pitch: int = 0


class Memory:
    """What a program shares, in bytes: what it may touch, where each argument lies, the launch, then the arguments."""

    def __init__(
        self, launch: Sequence[int], arguments: Sequence[Argument], values: Sequence[Any], parts: Sequence[Part] | None
    ) -> None:
        """Lay out the numbers of `launch` and the `arguments`; `values` are these in C, `parts` those of the tensors.

        Raises InputError for a pitch that is not whole pages, or of what is no matrix.
        """
        left = iter(parts or ())
        held = [
            _Argument(one, value, next(left, Part()) if isinstance(one, torch.Tensor) else Part())
            for one, value in zip(arguments, values, strict=True)
        ]
        ranges = 1 + sum(not one.pitch_bytes for one in held)  # of pages: what stands here first, and the arguments
        header_bytes = 8 * (1 + 2 * ranges + EACH * len(held) + len(launch))
        touched = [0, _round_up(header_bytes, PAGE_BYTES)]
        end = touched[1]
        for one in held:
            end = one.place_after(end)
            touched += [] if one.pitch_bytes else [one.begin // PAGE_BYTES * PAGE_BYTES, end]
        words = [ranges, *touched, *(word % (1 << 64) for one in held for word in one.words), *launch]
        guards = np.arange((end + GUARD_BYTES) // 4, dtype=np.uint32)
        self.given = (NAN + guards % PAYLOAD).view(np.uint8)
        self.given[:header_bytes] = np.array(words, np.uint64).view(np.uint8)
        for one in held:
            one.rows_in(self.given)[...] = one.rows
        self.shapes = " and ".join(str(tuple(one.shape)) for one in arguments if isinstance(one, torch.Tensor))
        self._held = held

    def copy_back(self, kernel: str, left: np.ndarray) -> None:
        """Give tensors what a program has left of them; InputError where it wrote to anything else."""
        outside = left != self.given
        for one in self._held:
            if isinstance(one.argument, torch.Tensor):
                one.rows_in(outside)[...] = False
                _view_bytes(one.argument).copy_(torch.from_numpy(one.rows_in(left).flatten()))
        if outside.any():
            raise InputError(f"{kernel} writes beyond its tensors", expected=f"within those of shape {self.shapes}")


class _Argument:
    """An argument of a launch: its bytes by rows, (rows, bytes), and where they lie in the file.

    There a row has `reach` bytes from `begin` on, or from where the row before ends, and lies `offset` into these.
    """

    def __init__(self, argument: Argument, value: Any, part: Part) -> None:
        self.argument = argument
        self.begin = self.reach = self.offset = 0
        if not isinstance(argument, torch.Tensor):
            self.first_bytes = self.pitch_bytes = 0
            self.rows = np.frombuffer(value, np.uint8)[None]
            return
        self.first_bytes, self.pitch_bytes = (argument.element_size() * n for n in (part.first, part.pitch))
        if self.pitch_bytes % PAGE_BYTES or (self.pitch_bytes and argument.ndim != 2):
            got = f"{self.pitch_bytes} bytes for a tensor of shape {tuple(argument.shape)}"
            raise InputError("the pitch of a part", got=got, expected=f"a matrix, and a multiple of {PAGE_BYTES} bytes")
        self.rows = _view_bytes(argument).numpy().reshape(len(argument) if self.pitch_bytes else 1, -1)

    def place_after(self, end: int) -> int:
        """Take a place in the file after a guard behind `end`, where a page ends; returns where this one ends."""
        size = int(self.rows.shape[1])
        if self.pitch_bytes:  # each row on pages of its own, at its place in its first page
            self.offset = self.first_bytes % PAGE_BYTES
            self.begin, self.reach = end + GUARD_BYTES, _round_up(self.offset + size, PAGE_BYTES)
        else:
            self.reach = _round_up(size, ALIGNED)
            self.begin = _round_up(end + GUARD_BYTES + self.reach, PAGE_BYTES) - self.reach
        return self.begin + len(self.rows) * self.reach

    @property
    def words(self) -> list[int]:
        """Where the file holds it, bytes from there back to the array's first, rows apart from each other, each, pitch.

        The last three are 0 where rows follow one another.
        """
        apart = [len(self.rows), self.reach, self.pitch_bytes] if self.pitch_bytes else [0, 0, 0]
        return [self.begin, self.first_bytes - self.offset, *apart]

    def rows_in(self, file: np.ndarray) -> np.ndarray:
        """View of its rows in the bytes of the file, or in what is known of each of these."""
        count, size = self.rows.shape
        pages = file[self.begin : self.begin + count * self.reach].reshape(count, self.reach)
        return pages[:, self.offset : self.offset + size]


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step


def _view_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
