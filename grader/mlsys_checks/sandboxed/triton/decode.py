"""Call of task 8: one new token for each sequence, over pages of a cache."""

from __future__ import annotations

from typing import Any

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.triton.launches import launch_recorded, result_kind, tensors, unwritten


def decode(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `decode_kernel`: the output of every query head, what it did to memory, and what it read of no token's."""
    t = tensors(arrays)
    (sequences, heads, width), (_, page, kv_heads, _) = t["q"].shape, t["k"].shape
    out = unwritten(*t["q"].shape, dtype=result_kind(arrays, t["q"].dtype))
    inputs = (t["q"], t["k"], t["v"], t["table"], t["length"], out, t["table"].shape[1], float(arrays["scale"]))
    sizes: dict[str, Any] = {"GROUP": heads // kv_heads, "PAGE": page, "D": width}
    return launch_recorded(
        artifact,
        "decode_kernel",
        (sequences, kv_heads),
        *inputs,
        outputs={"out_ptr": out},
        nan_in={"k_ptr": t["k"], "v_ptr": t["v"]},
        **sizes,
    )
