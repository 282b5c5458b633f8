"""Calls of tasks 5 and 6: the order of tiles, and a product of tiles."""

from __future__ import annotations

from typing import Any

import torch

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.triton.launches import blocks, launch_recorded, result_kind, tensors, unwritten

LAYOUTS = ("a_turned", "b_turned", "apart")
"""Variables of a case that say how its factors lie in memory: each is true or false."""


def order(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `order_kernel`: row and column of every program's tile."""
    tiles_m, tiles_n, group = (int(arrays[name]) for name in ("tiles_m", "tiles_n", "group"))
    programs = tiles_m * tiles_n
    outputs = {name: unwritten(programs, dtype=torch.int32) for name in ("m_ptr", "n_ptr")}
    inputs = (*outputs.values(), tiles_m, tiles_n)
    return launch_recorded(artifact, "order_kernel", programs, *inputs, outputs=outputs, GROUP=group)


def matmul(artifact: Any, arrays: Arrays) -> Arrays:
    """A·B and who stored it; with `wide` C is float32.

    With `a_turned` A is a view of its transposed self, with `b_turned` B; with `apart` both are of longer rows.
    """
    t = tensors(arrays)
    a, b = (_lay_out(t[name], bool(arrays[f"{name}_turned"]), bool(arrays["apart"])) for name in ("a", "b"))
    (m, k), n = a.shape, b.shape[1]
    c = unwritten(m, n, dtype=result_kind(arrays, a.dtype))
    inputs = (a, b, c, m, n, k, *a.stride(), *b.stride())
    tile = {name: int(arrays[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")}
    sizes: dict[str, Any] = {**tile, "GROUP": int(arrays["group"])}
    programs = blocks(m, tile["BLOCK_M"]) * blocks(n, tile["BLOCK_N"])
    return launch_recorded(
        artifact, "matmul_kernel", programs, *inputs, outputs={"c_ptr": c}, writers_of="c_ptr", **sizes
    )


def _lay_out(x: torch.Tensor, turned: bool, apart: bool) -> torch.Tensor:
    if apart:
        rows = x.new_full((len(x), x.shape[1] + 5), torch.nan)
        rows[:, :-5] = x
        return rows[:, :-5]
    return x.T.contiguous().T if turned else x
