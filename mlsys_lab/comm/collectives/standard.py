"""Collectives under the names that lab 07 asks for: what later labs run on."""

from mlsys_lab.comm.collectives.all_reduce import all_reduce, halving_doubling, hierarchical
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.collectives.reduce_scatter import all_gather, reduce_scatter
from mlsys_lab.comm.collectives.rooted import broadcast, reduce

__all__ = [
    "all_gather",
    "all_reduce",
    "broadcast",
    "halving_doubling",
    "hierarchical",
    "reduce",
    "reduce_scatter",
    "split_chunks",
]
