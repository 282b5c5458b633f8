"""Costs of a step over a ragged batch: sums of its parts, windows, latent attention, experts, weights read once."""

from __future__ import annotations

import dataclasses

import pytest

from mlsys_lab.configs.presets import WINDOWS, preset
from mlsys_lab.configs.transformer import Experts, LatentAttention, TransformerConfig, Window
from mlsys_lab.errors import InputError
from mlsys_lab.flops import compute
from mlsys_lab.flops.bounds import serving_work
from mlsys_lab.flops.cache import kv_cache_bytes
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.flops.step import cached_layers, experts_used, forward, parameters_read, step_cost

TINY = TransformerConfig("tiny", n_layers=2, d_model=6, n_heads=3, d_ff=10, vocab_size=7, context=8, position="learned")
LATENT = dataclasses.replace(
    TINY,
    position="rotary",
    head_dim=0,
    latent=LatentAttention(q_rank=None, kv_rank=50, nope_dim=4, rope_dim=2, v_dim=3),
)


def test_a_step_by_hand():
    """Of 1 token after 4 and 3 after none: weights once, caches each, logits of the last tokens."""
    got = step_cost(TINY, [(1, 4), (3, 0)], weight_bytes=1, cache_bytes=4)
    layer = 2 * (36 + 72 + 36 + 180)  # query, key and value, output, MLP of a token
    assert got.flops == 2 * (4 * layer + 4 * (5 + 6) * 6) + 2 * 2 * 42
    norms, matrices = 2 * 2 * 6 + 6, 2 * (36 + 72 + 36 + 180) + 42
    assert got.weight_bytes == matrices + norms
    assert (got.cache_read_bytes, got.cache_written_bytes) == (2 * 4 * 12 * 4, 2 * 4 * 12 * 4)
    assert got.memory_bytes == got.weight_bytes + 768 and got.intensity == got.flops / got.memory_bytes


def test_logits_of_every_token():
    assert step_cost(TINY, [(5, 2)], every_token=True).flops - step_cost(TINY, [(5, 2)]).flops == 4 * 2 * 42


@pytest.mark.parametrize("config", [TINY, preset("gemma2-2b"), dataclasses.replace(TINY, n_kv_heads=1)])
def test_chunks_of_a_prompt_cost_as_many_flops_as_the_whole(config):
    whole = compute.forward(config, 8, causal=True)
    window = Window(3, 1)
    for cut in range(1, 8):
        first, second = forward(config, cut), forward(config, 8 - cut, cut)
        assert first.total + second.total == whole.total
        parts = forward(config, cut, window=window).total + forward(config, 8 - cut, cut, window=window).total
        assert parts == forward(config, 8, window=window).total


def test_decoding_reads_the_weights_for_every_token_again():
    whole, tokens = step_cost(TINY, [(8, 0)]), [step_cost(TINY, [(1, past)]) for past in range(8)]
    assert sum(one.weight_bytes for one in tokens) == 8 * whole.weight_bytes
    assert sum(one.cache_written_bytes for one in tokens) == whole.cache_written_bytes
    assert whole.cache_read_bytes == 0 < sum(one.cache_read_bytes for one in tokens)
    assert whole.intensity > 4 * tokens[-1].intensity


@pytest.mark.parametrize("past", [0, 1, 126, 127, 128, 1000])
def test_a_window_is_counted_in_the_layers_that_have_it(past):
    config, window = preset("gpt-oss-20b"), WINDOWS["gpt-oss-20b"]
    assert window == Window(128, 12)
    got = step_cost(config, [(1, past)], window=window)
    seen = 12 * min(past + 1, 128) + 12 * (past + 1)
    assert forward(config, 1, past, window=window).attention == 4 * seen * 64 * 64
    kept = kv_cache_bytes(config, past + 1, window=window)
    all_seen = got.cache_read_bytes + got.cache_written_bytes
    assert all_seen == kept == seen * 2 * 8 * 64 * 2
    assert cached_layers(config, past, Window(1, 24)) == 0


