"""Generation on a cache of any layout, without a scheduler: all requests advance together.

batch    generate(model, requests, cache=None) -> completions
beams    beam_search(model, prompt_token_ids, max_tokens) -> the likeliest sequences
"""

from mlsys_lab.inference.generate.batch import generate
from mlsys_lab.inference.generate.beams import Beam, beam_search

__all__ = ["Beam", "beam_search", "generate"]
