"""The sampler: from logits to the next token of each sequence.

Dimension letters: R sequences, V vocabulary, ... any leading axes. Filters return new logits (..., V), -inf for a
masked token; the likeliest token is never masked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine.sequence import (
    GenerationState,
    Request,
    SampledToken,
    SamplingParams,
    TopLogprobs,
)


def make_generators(seed: int | None, n: int) -> list[torch.Generator]:
    """Random generators of the `n` sequences of one request.

    A generator depends only on the seed and the sequence's index, so sampling is independent of the batch.
    """
    children = np.random.SeedSequence(seed).spawn(n)
    return [torch.Generator().manual_seed(int(child.generate_state(1, np.uint64)[0])) for child in children]


def create_generation_states(request: Request, request_id: int = 0) -> list[GenerationState]:
    """Create the state of each of a request's `n` sequences, with its own random generator and no output tokens."""
    generators = make_generators(request.sampling_params.seed, request.n)
    return [GenerationState(request, generator, request_id, index) for index, generator in enumerate(generators)]


def sample(states: Sequence[GenerationState], logits: torch.Tensor) -> list[SampledToken]:
    """Sample the next token of each of R sequences from logits (R, V); returns it with its log-probability.

    Log-probabilities are the model's own, before constraints, temperature, penalties and filters. One random number is
    drawn from the generator of each sequence that is not greedy. The host waits for the GPU once per distinct
    SamplingParams, and once per sequence with penalties. Raises InputError, before any number is drawn, if logits are
    NaN.
    """
    if not states:
        return []
    normalizers = logsumexp(logits)  # (R,)
    require_not_nan(normalizers)
    allowed = apply_constraints(states, logits)
    rows_by_params: dict[SamplingParams, list[int]] = {}
    for row, state in enumerate(states):
        rows_by_params.setdefault(state.request.sampling_params.without_seed, []).append(row)
    parts: list[torch.Tensor] = []
    for params, rows in rows_by_params.items():
        # Only penalties need the tokens so far; a list of them is as long as the sequence.
        tokens_so_far = [states[row].token_ids for row in rows] if params.needs_tokens else ()
        num_prompt_tokens = [len(states[row].request.prompt_token_ids) for row in rows]
        part = allowed if len(rows_by_params) == 1 else allowed[rows]
        adjusted = adjust_logits(params, part, tokens_so_far, num_prompt_tokens)
        if params.is_greedy:
            parts.append(adjusted.argmax(-1))
            continue
        uniforms = [torch.rand((), generator=states[row].generator, dtype=torch.float64) for row in rows]
        parts.append(draw(filter_logits(params, adjusted).softmax(-1), torch.stack(uniforms).to(logits.device)))
    token_ids = parts[0]  # (R,)
    if len(parts) > 1:
        order = torch.tensor([row for rows in rows_by_params.values() for row in rows])
        token_ids = torch.cat(parts)[order.argsort().to(logits.device)]
    return with_logprobs(token_ids, logits, normalizers, [state.request.num_top_logprobs for state in states])


def logsumexp(logits: torch.Tensor) -> torch.Tensor:
    """Logarithm of the sum of exponentials, in fp32 at least: (R, V) -> (R,); a logit less it is a log-probability."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).logsumexp(-1)


def with_logprobs(
    token_ids: torch.Tensor, logits: torch.Tensor, normalizers: torch.Tensor, nums_top: Sequence[int]
) -> list[SampledToken]:
    """Tokens (R,) with their log-probabilities and those of the `nums_top` likeliest ones.

    By logits (R, V) and their `logsumexp`, the normalizers (R,).
    """
    logprobs = logits.gather(-1, token_ids[:, None])[:, 0] - normalizers
    both = torch.stack([token_ids.double(), logprobs.double()]).tolist()  # token ids are exact in float64
    tops = [top_logprobs(logits[row] - normalizers[row], num) if num else () for row, num in enumerate(nums_top)]
    return [SampledToken(int(token_id), logprob, top) for token_id, logprob, top in zip(*both, tops, strict=True)]


def apply_constraints(states: Sequence[GenerationState], logits: torch.Tensor) -> torch.Tensor:
    """Mask the tokens that a sequence's constraint forbids: (R, V) -> (R, V); the other rows are unchanged."""
    masks = {row: state.constraint.mask() for row, state in enumerate(states) if state.constraint}
    if not masks:
        return logits
    rows = torch.tensor(list(masks), device=logits.device)
    is_forbidden = ~torch.stack(list(masks.values())).to(logits.device)
    return logits.index_copy(0, rows, logits[rows].masked_fill(is_forbidden, -math.inf))


def top_logprobs(logprobs: torch.Tensor, count: int) -> TopLogprobs:
    """The `count` likeliest tokens with their log-probabilities, from those of all tokens, (V,)."""
    if not count:
        return ()
    found = logprobs.topk(count)
    return tuple(zip(found.indices.tolist(), found.values.tolist(), strict=True))


