"""Quantized checkpoints: `transformers` computes from a folder what we do, and what was saved is loaded as it was."""

from __future__ import annotations

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.formats import INT3, INT4, INT8, UINT4
from mlsys_lab.efficiency.quantization import QuantizedLinear, Recipe, Scheme, load_checkpoint, quantize, save_quantized
from mlsys_lab.efficiency.quantization.recipes import BY_TOKEN
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer, load
from mlsys_lab.models.traffic import weight_bytes
from tests.models.families import build, configure, rewrite

TOKENS = torch.randint(61, (2, 32), generator=torch.Generator().manual_seed(1))
WIDER = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "ffn_dim": 96}
"""Sizes at which zero points of 4 bits fill more than one word: of one, the library's view of bytes fails."""
CONFIG = TransformerConfig(
    "saved", n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, d_ff=64, vocab_size=61, context=32, tied=True
)
INT4_GROUPS = Scheme(INT4, "group", 8, scale_dtype=torch.float32)
UINT4_GROUPS = dataclasses.replace(INT4_GROUPS, format=UINT4)
QUERY = "model.layers.1.self_attn.q_proj."


def save_theirs(family: str, folder: Path) -> tuple[Transformer, dict[str, Any]]:
    """A random checkpoint of `transformers`, loaded here, and its config.json."""
    build(family, **WIDER).save_pretrained(folder)
    return load(folder), json.loads((folder / "config.json").read_text())


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(CONFIG)


@pytest.mark.parametrize("family", ["llama", "llama with biases", "qwen2 tied", "phi3", "opt"])
@pytest.mark.parametrize("scheme", [INT4_GROUPS, UINT4_GROUPS, Scheme(INT8), Scheme(INT3)], ids=str)
@torch.no_grad()
def test_logits_are_those_of_transformers(family, scheme, tmp_path):
    original, fields = save_theirs(family, tmp_path / "original")
    quantized = quantize(original, Recipe(scheme))
    save_quantized(quantized, tmp_path / "new", dtype=torch.float32, fields=fields)
    ours = load_checkpoint(tmp_path / "new")
    assert torch.equal(ours(TOKENS), quantized(TOKENS))
    # Modules with zero points are only loaded dequantized there.
    how = {} if scheme.symmetric else {"quantization_config": CompressedTensorsConfig(dequantize=True)}
    with pytest.warns() if how else nullcontext():  # that the checkpoint's own configuration wins
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "new", dtype=torch.float32, **how).eval()
    # A few times the greatest difference seen, 1e-5, of logits up to 20 in size.
    assert (theirs(TOKENS).logits - ours(TOKENS)).abs().max() < 5e-5
    assert (original(TOKENS) - ours(TOKENS)).abs().max() > 1e-2


@pytest.mark.parametrize("change", [{"method": "awq"}, {"transform": "smooth"}, {"transform": "rotate"}], ids=str)
@torch.no_grad()
def test_scaled_and_rotated_models_are_saved_with_their_norms_and_head(change, tmp_path):
    original, fields = save_theirs("qwen2 tied", tmp_path / "original")
    quantized = quantize(original, Recipe(INT4_GROUPS, **change), TOKENS)
    save_quantized(quantized, tmp_path / "new", dtype=torch.float32, fields=fields)
    ours = load_checkpoint(tmp_path / "new")
    assert torch.equal(ours(TOKENS), quantized(TOKENS))
    assert ours.config.tied == (change.get("transform") != "rotate")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "new", dtype=torch.float32).eval()
    assert (theirs(TOKENS).logits - ours(TOKENS)).abs().max() < 5e-5


