from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine import BlockManager, BlockPool, Sequence
from mlsys_lab.inference.engine.block_manager import hash_block, root_hash


def test_blocks_come_back_with_their_last_reference():
    blocks = BlockPool(2)
    first = blocks.allocate()
    blocks.touch(first)
    blocks.free(first)
    assert (blocks.num_used_blocks, blocks.num_free_blocks) == (1, 1)
    blocks.free(first)
    assert (blocks.num_used_blocks, blocks.num_free_blocks) == (0, 2)


def test_none_is_given_out_twice():
    blocks = BlockPool(3)
    assert {blocks.allocate() for _ in range(3)} == {0, 1, 2}
    with pytest.raises(InputError, match="no block is left: got 3 in use; help: free a sequence"):
        blocks.allocate()


def test_blank_ones_go_before_prefixes_and_old_prefixes_before_new_ones():
    blocks = BlockPool(3)
    for digest in (b"old", b"new"):
        block = blocks.allocate()
        blocks.cache(block, digest)
        blocks.free(block)
        blocks.touch(block)  # asked for again
        blocks.free(block)
    held = [blocks.allocate()]
    assert blocks.get_cached_block(b"old") is not None
    held.append(blocks.allocate())
    assert blocks.get_cached_block(b"old") is None and blocks.get_cached_block(b"new") is not None
    held.append(blocks.allocate())
    assert blocks.get_cached_block(b"new") is None and len(set(held)) == 3


def test_a_shared_prefix_is_not_evicted():
    blocks = BlockPool(2)
    block = blocks.allocate()
    blocks.cache(block, b"prefix")
    blocks.free(block)
    blocks.touch(block)
    assert blocks.allocate() != block and blocks.num_free_blocks == 0


def test_what_is_known_twice_is_kept_once():
    blocks = BlockPool(2)
    first, second = blocks.allocate(), blocks.allocate()
    blocks.cache(first, b"prefix")
    blocks.cache(second, b"prefix")
    blocks.uncache(second)
    assert blocks.get_cached_block(b"prefix") == first
    blocks.uncache(first)
    assert blocks.get_cached_block(b"prefix") is None


def test_a_digest_is_of_all_tokens_before():
    assert hash_block(b"", [1, 2]) == hash_block(b"", (1, 2)) != hash_block(b"", [2, 1])
    assert hash_block(hash_block(b"", [1, 2]), [3, 4]) not in (hash_block(b"", [3, 4]), hash_block(b"", [1, 2, 3, 4]))


def make_sequence(token_ids, salt=None):
    return Sequence(0, list(token_ids), len(token_ids), 1, cache_salt=salt)


def test_sequences_with_different_salts_share_no_blocks():
    assert root_hash(None) == b"" and len({root_hash(salt) for salt in (None, "a", "b", "")}) == 4
    block_manager, token_ids = BlockManager(9, 2), [1, 2, 3, 4, 5]
    first = make_sequence(token_ids, "a")
    assert block_manager.allocate_slots(first, 5)
    first.num_computed_tokens = 5
    block_manager.cache_full_blocks(first)
    assert [block_manager.allocate_prefix(make_sequence(token_ids, salt)) for salt in (None, "a", "b")] == [0, 4, 0]


def test_slots_are_allocated_as_needed_or_not_at_all():
    block_manager, seq = BlockManager(4, 2), make_sequence(range(9))
    assert block_manager.allocate_slots(seq, 3) and len(seq.block_table) == 2
    assert block_manager.allocate_slots(seq, 4) and len(seq.block_table) == 2, "the allocated blocks hold them"
    assert not block_manager.allocate_slots(seq, 9) and not block_manager.allocate_slots(seq, 5, num_free_reserved=2)
    assert len(seq.block_table) == 2 and block_manager.pool.num_free_blocks == 2
    assert block_manager.allocate_slots(seq, 5, num_free_reserved=1) and len(seq.block_table) == 3
    block_manager.free(seq)
    assert seq.block_table == [] and block_manager.pool.num_free_blocks == 4
