"""Tensor parallelism (Megatron-LM, arXiv:1909.08053): every matrix is sharded over ranks that see the same tokens."""

from mlsys_lab.parallel.tensor.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
    vocab_parallel_token_losses,
)
from mlsys_lab.parallel.tensor.mappings import (
    copy_to_tensor_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    scatter_to_sequence_parallel_region,
    sequence_parallel_linears,
)
from mlsys_lab.parallel.tensor.transformer import apply_tensor_parallel

__all__ = [
    "ColumnParallelLinear",
    "RowParallelLinear",
    "VocabParallelEmbedding",
    "apply_tensor_parallel",
    "copy_to_tensor_parallel_region",
    "gather_from_sequence_parallel_region",
    "reduce_from_tensor_parallel_region",
    "reduce_scatter_to_sequence_parallel_region",
    "scatter_to_sequence_parallel_region",
    "sequence_parallel_linears",
    "vocab_parallel_cross_entropy",
    "vocab_parallel_token_losses",
]
