"""Weights that stay where they are while activations travel: divided along one side, or along both.

Pope et al. 2022 (arXiv:2211.05102), §3.2: of an MLP's matrices (D, F) and (F, D) each device holds a part of F, or a
part of D and of F. Activations of `tokens` tokens are gathered before each matrix and summed and scattered after it.
Devices lie in a torus; gathering over several of its axes goes over the links of each at once.
"""

from __future__ import annotations

import math

from mlsys_lab.validation import require_at_least_one, require_positive


def one_side_bytes(tokens: float, d_model: int, *, axes: int = 3, element_bytes: float = 2) -> float:
    """Bytes that each link carries for an MLP divided along F: tokens · D gathered, and scattered, over all `axes`.

    However many devices there are: twice as many hold half as much each, and all of it goes past all of them.
    """
    require_positive(tokens=tokens, element_bytes=element_bytes)
    require_at_least_one(d_model=d_model, axes=axes)
    return 2 * tokens * d_model * element_bytes / axes


def two_sides_bytes(
    tokens: float,
    d_model: int,
    d_ff: int,
    devices: float,
    *,
    axes: tuple[int, int] = (1, 2),
    element_bytes: float = 2,
) -> float:
    """Bytes that each link carries for an MLP divided along D into X and along F into Y parts, X·Y = `devices`.

    tokens · D/X go over the axes of Y, tokens · F/Y over those of X, each gathered and scattered; the best X makes both
    equal. They shrink with the root of the number of devices. `axes` are the torus's axes for X and for Y.
    """
    require_positive(tokens=tokens, element_bytes=element_bytes)
    require_at_least_one(d_model=d_model, d_ff=d_ff, devices=devices, axes=min(axes))
    both = (2 * tokens * element_bytes) ** 2 * d_model * d_ff / math.prod(axes)
    return 2 * math.sqrt(both / devices)


def critical_devices(d_model: int, d_ff: int, *, axes: tuple[int, int] = (1, 2)) -> float:
    """Devices from which weights divided along both sides send less than weights divided along one."""
    one, two = one_side_bytes(1, d_model, axes=sum(axes)), two_sides_bytes(1, d_model, d_ff, 1, axes=axes)
    return (two / one) ** 2
