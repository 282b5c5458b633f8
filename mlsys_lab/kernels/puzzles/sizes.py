"""Sizes that the puzzles fix, named so that a solution can use them."""

from __future__ import annotations

THREADS = 64
"""Threads of a block in the puzzles that have several blocks or shared memory: two warps."""

SIDE = 16
"""Threads along a row and along a column of a block in the puzzles with two dimensions."""

MAX_TAPS = 8
"""Most weights that a filter may have."""
