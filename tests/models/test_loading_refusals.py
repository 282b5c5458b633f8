"""What is wrong with a checkpoint is said in a line."""

from __future__ import annotations

import json
import struct

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.models import load
from tests.models.families import configure, rewrite

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "vocab_size": 61,
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda w: w.pop("model.layers.1.mlp.up_proj.weight"),
            r"lacks model\.layers\.1\.mlp\.up_proj\.weight; help: config\.json may be that of another model",
        ),
        (
            lambda w: [w.pop(name) for name in list(w) if "mlp" in name],
            r"lacks model\.layers\.0\.mlp\.down_proj\.weight, .* and 6 more; help",
        ),
        (
            lambda w: w.update({"model.layers.1.mlp.up.weight": w.pop("model.layers.1.mlp.up_proj.weight")}),
            r"lacks model\.layers\.1\.mlp\.up_proj\.weight; help: left over is model\.layers\.1\.mlp\.up\.weight",
        ),
        (
            lambda w: w.update({"model.layers.3.mlp.up_proj.weight": torch.ones(2)}),
            r"has tensors that the model has not: model\.layers\.3\.mlp\.up_proj\.weight; help",
        ),
        (
            lambda w: w.update({"model.norm.weight": torch.ones(23)}),
            r"model\.norm\.weight in .*model\.safetensors has another shape: got \(23,\), expected \(24,\)",
        ),
        (
            lambda w: w.update({"model.layers.0.mlp.up_proj.weight": torch.ones(24, 40)}),
            r"another shape: got \(24, 40\), expected \(40, 24\)",
        ),
        (
            lambda w: w.update({"model.norm.weight": torch.ones(24).to(torch.float8_e4m3fn)}),
            r"model\.norm\.weight in .* is quantised: got torch\.float8_e4m3fn, expected 16 to 64 bits",
        ),
        (lambda w: w.clear(), r"lacks lm_head\.weight, model\.embed_tokens\.weight, .* and 27 more"),
    ],
)
def test_tensors_that_do_not_fit(saved, change, words):
    folder = saved("llama")
    rewrite(folder, change)
    with pytest.raises(InputError, match=words) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_the_stored_shape_is_named_where_matrices_are_turned_and_stacked(saved):
    folder = saved("gpt2")
    rewrite(folder, lambda w: w.update({"transformer.h.0.attn.c_attn.weight": torch.ones(72, 24)}))
    with pytest.raises(InputError, match=r"c_attn\.weight .*got \(72, 24\), expected \(24, 72\)"):
        load(folder)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "lama"}, "unknown architecture: got model_type 'lama'.* did you mean 'llama'"),
        ({"model_type": "gpt2", "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 32}, r"lacks transformer\."),
        (
            {"model_type": "llava", "text_config": {"model_type": "llama"} | SIZES},
            "weights of this architecture are not loaded here: got llava, expected one of gpt2",
        ),
        ({"num_hidden_layers": 2}, r"has tensors that the model has not: model\.layers\.2"),
        ({"num_hidden_layers": 4}, r"lacks model\.layers\.3"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised weights are not loaded"),
        ({"hidden_size": 0}, "d_model out of range: got 0"),
    ],
)
def test_a_config_of_something_else(saved, fields, words):
    folder = saved("llama")
    configure(folder, **fields)
    with pytest.raises(InputError, match=words) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_weights_of_experts_that_are_not_normalised_are_refused(saved):
    folder = saved("qwen3_moe")
    configure(folder, norm_topk_prob=False)
    with pytest.raises(InputError, match="qwen3_moe with this norm_topk_prob is not computed here: got False"):
        load(folder)


def test_latent_attention_is_refused_in_a_line(tmp_path):
    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": 24,
        "num_attention_heads": 2,
        "intermediate_size": 40,
        "max_position_embeddings": 32,
        "vocab_size": 61,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "kv_lora_rank": 4,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2,
        "v_head_dim": 4,
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deepseek_v3"} | sizes))
    with pytest.raises(InputError, match="weights of this architecture are not loaded here: got deepseek_v3"):
        load(tmp_path)


def test_no_checkpoint(saved, tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*nowhere/config\.json: got No such file"):
        load(tmp_path / "nowhere")
    folder = saved("llama")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no weights in .* expected model\.safetensors or model\.safetensors\.index"):
        load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(InputError, match=r"help: pytorch_model\.bin is a pickle; convert it"):
        load(folder)


def test_damaged_files(saved):
    folder = saved("llama")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    header = struct.unpack("<Q", whole[:8])[0]
    damaged = [
        b"",
        whole[:5],
        whole[: header // 2],
        whole[:-1],
        b"\xff" * 8 + whole[8:],
        whole[:9] + b"\0" + whole[10:],
    ]
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"model\.safetensors is not safetensors: got") as caught:
            load(folder)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("[", "is no index: got JSONDecodeError"),
        ("[]", "is no index"),
        ("{}", r"is no index: got KeyError: 'weight_map', expected JSON with a weight_map"),
        ('{"weight_map": 3}', "is no index"),
        ('{"weight_map": {"a": 3}}', "is no index"),
        ('{"weight_map": {"a": "../model.safetensors"}}', r"names a file elsewhere: got \.\./model\.safetensors"),
        ('{"weight_map": {"a": "model-7.safetensors"}}', r"a shard is missing from .* expected model-7\.safetensors"),
    ],
)
def test_an_index_that_cannot_be(saved, index, words):
    folder = saved("llama")
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(InputError, match=words):
        load(folder)


def test_a_shard_without_the_tensor_that_the_index_says(saved):
    folder = saved("llama", shard="10KB")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    files = content["weight_map"]
    other = next(file for file in files.values() if file != files["model.norm.weight"])
    files["model.norm.weight"] = other
    index.write_text(json.dumps(content))
    with pytest.raises(InputError, match=rf"cannot read model\.norm\.weight from .*{other}") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
