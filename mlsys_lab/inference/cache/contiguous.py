"""Caches with a row of slots for each sequence: one of its full capacity, or a ring buffer that holds a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache.interface import Step
from mlsys_lab.inference.cache.slots import SlotCache
from mlsys_lab.inference.engine.model_runner import KVCache, Slots
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_at_least_one


class Contiguous(SlotCache):
    """Cache with a row of `capacity` slots for each of up to `sequences` sequences, allocated from the start.

    A sequence holds its full row however short it is. InputError if all rows are taken or a row is full.
    """

    def __init__(
        self, model: Transformer, *, sequences: int, capacity: int, kv_cache_class: type[KVCache] = KVCache
    ) -> None:
        require_at_least_one(sequences=sequences, capacity=capacity)
        super().__init__(model, sequences * capacity, kv_cache_class)
        self.capacity = capacity
        self._free = list(range(sequences))[::-1]
        self._rows: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._started = 0

    @property
    def sequences(self) -> list[int]:
        """Numbers of the sequences in the cache, in the order in which they were started."""
        return list(self._lengths)

    def start(self, prompt: Sequence[int] = ()) -> int:
        """Number of a new, empty sequence: this layout shares nothing between prompts."""
        sequence = self._started
        self._open(sequence)
        self._started += 1
        self._lengths[sequence] = 0
        return sequence

    def fork(self, sequence: int) -> int:
        """Number of a new sequence with a copy of the slots of another one."""
        length = self.length(sequence)
        copy = self.start()
        self._lengths[copy] = length
        seen = self.model.oldest_visible(length), length
        self.copy_slots(self.compute_slot_mapping(sequence, *seen), self.compute_slot_mapping(copy, *seen))
        return copy

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens of a sequence; InputError if it is shorter."""
        if not 0 <= length <= self.length(sequence):
            raise InputError("length to cut to", got=length, expected=f"0 to {self.length(sequence)}")
        self._lengths[sequence] = length

    def drop(self, sequence: int) -> None:
        """Remove a sequence and free its row."""
        self.length(sequence)
        self._close(sequence)
        del self._lengths[sequence]

    def length(self, sequence: int) -> int:
        """Number of computed tokens of a sequence; InputError for one that is not in the cache."""
        if sequence not in self._lengths:
            raise InputError("no such sequence in the cache", got=sequence, expected=f"one of {self.sequences}")
        return self._lengths[sequence]

    def commit(self, step: Step) -> None:
        """Count the tokens of a step as computed."""
        for sequence, tokens in step.new.items():
            self._lengths[sequence] += len(tokens)

    def _open(self, sequence: int) -> None:
        """Allocate a row for a new sequence; InputError, with nothing changed, if none is free."""
        if not self._free:
            raise InputError("every row of the cache is taken", got=f"{len(self._rows)} sequences", help="drop one")
        self._rows[sequence] = self._free.pop()

    def _close(self, sequence: int) -> None:
        """Free the row of a sequence."""
        self._free.append(self._rows.pop(sequence))

    def _reserve(self, counts: Mapping[int, int]) -> None:
        for sequence, count in counts.items():
            if self.length(sequence) + count > self.capacity:
                got = f"{self.length(sequence) + count} tokens of sequence {sequence}"
                raise InputError("a row of the cache is full", got=got, expected=f"up to {self.capacity}")

    def compute_slot_mapping(self, sequence: int, first: int, end: int) -> torch.Tensor:
        """Slots of positions `first` to `end` - 1: consecutive in the sequence's row."""
        return self._rows[sequence] * self.capacity + torch.arange(first, end)

    def _slots(self, sequence: int, first: int, end: int) -> Slots:
        start = self._rows[sequence] * self.capacity
        return range(start + first, start + end)

    def _num_slots_held(self) -> int:
        return len(self._rows) * self.capacity


class SlidingWindow(Contiguous):
    """Cache of a model with a sliding window: a ring buffer for each sequence, in which new tokens replace the oldest.

    A ring has window - 1 + `chunk` slots: what the first of `chunk` new tokens attends to before it, and those tokens.
    So the last `chunk` tokens can be removed (`truncate`), because no query attends to what they replaced; InputError
    for more.
    """

    def __init__(
        self, model: Transformer, *, sequences: int, chunk: int, kv_cache_class: type[KVCache] = KVCache
    ) -> None:
        if model.window is None:
            raise InputError("a model without a window of attention", got=model.config.name, help="use Contiguous")
        require_at_least_one(chunk=chunk)
        super().__init__(model, sequences=sequences, capacity=model.window - 1 + chunk, kv_cache_class=kv_cache_class)
        self.chunk = chunk
        self._replaced: dict[int, int] = {}  # by sequence: positions below this have been overwritten

    def fork(self, sequence: int) -> int:
        """Number of a new sequence with a copy of the window of another one."""
        copy = super().fork(sequence)
        self._replaced[copy] = max(self._replaced[sequence], self.model.oldest_visible(self.length(sequence)))
        return copy

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens; InputError if the window before them has been overwritten."""
        oldest = self.model.oldest_visible(length)
        if 0 < length < self.length(sequence) and oldest < self._replaced[sequence]:
            raise InputError(
                "the window before this length has been replaced",
                got=length,
                expected=f"0, or {self._replaced[sequence] + self.capacity - (self.chunk or 0)} and more",
            )
        super().truncate(sequence, length)
        if length == 0:
            self._replaced[sequence] = 0

    def _open(self, sequence: int) -> None:
        super()._open(sequence)
        self._replaced[sequence] = 0

    def _close(self, sequence: int) -> None:
        super()._close(sequence)
        del self._replaced[sequence]

    def _reserve(self, counts: Mapping[int, int]) -> None:
        for sequence, count in counts.items():
            end = self.length(sequence) + count
            self._replaced[sequence] = max(self._replaced[sequence], end - self.capacity)

    def compute_slot_mapping(self, sequence: int, first: int, end: int) -> torch.Tensor:
        """Slots of positions `first` to `end` - 1: around the sequence's ring."""
        return self._rows[sequence] * self.capacity + torch.arange(first, end) % self.capacity

    def _slots(self, sequence: int, first: int, end: int) -> Slots:
        return self.compute_slot_mapping(sequence, first, end)
