"""Checks of task 4: who has which tokens, and attention round a ring. Oracle: attention of the whole text, in NumPy.

That a rank does not gather all keys is counted: a case of ten ranks has no room for ten blocks.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from mlsys_checks.sandboxed.model_parallel import context as calls
from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.model_parallel.tensor import ITEM, SPLIT, cut, draw
from mlsys_checks.trusted.traffic import check_ranks, expect_ranks

BUDGET_BYTES = 450_000
"""Room on each of ten ranks for what it is given (57 KB), for a block (37 KB), one on its way and work on one: a ring
holds 300 KB, or 410 KB with copies of its blocks. Whoever gathers all ten holds 510 KB at least."""


def _draw_text(rng: np.random.Generator, case: Case) -> Arrays:
    del rng
    return {"tokens": np.array(case.params["tokens"]), "p": np.array(case.params["p"])}


def _mirror(tokens: int, p: int) -> list[np.ndarray]:
    stretches = cut(tokens, 2 * p)
    everywhere = np.arange(tokens)
    return [np.concatenate([everywhere[stretches[r]], everywhere[stretches[-1 - r]]]) for r in range(p)]


def _expect_text(arrays: Arrays) -> Arrays:
    p = int(arrays["p"])
    positions = _mirror(int(arrays["tokens"]), p)
    return {"count": np.array(p)} | {f"rank {r}": one for r, one in enumerate(positions)}


def _divide(rng: np.random.Generator, case: Case) -> list[np.ndarray]:
    """Positions of each rank: mirrored, a stretch each, dealt out like cards, or of given lengths."""
    tokens, p = case.params["tokens"], case.params["p"]
    match case.params.get("division", "zigzag"):
        case "zigzag":
            return _mirror(tokens, p)
        case "stretches":
            return [np.arange(tokens)[own] for own in cut(tokens, p)]
        case "dealt":
            return [np.arange(r, tokens, p) for r in range(p)]
        case "backwards":
            return [np.arange(tokens)[own] for own in cut(tokens, p)][::-1]
        case "lengths":
            return np.split(np.arange(tokens), np.cumsum(case.params["lengths"])[:-1])
        case _:
            return np.split(rng.permutation(tokens), np.cumsum(case.params["lengths"])[:-1])


def _draw_heads(rng: np.random.Generator, case: Case) -> Arrays:
    n, h, g, tokens = case.params["n"], case.params["h"], case.params["g"], case.params["tokens"]
    spread = case.params.get("spread", 1.0)
    q, k, v = draw(rng, n, tokens, h, spread=spread), draw(rng, n, tokens, h, spread=spread), draw(rng, n, tokens, g)
    if case.params.get("late"):  # the first tokens' scores are far below those that come later, or far above
        first, last = case.params["late"]
        k *= np.linspace(first, last, tokens)[:, None]
    if case.params.get("first"):  # the first token's own score is this times a square: all that its query sees
        k[:, 0] = case.params["first"] * q[:, 0]
    positions = _divide(rng, case)
    everybody = {f"positions{r}": own for r, own in enumerate(positions)}
    return join_ranks([{"q": q[:, own], "k": k[:, own], "v": v[:, own]} | everybody for own in positions])


def _expect_heads(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p = len(parts)
    positions = [parts[0][f"positions{r}"] for r in range(p)]
    everywhere = np.concatenate(positions)
    keys, values = (np.concatenate([part[name] for part in parts], axis=1) for name in "kv")
    told = []
    for part, own in zip(parts, positions, strict=True):
        scores = part["q"] @ keys.swapaxes(1, 2) / np.sqrt(keys.shape[2])
        scores = np.where(everywhere <= own[:, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(2, keepdims=True))
        told.append({"result": weights @ values / weights.sum(2, keepdims=True)})
    sizes = [(part["k"].size + part["v"].size) * ITEM for part in parts]
    return expect_ranks(
        told, total_bytes=(p - 1) * sum(sizes), messages=2 * (p - 1), largest_message=max(sizes), steps=2 * (p - 1)
    )


ELEVEN = [4, 1, 17, 2, 1, 3, 2, 5, 1, 2, 1]
"""Tokens of each of eleven ranks."""
CHECKS = (
    Check(
        name="zigzag",
        title="Tokens from both ends",
        points=3,
        cases=(
            Case("eight tokens for two ranks", {"tokens": 8, "p": 2}),
            Case("eighteen for three", {"tokens": 18, "p": 3}),
            Case("as many as stretches", {"tokens": 6, "p": 3}),
            Case("a number that leaves a rest", {"tokens": 15, "p": 2}),
            Case("one rank", {"tokens": 5, "p": 1}),
            Case("as many as ranks", {"tokens": 4, "p": 4}),
            Case("one more than ranks", {"tokens": 6, "p": 5}),
            Case("fewer than stretches", {"tokens": 7, "p": 4}),
            Case("seven ranks", {"tokens": 101, "p": 7}, hidden=True),
        ),
        inputs=_draw_text,
        run=calls.zigzag,
        expect=_expect_text,
        compare=close,
        first_hint="Into how many stretches is the text cut, and which two of them does rank r have?",
        hint="tensor_split cuts the positions into twice as many stretches as there are ranks; the last belongs to the "
        "rank that has the first.",
        uses=("zigzag_positions",),
        snippet="zigzag_positions(tokens, p)",
    ),
    partial(check_ranks, memory_bytes=BUDGET_BYTES)(
        name="ring_attention",
        title="Attention round a ring",
        points=14,
        cases=(
            Case("two ranks", {"p": 2, "tokens": 4, "n": 1, "h": 2, "g": 2}),
            Case("three ranks, two heads", {"p": 3, "tokens": 12, "n": 2, "h": 3, "g": 3}),
            Case("values wider than keys", {"p": 2, "tokens": 8, "n": 2, "h": 2, "g": 5}),
            Case("unequally many tokens", {"p": 3, "tokens": 11, "n": 1, "h": 3, "g": 2}),
            Case("one stretch each", {"p": 3, "tokens": 9, "n": 2, "h": 2, "g": 3, "division": "stretches"}),
            Case(
                "stretches of very unequal length",
                {"p": 3, "tokens": 9, "n": 1, "h": 2, "g": 3, "division": "lengths", "lengths": [1, 6, 2]},
            ),
            Case(
                "the first rank has the last stretch",
                {"p": 3, "tokens": 7, "n": 1, "h": 2, "g": 2, "division": "backwards"},
            ),
            Case("dealt out like cards", {"p": 4, "tokens": 10, "n": 1, "h": 3, "g": 2, "division": "dealt"}),
            Case("large scores", {"p": 3, "tokens": 12, "n": 1, "h": 4, "g": 3, "spread": 30.0}),
            Case(
                "scores that grow along the text",
                {"p": 3, "tokens": 9, "n": 2, "h": 2, "g": 3, "late": (0.1, 900.0), "division": "stretches"},
            ),
            Case(
                "scores that fade along the text",
                {"p": 3, "tokens": 12, "n": 2, "h": 2, "g": 3, "late": (900.0, 0.1), "division": "dealt"},
            ),
            Case("a first score far below all others", {"p": 2, "tokens": 6, "n": 3, "h": 1, "g": 2, "first": -1e12}),
            Case("one rank", {"p": 1, "tokens": 5, "n": 2, "h": 3, "g": 2}),
            Case("a long text", {"p": 10, "tokens": 160, "n": 1, "h": 160, "g": 128}),
            Case(
                "eleven ranks, positions in any order",
                {
                    "p": 11,
                    "tokens": 39,
                    "n": 5,
                    "h": 4,
                    "g": 3,
                    "spread": 5.0,
                    "division": "shuffled",
                    "lengths": ELEVEN,
                },
                hidden=True,
            ),
        ),
        inputs=_draw_heads,
        run=calls.ring_attention,
        expect=_expect_heads,
        first_hint="Whose block is here at step s, which of its keys may a query see, and what do older sums count "
        "now?",
        hint="Post isend and irecv of the block before you compute on it, but for the last step, and wait afterwards. "
        "The block at step s is that of the rank s to the left. Mask by positions, take the new largest, shrink both "
        "sums by exp(old - new), add the block's.",
        uses=("ring_attention",),
        snippet=SPLIT + "def program(rank, arrays):\n"
        '    q, k, v = (torch.from_numpy(arrays[name]) for name in "qkv")\n'
        '    positions = [torch.from_numpy(arrays[f"positions{r}"]) for r in range(rank.size)]\n'
        "    return ring_attention(rank, q, k, v, positions)\n\n\n"
        "run(program, split_ranks(given))",
    ),
)
