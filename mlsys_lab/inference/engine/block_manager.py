"""The block manager: block tables over a pool of fixed-size blocks (PagedAttention, arXiv:2309.06180, §4).

It only counts blocks: the keys and values themselves are in `model_runner.KVCache`. Full blocks are cached by a hash
of their tokens and of all tokens before them (automatic prefix caching), so that a sequence with the same prefix starts
with them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict, abc

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine.sequence import Sequence
from mlsys_lab.validation import require_at_least_one


def hash_block(parent_hash: bytes, token_ids: abc.Sequence[int]) -> bytes:
    """SHA-256 of the parent block's hash and this block's tokens; it identifies the prefix up to the block's end.

    Keys and values depend on every earlier token, so equal blocks after different prefixes must have different hashes.
    """
    return hashlib.sha256(parent_hash + array("q", token_ids).tobytes()).digest()


def root_hash(cache_salt: str | None) -> bytes:
    """Parent hash of a sequence's first block: b"", or the SHA-256 of the salt."""
    return b"" if cache_salt is None else hashlib.sha256(cache_salt.encode()).digest()


class BlockPool:
    """Reference counts of blocks 0 to `num_blocks` - 1, and the prefix cache.

    A cached block keeps its hash when its reference count drops to 0, and can be found again until it is evicted. Free
    blocks without a hash are allocated first, then the least recently used cached block is evicted.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.ref_cnt = [0] * num_blocks
        self._free = list(range(num_blocks))[::-1]
        self._evictable: OrderedDict[int, None] = OrderedDict()  # cached, ref_cnt 0, least recently used first
        self._hashes: dict[int, bytes] = {}
        self._cached: dict[bytes, int] = {}

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that can be allocated, evictable ones included."""
        return len(self._free) + len(self._evictable)

    @property
    def num_used_blocks(self) -> int:
        """Number of blocks that a sequence refers to."""
        return self.num_blocks - self.num_free_blocks

    @property
    def evictable_blocks(self) -> list[int]:
        """Cached blocks that no sequence refers to, in the order in which they will be evicted."""
        return list(self._evictable)

    def allocate(self) -> int:
        """Allocate a block with reference count 1, evicting a cached block if necessary.

        Raises InputError if no block is free.
        """
        if not self.num_free_blocks:
            raise InputError("no block is left", got=f"{self.num_blocks} in use", help="free a sequence")
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._evictable.popitem(last=False)
            self.uncache(block)
        self.ref_cnt[block] = 1
        return block

    def touch(self, block: int) -> None:
        """Add a reference to a block; an evictable block becomes non-evictable."""
        self._evictable.pop(block, None)
        self.ref_cnt[block] += 1

    def free(self, block: int) -> None:
        """Drop a reference to a block."""
        self.ref_cnt[block] -= 1
        if self.ref_cnt[block] == 0:
            if block in self._hashes:
                self._evictable[block] = None
            else:
                self._free.append(block)

    def cache(self, block: int, block_hash: bytes) -> None:
        """Add an allocated block to the prefix cache, unless another block is cached under this hash."""
        if block_hash not in self._cached and block not in self._hashes:
            self._cached[block_hash], self._hashes[block] = block, block_hash

    def uncache(self, block: int) -> None:
        """Remove a block from the prefix cache because its content is about to change."""
        block_hash = self._hashes.pop(block, None)
        if block_hash is not None:
            del self._cached[block_hash]

    def get_cached_block(self, block_hash: bytes) -> int | None:
        """Return the block with this hash, None if there is none in the cache."""
        return self._cached.get(block_hash)


class BlockManager:
    """Allocates the blocks of sequences, `block_size` tokens each, from one pool."""

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        require_at_least_one(num_blocks=num_blocks, block_size=block_size)
        self.block_size, self.pool = block_size, BlockPool(num_blocks)

    def blocks_for(self, num_tokens: int) -> int:
        """Number of blocks for `num_tokens` tokens of one sequence: ceil(num_tokens / block_size)."""
        return -(-num_tokens // self.block_size)

    def allocate_prefix(self, seq: Sequence) -> int:
        """Start a new sequence's block table with the cached blocks of its prefix; return the number of cached tokens.

        The last token is never taken from the cache: its logits are needed to sample the next one.
        """
        for index in range((len(seq.token_ids) - 1) // self.block_size):
            if index == len(seq.prefix_hashes):
                seq.prefix_hashes.append(self._hash_block(seq, index, seq.prefix_hashes))
            block = self.pool.get_cached_block(seq.prefix_hashes[index])
            if block is None:
                break
            self.pool.touch(block)
            seq.block_table.append(block)
            seq.block_hashes.append(seq.prefix_hashes[index])
        seq.num_computed_tokens = len(seq.block_table) * self.block_size
        return seq.num_computed_tokens

    def allocate_slots(self, seq: Sequence, num_new_tokens: int, num_free_reserved: int = 0) -> bool:
        """Allocate just enough blocks to hold the computed tokens and `num_new_tokens` more.

        Return False and change nothing if fewer than `num_free_reserved` blocks would stay free.
        """
        num_blocks = self.blocks_for(seq.num_computed_tokens + num_new_tokens) - len(seq.block_table)
        if max(0, num_blocks) + num_free_reserved > self.pool.num_free_blocks:
            return False
        seq.block_table += [self.pool.allocate() for _ in range(num_blocks)]
        return True

    def cache_full_blocks(self, seq: Sequence) -> None:
        """Add newly filled blocks to the prefix cache."""
        for index in range(len(seq.block_hashes), seq.num_computed_tokens // self.block_size):
            seq.block_hashes.append(self._hash_block(seq, index, seq.block_hashes))
            self.pool.cache(seq.block_table[index], seq.block_hashes[-1])

    def free(self, seq: Sequence) -> None:
        """Free all blocks of a sequence, which then has no computed tokens.

        The last block is freed first, so that the tail of the sequence is evicted before its prefix.
        """
        while seq.block_table:
            self.pool.free(seq.block_table.pop())
        seq.block_hashes.clear()
        seq.num_computed_tokens = 0

    def _hash_block(self, seq: Sequence, index: int, earlier_hashes: list[bytes]) -> bytes:
        parent_hash = earlier_hashes[-1] if earlier_hashes else root_hash(seq.cache_salt)
        return hash_block(parent_hash, seq.token_ids[index * self.block_size : (index + 1) * self.block_size])
