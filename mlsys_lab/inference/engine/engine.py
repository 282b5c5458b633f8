"""The engine: requests go in at any time, tokens come out step by step, in whatever company they are worked out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.adapters import Adapter, AdapterBank
from mlsys_lab.inference.cache import Paged
from mlsys_lab.inference.engine.model_runner import ModelRunner
from mlsys_lab.inference.engine.scheduler import Batch, Build, Limits, Scheduler, build_scheduler
from mlsys_lab.inference.engine.sequence import Sequence
from mlsys_lab.inference.generate import Chooser, Completion, Request, choose
from mlsys_lab.inference.generate.request import Text
from mlsys_lab.inference.speculative import Draft, Drafter, verify
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_at_least_one


class Written(NamedTuple):
    """What one step wrote of one text: of request `request`, number `choice` of its `count` texts, from 0.

    `logprobs` are as in `Completion`. `piece` is the text, in characters, that became certain, None where the request
    has no `stream`; `completion` is there once the text has ended.
    """

    request: int
    choice: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    piece: str | None
    completion: Completion | None


class Writer:
    """A text in the engine: its place among the texts of its request, its random numbers, its drafter if it has one."""

    def __init__(
        self, request: int, choice: int, text: Text, generator: torch.Generator, drafter: Drafter | None
    ) -> None:
        self.request, self.choice, self.text, self.generator, self.drafter = request, choice, text, generator, drafter
        self.draft: Draft | None = None
        self.shown = 0  # characters given out

    def propose(self, drafts: int) -> list[int]:
        """Draft up to so many tokens, fewer where the text may not grow so far; none without a drafter."""
        self.draft, most = None, min(drafts, self.text.left - 1)
        if self.drafter and most > 0:
            self.draft = self.drafter.propose(self.text.everything, most, self.text.request.sampling, self.generator)
        return list(self.draft.tokens) if self.draft else []

    @property
    def chooser(self) -> Chooser:
        """What the next token is chosen by, besides logits."""
        return Chooser(self.text.request.sampling, self.text.everything, self.generator)

    def check(self, logits: torch.Tensor) -> list[tuple[int, float]]:
        """Tokens and logarithms of their probabilities, by logits (k + 1, V) after the last token and k drafts."""
        assert self.draft
        sampling, everything, k = self.text.request.sampling, self.text.everything, len(logits) - 1
        draft = Draft(self.draft.tokens[:k], self.draft.probabilities[:k])
        logprobs = logits.double().log_softmax(-1)
        tokens = verify(sampling, everything, draft, logits, self.generator)
        return [(token, float(row[token])) for row, token in zip(logprobs, tokens, strict=False)]

    def write(self, chosen: Iterable[tuple[int, float]]) -> Written:
        """Write tokens with the logarithms of their probabilities, up to the text's end."""
        before = len(self.text.tokens)
        for token, logprob in chosen:
            if self.text.completion is None:
                self.text.add(token, logprob)
        piece = None
        if self.text.request.stream:
            piece, self.shown = self.text.shown[self.shown :], len(self.text.shown)
        tokens, logprobs = tuple(self.text.tokens[before:]), tuple(self.text.logprobs[before:])
        return Written(self.request, self.choice, tokens, logprobs, piece, self.text.completion)


