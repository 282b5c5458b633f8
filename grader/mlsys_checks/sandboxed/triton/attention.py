"""Calls of task 7: bytes that are predicted, and causal flash attention."""

from __future__ import annotations

from typing import Any

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.triton.launches import blocks, launch_recorded, power_of_two, tensors, unwritten
from mlsys_checks.sandboxed.values import whole

LEAST_D = 16
"""The least width of a block: tensor cores take no narrower one."""


def predicted(artifact: Any, arrays: Arrays) -> Arrays:
    """Call both predictions for each row S, D, block: the bytes of naive and of flash attention."""
    found: Arrays = {}
    for sizes in arrays["sizes"].tolist():
        for name in ("naive_attention_bytes", "flash_attention_bytes"):
            found[f"{name}({', '.join(map(str, sizes))})"] = whole(name, getattr(artifact, name)(*sizes))
    return found


def flash(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `flash_kernel`: output, log-sum-exp, and what it did to memory."""
    t = tensors(arrays)
    heads, tokens, width = t["q"].shape
    outputs = {"out_ptr": unwritten(*t["q"].shape, dtype=t["q"].dtype), "lse_ptr": unwritten(heads, tokens)}
    inputs = (t["q"], t["k"], t["v"], *outputs.values(), tokens, width, float(arrays["scale"]))
    block_m, block_n = int(arrays["BLOCK_M"]), int(arrays["BLOCK_N"])
    sizes: dict[str, Any] = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_D": max(LEAST_D, power_of_two(width))}
    return launch_recorded(
        artifact, "flash_kernel", (blocks(tokens, block_m), heads), *inputs, outputs=outputs, **sizes
    )
