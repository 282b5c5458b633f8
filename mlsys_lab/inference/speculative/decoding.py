"""Speculative decoding: the model checks several drafted tokens in one step, and writes at least one of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.flops.amounts import require_at_least_one
from mlsys_lab.inference.cache import Cache, Contiguous, extend
from mlsys_lab.inference.generate import Completion, Request
from mlsys_lab.inference.generate.batch import borrowed
from mlsys_lab.inference.generate.request import Text
from mlsys_lab.inference.speculative.acceptance import accept
from mlsys_lab.inference.speculative.drafters import Drafter
from mlsys_lab.models import Transformer


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
    request.check(model)
    if request.count != 1:
        raise InputError("speculation writes one text at a time", got=f"count={request.count}", expected=1)
    if drafter.vocab_size != model.config.vocab_size:
        raise InputError(
            "drafts in another vocabulary", got=f"{drafter.vocab_size} tokens", expected=model.config.vocab_size
        )
    require_at_least_one(drafts=drafts)
    if cache is None:
        cache = Contiguous(model, sequences=1, capacity=len(request.prompt) + request.max_tokens)
    writer = _Writer(model, request, drafter, cache)
    with borrowed(cache):
        writer.read()
        while (completion := writer.text.completion) is None:
            writer.step(min(drafts, (cache.chunk or drafts + 1) - 1))
    return Speculation(completion, writer.steps, writer.drafted, writer.accepted)


class _Writer:
    """A text with its sequence in a cache, which holds all of its tokens but the last."""

    def __init__(self, model: Transformer, request: Request, drafter: Drafter, cache: Cache) -> None:
        self.model, self.drafter, self.cache = model, drafter, cache
        self.text, (self.generator,) = Text(request), request.sampling.generators(1)
        self.steps = self.drafted = self.accepted = 0

    def read(self) -> None:
        """Feed the prompt but for its last token, which the first step begins with."""
        prompt = self.text.request.prompt
        self.sequence = self.cache.start(prompt)
        first = self.cache.length(self.sequence)
        chunk = self.cache.chunk or len(prompt)
        for start in range(first, len(prompt) - 1, chunk):
            part = prompt[start : min(start + chunk, len(prompt) - 1)]
            extend(self.model, self.cache, {self.sequence: part})

    def step(self, drafts: int) -> None:
        """Draft, check all drafts in one step, write those accepted and the token after them."""
        before, sampling = self.text.everything, self.text.request.sampling
        # The token after the drafts is written too, so there is no use in drafting what would come after the end.
        draft = self.drafter.propose(before, min(drafts, self.text.left - 1), sampling, self.generator)
        new = [before[-1], *draft.tokens]
        logits = extend(self.model, self.cache, {self.sequence: new}, every_token=True)  # (k + 1, V)
        wanted = torch.stack(
            [sampling.probabilities(row, before + draft.tokens[:i]) for i, row in enumerate(logits)]
        )  # (k + 1, V)
        uniforms = torch.rand(len(new), generator=self.generator, dtype=torch.float64).to(wanted.device)
        drafted = torch.tensor(draft.tokens, dtype=torch.int64, device=wanted.device)
        proposed = draft.probabilities.to(wanted.device)
        accepted, following = (int(x) for x in accept(drafted, proposed, wanted, uniforms))
        self.cache.truncate(self.sequence, len(before) + accepted)
        logprobs = logits.double().log_softmax(-1)
        for row, token in zip(logprobs, [*draft.tokens[:accepted], following], strict=False):
            if self.text.completion is None:
                self.text.add(token, float(row[token]))
        self.steps += 1
        self.drafted += len(draft.tokens)
        self.accepted += accepted
