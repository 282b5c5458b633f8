"""Chunks of an array, one for each rank: consecutive flat elements, lengths as equal as possible, longer ones first."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch


def chunk_lengths(elements: int, parts: int) -> list[int]:
    """Lengths of `parts` chunks of `elements` elements; some are zero if there are more chunks than elements.

    >>> chunk_lengths(10, 4), chunk_lengths(2, 3)
    ([3, 3, 2, 2], [1, 1, 0])
    """
    length, longer = divmod(elements, parts)
    return [length + (i < longer) for i in range(parts)]


def split_chunks(x: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """Views of `parts` chunks of the flat elements of `x` (of a copy, if `x` is not contiguous)."""
    flat = x.reshape(-1)
    bounds = accumulate(chunk_lengths(flat.numel(), parts), initial=0)
    return [flat[start:stop] for start, stop in pairwise(bounds)]
