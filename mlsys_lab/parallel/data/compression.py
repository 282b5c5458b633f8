"""Gradient compression: averages gradients in fewer bytes, as block-quantized int8 or as low-rank products (PowerSGD).

Both keep the compression error of this rank's gradients and add it to the next step's (error feedback, Seide et al.
2014; Karimireddy et al., arXiv:1901.09847). Letters: p ranks, a gradient (n, m), matrix rank r.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import all_reduce
from mlsys_lab.comm.collectives.all_to_all import all_to_all
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.collectives.reduce_scatter import all_gather
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.tags import Tag

INT8_MAX = 127
"""Largest int8 code; -128 is not used, so that codes are symmetric."""


@dataclass(frozen=True)
class BlockQuantizer:
    """Symmetric int8 quantization of flat tensors in blocks of `block_size` elements with one fp32 scale each.

    n elements become codes (n,) in int8 and scales (⌈n/block_size⌉,) in fp32: 1 + 4/block_size bytes per element. The
    error is at most half a quantization step, 1/254 of the block's largest magnitude, before the result is rounded to a
    16-bit dtype. Raises InputError unless a block has at least one element.
    """

    block_size: int = 256

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise InputError("a quantization block has at least one number", got=self.block_size)

    def quantize(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantize a flat tensor; return its codes and the scale of each block."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        blocks = nn.functional.pad(wide, (0, -len(x) % self.block_size)).view(-1, self.block_size)
        scales = (blocks.abs().amax(1) / INT8_MAX).float()
        divisors = scales.masked_fill(scales == 0, 1)[:, None]
        codes = (blocks / divisors).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)
        return codes.view(-1)[: len(x)].clone(), scales

    def dequantize(self, codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the elements in `dtype`, from their codes and scales."""
        wide = torch.promote_types(dtype, torch.float32)
        return (codes * scales.to(wide).repeat_interleave(self.block_size)[: len(codes)]).to(dtype)


class Int8GradientAverager:
    """Averages gradients in block-quantized int8: about a quarter of the bytes of an fp32 all-reduce.

    An all-to-all sends each rank its chunk of every rank's gradient; the rank sums in full precision, quantizes the sum
    again and all-gathers it (ZeRO++, arXiv:2306.10209, §3.3): 2·(p - 1)/p of the elements. The error of the first
    quantization is kept for the next step; that of the second, of sums, is lost.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: Rank, block_size: int = 256) -> None:
        self.parameters, self._group, self._quantizer = list(parameters), group, BlockQuantizer(block_size)
        self._errors = [torch.zeros_like(one) for one in self.parameters]

    def average_gradients(self) -> None:
        """Replace every gradient by the quantized mean over all ranks; call it after `backward()`."""
        for parameter, error in zip(self.parameters, self._errors, strict=True):
            assert parameter.grad is not None
            corrected = parameter.grad + error
            quantized = [self._quantizer.quantize(chunk) for chunk in split_chunks(corrected, self._group.size)]
            sent = [self._quantizer.dequantize(*one, corrected.dtype) for one in quantized]
            error.copy_(corrected - torch.cat(sent).view_as(corrected))
            codes, scales = (
                all_to_all(self._group, list(tensors), Tag.GRADIENTS) for tensors in zip(*quantized, strict=True)
            )
            received = [self._quantizer.dequantize(*one, corrected.dtype) for one in zip(codes, scales, strict=True)]
            mean = self._quantizer.quantize(torch.stack(received).mean(0))
            codes, scales = (all_gather(self._group, tensor, Tag.GRADIENTS) for tensor in mean)
            chunks = [self._quantizer.dequantize(*one, corrected.dtype) for one in zip(codes, scales, strict=True)]
            parameter.grad.copy_(torch.cat(chunks).view_as(corrected))


class PowerSGD:
    """Averages a matrix gradient as a low-rank product (n, r) @ (r, m) (Vogels et al., arXiv:1905.13727).

    One power iteration from the last step's factor: r·(n + m) elements are all-reduced instead of n·m. Vectors, and
    matrices for which that saves nothing, are averaged uncompressed. The error of this rank's gradient is kept for the
    next step.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: Rank, matrix_rank: int = 4, seed: int = 0) -> None:
        if matrix_rank < 1:
            raise InputError("a low-rank product has at least rank 1", got=matrix_rank)
        self.parameters, self._group = list(parameters), group
        generator = torch.Generator().manual_seed(seed)  # the same initial factor on all ranks
        self._right: dict[nn.Parameter, torch.Tensor] = {}
        self._errors: dict[nn.Parameter, torch.Tensor] = {}
        for one in self.parameters:
            if one.ndim == 2 and matrix_rank * sum(one.shape) < one.numel():
                factor = torch.randn(one.shape[1], matrix_rank, generator=generator, dtype=torch.float64)
                self._right[one], self._errors[one] = factor.to(one), torch.zeros_like(one)

    def average_gradients(self) -> None:
        """Replace every gradient by the compressed mean over all ranks; call it after `backward()`."""
        for parameter in self.parameters:
            assert parameter.grad is not None
            if parameter not in self._right:
                parameter.grad.copy_(self._mean(parameter.grad))
                continue
            corrected = parameter.grad + self._errors[parameter]
            left = torch.linalg.qr(self._mean(corrected @ self._right[parameter])).Q  # (n, r)
            right = self._mean(corrected.T @ left)  # (m, r)
            self._errors[parameter] = corrected - left @ right.T
            self._right[parameter] = right
            parameter.grad.copy_(left @ right.T)

    def _mean(self, x: torch.Tensor) -> torch.Tensor:
        return all_reduce(self._group, x, Tag.GRADIENTS) / self._group.size
