"""Products of 8-bit activations and 8-bit weights, except for a few inputs with outlier activations.

Dettmers et al. 2022, LLM.int8() (arXiv:2208.07339), §3. One large activation sets the scale of its vector, so that all
others round to nearly nothing; outliers occur in few columns, which are the same for all tokens.
Dimension letters: O outputs, I inputs, R inputs in 8 bits, ... any leading axes.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.efficiency.formats import INT8
from mlsys_lab.efficiency.quantization.calibration import quantize_tensor
from mlsys_lab.efficiency.quantization.scheme import Scheme
from mlsys_lab.efficiency.quantization.tensor import QuantizedTensor

THRESHOLD = 6.0
"""Smallest magnitude of an outlier activation (§3.2)."""
BY_ROW = Scheme(INT8, "channel", scale_dtype=torch.float32)


class MixedInt8Linear(nn.Module):
    """Weights in int8 by output, activations in int8 by token, and outlier inputs of both in 16 bits.

    Outliers are the inputs that reach `threshold` anywhere in the calibration activations `inputs` (n, I); the paper
    finds them again in each batch. `codes` (O, R) and `scale` (O, 1) are of the other inputs, `kept` (O, I - R) of the
    outliers, in bf16. A product of codes is computed in fp32, exactly up to 1,040 inputs.
    """

    regular: torch.Tensor
    outliers: torch.Tensor
    codes: torch.Tensor
    scale: torch.Tensor
    kept: torch.Tensor
    bias: torch.Tensor | None

    def __init__(
        self,
        weight: torch.Tensor,
        inputs: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        threshold: float = THRESHOLD,
    ) -> None:
        super().__init__()
        self.register_buffer("bias", None if bias is None else bias.detach().float())
        large = inputs.detach().abs().amax(0) >= threshold  # (I,)
        self.register_buffer("regular", (~large).nonzero()[:, 0].int())
        self.register_buffer("outliers", large.nonzero()[:, 0].int())
        regular = quantize_tensor(weight[:, ~large], BY_ROW)
        self.register_buffer("codes", regular.codes)
        self.register_buffer("scale", regular.scale)
        self.register_buffer("kept", weight.detach()[:, large].bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply in 8 bits and in 16, and add both: (..., I) -> (..., O)."""
        tokens = x.reshape(-1, x.shape[-1])  # (n, I)
        codes, scale, *_ = self._quantize(tokens)  # (n, R) and (n, 1)
        product = F.linear(codes.float(), self.codes.float()) * scale * self.scale[:, 0]  # (n, O)
        product = product + F.linear(tokens[:, self.outliers].float(), self.kept.float(), self.bias)
        return product.to(x.dtype).view(*x.shape[:-1], -1)

    def weight(self) -> torch.Tensor:
        """Dequantized weights, (O, I) in fp32."""
        return self._merge(self.codes.float() * self.scale, self.kept.float())

    def weight_error_bound(self) -> torch.Tensor:
        """Half a scale of each weight, or the rounding of an outlier to bf16, 2⁻⁸ of it; (O, I)."""
        return self._merge((self.scale / 2).expand(self.codes.shape), self.kept.float().abs() * 2**-8)

    def error_bound(self, x: torch.Tensor) -> torch.Tensor:
        """Largest error of each output from quantized weights and activations, (n, I) -> (n, O).

        Σ |x| · (half the weight's scale) + (|weight| + half its scale) · (half the activation's scale), the latter over
        inputs in 8 bits; plus floating-point rounding.
        """
        weights = F.linear(x.abs().float(), self.weight_error_bound())
        magnitudes = ((self.codes.float().abs() + 0.5) * self.scale).sum(-1)  # (O,)
        return weights + self._quantize(x).scale / 2 * magnitudes

    def _quantize(self, tokens: torch.Tensor) -> QuantizedTensor:
        return quantize_tensor(tokens[:, self.regular], BY_ROW)

    def _merge(self, regular: torch.Tensor, outliers: torch.Tensor) -> torch.Tensor:
        """Columns of both kinds in the order of the inputs."""
        merged = regular.new_empty(len(self.scale), len(self.regular) + len(self.outliers))
        merged[:, self.regular], merged[:, self.outliers] = regular, outliers
        return merged
