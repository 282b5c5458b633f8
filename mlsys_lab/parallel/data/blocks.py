"""Numbers in 8 bits, with an fp32 scale for each block of them: 1 + 4/block bytes a number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from mlsys_lab.errors import InputError

LEVELS = 127


@dataclass(frozen=True)
class BlockQuantizer:
    """How flat arrays are rounded to 8 bits: in blocks of `size` numbers, each scaled by its largest magnitude.

    An array of n numbers becomes codes (n,) in int8 and scales (n/size, rounded up) in fp32. No number is off by more
    than half a step, 1/254 of its block's largest. Raises InputError for empty blocks.
    """

    size: int = 256

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError("a block has at least one number", got=self.size)

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode a flat array: codes, and the scale of each block."""
        blocks = nn.functional.pad(x, (0, -len(x) % self.size)).view(-1, self.size)
        scales = (blocks.abs().amax(1) / LEVELS).float()
        divisors = scales.masked_fill(scales == 0, 1).to(x.dtype)[:, None]
        codes = (blocks / divisors).round().clamp(-LEVELS, LEVELS).to(torch.int8)
        return codes.view(-1)[: len(x)].clone(), scales

    def decode(self, codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Numbers in a dtype, from their codes and scales."""
        return codes.to(dtype) * scales.to(dtype).repeat_interleave(self.size)[: len(codes)]
