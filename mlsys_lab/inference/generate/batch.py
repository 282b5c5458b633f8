"""Generation for a batch of requests: all texts go on together, a step of the model at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from mlsys_lab.inference.cache import Cache, Contiguous, extend
from mlsys_lab.inference.generate.request import Completion, Request, Text
from mlsys_lab.inference.generate.sampling import Chooser, choose
from mlsys_lab.models import Transformer


class Running:
    """A text with its place in a cache, tokens still to be fed, and its own source of random numbers.

    `waiting` are further texts, with theirs, that begin where this one does: after the prompt.
    """

    def __init__(
        self,
        text: Text,
        generator: torch.Generator,
        sequence: int,
        pending: Sequence[int] = (),
        waiting: Sequence[tuple[Text, torch.Generator]] = (),
    ) -> None:
        self.text, self.generator, self.sequence = text, generator, sequence
        self.pending, self.waiting = list(pending), waiting

    def branch(self, cache: Cache) -> list[Running]:
        """This text, and those that were waiting for it to come this far, each with a fork of its sequence."""
        waiting, self.waiting = self.waiting, ()
        return [self, *(Running(text, generator, cache.fork(self.sequence)) for text, generator in waiting)]

    @property
    def chooser(self) -> Chooser:
        """The sampling options, tokens so far and random numbers by which the next token is chosen."""
        return Chooser(self.text.request.sampling, self.text.everything, self.generator)

    def write(self, token: int, logprob: float) -> None:
        """Write the next token, and keep it to be fed next."""
        self.text.add(token, logprob)
        self.pending = [token]


def generate(model: Transformer, requests: Sequence[Request], *, cache: Cache | None = None) -> list[list[Completion]]:
    """Continue all prompts: for each request a list of `count` completions.

    Prompts are fed in one step, or in chunks where the cache has a `chunk`; `count` texts share one pass over their
    prompt. A text hangs on its request alone, up to the rounding of logits, which other company may change: with a seed
    it is the same in any batch. `cache` is one of this model with room for all texts, which are gone from it at the
    end; None makes one. InputError, in one line, for requests that the model cannot answer, a cache of another model
    and one without room.
    """
    for request in requests:
        request.check(model)
    if cache is None:
        longest = max((len(request.prompt) + request.max_tokens for request in requests), default=1)
        cache = Contiguous(model, sequences=sum(request.count for request in requests) or 1, capacity=longest)
    texts = [[Text(request) for _ in range(request.count)] for request in requests]
    with borrow(cache):
        running = [_start(cache, group) for group in texts]
        while running:
            running = _step(model, cache, running)
    return [[text.completion for text in group if text.completion] for group in texts]


@contextmanager
def borrow(cache: Cache) -> Iterator[None]:
    """Give back all room of a cache that is taken within this block, and still held when it is left."""
    before = set(cache.sequences)
    try:
        yield
    finally:
        for sequence in cache.sequences:
            if sequence not in before:
                cache.drop(sequence)


def _start(cache: Cache, texts: Sequence[Text]) -> Running:
    request = texts[0].request
    first, *waiting = zip(texts, request.sampling.generators(request.count), strict=True)
    sequence = cache.start(request.prompt)
    return Running(*first, sequence, request.prompt[cache.length(sequence) :], waiting)


def _step(model: Transformer, cache: Cache, running: Sequence[Running]) -> list[Running]:
    """Feed all texts one token or chunk more, and write a token where the prompt is done; returns those that go on."""
    new = {one.sequence: one.pending[: cache.chunk] for one in running}
    logits = extend(model, cache, new)
    going: list[Running] = []
    writers: list[Running] = []
    rows: list[int] = []
    for row, reader in enumerate(running):
        del reader.pending[: cache.chunk]
        branches = [] if reader.pending else reader.branch(cache)
        going += branches or [reader]
        writers += branches
        rows += [row] * len(branches)
    for one, (token, logprob) in zip(writers, choose([one.chooser for one in writers], logits[rows]), strict=True):
        one.write(token, logprob)
        if one.text.completion:
            cache.drop(one.sequence)
    return [one for one in going if not one.text.completion]
