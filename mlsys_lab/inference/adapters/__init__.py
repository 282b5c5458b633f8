"""Low-rank adapters (LoRA, arXiv:2106.09685): many fine-tuned models on the weights of one.

adapter   Adapter: thin matrices A and B beside some of a model's; new_adapter, merge, apply_adapter(model, adapter)
files     load_adapter, save_adapter: folders in PEFT's format
batched   AdapterBank: tokens of one pass, each under an adapter of its own
training  train_adapter: the thin matrices learn, the model stays as it is
"""

from mlsys_lab.inference.adapters.adapter import Adapter, apply_adapter, merge, new_adapter
from mlsys_lab.inference.adapters.batched import AdapterBank
from mlsys_lab.inference.adapters.files import load_adapter, save_adapter
from mlsys_lab.inference.adapters.training import train_adapter

__all__ = [
    "Adapter",
    "AdapterBank",
    "apply_adapter",
    "load_adapter",
    "merge",
    "new_adapter",
    "save_adapter",
    "train_adapter",
]
