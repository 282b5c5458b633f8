"""Attention of ragged batches: chunks, drafts and single tokens against float64, what is read, what is refused."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.decode_attention import decode_attention
from mlsys_lab.kernels.ragged_attention import STEPS, cost, ragged_attention, reference
from mlsys_lab.kernels.tiles import HOPPER_SHARED_BYTES
from mlsys_lab.kernels.trace.traffic import times_read, traffic
from tests.kernels.closeness import assert_near
from tests.kernels.compiled import compiled
from tests.kernels.operators import looked_at
from tests.sampling import keep

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SIZES = {  # (new, past) of each sequence, N, K, D, page size
    "chunk, drafts, single tokens": ([(21, 0), (1, 40), (5, 17), (1, 0)], 4, 2, 16, 16),
    "a sequence without queries": ([(2, 3), (0, 9), (0, 0), (7, 1)], 2, 2, 16, 5),
    "one query": ([(1, 0)], 1, 1, 16, 1),
    "odd widths, many queries a group": ([(9, 4), (3, 30)], 6, 1, 20, 7),
    "whole tiles": ([(8, 8), (8, 0), (16, 16)], 4, 4, 16, 8),
}
WINDOWS = (None, 1, 6, 1000)


def drawn(parts, N, K, D, page, dtype=torch.float32, device="cpu"):
    """Queries, two caches with pages in no order and some unused, a block_table whose unused entries mean nothing."""
    counts = torch.tensor([new for new, _ in parts], device=device)
    seq_lens = torch.tensor([new + past for new, past in parts], device=device, dtype=torch.int32)
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
    most = 1 + int(seq_lens.max()) // page
    pages = len(parts) * most + 2
    q = torch.randn(int(counts.sum()), N, D, dtype=dtype, device=device)
    caches = [torch.randn(pages, page, K, D, dtype=dtype, device=device) for _ in "kv"]
    block_table = torch.randperm(pages, device=device)[: len(parts) * most].view(-1, most).int()
    block_table[torch.arange(most, device=device) * page >= seq_lens[:, None]] = -1
    return q, *caches, block_table, seq_lens, starts


def exactly(q, k, v, *where, **options):
    return reference(q.double(), k.double(), v.double(), *where, **options)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("window", keep(WINDOWS, (None, 6)))
def test_every_step_at_odd_sizes(name, window, device):
    inputs = drawn(*SIZES[name], device=device)
    expected = exactly(*inputs, window=window)
    for step in ("padded", "compiled") if device == "cpu" else ("padded",):
        assert_near(ragged_attention(*inputs, window=window, step=step), expected)
    for queries in (1, 3, None):
        assert_near(ragged_attention(*inputs, window=window, queries=queries, block_n=16), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype, device):
    inputs = drawn(*SIZES["chunk, drafts, single tokens"], dtype, device)
    for step in ("packed", "padded"):
        out = ragged_attention(*inputs, window=20, step=step)
        assert out.dtype == dtype
        assert_near(out, exactly(*inputs, window=20))


def test_the_reference_is_causal_attention_by_hand():
    """One head of width 1, scores 0: the mean of the values that a query sees."""
    q, k, v = torch.zeros(3, 1, 1), torch.zeros(4, 2, 1, 1), torch.arange(8.0).view(4, 2, 1, 1)
    block_table, seq_lens, starts = (
        torch.tensor([[2, 0, 3], [1, -1, -1]]),
        torch.tensor([5, 1]),
        torch.tensor([0, 2, 3]),
    )
    for step in STEPS:
        assert ragged_attention(q, k, v, block_table, seq_lens, starts, step=step).flatten().tolist() == pytest.approx(
            [(4 + 5 + 0 + 1) / 4, (4 + 5 + 0 + 1 + 6) / 5, 2.0]
        )
        assert ragged_attention(q, k, v, block_table, seq_lens, starts, window=2, step=step).flatten().tolist() == [
            0.5,
            3.5,
            2,
        ]


def test_single_queries_are_decode_attention(device):
    *inputs, starts = drawn([(1, 36), (1, 0), (1, 63)], 4, 2, 32, 16, device=device)
    assert_near(ragged_attention(*inputs, starts), decode_attention(*inputs, step="reference").double())


def test_long_indices_and_cache_slices(device):
    q, k, v, *where = drawn(*SIZES["chunk, drafts, single tokens"], device=device)
    expected = exactly(q, k, v, *where)
    both = torch.stack((k, v), 2)  # keys and values of a token side by side
    k, v = both.unbind(2)
    for step in ("packed", "padded"):
        assert_near(ragged_attention(q, k, v, *(x.long() for x in where), step=step), expected)


@pytest.mark.parametrize("window", (None, 6))
@pytest.mark.parametrize("queries", (1, 4, 16))
def test_what_is_asked_for_is_the_closed_form(queries, window):
    parts, N, K, D, page = SIZES["chunk, drafts, single tokens"]
    inputs = drawn(parts, N, K, D, page)
    (trace,) = looked_at(lambda: ragged_attention(*inputs, window=window, queries=queries, block_n=16))
    flows = {one.buffer: one.both.asked_bytes for one in traffic(trace)}
    expected = cost.packed_bytes(parts, N, K, D, queries=queries, window=window, itemsize=4)
    assert sum(flows.values()) == expected
    for name in ("k_ptr", "v_ptr"):
        assert times_read(trace, name).max() <= max(-(-new // queries) for new, _ in parts), "once for a tile's group"
    _, least = cost.forward(parts, N, K, D, window=window, itemsize=4)
    moved = sum(flows[name] for name in ("q_ptr", "k_ptr", "v_ptr", "out_ptr"))
    assert moved >= least and (moved == least) == (queries >= max(new for new, _ in parts))


@pytest.mark.parametrize("name", SIZES)
def test_nothing_is_touched_that_should_not_be(name):
    """Entries of the block_table past a sequence's pages, pages past its length: -1 and random numbers here."""
    inputs = drawn(*SIZES[name])
    looked_at(lambda: ragged_attention(*inputs, window=9, queries=2, block_n=16))


