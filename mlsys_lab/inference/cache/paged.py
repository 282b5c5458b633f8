"""Paged cache: the engine's block manager behind the interface of a cache, with copy-on-write for forks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache.interface import Step
from mlsys_lab.inference.cache.slots import SlotCache
from mlsys_lab.inference.engine.block_manager import BlockManager, BlockPool
from mlsys_lab.inference.engine.model_runner import KVCache, PagedAttention, Slots, compute_slot_mapping, find_slots
from mlsys_lab.inference.engine.sequence import Sequence as PagedSequence
from mlsys_lab.models import CachedAttention, Transformer


class Paged(SlotCache):
    """Cache of `num_blocks` blocks of `block_size` tokens each (PagedAttention, arXiv:2309.06180, §4).

    A sequence holds as many blocks as its tokens fill, so that at most `block_size` - 1 slots are wasted on it. Forks
    share all blocks, and a shared block is copied before one of them writes into it. Prompts start with the cached
    blocks of their prefix. InputError if a step needs more blocks than are free. On a GPU attention reads the blocks
    where they are if `use_paged_attention` is set.
    """

    def __init__(
        self, model: Transformer, *, num_blocks: int, block_size: int = 16, kv_cache_class: type[KVCache] = KVCache
    ) -> None:
        self.block_manager, self.block_size = BlockManager(num_blocks, block_size), block_size
        super().__init__(model, num_blocks * block_size, kv_cache_class)
        self.use_paged_attention = model.embedding.weight.is_cuda and PagedAttention.supports(model, self.kv_cache)
        self._sequences: dict[int, PagedSequence] = {}
        self._num_started = 0

    @property
    def pool(self) -> BlockPool:
        """Reference counts of the blocks, and the prefix cache."""
        return self.block_manager.pool

    @property
    def sequences(self) -> list[int]:
        """Numbers of the sequences in the cache, in the order in which they were started."""
        return list(self._sequences)

    def length(self, sequence: int) -> int:
        """Number of computed tokens of a sequence; InputError for one that is not in the cache."""
        return self._find(sequence).num_computed_tokens

    def block_table(self, sequence: int) -> list[int]:
        """Blocks of a sequence in the order of its tokens."""
        return self._find(sequence).block_table

    def start(self, prompt: Sequence[int] = ()) -> int:
        """Number of a new sequence that begins with the cached blocks of the prompt, but without its last token."""
        seq = PagedSequence(self._num_started, list(prompt), len(prompt), 0)
        del seq.token_ids[self.block_manager.allocate_prefix(seq) :]
        return self._add(seq)

    def fork(self, sequence: int) -> int:
        """Number of a new sequence that shares all blocks of another one."""
        seq = self._find(sequence)
        fork = PagedSequence(self._num_started, list(seq.token_ids), seq.num_prompt_tokens, 0)
        fork.block_table = seq.block_table[: self.block_manager.blocks_for(seq.num_computed_tokens)]
        fork.block_hashes, fork.num_computed_tokens = list(seq.block_hashes), seq.num_computed_tokens
        for block in fork.block_table:
            self.pool.touch(block)
        return self._add(fork)

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens of a sequence, and free the blocks after them; InputError if it is shorter."""
        seq = self._find(sequence)
        if not 0 <= length <= seq.num_computed_tokens:
            raise InputError("length to cut to", got=length, expected=f"0 to {seq.num_computed_tokens}")
        while len(seq.block_table) > self.block_manager.blocks_for(length):
            self.pool.free(seq.block_table.pop())
        del seq.token_ids[length:], seq.block_hashes[length // self.block_size :]
        seq.num_computed_tokens = length

    def drop(self, sequence: int) -> None:
        """Remove a sequence and free its blocks."""
        self.block_manager.free(self._find(sequence))
        del self._sequences[sequence]

    def commit(self, step: Step) -> None:
        """Count the tokens of a step as computed, and add full blocks to the prefix cache."""
        for sequence, tokens in step.new.items():
            seq = self._find(sequence)
            seq.token_ids += tokens
            seq.num_computed_tokens = len(seq.token_ids)
            self.block_manager.cache_full_blocks(seq)

    def compute_slot_mapping(self, sequence: int, first: int, end: int) -> torch.Tensor:
        """Slots of a sequence's positions `first` to `end` - 1, (end - first,)."""
        return compute_slot_mapping(self.block_table(sequence), self.block_size, first, end)

    def _slots(self, sequence: int, first: int, end: int) -> Slots:
        return find_slots(self.block_table(sequence), self.block_size, first, end)

    def _add(self, seq: PagedSequence) -> int:
        self._sequences[seq.seq_id] = seq
        self._num_started += 1
        return seq.seq_id

    def _find(self, sequence: int) -> PagedSequence:
        if sequence not in self._sequences:
            raise InputError("no such sequence in the cache", got=sequence, expected=f"one of {self.sequences}")
        return self._sequences[sequence]

    def _written_blocks(self, seq: PagedSequence) -> range:
        """Indices of the allocated blocks that the next tokens of a sequence are written to."""
        return range(seq.num_computed_tokens // self.block_size, len(seq.block_table))

    def _num_blocks_needed(self, counts: Mapping[PagedSequence, int]) -> int:
        """Number of blocks to allocate for more tokens, copies of shared blocks included."""
        ends = {seq: self.block_manager.blocks_for(seq.num_computed_tokens + count) for seq, count in counts.items()}
        needed = sum(max(0, end - len(seq.block_table)) for seq, end in ends.items())
        written = [seq.block_table[index] for seq in counts for index in self._written_blocks(seq)]
        # Of the sequences that write into a shared block, the last one needs no copy if no other sequence refers to it.
        shared = Counter(block for block in written if self.pool.ref_cnt[block] > 1)
        return needed + sum(min(n, self.pool.ref_cnt[block] - 1) for block, n in shared.items())

    def _reserve(self, counts: Mapping[int, int]) -> None:
        by_sequence = {self._find(sequence): count for sequence, count in counts.items()}
        needed = self._num_blocks_needed(by_sequence)
        if needed > self.pool.num_free_blocks:
            raise InputError(
                "the cache is full",
                got=f"{needed} more blocks needed",
                expected=f"up to {self.pool.num_free_blocks}",
                help="drop a sequence or feed fewer tokens",
            )
        for seq, count in by_sequence.items():
            for index in self._written_blocks(seq):
                self._make_writable(seq, index)
            self.block_manager.allocate_slots(seq, count)

    def _make_writable(self, seq: PagedSequence, index: int) -> None:
        """Copy a block that another sequence refers to; uncache a block that only this sequence refers to."""
        block = seq.block_table[index]
        if self.pool.ref_cnt[block] == 1:
            self.pool.uncache(block)
            return
        copy = seq.block_table[index] = self.pool.allocate()
        self.copy_slots(*(compute_slot_mapping([one], self.block_size, 0, self.block_size) for one in (block, copy)))
        self.pool.free(block)

    def _attention(self, counts: Mapping[int, int]) -> CachedAttention:
        if not self.use_paged_attention:
            return super()._attention(counts)
        lengths = {s: self.length(s) + count for s, count in counts.items()}
        return PagedAttention(
            self.model,
            self.kv_cache,
            block_size=self.block_size,
            num_new_tokens=list(counts.values()),
            seq_lens=list(lengths.values()),
            block_tables=[self.block_table(s)[: self.block_manager.blocks_for(n)] for s, n in lengths.items()],
        )

    def _num_slots_held(self) -> int:
        return self.pool.num_used_blocks * self.block_size
