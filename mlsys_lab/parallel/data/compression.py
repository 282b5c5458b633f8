"""Gradients averaged in fewer bytes: as 8-bit numbers in blocks, or as two thin matrices.

Both round, and keep what a step left out to add it to the next step's gradients (error feedback, Seide et al. 2014;
Karimireddy et al., arXiv:1901.09847): nothing is lost, it comes later. Letters: p ranks, a gradient (n, m), rank r.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import ring
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.collectives.exchange import all_to_all
from mlsys_lab.comm.collectives.scattered import all_gather_ring
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.data.averaging import GRADIENTS
from mlsys_lab.parallel.data.blocks import BlockQuantizer


class Int8GradientAverager:
    """Averages gradients as 8-bit numbers with an fp32 scale for each `block` of them: 1 + 4/block bytes an element.

    A rank sends each other its chunk, adds up what came, and sends the sum, rounded again (ZeRO++, arXiv:2306.10209,
    §3.3): 2·(p - 1)/p of the elements, a quarter of an fp32 all-reduce's bytes. What the first rounding leaves out is
    kept for the next step; the second, of sums, is lost.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: Rank, block: int = 256) -> None:
        self.parameters, self._group, self._blocks = list(parameters), group, BlockQuantizer(block)
        self._errors = [torch.zeros_like(one) for one in self.parameters]

    def average(self) -> None:
        """Replace every parameter's gradient by the mean over all ranks, rounded; call it after `backward()`."""
        for parameter, error in zip(self.parameters, self._errors, strict=True):
            assert parameter.grad is not None
            wanted = parameter.grad + error
            chunks = split_chunks(wanted, self._group.size)
            going = [self._blocks.encode(chunk) for chunk in chunks]
            sent = [self._blocks.decode(*one, wanted.dtype) for one in going]
            error.copy_(wanted - torch.cat(sent).view_as(wanted))
            codes, scales = ([one[kind] for one in going] for kind in (0, 1))
            codes, scales = (all_to_all(self._group, some, GRADIENTS) for some in (codes, scales))
            came = [self._blocks.decode(*one, wanted.dtype) for one in zip(codes, scales, strict=True)]
            codes, scales = (
                all_gather_ring(self._group, some, GRADIENTS) for some in self._blocks.encode(torch.stack(came).mean(0))
            )
            parts = [self._blocks.decode(*one, wanted.dtype) for one in zip(codes, scales, strict=True)]
            parameter.grad.copy_(torch.cat(parts).view_as(wanted))


class PowerSGD:
    """Averages the gradient of a matrix as a product of (n, r) and (r, m) (Vogels et al., arXiv:1905.13727).

    One step of power iteration from the last step's matrix: r·(n + m) elements are all-reduced for n·m. Vectors, and
    matrices for which that is no gain, are averaged as they are. What the product leaves out of this rank's gradient
    is kept for the next step.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: Rank, rank: int = 4, seed: int = 0) -> None:
        if rank < 1:
            raise InputError("the product of two matrices has at least rank 1", got=rank)
        self.parameters, self._group = list(parameters), group
        generator = torch.Generator().manual_seed(seed)  # all ranks begin with one matrix
        self._right: dict[nn.Parameter, torch.Tensor] = {}
        self._errors: dict[nn.Parameter, torch.Tensor] = {}
        for one in self.parameters:
            if one.ndim == 2 and rank * sum(one.shape) < one.numel():
                start = torch.randn(one.shape[1], rank, generator=generator, dtype=torch.float64)
                self._right[one], self._errors[one] = start.to(one), torch.zeros_like(one)

    def average(self) -> None:
        """Replace every parameter's gradient by the mean over all ranks, compressed; call it after `backward()`."""
        for parameter in self.parameters:
            assert parameter.grad is not None
            if parameter not in self._right:
                parameter.grad.copy_(self._mean(parameter.grad))
                continue
            wanted = parameter.grad + self._errors[parameter]
            left = torch.linalg.qr(self._mean(wanted @ self._right[parameter])).Q  # (n, r)
            right = self._mean(wanted.T @ left)  # (m, r)
            self._errors[parameter] = wanted - left @ right.T
            self._right[parameter] = right
            parameter.grad.copy_(left @ right.T)

    def _mean(self, x: torch.Tensor) -> torch.Tensor:
        return ring(self._group, x, GRADIENTS) / self._group.size
