"""Products of 8-bit activations and 8-bit weights, but for the few inputs whose activations are large.

Dettmers et al. 2022, LLM.int8() (arXiv:2208.07339), §3. One large activation sets the scale of its whole vector, so
that all others round to next to nothing; the columns that they come in are few, and the same for all tokens.
Dimension letters: O outputs, I inputs, R inputs in 8 bits, ... any leading axes.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mlsys_lab.inference.quantize.layers import QuantizedLinear, round_int8

THRESHOLD = 6.0
"""Magnitude from which on an activation is an outlier (§3.2)."""


class MixedInt8Linear(QuantizedLinear):
    """Weights in int8 by output, activations in int8 by token, and outlier inputs of both in 16 bits.

    Outliers are the inputs that reach `threshold` anywhere in `inputs` (n, I), activations of calibration; the paper
    finds them anew in each batch. `codes` (O, R) and `scale` (O, 1) are of the other inputs, `kept` (O, I - R) of the
    outliers, in bf16. A product of codes is worked out in fp32, exactly up to 1,040 inputs.
    """

    regular: torch.Tensor
    outliers: torch.Tensor
    codes: torch.Tensor
    scale: torch.Tensor
    kept: torch.Tensor

    def __init__(
        self,
        weight: torch.Tensor,
        inputs: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        threshold: float = THRESHOLD,
    ) -> None:
        super().__init__(bias)
        large = inputs.detach().abs().amax(0) >= threshold  # (I,)
        self.register_buffer("regular", (~large).nonzero()[:, 0].int())
        self.register_buffer("outliers", large.nonzero()[:, 0].int())
        codes, scale = round_int8(weight[:, ~large])
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)
        self.register_buffer("kept", weight.detach()[:, large].bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply in 8 bits and in 16, and add both: (..., I) -> (..., O)."""
        codes, scale = self._round(x)  # (..., R) and (..., 1)
        product = F.linear(codes.float(), self.codes.float()) * scale * self.scale[:, 0]  # (..., O)
        product = product + F.linear(x[..., self.outliers].float(), self.kept.float(), self.bias)
        return product.to(x.dtype)

    def weight(self) -> torch.Tensor:
        """Weights that the numbers stand for, (O, I) in fp32."""
        return self._spread(self.codes.float() * self.scale, self.kept.float())

    def half_step(self) -> torch.Tensor:
        """Most that a weight is off: half a scale, for an outlier its rounding to bf16, 2⁻⁸ of it; (O, I)."""
        return self._spread((self.scale / 2).expand(self.codes.shape), self.kept.float().abs() * 2**-8)

    def error_bound(self, x: torch.Tensor) -> torch.Tensor:
        """Most by which an output can differ from the exact layer's, (..., I) -> (..., O): weights and activations.

        Σ |x| · (half step of the weight) + (|weight| + half step) · (half step of the activation), the latter over
        inputs in 8 bits; beside the rounding of floating point.
        """
        weights = F.linear(x.abs().float(), self.half_step())
        reach = ((self.codes.float().abs() + 0.5) * self.scale).sum(-1)  # (O,)
        return weights + self._round(x)[1] / 2 * reach

    def _round(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return round_int8(x[..., self.regular])

    def _spread(self, regular: torch.Tensor, outliers: torch.Tensor) -> torch.Tensor:
        """Columns of both kinds in the order of the inputs."""
        whole = regular.new_empty(len(self.scale), len(self.regular) + len(self.outliers))
        whole[:, self.regular], whole[:, self.outliers] = regular, outliers
        return whole