def probabilities(
    params: SamplingParams,
    logits: torch.Tensor,
    token_ids: Sequence[Sequence[int]],
    num_prompt_tokens: Sequence[int],
) -> torch.Tensor:
    """Distributions that tokens are sampled from: logits (R, V) -> (R, V), float64.

    Tokens are those of `adjust_logits`. If greedy, all of the probability is on one token.
    """
    logits = adjust_logits(params, logits, token_ids, num_prompt_tokens)
    if params.is_greedy:
        return torch.zeros_like(logits, dtype=torch.float64).scatter(-1, logits.argmax(-1, keepdim=True), 1)
    return filter_logits(params, logits).softmax(-1)


def adjust_logits(
    params: SamplingParams,
    logits: torch.Tensor,
    token_ids: Sequence[Sequence[int]],
    num_prompt_tokens: Sequence[int],
) -> torch.Tensor:
    """Apply penalties and biases: logits (R, V) -> (R, V), float64 if any applies.

    `token_ids` are each sequence's tokens so far, of which the first `num_prompt_tokens` are the prompt; they are used
    only with penalties.
    """
    if not params.needs_tokens and not params.logit_bias:
        return logits
    logits = logits.double()
    if params.needs_tokens:
        rows = zip(logits, token_ids, num_prompt_tokens, strict=True)
        logits = torch.stack([apply_penalties(params, row, seen, number) for row, seen, number in rows])
    if params.logit_bias:
        biased, biases = zip(*params.logit_bias, strict=True)
        bias = torch.tensor(biases, dtype=logits.dtype, device=logits.device)
        logits = logits.index_add(-1, torch.tensor(biased, device=logits.device), bias.expand(len(logits), -1))
    return logits


def filter_logits(params: SamplingParams, logits: torch.Tensor) -> torch.Tensor:
    """Divide by the temperature and mask what top-k, top-p and min-p leave out: (R, V) -> (R, V), float64."""
    logits = logits.double()
    logits = (logits - logits.amax(-1, keepdim=True)) / params.temperature  # shift the maximum to 0: no overflow
    if params.top_k is not None:
        logits = keep_top_k(logits, params.top_k)
    if params.top_p is not None:
        logits = keep_top_p(logits, params.top_p)
    if params.min_p is not None:
        logits = keep_min_p(logits, params.min_p)
    return logits


def next_token_probabilities(
    params: SamplingParams, logits: torch.Tensor, token_ids: Sequence[int], num_prompt_tokens: int = 0
) -> torch.Tensor:
    """Distribution that one sequence's next token is sampled from: (V,) -> (V,); raises InputError for NaN logits."""
    require_not_nan(logits)
    return probabilities(params, logits[None], [token_ids], [num_prompt_tokens])[0]


def apply_penalties(
    params: SamplingParams, logits: torch.Tensor, token_ids: Sequence[int], num_prompt_tokens: int
) -> torch.Tensor:
    """Penalize the tokens of a sequence: (V,) -> (V,). Presence and frequency count those of the output alone."""
    if params.repetition_penalty != 1:
        logits = apply_repetition_penalty(logits, token_ids, params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        output = torch.tensor(token_ids[num_prompt_tokens:], dtype=torch.int64, device=logits.device)
        counts = torch.bincount(output, minlength=len(logits)).to(logits.dtype)
        logits = logits - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
    return logits


def apply_repetition_penalty(logits: torch.Tensor, token_ids: Iterable[int], penalty: float) -> torch.Tensor:
    """Divide positive logits of seen tokens by `penalty` and multiply negative ones by it: (V,) -> (V,).

    CTRL (Keskar et al. 2019, arXiv:1909.05858, §4.1), for negative logits as in `transformers`. A token counts once,
    however often it occurs.
    """
    seen = torch.tensor(sorted(set(token_ids)), dtype=torch.int64, device=logits.device)
    old = logits[seen]
    return logits.index_copy(0, seen, torch.where(old < 0, old * penalty, old / penalty))


def keep_top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Keep the k likeliest tokens, plus ties with the k-th (arXiv:1805.04833)."""
    lowest = logits.topk(k).values[..., -1:]
    return logits.masked_fill(logits < lowest, -math.inf)


def keep_top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Keep the nucleus: the fewest likeliest tokens whose total probability is at least p (arXiv:1904.09751, §3.1)."""
    ordered = logits.sort(descending=True, stable=True)
    ordered_probabilities = ordered.values.softmax(-1)
    likelier = ordered_probabilities.cumsum(-1) - ordered_probabilities  # probability of all likelier tokens
    is_masked = likelier >= p
    is_masked[..., 0] = False
    return logits.masked_fill(torch.zeros_like(is_masked).scatter(-1, ordered.indices, is_masked), -math.inf)


def keep_min_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Keep tokens at least p times as likely as the likeliest one (Nguyen et al. 2024, arXiv:2407.01082)."""
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), -math.inf)


def draw(distributions: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Draw a token from each distribution: (..., V) and numbers in [0, 1), (...), -> (...), int64.

    The token is the first one at which the cumulative sum exceeds the number, so that a token of probability 0 is
    never drawn.
    """
    cumulative = distributions.cumsum(-1)
    return torch.searchsorted(cumulative, uniforms[..., None] * cumulative[..., -1:], right=True)[..., 0]


def require_not_nan(logits: torch.Tensor) -> None:
    """Raise InputError for logits that are NaN; waits for the GPU."""
    if logits.isnan().any():
        raise InputError("the model's logits are not numbers", help="its weights may be damaged")
