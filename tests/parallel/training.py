"""A model, batches, and training in one process: the reference that every technique must equal."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.models.transformer import Transformer

STEPS = 5
CONFIG = TransformerConfig("tiny", 2, d_model=8, n_heads=2, d_ff=12, vocab_size=11, context=6, tied=True)
Trained = tuple[list[float], dict[str, torch.Tensor]]
Step = Callable[[torch.Tensor], torch.Tensor]


def make_model(seed: int = 0) -> nn.Module:
    """A small transformer in float64 with tied embeddings."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Transformer(CONFIG).double()


def make_batches(rows: int, steps: int = STEPS) -> torch.Tensor:
    """Token ids (steps, rows, context)."""
    return torch.randint(CONFIG.vocab_size, (steps, rows, CONFIG.context), generator=torch.Generator().manual_seed(1))


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each next token: ids (rows, context) -> a number."""
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def make_optimizer(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)  # type: ignore[arg-type]


def train_alone(batches: torch.Tensor, seed: int = 0) -> Trained:
    """Losses of every step, and the final parameters, of one process with all rows."""
    model = make_model(seed)
    optimizer, losses = make_optimizer(model.parameters()), []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, dict(model.named_parameters())


def rows_of(rank: Rank, batches: torch.Tensor) -> torch.Tensor:
    """This rank's rows of all batches."""
    return batches.chunk(rank.size, dim=1)[rank.rank]


def assert_equal(trained: list[Trained], alone: Trained) -> None:
    """All ranks' parameters are those of one process, and their losses average to its own, to float64 rounding."""
    losses = torch.tensor([losses for losses, _ in trained], dtype=torch.float64).mean(0)
    torch.testing.assert_close(losses, torch.tensor(alone[0], dtype=torch.float64), rtol=1e-12, atol=1e-12)
    for _, parameters in trained:
        assert parameters.keys() == alone[1].keys()
        for name, value in alone[1].items():
            torch.testing.assert_close(parameters[name].detach(), value.detach(), rtol=1e-9, atol=1e-11)
