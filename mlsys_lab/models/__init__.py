"""A decoder transformer that covers many published models, and loading of their weights."""

from mlsys_lab.models.attention import Attention, CachedAttention, fused_attention
from mlsys_lab.models.loading import load
from mlsys_lab.models.transformer import Transformer

__all__ = ["Attention", "CachedAttention", "Transformer", "fused_attention", "load"]
