"""Speculative decoding: the model checks several drafted tokens in one step, and writes at least one of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import Cache, Contiguous, extend
from mlsys_lab.inference.generate import Completion, Request, Sampling
from mlsys_lab.inference.generate.batch import borrow
from mlsys_lab.inference.generate.request import Text
from mlsys_lab.inference.speculative.acceptance import accept
from mlsys_lab.inference.speculative.drafters import Draft, Drafter
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_at_least_one


@dataclass(frozen=True)
class Speculation:
    """A completion written with drafts: steps of the model that it took, tokens drafted, and how many were accepted."""

    completion: Completion
    steps: int
    drafted: int
    accepted: int


def speculate(
    model: Transformer, request: Request, drafter: Drafter, *, drafts: int = 4, cache: Cache | None = None
) -> Speculation:
    """Continue one prompt with up to `drafts` drafted tokens checked in each step of the model (arXiv:2211.17192).

    Texts are distributed as those of `generate`, whatever the drafts; greedy ones are equal token for token, seeded
    ones are not, since the draws are others. Keys of rejected drafts are taken out of the cache before the next step.
    InputError as in `generate`, and for a request of several texts or a drafter with another vocabulary.
    """
    return speculate_all(model, [request], [drafter], drafts=drafts, cache=cache)[0]


def speculate_all(
    model: Transformer,
    requests: Sequence[Request],
    drafters: Sequence[Drafter],
    *,
    drafts: int = 4,
    cache: Cache | None = None,
) -> list[Speculation]:
    """Continue several prompts, each with a drafter of its own, all of them checked in the same steps of the model.

    In each step every text gets as many tokens as its drafter had ideas and the model accepts, so that they advance
    unequally. A text hangs on its own request and drafter alone, as in `generate`. InputError as in `speculate`.
    """
    if len(requests) != len(drafters):
        raise InputError("a drafter for each request", got=f"{len(drafters)} for {len(requests)}")
    for request, drafter in zip(requests, drafters, strict=True):
        check(model, request, drafter)
    require_at_least_one(drafts=drafts)
    if cache is None:
        longest = max((len(request.prompt) + request.max_tokens for request in requests), default=1)
        cache = Contiguous(model, sequences=len(requests) or 1, capacity=longest)
    drafts = min(drafts, (cache.chunk or drafts + 1) - 1)
    writers = [Writer(request, drafter) for request, drafter in zip(requests, drafters, strict=True)]
    with borrow(cache):
        read(model, cache, writers)
        going = writers
        while going:
            drafted = [writer.draft(drafts) for writer in going]
            new = {
                writer.sequence: [writer.text.everything[-1], *draft.tokens]
                for writer, draft in zip(going, drafted, strict=True)
            }
            logits = extend(model, cache, new, every_token=True)  # (Q, V)
            for writer, draft, part in zip(going, drafted, logits.tensor_split(ends(new)), strict=True):
                writer.choose(draft, part, cache)
            going = [writer for writer in going if writer.text.completion is None]
    return [writer.result for writer in writers]


def ends(new: Mapping[int, Sequence[int]]) -> list[int]:
    """Where, among the new tokens of all sequences of a step, those of each sequence end, but for the last one's."""
    return list(accumulate(len(tokens) for tokens in new.values()))[:-1]


def check(model: Transformer, request: Request, drafter: Drafter) -> None:
    """Raise InputError for a request that speculation cannot answer, and a drafter with another vocabulary."""
    request.check(model)
    if request.count != 1:
        raise InputError("speculation writes one text at a time", got=f"count={request.count}", expected=1)
    if drafter.vocab_size != model.config.vocab_size:
        raise InputError(
            "drafts in another vocabulary", got=f"{drafter.vocab_size} tokens", expected=model.config.vocab_size
        )


def verify(
    sampling: Sampling, text: Sequence[int], draft: Draft, logits: torch.Tensor, generator: torch.Generator
) -> list[int]:
    """Tokens that a step gives a text: drafts that are accepted, and the token after them, by logits (k + 1, V)."""
    wanted = torch.stack(
        [sampling.probabilities(row, [*text, *draft.tokens[:i]]) for i, row in enumerate(logits)]
    )  # (k + 1, V)
    uniforms = torch.rand(len(logits), generator=generator, dtype=torch.float64).to(wanted.device)
    drafted = torch.tensor(draft.tokens, dtype=torch.int64, device=wanted.device)
    accepted, following = (int(x) for x in accept(drafted, draft.probabilities.to(wanted.device), wanted, uniforms))
    return [*draft.tokens[:accepted], following]


class Writer:
    """A text with its drafter, its random numbers and a sequence in a cache, which holds all its tokens but the last.

    `steps`, `drafted` and `accepted` are counts so far.
    """

    sequence: int

    def __init__(self, request: Request, drafter: Drafter) -> None:
        self.drafter, self.text, self.sampling = drafter, Text(request), request.sampling
        (self.generator,) = request.sampling.generators(1)
        self.steps = self.drafted = self.accepted = 0

    @property
    def result(self) -> Speculation:
        """What was written, once the text has ended."""
        assert self.text.completion
        return Speculation(self.text.completion, self.steps, self.drafted, self.accepted)

    def draft(self, drafts: int) -> Draft:
        """Tokens that may follow, at most `drafts`: the token after them is written too, and must not be too many."""
        return self.drafter.propose(
            self.text.everything, min(drafts, self.text.left - 1), self.sampling, self.generator
        )

    def choose(self, draft: Draft, logits: torch.Tensor, cache: Cache) -> None:
        """Write those drafts that are accepted and the token after them, by logits (k + 1, V).

        Keys of the others go from the cache, and all keys of a text that has ended.
        """
        before = self.text.everything
        tokens = verify(self.sampling, before, draft, logits, self.generator)
        self.drafted += len(draft.tokens)
        self.write(tokens, logits[: len(tokens)])
        if self.text.completion:
            cache.drop(self.sequence)
        else:
            cache.truncate(self.sequence, len(before) + len(tokens) - 1)

    def write(self, tokens: Sequence[int], logits: torch.Tensor) -> None:
        """Write what one step gave: accepted drafts and the token after them, each by its logits (..., V)."""
        logprobs = logits.double().log_softmax(-1)
        for row, token in zip(logprobs, tokens, strict=True):
            if self.text.completion is None:
                self.text.add(token, float(row[token]))
        self.steps += 1
        self.accepted += len(tokens) - 1

    def uniforms(self, count: int) -> torch.Tensor:
        """Random numbers in [0, 1) of this text's own source."""
        return torch.rand(count, generator=self.generator, dtype=torch.float64)


def read(model: Transformer, cache: Cache, writers: Sequence[Writer]) -> None:
    """Feed all prompts but for their last tokens, which the first step begins with; in chunks where the cache must."""
    pending: dict[int, Sequence[int]] = {}
    for writer in writers:
        prompt = writer.text.request.prompt
        writer.sequence = cache.start(prompt)
        pending[writer.sequence] = prompt[cache.length(writer.sequence) : -1]
    while pending := {sequence: tokens for sequence, tokens in pending.items() if tokens}:
        parts = {sequence: tokens[: cache.chunk] for sequence, tokens in pending.items()}
        extend(model, cache, parts)
        pending = {sequence: tokens[len(parts[sequence]) :] for sequence, tokens in pending.items()}
