"""Adapters on disk: what was saved is read back, PEFT's names are kept, and what is wrong takes one line."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from mlsys_lab.errors import InputError
from mlsys_lab.inference.adapters import load_adapter, save_adapter
from mlsys_lab.inference.adapters.files import CONFIG, WEIGHTS
from tests.inference.adapters.making import strong
from tests.inference.making import build

MODEL = build()
SAVED = strong(MODEL, 2, 1, ("query", "down"))
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture
def folder(tmp_path):
    save_adapter(SAVED, tmp_path)
    return tmp_path


def test_what_was_saved_is_read_back_in_the_models_dtype(folder):
    found = load_adapter(folder, MODEL)
    assert (found.lora_rank, found.lora_alpha, found.matrices.keys()) == (2, 8.0, SAVED.matrices.keys())
    for name, pair in SAVED.matrices.items():
        assert all(torch.equal(one, other) for one, other in zip(pair, found.matrices[name], strict=True))
    narrow = load_adapter(folder, build(dtype=torch.float32))
    assert all(one.dtype == torch.float32 for pair in narrow.matrices.values() for one in pair)


def test_names_and_fields_are_those_of_peft(folder):
    config = json.loads((folder / CONFIG).read_text())
    assert config["target_modules"] == ["down_proj", "q_proj"] and config["peft_type"] == "LORA"
    assert set(load_file(folder / WEIGHTS)) == {
        f"base_model.model.model.layers.{layer}.{module}.lora_{half}.weight"
        for layer in range(2)
        for module in ("self_attn.q_proj", "mlp.down_proj")
        for half in "AB"
    }


@pytest.mark.parametrize(
    "change, said",
    [
        ({"peft_type": "IA3"}, "is not a LoRA adapter: got IA3"),
        ({"r": 0}, "r: got 0, expected a whole number, at least 1"),
        ({"r": 3}, r"have other shapes: got \(2, "),
        ({"lora_alpha": None}, "lora_alpha: got null, expected a positive number"),
        ({"use_dora": True}, "use_dora is not supported: got True, expected false"),
        ({"rank_pattern": {"q_proj": 1}}, "rank_pattern is not supported"),
    ],
)
def test_a_configuration_that_asks_for_something_else_is_refused(folder, change, said):
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | change))
    refuse(folder, said)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda tensors: tensors.pop(FIRST), "has no base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"),
        (lambda tensors: tensors.update({FIRST: torch.ones(2, 17)}), r"have other shapes: got \(2, 17\)"),
        (lambda tensors: tensors.update({FIRST: torch.full((2, 16), torch.nan)}), "has values that are not finite"),
        (lambda tensors: tensors.update({FIRST: torch.ones(2, 16, dtype=torch.int8)}), "is quantized: got torch.int8"),
        (lambda tensors: tensors.update({FIRST.replace(".0.", ".9."): torch.ones(2, 16)}), "for an unknown layer"),
        (lambda tensors: tensors.update({"x.lora_B.weight": torch.ones(2, 16)}), "for an unknown layer"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(folder, change, said):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    refuse(folder, said)


def test_files_that_are_missing_or_damaged_are_refused(folder):
    (folder / WEIGHTS).write_bytes(b"no tensors")
    refuse(folder, "is not safetensors: got SafetensorError")
    (folder / WEIGHTS).unlink()
    refuse(folder, "is not safetensors: got FileNotFoundError")
    (folder / CONFIG).write_text("[]")
    refuse(folder, "is not a LoRA adapter: got list")
    (folder / CONFIG).unlink()
    refuse(folder, "is not an adapter configuration: got FileNotFoundError")


def refuse(folder, said):
    with pytest.raises(InputError, match=said) as caught:
        load_adapter(folder, MODEL)
    assert "\n" not in str(caught.value)
