"""Caches in 8 bits: errors within their bounds, of numbers and of attention, and bytes."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.flops.cache import bytes_per_token
from mlsys_lab.inference.cache import Contiguous, Float8KVCache, Int8KVCache, attention_error_bound, extend
from mlsys_lab.inference.engine import KVCache
from tests.inference.making import build, caches, draw, uncached

KINDS = [Int8KVCache, Float8KVCache]


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_no_number_is_off_by_more_than_said(kind, spread, random):
    """Of vectors whose numbers differ by many powers of ten, too; and the bound is not idle: half of it is reached."""
    x = torch.randn(5000, 8, generator=random).double()
    x = x * 10 ** (spread * torch.randn(5000, 8, generator=random).double())
    codes, scale = kind.quantize(x)
    error = (codes.double() * scale.double()[:, None] - x).abs()
    bound = kind.error_bound(x)
    assert (error <= bound * (1 + 1e-6)).all()  # the scale is rounded to fp32
    assert (error / bound).max() > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_and_largest_numbers(kind):
    x = torch.tensor([[0.0, 0.0], [3.0, -7.0], [1e30, 0.0]])
    codes, scale = kind.quantize(x)
    torch.testing.assert_close(
        codes.float() * scale[:, None], x, rtol=1 / 16 if kind is Float8KVCache else 0.01, atol=0
    )
    assert codes.float().abs().amax(-1).tolist() == [0.0, kind.largest, kind.largest]


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_within_its_bound(kind, random):
    for size in (0.1, 1.0, 3.0):
        q, k, v = (size * torch.randn(20, n, 8, generator=random).double() for n in (3, 30, 30))
        coded = [codes.double() * scale.double()[..., None] for codes, scale in map(kind.quantize, (k, v))]
        attend = torch.nn.functional.scaled_dot_product_attention
        error = (attend(q, *coded) - attend(q, k, v)).abs().amax(-1)
        assert (error <= attention_error_bound(q, k, v, kind)).all()


def test_the_bound_of_attention_by_hand():
    """One key and one value: only the value's error is left of it, beside e^2δ - 1 times the value."""
    q, k, v = torch.tensor([[1.0, 2.0]]), torch.tensor([[254.0, 0.0]]), torch.tensor([[508.0, 1.0]])
    score_error = 3 * 1.0 / 2**0.5
    expected = torch.expm1(torch.tensor(2 * score_error)) * 508 + 2
    torch.testing.assert_close(attention_error_bound(q, k, v, Int8KVCache), expected[None])


@pytest.mark.parametrize(("kind", "most"), [(Int8KVCache, 0.05), (Float8KVCache, 0.3)])
def test_logits_in_every_layout(kind, most):
    """Logits up to 7 differ, and by about what 8 bits make: 0.02 and 0.15 were seen."""
    for heads, window in ((2, None), (2, 6), ("latent", None)):
        model, (tokens,) = build(kv_heads=heads, window=window), draw(1, 17)
        for name, cache in caches(model, chunk=4, kv_cache_class=kind).items():
            sequence = cache.start()
            for first in range(0, 16, 4):
                extend(model, cache, {sequence: tokens[first : first + 4]})
            copy = cache.fork(sequence)
            got = extend(model, cache, {copy: tokens[16:]})[0]
            assert 0 < (got - uncached(model, tokens)[-1]).abs().max() < most, name


def test_a_slot_has_the_bytes_that_are_counted():
    for heads in (4, 2, 1, "latent"):
        model = build(kv_heads=heads)
        assert KVCache(model, 1).slot_bytes == bytes_per_token(model.config, 8)
    assert KVCache(build(kv_heads="latent"), 1).slot_bytes == 2 * (6 + 4) * 8


@pytest.mark.parametrize(("kind", "bytes_"), [(KVCache, 4 * 4), (Int8KVCache, 4 + 4), (Float8KVCache, 4 + 4)])
def test_bytes_of_a_slot(kind, bytes_):
    """Keys and values, 2 layers, 2 heads of 4 numbers in fp32, or of 4 bytes and a scale."""
    cache = Contiguous(build(dtype=torch.float32), sequences=1, capacity=3, kv_cache_class=kind)
    cache.start()
    assert cache.bytes_held == cache.bytes_wasted == 3 * 2 * 2 * 2 * bytes_
