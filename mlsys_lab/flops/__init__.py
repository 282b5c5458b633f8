"""Transformer arithmetic: parameters, FLOPs, bytes and the least time they take, worked out from sizes alone."""

from mlsys_lab.flops.config import Experts, LatentAttention, TransformerConfig

__all__ = ["Experts", "LatentAttention", "TransformerConfig"]
