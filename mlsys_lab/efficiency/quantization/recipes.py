"""Recipes: how the linear layers of a model are quantized, and named ones.

Dimension letters: O outputs, I inputs, n tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn

from mlsys_lab.efficiency.formats import E2M1, INT8, NF4, UINT4
from mlsys_lab.efficiency.quantization.calibration import Clipping, choose_scale, quantize_tensor
from mlsys_lab.efficiency.quantization.gptq import gptq, hessian
from mlsys_lab.efficiency.quantization.layers import QuantizedLinear
from mlsys_lab.efficiency.quantization.llm_int8 import MixedInt8Linear
from mlsys_lab.efficiency.quantization.scheme import Scheme
from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_one_of

Make = Callable[[nn.Linear, torch.Tensor], nn.Module]
"""Type of a function that quantizes a layer, given its input activations (n, I); (0, I) without calibration."""
Method = Literal["rtn", "gptq", "awq"]
"""How weights are rounded: to nearest; with error compensation; or to nearest after activation-aware scaling."""
Transform = Literal["smooth", "rotate"]
"""What is done to a model before, which leaves its function as it is: SmoothQuant, or a rotated residual stream."""


@dataclass(frozen=True)
class Recipe:
    """How a model is quantized: the weights of its linear layers, their inputs if they have a scheme, and how.

    `clipping` chooses the scales of weights, and of activations that have a fixed scale (strategy "tensor");
    `act_order` is GPTQ's.
    """

    weights: Scheme
    method: Method = "rtn"
    activations: Scheme | None = None
    transform: Transform | None = None
    clipping: Clipping = "max"
    act_order: bool = False

    def __post_init__(self) -> None:
        require_one_of("method of quantization", self.method, get_args(Method))
        if self.transform is not None:
            require_one_of("transform", self.transform, get_args(Transform))

    @property
    def needs_calibration(self) -> bool:
        """Whether activations of real text are needed."""
        return self.method != "rtn" or self.transform == "smooth" or self._has_fixed_activations

    @property
    def _has_fixed_activations(self) -> bool:
        return self.activations is not None and self.activations.strategy == "tensor"

    def __call__(self, linear: nn.Linear, inputs: torch.Tensor) -> QuantizedLinear:
        """Quantize a layer, given its input activations (n, I): transforms and scaling come before.

        InputError without any if they are needed.
        """
        if (self.method == "gptq" or self._has_fixed_activations) and not len(inputs):
            raise InputError("empty calibration", expected="activations of at least one token")
        if self.method == "gptq":
            h = hessian(inputs)
            weight = gptq(linear.weight, h, self.weights, method=self.clipping, act_order=self.act_order)
        else:
            weight = quantize_tensor(linear.weight, self.weights, self.clipping)
        fixed = None
        if self.activations is not None and self._has_fixed_activations:
            fixed = choose_scale(inputs, self.activations, self.clipping)
        return QuantizedLinear(weight, linear.bias, activations=self.activations, input_scale=fixed)


def llm_int8(linear: nn.Linear, inputs: torch.Tensor) -> MixedInt8Linear:
    """Quantize a layer and its activations to int8, except for outlier inputs."""
    if not len(inputs):
        raise InputError("empty calibration", expected="activations of at least one token")
    return MixedInt8Linear(linear.weight, inputs, linear.bias)


INT4_GROUPS = Scheme(UINT4, "group", 32)
BY_TOKEN = Scheme(INT8, scale_dtype=torch.float32)
RECIPES: Mapping[str, Recipe | Make] = {
    "int8": Recipe(Scheme(INT8)),
    "int4": Recipe(INT4_GROUPS),
    "int4-gptq": Recipe(INT4_GROUPS, "gptq"),
    "int4-awq": Recipe(INT4_GROUPS, "awq"),
    "nf4": Recipe(Scheme(NF4, "group", 64)),
    "mxfp4": Recipe(Scheme(E2M1, "group", 32, scale_dtype=torch.float8_e8m0fnu)),
    "nvfp4": Recipe(Scheme(E2M1, "group", 16, scale_dtype=torch.float8_e4m3fn)),
    "w8a8": Recipe(Scheme(INT8), activations=BY_TOKEN),
    "w8a8-smooth": Recipe(Scheme(INT8), activations=BY_TOKEN, transform="smooth"),
    "w8a8-rotate": Recipe(Scheme(INT8), activations=BY_TOKEN, transform="rotate"),
    "llm-int8": llm_int8,
}
"""Recipes by name. Weights in 8 bits have a scale for each output, in 4 bits one for a group; "w8a8" has activations in
int8 with a scale for each token, and "llm-int8" keeps their outliers in 16 bits."""
