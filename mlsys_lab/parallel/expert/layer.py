"""A mixture of experts whose experts are divided over the ranks (GShard, arXiv:2006.16668, §3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.exchange import all_to_all
from mlsys_lab.errors import InputError
from mlsys_lab.models.experts import MixtureOfExperts
from mlsys_lab.parallel.expert.routing import route

TOKENS, COUNTS = "tokens of experts", "counts of experts"
"""Purposes with which the ledger counts rows on their way to experts and back, and how many are to come."""


class ExpertParallelMoE(nn.Module):
    """A `MixtureOfExperts` of which rank r keeps experts r·E/p to (r + 1)·E/p - 1: (B, T, D) -> (B, T, D).

    Each rank has tokens of its own. Two all-to-alls send them to their experts and bring the results back; a third,
    of counts, comes before. Router and shared experts are whole on every rank, so their gradients are to be averaged
    as in data parallelism, while an expert's are sums over all ranks' tokens already: divide them by p.

    capacity_factor: as in `route`; a dropped choice adds nothing to its token. `dropped` is how many the last call
    dropped on this rank. Raises InputError unless the ranks divide the experts evenly.
    """

    def __init__(self, mixture: MixtureOfExperts, group: Rank, capacity_factor: float | None = None) -> None:
        super().__init__()
        self.count, self._group, self.capacity_factor = len(mixture.experts), group, capacity_factor
        if self.count % group.size:
            raise InputError("experts cannot be divided evenly", got=f"{self.count} over {group.size} ranks")
        own = self.count // group.size
        self.active, self.router, self.shared = mixture.active, mixture.router, mixture.shared
        self.experts = mixture.experts[group.rank * own : (group.rank + 1) * own]
        self.dropped = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Send each token to its experts and sum their weighted results: (B, T, D) -> (B, T, D)."""
        tokens = x.flatten(0, 1)  # (n, D)
        best = self.router(tokens).topk(self.active)  # values and indices (n, A)
        weights = best.values.softmax(-1, dtype=torch.promote_types(x.dtype, torch.float32)).to(x.dtype)
        routing = route(best.indices, self.count, self.capacity_factor)
        self.dropped = routing.dropped
        going = routing.counts.view(self._group.size, -1)  # rows to each rank, for each of its experts
        coming = torch.stack(all_to_all(self._group, list(going), COUNTS))
        arrived = exchange(tokens[routing.rows], going.sum(1).tolist(), coming.sum(1).tolist(), self._group)
        results = exchange(
            self._run_experts(arrived, coming), coming.sum(1).tolist(), going.sum(1).tolist(), self._group
        )
        weighted = results * weights[routing.rows, routing.choices, None]
        out = torch.zeros_like(tokens).index_add(0, routing.rows, weighted)
        out = sum((expert(tokens) for expert in self.shared), start=out)
        return out.view_as(x)

    def _run_experts(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Each expert on its rows, which lie in order of the ranks that sent them: counts (p, E/p)."""
        numbers = torch.arange(counts.shape[1], device=counts.device).repeat(len(counts))
        expert_of_row = numbers.repeat_interleave(counts.reshape(-1))
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            (own,) = (expert_of_row == number).nonzero(as_tuple=True)
            out = out.index_add(0, own, expert(rows[own]))
        return out


def exchange(rows: torch.Tensor, going: list[int], coming: list[int], group: Rank) -> torch.Tensor:
    """Send going[i] of the rows, in order, to each rank i; returns the coming[i] that each sent here, (sum, D)."""
    exchanged: torch.Tensor = _Exchange.apply(rows, going, coming, group)  # type: ignore[no-untyped-call]
    return exchanged


class _Exchange(torch.autograd.Function):
    """An all-to-all of rows; backward their gradients go back to where the rows came from."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, going: list[int], coming: list[int], group: Rank) -> torch.Tensor:
        ctx.going, ctx.coming, ctx.group = going, coming, group
        return torch.cat(all_to_all(group, torch.split(rows, going), TOKENS))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None, None, None]:
        parts = torch.split(gradients[0].contiguous(), ctx.coming)
        return torch.cat(all_to_all(ctx.group, parts, TOKENS)), None, None, None
