"""Generation: continue prompts token by token, greedily or by draws, many at once.

filters    what changes logits before a draw: repetition penalty, top-k, top-p, min-p
sampling   Sampling, the options; the distribution that they make of logits; draw, choose
stopping   stop strings in text that comes in pieces
request    Request, what is asked; Completion, the answer; Text, while it is written
batch      generate(model, requests, cache=None) -> completions
beams      beam_search(model, prompt, max_tokens) -> the likeliest texts
"""

from mlsys_lab.inference.generate.batch import generate
from mlsys_lab.inference.generate.beams import Beam, beam_search
from mlsys_lab.inference.generate.request import Completion, Request
from mlsys_lab.inference.generate.sampling import Chooser, Sampling, choose, draw
from mlsys_lab.inference.generate.stopping import StopStrings, TextStream

__all__ = [
    "Beam",
    "Chooser",
    "Completion",
    "Request",
    "Sampling",
    "StopStrings",
    "TextStream",
    "beam_search",
    "choose",
    "draw",
    "generate",
]
