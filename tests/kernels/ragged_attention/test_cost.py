"""FLOPs and bytes of attention for ragged batches."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.attention import cost as attention_cost
from mlsys_lab.kernels.decode_attention import cost as decode_cost
from mlsys_lab.kernels.ragged_attention.cost import forward, packed_bytes


def test_a_whole_prompt_is_causal_attention():
    shape = attention_cost.Shape(1, heads=8, kv_heads=2, queries=37, keys=37, head_dim=16, causal=True)
    assert forward([(37, 0)], 8, 2, 16) == attention_cost.forward(shape)


def test_single_queries_are_decode_attention():
    parts = [(1, past) for past in (0, 40, 999)]
    assert forward(parts, 8, 2, 16) == decode_cost.forward([past + 1 for _, past in parts], 8, 2, 16)


def test_chunks_of_a_prompt_read_its_beginning_again():
    whole, chunked = forward([(64, 0)], 8, 2, 16), [forward([(16, past)], 8, 2, 16) for past in range(0, 64, 16)]
    assert sum(flops for flops, _ in chunked) == whole[0]
    assert sum(size for _, size in chunked) - whole[1] == 2 * (16 + 32 + 48) * 2 * 16 * 2


def test_a_window_bounds_what_a_query_costs():
    flops, size = forward([(1, 10**6)], 8, 2, 16, window=128)
    assert (flops, size) == forward([(1, 127)], 8, 2, 16)
    assert packed_bytes([(1, 10**6)], 8, 2, 16, queries=1, window=128) == packed_bytes([(1, 127)], 8, 2, 16, queries=1)


def test_larger_tiles_read_keys_less_often():
    parts = [(512, 0)]
    sizes = [packed_bytes(parts, 8, 2, 64, queries=queries) for queries in (1, 4, 16, 512)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == pytest.approx(forward(parts, 8, 2, 64)[1], rel=0.01)
    assert packed_bytes([(0, 7)], 8, 2, 64, queries=4) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([(1, -1)], 4, 2, 16), "past must not be negative"),
        (([(-1, 1)], 4, 2, 16), "new must not be negative"),
        (([(1, 1)], 3, 2, 16), "multiple of key/value heads: got 3 and 2"),
    ],
)
def test_bad_input(arguments, words):
    with pytest.raises(InputError, match=words):
        forward(*arguments)
