"""Correct alternative solution that every check must accept: block pools made of sets and a heap.

Blocks are allocated one by one.
"""

import heapq
from itertools import accumulate, takewhile


class BlockPool(BlockPool):
    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.unused = set(range(num_blocks))

    @property
    def num_free_blocks(self):
        return len(self.unused)

    def allocate(self):
        try:
            block = self.unused.pop()
        except KeyError:
            raise ValueError("no block is left") from None
        self.ref_cnt[block] += 1
        return block

    def touch(self, block):
        self.ref_cnt[block] = self.ref_cnt[block] + 1
        self.unused.discard(block)

    def free(self, block):
        self.ref_cnt[block] = self.ref_cnt[block] - 1
        if not self.ref_cnt[block]:
            self.unused.add(block)


class BlockManager(BlockManager):
    def blocks_for(self, num_tokens):
        full, rest = divmod(num_tokens, self.block_size)
        return full + (rest > 0)

    def allocate_slots(self, seq, num_new_tokens, num_free_reserved=0):
        taken, end = 0, seq.num_computed_tokens + num_new_tokens
        while len(seq.block_table) * self.block_size < end and self.pool.num_free_blocks:
            seq.block_table.append(self.pool.allocate())
            taken += 1
        if len(seq.block_table) * self.block_size >= end and self.pool.num_free_blocks >= num_free_reserved:
            return True
        for _ in range(taken):
            self.pool.free(seq.block_table.pop())
        return False

    def free(self, seq):
        for block in reversed(seq.block_table):
            self.pool.free(block)
        seq.block_table, seq.num_computed_tokens = [], 0


def hash_blocks(token_ids, block_size):
    blocks = zip(*[iter(token_ids)] * block_size, strict=False)
    return list(accumulate(blocks, hash_block, initial=b""))[1:]


class PrefixBlockPool(BlockPool):
    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.uncached_free, self.hash_of, self.block_of = set(self.unused), [None] * num_blocks, {}
        self.freed, self.time, self.eviction_heap = [0] * num_blocks, 0, []

    def allocate(self):
        if not self.unused:
            raise ValueError("no block is left")
        block = self.uncached_free.pop() if self.uncached_free else self.evict()
        self.unused.remove(block)
        self.ref_cnt[block] = 1
        return block

    def evict(self):
        while True:
            time, block = heapq.heappop(self.eviction_heap)
            if block in self.unused and self.freed[block] == time:
                del self.block_of[self.hash_of[block]]
                self.hash_of[block] = None
                return block

    def free(self, block):
        super().free(block)
        if block not in self.unused:
            return
        if self.hash_of[block] is None:
            self.uncached_free.add(block)
        else:
            self.time += 1
            self.freed[block] = self.time
            heapq.heappush(self.eviction_heap, (self.time, block))

    def cache(self, block, block_hash):
        if self.get_cached_block(block_hash) is None and self.hash_of[block] is None:
            self.hash_of[block], self.block_of[block_hash] = block_hash, block

    def get_cached_block(self, block_hash):
        return self.block_of.get(block_hash)


class PrefixBlockManager(BlockManager):
    def __init__(self, num_blocks, block_size=16):
        super().__init__(num_blocks, block_size)
        self.pool = PrefixBlockPool(num_blocks)

    def allocate_slots(self, seq, num_new_tokens, num_free_reserved=0):
        missing = max(0, self.blocks_for(seq.num_computed_tokens + num_new_tokens) - len(seq.block_table))
        return missing + num_free_reserved <= self.pool.num_free_blocks and super().allocate_slots(seq, num_new_tokens)

    def allocate_prefix(self, seq):
        blocks = map(self.pool.get_cached_block, hash_blocks(seq.token_ids[:-1], self.block_size))
        seq.block_table = list(takewhile(lambda block: block is not None, blocks))
        for block in seq.block_table:
            self.pool.touch(block)
        seq.block_hashes = [self.pool.hash_of[block] for block in seq.block_table]
        seq.num_computed_tokens = len(seq.block_table) * self.block_size
        return seq.num_computed_tokens

    def cache_full_blocks(self, seq):
        while (end := (len(seq.block_hashes) + 1) * self.block_size) <= seq.num_computed_tokens:
            seq.block_hashes += [
                hash_block(b"".join(seq.block_hashes[-1:]), seq.token_ids[end - self.block_size : end])
            ]
            self.pool.cache(seq.block_table[len(seq.block_hashes) - 1], seq.block_hashes[-1])

    def free(self, seq):
        super().free(seq)
        seq.block_hashes = []
