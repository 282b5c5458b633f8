"""Generation for a batch of requests: all sequences advance together, one step of the model at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from mlsys_lab.inference.cache import Cache, Contiguous, extend
from mlsys_lab.inference.engine.sampler import create_generation_states, sample
from mlsys_lab.inference.engine.sequence import CompletionOutput, GenerationState, Request, SampledToken
from mlsys_lab.models import Transformer


class Running:
    """A sequence of a cache with its output so far, `state`, and its tokens that are not computed yet.

    `siblings` are further sequences of the same request, which are forked from it once the prompt is computed.
    """

    def __init__(
        self,
        state: GenerationState,
        sequence: int,
        pending: Sequence[int] = (),
        siblings: Sequence[GenerationState] = (),
    ) -> None:
        self.state, self.sequence, self.pending, self.siblings = state, sequence, list(pending), siblings

    def fork(self, cache: Cache) -> list[Running]:
        """This sequence and its siblings, each with a fork of its cache."""
        siblings, self.siblings = self.siblings, ()
        return [self, *(Running(state, cache.fork(self.sequence)) for state in siblings)]

    def append(self, sampled: SampledToken) -> None:
        """Append a sampled token, which is computed in the next step."""
        self.state.append(sampled)
        self.state.call_on_token([sampled.token_id])
        self.pending = [sampled.token_id]


def generate(
    model: Transformer, requests: Sequence[Request], *, cache: Cache | None = None
) -> list[list[CompletionOutput]]:
    """Continue all prompts: for each request a list of `n` completions.

    Prompts are computed in one step, or in chunks if the cache has a `chunk`; the `n` sequences of a request share one
    pass over its prompt. An output depends only on its request, up to the rounding of logits: with a seed it is the
    same in any batch. `cache` is one of this model with room for all sequences, which are dropped at the end; None
    makes one. InputError for requests that the model cannot serve, a cache of another model and one without room.
    """
    for request in requests:
        request.validate(model)
    if cache is None:
        longest = max((len(request.prompt_token_ids) + request.max_tokens for request in requests), default=1)
        cache = Contiguous(model, sequences=sum(request.n for request in requests) or 1, capacity=longest)
    groups = [create_generation_states(request) for request in requests]
    with drop_new_sequences(cache):
        running = [_start(cache, group) for group in groups]
        while running:
            running = _step(model, cache, running)
    return [[state.completion for state in group if state.completion] for group in groups]


@contextmanager
def drop_new_sequences(cache: Cache) -> Iterator[None]:
    """Drop all sequences that are started within this block and still in the cache at its end."""
    before = set(cache.sequences)
    try:
        yield
    finally:
        for sequence in cache.sequences:
            if sequence not in before:
                cache.drop(sequence)


def _start(cache: Cache, group: Sequence[GenerationState]) -> Running:
    first, *siblings = group
    prompt = first.request.prompt_token_ids
    sequence = cache.start(prompt)
    return Running(first, sequence, prompt[cache.length(sequence) :], siblings)


def _step(model: Transformer, cache: Cache, running: Sequence[Running]) -> list[Running]:
    """Compute one more token or chunk of every sequence, and sample those whose prompt is computed.

    Returns the unfinished sequences.
    """
    logits: torch.Tensor = extend(model, cache, {one.sequence: one.pending[: cache.chunk] for one in running})
    unfinished: list[Running] = []
    sampled: list[Running] = []
    rows: list[int] = []
    for row, one in enumerate(running):
        del one.pending[: cache.chunk]
        forks = [] if one.pending else one.fork(cache)
        unfinished += forks or [one]
        sampled += forks
        rows += [row] * len(forks)
    tokens = sample([one.state for one in sampled], logits[rows])
    for one, token in zip(sampled, tokens, strict=True):
        one.append(token)
        if one.state.completion:
            cache.drop(one.sequence)
    return [one for one in unfinished if not one.state.completion]
