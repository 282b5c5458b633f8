"""Save and load models with quantized layers: a Hugging Face folder whose weights stay packed, on disk and in memory.

The layout is that of compressed-tensors, so vLLM and transformers read the folders too. Embedding, norms and head are
stored in floating point, and so is every layer that is not quantized. Experts are not saved quantized, and neither are
families whose checkpoints have transposed weights (GPT-2): the format has no layers for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.configs.huggingface import read_config, read_fields
from mlsys_lab.efficiency.quantization.compressed_tensors import (
    Stored,
    read_stored,
    restore,
    store,
    stored_parts,
)
from mlsys_lab.efficiency.quantization.layers import PackedTensor, QuantizedLinear
from mlsys_lab.efficiency.quantization.tensor import QuantizedTensor
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer, load
from mlsys_lab.models.attention import Attention, fused_attention
from mlsys_lab.models.layouts import LAYOUTS, Layout, StoredWeight, locate
from mlsys_lab.models.loading import Checkpoint, build_empty, load_weights
from mlsys_lab.models.saving import architecture_fields, stored_weights, write_checkpoint

QUANTIZATION, TIED = "quantization_config", "tie_word_embeddings"
HEAD = "lm_head"


def save_quantized(
    model: Transformer,
    folder: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    fields: Mapping[str, Any] | None = None,
) -> None:
    """Write config.json and the weights of a model with quantized layers to a folder, created if needed.

    dtype: of all that is not quantized. fields: the config.json that the model was loaded with, in whose architecture
    it is then written; without them it must be built like LLaMA. InputError for layers quantized in several ways, for
    schemes and families that the format does not have, and without a quantized layer.
    """
    fields = dict(architecture_fields(model) if fields is None else fields)
    layout = LAYOUTS[fields["model_type"]]
    layers = {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    stored = _find_scheme(layers)
    _require_storable(model, layers, layout, fields["model_type"])
    unquantized = dict.fromkeys(_locate(name, layout).name for name in _linear_layers(model))
    if halves := [name for name in layers if _locate(name, layout).name in unquantized]:
        raise InputError("a layer is stored with another that is not quantized", got=halves[0])
    tensors = stored_weights(model, layout, dtype) | _store_layers(model, layers, layout, stored, dtype)
    if read_config(fields).tied != model.config.tied:  # a rotated model has a head of its own
        fields[TIED] = model.config.tied
    fields[QUANTIZATION] = stored.config([HEAD, *unquantized])
    write_checkpoint(folder, fields, tensors, dtype)


def load_checkpoint(
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    attention: Attention = fused_attention,
) -> Transformer:
    """The model of a folder, as `mlsys_lab.models.load` loads it, or with quantized layers if they are stored so.

    Codes stay packed in memory; `dtype` is that of all that is not quantized. InputError, in one line, for what `load`
    refuses, and for another `quant_method` than compressed-tensors with integers, which the line names.
    """
    folder = Path(folder)
    fields = read_fields(folder / "config.json")
    config = fields.get(QUANTIZATION)
    if not config:
        return load(folder, dtype=dtype, device=device, attention=attention)
    stored = read_stored(config, str(folder))
    model, checkpoint = build_empty(folder, fields, attention), Checkpoint(folder)
    layout = LAYOUTS[fields.text("model_type")]
    loaded: set[str] = set()
    for name, linear in _linear_layers(model).items():
        scale = checkpoint.rename(locate(f"{name}.weight_scale", layout))
        if scale.name in checkpoint.files:  # else it is not quantized
            weight, names = _load_weight(checkpoint, scale, linear.weight.shape, model.config, stored)
            bias = None
            if linear.bias is not None:
                where = checkpoint.rename(locate(f"{name}.bias", layout))
                whole = checkpoint.tensor(where.name, where.shape(linear.bias.shape, model.config))
                bias = where.take(whole, model.config).clone()
                names.append(where.name)
            layer = QuantizedLinear.from_packed(weight, bias, activations=stored.activations)
            model.set_submodule(name, layer.to(device))
            loaded.update(names)
    load_weights(model, checkpoint, layout, dtype=dtype, device=device, loaded=loaded)
    return model


def _linear_layers(model: Transformer) -> dict[str, nn.Linear]:
    """Linear layers of the blocks that are not quantized, by name."""
    modules = model.blocks.named_modules(prefix="blocks")
    return {name: module for name, module in modules if isinstance(module, nn.Linear)}


def _locate(layer: str, layout: Layout) -> StoredWeight:
    """Location of a linear layer: as that of its weight, but with the name of the layer."""
    weight = locate(f"{layer}.weight", layout)
    return replace(weight, name=weight.name.removesuffix(".weight"))


def _find_scheme(layers: Mapping[str, nn.Module]) -> Stored:
    """How all layers are quantized; InputError if none is, or not all in one way."""
    schemes = {(layer.scheme, layer.activations) for layer in layers.values() if isinstance(layer, QuantizedLinear)}
    if len(schemes) != 1:
        raise InputError("a checkpoint has one scheme for all quantized layers", got=f"{len(schemes)} schemes")
    return Stored(*schemes.pop())


def _require_storable(model: Transformer, layers: Mapping[str, nn.Module], layout: Layout, family: str) -> None:
    """Raise InputError unless the format has layers for the model's."""
    if model.config.experts is not None:
        raise InputError("experts are not saved quantized", got=family, expected="a model without experts")
    if any(locate(f"{name}.weight", layout).transposed for name in layers):
        expected = "a family of linear layers, such as llama, qwen2 or opt"
        raise InputError("compressed-tensors has no transposed layers", got=family, expected=expected)


