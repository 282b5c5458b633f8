"""Model chunks of a transformer: some of its blocks, with the embedding in the first chunk and the head in the last."""

from __future__ import annotations

import torch
from torch import nn

from mlsys_lab.errors import InputError
from mlsys_lab.models.transformer import Transformer


class TransformerChunk(nn.Module):
    """Chunk `index` of `num_chunks` of a transformer; removes the other chunks' layers from `model` in place.

    Numbers of blocks differ by at most one. Chunks at the ends have fewer, first of all the last chunk, which has the
    head too, then the first, whose stage has most micro-batches in flight: 6 layers in 4 chunks are [1, 2, 2, 1], and 2
    layers [0, 1, 1, 0], with the embedding alone in the first chunk and the head alone in the last (Llama 3,
    arXiv:2407.21783, §3.3.2).

    Maps token ids (B, T) on the first chunk, and hidden states (B, T, D) on all others, to hidden states, or to logits
    on the last. A tied embedding stays on both ends, so their gradients have to be summed. positions (T,): token
    positions within the sequence. Raises InputError if a chunk between these two would have no block.
    """

    def __init__(self, model: Transformer, index: int, num_chunks: int, positions: torch.Tensor) -> None:
        super().__init__()
        layers = len(model.blocks)
        if layers < num_chunks - 2:
            raise InputError("a model chunk without a layer", got=f"{layers} layers for {num_chunks} model chunks")
        self.model, self.is_first, self.is_last = model, index == 0, index == num_chunks - 1
        sizes = chunk_sizes(layers, num_chunks)
        self._layers = range(sum(sizes[:index]), sum(sizes[: index + 1]))
        self._positions = positions
        for layer in set(range(layers)) - set(self._layers):
            model.blocks[layer] = nn.Identity()  # keeps the indices of the other blocks
        if not self.is_first:
            model.positions, model.embedding_norm = None, nn.Identity()
            if model.head is not None or not self.is_last:
                del model.embedding
        if not self.is_last:
            model.norm, model.head = nn.Identity(), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run this chunk's blocks."""
        if self.is_first:
            x = self.model.embed(x, self._positions)
        angles, bias = self.model.position_terms(x, self._positions)
        for layer in self._layers:
            x = self.model.blocks[layer](x, angles, bias)
        return self.model.predict(x) if self.is_last else x


def chunk_sizes(layers: int, num_chunks: int) -> list[int]:
    """Number of layers of each chunk; those with one less are the last, the first, the last but one and so on."""
    most = -(-layers // num_chunks)
    from_ends = sorted(range(num_chunks), key=lambda index: (min(index, num_chunks - 1 - index), -index))
    shorter = from_ends[: most * num_chunks - layers]
    return [most - (index in shorter) for index in range(num_chunks)]
