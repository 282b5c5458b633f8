"""Pruning: weights set to 0, or removed, with little change of what a model computes; and what that buys.

masks        magnitude_mask, wanda_mask, two_four_mask, n_m_mask: which weights of a layer are kept
sparsegpt    sparsegpt(weight, hessian, density): a mask, and remaining weights that compensate
convert      prune(model, method, density, calibration) -> a copy of the model with zeros; METHODS
structured   prune_heads, prune_channels, prune_layers -> a smaller dense model; importance scores
schedules    cubic_schedule, one_shot_schedule, iterative_schedule; training that prunes or keeps masks
costs        bytes, FLOPs and least time of sparse products; break_even_density. Imports no torch
"""