@torch.no_grad()
def test_int8_activations_are_saved_with_their_weights(tmp_path):
    original, fields = save_theirs("llama", tmp_path / "original")
    scheme = Scheme(INT8, scale_dtype=torch.float32)
    quantized = quantize(original, Recipe(scheme, activations=BY_TOKEN))
    save_quantized(quantized, tmp_path / "new", dtype=torch.float32, fields=fields)
    assert torch.equal(load_checkpoint(tmp_path / "new")(TOKENS), quantized(TOKENS))
    # The library's activations have another scale, largest / 127.5, so its weights alone are compared.
    how = {"quantization_config": CompressedTensorsConfig(dequantize=True)}
    with pytest.warns():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "new", dtype=torch.float32, **how).eval()
    weights_alone = quantize(original, Recipe(scheme))
    assert (theirs(TOKENS).logits - weights_alone(TOKENS)).abs().max() < 5e-5


@pytest.mark.parametrize("scheme", [Scheme(INT4, "group", 8), UINT4_GROUPS, Scheme(INT3), Scheme(INT8)], ids=str)
@torch.no_grad()
def test_codes_stay_packed_in_memory(model, scheme, tmp_path):
    quantized = quantize(model, Recipe(scheme))
    save_quantized(quantized, tmp_path / CONFIG.name, dtype=torch.float32)
    loaded = load_checkpoint(tmp_path / CONFIG.name)
    assert weight_bytes(loaded) == weight_bytes(quantized) < weight_bytes(model)
    assert {name: (one.dtype, one.shape) for name, one in loaded.state_dict().items()} == {
        name: (one.dtype, one.shape) for name, one in quantized.state_dict().items()
    }
    assert loaded.config == model.config
    assert torch.equal(loaded(TOKENS), quantized(TOKENS))


