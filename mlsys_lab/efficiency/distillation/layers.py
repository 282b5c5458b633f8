"""Distillation on layers: the student's hidden states, projected, imitate those of the teacher.

Dimension letters: B sequences of a batch, T tokens of a sequence, L layers, D d_model.
"""

from __future__ import annotations

import torch
from torch import nn

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer


def hidden_states(model: Transformer, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Residual stream before the first block and after each block: ids (B, T) -> L + 1 tensors (B, T, D).

    `model.predict` turns the last one into logits. The ids are not checked.
    """
    states = [model.embed(tokens)]
    angles, bias = model.position_terms(states[0])
    for block in model.blocks:
        states.append(block(states[-1], angles, bias))
    return states


class LayerMatch(nn.Module):
    """The hidden-state loss of TinyBERT (arXiv:1909.10351, §3.1, equations 8 and 9), with its learned projections.

    Layer m of the student's L imitates layer round(m · L_teacher / L) of the teacher, the uniform map of §4; layer 0
    is the embedding. Each pair has a projection of its own from the student's D to the teacher's. InputError for a
    student with more layers than the teacher.
    """

    def __init__(self, student: TransformerConfig, teacher: TransformerConfig) -> None:
        super().__init__()
        if student.n_layers > teacher.n_layers:
            expected = f"at most the teacher's {teacher.n_layers}"
            raise InputError("layers of the student", got=student.n_layers, expected=expected)
        layers = range(student.n_layers + 1)
        self.teacher_layers = [round(layer * teacher.n_layers / student.n_layers) for layer in layers]
        self.projections = nn.ModuleList(nn.Linear(student.d_model, teacher.d_model, bias=False) for _ in layers)

    def forward(self, student: list[torch.Tensor], teacher: list[torch.Tensor]) -> torch.Tensor:
        """Squared error over the teacher's mean square, averaged over pairs: `hidden_states` of both -> a scalar.

        1 is the loss of a student that predicts zeros, whatever the scale of the teacher's hidden states; the paper
        has the plain squared error.
        """
        targets = [teacher[layer] for layer in self.teacher_layers]
        pairs = zip(self.projections, student, targets, strict=True)
        errors = [(project(mine) - theirs).square().mean() / theirs.square().mean() for project, mine, theirs in pairs]
        return torch.stack(errors).mean()
