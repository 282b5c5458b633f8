"""Calls of tasks 5 and 6: the order of tiles, and a product of tiles."""

from __future__ import annotations

from typing import Any

import torch

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.triton.launches import blocks, launch_recorded, tensors, unwritten

BLOCK = 16
"""Rows and columns of a tile, of C, A and B: the least that tensor cores take."""


def order(artifact: Any, arrays: Arrays) -> Arrays:
    """Row and column of every program's tile."""
    tiles_m, tiles_n, group = (int(arrays[name]) for name in ("tiles_m", "tiles_n", "group"))
    programs = tiles_m * tiles_n
    outputs = {name: unwritten(programs, dtype=torch.int32) for name in ("m_ptr", "n_ptr")}
    inputs = (*outputs.values(), tiles_m, tiles_n)
    return launch_recorded(artifact, "order_kernel", programs, *inputs, outputs=outputs, GROUP=group)


def matmul(artifact: Any, arrays: Arrays) -> Arrays:
    """A·B. With `turned`, A and B are views of their transposed selves; with `wide`, C is float32."""
    t = tensors(arrays)
    a, b = (t[name].T.contiguous().T if arrays["turned"] else t[name] for name in ("a", "b"))
    (m, k), n = a.shape, b.shape[1]
    c = unwritten(m, n, dtype=torch.float32 if arrays["wide"] else a.dtype)
    inputs = (a, b, c, m, n, k, *a.stride(), *b.stride())
    sizes = {"BLOCK_M": BLOCK, "BLOCK_N": BLOCK, "BLOCK_K": BLOCK, "GROUP": int(arrays["group"])}
    programs = blocks(m, BLOCK) * blocks(n, BLOCK)
    return launch_recorded(artifact, "matmul_kernel", programs, *inputs, outputs={"c_ptr": c}, **sizes)
