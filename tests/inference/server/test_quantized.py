"""Quantized checkpoints behind the server: packed in its memory, and what is not supported refused in a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mlsys_lab.efficiency.quantization import QuantizedLinear, quantize, save_quantized
from mlsys_lab.errors import InputError
from mlsys_lab.inference.server.messages import EngineArgs
from mlsys_lab.inference.server.worker import load_models
from mlsys_lab.models import load
from mlsys_lab.models.traffic import weight_bytes
from tests.inference.huggingface_folder import save_qwen
from tests.models.families import configure


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen 2 with its tokenizer and weights in int4."""
    path = save_qwen(tmp_path_factory.mktemp("models") / "qwen")
    fields = json.loads((path / "config.json").read_text())
    save_quantized(quantize(load(path), "int4"), path, dtype=torch.float32, fields=fields)
    return path


def test_model_and_draft_stay_packed(folder: Path) -> None:
    model, _, draft = load_models(EngineArgs(16, 4, model=str(folder), draft=str(folder)))
    assert draft is not None
    for one in (model, draft):
        assert sum(isinstance(module, QuantizedLinear) for module in one.modules()) == 7 * one.config.n_layers
        assert one.embedding.weight.dtype == torch.float32
        stored = (folder / "model.safetensors").stat().st_size
        assert weight_bytes(one) < 1.1 * stored  # zero points have a byte each, biases 4 bytes


def test_other_methods_and_adapters_are_one_line(folder: Path, tmp_path: Path) -> None:
    args = EngineArgs(16, 4, model=str(folder), adapters={"a": str(tmp_path)})
    with pytest.raises(InputError, match=r"adapters are not served on quantized weights: got .*merge the adapter into"):
        load_models(args)
    other = save_qwen(tmp_path / "qwen")
    for method in ("gptq", "awq", "bitsandbytes", "fp8"):
        configure(other, quantization_config={"quant_method": method})
        for args in (EngineArgs(16, 4, model=str(other)), EngineArgs(16, 4, draft=str(other))):
            with pytest.raises(InputError, match=f"got {method}, expected compressed-tensors with integers") as raised:
                load_models(args)
            assert "\n" not in str(raised.value)
