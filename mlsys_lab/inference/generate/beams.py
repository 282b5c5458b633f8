"""Beam search: of all texts that could be written, those likely as a whole, not token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import Cache, Paged, extend
from mlsys_lab.inference.generate.batch import borrow
from mlsys_lab.inference.generate.request import Completion, Request
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_at_least_one

PAGE = 16


class Beam(NamedTuple):
    """A text that beam search found; `score` is its log-probability / (number of its tokens) ** length_penalty.

    A token that ended it counts in the score, though it is cut off.
    """

    completion: Completion
    score: float


class _Open(NamedTuple):
    """A text that goes on: its log-probability, tokens, their log-probabilities, its sequence in the cache."""

    total: float
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    sequence: int


def beam_search(
    model: Transformer,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    beams: int = 4,
    stop: Sequence[int] = (),
    length_penalty: float = 1.0,
    cache: Cache | None = None,
) -> list[Beam]:
    """Keep the `beams` likeliest beginnings at each step, and return the best texts that came of them, best first.

    Texts end with a token of `stop`, which is cut off, or at `max_tokens`. A `length_penalty` of 0 compares
    probabilities, which favours short texts; 1 compares means. The search ends when as many have ended, and the
    likeliest that goes on, as long as it is now, is worse than all of them. The same texts as `transformers` finds
    with `num_beams` and `early_stopping=False`. Beams share what they have in common where the cache can; None makes a
    paged one. InputError for what `Request` refuses, fewer than one beam, and a cache without room.
    """
    request = Request(prompt, max_tokens, stop=[[token] for token in stop])
    request.check(model)
    require_at_least_one(beams=beams)
    if not -math.inf < length_penalty < math.inf:
        raise InputError("length_penalty out of range", got=length_penalty, expected="a number")
    if cache is None:
        longest = len(request.prompt) + max_tokens
        cache = Paged(model, pages=beams * -(-longest // PAGE) + 1, page=PAGE)
    finished: list[Beam] = []
    with borrow(cache):
        sequence = cache.start(request.prompt)
        opened, logits = [_Open(0.0, (), (), sequence)], _read(model, cache, sequence, request.prompt)
        for length in range(1, max_tokens + 1):
            candidates = _best(opened, logits, beams * (1 + len(set(stop))))
            ended = [one.tokens[-1] in stop or length == max_tokens for one in candidates]
            for one, ends in list(zip(candidates, ended, strict=True))[:beams]:
                if ends:
                    finished.append(_finish(one, stop, length_penalty))
            finished = sorted(finished, key=lambda beam: -beam.score)[:beams]
            going = [one for one, ends in zip(candidates, ended, strict=True) if not ends][:beams]
            beaten = len(finished) == beams and going and going[0].total / length**length_penalty <= finished[-1].score
            if not going or beaten:
                break
            opened = _branch(cache, opened, going)
            logits = extend(model, cache, {one.sequence: one.tokens[-1:] for one in opened})
    return finished


def _read(model: Transformer, cache: Cache, sequence: int, prompt: Sequence[int]) -> torch.Tensor:
    """Feed a sequence what the cache lacks of its prompt, in chunks where it must; logits (1, V) after the last."""
    first, size = cache.length(sequence), cache.chunk or len(prompt)
    parts = [prompt[start : start + size] for start in range(first, len(prompt), size)]
    return [extend(model, cache, {sequence: part}) for part in parts][-1]


def _best(opened: Sequence[_Open], logits: torch.Tensor, count: int) -> list[_Open]:
    """The likeliest texts of one token more, at most `count`, each with the sequence of the text that it goes on from.

    The likelier come first.
    """
    logprobs = logits.double().log_softmax(-1).cpu()  # (R, V)
    totals = logprobs + torch.tensor([one.total for one in opened], dtype=torch.float64)[:, None]
    best = totals.flatten().topk(min(count, totals.numel()))
    found = []
    for total, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        row, token = divmod(index, totals.shape[1])
        before = opened[row]
        logprob = float(logprobs[row, token])
        found.append(_Open(total, (*before.tokens, token), (*before.logprobs, logprob), before.sequence))
    return found


def _finish(one: _Open, stop: Sequence[int], length_penalty: float) -> Beam:
    ended = one.tokens[-1] in stop
    cut = len(one.tokens) - ended
    completion = Completion(one.tokens[:cut], one.logprobs[:cut], "stop" if ended else "length")
    return Beam(completion, one.total / len(one.tokens) ** length_penalty)


def _branch(cache: Cache, opened: Sequence[_Open], going: Sequence[_Open]) -> list[_Open]:
    """Give each text a sequence of its own: the first to go on from another keeps its sequence, the others fork it."""
    kept = {one.sequence for one in going}
    for one in opened:
        if one.sequence not in kept:
            cache.drop(one.sequence)
    branches: list[_Open] = []
    for one in going:
        taken = any(branch.sequence == one.sequence for branch in branches)
        branches.append(one._replace(sequence=cache.fork(one.sequence)) if taken else one)
    return branches
