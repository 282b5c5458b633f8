"""Training of a student: the teacher's logits, the data's own next tokens and the teacher's layers, weighted.

Dimension letters: D tokens of the data, B sequences of a batch, T tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.efficiency.distillation.layers import LayerMatch, hidden_states
from mlsys_lab.efficiency.distillation.logits import Direction, distillation_loss
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer, training
from mlsys_lab.models.training import Tokens
from mlsys_lab.validation import require_non_negative


def distil(
    student: Transformer,
    teacher: Transformer,
    ids: Tokens,
    *,
    batch_size: int,
    seq_len: int,
    steps: int,
    lr: float,
    seed: int,
    temperature: float = 1.0,
    direction: Direction = "forward",
    data_weight: float = 0.0,
    layer_weight: float = 0.0,
) -> Iterator[tuple[int, float]]:
    """Train a student in place to imitate its teacher on ids (D,); yield each step's number, from 1, and loss.

    The loss is (1 - data_weight) · `distillation_loss` + data_weight · the next token's cross-entropy (Hinton et al.,
    arXiv:1503.02531, §2), and layer_weight · `LayerMatch`. All else is as in `models.training.train`. For distillation
    on sequences train on ids of `generate_text`, with this function or that. The teacher does not change. InputError
    for different vocabularies, weights out of range, and sequences longer than a context.
    """
    contexts = student.config.context, teacher.config.context
    if student.config.vocab_size != teacher.config.vocab_size:
        got = f"{student.config.vocab_size} and {teacher.config.vocab_size} tokens"
        raise InputError("vocabularies of student and teacher", got=got, expected="the same")
    if seq_len > min(contexts):
        raise InputError("seq_len out of range", got=seq_len, expected=f"at most the contexts' {min(contexts)}")
    if not 0 <= data_weight <= 1:
        raise InputError("data_weight out of range", got=data_weight, expected="0 to 1")
    require_non_negative(layer_weight=layer_weight)
    match = _new_match(student, teacher, seed) if layer_weight else None

    def loss(_: nn.Module, windows: torch.Tensor) -> torch.Tensor:
        tokens, next_tokens = windows[:, :-1], windows[:, 1:]  # (B, T)
        with torch.no_grad():
            theirs = hidden_states(teacher, tokens)
            target = teacher.predict(theirs[-1])
        mine = hidden_states(student, tokens)
        logits = student.predict(mine[-1])  # (B, T, V)
        total = (1 - data_weight) * distillation_loss(logits, target, temperature=temperature, direction=direction)
        if data_weight:
            total = total + data_weight * F.cross_entropy(logits.flatten(0, 1), next_tokens.flatten())
        return total if match is None else total + layer_weight * match(mine, theirs)

    learner = nn.ModuleList([student] if match is None else [student, match])
    return training.train(
        learner, ids, batch_size=batch_size, seq_len=seq_len, steps=steps, lr=lr, seed=seed, loss_function=loss
    )


def _new_match(student: Transformer, teacher: Transformer, seed: int) -> LayerMatch:
    """Seeded projections where the student is; the global random state is preserved."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LayerMatch(student.config, teacher.config).to(student.embedding.weight.device)
