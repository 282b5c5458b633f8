"""Checkpoints that we write are read back to the bit, by `load` and by transformers."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.quantization import quantize
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer, load
from mlsys_lab.models.loading import SINGLE
from mlsys_lab.models.saving import save
from tests.models.families import FAMILIES

CONFIG = TransformerConfig(
    "saved", n_layers=2, d_model=24, n_heads=4, n_kv_heads=2, d_ff=40, vocab_size=31, context=16, rope_theta=500.0
)
TOKENS = torch.tensor([[1, 5, 30, 0]])


@pytest.mark.parametrize("config", [CONFIG, dataclasses.replace(CONFIG, tied=True, head_dim=8, norm_eps=1e-6)])
@torch.no_grad()
def test_what_is_saved_is_read_back(tmp_path, config):
    model = Transformer(config)
    save(model, tmp_path / "saved", dtype=torch.float32)
    read = load(tmp_path / "saved")
    assert read.config == config
    assert torch.equal(read(TOKENS), model(TOKENS))
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    torch.testing.assert_close(theirs(TOKENS).logits, model(TOKENS))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_of_any_family_is_written_back_as_it_was(family, saved, tmp_path):
    folder = saved(family)
    original, fields = load_file(folder / SINGLE), json.loads((folder / "config.json").read_text())
    save(load(folder), tmp_path / "again", dtype=torch.float32, fields=fields)
    written = load_file(tmp_path / "again" / SINGLE)
    assert written.keys() == original.keys()
    for name, tensor in original.items():
        unused = 2 if name.endswith("embed_positions.weight") else 0  # rows of OPT's
        torch.testing.assert_close(written[name][unused:], tensor[unused:], rtol=0, atol=1e-6)  # Gemma's norms are + 1
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    again["dtype"] = again.pop("torch_dtype")
    assert again == fields


def test_weights_are_in_16_bits_unless_told_otherwise(tmp_path):
    save(Transformer(CONFIG), tmp_path)
    assert load(tmp_path).embedding.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "change", [{"position": "alibi"}, {"activation": "gelu"}, {"qkv_bias": True}, {"norm": "layer"}]
)
def test_a_model_that_is_not_built_like_llama_is_one_line(tmp_path, change):
    model = Transformer(dataclasses.replace(CONFIG, **change))
    with pytest.raises(InputError, match="only models built like LLaMA or GPT-2 are saved: got saved"):
        save(model, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_window_is_one_line(tmp_path):
    with pytest.raises(InputError, match="only models built like LLaMA or GPT-2 are saved"):
        save(Transformer(CONFIG, window=4), tmp_path / "saved")


@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_quantized_model_is_refused_in_one_line_and_nothing_is_written(tmp_path, scheme, tied):
    model = quantize(Transformer(dataclasses.replace(CONFIG, tied=tied, d_model=64, head_dim=16, d_ff=64)), scheme)
    with pytest.raises(InputError, match=r"the model is not whole: got \d+ of \d+ weights") as told:
        save(model, tmp_path / "saved")
    assert "\n" not in str(told.value) and not (tmp_path / "saved").exists()


def test_a_model_with_a_weight_more_or_of_another_shape_is_refused(tmp_path):
    for change in ("more", "narrower"):
        model = Transformer(CONFIG)
        weight = model.blocks[0].attention.query.weight if change == "narrower" else None
        if weight is None:
            model.extra = torch.nn.Parameter(torch.zeros(1))
        else:
            weight.data = weight.data[:4]
        with pytest.raises(InputError, match="the model is not whole"):
            save(model, tmp_path)
