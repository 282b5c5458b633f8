"""Sequences of equal length with a target for each token, of which the loss may ignore some.

Letters: D tokens of a text, S sequences, T tokens of a sequence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from mlsys_lab.models.training import Tokens

IGNORED = -100
"""Target of a token that the loss ignores: `ignore_index` of torch's cross-entropy."""


@dataclass(frozen=True)
class Sequences:
    """Token ids `inputs` (S, T), and for each the token to predict, or IGNORED: `targets` (S, T)."""

    inputs: Tokens
    targets: Tokens

    def __len__(self) -> int:
        return len(self.inputs)

    @classmethod
    def from_texts(cls, texts: Iterable[Tokens], seq_len: int) -> Sequences:
        """Cut texts of ids (D,), more than T each, without overlap; up to T tokens at the end of each are left out."""
        windows = np.concatenate([sliding_window_view(ids, seq_len + 1)[::seq_len] for ids in texts])  # (S, T + 1)
        return cls(windows[:, :-1], windows[:, 1:])

    def padded(self, multiple: int) -> Sequences:
        """Append sequences without targets until their number is a multiple."""
        extra = ((0, -len(self) % multiple), (0, 0))
        return Sequences(np.pad(self.inputs, extra), np.pad(self.targets, extra, constant_values=IGNORED))

    def __getitem__(self, rows: slice | Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of some sequences."""
        return torch.from_numpy(self.inputs[rows]), torch.from_numpy(self.targets[rows])

    @property
    def num_targets(self) -> int:
        """Number of tokens that the loss counts."""
        return int((self.targets != IGNORED).sum())


def digest(data: Tokens | Sequences) -> str:
    """Short hash of training data: a run resumes only on the data that it started with."""
    arrays = [data.inputs, data.targets] if isinstance(data, Sequences) else [data]
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()[:16]
