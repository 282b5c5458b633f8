"""Speculative decoding: the model verifies several draft tokens in one step, and adds at least one of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.cache import Cache, Contiguous, extend
from mlsys_lab.inference.engine.sampler import (
    adjust_logits,
    create_generation_states,
    logsumexp,
    probabilities,
    require_not_nan,
    with_logprobs,
)
from mlsys_lab.inference.engine.sequence import CompletionOutput, GenerationState, Request, SampledToken
from mlsys_lab.inference.generate.batch import drop_new_sequences
from mlsys_lab.inference.speculative.acceptance import accept
from mlsys_lab.inference.speculative.controller import SpeculationController
from mlsys_lab.inference.speculative.drafters import Draft, Drafter, certain
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_at_least_one


@dataclass(frozen=True)
class Speculation:
    """A completion generated with draft tokens: steps of the model, number of draft tokens and of accepted ones."""

    completion: CompletionOutput
    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int


def speculate(
    model: Transformer,
    request: Request,
    drafter: Drafter,
    *,
    num_speculative_tokens: int = 4,
    controller: SpeculationController | None = None,
    cache: Cache | None = None,
) -> Speculation:
    """Continue one prompt, verifying up to `num_speculative_tokens` draft tokens in each step (arXiv:2211.17192).

    Outputs are distributed as those of `generate`, whatever the drafts; greedy ones are equal token for token, seeded
    ones are not, since they draw other random numbers. Keys of rejected drafts leave the cache before the next step.
    InputError as in `generate`, and for a request with `n` above 1 or a drafter with another vocabulary.
    """
    options = {"num_speculative_tokens": num_speculative_tokens, "controller": controller, "cache": cache}
    return speculate_all(model, [request], [drafter], **options)[0]  # type: ignore[arg-type]


def speculate_all(
    model: Transformer,
    requests: Sequence[Request],
    drafters: Sequence[Drafter],
    *,
    num_speculative_tokens: int = 4,
    controller: SpeculationController | None = None,
    cache: Cache | None = None,
) -> list[Speculation]:
    """Continue several prompts, each with a drafter of its own, verifying all drafts in the same steps of the model.

    In each step a sequence gains as many tokens as its drafter proposes and the model accepts, so that sequences
    advance unequally. An output depends only on its request and drafter, as in `generate`. A `controller` takes fewer
    drafts where that is faster; what a seed samples then depends on measured times. InputError as in `speculate`.
    """
    if len(requests) != len(drafters):
        raise InputError("a drafter for each request", got=f"{len(drafters)} for {len(requests)}")
    for request, drafter in zip(requests, drafters, strict=True):
        check(model, request, drafter)
    require_at_least_one(num_speculative_tokens=num_speculative_tokens)
    if cache is None:
        longest = max((len(request.prompt_token_ids) + request.max_tokens for request in requests), default=1)
        cache = Contiguous(model, sequences=len(requests) or 1, capacity=longest)
    max_drafts = min(num_speculative_tokens, (cache.chunk or num_speculative_tokens + 1) - 1)
    speculators = [Speculator(request, drafter) for request, drafter in zip(requests, drafters, strict=True)]
    with drop_new_sequences(cache):
        prefill_prompts(model, cache, speculators)
        unfinished = speculators
        while unfinished:
            start_s = time.perf_counter()
            num_tokens = max_drafts if controller is None else min(max_drafts, controller.num_tokens())
            drafts = [one.propose(num_tokens) for one in unfinished]
            draft_s = time.perf_counter() - start_s
            new = {
                one.sequence: [one.state.token_ids[-1], *draft.token_ids]
                for one, draft in zip(unfinished, drafts, strict=True)
            }
            logits = extend(model, cache, new, every_token=True)  # (Q, V)
            parts = zip(unfinished, drafts, logits.tensor_split(inner_ends(new)), strict=True)
            results = [one.verify(draft, part, cache) for one, draft, part in parts]
            if controller is not None:
                controller.record(num_tokens, results, draft_s, time.perf_counter() - start_s - draft_s)
            unfinished = [one for one in unfinished if one.state.completion is None]
    return [one.result for one in speculators]


def inner_ends(new: Mapping[int, Sequence[int]]) -> list[int]:
    """Row at which each sequence's new tokens end, except for the last sequence."""
    return list(accumulate(len(tokens) for tokens in new.values()))[:-1]


def check(model: Transformer, request: Request, drafter: Drafter) -> None:
    """Raise InputError for a request that speculation cannot serve, and for a drafter with another vocabulary."""
    request.validate(model)
    if request.n != 1:
        raise InputError("speculation generates one sequence of a request", got=f"n={request.n}", expected=1)
    if request.make_constraint:
        raise InputError("drafts are verified without a constraint", help="use an engine, which drafts nothing there")
    if drafter.vocab_size != model.config.vocab_size:
        raise InputError(
            "drafts in another vocabulary", got=f"{drafter.vocab_size} tokens", expected=model.config.vocab_size
        )


