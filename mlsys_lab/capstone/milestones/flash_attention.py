"""FlashAttention (2022): bytes that the learner's kernels move for attention, counted access by access.

Dimension letters: S tokens, D head dimension, B side of the kernels' tiles.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mlsys_lab.capstone.milestones.milestone import Figure, Milestone
from mlsys_lab.capstone.stack import Stack

S = 64
BLOCKS = (16, 32)  # sides of tiles, and head dimensions: no tile is cut, so kernels need no mask
PAPER_S, PAPER_D, PAPER_BLOCK = 1024, 64, 128
PAPER_STANDARD_GB, PAPER_FLASH_GB = 40.3, 4.4
LONG_S = 65_536  # long enough for keys and values to be nearly all of FlashAttention's traffic
OTHER_COUNT = "ours: forward pass, causal mask, requests; theirs: forward and backward, measured in HBM"


def count_bytes(stack: Stack, block: int) -> tuple[int, int, float]:
    """Bytes that standard attention and FlashAttention request for a head (S, block); the latter's largest error."""
    from mlsys_lab.kernels.trace.traffic import total
    from mlsys_lab.kernels.trace.triton_interpreter import record

    kernels = stack.kernels

    def multiply(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, int]:
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n)
        sizes = {"BLOCK_M": block, "BLOCK_N": block, "BLOCK_K": block, "GROUP_M": 1}
        programs = -(-m // block) * -(-n // block)
        trace = record(
            kernels.matmul_kernel, programs, a, b, c, m, n, k, *a.stride(), *b.stride(), **sizes, outputs="c_ptr"
        )
        return c, total(trace).asked_bytes

    generator = torch.Generator().manual_seed(block)
    q, k, v = torch.randn(3, S, block, generator=generator)
    weights, out, lse = torch.empty(S, S), torch.empty(S, block), torch.empty(S)
    scores, first = multiply(q, k.T)
    softmax = record(kernels.softmax_kernel, S, scores, weights, S, BLOCK=S, outputs="y_ptr")
    _, last = multiply(weights, v)
    arguments = (q, k, v, out, lse, S, block, block**-0.5)
    sizes = {"BLOCK_M": block, "BLOCK_N": block, "BLOCK_D": block}
    flash = record(kernels.flash_kernel, (S // block, 1), *arguments, **sizes, outputs=["out_ptr", "lse_ptr"])
    expected = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    naive = first + total(softmax).asked_bytes + last
    return naive, total(flash).asked_bytes, float((out - expected).abs().max())


def _figures(stack: Stack) -> Iterator[Figure]:
    naive_bytes, flash_bytes = stack.kernels.naive_attention_bytes, stack.kernels.flash_attention_bytes
    measured = PAPER_STANDARD_GB / PAPER_FLASH_GB
    ratio = naive_bytes(PAPER_S, PAPER_D, PAPER_BLOCK) / flash_bytes(PAPER_S, PAPER_D, PAPER_BLOCK)
    yield Figure("standard / FlashAttention at S = 1,024 and D = 64", measured, ratio, 0.25 * measured, OTHER_COUNT)
    long = flash_bytes(LONG_S, PAPER_D, 64) / flash_bytes(LONG_S, PAPER_D, 128)
    yield Figure("FlashAttention: tiles half as large / as large", 2, long, 0.02, "the largest term")
    for block in BLOCKS:
        naive, flash, error = count_bytes(stack, block)
        yield from (
            Figure.check(
                f"tiles of {block}: bytes of standard attention", naive_bytes(S, block, block), naive, "a count"
            ),
            Figure.check(f"tiles of {block}: bytes of FlashAttention", flash_bytes(S, block, block), flash, "a count"),
            Figure.check(f"tiles of {block}: error of FlashAttention", 0, error, "float32", 1e-5),
        )


FLASH_ATTENTION = Milestone(
    "flash-attention",
    2022,
    "FlashAttention moves 9 times fewer bytes than standard attention, and fewer the larger its tiles",
    "Dao, Fu, Ermon, Rudra & Ré, arXiv:2205.14135, Fig. 2 left (40.3 GB and 4.4 GB) and Theorem 2",
    {"kernels": ("matmul_kernel", "softmax_kernel", "flash_kernel", "naive_attention_bytes", "flash_attention_bytes")},
    "Bytes of small shapes are counted access by access and equal the two functions of the stack; the ratio at the "
    "paper's shape, and its dependence on the tile, are these functions' and no run. The paper measured forward and "
    "backward pass of 64 x 16 heads on an A100; its 66.6 GFLOPs do not fit that shape and are left out.",
    _figures,
)
