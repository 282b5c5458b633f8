"""Caches that keep each token's keys and values in a numbered slot: a layout says which, a storage how.

Dimension letters: R sequences of a step, T most new tokens of one of them, S most keys of one of them, Q new tokens of
all together, N query heads, K key/value heads, H head_dim.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional as F

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache.interface import Cache, Step
from mlsys_lab.inference.cache.storage import Slots, Storage, as_range
from mlsys_lab.models import CachedAttention, Transformer
from mlsys_lab.models.positions import score_bias

NO_KEY = 2**31 - 1
"""Position that stands where a sequence has fewer keys than others: after every query, so that none sees it."""


class SlotCache(Cache):
    """Cache with a slot for each token and a subclass, the layout, that says which.

    A layout keeps account of its sequences, and writes `_reserve`, `find_slots` and `_held_slots` besides.
    """

    def __init__(self, model: Transformer, slots: int, storage: type[Storage] = Storage) -> None:
        self.model, self.storage = model, storage(model, slots)

    @abstractmethod
    def _reserve(self, counts: Mapping[int, int]) -> None:
        """Find slots for so many further tokens of sequences; InputError, with nothing changed, without room."""

    @abstractmethod
    def find_slots(self, sequence: int, first: int, end: int) -> torch.Tensor:
        """Slots of a sequence's positions first to end - 1, (end - first,)."""

    @abstractmethod
    def _held_slots(self) -> int:
        """Number of slots that sequences have for themselves."""

    def prepare(self, new: Mapping[int, Sequence[int]]) -> Step:
        """Find slots for new tokens, and lay out a pass over them: one query for each, all keys it may see."""
        self._check(new)
        new = {sequence: tuple(tokens) for sequence, tokens in new.items()}
        counts = {sequence: len(tokens) for sequence, tokens in new.items()}
        self._reserve(counts)
        device = self.model.embedding.weight.device
        tokens = torch.tensor([token for part in new.values() for token in part])  # (Q,)
        queries = self._queries(counts)
        ends = torch.tensor(list(counts.values())).cumsum(0)  # (R,)
        positions = torch.cat(queries)
        return Step(
            new, tokens[None].to(device), positions[None].to(device), (ends - 1).to(device), self._attend(counts)
        )

    def _queries(self, counts: Mapping[int, int]) -> list[torch.Tensor]:
        """Positions of so many new tokens of sequences, (count,) each."""
        return [torch.arange(self.length(s), self.length(s) + count) for s, count in counts.items()]

    def _attend(self, counts: Mapping[int, int]) -> CachedAttention:
        """Attention of a step with so many new tokens of sequences, for which slots are reserved."""
        device, queries = self.model.embedding.weight.device, self._queries(counts)
        keys = [torch.arange(self.find_oldest(int(places[0])), int(places[-1]) + 1) for places in queries]
        slots = [
            self.find_slots(sequence, int(places[0]), int(places[-1]) + 1)
            for sequence, places in zip(counts, keys, strict=True)
        ]
        return StepAttention(
            self.storage,
            self.model,
            counts=tuple(counts.values()),
            slots=slots,
            queries=_pad(queries, 0).to(device),
            keys=_pad(keys, NO_KEY).to(device),
        )

    @property
    def bytes_held(self) -> int:
        """Bytes of all slots that sequences have for themselves, over all layers."""
        return self._held_slots() * self.storage.slot_bytes

    @property
    def bytes_wasted(self) -> int:
        """Bytes of slots held that no next query will see: empty, or behind the window; a shared slot counts once."""
        lengths = {sequence: self.length(sequence) for sequence in self.sequences}
        seen = [self.find_slots(sequence, self.find_oldest(length), length) for sequence, length in lengths.items()]
        used = len({slot for part in seen for slot in part.tolist()})
        return (self._held_slots() - used) * self.storage.slot_bytes

    def find_oldest(self, position: int) -> int:
        """First position that a query at `position` sees."""
        return 0 if self.model.window is None else max(0, position - self.model.window + 1)

    def _check(self, new: Mapping[int, Sequence[int]]) -> None:
        if not new:
            raise InputError("a step without sequences", expected="new tokens of one or more")
        for sequence, tokens in new.items():
            length, context = self.length(sequence), self.model.config.context
            if not tokens:
                raise InputError(
                    f"no new token of sequence {sequence}: nothing to attend with",
                    help="a prompt that is wholly cached needs its last token fed again: truncate by one",
                )
            if length + len(tokens) > context:
                raise InputError(
                    f"sequence {sequence} outgrows the context", got=length + len(tokens), expected=f"up to {context}"
                )
            if self.chunk is not None and len(tokens) > self.chunk:
                raise InputError("too many new tokens for one step", got=len(tokens), expected=f"up to {self.chunk}")


