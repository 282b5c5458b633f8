"""Matmul in Triton, step by step: act(A·B + bias) for A (M, K), B (K, N), bias (N,).

    tile         one program a tile, row after row of tiles
    grouped      tiles in an order that finds A and B in the L2 cache
    autotuned    the same kernel, with the fastest of several tiles for these sizes
    fused        bias and activation before the tile leaves the registers; until here they are passes of their own
    persistent   as many programs as multiprocessors; the next tile's loads begin while this one is stored
    descriptors  the same, with tiles fetched and stored by Hopper's copy engine (TMA)

Sums are float32; the result has the operands' dtype. float32 operands are multiplied exactly rounded ("ieee", as torch
does by default), or on tensor cores ("tf32", "tf32x3": see `tiles.PRECISIONS`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import tiles
from mlsys_lab.kernels.arguments import check_shape, check_shared_memory, check_step, check_tensors
from mlsys_lab.kernels.matmul.triton_kernels import descriptor_kernel, persistent_kernel, tile_kernel
from mlsys_lab.kernels.triton_language import triton
from mlsys_lab.kernels.triton_launch import launch
from mlsys_lab.kernels.tuning import fastest
from mlsys_lab.validation import require_power_of_two

STEPS = {
    "tile": "one program a tile",
    "grouped": "tiles in an order that reuses the L2 cache",
    "autotuned": "the fastest of several tiles",
    "fused": "bias and activation in the epilogue",
    "persistent": "programs that stay, a loop over tiles in each",
    "descriptors": "tiles fetched by Hopper's copy engine",
}
ACTIVATIONS = ("none", "relu", "silu", "gelu")
FUSED = ("fused", "persistent", "descriptors")


@dataclass(frozen=True)
class Tile:
    """How a kernel cuts the work: the tile, the height of a group of tiles, and the compiler's warps and stages."""

    m: int = 128
    n: int = 256
    k: int = 64
    group: int = 8
    warps: int = 8
    stages: int = 3

    def shared_bytes(self, itemsize: int) -> int:
        """Bytes of shared memory of the tiles of A and B that are in flight at once."""
        return (self.m + self.n) * self.k * itemsize * self.stages

    def constants(self) -> dict[str, int]:
        """Keyword arguments of a launch: the kernel's constants, and the compiler's numbers of warps and stages."""
        blocks = {"BLOCK_M": self.m, "BLOCK_N": self.n, "BLOCK_K": self.k, "GROUP_M": self.group}
        return blocks | {"num_warps": self.warps, "num_stages": self.stages}

    def __post_init__(self) -> None:
        for name, size in (("m", self.m), ("n", self.n), ("k", self.k)):
            require_power_of_two(f"a tile's {name}", size, at_least=16)
        if self.warps not in (1, 2, 4, 8, 16):
            raise InputError("warps of a tile", got=self.warps, expected="1, 2, 4, 8 or 16")
        if self.stages < 1 or self.group < 1:
            raise InputError("stages and group of a tile", got=f"{self.stages} and {self.group}", expected="1 or more")


CANDIDATES = (
    Tile(),
    Tile(stages=4),
    Tile(m=256, n=128),
    Tile(n=128, stages=4),
    Tile(m=64, n=128, warps=4, stages=4),
    Tile(m=64, n=64, warps=4, stages=4),
    Tile(m=16, n=64, k=128, warps=4, stages=4),
    Tile(m=128, n=64, k=16, stages=2),
    Tile(m=64, n=64, k=16, stages=2),
    Tile(m=32, n=32, k=16, warps=4, stages=2),
)
"""Tiles that a self-tuning step tries: large ones read less, small ones make enough programs of small products.

The last three are for float32 in precision "ieee", and only they (`tiles.written_out`).
"""


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str = "none",
    step: str = "descriptors",
    precision: str = "ieee",
    tile: Tile | None = None,
) -> torch.Tensor:
    """act(a·b + bias): (M, K) · (K, N) -> (M, N), differentiable, by one of `STEPS`.

    `tile` overrides what the step would take. Operands may be transposes (`x.T` of a contiguous x). "descriptors" needs
    rows whose length is a multiple of 16 bytes; others go the way of "persistent". Raises InputError for operands that
    do not fit each other, options that there are not, and a tile beyond the device's shared memory.
    """
    _check(a, b, bias, activation, step, precision)
    if tile is not None:
        check_shared_memory(tile.shared_bytes(a.itemsize), f"{tile}", tiles.limits(a.device).shared_bytes)
    keep = activation in ("silu", "gelu") and torch.is_grad_enabled()
    keep = keep and any(x is not None and x.requires_grad for x in (a, b, bias))
    chosen = [] if tile is None else list(astuple(tile))
    out: torch.Tensor = _operator(a, b, bias, activation, step, precision, chosen, keep)[0]
    return out


