"""Context parallelism: every rank has some tokens of each sequence, and attention looks at all ranks' tokens."""

from mlsys_lab.parallel.context.positions import contiguous_positions, count_scores, zigzag_positions
from mlsys_lab.parallel.context.ring import ring_attention
from mlsys_lab.parallel.context.ulysses import ulysses_attention

__all__ = ["contiguous_positions", "count_scores", "ring_attention", "ulysses_attention", "zigzag_positions"]
