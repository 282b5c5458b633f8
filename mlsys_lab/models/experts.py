"""The MLP of a transformer block: dense, or a mixture of experts with top-k routing.

Dimension letters: B batch, T tokens, D d_model, F hidden size, E experts, A active experts per token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.configs import Experts, TransformerConfig
from mlsys_lab.models.attention import Project, project_each

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "swiglu": F.silu,
    "geglu": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class MLP(nn.Module):
    """MLP down(act(up(x))), or gated down(act(gate(x)) · up(x)) (arXiv:2002.05202): (..., D) -> (..., D).

    `project` computes `up`, or `gate` and `up`.
    """

    def __init__(self, config: TransformerConfig, d_ff: int) -> None:
        super().__init__()
        D, bias = config.d_model, config.mlp_bias
        self.activation = ACTIVATIONS[config.activation]
        self.project: Project = project_each
        self.gate = nn.Linear(D, d_ff, bias=bias) if config.gated else None
        self.up, self.down = nn.Linear(D, d_ff, bias=bias), nn.Linear(d_ff, D, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gate is None:
            (up,) = self.project(x, (self.up,))  # (..., F)
            return self.down(self.activation(up))
        gate, up = self.project(x, (self.gate, self.up))
        return self.down(self.activation(gate) * up)


class MixtureOfExperts(nn.Module):
    """Mixture of experts: the A top experts, weighted by the router's softmax over them (arXiv:2401.04088, §2.1).

    Shared experts, if any, take every token with weight 1 (arXiv:2401.06066, §3.2). No token is dropped.
    """

    def __init__(self, config: TransformerConfig, experts: Experts) -> None:
        super().__init__()
        self.active = experts.active
        self.router = nn.Linear(config.d_model, experts.count, bias=False)
        self.experts = nn.ModuleList(MLP(config, experts.d_ff) for _ in range(experts.count))
        self.shared = nn.ModuleList(MLP(config, experts.d_ff) for _ in range(experts.shared))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Route each token to its experts and sum their weighted results: (B, T, D) -> (B, T, D)."""
        tokens = x.flatten(0, 1)  # (B·T, D)
        best = self.router(tokens).topk(self.active)  # values and indices (B·T, A)
        weights = best.values.softmax(-1, dtype=torch.promote_types(x.dtype, torch.float32)).to(x.dtype)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            row, choice = (best.indices == number).nonzero(as_tuple=True)  # tokens that chose it, and as which choice
            out = out.index_add(0, row, expert(tokens[row]) * weights[row, choice, None])
        out = sum((expert(tokens) for expert in self.shared), start=out)
        return out.view_as(x)  # (B, T, D)