def run(step: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Matrix product a·b by one of `STEPS`."""
    return matmul(a, b, step=step)


@torch.library.custom_op("mlsys_lab::matmul", mutates_args=())
def _operator(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    step: str,
    precision: str,
    tile: list[int],
    keep: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and, if `keep`, the activation's input, which the backward pass needs (else an empty tensor)."""
    M, N = a.shape[0], b.shape[1]
    inside = step in FUSED
    c = a.new_empty(M, N)
    z = a.new_empty((M, N) if keep else 0)
    if M and N:
        if inside:
            _launch(a, b, c, z if keep else None, bias, activation, step, precision, tile)
        else:
            _launch(a, b, c, None, None, "none", step, precision, tile)
    if inside:
        return c, z
    if bias is not None:
        c += bias
    return (_activate(c, activation), c) if keep else (_activate(c, activation), z)


@_operator.register_fake
def _fake(a, b, bias, activation, step, precision, tile, keep):
    shape = (a.shape[0], b.shape[1])
    return a.new_empty(shape), a.new_empty(shape if keep else 0)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b, bias, ctx.activation, ctx.step, ctx.precision, ctx.tile, _ = inputs
    out, z = output
    ctx.mark_non_differentiable(z)
    ctx.bias = bias is not None
    ctx.save_for_backward(a, b, out if ctx.activation == "relu" else z)


def _backward(ctx: Any, d_out: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Gradients dZ = dC · act′(Z), dA = dZ·Bᵀ, dB = Aᵀ·dZ by the forward pass's step; the bias's is Σ dZ over rows."""
    a, b, z = ctx.saved_tensors
    dz = _activation_backward(d_out, z, ctx.activation).contiguous()

    def times(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = _operator(x, y, None, "none", ctx.step, ctx.precision, ctx.tile, False)[0]
        return product

    da = times(dz, b.T) if ctx.needs_input_grad[0] else None
    db = times(a.T, dz) if ctx.needs_input_grad[1] else None
    d_bias = dz.sum(0) if ctx.bias and ctx.needs_input_grad[2] else None
    return da, db, d_bias, None, None, None, None, None


_operator.register_autograd(_backward, setup_context=_setup_context)


def _activate(z: torch.Tensor, activation: str) -> torch.Tensor:
    """Apply the activation in a separate pass; always a new tensor, since an operator may not return one twice."""
    if activation == "none":
        return z
    found: torch.Tensor = getattr(torch.nn.functional, activation)(z)
    return found


def _activation_backward(d_out: torch.Tensor, z: torch.Tensor, activation: str) -> torch.Tensor:
    """Gradient d_out · act′(z); for relu, `z` is its result, which tells as much."""
    if activation == "none":
        return d_out
    if activation == "relu":
        return torch.where(z > 0, d_out, 0)
    backward: Any = {"silu": torch.ops.aten.silu_backward, "gelu": torch.ops.aten.gelu_backward}[activation]
    found: torch.Tensor = backward(d_out, z)
    return found


def _launch(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    z: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str,
    step: str,
    precision: str,
    tile: list[int],
) -> None:
    """Run the step's kernel; `z` receives the activation's input unless it is None."""
    (M, K), N = a.shape, b.shape[1]
    shared = (a, b, c, z, bias, M, N, K)
    written = ("c_ptr",) if z is None else ("c_ptr", "z_ptr")
    how = {"PRECISION": precision, "ACTIVATION": activation, "BIAS": bias is not None, "KEEP": z is not None}
    if step == "descriptors" and not _descriptors_can_read(a, b, c):
        step = "persistent"
    most = tiles.limits(a.device).multiprocessors if step in ("persistent", "descriptors") else None

    def run(tile: Tile) -> None:
        """Launch the step's kernel with tiles of this size."""
        programs = triton.cdiv(M, tile.m) * triton.cdiv(N, tile.n)
        grid = (programs if most is None else min(programs, most),)
        options: dict[str, Any] = tile.constants() | how | {"outputs": written}
        if step == "descriptors":
            # They are written to memory on the GPU; a thread of autograd's knows nothing of another's allocator.
            triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=a.device))
            turned: dict[str, Any] = {"A_TRANSPOSED": _is_transposed(a), "B_TRANSPOSED": _is_transposed(b)}
            launch(descriptor_kernel, grid, a.device, *shared, _row_stride(a), _row_stride(b), **options, **turned)
        else:
            kernel = tile_kernel if most is None else persistent_kernel
            even = M % tile.m == N % tile.n == K % tile.k == 0
            launch(kernel, grid, a.device, *shared, *a.stride(), *b.stride(), **options, EVEN=even)

    run(
        Tile(*tile)
        if tile
        else _choose_tile(step, a, precision, (step, M, N, K, a.stride(), b.stride(), *how.values()), run)
    )