def verify(state: GenerationState, draft: Draft, logits: torch.Tensor) -> list[SampledToken]:
    """Accepted draft tokens and the token after them, with log-probabilities, from logits (k + 1, V)."""
    params, token_ids = state.request.sampling_params, state.token_ids
    normalizers = logsumexp(logits)  # (k + 1,)
    require_not_nan(normalizers)
    seen = [[*token_ids, *draft.token_ids[:i]] for i in range(len(logits))] if params.needs_tokens else ()
    num_prompt_tokens = [len(state.request.prompt_token_ids)] * len(logits)
    if params.is_greedy:
        best = adjust_logits(params, logits, seen, num_prompt_tokens).argmax(-1)  # (k + 1,)
        matches = [drafted == wanted for drafted, wanted in zip(draft.token_ids, best.tolist(), strict=False)]
        num_accepted = next((i for i, match in enumerate(matches) if not match), len(matches))
        count = num_accepted + 1
        sampled = best[:count]
        return with_logprobs(sampled, logits[:count], normalizers[:count], [state.request.num_top_logprobs] * count)
    wanted = probabilities(params, logits, seen, num_prompt_tokens)  # (k + 1, V)
    uniforms = torch.rand(len(logits), generator=state.generator, dtype=torch.float64).to(wanted.device)
    drafted = torch.tensor(draft.token_ids, dtype=torch.int64, device=wanted.device)
    accepted, next_token = accept(drafted, draft.probabilities.to(wanted.device), wanted, uniforms)
    count = int(accepted) + 1
    sampled = torch.cat([drafted[: count - 1], next_token[None]])
    return with_logprobs(sampled, logits[:count], normalizers[:count], [state.request.num_top_logprobs] * count)


class Speculator:
    """State of one sequence, its drafter, and its number in a cache, which holds all its tokens but the last."""

    sequence: int

    def __init__(self, request: Request, drafter: Drafter) -> None:
        self.drafter = drafter
        (self.state,) = create_generation_states(request)
        self.num_steps = self.num_draft_tokens = self.num_accepted_tokens = 0

    @property
    def result(self) -> Speculation:
        """The completion and its counts, once the sequence has finished."""
        assert self.state.completion
        counts = self.num_steps, self.num_draft_tokens, self.num_accepted_tokens
        return Speculation(self.state.completion, *counts)

    def propose(self, num_tokens: int) -> Draft:
        """Draft up to `num_tokens` tokens, and one less than may still be generated: a token follows the drafts."""
        return propose(self.drafter, self.state, num_tokens)

    def verify(self, draft: Draft, logits: torch.Tensor, cache: Cache) -> tuple[int, int]:
        """Append the accepted drafts and the token after them, by logits (k + 1, V); return (drafted, accepted).

        Keys of the rejected drafts leave the cache, and all keys of a finished sequence.
        """
        length, sampled = len(self.state.token_ids), verify(self.state, draft, logits)
        self.num_draft_tokens += len(draft.token_ids)
        self.extend(sampled)
        if self.state.completion:
            cache.drop(self.sequence)
        else:
            cache.truncate(self.sequence, length + len(sampled) - 1)
        return len(draft.token_ids), len(sampled) - 1

    def extend(self, sampled: Sequence[SampledToken]) -> None:
        """Append the tokens of one step, and count it."""
        self.state.call_on_token(self.state.extend(sampled).token_ids)
        self.num_steps += 1
        self.num_accepted_tokens += len(sampled) - 1

    def uniforms(self, count: int) -> torch.Tensor:
        """Random numbers in [0, 1) of this sequence's generator."""
        return torch.rand(count, generator=self.state.generator, dtype=torch.float64)


def propose(drafter: Drafter, state: GenerationState, num_tokens: int) -> Draft:
    """Draft up to `num_tokens` tokens, and one less than may still be generated: a token follows the drafts."""
    num_tokens, params = min(num_tokens, state.num_tokens_left - 1), state.request.sampling_params
    if num_tokens < 1:
        return Draft([], certain([], drafter.vocab_size))
    return drafter.propose(state.token_ids, num_tokens, params, state.generator)


def prefill_prompts(model: Transformer, cache: Cache, speculators: Sequence[Speculator]) -> None:
    """Compute all prompts except their last tokens, which the first step computes; in chunks if the cache has them."""
    pending: dict[int, Sequence[int]] = {}
    for one in speculators:
        prompt = one.state.request.prompt_token_ids
        one.sequence = cache.start(prompt)
        pending[one.sequence] = prompt[cache.length(one.sequence) : -1]
    while pending := {sequence: tokens for sequence, tokens in pending.items() if tokens}:
        chunks = {sequence: tokens[: cache.chunk] for sequence, tokens in pending.items()}
        extend(model, cache, chunks)
        pending = {sequence: tokens[len(chunks[sequence]) :] for sequence, tokens in pending.items()}
