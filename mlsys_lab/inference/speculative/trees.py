"""Tree-structured drafts: several candidates for each position, all verified in one step; one path may be accepted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from mlsys_lab.inference.cache import Cache, Paged, extend
from mlsys_lab.inference.engine.sampler import draw, logsumexp, next_token_probabilities, with_logprobs
from mlsys_lab.inference.engine.sequence import Request
from mlsys_lab.inference.generate.batch import drop_new_sequences
from mlsys_lab.inference.speculative.acceptance import accept_among
from mlsys_lab.inference.speculative.decoding import (
    Speculation,
    Speculator,
    check,
    inner_ends,
    prefill_prompts,
)
from mlsys_lab.inference.speculative.drafters import Drafter
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_at_least_one

BLOCK_SIZE = 16


@dataclass
class Tree:
    """Candidates for the next token, the distributions (V,) that they were drawn from, and the subtree of each."""

    tokens: list[int] = field(default_factory=list)
    proposed: list[torch.Tensor] = field(default_factory=list)
    below: list[Tree] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of draft tokens in the tree."""
        return len(self.tokens) + sum(tree.size for tree in self.below)

    def paths(self) -> Iterator[tuple[tuple[int, int], ...]]:
        """Paths to the leaves; each step is the number of a candidate, and its token."""
        if not self.tokens:
            yield ()
        for number, (token, tree) in enumerate(zip(self.tokens, self.below, strict=True)):
            for path in tree.paths():
                yield ((number, token), *path)


def speculate_tree(
    model: Transformer,
    request: Request,
    drafter: Drafter,
    *,
    branches: Sequence[int] = (2, 2, 1),
    cache: Cache | None = None,
) -> Speculation:
    """Continue one prompt, verifying a tree with `branches`[d] candidates after each draft of depth d in each step.

    SpecInfer (arXiv:2305.09781); candidates for a position are drawn without replacement. Outputs are distributed as
    those of `generate`, greedy ones are equal, as with `speculate`. Each path to a leaf is a fork of the sequence in
    the cache, so that prefixes that paths share are computed once for each path: this saves steps, not FLOPs. The cache
    must have room for as many sequences as there are leaves; None makes a paged one. InputError as in `speculate`, and
    for branches below 1.
    """
    check(model, request, drafter)
    require_at_least_one(depth=len(branches), branches=min(branches, default=1))
    if cache is None:
        longest = len(request.prompt_token_ids) + request.max_tokens
        num_blocks = math.prod(branches) * (1 + -(-longest // BLOCK_SIZE))
        cache = Paged(model, num_blocks=num_blocks, block_size=BLOCK_SIZE)
    branches = branches[: None if cache.chunk is None else cache.chunk - 1]
    speculator = Speculator(request, drafter)
    state = speculator.state
    with drop_new_sequences(cache):
        prefill_prompts(model, cache, [speculator])
        while state.completion is None:
            tree = _grow(speculator, state.token_ids, branches[: state.num_tokens_left - 1])
            _step(model, cache, speculator, tree)
    return speculator.result


def _grow(speculator: Speculator, token_ids: list[int], branches: Sequence[int]) -> Tree:
    """Draft a tree after a sequence, no deeper than `branches` and than the drafter proposes."""
    tree = Tree()
    if not branches:
        return tree
    params = speculator.state.request.sampling_params
    if params.is_greedy:  # else the drafter's second choice would have probability 0
        params = replace(params, temperature=1.0)
    first = speculator.drafter.propose(token_ids, 1, params, speculator.state.generator)
    if not first.token_ids:
        return tree
    (token,), (row,) = first.token_ids, first.probabilities
    while True:
        tree.tokens.append(token)
        tree.proposed.append(row)
        row = row.clone()
        row[token] = 0
        if len(tree.tokens) == branches[0] or not row.sum() > 0:
            break
        row = row / row.sum()
        token = int(draw(row, speculator.uniforms(1)[0].to(row.device)))
    tree.below = [_grow(speculator, [*token_ids, token], branches[1:]) for token in tree.tokens]
    return tree


def _step(model: Transformer, cache: Cache, speculator: Speculator, tree: Tree) -> None:
    """Verify all paths of a tree in one step; append the accepted part of one path and the token after it."""
    before, paths = speculator.state.token_ids, list(tree.paths())
    params = speculator.state.request.sampling_params
    sequences = [speculator.sequence, *(cache.fork(speculator.sequence) for _ in paths[1:])]
    new = {
        sequence: [before[-1], *(token for _, token in path)] for sequence, path in zip(sequences, paths, strict=True)
    }
    logits = extend(model, cache, new, every_token=True).tensor_split(inner_ends(new))  # (path, V)
    speculator.num_draft_tokens += tree.size
    accepted: list[int] = []
    alive = list(range(len(paths)))  # paths that start with the accepted tokens
    while True:
        row, num_prompt_tokens = logits[alive[0]][len(accepted)], len(speculator.state.request.prompt_token_ids)
        wanted = next_token_probabilities(params, row, before + accepted, num_prompt_tokens)
        candidates = torch.tensor(tree.tokens, dtype=torch.int64, device=wanted.device)
        proposed = torch.stack(tree.proposed).to(wanted.device) if tree.proposed else wanted.new_empty(0, len(wanted))
        uniforms = speculator.uniforms(len(candidates) + 1).to(wanted.device)
        which, token = (int(x) for x in accept_among(candidates, proposed, wanted, uniforms))
        accepted.append(token)
        if which == len(candidates):
            break
        alive = [path for path in alive if paths[path][len(accepted) - 1][0] == which]
        tree = tree.below[which]
    speculator.sequence = sequences[alive[0]]
    for sequence in sequences:
        if sequence != speculator.sequence:
            cache.drop(sequence)
    cache.truncate(speculator.sequence, len(before) + len(accepted) - 1)
    rows, num_top_logprobs = logits[alive[0]][: len(accepted)], speculator.state.request.num_top_logprobs
    token_ids = torch.tensor(accepted, device=rows.device)
    speculator.extend(with_logprobs(token_ids, rows, logsumexp(rows), [num_top_logprobs] * len(accepted)))
