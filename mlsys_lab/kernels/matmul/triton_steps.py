"""Matmul in Triton, step by step: act(A·B + bias) for A (M, K), B (K, N), bias (N,).

    tile         one program per tile, in row-major order
    grouped      tiles in a grouped (swizzled) order that reuses A and B in the L2 cache
    autotuned    the same kernel, with the fastest of several tile sizes for this problem
    fused        bias and activation applied in registers; in the steps before they are separate passes
    persistent   one program per multiprocessor; the next tile's loads start while this one is stored
    descriptors  the same, with tiles loaded and stored by Hopper's copy engine (TMA)

Sums are float32; the result has the operands' dtype. float32 operands are multiplied exactly rounded ("ieee", as torch
does by default), or on tensor cores ("tf32", "tf32x3": see `tiles.PRECISIONS`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import tiles
from mlsys_lab.kernels.arguments import check_shape, check_shared_memory, check_step, check_tensors
from mlsys_lab.kernels.matmul.triton_kernels import descriptor_kernel, persistent_kernel, tile_kernel
from mlsys_lab.kernels.triton_language import triton
from mlsys_lab.kernels.triton_launch import launch
from mlsys_lab.kernels.tuning import fastest
from mlsys_lab.validation import require_power_of_two

STEPS = {
    "tile": "one program per tile",
    "grouped": "tiles in an order that reuses the L2 cache",
    "autotuned": "the fastest of several tiles",
    "fused": "bias and activation in the epilogue",
    "persistent": "one program per multiprocessor, looping over tiles",
    "descriptors": "tiles loaded by Hopper's copy engine",
}
ACTIVATIONS = ("none", "relu", "silu", "gelu")
FUSED = ("fused", "persistent", "descriptors")


@dataclass(frozen=True)
class TileConfig:
    """Sizes of a tile, tile rows per group of the program order, and the warps and pipeline stages for the compiler."""

    block_m: int = 128
    block_n: int = 256
    block_k: int = 64
    group_m: int = 8
    num_warps: int = 8
    num_stages: int = 3

    def shared_bytes(self, itemsize: int) -> int:
        """Bytes of shared memory of the tiles of A and B in flight at once."""
        return (self.block_m + self.block_n) * self.block_k * itemsize * self.num_stages

    def constants(self) -> dict[str, int]:
        """Keyword arguments of a launch: the kernel's constants, num_warps and num_stages."""
        blocks = {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k, "GROUP_M": self.group_m}
        return blocks | {"num_warps": self.num_warps, "num_stages": self.num_stages}

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k"):
            require_power_of_two(f"{name} of a tile", getattr(self, name), at_least=16)
        if self.num_warps not in (1, 2, 4, 8, 16):
            raise InputError("num_warps of a tile", got=self.num_warps, expected="1, 2, 4, 8 or 16")
        if self.num_stages < 1 or self.group_m < 1:
            got = f"{self.num_stages} and {self.group_m}"
            raise InputError("num_stages and group_m of a tile", got=got, expected="1 or more")


CONFIGS = (
    TileConfig(),
    TileConfig(num_stages=4),
    TileConfig(256, 128),
    TileConfig(block_n=128, num_stages=4),
    TileConfig(64, 128, num_warps=4, num_stages=4),
    TileConfig(64, 64, num_warps=4, num_stages=4),
    TileConfig(16, 64, 128, num_warps=4, num_stages=4),
    TileConfig(128, 64, 16, num_stages=2),
    TileConfig(64, 64, 16, num_stages=2),
    TileConfig(32, 32, 16, num_warps=4, num_stages=2),
)
"""Configurations that autotuning tries: large tiles load less, small ones make enough programs for small products.

The last three are for float32 in precision "ieee", which takes only these (`tiles.unrolls_products`).
"""


def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    step: str = "descriptors",
    precision: str = "ieee",
    config: TileConfig | None = None,
) -> Tensor:
    """act(a·b + bias): (M, K) · (K, N) -> (M, N), differentiable, by one of `STEPS`.

    `config` overrides the step's tile sizes. Operands may be transposes (`x.T` of a contiguous x). "descriptors" needs
    rows whose length is a multiple of 16 bytes, and falls back to "persistent" for others. Raises InputError for
    operands that do not match, an unknown option, and tiles too large for the device's shared memory.
    """
    _check(a, b, bias, activation, step, precision)
    if config is not None:
        check_shared_memory(config.shared_bytes(a.itemsize), f"{config}", tiles.device_limits(a.device).shared_bytes)
    save_input = activation in ("silu", "gelu") and torch.is_grad_enabled()
    save_input = save_input and any(x is not None and x.requires_grad for x in (a, b, bias))
    fields = [] if config is None else list(astuple(config))
    out: Tensor = _forward(a, b, bias, activation, step, precision, fields, save_input)[0]
    return out


def run(step: str, a: Tensor, b: Tensor) -> Tensor:
    """Matrix product a·b by one of `STEPS`."""
    return matmul(a, b, step=step)


@torch.library.custom_op("mlsys_lab::matmul", mutates_args=())
def _forward(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str,
    step: str,
    precision: str,
    config: list[int],
    save_input: bool,
) -> tuple[Tensor, Tensor]:
    """The result and, if `save_input`, the activation's input for the backward pass (else an empty tensor)."""
    M, N = a.shape[0], b.shape[1]
    fused = step in FUSED
    c = a.new_empty(M, N)
    z = a.new_empty((M, N) if save_input else 0)
    if M and N:
        if fused:
            _launch(a, b, c, z if save_input else None, bias, activation, step, precision, config)
        else:
            _launch(a, b, c, None, None, "none", step, precision, config)
    if fused:
        return c, z
    if bias is not None:
        c += bias
    return (_activate(c, activation), c) if save_input else (_activate(c, activation), z)


