"""Paged decode attention: cache blocks, lengths and groups against float64, gradients, refusals, what it reads."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.decode_attention import (
    PROGRAMS_PER_MULTIPROCESSOR,
    _forward,
    _num_splits,
    cost,
    decode_attention,
    reference,
)
from mlsys_lab.kernels.tiles import HOPPER_SHARED_BYTES
from mlsys_lab.kernels.trace.traffic import times_read, traffic
from tests.kernels.closeness import assert_near
from tests.kernels.compiled import compiled
from tests.kernels.operators import looked_at
from tests.sampling import keep

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ALWAYS = (torch.bfloat16, torch.float32)
SIZES = {  # seq_lens, N, K, D, page size, pages of the longest
    "lengths that differ": ([37, 1, 0, 64], 4, 2, 32, 16, 5),
    "one key": ([1], 1, 1, 16, 1, 1),
    "pages of one": ([5], 1, 1, 16, 1, 7),
    "odd widths": ([100, 33], 6, 2, 40, 13, 8),
    "many queries a group": ([17], 20, 1, 24, 8, 3),
    "widest": ([21, 20], 2, 2, 256, 16, 2),
}


def drawn(seq_lens, N, K, D, page, most, dtype=torch.float32, device="cpu"):
    """Queries, two caches with pages in no order and some unused, a block_table whose unused entries mean nothing."""
    pages = len(seq_lens) * most + 3
    q = torch.randn(len(seq_lens), N, D, dtype=dtype, device=device, requires_grad=True)
    caches = [torch.randn(pages, page, K, D, dtype=dtype, device=device, requires_grad=True) for _ in "kv"]
    block_table = torch.randperm(pages, device=device)[: len(seq_lens) * most].view(-1, most).int()
    counts = torch.tensor(seq_lens, dtype=torch.int32, device=device)
    block_table[torch.arange(most, device=device) * page >= counts[:, None]] = -1
    return q, *caches, block_table, counts


def exactly(q, k, v, block_table, seq_lens):
    """In float64; an empty sequence's output is zeros."""
    found = reference(q.double(), k.double(), v.double(), block_table, seq_lens)
    return torch.where((seq_lens > 0)[:, None, None], found, 0.0)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("dtype", keep(DTYPES, ALWAYS), ids=str)
