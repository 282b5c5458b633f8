"""Attention in Triton: every step against float64, gradients, refusals, what it reads, and what it compiles to."""

from __future__ import annotations

import math
import re

import pytest
import torch

from mlsys_lab.autograd import Tensor
from mlsys_lab.autograd import record as operation
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.kernels.attention import (
    STEPS,
    attention,
    attention_with_lse,
    backward,
    cost,
    forward,
    model_attention,
    reference,
)
from mlsys_lab.kernels.attention.tile_config import TileConfig
from mlsys_lab.kernels.tiles import HOPPER_SHARED_BYTES
from mlsys_lab.kernels.trace.traffic import Traffic, traffic
from mlsys_lab.models import Transformer, fused_attention
from tests.kernels.closeness import assert_near
from tests.kernels.compiled import compiled
from tests.kernels.operators import looked_at
from tests.sampling import keep

TRITON_STEPS = list(STEPS)[1:]
SMALL = TileConfig(16, 16, 4, 1)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ALWAYS = (torch.bfloat16, torch.float32)
SHAPES = {  # B, N, K, S, T, D, causal
    "one": (1, 1, 1, 1, 1, 16, True),
    "grouped heads, odd width": (2, 4, 2, 37, 37, 40, True),
    "after cached keys": (1, 3, 1, 17, 53, 19, True),
    "queries that see nothing": (1, 2, 2, 41, 19, 17, True),
    "no mask": (1, 2, 1, 33, 29, 64, False),
    "whole blocks": (1, 1, 1, 32, 64, 32, False),
    "widest": (1, 1, 1, 18, 20, 256, True),
}


def drawn(B, N, K, S, T, D, dtype=torch.float32, device="cpu"):
    shapes = (B, N, S, D), (B, K, T, D), (B, K, T, D)
    return [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for shape in shapes]


