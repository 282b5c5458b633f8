"""Beam search: the sequences that are likeliest as a whole, rather than token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import Cache, Paged, extend
from mlsys_lab.inference.engine.sequence import CompletionOutput, Request
from mlsys_lab.inference.generate.batch import drop_new_sequences
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_at_least_one

BLOCK_SIZE = 16


class Beam(NamedTuple):
    """A finished sequence; `score` is its log-probability / (number of its tokens) ** length_penalty.

    A stop token counts in the score, though it is cut off.
    """

    completion: CompletionOutput
    score: float


class _OpenBeam(NamedTuple):
    """An unfinished sequence: its log-probability, tokens, their log-probabilities, its sequence in the cache."""

    logprob: float
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    sequence: int


def beam_search(
    model: Transformer,
    prompt_token_ids: Sequence[int],
    max_tokens: int,
    *,
    num_beams: int = 4,
    stop: Sequence[int] = (),
    length_penalty: float = 1.0,
    cache: Cache | None = None,
) -> list[Beam]:
    """Keep the `num_beams` likeliest sequences at each step, and return the best finished ones, best first.

    Sequences end with a token of `stop`, which is cut off, or at `max_tokens`. A `length_penalty` of 0 compares
    probabilities, which favours short sequences; 1 compares means. The search ends when `num_beams` have finished and
    the likeliest open one, at its present length, scores below all of them. Same results as `transformers` with
    `num_beams` and `early_stopping=False`. Beams share the blocks of their common prefix if the cache can share; None
    makes a paged one. InputError as for a `Request`, for fewer than one beam, and a cache without room.
    """
    request = Request(prompt_token_ids, max_tokens, stop_token_sequences=[[token] for token in stop])
    request.validate(model)
    require_at_least_one(num_beams=num_beams)
    if not -math.inf < length_penalty < math.inf:
        raise InputError("length_penalty out of range", got=length_penalty, expected="a number")
    prompt = request.prompt_token_ids
    if cache is None:
        longest = len(prompt) + max_tokens
        cache = Paged(model, num_blocks=num_beams * -(-longest // BLOCK_SIZE) + 1, block_size=BLOCK_SIZE)
    finished: list[Beam] = []
    with drop_new_sequences(cache):
        sequence = cache.start(prompt)
        opened, logits = [_OpenBeam(0.0, (), (), sequence)], _prefill(model, cache, sequence, prompt)
        for length in range(1, max_tokens + 1):
            candidates = _best_candidates(opened, logits, num_beams * (1 + len(set(stop))))
            has_ended = [one.token_ids[-1] in stop or length == max_tokens for one in candidates]
            for one, ended in list(zip(candidates, has_ended, strict=True))[:num_beams]:
                if ended:
                    finished.append(_finish(one, stop, length_penalty))
            finished = sorted(finished, key=lambda beam: -beam.score)[:num_beams]
            survivors = [one for one, ended in zip(candidates, has_ended, strict=True) if not ended][:num_beams]
            if not survivors:
                break
            if len(finished) == num_beams and survivors[0].logprob / length**length_penalty <= finished[-1].score:
                break
            opened = _fork(cache, opened, survivors)
            logits = extend(model, cache, {one.sequence: one.token_ids[-1:] for one in opened})
    return finished


def _prefill(model: Transformer, cache: Cache, sequence: int, prompt: Sequence[int]) -> torch.Tensor:
    """Compute what is not cached of a prompt, in chunks if the cache has a `chunk`; logits (1, V) after the last."""
    first, size = cache.length(sequence), cache.chunk or len(prompt)
    chunks = [prompt[start : start + size] for start in range(first, len(prompt), size)]
    return [extend(model, cache, {sequence: chunk}) for chunk in chunks][-1]


def _best_candidates(opened: Sequence[_OpenBeam], logits: torch.Tensor, count: int) -> list[_OpenBeam]:
    """The `count` likeliest sequences of one more token, best first, each with the cache sequence that it extends."""
    logprobs = logits.double().log_softmax(-1).cpu()  # (R, V)
    totals = logprobs + torch.tensor([one.logprob for one in opened], dtype=torch.float64)[:, None]
    best = totals.flatten().topk(min(count, totals.numel()))
    found = []
    for total, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        row, token = divmod(index, totals.shape[1])
        parent, logprob = opened[row], float(logprobs[row, token])
        found.append(_OpenBeam(total, (*parent.token_ids, token), (*parent.logprobs, logprob), parent.sequence))
    return found


def _finish(one: _OpenBeam, stop: Sequence[int], length_penalty: float) -> Beam:
    is_stopped = one.token_ids[-1] in stop
    num_kept = len(one.token_ids) - is_stopped
    kept, logprobs = one.token_ids[:num_kept], one.logprobs[:num_kept]
    completion = CompletionOutput(kept, logprobs, "stop" if is_stopped else "length")
    return Beam(completion, one.logprob / len(one.token_ids) ** length_penalty)


def _fork(cache: Cache, opened: Sequence[_OpenBeam], survivors: Sequence[_OpenBeam]) -> list[_OpenBeam]:
    """Give each survivor a cache sequence: the first to extend a parent keeps its sequence, the others fork it."""
    kept = {one.sequence for one in survivors}
    for one in opened:
        if one.sequence not in kept:
            cache.drop(one.sequence)
    forked: list[_OpenBeam] = []
    for one in survivors:
        is_taken = any(other.sequence == one.sequence for other in forked)
        forked.append(one._replace(sequence=cache.fork(one.sequence)) if is_taken else one)
    return forked
