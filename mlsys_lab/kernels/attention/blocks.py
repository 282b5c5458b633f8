"""How attention's kernels cut their work into blocks, and the candidates that autotuning tries."""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_power_of_two

LARGEST_WRITTEN_OUT = 32 * 32
"""Queries times keys of a tile whose multiply-adds are all written into the code; larger ones compile for minutes."""

WIDEST = 256
"""Widest head whose tiles fit a block's shared memory."""


@dataclass(frozen=True)
class Blocks:
    """How a kernel cuts the work: queries and keys of a tile, and the warps and stages that the compiler is given."""

    m: int = 128
    n: int = 128
    warps: int = 8
    stages: int = 2

    def __post_init__(self) -> None:
        for name, size in (("m", self.m), ("n", self.n)):
            require_power_of_two(f"blocks of attention: {name}", size, at_least=16)
        if self.warps not in (1, 2, 4, 8, 16) or self.stages < 1:
            raise InputError(
                "blocks of attention: warps and stages",
                got=f"{self.warps} and {self.stages}",
                expected="1, 2, 4, 8 or 16, and 1 or more",
            )

    def shared_bytes(self, kind: str, width: int, itemsize: int) -> int:
        """Bytes of shared memory that a kernel's tiles take: those that stay, and those of the loop in flight."""
        rows = {
            "forward": self.m + 2 * self.n * self.stages,
            "key_value": 2 * self.n + 2 * self.m * self.stages,
            "query": 2 * self.m + 2 * self.n * self.stages,
        }[kind]
        return rows * width * itemsize

    def constants(self, width: int) -> dict[str, int]:
        """Keyword arguments of a launch: the kernel's constants, and the compiler's numbers of warps and stages."""
        blocks = {"BLOCK_M": self.m, "BLOCK_N": self.n, "BLOCK_D": width}
        return blocks | {"num_warps": self.warps, "num_stages": self.stages}


_CANDIDATES = {
    "forward": (
        Blocks(),
        Blocks(n=64, stages=3),
        Blocks(n=64),
        Blocks(n=64, warps=4),
        Blocks(n=32, warps=4, stages=3),
        Blocks(m=64, n=64, warps=4),
        Blocks(m=64, n=32, warps=4),
        Blocks(m=32, n=32),
        Blocks(m=16, n=16, warps=4, stages=1),
    ),
    "key_value": (
        Blocks(m=64),
        Blocks(m=64, stages=3),
        Blocks(m=64, n=64, warps=4),
        Blocks(m=32, n=64),
        Blocks(m=32, n=64, warps=4),
        Blocks(m=32, n=32),
        Blocks(m=16, n=16, warps=4, stages=1),
    ),
    "query": (
        Blocks(n=64),
        Blocks(n=64, stages=3),
        Blocks(),
        Blocks(m=64, n=64, warps=4),
        Blocks(n=32),
        Blocks(m=32, n=32),
        Blocks(m=16, n=16, warps=4, stages=1),
    ),
}
"""Candidates for autotuning by kernel; those that do not fit the heads' width and dtype are left out.

With 8 warps a block has a multiprocessor to itself, and its tensor cores wait during a softmax. With 4, two blocks have
room: one can multiply while the other computes exponentials, at the price of more reads of keys from L2 or of a few
spilled registers. Which is faster is measured.
"""

KERNELS = tuple(_CANDIDATES)
"""Names of the kernels of the three passes."""


def candidates(kernel: str, width: int, itemsize: int, room_bytes: int, *, small: bool = False) -> list[Blocks]:
    """The cuts of a kernel for heads of `width` that fit in `room_bytes`; `small`: with few multiply-adds a tile."""
    tried = [one for one in _CANDIDATES[kernel] if not small or one.m * one.n <= LARGEST_WRITTEN_OUT]
    return [one for one in tried if one.shared_bytes(kernel, width, itemsize) <= room_bytes]
