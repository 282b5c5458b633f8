"""Generation: continue prompts token by token, greedily or by draws, many at once.

filters    what changes logits before a draw: repetition penalty, top-k, top-p, min-p
sampling   Sampling, the options; the distribution that they make of logits; draw
request    Request, what is asked; Completion, the answer; Text, while it is written
batch      generate(model, requests, cache=None) -> completions
"""

from mlsys_lab.inference.generate.batch import generate
from mlsys_lab.inference.generate.request import Completion, Request
from mlsys_lab.inference.generate.sampling import Sampling, draw

__all__ = ["Completion", "Request", "Sampling", "draw", "generate"]
