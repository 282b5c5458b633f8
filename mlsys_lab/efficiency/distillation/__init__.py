"""Knowledge distillation: a small language model, the student, learns from a larger one, the teacher.

logits      distillation_loss: the teacher's distribution of each next token, softened by a temperature
sequences   generate_text: text that the teacher generates, for the student to train on
layers      LayerMatch: the teacher's hidden states, predicted from the student's by a learned projection
distil      distil(student, teacher, ids, ...): train with these losses
"""

from mlsys_lab.efficiency.distillation.distil import distil
from mlsys_lab.efficiency.distillation.layers import LayerMatch, hidden_states
from mlsys_lab.efficiency.distillation.logits import distillation_loss, stored_logit_bytes
from mlsys_lab.efficiency.distillation.sequences import generate_text

__all__ = ["LayerMatch", "distil", "distillation_loss", "generate_text", "hidden_states", "stored_logit_bytes"]
