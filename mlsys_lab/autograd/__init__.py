"""Automatic differentiation: scalar engine (`Value`), array engine (`Tensor`), checkpointing, modules, optimizers."""

from mlsys_lab.autograd import nn, optim
from mlsys_lab.autograd.checkpointing import (
    best_segments,
    checkpoint,
    checkpoint_sequential,
    peak_units,
    split_segments,
)
from mlsys_lab.autograd.finite_differences import gradcheck
from mlsys_lab.autograd.functional import (
    cat,
    cross_entropy,
    dropout,
    embedding,
    gelu,
    layer_norm,
    linear,
    log_softmax,
    logsumexp,
    matmul,
    relu,
    rms_norm,
    softmax,
    where,
)
from mlsys_lab.autograd.graph import Node, no_grad, nodes
from mlsys_lab.autograd.saved_memory import saved_bytes, saved_storages
from mlsys_lab.autograd.tensor import Tensor, record
from mlsys_lab.autograd.value import Value, topological_order

__all__ = [
    "Node",
    "Tensor",
    "Value",
    "best_segments",
    "cat",
    "checkpoint",
    "checkpoint_sequential",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "gradcheck",
    "layer_norm",
    "linear",
    "log_softmax",
    "logsumexp",
    "matmul",
    "nn",
    "no_grad",
    "nodes",
    "optim",
    "peak_units",
    "record",
    "relu",
    "rms_norm",
    "saved_bytes",
    "saved_storages",
    "softmax",
    "split_segments",
    "topological_order",
    "where",
]
