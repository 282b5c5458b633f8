"""How the checks of lab 09's divided texts call the learner's code."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mlsys_checks.sandboxed.model_parallel.given import copy_tensors, refuse_change, tensor_values
from mlsys_checks.sandboxed.repeated_calls import call_twice
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import describe_value
from mlsys_lab.errors import InputError

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank


def zigzag(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `zigzag_positions`: the positions of each rank."""
    call = partial(artifact.zigzag_positions, int(arrays["tokens"]), int(arrays["p"]))
    got = call_twice("zigzag_positions", call)
    if not isinstance(got, list | tuple):
        raise InputError("zigzag_positions gives no list", got=describe_value(got), expected="a tensor for each rank")
    return {"count": np.array(len(got))} | {
        f"rank {r}": tensor_values(f"positions of rank {r}", one) for r, one in enumerate(got)
    }


def ring_attention(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `ring_attention` on this rank's queries, keys and values."""
    q, k, v = copy_tensors(arrays, "q", "k", "v")
    positions = copy_tensors(arrays, *(f"positions{r}" for r in range(rank.size)))
    out = artifact.ring_attention(rank, q, k, v, positions)
    for name, one in zip("qkv", (q, k, v), strict=True):
        refuse_change(name, one, arrays[name])
    return {"result": tensor_values("result", out)}