def _choose_tile(step: str, a: torch.Tensor, precision: str, key: tuple[Any, ...], run: Callable[[Tile], None]) -> Tile:
    """The tile that the step prescribes, or else the fastest of the candidates that fit."""
    small = tiles.unrolls_products(a.dtype, precision)
    if step in ("tile", "grouped"):
        group = 1 if step == "tile" else 8
        return Tile(m=64, n=64, k=16, group=group) if small else Tile(n=128, k=128 // a.itemsize, group=group)
    room = tiles.limits(a.device).shared_bytes
    fitting = [one for one in CANDIDATES if one.shared_bytes(a.itemsize) <= room and (one.k == 16) == small]
    return fastest(("matmul", *key, a.dtype, a.device), fitting, run)


def _check(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str, step: str, precision: str
) -> None:
    check_step(step, STEPS)
    tiles.check_precision(precision)
    if activation not in ACTIVATIONS:
        raise InputError("unknown activation", got=repr(activation), expected="one of " + ", ".join(ACTIVATIONS))
    check_tensors(tiles.DTYPES, a=a, b=b)
    tiles.check_operands(2, a=_to_contiguous_rows(a), b=_to_contiguous_rows(b))
    if a.shape[1] != b.shape[0]:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise InputError("a and b do not fit", got=shapes, expected="(M, K) and (K, N)")
    if bias is not None:
        check_tensors(tiles.DTYPES, a=a, bias=bias)
        check_shape((b.shape[1],), bias=bias)
        tiles.check_operands(2, a=_to_contiguous_rows(a), bias=bias[None])


def _to_contiguous_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the matrix, or its transpose if that is the one whose rows are contiguous."""
    return x.T if x.ndim == 2 and _is_transposed(x) else x


def _is_transposed(x: torch.Tensor) -> bool:
    return x.stride(1) != 1 and x.stride(0) == 1


def _row_stride(x: torch.Tensor) -> int:
    return _to_contiguous_rows(x).stride(0)


def _descriptors_can_read(*matrices: torch.Tensor) -> bool:
    """Whether the copy engine can read these matrices: it needs rows that start at multiples of 16 bytes."""
    return all(x.data_ptr() % 16 == 0 and _row_stride(x) * x.itemsize % 16 == 0 for x in matrices)
