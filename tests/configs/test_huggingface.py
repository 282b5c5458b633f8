"""config.json as published: the same model as the preset; and what is not computed rightly is refused in a line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from mlsys_lab.configs import RotaryScaling, preset
from mlsys_lab.configs.huggingface import omissions, read_config
from mlsys_lab.configs.presets import preset_omissions
from mlsys_lab.errors import InputError
from tests.configs.published_files import (
    BLOOM,
    DEEPSEEK,
    GEMMA2,
    GEMMA3,
    GEMMA3_27B,
    GPT2,
    GPT_OSS,
    LLAMA2,
    LLAMA4,
    LLAMA31,
    MAVERICK,
    MISTRAL,
    PUBLISHED,
    QWEN,
    QWEN3_MOE,
)

OPT = {"model_type": "opt", "hidden_size": 1024}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_give_the_preset(name):
    fields = PUBLISHED[name]
    kind = fields.get("text_config", fields)["model_type"]
    assert read_config(fields) == dataclasses.replace(preset(name), name=kind)


@pytest.mark.parametrize("name", ["gemma3-4b", "gemma3-12b", "gemma3-27b", "llama4-scout", "llama4-maverick"])
def test_of_models_that_read_pictures_the_decoder_is_read(name):
    fields = PUBLISHED[name]
    (window,) = preset_omissions(name)
    told = omissions(fields)
    assert told[0] == f"all of {fields['model_type']} but its decoder (text_config)"
    assert told[-1].startswith(window) and told[-1].endswith(("(sliding_window)", "(attention_chunk_size)"))
    assert ("rotary angles are stretched (llama3)" in told) == (name == "llama4-scout")
    quantised = fields | {"quantization_config": {"quant_method": "int4"}}
    assert omissions(quantised) == (*told, "weights are stored quantised (quantization_config)")
    # Without what it is a part of, and where a file of an older version does not say what the part is.
    assert omissions(fields["text_config"]) == told[1:]
    older = fields | {"text_config": {k: v for k, v in fields["text_config"].items() if k != "model_type"}}
    assert read_config(older) == read_config(fields) == read_config(fields["text_config"])


def test_any_decoder_that_is_known_is_read_out_of_what_it_is_a_part_of():
    llava = {"model_type": "llava", "text_config": LLAMA2, "vision_config": {}, "tie_word_embeddings": True}
    assert read_config(llava) == read_config(LLAMA2), "its own word is taken"
    tied = {name: LLAMA2[name] for name in LLAMA2 if name != "tie_word_embeddings"}
    assert read_config(llava | {"text_config": tied}).tied
    assert omissions(llava) == ("all of llava but its decoder (text_config)",)


@pytest.mark.parametrize(
    ("fields", "layers"),
    [({"no_rope_layers": [1, 0] * 24}, 24), ({"no_rope_layer_interval": 3}, 32), ({}, 36)],
)
def test_layers_of_llama4_that_see_a_chunk_only(fields, layers):
    file = LLAMA4["text_config"] | fields
    told = f"attention reaches back 8192 tokens only in {layers} of 48 layers (attention_chunk_size)"
    assert omissions(file)[-1] == told
    kinds = {"layer_types": ["chunked_attention"] * layers + ["full_attention"] * (48 - layers)}
    assert omissions(LLAMA4["text_config"] | kinds)[-1] == told


def test_dense_layers_of_llama4_are_those_that_it_does_not_name():
    def dense(**fields: Any) -> int:
        return read_config(MAVERICK["text_config"] | fields).experts.dense_layers

    assert dense() == dense(moe_layers=None) == 24
    assert dense(moe_layers=[7], interleave_moe_layer_step=1) == 47
    assert dense(moe_layers=None, interleave_moe_layer_step=5) == 39


def test_a_file_its_folder_and_its_content_give_the_same(tmp_path: Path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA2))
    other = tmp_path / "mine.json"
    other.write_text(json.dumps(LLAMA2))
    assert read_config(folder) == read_config(str(folder / "config.json"))
    assert read_config(folder).name == "tiny" and read_config(other).name == "mine"
    assert read_config(LLAMA2 | {"_name_or_path": "who/what"}).name == "who/what"
    assert dataclasses.replace(read_config(folder), name="llama") == read_config(LLAMA2)


def test_both_generations_of_rotary_fields():
    new = {key: value for key, value in QWEN.items() if key not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {"rope_type": "default", "rope_theta": 1000000.0}
    assert read_config(new) == read_config(QWEN)
    new["rope_parameters"] = LLAMA31
    assert read_config(new).rope_theta == 10_000.0
    old = LLAMA2 | {"rope_theta": 5e5, "rope_scaling": LLAMA31}
    new = LLAMA2 | {"rope_parameters": LLAMA31 | {"rope_theta": 5e5}}
    assert read_config(new) == read_config(old)
    assert read_config(new | {"rope_theta": 1e5}) == read_config(old)
    assert omissions(new) == omissions(old) == ()


def test_both_generations_of_gemma_3():
    old = GEMMA3_27B["text_config"]
    new = {name: value for name, value in old.items() if name not in ("rope_scaling", "query_pre_attn_scalar")}
    new["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    new["_sliding_window_pattern"] = 6
    assert read_config(new) == read_config(old) and omissions(new) == omissions(old)
    assert omissions(new | {"_sliding_window_pattern": 2})[0].endswith("in 31 of 62 layers (sliding_window)")


def test_both_generations_of_mixtures_of_qwen():
    new = {name: value for name, value in QWEN3_MOE.items() if name != "num_experts"} | {"num_local_experts": 128}
    assert read_config(new) == read_config(QWEN3_MOE)


def test_rotary_scaling():
    def scaling(rope: dict[str, Any], **fields: Any) -> RotaryScaling | None:
        return read_config(LLAMA2 | {"rope_scaling": rope} | fields).rope_scaling

    assert scaling({"type": "linear", "factor": 4}) == RotaryScaling("linear", 4)
    assert scaling({"type": "default"}) is None
    assert scaling(LLAMA31 | {"factor": 32.0}) == RotaryScaling("llama3", 32.0, 1.0, 4.0, 8192)
    assert scaling({"type": "linear", "factor": 4.0}, rope_parameters=LLAMA31) == RotaryScaling("linear", 4.0)
    # Where it is not said in the object, `transformers` takes what is beside it, and before that the whole context.
    assert scaling(LLAMA31 | {"original_max_position_embeddings": None}).original_context == 4096
    assert scaling(LLAMA31, original_max_position_embeddings=2048).original_context == 2048
    # Others change no count: the arithmetic goes on without them, and says so.
    yarn = LLAMA2 | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    assert read_config(yarn) == read_config(LLAMA2)
    assert omissions(yarn) == ("rotary angles are stretched (yarn)",)


def test_what_changes_no_count_is_told():
    assert omissions(LLAMA2) == omissions(QWEN) == omissions(GPT2) == ()
    assert omissions(MISTRAL) == ("attention reaches back 4096 tokens only (sliding_window)",)
    assert omissions(QWEN | {"use_sliding_window": True, "sliding_window": 100}) == (
        "attention reaches back 100 tokens only (sliding_window)",
    )
    half = "attention reaches back 4096 tokens only in 21 of 42 layers (sliding_window)"
    assert omissions(GEMMA2) == (half,)
    assert omissions(GEMMA2 | {"layer_types": ["sliding_attention", "full_attention"] * 21}) == (half,)
    for file in (GPT_OSS, {name: GPT_OSS[name] for name in GPT_OSS if name != "layer_types"}):
        assert omissions(file)[1] == "attention reaches back 128 tokens only in 12 of 24 layers (sliding_window)"
    assert omissions(GEMMA3) == ("attention reaches back 512 tokens only in 22 of 26 layers (sliding_window)",)
    assert omissions(DEEPSEEK) == (
        "rotary angles are stretched (yarn)",
        "1 further module predicts a later token (num_nextn_predict_layers)",
        "weights are stored quantised (quantization_config)",
    )


def test_fields_that_files_leave_out_are_those_of_transformers():
    """Held against its own configurations in tests/models, for every field that decides a logit."""
    few = {
        key: LLAMA2[key] for key in LLAMA2 if key not in ("hidden_act", "tie_word_embeddings", "num_key_value_heads")
    }
    assert read_config(few) == read_config(LLAMA2)
    assert read_config(GPT2 | {"n_inner": None}).d_ff == 4 * 768
    assert read_config(GPT2 | {"n_inner": 100}).d_ff == 100
    assert read_config(LLAMA2 | {"head_dim": 64}).head_dim == 64
    biased = read_config(LLAMA2 | {"attention_bias": True, "mlp_bias": True})
    assert biased.qkv_bias and biased.out_bias and biased.mlp_bias
    qwen3 = read_config(QWEN | {"model_type": "qwen3"})
    assert qwen3.qk_norm and qwen3.head_dim == 128 and not qwen3.qkv_bias


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (LLAMA2 | {"model_type": "lama"}, "unknown architecture: got model_type 'lama'.* did you mean 'llama'"),
        (
            QWEN | {"layer_types": ["linear_attention", "full_attention"] * 12},
            "kind are not counted here: got linear_at",
        ),
        (
            {"model_type": "zz", "layer_types": ["mamba", "conv"]},
            "are not counted here: got conv, mamba, expected layer",
        ),
        (QWEN | {"layer_types": 24}, "config: layer_types is not a list: got 24"),
        (LLAMA4["text_config"] | {"moe_layers": 1}, "config: moe_layers is not a list: got 1"),
        (LLAMA4["text_config"] | {"interleave_moe_layer_step": 0}, "interleave_moe_layer_step out of range: got 0"),
        (
            LLAMA4["text_config"] | {"intermediate_size_mlp": None},
            "config has no such size: expected intermediate_size_mlp",
        ),
        (DEEPSEEK | {"index_topk": 2048}, "deepseek_v3 with this index_topk is not computed here: got 2048"),
        ({"model_type": "clip", "text_config": {"hidden_size": 512}}, "unknown architecture: got model_type 'clip'"),
        ({"model_type": "mllama", "text_config": {}}, "got model_type 'mllama', expected one of [a-z0-9_, ]*$"),
        ({"model_type": "idefics", "text_config": {"model_type": "mamba"}}, "not counted here: got 'mamba'"),
        (QWEN3_MOE | {"mlp_only_layers": [0]}, "qwen3_moe with this mlp_only_layers is not computed here"),
        (GEMMA2 | {"hidden_activation": "silu"}, "gemma2 with this hidden_activation is not computed here"),
        (LLAMA2 | {"model_type": ["llama"]}, r"got model_type \['llama'\]"),
        ({}, "unknown architecture: got no model_type, expected one of gpt2, llama, mistral"),
        (LLAMA2 | {"hidden_size": None}, "config has no such size: expected hidden_size"),
        (MISTRAL | {"num_key_value_heads": None}, "config has no such size: expected num_key_value_heads"),
        ({"model_type": "gpt2"}, "has no such size: expected n_embd or hidden_size"),
        (LLAMA2 | {"hidden_size": "4096"}, "hidden_size is not a size: got '4096'"),
        (LLAMA2 | {"hidden_size": 4096.0}, "hidden_size is not a size"),
        (LLAMA2 | {"num_key_value_heads": 5}, "query heads must divide"),
        (LLAMA2 | {"num_attention_heads": 31, "num_key_value_heads": 31}, "d_model must divide among heads"),
        (LLAMA2 | {"num_hidden_layers": -1}, "n_layers out of range"),
        (LLAMA2 | {"tie_word_embeddings": "false"}, "tied must be a boolean"),
        (LLAMA2 | {"rope_theta": "big"}, "rope_theta out of range"),
        (LLAMA2 | {"rope_scaling": 2}, "rope_scaling is not an object: got 2"),
        (LLAMA2 | {"rope_scaling": {"type": "linear"}}, "config: rope_scaling of type linear has no factor"),
        (
            LLAMA2 | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "rope_scaling of type llama3 has no low_freq_factor and high_freq_factor",
        ),
        (LLAMA2 | {"rope_scaling": LLAMA31 | {"factor": 0}}, "RotaryScaling.factor out of range: got 0"),
        (LLAMA2 | {"rope_scaling": LLAMA31 | {"low_freq_factor": 4.0}}, "low_freq_factor must be below high_freq"),
        (
            LLAMA2 | {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "llama with this partial_rotary_factor is not computed here: got 0.5, expected 1.0",
        ),
        (
            LLAMA2 | {"hidden_act": "gelu"},
            "llama with this hidden_act is not computed here: got 'gelu', expected",
        ),
        (GPT2 | {"activation_function": "tanh"}, "unknown activation_function: got 'tanh'"),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "gpt2 with this scale_attn_by_inverse_layer_idx"),
        (GPT2 | {"add_cross_attention": True}, "gpt2 with this add_cross_attention"),
        (BLOOM | {"apply_residual_connection_post_layernorm": True}, "bloom with this apply_residual"),
        (OPT | {"do_layer_norm_before": False}, "opt with this do_layer_norm_before is not computed here: got False"),
        (OPT | {"word_embed_proj_dim": 512}, "opt with this word_embed_proj_dim is not computed here: got 512"),
        (LLAMA2 | {"model_type": "phi", "hidden_act": "gelu_new", "qk_layernorm": True}, "phi with this qk_layernorm"),
        (LLAMA2 | {"model_type": "olmo", "clip_qkv": 8.0}, "olmo with this clip_qkv is not computed here: got 8.0"),
        (LLAMA2 | {"model_type": "gemma"}, "gemma with this hidden_act is not computed here: got 'silu'"),
        (
            DEEPSEEK | {"moe_layer_freq": 2},
            "this moe_layer_freq is not computed here: got 2, expected 1",
        ),
        (DEEPSEEK | {"num_experts_per_tok": 300}, "a token uses more experts than there are"),
    ],
)
def test_files_that_are_refused(fields, words):
    with pytest.raises(InputError, match=words) as caught:
        read_config(fields)
    assert "\n" not in str(caught.value)


HYBRIDS = [
    *("mamba", "mamba2", "falcon_mamba", "rwkv", "jamba", "bamba", "zamba", "zamba2", "recurrent_gemma", "nemotron_h"),
    *("nemotron-h", "retnet", "xlstm", "falcon_h1", "granitemoehybrid", "lfm2", "lfm2_moe", "kimi_linear", "qwen3_5"),
    *("qwen3_next", "qwen3-next", "qwen3_5_moe", "olmo_hybrid", "minimax_text_01"),
]


@pytest.mark.parametrize("kind", HYBRIDS)
def test_layers_without_keys_and_values_are_refused_in_a_line(kind):
    with pytest.raises(InputError, match=f"layers without keys and values are not counted here: got '{kind}'") as said:
        read_config({"model_type": kind, "hidden_size": 2560})
    assert "\n" not in str(said.value) and "did you mean" not in str(said.value)


@pytest.mark.parametrize(
    "kind", ["llama5", "gemma4", "gemma3n", "deepseek_v4", "deepseek_v32", "qwen3_vl", "phi4", "olmo4"]
)
def test_another_generation_is_no_misspelling(kind):
    with pytest.raises(InputError, match=f"config: unknown architecture: got model_type '{kind}'") as said:
        read_config(LLAMA2 | {"model_type": kind})
    assert "did you mean" not in str(said.value)


@pytest.mark.parametrize("kind", ["mixtrl", "gemma-2", "deepseekv3", "qwen_2", "gpt-oss"])
def test_a_misspelling_is_told(kind):
    with pytest.raises(InputError, match="did you mean"):
        read_config(LLAMA2 | {"model_type": kind})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xff\xfe{", "is not JSON"),
        (b"[1]", "is not an object: got list"),
    ],
)
def test_files_that_are_no_config(tmp_path, content, words):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        read_config(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*config\.json: got No such file"):
        read_config(tmp_path)