def test_nobody(device):
    q, k, v, block_table, seq_lens, starts = drawn([(0, 5)], 2, 1, 16, 16, device=device)
    for step in STEPS:
        assert ragged_attention(q, k, v, block_table, seq_lens, starts, step=step).shape == (0, 2, 16)
        assert ragged_attention(q, k, v, block_table[:0], seq_lens[:0], starts[:1], step=step).shape == (0, 2, 16)


def test_bad_input():
    q, k, v, block_table, seq_lens, starts = drawn([(4, 16), (2, 7)], 4, 2, 32, 16)
    call = ragged_attention
    refusals = {
        "dtype of query_start_loc": lambda: call(q, k, v, block_table, seq_lens, starts.float()),
        "dimensions of query_start_loc": lambda: call(q, k, v, block_table, seq_lens, starts[None]),
        "query_start_loc: got no elements": lambda: call(q, k, v, block_table, seq_lens, starts[:0]),
        "shape of block_table": lambda: call(q, k, v, block_table, seq_lens, starts[:2]),
        "shape of seq_lens": lambda: call(q, k, v, block_table, seq_lens[1:], starts),
        r"query_start_loc: got \[0, 4, 5\], expected rising from 0 to 6": lambda: call(
            q, k, v, block_table, seq_lens, starts - torch.tensor([0, 0, 1])
        ),
        r"query_start_loc: got \[0, 8, 6\]": lambda: call(
            q, k, v, block_table, seq_lens, starts + torch.tensor([0, 4, 0])
        ),
        r"more queries than tokens: got \[4, 2\] of \[3, 9\]": lambda: call(
            q, k, v, block_table, seq_lens - torch.tensor([17, 0]), starts
        ),
        "window of attention: got 0": lambda: call(q, k, v, block_table, seq_lens, starts, window=0),
        "scale of attention": lambda: call(q, k, v, block_table, seq_lens, starts, scale=0.0),
        "queries of a tile: got 0": lambda: call(q, k, v, block_table, seq_lens, starts, queries=0),
        "keys of a tile": lambda: call(q, k, v, block_table, seq_lens, starts, block_n=24),
        "a tile of 16 rows and 2048 keys is too large": lambda: call(
            q, k, v, block_table, seq_lens, starts, queries=1, block_n=2048
        ),
        "head dimension": lambda: call(*drawn([(1, 1)], 1, 1, 272, 16)),
        "unknown step": lambda: call(q, k, v, block_table, seq_lens, starts, step="split"),
    }
    for line, refused in refusals.items():
        with pytest.raises(InputError, match=line) as caught:
            refused()
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="window of attention: got -1"):
        ragged_attention(q, k, v, block_table, seq_lens, starts, window=-1, step="padded")


LAUNCHES = """
import torch
from mlsys_lab.kernels.ragged_attention import ragged_attention
cache = torch.empty(600, 16, 8, 128, dtype=torch.bfloat16)
block_table, seq_lens = torch.zeros(2, 300, dtype=torch.int32), torch.full((2,), 4800, dtype=torch.int32)
for new in (500, 1):
    starts = torch.tensor([0, new, 2 * new], dtype=torch.int32)
    q = torch.empty(2 * new, 32, 128, dtype=torch.bfloat16)
    ragged_attention(q, cache, cache, block_table, seq_lens, starts, window=4096 if new > 1 else None)
"""


@pytest.mark.weekly
def test_compiled_for_hopper():
    chunk, single = compiled(LAUNCHES)
    assert (chunk.constants["ROWS"], single.constants["ROWS"]) == ("64", "16")
    for one in (chunk, single):
        assert one.stack_bytes == 0, "nothing spills"
        assert "mma" in one.ptx and one.shared_bytes <= HOPPER_SHARED_BYTES / 2, "two blocks find room"
        assert "cp.async.cg.shared.global [ %r" in one.ptx, "keys go to shared memory past the registers, 16 bytes each"
