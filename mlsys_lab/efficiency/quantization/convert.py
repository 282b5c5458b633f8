"""Quantize a model: a copy whose blocks have quantized linear layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import nn

from mlsys_lab.efficiency.quantization.gptq import compensate
from mlsys_lab.efficiency.quantization.layers import Int4Linear, Int8Linear, QuantizedLinear
from mlsys_lab.efficiency.quantization.llm_int8 import MixedInt8Linear
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.models import Transformer

Make = Callable[[nn.Linear, torch.Tensor], QuantizedLinear]
"""Type of a function that quantizes a layer, given its input activations (n, I); (0, I) without calibration."""

SCHEMES: Mapping[str, Make] = {
    "int8": lambda linear, _: Int8Linear(linear.weight, linear.bias),
    "int4": lambda linear, _: Int4Linear.from_weight(linear.weight, linear.bias),
    "int4-compensated": lambda linear, inputs: compensate(linear.weight, inputs, linear.bias).layer,
    "llm-int8": lambda linear, inputs: MixedInt8Linear(linear.weight, inputs, linear.bias),
}
"""Quantization schemes by name: int8 weights; int4 weights rounded to nearest, or compensated (GPTQ); LLM.int8."""
CALIBRATED = ("int4-compensated", "llm-int8")


def quantize(model: Transformer, scheme: str | Make, calibration: torch.Tensor | None = None) -> Transformer:
    """A copy of a model with every linear layer of its blocks quantized; embedding, norms and head are not.

    `scheme` is a name in `SCHEMES`, or a function of a layer and its activations (n, I). These come from a forward pass
    over `calibration`, token ids (B, T), block by block, so that a block sees the outputs of the quantized ones before.
    InputError for an unknown scheme, and for one that needs calibration without it.
    """
    if isinstance(scheme, str):
        if scheme not in SCHEMES:
            expected = f"one of {', '.join(SCHEMES)}"
            raise InputError(
                "unknown quantization scheme", got=scheme, expected=expected, help=did_you_mean(scheme, SCHEMES)
            )
        if scheme in CALIBRATED and calibration is None:
            raise InputError(f"{scheme} needs activations", expected="token ids (B, T) for calibration")
    make = SCHEMES[scheme] if isinstance(scheme, str) else scheme
    quantized = copy.deepcopy(model)
    for block in quantized.blocks:
        linears = {name: module for name, module in block.named_modules() if isinstance(module, nn.Linear)}
        inputs = {} if calibration is None else _observe(quantized, linears, calibration)
        for name, linear in linears.items():
            seen = inputs.get(name, linear.weight.new_empty(0, linear.in_features))
            parent, _, child = name.rpartition(".")
            setattr(block.get_submodule(parent), child, make(linear, seen))
    return quantized


@torch.no_grad()
def _observe(model: Transformer, linears: Mapping[str, nn.Linear], tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Input activations of each layer in a forward pass over tokens (B, T): (n, I) by name."""
    seen: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        return lambda _, args: seen.update({name: args[0].flatten(0, -2)})

    hooks = [linear.register_forward_pre_hook(keep(name)) for name, linear in linears.items()]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
