"""Data parallelism: every rank has the whole model and a part of the batch, and all average their gradients."""

from mlsys_lab.parallel.data.averaging import average_each, average_flat, copy_from_first
from mlsys_lab.parallel.data.compression import Int8Average, PowerSGD
from mlsys_lab.parallel.data.ddp import DDP
from mlsys_lab.parallel.data.weighting import loss_weights

__all__ = ["DDP", "Int8Average", "PowerSGD", "average_each", "average_flat", "copy_from_first", "loss_weights"]
