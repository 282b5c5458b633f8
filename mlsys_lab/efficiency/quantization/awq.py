"""Activation-aware scaling (AWQ): weights of large inputs are scaled up before rounding, so their errors shrink.

Lin et al. 2023, AWQ (arXiv:2306.00978), §3.2. Dimension letters: O outputs, I inputs, n tokens.
"""

from __future__ import annotations

import torch
from torch import nn

from mlsys_lab.efficiency.quantization.calibration import Clipping, quantize_tensor
from mlsys_lab.efficiency.quantization.folding import Link, inner_links, norm_links, scale_input
from mlsys_lab.efficiency.quantization.gptq import hessian
from mlsys_lab.efficiency.quantization.scheme import Scheme
from mlsys_lab.errors import InputError
from mlsys_lab.models.transformer import Block

EXPONENTS = tuple(step / 20 for step in range(20))
"""Exponents of the mean magnitude of inputs that are tried; 0 leaves the weights as they are."""


def awq_scale(weight: torch.Tensor, inputs: torch.Tensor, scheme: Scheme, method: Clipping = "max") -> torch.Tensor:
    """What weights (O, I) are multiplied by before rounding, and inputs (n, I) divided by: (I,), equations 4 and 5.

    A power of each input's mean magnitude, with the exponent that gives outputs on `inputs` the least squared error;
    the smallest scale is the inverse of the largest. InputError for inputs of another layer, and for none.
    """
    if inputs.ndim != 2 or inputs.shape[-1] != weight.shape[-1] or not len(inputs):
        raise InputError("inputs of another layer", got=tuple(inputs.shape), expected=f"(n, {weight.shape[-1]}), n > 0")
    h, w = hessian(inputs), weight.detach().double()
    magnitude = inputs.detach().double().abs().mean(0)
    magnitude = magnitude.clamp(min=1e-4 * magnitude.max())  # an input that is hardly ever used
    least, best = torch.inf, torch.ones_like(magnitude)
    for exponent in EXPONENTS:
        scale = magnitude**exponent
        scale = scale / (scale.max() * scale.min()).sqrt()
        off = quantize_tensor(w * scale, scheme, method).dequantize() / scale - w
        error = float(((off @ h) * off).sum())  # ‖inputs · offᵀ‖²
        if error < least:
            least, best = error, scale
    return best.to(weight.dtype)


def scale_block(
    block: Block, inputs: dict[nn.Module, torch.Tensor], scheme: Scheme, method: Clipping = "max"
) -> dict[nn.Module, torch.Tensor]:
    """Scale the linear layers of a block in place, each by `awq_scale` of those with the same input.

    Only where the division can be folded into the norm or linear layer before. Returns the activations that follow.
    """
    scaled = dict(inputs)
    for link in (*norm_links(block), *inner_links(block)):
        scale = _shared_scale(link, inputs, scheme, method)
        if scale is not None:
            scale_input(link, scale)
            scaled |= {consumer: scaled[consumer] / scale for consumer in link.consumers if consumer in scaled}
    return scaled


def _shared_scale(
    link: Link, inputs: dict[nn.Module, torch.Tensor], scheme: Scheme, method: Clipping
) -> torch.Tensor | None:
    """One scale for all consumers of a link; None for an expert that no token has reached."""
    seen = inputs.get(link.consumers[0])
    if seen is None or not len(seen):
        return None
    return awq_scale(torch.cat([consumer.weight for consumer in link.consumers]), seen, scheme, method)
