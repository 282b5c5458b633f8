"""LoRA adapters (arXiv:2106.09685): many fine-tuned models on the weights of one.

adapter   Adapter: low-rank matrices A and B of some linear layers; new_adapter, merge, apply_adapter(model, adapter)
files     load_adapter, save_adapter: folders in PEFT's format
batched   AdapterBank: one forward pass, each token under an adapter of its own
engine    LoRAEngine: requests under different adapters in one batch
training  train_adapter: trains the low-rank matrices, with frozen weights
"""

from mlsys_lab.inference.adapters.adapter import Adapter, apply_adapter, merge, new_adapter
from mlsys_lab.inference.adapters.batched import AdapterBank
from mlsys_lab.inference.adapters.engine import LoRAEngine
from mlsys_lab.inference.adapters.files import load_adapter, save_adapter
from mlsys_lab.inference.adapters.training import train_adapter

__all__ = [
    "Adapter",
    "AdapterBank",
    "LoRAEngine",
    "apply_adapter",
    "load_adapter",
    "merge",
    "new_adapter",
    "save_adapter",
    "train_adapter",
]
