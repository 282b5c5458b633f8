"""How a unit's weights and gradients travel: as they are, or in 8 bits (ZeRO++, Wang et al., arXiv:2306.10209)."""

from __future__ import annotations

import torch

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.collectives.exchange import all_to_all
from mlsys_lab.comm.collectives.scattered import all_gather_steps, reduce_scatter_steps
from mlsys_lab.comm.collectives.steps import Steps
from mlsys_lab.parallel.data.averaging import GRADIENTS
from mlsys_lab.parallel.data.blocks import BlockQuantizer
from mlsys_lab.parallel.sharded.optimizer import WEIGHTS


class ZeroCollectives:
    """Weights are gathered and gradients reduce-scattered round a ring, in the dtype that they have."""

    def gather(self, group: Rank, part: torch.Tensor) -> Steps[list[torch.Tensor]]:
        """Give every rank all ranks' parts, flat arrays, in order of rank."""
        return all_gather_steps(group, part, WEIGHTS)

    def reduce_scatter(self, group: Rank, gradients: torch.Tensor) -> Steps[torch.Tensor]:
        """Give each rank its chunk of the sum of all ranks' flat arrays."""
        return reduce_scatter_steps(group, gradients, GRADIENTS)


class Int8Collectives(ZeroCollectives):
    """Weights and gradients travel in 8 bits with a scale for each block: about half of the bytes of bf16.

    Weights are rounded once, as are gradients, which go straight to the rank that adds them up (§3.1 and §3.3 of the
    paper, which sends gradients in 4 bits, first inside nodes). What rounding leaves out is lost.
    """

    def __init__(self, block: int = 256) -> None:
        self._blocks = BlockQuantizer(block)

    def gather(self, group: Rank, part: torch.Tensor) -> Steps[list[torch.Tensor]]:
        """Give every rank all ranks' parts, flat arrays, in order of rank; its own is rounded too."""
        codes, scales = self._blocks.encode(part)
        all_codes = yield from all_gather_steps(group, codes, WEIGHTS)
        all_scales = yield from all_gather_steps(group, scales, WEIGHTS)
        return [self._blocks.decode(*one, part.dtype) for one in zip(all_codes, all_scales, strict=True)]

    def reduce_scatter(self, group: Rank, gradients: torch.Tensor) -> Steps[torch.Tensor]:
        """Give each rank its chunk of the sum of all ranks' flat arrays, at once: nothing is under way behind it."""
        going = [self._blocks.encode(chunk) for chunk in split_chunks(gradients, group.size)]
        codes, scales = (all_to_all(group, [one[kind] for one in going], GRADIENTS) for kind in (0, 1))
        yield from ()
        return sum(
            (self._blocks.decode(*one, gradients.dtype) for one in zip(codes, scales, strict=True)),
            start=torch.zeros_like(split_chunks(gradients, group.size)[group.rank]),
        )
