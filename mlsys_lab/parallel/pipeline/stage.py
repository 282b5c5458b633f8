"""A piece of a transformer: some of its blocks, the first piece with the embedding, the last with the head."""

from __future__ import annotations

import torch
from torch import nn

from mlsys_lab.errors import InputError
from mlsys_lab.models.transformer import Transformer


class TransformerChunk(nn.Module):
    """Piece `number` of the `count` of a model, which is cut down to it in place.

    No piece has more than one block more than another, and the longer ones are spread evenly: of 6 layers, 4 pieces
    have [2, 1, 2, 1]. From ids (B, T) on the first
    piece, from what the piece before gives on the others; to logits on the last. A tied embedding stays on both ends,
    so that their gradients have to be added up. `places` (T,): where the tokens stand. Raises InputError where a piece
    would have no block.
    """

    def __init__(self, model: Transformer, number: int, count: int, places: torch.Tensor) -> None:
        super().__init__()
        layers = len(model.blocks)
        if layers < count:
            raise InputError("a piece without a layer", got=f"{layers} layers for {count} pieces of the pipeline")
        self.model, self.is_first, self.is_last = model, number == 0, number == count - 1
        self._own = range(-(-number * layers // count), -(-(number + 1) * layers // count))
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
        """Go through this piece's blocks."""
        if self.is_first:
            x = self.model.embed(x, self._places)
        angles, bias = self.model.place(x, self._places)
        for layer in self._own:
            x = self.model.blocks[layer](x, angles, bias)
        return self.model.predict(x) if self.is_last else x
