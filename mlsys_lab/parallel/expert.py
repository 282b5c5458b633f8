"""Expert parallelism: each rank holds some experts, and tokens are dispatched to them and combined back.

GShard (arXiv:2006.16668, §3). Letters: B sequences, T tokens of each, n = B·T tokens of this rank, D d_model,
E experts, k experts that a token uses (top-k routing), R rows that are dispatched, p ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import all_reduce
from mlsys_lab.comm.collectives.all_to_all import all_to_all
from mlsys_lab.errors import InputError
from mlsys_lab.models.experts import MixtureOfExperts
from mlsys_lab.models.transformer import Transformer
from mlsys_lab.parallel.tags import Tag


@dataclass(frozen=True)
class Routing:
    """Rows to dispatch, sorted by expert: R of at most n·k.

    `token_indices` (R,) is each row's token, `topk_index` (R,) the position of its expert among the token's choices
    (0 for the first choice), `tokens_per_expert` (E,) the number of rows for each expert, and `num_dropped` the number
    of choices dropped because their expert was full.
    """

    token_indices: torch.Tensor
    topk_index: torch.Tensor
    tokens_per_expert: torch.Tensor
    num_dropped: int


def route(expert_ids: torch.Tensor, num_experts: int, capacity_factor: float | None = None) -> Routing:
    """Sort choices by expert: expert_ids (n, k), the experts that each token chose, best first.

    capacity_factor: each expert takes at most ⌈factor·n·k/E⌉ rows from this rank, first choices before second ones and
    earlier tokens before later ones; the remaining choices are dropped (GShard, §2.2). None means no limit. Raises
    InputError unless the factor is positive.
    """
    if capacity_factor is not None and not capacity_factor > 0:
        raise InputError("a capacity factor must be positive", got=capacity_factor, expected="or None for no limit")
    num_tokens, top_k = expert_ids.shape
    choices = expert_ids.T.reshape(-1)  # all first choices, then all second ones
    order = torch.argsort(choices, stable=True)
    counts = torch.bincount(choices, minlength=num_experts)
    if capacity_factor is not None:
        capacity = math.ceil(capacity_factor * num_tokens * top_k / num_experts)
        first_row = (counts.cumsum(0) - counts)[choices[order]]  # of the row's expert
        position = torch.arange(len(choices), device=choices.device) - first_row
        order, counts = order[position < capacity], counts.clamp(max=capacity)
    return Routing(order % num_tokens, order // num_tokens, counts, len(choices) - len(order))


class ExpertParallelMoE(nn.Module):
    """Mixture of experts of which rank r holds experts r·E/p to (r + 1)·E/p - 1: (B, T, D) -> (B, T, D).

    Each rank has its own tokens. One all-to-all announces the number of rows, a second dispatches the rows to their
    experts, a third returns the results to be combined. Router and shared experts are replicated: average their
    gradients as in data parallelism. An expert's gradients are already sums over all ranks' tokens: divide them by p.

    capacity_factor: as in `route`; a dropped choice contributes nothing to its token. `num_dropped` counts the
    choices that the last call dropped on this rank. Raises InputError unless p divides E.
    """

    def __init__(self, mixture: MixtureOfExperts, group: Rank, capacity_factor: float | None = None) -> None:
        super().__init__()
        self.num_experts, self._group, self.capacity_factor = len(mixture.experts), group, capacity_factor
        if self.num_experts % group.size:
            raise InputError("experts cannot be divided evenly", got=f"{self.num_experts} over {group.size} ranks")
        num_local = self.num_experts // group.size
        self.top_k, self.router, self.shared = mixture.active, mixture.router, mixture.shared
        self.experts = mixture.experts[group.rank * num_local : (group.rank + 1) * num_local]
        self.num_dropped = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Dispatch tokens to their experts and combine the weighted results: (B, T, D) -> (B, T, D)."""
        tokens = x.flatten(0, 1)  # (n, D)
        best = self.router(tokens).topk(self.top_k)  # values and indices (n, k)
        weights = best.values.softmax(-1, dtype=torch.promote_types(x.dtype, torch.float32)).to(x.dtype)
        routing = route(best.indices, self.num_experts, self.capacity_factor)
        self.num_dropped = routing.num_dropped

        combined = dispatch_and_combine(tokens, weights, routing, self.experts, self._group)
        combined = sum((expert(tokens) for expert in self.shared), start=combined)
        return combined.view_as(x)


