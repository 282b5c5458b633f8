"""What is timed of lab 04 on a GPU: softmax, the matrix product and flash attention, compiled, at sizes of real models.

Tiles are the course's, so that speed tells of the kernel's text; they fit the shared memory of any GPU since the T4.
"""

from __future__ import annotations

from typing import Any

import torch

from mlsys_checks.sandboxed.triton.launches import blocks, power_of_two
from mlsys_lab.kernels.triton_launch import launch

Tensor = torch.Tensor

ROWS, COLUMNS = 8192, 4096
"""Shape of the softmax's input, float32."""
TURNS, WEIGHT = 16, 100.0
"""Softmaxes of a call, and how much of one is added to the input for the next: none can be left out."""
SIDE = 8192
"""Side of the product's square matrices, float16."""
HEADS, TOKENS, WIDTH = 32, 8192, 64
"""Shape of attention's queries, keys and values, float16, causal."""


def make_softmax(seed: int, device: str) -> tuple[Tensor]:
    """Draw a softmax's input, normal numbers of shape (ROWS, COLUMNS)."""
    return (_drawn(seed, device, 1, ROWS, COLUMNS, dtype=torch.float32)[0],)


def softmax(artifact: Any, x: Tensor) -> Tensor:
    """Softmax of each row by the learner's kernel, `TURNS` times, each on the first input and the one before."""
    (rows, columns), y = x.shape, torch.empty_like(x)
    block = power_of_two(columns)
    for turn in range(TURNS):
        given = torch.add(x, y, alpha=WEIGHT) if turn else x
        launch(artifact.softmax_kernel, (rows,), x.device, given, y, columns, BLOCK=block, num_warps=8)
    return y


def make_matmul(seed: int, device: str) -> tuple[Tensor, ...]:
    """Draw two factors of a product, each (SIDE, SIDE)."""
    return _drawn(seed, device, 2, SIDE, SIDE)


def matmul(artifact: Any, a: Tensor, b: Tensor) -> Tensor:
    """A·B by the learner's kernel."""
    (m, k), n = a.shape, b.shape[1]
    c = a.new_empty(m, n)
    grid = (blocks(m, 128) * blocks(n, 128),)
    inputs = (a, b, c, m, n, k, *a.stride(), *b.stride())
    tile: dict[str, Any] = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP": 8}
    launch(artifact.matmul_kernel, grid, a.device, *inputs, **tile, num_warps=8, num_stages=3)
    return c


def make_flash(seed: int, device: str) -> tuple[Tensor, ...]:
    """Draw queries, keys and values, each (HEADS, TOKENS, WIDTH)."""
    return _drawn(seed, device, 3, HEADS, TOKENS, WIDTH)


def flash(artifact: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The output of causal attention by the learner's kernel."""
    heads, tokens, width = q.shape
    out, lse = torch.empty_like(q), q.new_empty(heads, tokens, dtype=torch.float32)
    grid = (blocks(tokens, 128), heads)
    inputs = (q, k, v, out, lse, tokens, width, width**-0.5)
    tile: dict[str, Any] = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_D": power_of_two(width)}
    launch(artifact.flash_kernel, grid, q.device, *inputs, **tile, num_warps=4, num_stages=2)
    return out


def _drawn(seed: int, device: str, count: int, *shape: int, dtype: torch.dtype = torch.float16) -> tuple[Tensor, ...]:
    """So many tensors of normal numbers, all of them from the seed."""
    generator = torch.Generator(device).manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator, device=device, dtype=dtype) for _ in range(count))
