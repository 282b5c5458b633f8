"""Attention of a step over pages where they lie, by a Triton kernel: nothing is gathered, and no row filled up.

Dimension letters: R sequences of a step, Q new tokens of all together, N query heads, K key/value heads, H head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate

import torch

from mlsys_lab.inference.cache.storage import Storage
from mlsys_lab.models import Transformer


def supports(model: Transformer, storage: Storage) -> bool:
    """Whether `PageAttention` knows a model's attention, and keys and values as they are kept, and Triton is there.

    It knows no latent attention, no ALiBi, no encodings, no numbers of 64 bits and no heads wider than the kernel's.
    """
    config, plain = model.config, type(storage) is Storage
    if not plain or config.latent is not None or config.position == "alibi" or find_spec("triton") is None:
        return False
    from mlsys_lab.kernels.ragged_attention.triton_steps import WIDEST  # imports Triton
    from mlsys_lab.kernels.tiles import DTYPES

    return storage.dtype in DTYPES and config.head_dim <= WIDEST


class PageAttention:
    """Attention of one step: writes new keys and values, attends over the pages; a `CachedAttention`.

    `written` (Q,) are the slots of all new tokens; of each sequence there are its pages, its length with the new tokens
    and their number.
    """

    def __init__(
        self,
        storage: Storage,
        model: Transformer,
        *,
        page: int,
        written: torch.Tensor,
        tables: Sequence[Sequence[int]],
        lengths: Sequence[int],
        counts: Sequence[int],
    ) -> None:
        self.storage, self.page, self.window, self.scale = storage, page, model.window, model.config.head_dim**-0.5
        device, longest = model.embedding.weight.device, max(map(len, tables))
        filled = [[*table, *[0] * (longest - len(table))] for table in tables]
        self.written = written.to(device)
        self.table, self.lengths, self.starts = (  # (R, longest), (R,) and (R + 1,)
            torch.tensor(values, dtype=torch.int32).to(device)
            for values in (filled, list(lengths), [0, *accumulate(counts)])
        )

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend in a layer: q (1, N, Q, H), k and v (1, K, Q, H) -> (1, N, Q, H)."""
        from mlsys_lab.kernels.ragged_attention import ragged_attention  # imports Triton

        self.storage.write(layer, self.written, k[0].transpose(0, 1), v[0].transpose(0, 1))  # (Q, K, H) each
        keys, values = (side.unflatten(0, (-1, self.page)) for side in self.storage.kept[:, layer])
        heads = ragged_attention(
            q[0].transpose(0, 1),
            keys,  # (pages, page, K, H)
            values,
            self.table,
            self.lengths,
            self.starts,
            window=self.window,
            scale=self.scale,
        )  # (Q, N, H)
        return heads.transpose(0, 1)[None]