class Engine:
    """A model that answers many requests at once, on a cache of `pages` pages of `page` tokens.

    A text hangs on its request alone, up to the rounding of logits: with a seed, or greedily, it is the one that
    `generate` writes, whatever else is in the batch, whoever was preempted and whatever was in the cache. `drafter`
    makes a drafter for each text, of whose guesses up to `drafts` are checked in a step; texts are then distributed as
    those of `generate`, greedy ones equal. `limits` are the scheduler's, and `build` makes it, of whatever class.
    `adapters` of the model, by name, are kept beside the cache, and requests of one batch choose among them. `pages` is
    a number, not what a budget of bytes leaves: adapters take nothing from it. InputError for an adapter that does not
    fit the model, and where the scheduler is none of the package's, which keeps prefixes under different ones apart.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        pages: int,
        page: int = 16,
        limits: Limits | None = None,
        drafter: Callable[[], Drafter] | None = None,
        drafts: int = 4,
        build: Build = build_scheduler,
        adapters: Mapping[str, Adapter] | None = None,
    ) -> None:
        require_at_least_one(drafts=drafts)
        self.model, self.scheduler = model, build(pages, page, limits or Limits())
        if adapters and not isinstance(self.scheduler, Scheduler):
            got, expected = type(self.scheduler).__name__, "one of the package's class Scheduler"
            raise InputError("a scheduler that may know no adapters", got=got, expected=expected)
        self.cache = Paged(model, pages=pages, page=page, tables=self.scheduler.tables)
        self.adapters = AdapterBank(model, adapters or {})
        self.runner = ModelRunner(model, self.cache, self.adapters)
        self.drafter, self.drafts = drafter, drafts
        self.batch: Batch | None = None
        self._writers: dict[Sequence, Writer] = {}
        self._streams: dict[int, deque[Written]] = {}  # by request, what its stream has still to give out
        self._written: list[Written] = []  # of all other requests, what has still to be given out
        self._requests = 0

    @property
    def idle(self) -> bool:
        """Whether every request has been answered."""
        return self.scheduler.idle

    def add(self, request: Request, *, priority: int = 0, adapter: str | None = None) -> int:
        """Number of a request, whose texts wait from now on; one of a higher `priority` is served earlier.

        It is answered under the adapter of this name, or by the model as it is. InputError for an adapter that is not
        there, a request that the model cannot answer, and one that outgrows the cache.
        """
        request.check(self.model)
        if adapter is not None:
            self.adapters.require(adapter)
        under = {} if adapter is None else {"adapter": adapter}  # schedulers of other classes need not know the word
        number = self._requests
        for choice, generator in enumerate(request.sampling.generators(request.count)):
            sequence = self.scheduler.add(request.prompt, request.max_tokens, priority=priority, **under)
            drafter = self.drafter() if self.drafter else None
            self._writers[sequence] = Writer(number, choice, Text(request), generator, drafter)
        self._requests += 1
        return number

    def step(self) -> list[Written]:
        """Run the model once, and say what came of it: nothing where no request waits, or all it did was to read.

        What `stream` gives out is left to it; what others wrote while it ran the model comes first.
        """
        self._run_model()
        written, self._written = self._written, []
        return written

    def abort(self, number: int) -> None:
        """Forget a request and give back its room; InputError for one that is not under way."""
        sequences = [sequence for sequence, writer in self._writers.items() if writer.request == number]
        if not sequences:
            raise InputError("no such request under way", got=number)
        for sequence in sequences:
            self.scheduler.finish(sequence)
            del self._writers[sequence]
        self._streams.pop(number, None)

    def stream(self, request: Request, *, priority: int = 0, adapter: str | None = None) -> Iterator[Written]:
        """What is written of one request, as it comes; all others go on meanwhile. Closed early, it is aborted."""
        number, left = self.add(request, priority=priority, adapter=adapter), request.count
        inbox = self._streams[number] = deque()
        try:
            while left and number in self._streams:
                while inbox:
                    news = inbox.popleft()
                    left -= news.completion is not None
                    yield news
                if left:
                    self._run_model()
        finally:
            if any(writer.request == number for writer in self._writers.values()):
                self.abort(number)
            self._streams.pop(number, None)

    def run(self) -> dict[int, list[Completion]]:
        """Step until every request has been answered: completions by request, without those that are streamed."""
        found: dict[int, dict[int, Completion]] = {}
        while not self.idle or self._written:
            for news in self.step():
                if news.completion:
                    found.setdefault(news.request, {})[news.choice] = news.completion
        return {number: [texts[choice] for choice in sorted(texts)] for number, texts in found.items()}

    def _run_model(self) -> None:
        """Run the model once, and keep what it wrote for who gives it out."""
        if self.idle:
            return
        if self.drafter:
            for sequence in self.scheduler.running:
                sequence.drafts = self._writers[sequence].propose(self.drafts)
        self.batch = batch = self.scheduler.schedule()
        for sequence, chosen in zip(batch.writers, self._choose(batch, self.runner.run(batch)), strict=True):
            news = self._writers[sequence].write(chosen)
            self.scheduler.write(sequence, news.tokens)
            if news.completion:
                self.scheduler.finish(sequence)
                del self._writers[sequence]
            self._streams.get(news.request, self._written).append(news)

    def _choose(self, batch: Batch, logits: list[torch.Tensor]) -> list[list[tuple[int, float]]]:
        """What each writer of a batch writes by its logits (k + 1, V): all without drafts are chosen for at once."""
        writers = [self._writers[sequence] for sequence in batch.writers]
        texts = [writer.chooser for writer, its in zip(writers, logits, strict=True) if len(its) == 1]
        chosen = iter(choose(texts, torch.cat([its for its in logits if len(its) == 1])) if texts else ())
        return [
            [next(chosen)] if len(its) == 1 else writer.check(its) for writer, its in zip(writers, logits, strict=True)
        ]
