"""Queries and keys whose scores are where a running maximum matters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

LENGTH = 20.0
"""What is added to every query."""


def raise_scores(q: np.ndarray, k: np.ndarray, by: Mapping[int | None, float]) -> None:
    """Change queries and keys (head, token, width), in place, so that scores / √width rise by about so much.

    by: for the number of a key what the scores of all queries with it rise by; None stands for all keys. A key that is
    named is nothing else any more.
    """
    width = q.shape[-1]
    along = np.full(width, width**-0.5)
    q += LENGTH * along
    for token, rise in by.items():
        if token is not None:
            k[:, token] = 0.0
        k[:, slice(None) if token is None else token] += rise * width**0.5 / LENGTH * along
