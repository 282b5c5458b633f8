"""Checks of task 5: an all-to-all, routing with room for some, tokens there and back. Oracle: loops, in NumPy."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.model_parallel import experts as calls
from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.model_parallel.tensor import ITEM, SPLIT, draw
from mlsys_checks.trusted.traffic import check_ranks, expect_ranks

NAMES = 16
"""Bytes that a message without elements may count as: the judge counts the shape of what has no other content."""


def _draw_parts(rng: np.random.Generator, case: Case) -> Arrays:
    """rows[i][j]: how many rows rank i sends to rank j."""
    width = case.params["width"]
    return join_ranks(
        [{f"part{j}": draw(rng, count, width) for j, count in enumerate(counts)} for counts in case.params["rows"]]
    )


def _expect_parts(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p = len(parts)
    told = [{"count": np.array(p)} | {f"from {i}": parts[i][f"part{j}"] for i in range(p)} for j in range(p)]
    sent = [sum(part[f"part{j}"].nbytes for j in range(p) if j != i) for i, part in enumerate(parts)]
    return expect_ranks(told, bytes=np.array(sent) + NAMES * (p - 1), messages=p - 1)


def route(logits: np.ndarray, k: int, capacity: int) -> Arrays:
    """Experts, weights and who found room, choice by choice and token by token."""
    n, count = logits.shape
    ranked = [sorted(range(count), key=lambda e: (-row[e], e))[:k] for row in logits]
    experts = np.array(ranked, dtype=np.int64).reshape(n, k)
    top = np.take_along_axis(logits, experts, 1)
    exponentials = np.exp(top - top[:, :1])
    room, kept = np.full(count, capacity), np.zeros((n, k), dtype=bool)
    for choice in range(k):
        for token in range(n):
            e = experts[token, choice]
            kept[token, choice] = room[e] > 0
            room[e] -= 1
    weights = exponentials / exponentials.sum(1, keepdims=True)
    return {"experts": experts, "weights": weights, "kept": kept}


def _draw_logits(rng: np.random.Generator, case: Case) -> Arrays:
    n, count = case.params["n"], case.params["experts"]
    logits = draw(rng, n, count, spread=case.params.get("spread", 1.0))
    if case.params.get("ties"):
        logits = np.round(logits) * case.params.get("apart", 1.0) + case.params.get("around", 0.0)
    if case.params.get("liked"):  # a favourite of all
        logits[:, case.params["liked"]] += 50.0
    return {"logits": logits, "k": np.array(case.params["k"]), "capacity": np.array(case.params["capacity"])}


def _expect_routes(arrays: Arrays) -> Arrays:
    return route(arrays["logits"], int(arrays["k"]), int(arrays["capacity"]))


def _draw_tokens(rng: np.random.Generator, case: Case) -> Arrays:
    owners, width, k = np.array(case.params["owners"]), case.params["width"], case.params["k"]
    count = len(owners)
    matrices = {e: draw(rng, width, width, spread=width**-0.5) for e in range(count)}
    parts = []
    for r, n in enumerate(case.params["tokens"]):
        logits = draw(rng, n, count)
        if "liked" in case.params:
            logits[:, case.params["liked"]] += 9.0
        if "shunned" in case.params:
            logits[:, case.params["shunned"]] -= 99.0
        routed = route(logits, k, case.params.get("capacity", n * k))
        if r in case.params.get("none_kept", ()):
            routed["kept"][:] = False
        own = {f"expert{e}": matrices[e] for e in range(count) if owners[e] == r}
        x = draw(rng, n, width)
        if case.params.get("blank"):  # a token of zeros, which is one as any other
            x[-1:] = 0
        parts.append(routed | own | {"x": x, "owners": owners})
    return join_ranks(parts)


def _expect_tokens(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p, owners = len(parts), parts[0]["owners"]
    matrices = [parts[owner][f"expert{e}"] for e, owner in enumerate(owners)]
    width, told, travelling, worked = parts[0]["x"].shape[1], [], 0, np.zeros(p, dtype=np.int64)
    for r, part in enumerate(parts):
        result = np.zeros_like(part["x"])
        for token, choice in np.argwhere(part["kept"]):
            e = part["experts"][token, choice]
            result[token] += part["weights"][token, choice] * np.tanh(part["x"][token] @ matrices[e])
            travelling += owners[e] != r
            worked[owners[e]] += 1
        told.append({"result": result})
    told = [one | {"rows that experts worked on": np.array(rows)} for one, rows in zip(told, worked, strict=True)]
    numbers = ITEM * max(int(travelling), (p - 1) * len(owners)) + 3 * NAMES * p * (p - 1)  # or how many rows in all
    return expect_ranks(told, total_bytes=2 * int(travelling) * width * ITEM + numbers, total_messages=4 * p * (p - 1))


CHECKS = (
    check_ranks(
        name="all_to_all",
        title="From everybody to everybody",
        points=3,
        cases=(
            Case("two ranks", {"rows": [[1, 2], [3, 1]], "width": 2}),
            Case("three ranks", {"rows": [[1, 2, 3], [2, 1, 1], [1, 3, 2]], "width": 2}),
            Case("empty parts", {"rows": [[0, 2, 0], [1, 0, 0], [0, 0, 0]], "width": 3}),
            Case("one rank", {"rows": [[2]], "width": 2}),
            Case(
                "seven ranks",
                {"rows": [[(3 * i + 5 * j) % 8 for j in range(7)] for i in range(7)], "width": 3},
                hidden=True,
            ),
        ),
        inputs=_draw_parts,
        run=calls.all_to_all,
        expect=_expect_parts,
        first_hint="Which part does this rank send at each step, which does it receive, in which order do they come "
        "out? Is its own one a copy?",
        hint="In step s send to the rank s to the right by isend, receive from the one s to the left, then wait. This "
        "rank's own part is copied.",
        uses=("all_to_all",),
        snippet=SPLIT + "def program(rank, arrays):\n"
        '    parts = [torch.from_numpy(arrays[f"part{r}"]) for r in range(rank.size)]\n'
        "    return all_to_all(rank, parts)\n\n\n"
        "run(program, split_ranks(given))",
    ),
    Check(
        name="route",
        title="Experts with room for some",
        points=6,
        cases=(
            Case("room for all", {"n": 3, "experts": 4, "k": 2, "capacity": 6}),
            Case("room for two", {"n": 6, "experts": 3, "k": 2, "capacity": 2}),
            Case("a favourite of all", {"n": 5, "experts": 4, "k": 2, "capacity": 3, "liked": 2}),
            Case("first choices before second ones", {"n": 8, "experts": 3, "k": 2, "capacity": 4}),
            Case("ties", {"n": 7, "experts": 5, "k": 3, "capacity": 3, "ties": True}),
            Case("ties among many experts", {"n": 3, "experts": 40, "k": 6, "capacity": 2, "ties": True}),
            Case(
                "logits that hardly differ",
                {"n": 5, "experts": 4, "k": 2, "capacity": 3, "ties": True, "apart": 1e-12, "around": 1.0},
            ),
            Case("one choice", {"n": 5, "experts": 3, "k": 1, "capacity": 1}),
            Case("all experts chosen", {"n": 4, "experts": 3, "k": 3, "capacity": 2}),
            Case("no room at all", {"n": 3, "experts": 2, "k": 1, "capacity": 0}),
            Case("no token", {"n": 0, "experts": 3, "k": 2, "capacity": 1}),
            Case("more tokens than eight bits count", {"n": 300, "experts": 3, "k": 2, "capacity": 200, "liked": 1}),
            Case("large logits", {"n": 4, "experts": 5, "k": 2, "capacity": 2, "spread": 900.0}),
            Case("many", {"n": 41, "experts": 11, "k": 7, "capacity": 24, "ties": True, "around": 1e3}, hidden=True),
        ),
        inputs=_draw_logits,
        run=calls.route,
        expect=_expect_routes,
        compare=close,
        first_hint="Over which logits is the softmax, in which order do choices ask for room, who comes first in a "
        "tie?",
        hint="A stable descending argsort settles ties. Lay all first choices before all second ones; a choice is kept "
        "if fewer than capacity before it, in that order, want the same expert. Weights know nothing of it.",
        uses=("route",),
        snippet="route(logits, k, capacity)",
    ),
    check_ranks(
        name="dispatch",
        title="To the experts and back",
        points=9,
        cases=(
            Case("two ranks, an expert each", {"owners": [0, 1], "tokens": [2, 2], "k": 1, "width": 3}),
            Case("two experts a token", {"owners": [0, 0, 1, 1], "tokens": [3, 2], "k": 2, "width": 2}),
            Case("unequal numbers of experts", {"owners": [2, 0, 2, 1, 2], "tokens": [3, 1, 2], "k": 2, "width": 3}),
            Case("a rank without experts", {"owners": [2, 0, 0], "tokens": [2, 3, 2], "k": 2, "width": 2}),
            Case("a rank without tokens", {"owners": [1, 0, 1], "tokens": [0, 4], "k": 2, "width": 3}),
            Case("dropped choices", {"owners": [0, 1, 1], "tokens": [5, 4], "k": 2, "width": 2, "capacity": 2}),
            Case(
                "everything of a rank dropped",
                {"owners": [1, 0], "tokens": [3, 2], "k": 1, "width": 2, "none_kept": (0,)},
            ),
            Case(
                "all want one expert, more than eight bits count",
                {"owners": [0, 1, 1], "tokens": [260, 4], "k": 1, "width": 3, "liked": 1},
            ),
            Case(
                "an expert that nobody wants", {"owners": [1, 0, 1], "tokens": [3, 3], "k": 2, "width": 2, "shunned": 1}
            ),
            Case("all experts of a token on one rank", {"owners": [1, 1, 1], "tokens": [3, 2], "k": 3, "width": 2}),
            Case(
                "many tokens, which need all that they may send",
                {"owners": [1, 0], "tokens": [31, 40], "k": 1, "width": 2},
            ),
            Case("one rank", {"owners": [0, 0, 0], "tokens": [4], "k": 2, "width": 3}),
            Case("many experts, few tokens", {"owners": [0, 1, 2] * 8, "tokens": [1, 2, 1], "k": 2, "width": 2}),
            Case(
                "seven ranks, ten experts on one of them, tokens of zeros",
                {
                    "owners": [3, 5, 3, 1, 4, 3, 2, 6, 3, 3, 3, 3, 3, 3, 3],
                    "tokens": [9, 4, 1, 0, 13, 6, 8],
                    "k": 5,
                    "width": 4,
                    "capacity": 4,
                    "blank": True,
                },
                hidden=True,
            ),
        ),
        inputs=_draw_tokens,
        run=calls.dispatch,
        expect=_expect_tokens,
        first_hint="In which order do rows leave, how does a rank know which expert wants them, where do results go?",
        hint="List the kept choices in order of their experts' ranks. Send the experts' numbers, then the rows, by "
        "all_to_all; each rank runs its experts on the rows that name them, and sends results back in the order in "
        "which the rows came. Multiply by the weights at home, and add up by token.",
        uses=("dispatch",),
        snippet=SPLIT + "def program(rank, arrays):\n"
        '    names = ("x", "experts", "weights", "kept", "owners")\n'
        "    return dispatch(\n"
        "        rank,\n"
        "        *(torch.from_numpy(arrays[name]) for name in names),\n"
        '        lambda e, rows: (rows @ torch.from_numpy(arrays[f"expert{e}"])).tanh(),\n'
        "    )\n\n\n"
        "run(program, split_ranks(given))",
    ),
)
