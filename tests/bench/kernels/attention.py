"""Causal attention in Triton against torch's flash and cuDNN backends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from mlsys_lab.kernels.attention import attention, cost
from tests.bench.kernels.entries import Case, Entry, Machine

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
HEADS, WIDTH = 16, 128


def by_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: str) -> torch.Tensor:
    """torch's attention by a backend of its own; on a CPU by what it has there."""
    with sdpa_kernel(BACKENDS[backend] if q.is_cuda else SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


def inputs(machine: Machine, length: int, heads: int, width: int) -> list[torch.Tensor]:
    return machine.several(3, 1, heads, length, width, dtype=torch.bfloat16)


def forward(machine: Machine, length: int, heads: int, width: int) -> Case:
    q, k, v = inputs(machine, length, heads, width)
    against = {backend: partial(by_torch, q, k, v, backend) for backend in BACKENDS}
    flops, _ = cost.forward(shape(length, heads, width))
    ours = partial(attention, q, k, v, causal=True)
    return Case(ours, against, against["flash"], flops, "TFLOP/s", {"dtype": "torch.bfloat16"})


def backward(machine: Machine, length: int, heads: int, width: int) -> Case:
    given = [one.requires_grad_() for one in inputs(machine, length, heads, width)]
    d_out = machine.randn(1, heads, length, width, dtype=torch.bfloat16)

    def gradients(out: torch.Tensor) -> Callable[[], tuple[torch.Tensor, ...]]:
        return partial(torch.autograd.grad, out, given, d_out, retain_graph=True)

    against = {backend: gradients(by_torch(*given, backend)) for backend in BACKENDS}
    flops, _ = cost.backward(shape(length, heads, width))
    ours = gradients(attention(*given, causal=True))
    return Case(ours, against, against["flash"], flops, "TFLOP/s", {"dtype": "torch.bfloat16"})


def shape(length: int, heads: int, width: int) -> cost.Shape:
    return cost.Shape(1, heads, heads, length, length, width, True)


ENTRIES = [
    Entry(
        f"gpu-attention-{direction}-{length}",
        f"causal attention {direction}, {HEADS} heads of {WIDTH}, {length} tokens, bf16",
        make,
        (length, HEADS, WIDTH),
        (37, 2, 64),
        asked,
    )
    for direction, make, asked in (
        ("forward", forward, {"flash": 1.4, "cudnn": 0.80}),
        ("backward", backward, {"flash": 1.2}),
    )
    for length in (4096, 16384)
]
