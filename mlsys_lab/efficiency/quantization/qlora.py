"""QLoRA: frozen 4-bit weights, and low-rank adapters that train.

Dettmers et al. 2023 (arXiv:2305.14314), §3. Weights are NF4 in blocks of 64; their scales are quantized as well, to 8
bits in blocks of 256 (double quantization). Dimension letters: O outputs, I inputs, r rank, G scales of a row, S scales
of a matrix, ... any leading axes.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.efficiency.formats import E4M3, NF4, decode, encode, pack, unpack
from mlsys_lab.efficiency.quantization.calibration import quantize_tensor
from mlsys_lab.efficiency.quantization.scheme import Scheme
from mlsys_lab.efficiency.quantization.tensor import QuantizedTensor
from mlsys_lab.flops.number_formats import scaled_bits
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_at_least_one, require_positive

BLOCK, SCALE_BLOCK = 64, 256
SCHEME = Scheme(NF4, "group", BLOCK, scale_dtype=torch.float32)


class ScaleCodes(NamedTuple):
    """Scales (S,) in 8 bits: mean + block_scale · code, with a `block_scale` in fp32 for 256 of them.

    `codes` are E4M3 in uint8. Scales are positive; without their mean they use both signs of the codes.
    """

    codes: torch.Tensor
    block_scale: torch.Tensor
    mean: torch.Tensor

    def dequantize(self) -> torch.Tensor:
        """The scales (S,), in fp32."""
        block_scale = self.block_scale.repeat_interleave(SCALE_BLOCK)[: len(self.codes)]
        return self.mean + block_scale * decode(self.codes, E4M3)


def quantize_scales(scale: torch.Tensor) -> ScaleCodes:
    """Quantize positive scales (S,) to 8 bits, in blocks of 256; the last block may be smaller."""
    scale = scale.detach().float()
    mean = scale.mean()
    padded = F.pad(scale - mean, (0, -len(scale) % SCALE_BLOCK)).view(-1, SCALE_BLOCK)
    block_scale = padded.abs().amax(-1) / E4M3.largest
    block_scale = block_scale.masked_fill(block_scale == 0, 1)
    codes = encode(padded / block_scale[:, None], E4M3).flatten()[: len(scale)]
    return ScaleCodes(codes, block_scale, mean)


class QLoRALinear(nn.Module):
    """Linear layer W x + (α/r) B A x with frozen W in NF4, double-quantized, and A (r, I) and B (O, r) that train.

    A is normal with deviation 1/√I and B zero, so training starts from the quantized layer. W is dequantized in the
    forward pass, and again in the backward pass, which keeps no copy of it. InputError if blocks of 64 do not divide I.
    """

    packed: torch.Tensor
    scale_codes: torch.Tensor
    block_scale: torch.Tensor
    mean: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, linear: nn.Linear, lora_rank: int, *, lora_alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        require_at_least_one(lora_rank=lora_rank)
        require_positive(lora_alpha=lora_alpha)
        weight = quantize_tensor(linear.weight, SCHEME)
        scales = quantize_scales(weight.scale.flatten())
        self.register_buffer("packed", pack(weight.codes, NF4.bits))
        self.register_buffer("scale_codes", scales.codes)
        self.register_buffer("block_scale", scales.block_scale)
        self.register_buffer("mean", scales.mean)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.lora_scale = lora_alpha / lora_rank
        a = torch.randn(lora_rank, linear.in_features, generator=generator) * linear.in_features**-0.5
        self.a, self.b = nn.Parameter(a), nn.Parameter(torch.zeros(linear.out_features, lora_rank))

    def weight(self) -> torch.Tensor:
        """Dequantized frozen weights, (O, I) in fp32."""
        scale = ScaleCodes(self.scale_codes, self.block_scale, self.mean).dequantize()
        codes = unpack(self.packed, NF4.bits)
        return QuantizedTensor(codes, scale.view(self.out_features, -1), None, SCHEME).dequantize()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply with the frozen weights and add the adapter: (..., I) -> (..., O)."""
        y: torch.Tensor = _FrozenProduct.apply(x, self)  # type: ignore[no-untyped-call]
        y = y + self.lora_scale * (x @ self.a.mT.to(x.dtype) @ self.b.mT.to(x.dtype))
        return y if self.bias is None else y + self.bias.to(x.dtype)


class _FrozenProduct(torch.autograd.Function):
    """x Wᵀ for the weights of a layer, which have no gradient: (..., I) -> (..., O)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: QLoRALinear) -> torch.Tensor:
        """Dequantize and multiply; keep the layer alone."""
        ctx.layer = layer
        return F.linear(x, layer.weight().to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Dequantize again for the gradient of x: (..., O) -> (..., I)."""
        return grad @ ctx.layer.weight().to(grad.dtype), None


def add_qlora(model: Transformer, lora_rank: int, *, lora_alpha: float, seed: int) -> Transformer:
    """A copy of a model with a `QLoRALinear` for each linear layer of its blocks (§4), and all other weights frozen."""
    tuned, generator = copy.deepcopy(model).requires_grad_(False), torch.Generator().manual_seed(seed)
    for block in tuned.blocks:
        linears = [(name, module) for name, module in block.named_modules() if isinstance(module, nn.Linear)]
        for name, linear in linears:
            parent, _, child = name.rpartition(".")
            layer = QLoRALinear(linear, lora_rank, lora_alpha=lora_alpha, generator=generator)
            setattr(block.get_submodule(parent), child, layer)
    return tuned


def bits_per_parameter(*, double: bool = True) -> float:
    """Bits of a frozen weight with its part of the scales: 0.5 for fp32 scales of blocks, 0.127 if quantized (§3).

    The mean of a matrix's scales, 32 bits, is not counted.

    >>> bits_per_parameter(double=False), round(bits_per_parameter(), 3)
    (4.5, 4.127)
    >>> 65e9 * (bits_per_parameter(double=False) - bits_per_parameter()) / 8e9  # "approximately 3 GB for a 65B model"
    3.031005859375
    """
    return scaled_bits(NF4.bits, *([(8, BLOCK), (32, BLOCK * SCALE_BLOCK)] if double else [(32, BLOCK)]))


def training_bytes(parameters: float, adapter_parameters: float, *, state_bytes: float = 12) -> float:
    """Bytes of frozen weights, and of an adapter's weights, gradients and optimizer states.

    `state_bytes` of a parameter that trains are by default 2 for the weight, 2 for the gradient and 8 for Adam, of
    which the paper's 780 GB for all parameters of a 65B model consist (§1). Activations are not counted.

    >>> 12 * 65e9 / 1e9, round(training_bytes(65e9, 0.8e9) / 1e9, 1)
    (780.0, 43.1)
    """
    return parameters * bits_per_parameter() / 8 + adapter_parameters * state_bytes
