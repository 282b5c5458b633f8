"""Calls of task 7: bytes that are predicted, and causal flash attention."""

from __future__ import annotations

from typing import Any

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.triton.launches import blocks, launch_recorded, power_of_two, tensors, unwritten
from mlsys_lab.checks.learner.values import whole

BLOCK_M, BLOCK_N, LEAST_D = 16, 16, 16


def predicted(artifact: Any, arrays: Arrays) -> Arrays:
    """Bytes of both ways for each row of S, D, block."""
    found: Arrays = {}
    for sizes in arrays["sizes"].tolist():
        for name in ("naive_attention_bytes", "flash_attention_bytes"):
            found[f"{name}({', '.join(map(str, sizes))})"] = whole(name, getattr(artifact, name)(*sizes))
    return found


def flash(artifact: Any, arrays: Arrays) -> Arrays:
    """The output and the log-sum-exp."""
    t = tensors(arrays)
    heads, tokens, width = t["q"].shape
    outputs = {"out_ptr": unwritten(*t["q"].shape, dtype=t["q"].dtype), "lse_ptr": unwritten(heads, tokens)}
    inputs = (t["q"], t["k"], t["v"], *outputs.values(), tokens, width, float(arrays["scale"]))
    sizes = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_D": max(LEAST_D, power_of_two(width))}
    return launch_recorded(
        artifact, "flash_kernel", (blocks(tokens, BLOCK_M), heads), *inputs, outputs=outputs, **sizes
    )