def _store_layers(
    model: Transformer, layers: Mapping[str, QuantizedLinear], layout: Layout, stored: Stored, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Tensors of the quantized layers, by their names in the checkpoint; those that it stacks are put together."""
    stacks: dict[str, dict[int, tuple[StoredWeight, QuantizedLinear]]] = {}
    for name, layer in layers.items():
        where = _locate(name, layout)
        stacks.setdefault(where.name, {})[where.part] = where, layer
    tensors: dict[str, torch.Tensor] = {}
    for prefix, parts in stacks.items():
        where = parts[0][0]
        weights = [parts[part][1].quantized_weight() for part in sorted(parts)]
        biases = [parts[part][1].bias for part in sorted(parts)]
        join = partial(where.join, config=model.config)
        zero_points = [weight.zero_point for weight in weights if weight.zero_point is not None]
        whole = QuantizedTensor(
            join([weight.codes for weight in weights]),
            join([weight.scale for weight in weights]),
            join(zero_points) if zero_points else None,
            weights[0].scheme,
        )
        tensors |= {f"{prefix}.{part}": tensor.cpu() for part, tensor in store(whole, stored).items()}
        if given := [bias.to("cpu", dtype) for bias in biases if bias is not None]:
            tensors[f"{prefix}.bias"] = join(given)
    return tensors


def _load_weight(
    checkpoint: Checkpoint, scale: StoredWeight, shape: torch.Size, config: TransformerConfig, stored: Stored
) -> tuple[PackedTensor, list[str]]:
    """The weight (O, I) of a layer whose scale is stored at `scale`, and the names of the tensors that were read."""
    rows, inputs = scale.shape(shape, config)
    prefix = scale.name.removesuffix("weight_scale")
    layout = stored_parts(stored, rows, inputs)
    parts = {part: checkpoint.tensor(prefix + part, *expected) for part, expected in layout.items()}
    try:
        whole = restore(parts, stored, rows, inputs)
    except InputError as error:
        raise InputError(f"{prefix.removesuffix('.')} in {checkpoint.folder}: {error}") from None
    # Copy, so that no view keeps a stacked tensor alive.
    packed, scales = (scale.take(one, config).clone().contiguous() for one in (whole.packed, whole.scale))
    zero_point = None if whole.zero_point is None else scale.take(whole.zero_point, config).clone()
    return whole._replace(packed=packed, scale=scales, zero_point=zero_point), [prefix + part for part in parts]
