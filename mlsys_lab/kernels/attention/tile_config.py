"""Tile sizes of the attention kernels, and the configurations that autotuning tries."""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_power_of_two

MAX_UNROLLED = 32 * 32
"""Queries times keys of the largest tile whose multiply-adds are all unrolled; larger ones compile for minutes."""


@dataclass(frozen=True)
class TileConfig:
    """Queries (`block_m`) and keys (`block_n`) of a tile, and the warps and pipeline stages for the compiler."""

    block_m: int = 128
    block_n: int = 128
    num_warps: int = 8
    num_stages: int = 2

    def __post_init__(self) -> None:
        for name, size in (("block_m", self.block_m), ("block_n", self.block_n)):
            require_power_of_two(f"{name} of attention", size, at_least=16)
        if self.num_warps not in (1, 2, 4, 8, 16) or self.num_stages < 1:
            raise InputError(
                "num_warps and num_stages of attention",
                got=f"{self.num_warps} and {self.num_stages}",
                expected="1, 2, 4, 8 or 16, and 1 or more",
            )

    def shared_bytes(self, kernel: str, head_dim: int, itemsize: int) -> int:
        """Bytes of shared memory of a kernel's tiles: those it keeps, and those of the loop in flight."""
        rows = {
            "forward": self.block_m + 2 * self.block_n * self.num_stages,
            "dkdv": 2 * self.block_n + 2 * self.block_m * self.num_stages,
            "dq": 2 * self.block_m + 2 * self.block_n * self.num_stages,
        }[kernel]
        return rows * head_dim * itemsize

    def constants(self, head_dim: int) -> dict[str, int]:
        """Keyword arguments of a launch: the kernel's constants, num_warps and num_stages."""
        blocks = {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_D": head_dim}
        return blocks | {"num_warps": self.num_warps, "num_stages": self.num_stages}


_CONFIGS = {
    "forward": (
        TileConfig(),
        TileConfig(block_n=64, num_stages=3),
        TileConfig(block_n=64),
        TileConfig(block_n=64, num_warps=4),
        TileConfig(block_n=32, num_warps=4, num_stages=3),
        TileConfig(block_m=64, block_n=64, num_warps=4),
        TileConfig(block_m=64, block_n=32, num_warps=4),
        TileConfig(block_m=32, block_n=32),
        TileConfig(block_m=16, block_n=16, num_warps=4, num_stages=1),
    ),
    "dkdv": (
        TileConfig(block_m=64),
        TileConfig(block_m=64, num_stages=3),
        TileConfig(block_m=64, block_n=64, num_warps=4),
        TileConfig(block_m=32, block_n=64),
        TileConfig(block_m=32, block_n=64, num_warps=4),
        TileConfig(block_m=32, block_n=32),
        TileConfig(block_m=16, block_n=16, num_warps=4, num_stages=1),
    ),
    "dq": (
        TileConfig(block_n=64),
        TileConfig(block_n=64, num_stages=3),
        TileConfig(),
        TileConfig(block_m=64, block_n=64, num_warps=4),
        TileConfig(block_n=32),
        TileConfig(block_m=32, block_n=32),
        TileConfig(block_m=16, block_n=16, num_warps=4, num_stages=1),
    ),
}
"""Configurations for autotuning by kernel.

With 8 warps a thread block has a multiprocessor to itself, and its tensor cores wait during a softmax. With 4, two
thread blocks fit: one can multiply while the other computes exponentials, at the price of more loads of keys from L2 or
a few spilled registers. Which is faster is measured.
"""

KERNELS = tuple(_CONFIGS)
"""Names of the autotuned kernels of the forward and backward passes."""


def candidate_configs(
    kernel: str, head_dim: int, itemsize: int, max_shared_bytes: int, *, unrolled: bool = False
) -> list[TileConfig]:
    """Configurations of a kernel that fit in `max_shared_bytes`; if `unrolled`, only those with few multiply-adds."""
    return [
        config
        for config in _CONFIGS[kernel]
        if config.shared_bytes(kernel, head_dim, itemsize) <= max_shared_bytes
        and not (unrolled and config.block_m * config.block_n > MAX_UNROLLED)
    ]