def by_torch(q, k, v, causal, scale=None):
    """Output and log-sum-exp in float64 by torch's own attention, which puts a row that is all hidden to zero."""
    q, k, v = q.double(), k.double(), v.double()
    (N, S), (K, T) = q.shape[1:3], k.shape[1:3]
    seen = torch.ones(S, T, dtype=torch.bool, device=q.device).tril(T - S if causal else T)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=N != K)
    scores = q @ k.repeat_interleave(N // K, 1).mT * (scale or q.shape[-1] ** -0.5)
    return out.nan_to_num(0.0), scores.masked_fill(~seen, -math.inf).logsumexp(-1)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", keep(DTYPES, ALWAYS), ids=str)
@pytest.mark.parametrize("step", TRITON_STEPS)
def test_every_step_at_odd_shapes(step, dtype, name, device):
    *sizes, causal = SHAPES[name]
    q, k, v = drawn(*sizes, dtype, device)
    out, lse = attention_with_lse(q, k, v, causal=causal, step=step, config=SMALL)
    exact, exact_lse = by_torch(q, k, v, causal)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    assert_near(out, exact)
    assert_near(lse, exact_lse)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", keep(DTYPES, ALWAYS), ids=str)
def test_gradients(dtype, name, device):
    *sizes, causal = SHAPES[name]
    q, k, v = drawn(*sizes, dtype, device)
    scale = 1.3 * q.shape[-1] ** -0.5
    out, lse = attention_with_lse(q, k, v, causal=causal, scale=scale, config=SMALL)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact, exact_lse = by_torch(*wide, causal, scale)
    d_out, d_lse, seen = torch.randn_like(out), torch.randn_like(lse), exact_lse.isfinite()
    ((out * d_out).sum() + (lse[seen] * d_lse[seen]).sum()).backward()
    ((exact * d_out).sum() + (exact_lse[seen] * d_lse[seen]).sum()).backward()
    # In 16 bits the weights and the scores' gradients are rounded on their way into a product, and out before δ.
    for x, exact_x in zip((q, k, v), wide, strict=True):
        if exact_x.grad.any():  # one key, one weight: d_scores vanish but for the log-sum-exp's
            assert_near(x.grad, exact_x.grad, scale=1 if dtype == torch.float32 else 2)


def test_the_reference_is_the_same_function():
    for *sizes, causal in SHAPES.values():
        q, k, v = (x.double() for x in drawn(*sizes))
        assert torch.allclose(reference(q, k, v, causal=causal), by_torch(q, k, v, causal)[0], atol=1e-12)
        assert_near(attention(*drawn(*sizes), causal=causal, step="reference"), torch.zeros(q.shape), scale=1e9)


def test_empty(device):
    for sizes in ((0, 2, 2, 5, 5, 16), (1, 2, 1, 0, 5, 16), (1, 2, 1, 5, 0, 16)):
        q, k, v = drawn(*sizes, device=device)
        out, lse = attention_with_lse(q, k, v)
        out.sum().backward()
        assert out.shape == q.shape and not out.any() and (lse == -math.inf).all()
        assert not any(x.grad.any() for x in (q, k, v))


def test_any_strides(device):
    """Heads beside one another in memory, as a projection leaves them, and views that begin anywhere."""
    q, k, v = (torch.randn(2, 21, n, 32, device=device).transpose(1, 2) for n in (4, 2, 2))
    assert_near(attention(q, k, v, causal=True), by_torch(q, k, v, True)[0])
    longer = torch.randn(1, 2, 20, 37, device=device)
    views = [longer[..., first : first + 32] for first in (1, 2, 3)]
    assert_near(attention(*views), by_torch(*views, False)[0])
    one = longer[:, :1, :, :32].expand(1, 2, 20, 32)
    assert_near(attention(one, one, one), by_torch(one, one, one, False)[0])


def test_large_scores_do_not_overflow(device):
    q, k, v = drawn(1, 1, 1, 20, 33, 16, device=device)
    out = attention(q * 100, k * 100, v, causal=True)
    assert_near(out, by_torch(q * 100, k * 100, v, True)[0])
    out.sum().backward()
    assert q.grad.isfinite().all() and k.grad.isfinite().all()
    low = torch.full_like(k, -100.0)  # every score far below zero: keys past the last must not count
    low_out = attention(torch.full_like(q, 100.0), low, v)
    assert_near(low_out, v.double().mean(2, keepdim=True).expand_as(low_out))


def test_two_runs_give_the_same_bits(device):
    def gradients():
        q, k, v = (x.detach().requires_grad_() for x in inputs)
        attention(q, k, v, causal=True).square().sum().backward()
        return q.grad, k.grad, v.grad

    inputs = drawn(1, 4, 2, 40, 40, 32, torch.float16, device)
    assert all(torch.equal(x, y) for x, y in zip(gradients(), gradients(), strict=True))


def test_torch_can_call_it(device):
    q, k, v = drawn(1, 2, 1, 17, 20, 24, device=device)
    torch.library.opcheck(forward, (q, k, v, True, 0.2, "flash", "ieee", [16, 16, 4, 1]))

    @torch.compile(backend="aot_eager", fullgraph=True)
    def block(q, k, v):
        return attention(q, k, v, causal=True)

    block(q, k, v).sum().backward()
    compiled_grad, k.grad = k.grad, None
    attention(q, k, v, causal=True).sum().backward()
    assert torch.equal(k.grad, compiled_grad)


def test_the_course_s_engine_can_call_it(device):
    *sizes, causal = SHAPES["after cached keys"]
    q, k, v = drawn(*sizes, device=device)
    attention(q, k, v, causal=causal, scale=0.2).square().sum().backward()

    mine = [Tensor(x.detach(), requires_grad=True) for x in (q, k, v)]
    data = [x.data for x in mine]
    out, lse = forward(*data, causal, 0.2, "flash", "ieee", [])

    def gradient(index):
        none = torch.zeros_like(lse)
        return lambda g: backward(g, none, *data, out, lse, causal, 0.2, "ieee", [])[index]

    y = operation(out, *((x, gradient(index)) for index, x in enumerate(mine)))
    (y * y).sum().backward()
    for theirs, x in zip((q, k, v), mine, strict=True):
        assert_near(x.grad, theirs.grad)


def test_in_a_transformer(device):
    config = TransformerConfig(
        "small", n_layers=2, d_model=24, n_heads=4, d_ff=40, vocab_size=11, context=19, n_kv_heads=2
    )
    ours, torchs = (Transformer(config, attention=one).to(device) for one in (model_attention, fused_attention))
    ours.load_state_dict(torchs.state_dict())
    tokens = torch.arange(2 * 19, device=device).view(2, 19) % 11
    assert_near(ours(tokens), torchs(tokens))
    with pytest.raises(InputError, match="a bias on the scores"):
        model_attention(*drawn(1, 1, 1, 2, 2, 16), torch.zeros(1, 2, 2))


def test_bad_input():
    q, k, v = drawn(2, 4, 2, 8, 8, 32)
    refusals = {
        "dtype of q": lambda: attention(q.double(), k, v),
        "q and v have two dtypes": lambda: attention(q, k, v.half()),
        "q and k are on two devices": lambda: attention(q, k.to("meta"), v),
        "dimensions of q": lambda: attention(q[0], k, v),
        "last dimension of k is not contiguous": lambda: attention(q, k.mT.contiguous().mT, v),
        "k and v have two shapes": lambda: attention(q, k, v[:, :, 1:]),
        "q and k do not fit": lambda: attention(q[:1], k, v),
        "head dimension": lambda: attention(*drawn(1, 1, 1, 1, 1, 257)),
        "multiple of key/value heads": lambda: attention(q[:, :3], k, v),
        "scale of attention": lambda: attention(q, k, v, scale=0.0),
        "unknown step": lambda: attention(q, k, v, step="flash3"),
        "unknown precision": lambda: attention(q, k, v, precision="fp8"),
        "too large for shared memory": lambda: attention(q, k, v, config=TileConfig(1024, 1024)),
    }
    for line, call in refusals.items():
        with pytest.raises(InputError, match=line) as caught:
            call()
        assert "\n" not in str(caught.value)


def traffic_of(call) -> list[tuple[str, dict[str, Traffic]]]:
    """Of each launch within `call`, in which nothing is wrong: the kernel, and what it exchanged with each buffer."""
    return [(trace.kernel, {one.buffer: one for one in traffic(trace)}) for trace in looked_at(call)]


def asked_bytes(launches) -> int:
    return sum(one.both.asked_bytes for _, buffers in launches for one in buffers.values())


@pytest.mark.parametrize("causal", (False, True))
def test_flash_reads_keys_once_for_each_block_of_queries(causal):
    sizes, config = (1, 2, 1, 48, 56, 16), TileConfig(16, 16, 4, 1)
    q, k, v = (x.detach() for x in drawn(*sizes))
    shape = cost.Shape(*sizes, causal=causal)
    launches = traffic_of(lambda: attention(q, k, v, causal=causal, config=config))
    ((name, buffers),) = launches
    assert name == "forward_kernel"
    assert asked_bytes(launches) == cost.flash_bytes(shape, 16, 16, itemsize=4)
    assert buffers["q_desc"].read.ratio == buffers["out_desc"].written.ratio == 1
    if not causal:
        assert buffers["k_desc"].read.ratio == buffers["v_desc"].read.ratio == 2 * 48 / 16  # two heads share a key


def test_naive_moves_the_square_and_flash_a_block_times_less():
    q, k, v = (x.detach() for x in drawn(1, 1, 1, 64, 64, 16))
    shape = cost.Shape(1, 1, 1, 64, 64, 16)
    naive = traffic_of(lambda: attention(q, k, v, step="naive", config=TileConfig(32, 16, 4, 1)))
    assert [name for name, _ in naive] == ["scores_kernel", "softmax_kernel", "values_kernel"]
    assert asked_bytes(naive) == cost.naive_bytes(shape, 32, itemsize=4)
    flash = traffic_of(lambda: attention(q, k, v, config=TileConfig(64, 16, 4, 1)))
    once, least = asked_bytes(flash), cost.forward(shape, 4)[1] + shape.lse_bytes
    assert once == least, "one block of queries: everything is moved once"
    assert asked_bytes(naive) > 5 * once


def test_flash_leaves_out_what_the_mask_hides():
    q, k, v = (x.detach() for x in drawn(1, 1, 1, 128, 128, 16))

    def keys_read(step):
        ((_, buffers),) = traffic_of(lambda: attention(q, k, v, causal=True, step=step, config=SMALL))
        return buffers["k_desc"].read.asked_bytes

    assert keys_read("flash") / keys_read("online") == (1 + 8) / 2 / 8


def test_backward_reads_what_it_must():
    """dK and dV: queries once for each block of keys that they see; dQ: keys once for each block of queries."""
    q, k, v = drawn(1, 2, 1, 32, 32, 16)
    out = attention(q, k, v, causal=True, config=SMALL)
    launches = dict(traffic_of(lambda: out.sum().backward()))
    assert set(launches) == {"delta_kernel", "dkdv_kernel", "dq_kernel"}
    assert launches["dkdv_kernel"]["q_desc"].read.ratio == (2 + 1) / 2
    assert launches["dkdv_kernel"]["k_desc"].read.ratio == 1
    assert launches["dq_kernel"]["k_desc"].read.ratio == 2 * (1 + 2) / 2
    assert launches["dq_kernel"]["dq_desc"].written.ratio == 1


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_is_touched_that_should_not_be(name):
    *sizes, causal = SHAPES[name]
    q, k, v = drawn(*sizes)
    for step in TRITON_STEPS:
        looked_at(lambda step=step: attention(q, k, v, causal=causal, step=step, config=SMALL))
    out = attention(q, k, v, causal=causal, config=SMALL)
    looked_at(lambda: out.sum().backward())


LAUNCHES = """
import torch
from dataclasses import astuple
from mlsys_lab.kernels.attention import backward, forward
from mlsys_lab.kernels.attention.tile_config import candidate_configs
q, k = torch.empty(1, 8, 256, 128, dtype=torch.bfloat16), torch.empty(1, 8, 256, 128, dtype=torch.bfloat16)
lse = torch.empty(1, 8, 256)
def first(kernel):
    return list(astuple(candidate_configs(kernel, 128, 2, 227 * 1024)[0]))
forward(q, k, k, True, 0.1, "flash", "ieee", first("forward"))
backward(q, lse, q, k, k, q, lse, True, 0.1, "ieee", first("dkdv"))
"""


@pytest.mark.weekly
def test_compiled_for_hopper():
    forward, _, dkdv, dq = compiled(LAUNCHES)
    assert (forward.kernel, dkdv.kernel, dq.kernel) == ("forward_kernel", "dkdv_kernel", "dq_kernel")
    assert forward.stack_bytes == dq.stack_bytes == 0, "nothing spills"
    assert dkdv.stack_bytes <= 128, "what spills there, in the prologue and between the loops, is little"
    for one in (forward, dkdv, dq):
        assert re.search(r"wgmma.mma_async.sync.aligned.m64n\d+k16.f32.bf16.bf16", one.ptx)
        assert "mma.sync" not in one.ptx
        assert "cp.async.bulk.tensor" in one.ptx
        assert one.shared_bytes <= HOPPER_SHARED_BYTES
