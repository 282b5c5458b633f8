"""a·b in CUDA C++: the ladder in fp32 (steps.cu) and the tensor cores in bf16 (tensor_cores.cu).

Tile sizes are template arguments, by default `WARP_TILE` and `TENSOR_TILES`; `TUNED_FP32` and `TUNED_BF16` are
candidates for a benchmark.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from pathlib import Path

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import arguments, cuda_cpp
from mlsys_lab.kernels.cuda_cpp.launcher import starts_at_16_bytes

FP32 = cuda_cpp.Source.read(Path(__file__).with_name("steps.cu"))
BF16 = cuda_cpp.Source.read(Path(__file__).with_name("tensor_cores.cu"))

STEPS = {
    "naive": "one thread per element, neighbours in neighbouring rows",
    "coalesced": "neighbours in neighbouring columns: a warp loads and stores consecutive elements of a row",
    "shared_tile": "tiles in shared memory: a block loads each element once",
    "register_tile_1d": "a thread computes 8 elements of a column: b's element stays in a register",
    "register_tile_2d": "a thread computes 8×8 elements: 16 loads from shared memory for 64 multiply-adds",
    "vectorised": "16 bytes per load, with a's tile transposed",
    "warp_tile": "a warp computes a nearly square tile, the next tiles are loaded meanwhile",
    "tensor_cores": "bf16: a warp multiplies 16×16 by 16×8 at once, tiles arrive asynchronously",
}


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of "warp_tile": elements of c per block, warp and thread; `depth` steps along k at a time."""

    rows: int
    columns: int
    depth: int
    warp_rows: int
    warp_columns: int
    thread_rows: int
    thread_columns: int


@dataclass(frozen=True)
class TensorTiles:
    """Tile sizes of "tensor_cores": of c for a block and a warp; `depth` along k, `stages` in shared memory."""

    rows: int
    columns: int
    depth: int
    warp_rows: int
    warp_columns: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // self.warp_rows * (self.columns // self.warp_columns) * 32

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        return 2 * self.stages * self.depth * (self.rows + self.columns)


WARP_TILE = Tiles(128, 128, 16, 64, 32, 8, 8)
TENSOR_TILES = TensorTiles(128, 256, 32, 64, 64, 4)
TUNED_FP32 = (
    WARP_TILE,
    Tiles(128, 128, 8, 64, 32, 8, 8),
    Tiles(128, 128, 8, 32, 64, 8, 8),
    Tiles(128, 256, 8, 64, 64, 16, 8),
)
TUNED_BF16 = (
    TENSOR_TILES,
    TensorTiles(128, 128, 32, 64, 32, 4),
    TensorTiles(128, 128, 64, 64, 32, 3),
    TensorTiles(128, 256, 64, 64, 64, 3),
)


def run(
    step: str,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    tiles: Tiles | TensorTiles | None = None,
    launch: cuda_cpp.Launcher = cuda_cpp.launch,
) -> torch.Tensor:
    """Product a·b of two contiguous matrices on a GPU: fp32, for "tensor_cores" bf16 summed in fp32.

    `tiles` are for "warp_tile" (Tiles) and "tensor_cores" (TensorTiles); `launch` runs the kernel.
    Raises InputError for an unknown step and for tensors that do not match, MissingToolError without a GPU.
    """
    arguments.check_step(step, STEPS)
    arguments.check_contiguous((torch.bfloat16 if step == "tensor_cores" else torch.float32,), a=a, b=b)
    arguments.check_rank(2, a=a, b=b)
    (m, k), n = a.shape, b.shape[1]
    arguments.check_shape((k, n), b=b)
    wanted = {"warp_tile": Tiles, "tensor_cores": TensorTiles}.get(step)
    if tiles is not None and (wanted is None or not isinstance(tiles, wanted)):
        raise InputError(f"these are no tiles of step {step!r}", got=tiles, expected=wanted and wanted.__name__)
    if 0 in (m, n, k):
        return a.new_zeros(m, n)
    c = a.new_empty(m, n)
    source, kernel, grid, block, shared_bytes = _plan(step, m, n, k, starts_at_16_bytes(a, b), tiles)
    launch(source, kernel, grid, block, a, b, c, m, n, k, shared_bytes=shared_bytes)
    return c


def _plan(
    step: str, m: int, n: int, k: int, starts_well: bool, tiles: Tiles | TensorTiles | None
) -> tuple[cuda_cpp.Source, str, tuple[int, ...], tuple[int, ...], int]:
    """Source, kernel, grid, block and bytes of dynamic shared memory of a step's launch for these sizes."""
    by_fours = str(starts_well and n % 4 == 0 and k % 4 == 0).lower()
    by_eights = str(starts_well and n % 8 == 0 and k % 8 == 0).lower()
    if step == "naive":
        return FP32, "naive", (math.ceil(m / 32), math.ceil(n / 8)), (32, 8), 0
    if step == "coalesced":
        return FP32, "coalesced", (math.ceil(n / 32), math.ceil(m / 8)), (32, 8), 0
    if step == "shared_tile":
        return FP32, "shared_tile<32>", (math.ceil(n / 32), math.ceil(m / 32)), (32, 32), 0
    if step == "register_tile_1d":
        return FP32, "register_tile_1d<64, 64, 8, 8>", (math.ceil(n / 64), math.ceil(m / 64)), (512,), 0
    if step == "register_tile_2d":
        return FP32, "register_tile_2d<128, 128, 8, 8, 8>", (math.ceil(n / 128), math.ceil(m / 128)), (256,), 0
    if step == "vectorised":
        kernel = f"vectorised<{by_fours}, 128, 128, 8, 8, 8>"
        return FP32, kernel, (math.ceil(n / 128), math.ceil(m / 128)), (256,), 0
    if step == "warp_tile":
        simt = tiles if isinstance(tiles, Tiles) else WARP_TILE
        kernel = f"warp_tile<{by_fours}, {', '.join(map(str, astuple(simt)))}>"
        threads = simt.rows * simt.columns // (simt.thread_rows * simt.thread_columns)
        return FP32, kernel, (math.ceil(n / simt.columns), math.ceil(m / simt.rows)), (threads,), 0
    chosen = tiles if isinstance(tiles, TensorTiles) else TENSOR_TILES
    kernel = f"tensor_cores<{by_eights}, {', '.join(map(str, astuple(chosen)))}>"
    blocks = math.ceil(m / chosen.rows) * math.ceil(n / chosen.columns)
    return BF16, kernel, (blocks,), (chosen.threads,), chosen.shared_bytes
