"""Collectives under their usual names, each by the algorithm that lab 07 builds: what later labs run on."""

from mlsys_lab.comm.collectives.all_reduce import halving_doubling, hierarchical
from mlsys_lab.comm.collectives.all_reduce import ring as all_reduce
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.collectives.reduce_scatter import all_gather_ring as all_gather
from mlsys_lab.comm.collectives.reduce_scatter import reduce_scatter_ring as reduce_scatter
from mlsys_lab.comm.collectives.rooted import broadcast_tree as broadcast
from mlsys_lab.comm.collectives.rooted import reduce_tree as reduce

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
