"""Data parallelism: every rank has the full model and a part of the batch, and all ranks average their gradients."""

from mlsys_lab.parallel.data.compression import Int8GradientAverager, PowerSGD
from mlsys_lab.parallel.data.ddp import (
    DDP,
    average_gradients,
    average_gradients_flat,
    loss_weights,
    sync_module_states,
)

__all__ = [
    "DDP",
    "Int8GradientAverager",
    "PowerSGD",
    "average_gradients",
    "average_gradients_flat",
    "loss_weights",
    "sync_module_states",
]
