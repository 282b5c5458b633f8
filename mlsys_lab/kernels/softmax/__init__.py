"""Softmax along the last dimension: y = exp(x − max x) / Σ exp(x − max x).

reference   torch, one operation after another, each a pass over memory
one_pass    whole rows in registers: one read, one write
online      rows of any length, block by block: two reads, one write
"""

from __future__ import annotations

import torch

from mlsys_lab.kernels.arguments import alike, known_step
from mlsys_lab.kernels.row_blocks import DTYPES, rows_and_width

STEPS = {
    "reference": "torch: maximum, difference, exponential, sum and quotient, each a pass over memory",
    "one_pass": "Triton: whole rows in registers, one read and one write",
    "online": "Triton: rows of any length, maximum and sum in one pass over blocks",
}


def softmax(x: torch.Tensor, *, step: str | None = None) -> torch.Tensor:
    """Softmax of contiguous (…, D), differentiable, by one of `STEPS`; computed in float32, given back in x's dtype.

    Without a step: "one_pass" where a row fits the registers, else "online". A row with NaN or +inf, or of −inf alone,
    is all NaN, as in torch. Raises InputError.
    """
    alike(DTYPES, x=x)
    _, width = rows_and_width(x)
    if step is not None:
        known_step(step, STEPS)
    if step == "reference":
        e = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
        return (e / e.sum(-1, keepdim=True)).to(x.dtype)
    from mlsys_lab.kernels.softmax import triton_steps

    return triton_steps.softmax(x, step or ("one_pass" if width <= triton_steps.WIDEST else "online"))
