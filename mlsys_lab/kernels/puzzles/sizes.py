"""Sizes that the puzzles fix, so that a solution can name them."""

from __future__ import annotations

THREADS = 64
"""Threads of a block in the puzzles that have several blocks, or that share: two warps."""

SIDE = 16
"""Threads along a row and along a column of a block in the puzzles with two dimensions."""

MOST_TAPS = 8
"""Weights that a filter has at most."""
