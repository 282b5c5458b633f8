"""Drafts in a tree: several candidates for each place, all checked in one step, of which one path can be accepted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from mlsys_lab.inference.cache import Cache, Paged, extend
from mlsys_lab.inference.generate import Request, draw
from mlsys_lab.inference.generate.batch import borrow
from mlsys_lab.inference.speculative.acceptance import accept_among
from mlsys_lab.inference.speculative.decoding import Speculation, Writer, check, ends, read
from mlsys_lab.inference.speculative.drafters import Drafter
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_at_least_one

PAGE = 16


@dataclass
class Tree:
    """Candidates for the next place, the distributions (V,) that they were drawn from, and what follows each."""

    tokens: list[int] = field(default_factory=list)
    proposed: list[torch.Tensor] = field(default_factory=list)
    below: list[Tree] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of drafted tokens in the tree."""
        return len(self.tokens) + sum(tree.size for tree in self.below)

    def paths(self) -> Iterator[tuple[tuple[int, int], ...]]:
        """Ways to the ends of the tree; each step is the number of a candidate, and its token."""
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
    """Continue one prompt, with `branches`[d] candidates after each draft of depth d checked in each step of the model.

    SpecInfer (arXiv:2305.09781); candidates for a place are drawn without replacement. Texts are distributed as those
    of `generate`, greedy ones are equal, as with `speculate`. Each path to an end of the tree is a fork of the text in
    the cache, so that beginnings that paths share are worked out once for each: what is saved is steps, not FLOPs. The
    cache must have room for as many sequences as there are ends; None makes a paged one. InputError as in `speculate`,
    and for branches below 1.
    """
    check(model, request, drafter)
    require_at_least_one(depth=len(branches), branches=min(branches, default=1))
    if cache is None:
        longest = len(request.prompt) + request.max_tokens
        cache = Paged(model, pages=math.prod(branches) * (1 + -(-longest // PAGE)), page=PAGE)
    branches = branches[: None if cache.chunk is None else cache.chunk - 1]
    writer = Writer(request, drafter)
    with borrow(cache):
        read(model, cache, [writer])
        while writer.text.completion is None:
            tree = _grow(writer, writer.text.everything, branches[: writer.text.left - 1])
            _step(model, cache, writer, tree)
    return writer.result


def _grow(writer: Writer, text: list[int], branches: Sequence[int]) -> Tree:
    """Draft a tree after a text; no deeper than `branches` and than the drafter has ideas."""
    tree = Tree()
    if not branches:
        return tree
    sampling = writer.sampling
    if sampling.greedy:  # the drafter's second choice is of use only if it may be drawn
        sampling = replace(sampling, temperature=1.0)
    first = writer.drafter.propose(text, 1, sampling, writer.generator)
    if not first.tokens:
        return tree
    (token,), (row,) = first.tokens, first.probabilities
    while True:
        tree.tokens.append(token)
        tree.proposed.append(row)
        row = row.clone()
        row[token] = 0
        if len(tree.tokens) == branches[0] or not row.sum() > 0:
            break
        row = row / row.sum()
        token = int(draw(row, writer.uniforms(1)[0].to(row.device)))
    tree.below = [_grow(writer, [*text, token], branches[1:]) for token in tree.tokens]
    return tree


def _step(model: Transformer, cache: Cache, writer: Writer, tree: Tree) -> None:
    """Check all paths of a tree in one step, write the accepted part of one and the token after it."""
    before, sampling, paths = writer.text.everything, writer.sampling, list(tree.paths())
    sequences = [writer.sequence, *(cache.fork(writer.sequence) for _ in paths[1:])]
    new = {
        sequence: [before[-1], *(token for _, token in path)] for sequence, path in zip(sequences, paths, strict=True)
    }
    logits = extend(model, cache, new, every_token=True).tensor_split(ends(new))  # (path, V)
    writer.drafted += tree.size
    written: list[int] = []
    alive = list(range(len(paths)))  # paths that begin with what is accepted so far
    while True:
        wanted = sampling.probabilities(logits[alive[0]][len(written)], before + written)
        candidates = torch.tensor(tree.tokens, dtype=torch.int64, device=wanted.device)
        proposed = torch.stack(tree.proposed).to(wanted.device) if tree.proposed else wanted.new_empty(0, len(wanted))
        uniforms = writer.uniforms(len(candidates) + 1).to(wanted.device)
        which, token = (int(x) for x in accept_among(candidates, proposed, wanted, uniforms))
        written.append(token)
        if which == len(candidates):
            break
        alive = [path for path in alive if paths[path][len(written) - 1][0] == which]
        tree = tree.below[which]
    writer.sequence = sequences[alive[0]]
    for sequence in sequences:
        if sequence != writer.sequence:
            cache.drop(sequence)
    cache.truncate(writer.sequence, len(before) + len(written) - 1)
    writer.write(written, logits[alive[0]][: len(written)])
