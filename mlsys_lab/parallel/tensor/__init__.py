"""Tensor parallelism: every matrix is divided over the ranks, which all work on the same tokens (arXiv:1909.08053)."""

from mlsys_lab.parallel.tensor.layers import RowLinear, VocabularyEmbedding, take_columns
from mlsys_lab.parallel.tensor.loss import divided_cross_entropy
from mlsys_lab.parallel.tensor.regions import enter, leave
from mlsys_lab.parallel.tensor.sequence import gather, project_gathered, scatter, split
from mlsys_lab.parallel.tensor.transformer import divide_transformer

__all__ = [
    "RowLinear",
    "VocabularyEmbedding",
    "divide_transformer",
    "divided_cross_entropy",
    "enter",
    "gather",
    "leave",
    "project_gathered",
    "scatter",
    "split",
    "take_columns",
]