class StepAttention:
    """Attention of one step: writes new keys and values, gathers all that are seen, attends; a `CachedAttention`.

    A pass brings queries packed, (1, N, Q, H). They are laid out in rows by sequence, (R, N, T, H), for one call of
    torch's attention over all sequences; places where a row is shorter are masked, and their results left behind. The
    queries of the N/K heads that share keys are rows of one head there, so that no key is copied for each.
    """

    def __init__(
        self,
        storage: Storage,
        model: Transformer,
        *,
        counts: tuple[int, ...],
        slots: list[torch.Tensor],
        queries: torch.Tensor,
        keys: torch.Tensor,
    ) -> None:
        self.storage, self.scale = storage, model.config.head_dim**-0.5
        self.R, self.T = queries.shape
        weight, slopes = model.embedding.weight, model.slopes()
        written = torch.cat([part[-count:] for part, count in zip(slots, counts, strict=True)])
        self.slots: Slots = _pad(slots, 0).to(weight.device)  # (R, S)
        self.written: Slots = written.to(weight.device)  # (Q,)
        if self.R == 1 and (in_a_row := as_range(slots[0])):  # then they need not be copied
            self.slots, self.written = in_a_row, in_a_row[-counts[0] :]
        alike = len({len(part) for part in slots}) == 1
        self.bias: torch.Tensor | None = None
        if self.T > 1 or not alike or slopes is not None:  # else each query sees all keys of its row
            bias = score_bias(queries, keys, weight, slopes=slopes, window=model.window)  # (R, N or 1, T, S)
            K = 1 if model.config.latent else model.config.n_kv_heads
            group = model.config.n_heads // K
            if slopes is None:
                bias, K = bias.expand(-1, group, -1, -1), 1
            self.bias = bias.reshape(self.R, K, group * self.T, -1)  # (R, K or 1, N/K·T, S)
        self.row = self.column = None  # of each new token (Q,), where rows differ in length
        if len(set(counts)) > 1:
            rows = torch.repeat_interleave(torch.arange(self.R), torch.tensor(counts))
            self.row = rows.to(weight.device)
            self.column = torch.cat([torch.arange(count) for count in counts]).to(weight.device)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend in a layer: q (1, N, Q, H), k and v (1, K, Q, H) -> (1, N, Q, H), H of the values."""
        self.storage.write(layer, self.written, k[0].transpose(0, 1), v[0].transpose(0, 1))  # (Q, K, H) each
        R, T, N, K = self.R, self.T, q.shape[1], k.shape[1]
        keys, values = (
            x.view(R, -1, *x.shape[-2:]).transpose(1, 2)  # (R, K, S, H)
            for x in self.storage.read(layer, self.slots)
        )
        rows = self._lay_out(q[0].transpose(0, 1)).transpose(1, 2)  # (R, N, T, H)
        heads = F.scaled_dot_product_attention(
            rows.reshape(R, K, N // K * T, -1), keys, values, attn_mask=self.bias, scale=self.scale
        )  # (R, K, N/K·T, H)
        return self._pack(heads.reshape(R, N, T, -1).transpose(1, 2)).transpose(0, 1)[None]

    def _lay_out(self, packed: torch.Tensor) -> torch.Tensor:
        """Rows of new tokens by sequence, filled up with zeros: (Q, ...) -> (R, T, ...)."""
        if self.row is None:
            return packed.reshape(self.R, self.T, *packed.shape[1:])
        rows = packed.new_zeros(self.R, self.T, *packed.shape[1:])
        rows[self.row, self.column] = packed
        return rows

    def _pack(self, rows: torch.Tensor) -> torch.Tensor:
        """New tokens side by side, without what filled the rows up: (R, T, ...) -> (Q, ...)."""
        return rows.flatten(0, 1) if self.row is None else rows[self.row, self.column]


def _pad(rows: list[torch.Tensor], filling: int) -> torch.Tensor:
    """Stack rows of different lengths, filled up at their ends: (R, longest)."""
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filling)
