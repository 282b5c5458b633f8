"""Adapters in PEFT's format: a folder with adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from mlsys_lab.errors import InputError
from mlsys_lab.inference.adapters.adapter import OTHER_MODEL, Adapter, find_layers
from mlsys_lab.models import Transformer
from mlsys_lab.models.layouts import LLAMA, locate

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX, A, B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
SUPPORTED_VALUES: Mapping[str, tuple[object, ...]] = {
    "alora_invocation_tokens": (None,),
    "alpha_pattern": ({}, None),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal"),
    "layer_replication": (None, []),
    "lora_bias": (False,),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "use_dora": (False,),
    "use_qalora": (False,),
    "use_rslora": (False,),
}
"""Fields that change what an adapter computes, with the values for which it is W + (α/r) B A."""


def load_adapter(folder: str | Path, model: Transformer) -> Adapter:
    """Read an adapter for a model, in the model's dtype, from a folder that PEFT or `save_adapter` wrote.

    Tensors have LLaMA's names of layers. InputError if a file is missing or damaged, the configuration needs more than
    W + (α/r) B A, or layers or shapes are not those of the model.
    """
    folder = Path(folder)
    rank, alpha = _read_config(folder / CONFIG)
    path = folder / WEIGHTS
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as problem:
        raise InputError(f"{path} is not safetensors", got=_line(problem)) from None
    layers = {_name(layer): layer for layer in find_layers(model)}
    halves: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in sorted(tensors.items()):
        stored, half = (name.removesuffix(A), A) if name.endswith(A) else (name.removesuffix(B), B)
        if not name.endswith((A, B)) or stored not in layers:
            expected = f"A and B of LLaMA's layers, {PREFIX}model.layers.0.self_attn.q_proj{A}"
            what = f"{path} has a tensor for an unknown layer"
            raise InputError(what, got=name, expected=expected, help=OTHER_MODEL)
        if not tensor.is_floating_point():
            raise InputError(f"{name} in {path} is quantized", got=tensor.dtype, expected="16 to 64 bits")
        if not tensor.isfinite().all():
            raise InputError(f"{name} in {path} has values that are not finite", help="the file may be damaged")
        halves.setdefault(layers[stored], {})[half] = tensor.to(model.embedding.weight)
    for layer, found in halves.items():
        for half in (A, B):
            if half not in found:
                raise InputError(f"{path} has no {_name(layer)}{half}", help="the file may be damaged")
    try:
        adapter = Adapter(rank, alpha, {layer: (found[A], found[B]) for layer, found in halves.items()})
        adapter.check(model)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None
    return adapter


def save_adapter(adapter: Adapter, folder: str | Path) -> None:
    """Write an adapter in PEFT's format, with LLaMA's names of layers, to a folder, which is created if needed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    targets = sorted({_name(layer).rpartition(".")[2] for layer in adapter.matrices})
    config = {"peft_type": "LORA", "r": adapter.lora_rank, "lora_alpha": adapter.lora_alpha, "target_modules": targets}
    (folder / CONFIG).write_text(json.dumps(config | {"bias": "none"}, indent=1) + "\n", encoding="utf-8")
    tensors = {
        _name(layer) + half: matrix.detach().cpu().contiguous()
        for layer, pair in adapter.matrices.items()
        for half, matrix in zip((A, B), pair, strict=True)
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def _name(layer: str) -> str:
    """PEFT's name of one of our layers."""
    return PREFIX + locate(f"{layer}.weight", LLAMA).name.removesuffix(".weight")


def _read_config(path: Path) -> tuple[int, float]:
    """Rank and α of a configuration."""
    try:
        fields: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"{path} is not an adapter configuration", got=_line(problem)) from None
    if not isinstance(fields, dict) or fields.get("peft_type") != "LORA":
        got = fields.get("peft_type") if isinstance(fields, dict) else type(fields).__name__
        raise InputError(f"{path} is not a LoRA adapter", got=got, expected='an object with "peft_type": "LORA"')
    for name, values in SUPPORTED_VALUES.items():
        if name in fields and fields[name] not in values:
            raise InputError(f"{path}: {name} is not supported", got=fields[name], expected=json.dumps(values[0]))
    rank, alpha = fields.get("r"), fields.get("lora_alpha")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise InputError(f"{path}: r", got=json.dumps(rank), expected="a whole number, at least 1")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < float("inf"):
        raise InputError(f"{path}: lora_alpha", got=json.dumps(alpha), expected="a positive number")
    return rank, float(alpha)


def _line(problem: Exception) -> str:
    return re.sub(r"\s+", " ", f"{type(problem).__name__}: {problem}")