def test_every_step_at_odd_sizes(dtype, name, device):
    inputs = drawn(*SIZES[name], dtype, device)
    expected = exactly(*inputs)
    for step, num_splits in (("unsplit", None), ("split", 3), ("split", 20), ("split", None)):
        out = decode_attention(*inputs, step=step, block_n=16, num_splits=num_splits)
        assert out.dtype == dtype
        assert_near(out, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients(dtype, device):
    q, k, v, *where = drawn(*SIZES["lengths that differ"], dtype, device)
    out = decode_attention(q, k, v, *where, block_n=16, num_splits=2)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    d_out = torch.randn_like(out)
    out.backward(d_out)
    exactly(*wide, *where).backward(d_out.double())
    for x, exact in zip((q, k, v), wide, strict=True):
        assert_near(x.grad, exact.grad, scale=2)  # most of a cache's gradients are zero, which makes the others large


def test_a_page_of_two_sequences_gathers_both_gradients(device):
    """A shared prefix: its keys' gradients are those of both sequences together."""
    q, k, v, block_table, seq_lens = drawn([16, 16], 2, 1, 16, 16, 1, device=device)
    block_table[1] = block_table[0]
    decode_attention(q, k, v, block_table, seq_lens).sum().backward()
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exactly(*wide, block_table, seq_lens).sum().backward()
    assert_near(v.grad, wide[2].grad)


def test_long_sequences_and_cache_slices(device):
    q, k, v, block_table, seq_lens = drawn([300, 7], 4, 2, 32, 16, 20, device=device)
    assert_near(decode_attention(q, k, v, block_table, seq_lens.long()), exactly(q, k, v, block_table, seq_lens))
    both = torch.stack((k.detach(), v.detach()), 2)  # keys and values of a token side by side
    k, v = both.unbind(2)
    assert_near(decode_attention(q, k, v, block_table, seq_lens), exactly(q, k, v, block_table, seq_lens))


def test_nobody(device):
    q, k, v, block_table, seq_lens = drawn([], 2, 1, 16, 16, 1, device=device)
    assert decode_attention(q, k, v, block_table, seq_lens).shape == (0, 2, 16)
    assert decode_attention(q, k, v, block_table, seq_lens, step="reference").shape == (0, 2, 16)


def test_parts_fill_the_device_but_are_not_too_short():
    def num_splits(batch, kv_heads, tokens):
        q, cache = torch.empty(batch, 8, 128), torch.empty(1, 16, kv_heads, 128)
        return _num_splits(q, cache, torch.empty(batch, tokens // 16), 64)

    assert num_splits(64, 8, 8192) == 1, "512 programs fill 132 multiprocessors"
    assert num_splits(1, 8, 8192) == 50, "3 · 132 programs, 8 of them per split"
    assert num_splits(1, 1, 1024) == 8, "two tiles of 64 keys per split"


def test_torch_can_call_it(device):
    q, k, v, block_table, seq_lens = drawn(*SIZES["lengths that differ"], device=device)
    torch.library.opcheck(_forward, (q, k, v, block_table, seq_lens, 0.2, "ieee", 16, 2))

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(q, k, v):
        return decode_attention(q, k, v, block_table, seq_lens)

    step(q, k, v).sum().backward()
    compiled_grad, k.grad = k.grad, None
    decode_attention(q, k, v, block_table, seq_lens).sum().backward()
    assert torch.equal(k.grad, compiled_grad)


def test_bad_input():
    q, k, v, block_table, seq_lens = drawn([20, 9], 4, 2, 32, 16, 2)
    call = decode_attention
    refusals = {
        "dtype of q": lambda: call(q.double(), k, v, block_table, seq_lens),
        "q and k_cache have two dtypes": lambda: call(q, k.half(), v, block_table, seq_lens),
        "q and v_cache are on two devices": lambda: call(q, k, v.to("meta"), block_table, seq_lens),
        "dimensions of q": lambda: call(q[0], k, v, block_table, seq_lens),
        "dimensions of k_cache": lambda: call(q, k[0], v, block_table, seq_lens),
        "shape of v_cache": lambda: call(q, k, v[1:], block_table, seq_lens),
        "last dimension of k_cache": lambda: call(q, k.mT.contiguous().mT, v, block_table, seq_lens),
        "head dimension": lambda: call(q[..., :16], k, v, block_table, seq_lens),
        "multiple of key/value heads": lambda: call(q[:, :3], k, v, block_table, seq_lens),
        "shape of seq_lens": lambda: call(q, k, v, block_table, seq_lens[1:]),
        "shape of block_table": lambda: call(q, k, v, block_table[1:], seq_lens),
        "dtype of block_table": lambda: call(q, k, v, block_table.float(), seq_lens),
        "device of seq_lens: got meta, expected cpu": lambda: call(q, k, v, block_table, seq_lens.to("meta")),
        "last dimension of block_table": lambda: call(q, k, v, block_table.T.contiguous().T, seq_lens),
        "tokens of a cache block": lambda: call(q, k[:, :0], v[:, :0], block_table, seq_lens),
        "got \\[33, 9\\], expected 0 to 32": lambda: call(q, k, v, block_table, seq_lens + torch.tensor([13, 0])),
        "block ids in block_table: got": lambda: call(q, k, v, block_table + 8, seq_lens),
        "scale of attention": lambda: call(q, k, v, block_table, seq_lens, scale=-1.0),
        "keys of a tile": lambda: call(q, k, v, block_table, seq_lens, block_n=24),
        "a tile of 2048 keys is too large": lambda: call(q, k, v, block_table, seq_lens, block_n=2048),
        "num_splits: got 2": lambda: call(q, k, v, block_table, seq_lens, step="unsplit", num_splits=2),
        "unknown step": lambda: call(q, k, v, block_table, seq_lens, step="flash"),
        "unknown precision": lambda: call(q, k, v, block_table, seq_lens, precision="half"),
    }
    for line, refused in refusals.items():
        with pytest.raises(InputError, match=line) as caught:
            refused()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("num_splits", (1, 3))
def test_each_cached_key_is_read_once_for_its_whole_group(num_splits):
    sizes = ([40, 9, 64], 8, 2, 32, 16, 4)
    q, k, v, block_table, seq_lens = (x.detach() for x in drawn(*sizes))
    step = "unsplit" if num_splits == 1 else "split"
    traces = looked_at(
        lambda: decode_attention(q, k, v, block_table, seq_lens, step=step, num_splits=num_splits, block_n=16)
    )
    for name in ("k_ptr", "v_ptr"):
        read = times_read(traces[0], name)
        assert read.max() == 1
        assert read.sum() == sum(sizes[0]) * 2 * 32, "every token of every sequence, and no other"
    flows = [one.both for trace in traces for one in traffic(trace)]
    asked = sum(flow.asked_bytes for flow in flows)
    assert asked == cost.paged_bytes(sizes[0], 8, 2, 32, num_splits=num_splits, block_n=16, itemsize=4)


def test_long_sequences_move_little_more_than_the_least():
    seq_lens, N, K, D = [512, 300], 8, 2, 32
    q, k, v, block_table, counts = (x.detach() for x in drawn(seq_lens, N, K, D, 16, 32))
    for num_splits, most in ((1, 1.05), (4, 1.1)):
        call = {"step": "unsplit" if num_splits == 1 else "split", "num_splits": num_splits, "block_n": 64}
        traces = looked_at(lambda call=call: decode_attention(q, k, v, block_table, counts, **call))
        asked = sum(one.both.asked_bytes for trace in traces for one in traffic(trace))
        _, least = cost.forward(seq_lens, N, K, D, itemsize=4)
        assert 1 < asked / least <= most


@pytest.mark.parametrize("name", SIZES)
def test_nothing_is_touched_that_should_not_be(name):
    """Entries of the block_table past a sequence's pages, pages past its length: -1 and random numbers here."""
    inputs = [x.detach() for x in drawn(*SIZES[name])]
    for step, num_splits in (("unsplit", 1), ("split", 3)):
        looked_at(lambda how=(step, num_splits): decode_attention(*inputs, step=how[0], num_splits=how[1], block_n=16))


LAUNCHES = """
import torch
from mlsys_lab.kernels.decode_attention import decode_attention
q, cache = torch.empty(2, 32, 128, dtype=torch.bfloat16), torch.empty(600, 16, 8, 128, dtype=torch.bfloat16)
block_table, seq_lens = torch.zeros(2, 300, dtype=torch.int32), torch.full((2,), 4800, dtype=torch.int32)
decode_attention(q, cache, cache, block_table, seq_lens)
"""


def test_compiled_for_hopper():
    split, combine = compiled(LAUNCHES)
    assert (split.kernel, combine.kernel) == ("split_kernel", "combine_kernel")
    assert split.stack_bytes == combine.stack_bytes == 0, "nothing spills"
    assert "mma.sync" in split.ptx, "16 rows are fewer than wgmma's 64"
    assert "cp.async.cg.shared.global [ %r" in split.ptx, "keys go to shared memory past the registers, 16 bytes each"
    assert PROGRAMS_PER_MULTIPROCESSOR * split.shared_bytes <= HOPPER_SHARED_BYTES
