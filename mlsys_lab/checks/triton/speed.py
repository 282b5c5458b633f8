"""Extra points of lab 04 for speed on a GPU, as ratios to torch's own kernels in the same run.

Targets follow from what each kernel leaves out: the product's loads keep their masks, attention's scores are masked in
every block. They have not been measured on a GPU yet. Of a softmax's round most is not softmax (inputs are drawn and
outputs summed up in it, `Performance` says why), so its ratio begins to count late.
"""

from __future__ import annotations

import torch

from mlsys_lab.checks.performance import Performance, Work
from mlsys_lab.checks.triton.calls import timed

Tensor = torch.Tensor


def library_softmax(x: Tensor) -> Tensor:
    """torch's softmax of rows."""
    return torch.softmax(x, 1)


def library_matmul(a: Tensor, b: Tensor) -> Tensor:
    """cuBLAS, through torch."""
    return a @ b


def library_flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's fused attention."""
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


SOFTMAX = Performance(
    points=2,
    make=timed.make_softmax,
    call=timed.softmax,
    library=library_softmax,
    start=0.6,
    target=0.9,
    work=Work(size_bytes=2 * 4 * timed.ROWS * timed.COLUMNS),
)

MATMUL = Performance(
    points=4,
    make=timed.make_matmul,
    call=timed.matmul,
    library=library_matmul,
    start=0.1,
    target=0.6,
    work=Work(size_bytes=3 * 2 * timed.SIDE**2, flops=2 * timed.SIDE**3, precision="fp16"),
)

FLASH = Performance(
    points=4,
    make=timed.make_flash,
    call=timed.flash,
    library=library_flash,
    start=0.1,
    target=0.5,
    work=Work(
        size_bytes=4 * 2 * timed.HEADS * timed.TOKENS * timed.WIDTH,
        flops=2 * timed.HEADS * timed.TOKENS * (timed.TOKENS + 1) * timed.WIDTH,
        precision="fp16",
    ),
)
