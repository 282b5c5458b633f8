"""Tensor parallelism: every matrix is divided over the ranks, which all work on the same tokens (arXiv:1909.08053)."""

from mlsys_lab.parallel.tensor.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from mlsys_lab.parallel.tensor.loss import vocab_parallel_cross_entropy
from mlsys_lab.parallel.tensor.regions import copy_to_tensor_parallel_region, reduce_from_tensor_parallel_region
from mlsys_lab.parallel.tensor.sequence import gather, scatter, sequence_parallel_linears, split
from mlsys_lab.parallel.tensor.transformer import apply_tensor_parallel

__all__ = [
    "ColumnParallelLinear",
    "RowParallelLinear",
    "VocabParallelEmbedding",
    "apply_tensor_parallel",
    "copy_to_tensor_parallel_region",
    "gather",
    "reduce_from_tensor_parallel_region",
    "scatter",
    "sequence_parallel_linears",
    "split",
    "vocab_parallel_cross_entropy",
]