def dispatch_and_combine(
    tokens: torch.Tensor, weights: torch.Tensor, routing: Routing, experts: Iterable[nn.Module], group: Rank
) -> torch.Tensor:
    """Weighted sums of the experts' results for this rank's tokens: (n, D) -> (n, D).

    weights (n, k): of each token's choices. experts: this rank's E/p, in order.
    """
    send_counts = routing.tokens_per_expert.view(group.size, -1)  # (p, E/p): to each rank's experts
    receive_counts = torch.stack(all_to_all(group, list(send_counts), Tag.EXPERT_COUNTS))  # (p, E/p): from each rank
    sends, receives = send_counts.sum(1).tolist(), receive_counts.sum(1).tolist()
    dispatched = all_to_all_tokens(tokens[routing.token_indices], sends, receives, group)
    results = all_to_all_tokens(_run_experts(experts, dispatched, receive_counts), receives, sends, group)
    weighted = results * weights[routing.token_indices, routing.topk_index, None]  # (R, D)
    return torch.zeros_like(tokens).index_add(0, routing.token_indices, weighted)


def _run_experts(experts: Iterable[nn.Module], rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Apply each local expert to its rows; rows are grouped by source rank, counts (p, E/p)."""
    local_ids = torch.arange(counts.shape[1], device=counts.device).repeat(len(counts))
    expert_of_row = local_ids.repeat_interleave(counts.reshape(-1))
    out = torch.zeros_like(rows)
    for local_id, expert in enumerate(experts):
        (own,) = (expert_of_row == local_id).nonzero(as_tuple=True)
        out = out.index_add(0, own, expert(rows[own]))
    return out


def all_to_all_tokens(
    rows: torch.Tensor, send_counts: list[int], receive_counts: list[int], group: Rank
) -> torch.Tensor:
    """Dispatch rows to ranks, the next send_counts[i] to rank i: (R, D) -> (Σ receive_counts, D), by source rank.

    The backward pass returns the gradients by the reverse all-to-all.
    """
    received: torch.Tensor = _AllToAllTokens.apply(rows, send_counts, receive_counts, group)  # type: ignore[no-untyped-call]
    return received


class _AllToAllTokens(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, send_counts: list[int], receive_counts: list[int], group: Rank
    ) -> torch.Tensor:
        ctx.receive_counts, ctx.group = receive_counts, group
        return torch.cat(all_to_all(group, torch.split(rows, send_counts), Tag.EXPERT_TOKENS))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None, None, None]:
        chunks = torch.split(gradients[0].contiguous(), ctx.receive_counts)
        return torch.cat(all_to_all(ctx.group, chunks, Tag.EXPERT_TOKENS)), None, None, None


def load_balancing_loss(logits: torch.Tensor, expert_ids: torch.Tensor, group: Rank) -> torch.Tensor:
    """Load-balancing auxiliary loss E·Σ fᵢ·Pᵢ: router logits (n, E), chosen experts (n, k) -> scalar.

    fᵢ is the fraction of all ranks' choices that went to expert i, Pᵢ its mean probability over this rank's tokens
    (Switch Transformers, arXiv:2101.03961, §2.2). Averaged over ranks with equally many tokens, it is the loss of one
    process; with each rank's own fᵢ, ranks with opposite choices would both look unbalanced. It is 1 if all experts
    have the same load.
    """
    num_experts = logits.shape[1]
    local_counts = torch.bincount(expert_ids.reshape(-1), minlength=num_experts).to(logits.dtype)
    counts = all_reduce(group, local_counts, Tag.EXPERT_LOADS)
    return num_experts * (counts / counts.sum() * logits.softmax(1).mean(0)).sum()


def apply_expert_parallel(model: Transformer, group: Rank) -> set[nn.Parameter]:
    """Shard every mixture of experts of a model in place, E/p experts on each rank; return the experts' parameters.

    Their gradients come out as means over the ranks of `group`, as data parallelism makes those of all other
    parameters; what is left is to average them over the ranks that hold the same experts. Raises InputError unless p
    divides E.
    """
    expert_parameters: set[nn.Parameter] = set()
    for block in model.blocks:
        if isinstance(block.mlp, MixtureOfExperts):
            block.mlp = layer = ExpertParallelMoE(block.mlp, group)
            for parameter in layer.experts.parameters():
                parameter.register_hook(lambda gradient: gradient / group.size)  # type: ignore[no-untyped-call]
                expert_parameters.add(parameter)
    return expert_parameters
