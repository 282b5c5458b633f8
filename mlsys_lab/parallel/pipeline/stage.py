"""A stage of a transformer: some of its blocks, the first with the embedding, the last with the head."""

from __future__ import annotations

import torch
from torch import nn

from mlsys_lab.errors import InputError
from mlsys_lab.flops.config import TransformerConfig
from mlsys_lab.flops.layout import Layout
from mlsys_lab.models.transformer import Transformer


def check_stages(config: TransformerConfig, layout: Layout) -> None:
    """Raise InputError unless a layout's stages have equally many layers each, in one piece, as training here needs."""
    if config.n_layers % layout.pipeline:
        got = f"{config.n_layers} over {layout.pipeline} stages"
        raise InputError("layers cannot be divided evenly", got=got)
    if layout.interleave > 1:
        raise InputError("stages are trained in one piece", got=f"{layout.interleave} pieces")


class Stage(nn.Module):
    """What stage `number` of `count` keeps of a model, which is cut in place: as many blocks on each, in order.

    From ids (B, T) on the first stage, from what the stage before gives on the others; to logits on the last. A tied
    embedding stays on both ends, so that their gradients have to be added up. `places` (T,): where the tokens stand.
    Raises InputError where stages cannot have equally many blocks.
    """

    def __init__(self, model: Transformer, number: int, count: int, places: torch.Tensor) -> None:
        super().__init__()
        layers = len(model.blocks)
        if layers % count:
            raise InputError("layers cannot be divided evenly", got=f"{layers} over {count} stages")
        self.model, self.is_first, self.is_last = model, number == 0, number == count - 1
        self._own = range(number * layers // count, (number + 1) * layers // count)
        self._places = places
        for layer in set(range(layers)) - set(self._own):
            model.blocks[layer] = nn.Identity()  # keeps the numbers of the others
        if not self.is_first:
            model.positions, model.embedding_norm = None, nn.Identity()
            if model.head is not None or not self.is_last:
                del model.embedding
        if not self.is_last:
            model.norm, model.head = nn.Identity(), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Go through this stage's blocks."""
        if self.is_first:
            x = self.model.embed(x, self._places)
        angles, bias = self.model.place(x, self._places)
        for layer in self._own:
            x = self.model.blocks[layer](x, angles, bias)
        return self.model.predict(x) if self.is_last else x
