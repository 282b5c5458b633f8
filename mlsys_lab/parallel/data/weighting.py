"""What each micro-batch's mean loss counts, where batches have unequal numbers of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import ring
from mlsys_lab.errors import InputError


def loss_weights(tokens: Sequence[int], group: Rank) -> list[float]:
    """Factors for the mean losses of this rank's micro-batches, of `tokens` target tokens each: tᵢ·p/Σt.

    With them, gradients added up over micro-batches and averaged over the p ranks are those of the mean over ALL
    tokens of all ranks. Without, a short sequence's tokens weigh more than a long one's. Costs one all-reduce of a
    number. A micro-batch of padding alone has weight 0. Raises InputError where there is no token anywhere.
    """
    if any(count < 0 for count in tokens):
        raise InputError("tokens of a micro-batch must not be negative", got=list(tokens))
    total = int(ring(group, torch.tensor([sum(tokens)], device=group.device), "token counts"))
    if not total:
        raise InputError("no rank has a token", got=f"{list(tokens)} here and 0 elsewhere")
    return [count * group.size / total for count in tokens]
