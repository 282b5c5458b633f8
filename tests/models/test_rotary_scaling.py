"""Stretched rotary angles: logits far beyond the first context, and angles, are those of `transformers`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mlsys_lab.configs import RotaryScaling, preset
from mlsys_lab.configs.huggingface import read_config
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer, load
from mlsys_lab.models.positions import rotary_angles, scale_frequencies
from tests.models.families import LLAMA31, Widened, build

# As in test_loading.py; seen here were 3.8e-6 and 7.5e-15, and 5.5 without the scaling.
FP32, FP64 = 2e-5, 5e-14


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(61, (2, 96), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def in_fp64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("family", ["llama3", "llama linear"])
@torch.no_grad()
def test_logits_beyond_the_first_context(family, tmp_path, tokens):
    model = build(family)
    model.save_pretrained(tmp_path)
    ours, expected = load(tmp_path), model(tokens).logits
    assert (ours(tokens) - expected).abs().max() < FP32
    plain = Transformer(dataclasses.replace(ours.config, rope_scaling=None))
    plain.load_state_dict(ours.state_dict())
    assert (plain(tokens) - expected).abs().max() > 1


@pytest.mark.parametrize("family", ["llama3", "llama linear"])
@torch.no_grad()
def test_logits_beyond_the_first_context_in_double_precision(family, tmp_path, tokens, in_fp64):
    with Widened():
        model = build(family)
        expected = model(tokens).logits
    model.save_pretrained(tmp_path)
    assert (load(tmp_path)(tokens) - expected).abs().max() < FP64


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        (
            {"rope_type": "yarn", "factor": 2.0},
            "angles stretched in this way are not computed here: got yarn, expected one of linear, llama3",
        ),
        ({"type": "dynamic", "factor": 2.0}, "stretched in this way .* got dynamic"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "stretched in this way .* got longrope"),
        ({"type": "linear"}, r"config\.json: rope_scaling of type linear has no factor"),
        ({"type": "linear", "factor": 0.5}, "factor out of range: got 0.5, expected a number, at least 1"),
        (LLAMA31 | {"high_freq_factor": 1.0}, "low_freq_factor must be below high_freq_factor: got 1.0 and 1.0"),
    ],
)
@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_scalings_that_are_refused(tmp_path, rope, words, field):
    build("llama").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: rope}))
    with pytest.raises(InputError, match=words) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_scaling": LLAMA31 | {"original_max_position_embeddings": 8192}},
        {"rope_scaling": LLAMA31 | {"original_max_position_embeddings": 8192, "factor": 32.0}, "head_dim": 64},
        {"rope_scaling": LLAMA31 | {"low_freq_factor": 0.3, "high_freq_factor": 50}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1, "high_freq_factor": 9}},
        {"rope_scaling": LLAMA31, "original_max_position_embeddings": 1000},
        {"rope_scaling": {"type": "linear", "factor": 3}},
        {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_parameters": LLAMA31 | {"rope_theta": 1e3}},
        {"rope_parameters": LLAMA31 | {"rope_theta": 1e6}},
    ],
)
def test_radians_a_position(fields: dict[str, Any], in_fp64):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 131_072, "rope_theta": 5e5}
    few = sizes | {"num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 8, "model_type": "llama"} | fields
    config = read_config(few)
    theirs = LlamaConfig(**{key: dict(value) if isinstance(value, dict) else value for key, value in few.items()})
    with Widened():
        expected, factor = ROPE_INIT_FUNCTIONS[theirs.rope_parameters["rope_type"]](theirs, torch.device("cpu"))
    assert factor == 1 and config.rope_scaling is not None
    H = config.head_dim
    turns = scale_frequencies(config.rope_theta ** (-torch.arange(0, H, 2) / H), config.rope_scaling)
    torch.testing.assert_close(turns, expected, rtol=1e-14, atol=0)


def test_llama_3_1_keeps_fast_pairs_and_slows_slow_ones():
    config = preset("llama3.1-8b")
    turns = config.rope_theta ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    assert isinstance(config.rope_scaling, RotaryScaling)
    share = scale_frequencies(turns, config.rope_scaling) / turns
    rounds = 8192 * turns / (2 * math.pi)
    assert (share[rounds > 4] == 1).all() and (share[rounds < 1] == 1 / 8).all()
    between = share[(rounds > 1) & (rounds < 4)]
    assert len(between) == 6 and (between.diff() < 0).all() and between.min() > 1 / 8 and between.max() < 1


def test_linear_scaling_divides_positions():
    like = torch.empty(0, dtype=torch.float64)
    stretched = rotary_angles(torch.arange(41), 8, 100.0, like, RotaryScaling("linear", 4.0))
    torch.testing.assert_close(stretched[:, ::4], rotary_angles(torch.arange(11), 8, 100.0, like), rtol=0, atol=1e-14)
