"""The model runner: the KV cache, attention over its blocks, and one forward pass over a ragged batch.

Dimension letters: R sequences of a step, T the largest number of new tokens of a sequence, S the largest number of keys
of a sequence, Q new tokens of all sequences, L layers, N query heads, K key/value heads, H head_dim, V vocabulary. A
slot is the memory of one token: slot `block * block_size + offset`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from mlsys_lab.inference.engine.scheduler import SchedulerOutput

if TYPE_CHECKING:
    from mlsys_lab.models import CachedAttention, Transformer

PAD_POSITION = 2**31 - 1
"""Position of padding among the keys: after every query, so that no query attends to it."""

Slots = torch.Tensor | range
"""Slot numbers of any shape; a range for slots (n,) that are consecutive in memory."""


class KVCache:
    """Keys and values of every layer, by slot, in the model's dtype.

    Latent attention keeps one vector for all heads: it is their key, and its first `kv_rank` numbers are their value.
    """

    dtype: ClassVar[torch.dtype | None] = None
    """Dtype of the stored numbers, None for the model's."""

    def __init__(self, model: Transformer, num_slots: int) -> None:
        c, weight = model.config, model.embedding.weight
        sides, num_heads, width, self.v_head_dim = 2, c.n_kv_heads, c.head_dim, c.head_dim
        if c.latent is not None:
            sides, num_heads, width, self.v_head_dim = 1, 1, c.latent.kv_rank + c.latent.rope_dim, c.latent.kv_rank
        shape = (sides, c.n_layers, num_slots, num_heads, width)
        # Zeros, because a masked slot that was never written must not hold a NaN: 0 · NaN is NaN.
        self.kv = torch.zeros(shape, dtype=self.dtype or weight.dtype, device=weight.device)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot: a token's keys and values in all layers."""
        return sum(tensor[:, :, 0].numel() * tensor.element_size() for tensor in self.tensors)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors that hold the slots: (2, L, slots, ...), or (1, L, slots, ...) for latent attention."""
        return [self.kv]

    def store(self, layer: int, slots: Slots, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store keys and values (..., K, H) of one layer in slots (...)."""
        for kv, x in zip(self.kv[:, layer], (k, v), strict=False):
            write_slots(kv, slots, x)

    def load(self, layer: int, slots: Slots) -> tuple[torch.Tensor, torch.Tensor]:
        """Load (keys, values) of one layer from slots (...): each (..., K, H), in the model's dtype."""
        keys, *values = (self._load_one(kv_index, layer, slots) for kv_index in range(len(self.kv)))
        return keys, values[0] if values else keys[..., : self.v_head_dim]

    def _load_one(self, kv_index: int, layer: int, slots: Slots) -> torch.Tensor:
        """Keys (`kv_index` 0) or values (1)."""
        return read_slots(self.kv[kv_index, layer], slots)


def read_slots(tensor: torch.Tensor, slots: Slots) -> torch.Tensor:
    """Rows of (slots, ...); a view for a range, else a copy by `index_select`, faster than `tensor[slots]`."""
    if isinstance(slots, range):
        return tensor[slots.start : slots.stop]
    return tensor.index_select(0, slots.flatten()).view(*slots.shape, *tensor.shape[1:])


def write_slots(tensor: torch.Tensor, slots: Slots, rows: torch.Tensor) -> None:
    """Overwrite rows of (slots, ...)."""
    tensor[slice(slots.start, slots.stop) if isinstance(slots, range) else slots] = rows


