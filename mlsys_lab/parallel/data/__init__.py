"""Data parallelism: every rank has the whole model and a part of the batch, and all average their gradients."""

from mlsys_lab.parallel.data.averaging import average_gradients, average_gradients_flat, sync_module_states
from mlsys_lab.parallel.data.compression import Int8GradientAverager, PowerSGD
from mlsys_lab.parallel.data.ddp import DDP
from mlsys_lab.parallel.data.weighting import loss_weights

__all__ = [
    "DDP",
    "Int8GradientAverager",
    "PowerSGD",
    "average_gradients",
    "average_gradients_flat",
    "loss_weights",
    "sync_module_states",
]
