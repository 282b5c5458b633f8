"""Caches that keep each token's keys and values in a numbered slot; the layout decides in which.

Dimension letters: Q new tokens of all sequences of a step, R sequences.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache.interface import Cache, Step
from mlsys_lab.inference.engine.model_runner import GatherAttention, KVCache, Slots
from mlsys_lab.models import CachedAttention, Transformer


class SlotCache(Cache):
    """Cache with a slot for each token; a layout is a subclass with `_reserve`, `compute_slot_mapping` and counts."""

    def __init__(self, model: Transformer, num_slots: int, kv_cache_class: type[KVCache] = KVCache) -> None:
        self.model, self.kv_cache = model, kv_cache_class(model, num_slots)

    @abstractmethod
    def _reserve(self, counts: Mapping[int, int]) -> None:
        """Allocate slots for `counts[sequence]` more tokens; InputError, with nothing changed, if they do not fit."""

    @abstractmethod
    def compute_slot_mapping(self, sequence: int, first: int, end: int) -> torch.Tensor:
        """Slots of a sequence's positions `first` to `end` - 1, (end - first,)."""

    @abstractmethod
    def _num_slots_held(self) -> int:
        """Number of slots allocated to sequences."""

    def prepare(self, new: Mapping[int, Sequence[int]]) -> Step:
        """Allocate slots for new tokens, and lay out a forward pass over them."""
        self._check(new)
        new = {sequence: tuple(tokens) for sequence, tokens in new.items()}
        counts = {sequence: len(tokens) for sequence, tokens in new.items()}
        self._reserve(counts)
        device = self.model.embedding.weight.device
        tokens = torch.tensor([token for part in new.values() for token in part])  # (Q,)
        positions = torch.tensor([self.length(s) + i for s, n in counts.items() for i in range(n)])
        last = torch.tensor([end - 1 for end in accumulate(counts.values())])  # (R,)
        attend = self._attention(counts)
        return Step(new, tokens[None].to(device), positions[None].to(device), last.to(device), attend)

    def _attention(self, counts: Mapping[int, int]) -> CachedAttention:
        """Attention of a step with `counts[sequence]` new tokens, whose slots are allocated."""
        spans = {s: (self.model.oldest_visible(self.length(s)), self.length(s) + n) for s, n in counts.items()}
        return GatherAttention(
            self.model,
            self.kv_cache,
            num_new_tokens=list(counts.values()),
            slots=[self._slots(sequence, *span) for sequence, span in spans.items()],
            spans=list(spans.values()),
        )

    def _slots(self, sequence: int, first: int, end: int) -> Slots:
        """Slots of positions `first` to `end` - 1, as a range where a layout knows that they are consecutive."""
        return self.compute_slot_mapping(sequence, first, end)

    @property
    def bytes_held(self) -> int:
        """Bytes of all slots allocated to sequences, over all layers."""
        return self._num_slots_held() * self.kv_cache.slot_bytes

    @property
    def bytes_wasted(self) -> int:
        """Bytes of allocated slots that no next query reads: empty or outside the window; shared slots count once."""
        lengths = {sequence: self.length(sequence) for sequence in self.sequences}
        seen = [
            self.compute_slot_mapping(s, self.model.oldest_visible(length), length) for s, length in lengths.items()
        ]
        used = len({slot for part in seen for slot in part.tolist()})
        return (self._num_slots_held() - used) * self.kv_cache.slot_bytes

    def copy_slots(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy slots (n,) to other slots (n,), in every layer."""
        for tensor in self.kv_cache.tensors:
            tensor[:, :, target] = tensor[:, :, source]

    def _check(self, new: Mapping[int, Sequence[int]]) -> None:
        if not new:
            raise InputError("a step without sequences", expected="new tokens of one or more")
        for sequence, tokens in new.items():
            length, context = self.length(sequence), self.model.config.context
            if not tokens:
                raise InputError(
                    f"no new token of sequence {sequence}: nothing to attend with",
                    help="a prompt that is fully cached needs its last token computed again: truncate by one",
                )
            if length + len(tokens) > context:
                raise InputError(
                    f"sequence {sequence} outgrows the context", got=length + len(tokens), expected=f"up to {context}"
                )
            if self.chunk is not None and len(tokens) > self.chunk:
                raise InputError("too many new tokens for one step", got=len(tokens), expected=f"up to {self.chunk}")