def compute_slot_mapping(block_table: Sequence[int], block_size: int, first: int, end: int) -> torch.Tensor:
    """Slots of a sequence's positions `first` to `end` - 1, (end - first,)."""
    first_block = first // block_size
    blocks = torch.tensor(block_table[first_block : -(-end // block_size)], dtype=torch.int64)
    slots = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()
    return slots[first - first_block * block_size : end - first_block * block_size]


def find_slots(block_table: Sequence[int], block_size: int, first: int, end: int) -> Slots:
    """Slots of a sequence's positions `first` to `end` - 1, as a range if its blocks are consecutive in memory."""
    first_block = first // block_size
    blocks = block_table[first_block : -(-end // block_size)]
    if list(blocks) != list(range(blocks[0], blocks[0] + len(blocks))):
        return compute_slot_mapping(block_table, block_size, first, end)
    shift = (blocks[0] - first_block) * block_size
    return range(first + shift, end + shift)


class GatherAttention:
    """`CachedAttention` of one step that gathers the keys and values of each sequence into a padded row.

    Queries come packed, (1, N, Q, H), and are padded to rows by sequence, (R, N, T, H), for one call of torch's
    attention. The queries of the N/K heads that share a KV head become rows of one head, so that no key is copied.
    A single sequence whose slots are consecutive is read as a view. `slots` and `spans`, positions from the first to
    before the end, include each sequence's new tokens, which are the last `num_new_tokens`.
    """

    def __init__(
        self,
        model: Transformer,
        kv_cache: KVCache,
        *,
        num_new_tokens: Sequence[int],
        slots: Sequence[Slots],
        spans: Sequence[tuple[int, int]],
    ) -> None:
        self.kv_cache, self.scale = kv_cache, model.config.head_dim**-0.5
        device, is_alibi = model.embedding.weight.device, model.config.position == "alibi"
        self.num_seqs, self.max_query_len = len(spans), max(num_new_tokens)
        self.slots: Slots  # (R, S)
        self.slot_mapping: Slots  # (Q,)
        if self.num_seqs == 1 and isinstance(slots[0], range):
            self.slots, self.slot_mapping = slots[0], slots[0][-num_new_tokens[0] :]
        else:
            parts = [torch.arange(part.start, part.stop) if isinstance(part, range) else part for part in slots]
            self.slots = _stack_padded(parts, 0).to(device)
            self.slot_mapping = torch.cat([part[-n:] for part, n in zip(parts, num_new_tokens, strict=True)]).to(device)
        self.bias: torch.Tensor | None = None
        # Without a bias each query attends to all keys of its row.
        if self.max_query_len > 1 or is_alibi or len({end - first for first, end in spans}) > 1:
            key_positions = [torch.arange(*span) for span in spans]
            queries = [part[-n:] for part, n in zip(key_positions, num_new_tokens, strict=True)]
            query_positions, positions = _stack_padded(queries, 0), _stack_padded(key_positions, PAD_POSITION)
            bias = model.score_bias(query_positions.to(device), positions.to(device))
            K = 1 if model.config.latent else model.config.n_kv_heads
            group = model.config.n_heads // K
            if not is_alibi:
                bias, K = bias.expand(-1, group, -1, -1), 1
            self.bias = bias.reshape(self.num_seqs, K, group * self.max_query_len, -1)  # (R, K or 1, N/K·T, S)
        self.row = self.column = None  # of each new token (Q,), if sequences have different numbers of them
        if len(set(num_new_tokens)) > 1:
            self.row = torch.repeat_interleave(torch.arange(self.num_seqs), torch.tensor(num_new_tokens)).to(device)
            self.column = torch.cat([torch.arange(n) for n in num_new_tokens]).to(device)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend in one layer: q (1, N, Q, H), k and v (1, K, Q, H) -> (1, N, Q, H), H of the values."""
        self.kv_cache.store(layer, self.slot_mapping, k[0].transpose(0, 1), v[0].transpose(0, 1))  # (Q, K, H) each
        R, T, N, K = self.num_seqs, self.max_query_len, q.shape[1], k.shape[1]
        keys, values = (
            x.view(R, -1, *x.shape[-2:]).transpose(1, 2)  # (R, K, S, H)
            for x in self.kv_cache.load(layer, self.slots)
        )
        queries = self._pad(q[0].transpose(0, 1)).transpose(1, 2)  # (R, N, T, H)
        heads = F.scaled_dot_product_attention(
            queries.reshape(R, K, N // K * T, -1), keys, values, attn_mask=self.bias, scale=self.scale
        )  # (R, K, N/K·T, H)
        return self._unpad(heads.reshape(R, N, T, -1).transpose(1, 2)).transpose(0, 1)[None]

    def _pad(self, packed: torch.Tensor) -> torch.Tensor:
        """Pad new tokens to rows by sequence: (Q, ...) -> (R, T, ...)."""
        if self.row is None:
            return packed.reshape(self.num_seqs, self.max_query_len, *packed.shape[1:])
        rows = packed.new_zeros(self.num_seqs, self.max_query_len, *packed.shape[1:])
        rows[self.row, self.column] = packed
        return rows

    def _unpad(self, rows: torch.Tensor) -> torch.Tensor:
        """Remove the padding: (R, T, ...) -> (Q, ...)."""
        return rows.flatten(0, 1) if self.row is None else rows[self.row, self.column]


class PagedAttention:
    """`CachedAttention` of one step that reads the KV cache's blocks in place: by Triton on a GPU, Numba on a CPU."""

    def __init__(
        self,
        model: Transformer,
        kv_cache: KVCache,
        *,
        block_size: int,
        num_new_tokens: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
    ) -> None:
        self.kv_cache, self.block_size = kv_cache, block_size
        window, scale = model.window, model.config.head_dim**-0.5
        device = model.embedding.weight.device
        widest = max(map(len, block_tables))
        tables = np.array([[*table, *[0] * (widest - len(table))] for table in block_tables])  # (R, widest)
        lengths, ends = np.array(seq_lens), np.cumsum(num_new_tokens)  # (R,)
        row = np.repeat(np.arange(len(ends)), num_new_tokens)  # (Q,)
        positions = np.arange(len(row)) + (lengths - ends)[row]
        slot_mapping = tables[row, positions // block_size] * block_size + positions % block_size
        self.slot_mapping = torch.from_numpy(slot_mapping).to(device)  # (Q,)
        batch = [  # (R, widest), (R,) and (R + 1,)
            torch.from_numpy(indices.astype(np.int32)).to(device) for indices in (tables, lengths, np.append(0, ends))
        ]
        self._attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
        if kv_cache.kv.is_cpu:
            from mlsys_lab.kernels.ragged_attention.compiled import CompiledBatch

            self._attend = CompiledBatch(*batch, window=window, scale=scale)
        else:
            from mlsys_lab.kernels.ragged_attention import ragged_attention

            self._attend = lambda q, k, v: ragged_attention(q, k, v, *batch, window=window, scale=scale)

    @staticmethod
    def supports(model: Transformer, kv_cache: KVCache) -> bool:
        """Whether the kernel can run: its library is installed, and the model and its cache are supported.

        Not supported: latent attention, ALiBi, subclasses of `KVCache`; on a GPU other dtypes than `DTYPES` and head
        dimensions above `MAX_HEAD_DIM` of `mlsys_lab.kernels.tiles`, on a CPU other dtypes than `DTYPES` of
        `mlsys_lab.kernels.ragged_attention.compiled`.
        """
        config, is_plain, is_cpu = model.config, type(kv_cache) is KVCache, kv_cache.kv.is_cpu
        if not is_plain or config.latent is not None or config.position == "alibi":
            return False
        if find_spec("numba" if is_cpu else "triton") is None:
            return False
        if is_cpu:
            from mlsys_lab.kernels.ragged_attention import compiled

            return kv_cache.kv.dtype in compiled.DTYPES
        from mlsys_lab.kernels.tiles import DTYPES, MAX_HEAD_DIM

        return kv_cache.kv.dtype in DTYPES and config.head_dim <= MAX_HEAD_DIM

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend in one layer: q (1, N, Q, H), k and v (1, K, Q, H) -> (1, N, Q, H)."""
        self.kv_cache.store(layer, self.slot_mapping, k[0].transpose(0, 1), v[0].transpose(0, 1))  # (Q, K, H) each
        keys, values = (
            kv.unflatten(0, (-1, self.block_size)) for kv in self.kv_cache.kv[:, layer]
        )  # (blocks, block_size, K, H)
        heads = self._attend(q[0].transpose(0, 1), keys, values)  # (Q, N, H)
        return heads.transpose(0, 1)[None]


class ModelRunner:
    """A model and its KV cache of `num_blocks` blocks; `use_paged_attention` reads the blocks in place.

    It is set on a GPU. On a CPU `compile` sets it, for an engine that runs long enough to repay that.
    """

    def __init__(self, model: Transformer, num_blocks: int, block_size: int) -> None:
        self.model, self.block_size = model, block_size
        self.kv_cache = KVCache(model, num_blocks * block_size)
        self.use_paged_attention = model.embedding.weight.is_cuda and PagedAttention.supports(model, self.kv_cache)

    def compile(self) -> None:
        """Compile attention that reads the blocks in place on a CPU, and products with quantized weights, and use them.

        Only what supports the model; the layers of the model are set to multiply so.
        """
        from mlsys_lab.efficiency.quantization.compiled import use_compiled

        use_compiled(self.model)
        if self.kv_cache.kv.is_cpu and PagedAttention.supports(self.model, self.kv_cache):
            from mlsys_lab.kernels.ragged_attention.compiled import warm_up

            warm_up(self.kv_cache.kv.dtype)
            self.use_paged_attention = True

    @torch.no_grad()
    def run(self, output: SchedulerOutput) -> list[torch.Tensor]:
        """Compute all scheduled tokens in one forward pass.

        Returns logits (k + 1, V) of each sampled sequence: after its last token and after each of its k draft tokens.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        sampled_rows: dict[object, range] = {}
        for seq, n in output.num_scheduled_tokens.items():
            first, draft_token_ids = seq.num_computed_tokens, output.draft_token_ids.get(seq, [])
            token_ids += [*seq.token_ids[first : first + n], *draft_token_ids]
            positions += range(first, first + n)
            sampled_rows[seq] = range(len(token_ids) - len(draft_token_ids) - 1, len(token_ids))
        device = self.model.embedding.weight.device
        rows = [row for seq in output.sampled for row in sampled_rows[seq]]
        logits = self.model(
            torch.tensor([token_ids]).to(device),
            positions=torch.tensor([positions]).to(device),
            attend=self._attention(output),
            rows=torch.tensor(rows, dtype=torch.int64).to(device),
        )
        ends = list(accumulate(len(sampled_rows[seq]) for seq in output.sampled))
        return list(logits.tensor_split(ends[:-1])) if ends else []

    def _attention(self, output: SchedulerOutput) -> CachedAttention:
        num_new_tokens = list(output.num_scheduled_tokens.values())
        lengths = {seq: seq.num_computed_tokens + n for seq, n in output.num_scheduled_tokens.items()}
        spans = {seq: (self.model.oldest_visible(seq.num_computed_tokens), end) for seq, end in lengths.items()}
        slots: list[Slots] = []
        if len(spans) == 1 or not self.use_paged_attention:
            slots = [find_slots(seq.block_table, self.block_size, *span) for seq, span in spans.items()]
        is_view = self.kv_cache.kv.is_cpu and len(slots) == 1 and isinstance(slots[0], range)
        if self.use_paged_attention and not is_view:
            return PagedAttention(
                self.model,
                self.kv_cache,
                block_size=self.block_size,
                num_new_tokens=num_new_tokens,
                seq_lens=list(lengths.values()),
                block_tables=[seq.block_table[: -(-length // self.block_size)] for seq, length in lengths.items()],
            )
        return GatherAttention(
            self.model, self.kv_cache, num_new_tokens=num_new_tokens, slots=slots, spans=list(spans.values())
        )


def _stack_padded(rows: Sequence[torch.Tensor], value: int) -> torch.Tensor:
    """Stack rows of different lengths, padded at their ends: (R, longest)."""
    return pad_sequence(list(rows), batch_first=True, padding_value=value)