@torch.no_grad()
def test_layers_that_are_not_quantized_stay_as_they_are(model, tmp_path):
    quantized = quantize(model, Recipe(INT4_GROUPS))
    quantized.blocks[1].mlp.down = model.blocks[1].mlp.down
    save_quantized(quantized, tmp_path, dtype=torch.float32)
    ignored = json.loads((tmp_path / "config.json").read_text())["quantization_config"]["ignore"]
    assert ignored == ["lm_head", "model.layers.1.mlp.down_proj"]
    loaded = load_checkpoint(tmp_path)
    assert torch.equal(loaded(TOKENS), quantized(TOKENS))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    torch.testing.assert_close(theirs(TOKENS).logits, loaded(TOKENS), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_checkpoint_in_floating_point_is_loaded_too(tmp_path):
    original, _ = save_theirs("llama", tmp_path)
    assert torch.equal(load_checkpoint(tmp_path)(TOKENS), original(TOKENS))
    assert load_checkpoint(tmp_path, dtype=torch.bfloat16).embedding.weight.dtype == torch.bfloat16


def test_what_is_not_quantized_has_the_dtype_asked_for(model, tmp_path):
    save_quantized(quantize(model, Recipe(INT4_GROUPS)), tmp_path)
    assert load_checkpoint(tmp_path).embedding.weight.dtype == torch.bfloat16
    assert load_checkpoint(tmp_path, dtype=torch.float32).embedding.weight.dtype == torch.float32


@pytest.mark.parametrize(("family", "words"), [("gpt2", "no transposed layers: got gpt2"), ("mixtral", "experts are")])
def test_a_family_that_the_format_has_not_is_one_line_and_nothing_is_written(family, words, tmp_path):
    build(family).save_pretrained(tmp_path / "original")
    fields = json.loads((tmp_path / "original" / "config.json").read_text())
    quantized = quantize(load(tmp_path / "original"), Recipe(INT4_GROUPS))
    with pytest.raises(InputError, match=words) as raised:
        save_quantized(quantized, tmp_path / "new", fields=fields)
    assert "\n" not in str(raised.value) and not (tmp_path / "new").exists()


@torch.no_grad()
def test_a_model_without_one_scheme_is_one_line(model, tmp_path):
    mixed = quantize(model, Recipe(INT4_GROUPS))
    mixed.blocks[0].mlp.up = quantize(model, Recipe(Scheme(INT8))).blocks[0].mlp.up
    for one, got in ((model, "0 schemes"), (mixed, "2 schemes")):
        with pytest.raises(InputError, match=f"one scheme for all quantized layers: got {got}"):
            save_quantized(one, tmp_path / "new")
    with pytest.raises(InputError, match="weights in this format are not stored quantized"):
        save_quantized(quantize(model, "mxfp4"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_half_of_a_stack_is_one_line(tmp_path):
    original, fields = save_theirs("phi3", tmp_path / "original")
    quantized = quantize(original, Recipe(INT4_GROUPS))
    quantized.blocks[0].attention.query = original.blocks[0].attention.query
    with pytest.raises(InputError, match=r"stored with another that is not quantized: got blocks\.0\.attention\.key"):
        save_quantized(quantized, tmp_path / "new", fields=fields)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop(QUERY + "weight_packed"), rf"lacks {QUERY}weight_packed; help: config\.json may be"),
        (lambda w: w.pop(QUERY + "weight_scale"), rf"lacks {QUERY}weight; help: left over is {QUERY}weight_packed"),
        (
            lambda w: w.update({QUERY + "weight_packed": torch.zeros(32, 5, dtype=torch.int32)}),
            r"weight_packed in .* has another shape: got \(32, 5\), expected \(32, 4\)",
        ),
        (
            lambda w: w.update({QUERY + "weight_packed": torch.zeros(32, 4)}),
            r"weight_packed in .* has another dtype: got torch\.float32, expected torch\.int32",
        ),
        (
            lambda w: w.update({QUERY + "weight_shape": torch.tensor([32, 31])}),
            r"q_proj in .*: weight_shape is that of another matrix: got \(32, 31\), expected \(32, 32\)",
        ),
        (
            lambda w: w[QUERY + "weight_scale"].fill_(torch.nan),
            r"q_proj in .*: scales that are not finite: got NaN",
        ),
        (
            lambda w: w.update({QUERY + "weight_g_idx": torch.zeros(32, dtype=torch.int32)}),
            rf"has tensors that the model has not: {QUERY}weight_g_idx",
        ),
        (
            lambda w: w.update({QUERY + "weight_zero_point": torch.zeros(4, 4, dtype=torch.int32)}),
            rf"has tensors that the model has not: {QUERY}weight_zero_point",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_one_line(model, change, words, tmp_path):
    save_quantized(quantize(model, Recipe(INT4_GROUPS)), tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(InputError, match=words) as raised:
        load_checkpoint(tmp_path)
    assert "\n" not in str(raised.value)


def test_groups_that_do_not_divide_are_one_line(model, tmp_path):
    save_quantized(quantize(model, Recipe(INT4_GROUPS)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    config["config_groups"]["group_0"]["weights"]["group_size"] = 24
    configure(tmp_path, quantization_config=config)
    with pytest.raises(InputError, match="groups do not divide the inputs: got groups of 24, 32 inputs"):
        load_checkpoint(tmp_path)


def test_another_method_and_the_loader_below_are_one_line(model, tmp_path):
    save_quantized(quantize(model, Recipe(INT4_GROUPS)), tmp_path)
    with pytest.raises(InputError, match=r"quantised weights are not loaded here.*load_checkpoint loads some"):
        load(tmp_path)
    configure(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(InputError, match="got gptq, expected compressed-tensors with integers"):
        load_checkpoint(tmp_path)


def test_every_quantized_layer_has_its_bias(tmp_path):
    original, fields = save_theirs("qwen2 tied", tmp_path / "original")
    save_quantized(quantize(original, Recipe(INT4_GROUPS)), tmp_path / "new", fields=fields)
    layers = [one for one in load_checkpoint(tmp_path / "new").modules() if isinstance(one, QuantizedLinear)]
    assert sum(layer.bias is not None for layer in layers) == 3 * original.config.n_layers