@_forward.register_fake
def _forward_fake(a, b, bias, activation, step, precision, config, save_input):
    shape = (a.shape[0], b.shape[1])
    return a.new_empty(shape), a.new_empty(shape if save_input else 0)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    a, b, bias, ctx.activation, ctx.step, ctx.precision, ctx.config, _ = inputs
    out, z = output
    ctx.mark_non_differentiable(z)
    ctx.bias = bias is not None
    ctx.save_for_backward(a, b, out if ctx.activation == "relu" else z)


def _backward(ctx: Any, d_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients dZ = dC · act′(Z), dA = dZ·Bᵀ, dB = Aᵀ·dZ by the forward pass's step; d_bias = Σ dZ over rows."""
    a, b, z = ctx.saved_tensors
    dz = _activation_backward(d_out, z, ctx.activation).contiguous()

    def product(x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = _forward(x, y, None, "none", ctx.step, ctx.precision, ctx.config, False)[0]
        return result

    da = product(dz, b.T) if ctx.needs_input_grad[0] else None
    db = product(a.T, dz) if ctx.needs_input_grad[1] else None
    d_bias = dz.sum(0) if ctx.bias and ctx.needs_input_grad[2] else None
    return da, db, d_bias, None, None, None, None, None


_forward.register_autograd(_backward, setup_context=_setup_context)


def _activate(z: Tensor, activation: str) -> Tensor:
    """Apply the activation in a separate pass, to a new tensor: an operator must not return one tensor twice."""
    if activation == "none":
        return z
    found: Tensor = getattr(torch.nn.functional, activation)(z)
    return found


def _activation_backward(d_out: Tensor, z: Tensor, activation: str) -> Tensor:
    """Gradient d_out · act′(z); for relu, `z` may be its result."""
    if activation == "none":
        return d_out
    if activation == "relu":
        return torch.where(z > 0, d_out, 0)
    backward: Any = {"silu": torch.ops.aten.silu_backward, "gelu": torch.ops.aten.gelu_backward}[activation]
    found: Tensor = backward(d_out, z)
    return found


def _launch(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    z: Tensor | None,
    bias: Tensor | None,
    activation: str,
    step: str,
    precision: str,
    config: list[int],
) -> None:
    """Run the step's kernel; `z` receives the activation's input unless it is None."""
    (M, K), N = a.shape, b.shape[1]
    arguments = (a, b, c, z, bias, M, N, K)
    outputs = ("c_ptr",) if z is None else ("c_ptr", "z_ptr")
    constants: dict[str, Any] = {"PRECISION": precision, "ACTIVATION": activation}
    constants |= {"BIAS": bias is not None, "SAVE_INPUT": z is not None}
    if step == "descriptors" and not _descriptors_can_read(a, b, c):
        step = "persistent"
    max_programs = tiles.device_limits(a.device).multiprocessors if step in ("persistent", "descriptors") else None

    def run(config: TileConfig) -> None:
        num_tiles = triton.cdiv(M, config.block_m) * triton.cdiv(N, config.block_n)
        grid = (num_tiles if max_programs is None else min(num_tiles, max_programs),)
        options: dict[str, Any] = config.constants() | constants | {"outputs": outputs}
        if step == "descriptors":
            # Descriptors are stored in GPU memory. The allocator is per thread, and autograd runs backward in its own.
            triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=a.device))
            options |= {"A_TRANSPOSED": _is_transposed(a), "B_TRANSPOSED": _is_transposed(b)}
            launch(descriptor_kernel, grid, a.device, *arguments, _row_stride(a), _row_stride(b), **options)
        else:
            kernel = tile_kernel if max_programs is None else persistent_kernel
            even = M % config.block_m == N % config.block_n == K % config.block_k == 0
            launch(kernel, grid, a.device, *arguments, *a.stride(), *b.stride(), **options, EVEN=even)

    key = (step, M, N, K, a.stride(), b.stride(), *constants.values())
    run(TileConfig(*config) if config else _choose_config(step, a, precision, key, run))


def _choose_config(
    step: str, a: Tensor, precision: str, key: tuple[Any, ...], run: Callable[[TileConfig], None]
) -> TileConfig:
    """The tile sizes that the step prescribes, or else the fastest that fit."""
    unrolled = tiles.unrolls_products(a.dtype, precision)
    if step in ("tile", "grouped"):
        group_m = 1 if step == "tile" else 8
        return TileConfig(64, 64, 16, group_m) if unrolled else TileConfig(128, 128, 128 // a.itemsize, group_m)
    limit = tiles.device_limits(a.device).shared_bytes
    configs = [one for one in CONFIGS if one.shared_bytes(a.itemsize) <= limit and (one.block_k == 16) == unrolled]
    return fastest(("matmul", *key, a.dtype, a.device), configs, run)


def _check(a: Tensor, b: Tensor, bias: Tensor | None, activation: str, step: str, precision: str) -> None:
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


def _to_contiguous_rows(x: Tensor) -> Tensor:
    """Return the matrix, or its transpose if that is the one whose rows are contiguous."""
    return x.T if x.ndim == 2 and _is_transposed(x) else x


def _is_transposed(x: Tensor) -> bool:
    return x.stride(1) != 1 and x.stride(0) == 1


def _row_stride(x: Tensor) -> int:
    return _to_contiguous_rows(x).stride(0)


def _descriptors_can_read(*matrices: Tensor) -> bool:
    """Whether the copy engine can load these matrices, whose rows must start at multiples of 16 bytes."""
    return all(x.data_ptr() % 16 == 0 and _row_stride(x) * x.itemsize % 16 == 0 for x in matrices)
