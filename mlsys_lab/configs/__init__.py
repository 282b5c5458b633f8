"""Sizes of transformers: `TransformerConfig`, published models by name, and readers of Hugging Face's config.json.

`TrainConfig` holds the hyperparameters of a training run.
"""

from mlsys_lab.configs.presets import PRESETS, preset
from mlsys_lab.configs.training import TrainConfig
from mlsys_lab.configs.transformer import Experts, LatentAttention, RotaryScaling, TransformerConfig

__all__ = ["PRESETS", "Experts", "LatentAttention", "RotaryScaling", "TrainConfig", "TransformerConfig", "preset"]
