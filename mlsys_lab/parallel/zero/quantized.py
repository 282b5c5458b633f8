"""ZeRO++ (Wang et al., arXiv:2306.10209): weights and gradients of FSDP sent as block-quantized int8."""

from __future__ import annotations

import torch

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_to_all import all_to_all
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.collectives.reduce_scatter import all_gather_steps
from mlsys_lab.comm.collectives.steps import Steps
from mlsys_lab.parallel.data.compression import BlockQuantizer
from mlsys_lab.parallel.tags import Tag
from mlsys_lab.parallel.zero.fsdp import FSDPCollectives


class Int8Collectives(FSDPCollectives):
    """Collectives in int8 with a scale for each block: about half the bytes of bf16.

    Weights are quantized once, and so are gradients, which go straight to the rank that sums them (§3.1 and §3.3 of the
    paper, which sends gradients in 4 bits, within nodes first). The quantization error is lost.
    """

    def __init__(self, block_size: int = 256) -> None:
        self._quantizer = BlockQuantizer(block_size)

    def all_gather(self, group: Rank, shard: torch.Tensor) -> Steps[list[torch.Tensor]]:
        """Return all ranks' flat shards, in order of rank; this rank's own is quantized too."""
        codes, scales = self._quantizer.quantize(shard)
        all_codes = yield from all_gather_steps(group, codes, Tag.WEIGHTS)
        all_scales = yield from all_gather_steps(group, scales, Tag.WEIGHTS)
        return [self._quantizer.dequantize(*one, shard.dtype) for one in zip(all_codes, all_scales, strict=True)]

    def reduce_scatter(self, group: Rank, gradients: torch.Tensor) -> Steps[torch.Tensor]:
        """Return this rank's chunk of the sum of all ranks' flat tensors. Runs at once and leaves nothing in flight."""
        quantized = [self._quantizer.quantize(chunk) for chunk in split_chunks(gradients, group.size)]
        codes, scales = (all_to_all(group, list(tensors), Tag.GRADIENTS) for tensors in zip(*quantized, strict=True))
        yield from ()
        return sum(
            (self._quantizer.dequantize(*one, gradients.dtype) for one in zip(codes, scales, strict=True)),
            start=torch.zeros_like(split_chunks(gradients, group.size)[group.rank]),
        )
