"""One decoder transformer for many published ones, and how their weights are loaded."""

from mlsys_lab.models.loading import load
from mlsys_lab.models.transformer import Attention, Transformer, fused_attention

__all__ = ["Attention", "Transformer", "fused_attention", "load"]