def test_published_caches_with_windows():
    """Half of gpt-oss's layers keep 128 tokens; of Gemma 3 27B's (arXiv:2503.19786) 52 of 62 keep 1024."""
    for name, tokens, share in (("gpt-oss-120b", 131_072, 0.5), ("gemma3-27b", 32_768, 10 / 62)):
        config, window = preset(name), WINDOWS[name]
        ratio = kv_cache_bytes(config, tokens, window=window) / kv_cache_bytes(config, tokens)
        assert ratio == pytest.approx(share + (1 - share) * window.tokens / tokens)
    assert not [name for name in WINDOWS if name.startswith("qwen")], "released with use_sliding_window false"
    for name, window in WINDOWS.items():
        short = kv_cache_bytes(preset(name), window.tokens, window=window)
        assert short == kv_cache_bytes(preset(name), window.tokens), "nothing is spared within the window"


def test_latent_attention_absorbs_for_few_tokens_and_unpacks_for_many():
    def by_hand(new, past):
        pairs, per_token = new * past + new * (new + 1) / 2, 50 * 3 * (4 + 3)
        unpacked = 2 * 2 * (past * per_token + pairs * 3 * (6 + 3))
        absorbed = 2 * 2 * pairs * 3 * (2 * 50 + 2)
        return min(unpacked, absorbed), absorbed < unpacked

    chosen = set()
    for new in (1, 2, 3, 4, 20):
        for past in (0, 1, 9, 500):
            got, (extra, absorbed) = forward(LATENT, new, past), by_hand(new, past)
            plain = compute.forward(LATENT, new, causal=True, past=past)
            assert got.total == plain.total - plain.attention + extra
            if absorbed:
                chosen.add((new, past))
    assert {(1, 500), (2, 500), (3, 500)} <= chosen
    assert not [(new, past) for new, past in chosen if new > 3 or past == 0]


def test_latent_attention_of_deepseek():
    """A head and pair of DeepSeek-V3: 2·(2·512 + 64) FLOPs absorbed; 576 cached numbers a token and layer."""
    config = preset("deepseek-v3")
    one = forward(config, 1, 8191)
    assert one.attention == 61 * 128 * 8192 * 2 * (2 * 512 + 64)
    assert one.key_value == compute.forward(config, 1).key_value
    assert step_cost(config, [(1, 8191)]).cache_read_bytes == 8191 * 70_272


def test_experts_that_are_read():
    config = dataclasses.replace(TINY, experts=Experts(8, 2, d_ff=5, shared=1, dense_layers=1))
    assert experts_used(TINY, 5) == 1 and experts_used(config, 1) == 0.25
    assert experts_used(config, 2) == pytest.approx(1 - 0.75**2)
    routed = 8 * 3 * 6 * 5
    none, all_of_them = (parameters_read(config, tokens) for tokens in (0, 1e9))
    assert all_of_them - none == pytest.approx(routed)
    whole = parameters(config)
    assert all_of_them == pytest.approx(whole.total - whole.embedding - whole.position)


@pytest.mark.parametrize("name", ["llama3-8b", "gpt2", "mixtral-8x7b", "deepseek-v3"])
def test_the_estimate_of_one_device_is_this_step(name):
    config = preset(name)
    for new, past in ((1, 900), (64, 0)):
        work = serving_work(config, Layout(), sequences=3, tokens=new, past=past, weight_bytes=2, cache_bytes=1, node=8)
        got = step_cost(config, [(new, past)] * 3, cache_bytes=1)
        assert (work.flops, work.memory_bytes) == pytest.approx((got.flops, got.memory_bytes))


@pytest.mark.parametrize(
    ("parts", "options", "words"),
    [
        ([], {}, "a step without sequences: expected"),
        ([(0, 4)], {}, "new must be at least 1: got 0"),
        ([(1, -4)], {}, "past must not be negative: got -4"),
        ([(1, 4)], {"cache_bytes": 0}, "cache_bytes must be positive: got 0"),
        ([(1, 4)], {"window": Window(0, 1)}, "window must be at least 1: got 0"),
    ],
)
def test_steps_that_cannot_be(parts, options, words):
    with pytest.raises(InputError, match=words):
        step_cost(TINY, parts, **options)
