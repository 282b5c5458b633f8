import dataclasses

import pytest

from mlsys_lab.configs import Experts, LatentAttention, RotaryScaling, TransformerConfig
from mlsys_lab.errors import InputError

SMALL = TransformerConfig("small", n_layers=2, d_model=24, n_heads=4, d_ff=32, vocab_size=11, context=8)
LATENT = LatentAttention(q_rank=None, kv_rank=8, nope_dim=4, rope_dim=2, v_dim=4)


def test_what_is_left_out_is_filled_in():
    assert (SMALL.n_kv_heads, SMALL.head_dim) == (4, 6)
    grouped = dataclasses.replace(SMALL, n_kv_heads=2, head_dim=10)
    assert (grouped.n_kv_heads, grouped.head_dim) == (2, 10)
    assert dataclasses.replace(SMALL, head_dim=0, latent=LATENT).head_dim == 6


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.n_layers = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_layers": 0}, r"TransformerConfig.n_layers out of range: got 0, expected a whole number, at least 1"),
        ({"d_model": -24}, "d_model out of range: got -24"),
        ({"d_ff": 32.0}, r"d_ff out of range: got 32\.0"),
        ({"context": True}, "context out of range: got True"),
        ({"vocab_size": "11"}, "vocab_size out of range: got '11'"),
        ({"n_kv_heads": -1}, "n_kv_heads out of range: got -1, expected a whole number, at least 0"),
        ({"n_heads": 5, "n_kv_heads": 0, "head_dim": 0}, "d_model must divide among heads: got 24 wide, 5 heads"),
        ({"n_kv_heads": 3}, "query heads must divide .* got 4 query and 3 key/value heads"),
        ({"head_dim": 5}, "head_dim with rotary positions must be even"),
        ({"position": "rotery"}, "unknown position: got 'rotery', .* did you mean 'rotary'"),
        ({"norm": "batch"}, "unknown norm"),
        ({"activation": "swigelu"}, "unknown activation: .* did you mean 'swiglu'"),
        ({"tied": "no"}, "TransformerConfig.tied must be a boolean: got 'no', expected True or False"),
        ({"norm_bias": True}, "an RMS norm has no bias"),
        ({"norm_weight": False, "norm": "layer", "norm_bias": True}, "norm_bias needs norm_weight: got norm_weight=F"),
        ({"qk_norm_all_heads": True}, "qk_norm_all_heads needs qk_norm"),
        ({"tied": True, "head_bias": True}, "a tied head has no bias"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor out of range: got 1.5, expected a fraction of head"),
        ({"partial_rotary_factor": 0.1}, "partial_rotary_factor out of range: got 0.1"),
        ({"partial_rotary_factor": 0.5}, "0.5 of head_dim with rotary positions must be even: rotary .* got 3"),
        ({"rope_theta": 0.0}, "rope_theta out of range"),
        ({"rope_theta": True}, "rope_theta out of range"),
        ({"norm_eps": float("nan")}, "norm_eps out of range"),
        ({"norm_eps": float("inf")}, "norm_eps out of range"),
        ({"norm_eps": "1e-5"}, "norm_eps out of range"),
        ({"experts": Experts(4, 2, 8, dense_layers=2)}, "no layer is left for the experts: got 2 dense of 2 layers"),
        ({"latent": LATENT, "head_dim": 8}, "head_dim is not that of latent attention: got 8, expected 6"),
        ({"latent": LATENT, "n_kv_heads": 2}, "latent attention has a key and a value for every query head"),
        ({"latent": LATENT, "qkv_bias": True}, "latent attention has rotary positions, no biases"),
        ({"latent": LATENT, "position": "alibi"}, "latent attention has rotary positions, no biases"),
    ],
)
def test_a_transformer_that_cannot_be(change, words):
    with pytest.raises(InputError, match=words):
        dataclasses.replace(SMALL, **change)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"count": 0}, "Experts.count out of range"),
        ({"active": 5}, "a token uses more experts than there are: got 5, expected 1 to 4"),
        ({"d_ff": 0}, "Experts.d_ff out of range"),
        ({"shared": -1}, "Experts.shared out of range"),
    ],
)
def test_experts_that_cannot_be(sizes, words):
    with pytest.raises(InputError, match=words):
        Experts(**({"count": 4, "active": 2, "d_ff": 8} | sizes))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"kv_rank": 0}, "LatentAttention.kv_rank out of range"),
        ({"q_rank": 0}, "LatentAttention.q_rank out of range"),
        ({"rope_dim": 3}, "rope_dim must be even"),
    ],
)
def test_latent_attention_that_cannot_be(sizes, words):
    with pytest.raises(InputError, match=words):
        dataclasses.replace(LATENT, **sizes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "yarn"}, "unknown rotary scaling: got 'yarn', expected one of linear, llama3"),
        ({"factor": 0.5}, r"RotaryScaling\.factor out of range: got 0\.5, expected a number, at least 1"),
        ({"factor": "8"}, "factor out of range: got '8', expected a positive number"),
        ({"factor": True}, "factor out of range: got True"),
        ({"factor": float("inf")}, "factor out of range: got inf"),
        ({"low_freq_factor": 0}, "low_freq_factor out of range: got 0"),
        ({"high_freq_factor": None}, "high_freq_factor out of range: got None"),
        ({"high_freq_factor": 1.0}, r"low_freq_factor must be below high_freq_factor: got 1\.0 and 1\.0"),
        ({"original_context": 0}, "original_context out of range: got 0, expected a whole number, at least 1"),
        ({"original_context": 8192.0}, "original_context out of range"),
    ],
)
def test_a_scaling_that_cannot_be(change, words):
    with pytest.raises(InputError, match=words) as caught:
        dataclasses.replace(RotaryScaling("llama3", 8.0), **change)
    assert "\n" not in str(caught.value)


def test_a_message_is_one_line():
    with pytest.raises(InputError) as caught:
        dataclasses.replace(SMALL, n_layers=0)
    assert "\n" not in str(caught.value)
