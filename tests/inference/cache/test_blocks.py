from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import BlockManager, PageTables
from mlsys_lab.inference.cache.blocks import chain, root


def test_blocks_come_back_with_their_last_reference():
    blocks = BlockManager(2)
    first = blocks.allocate()
    blocks.share(first)
    blocks.release(first)
    assert (blocks.used, blocks.available) == (1, 1)
    blocks.release(first)
    assert (blocks.used, blocks.available) == (0, 2)


def test_none_is_given_out_twice():
    blocks = BlockManager(3)
    assert {blocks.allocate() for _ in range(3)} == {0, 1, 2}
    with pytest.raises(InputError, match="no block is left: got 3 in use; help: drop a sequence"):
        blocks.allocate()


def test_blank_ones_go_before_prefixes_and_old_prefixes_before_new_ones():
    blocks = BlockManager(3)
    for digest in (b"old", b"new"):
        block = blocks.allocate()
        blocks.register(block, digest)
        blocks.release(block)
        blocks.share(block)  # asked for again
        blocks.release(block)
    held = [blocks.allocate()]
    assert blocks.find(b"old") is not None
    held.append(blocks.allocate())
    assert blocks.find(b"old") is None and blocks.find(b"new") is not None
    held.append(blocks.allocate())
    assert blocks.find(b"new") is None and len(set(held)) == 3


def test_a_shared_prefix_is_not_evicted():
    blocks = BlockManager(2)
    block = blocks.allocate()
    blocks.register(block, b"prefix")
    blocks.release(block)
    blocks.share(block)
    assert blocks.allocate() != block and blocks.available == 0


def test_what_is_known_twice_is_kept_once():
    blocks = BlockManager(2)
    first, second = blocks.allocate(), blocks.allocate()
    blocks.register(first, b"prefix")
    blocks.register(second, b"prefix")
    blocks.forget(second)
    assert blocks.find(b"prefix") == first
    blocks.forget(first)
    assert blocks.find(b"prefix") is None


def test_a_digest_is_of_all_tokens_before():
    assert chain(b"", [1, 2]) == chain(b"", (1, 2)) != chain(b"", [2, 1])
    assert chain(chain(b"", [1, 2]), [3, 4]) not in (chain(b"", [3, 4]), chain(b"", [1, 2, 3, 4]))


def test_equal_texts_under_different_adapters_have_different_beginnings():
    assert root(None) == b"" and len({root(None), root("a"), root("b"), root("")}) == 4
    tables, text = PageTables(9, 2), [1, 2, 3, 4, 5]
    first = tables.start(text, "a")
    tables.reserve({first: 5})
    tables.commit({first: text})
    fork = tables.fork(first)
    assert tables.adapter(first) == tables.adapter(fork) == "a"
    assert [tables.length(tables.start(text, adapter)) for adapter in (None, "a", "b")] == [0, 4, 0]
    tables.drop(fork)
    with pytest.raises(InputError, match="no such sequence"):
        tables.adapter(fork)
