"""Training of an adapter: gradients and optimiser states of its thin matrices alone."""

from __future__ import annotations

import torch
from torch import nn

from mlsys_lab.inference.adapters.adapter import Adapter, apply_adapter
from mlsys_lab.models import Transformer
from mlsys_lab.models.training import Tokens, train


def train_adapter(
    model: Transformer,
    adapter: Adapter,
    ids: Tokens,
    *,
    batch_size: int,
    seq_len: int,
    steps: int,
    lr: float,
    seed: int,
) -> list[float]:
    """Train an adapter in place to predict each next token of ids (D,); returns each step's loss, in nats per token.

    The model's weights stay as they are and get no gradients; all else is as in `models.training.train`. InputError for
    an adapter that does not fit the model.
    """
    learnt = {name: (nn.Parameter(a), nn.Parameter(b)) for name, (a, b) in adapter.matrices.items()}  # the same memory
    learner = _Learner(model, [matrix for pair in learnt.values() for matrix in pair])
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.requires_grad_(False)
    try:
        with apply_adapter(model, Adapter(adapter.lora_rank, adapter.lora_alpha, learnt)):
            run = train(learner, ids, batch_size=batch_size, seq_len=seq_len, steps=steps, lr=lr, seed=seed)
            return [step_loss for _, step_loss in run]
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


class _Learner(nn.Module):
    """A model whose parameters are, to an optimiser, an adapter's alone."""

    def __init__(self, model: Transformer, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self.learnt, self.run = nn.ParameterList(parameters), model.forward

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each next token: ids (B, T) -> (B, T, V)."""
        return self.run(tokens)
