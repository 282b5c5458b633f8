"""Plant outlier channels in a model that has none, without changing its function.

Models of several billion parameters grow a few channels whose activations are much larger than the rest (Dettmers et
al. 2022, LLM.int8(), arXiv:2208.07339, §4). Small models do not, so methods that handle outliers look alike on them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from mlsys_lab.efficiency.quantization.folding import norm_links, scale_input
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_integer


def plant_outliers(model: Transformer, channels: Sequence[int], exponent: int) -> Transformer:
    """A copy of a model whose norms give 2^exponent times as much in some channels, which the next weights undo.

    Powers of two only change exponents, so logits stay equal to the bit. Folding norms into the next layers, the first
    step of `rotate`, removes such outliers again; those of large models lie in the residual stream as well. InputError
    for a channel that the norms do not have, and for a model whose norms have no weights.
    """
    require_integer("exponent", exponent)
    d_model = model.config.d_model
    if not channels or not all(0 <= channel < d_model for channel in channels):
        raise InputError("outlier channels", got=list(channels), expected=f"some from 0 to {d_model - 1}")
    planted = copy.deepcopy(model)
    scale = torch.ones(d_model, device=model.embedding.weight.device)
    scale[list(channels)] = 2.0**-exponent
    links = [link for block in planted.blocks for link in norm_links(block)]  # type: ignore[arg-type]
    if not links:
        raise InputError("norms without weights have no outliers", got=model.config.name)
    for link in links:
        scale_input(link, scale)
    return planted
