"""How an array is divided over ranks: consecutive chunks of its flat elements, as equal as can be, longer first."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch


def chunk_lengths(elements: int, parts: int) -> list[int]:
    """Lengths of `parts` chunks of `elements` elements, zeros among them where there are more parts than elements.

    >>> chunk_lengths(10, 4), chunk_lengths(2, 3)
    ([3, 3, 2, 2], [1, 1, 0])
    """
    share, longer = divmod(elements, parts)
    return [share + (i < longer) for i in range(parts)]


def split_chunks(x: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """Views of the flat elements of `x`, chunk by chunk (a copy first, if `x` is not contiguous)."""
    flat = x.reshape(-1)
    bounds = accumulate(chunk_lengths(flat.numel(), parts), initial=0)
    return [flat[start:stop] for start, stop in pairwise(bounds)]
