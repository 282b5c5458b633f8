"""Checks of task 1: matrices cut into columns and rows. Oracle: the whole matrices, in NumPy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from mlsys_checks.sandboxed.model_parallel import tensor as calls
from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case
from mlsys_checks.trusted.traffic import check_ranks, expect_ranks

ITEM = 8
"""Bytes of a number."""
SPLIT = "from mlsys_checks.sandboxed.ranks import split_ranks\n\n\n"
"""What code that runs a case on its ranks begins with."""


def draw(rng: np.random.Generator, *shape: int, spread: float = 1.0) -> np.ndarray:
    """Draw numbers with two decimals."""
    return np.round(rng.normal(0, spread, shape), 2)


def cut(length: int, p: int) -> list[slice]:
    """Stretches of each rank, whose lengths differ by at most one, the longer ones first."""
    cuts = [r * (length // p) + min(r, length % p) for r in range(p + 1)]
    return [slice(a, b) for a, b in pairwise(cuts)]


def all_reduce_costs(elements: int, p: int, *, times: int) -> dict[str, int]:
    """Bytes and messages of all ranks together in so many all-reduces, of so many elements in all."""
    return {"total_bytes": 2 * (p - 1) * elements * ITEM, "total_messages": times * 2 * p * (p - 1)}


def _draw_whole(rng: np.random.Generator, case: Case) -> Arrays:
    x, dim = draw(rng, *case.params["shape"]), np.array(case.params["dim"])
    return join_ranks([{"x": x, "dim": dim}] * case.params["p"])


def _expect_parts(arrays: Arrays) -> Arrays:
    given = split_ranks(arrays)
    x, dim = given[0]["x"], int(given[0]["dim"])
    parts = [x[(*(slice(None),) * dim, own)] for own in cut(x.shape[dim], len(given))]
    return expect_ranks([{"part": part} for part in parts], total_messages=0)


BESIDE = 1.0
"""What comes back to each entry of x beside the layer."""


def _wants(case: Case) -> Arrays:
    """Whether x wants a gradient: it does, unless it is data."""
    return {"x_wants": np.array(not case.params.get("data", False))}


def _draw_columns(rng: np.random.Generator, case: Case) -> Arrays:
    p, t, d, f = (case.params[name] for name in "ptdf")
    x, weight, bias, gradient = draw(rng, t, d), draw(rng, d, f), draw(rng, f), draw(rng, t, f)
    return join_ranks(
        [
            {"x": x, "weight": weight[:, own], "bias": bias[own], "gradient": gradient[:, own]} | _wants(case)
            for own in case.params.get("cuts") or cut(f, p)
        ]
    )


def _expect_columns(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    x = parts[0]["x"]
    x_grad = np.sum([part["gradient"] @ part["weight"].T for part in parts], axis=0)
    all_parts = sum(range(1, len(parts) + 1))
    told = [
        {
            "result": x @ part["weight"] + part["bias"],
            "weight.grad": x.T @ part["gradient"],
            "bias.grad": part["gradient"].sum(0),
            "CopyToTensorParallelRegion": x * r,
            "CopyToTensorParallelRegion: x.grad": x * all_parts,
        }
        | ({"x.grad": x_grad + BESIDE} if part["x_wants"] else {})
        for r, part in enumerate(parts, start=1)
    ]
    return expect_ranks(told, **all_reduce_costs(2 * x.size, len(parts), times=2))


def _draw_rows(rng: np.random.Generator, case: Case) -> Arrays:
    p, t, f, o = (case.params[name] for name in "ptfo")
    x, weight, bias, gradient = draw(rng, t, f), draw(rng, f, o), draw(rng, o), draw(rng, t, o)
    return join_ranks(
        [
            {"x": x[:, own], "weight": weight[own], "bias": bias, "gradient": gradient} | _wants(case)
            for own in cut(f, p)
        ]
    )


def _expect_rows(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    gradient = parts[0]["gradient"]
    result = np.sum([part["x"] @ part["weight"] for part in parts], axis=0) + parts[0]["bias"]
    all_parts = sum(range(1, len(parts) + 1))
    told = [
        {
            "result": result,
            "weight.grad": part["x"].T @ gradient,
            "bias.grad": gradient.sum(0),
            "ReduceFromTensorParallelRegion": gradient * all_parts,
            "ReduceFromTensorParallelRegion: x.grad": gradient * r,
        }
        | ({"x.grad": gradient @ part["weight"].T + BESIDE} if part["x_wants"] else {})
        for r, part in enumerate(parts, start=1)
    ]
    return expect_ranks(told, **all_reduce_costs(2 * result.size, len(parts), times=2))


STEPS, RATE = 2, 0.1
"""Steps of descent that the call makes, and its rate."""


def _draw_mlp(rng: np.random.Generator, case: Case) -> Arrays:
    p, t, d, f, o = (case.params[name] for name in "ptdfo")
    whole = {"up": draw(rng, d, f), "up_bias": draw(rng, f), "down": draw(rng, f, o), "down_bias": draw(rng, o)}
    whole["up_bias"] += 5e-5  # no sum of products of two decimals ends at the ReLU's corner, where rounding decides
    if case.params.get("dead"):  # but for one of zeros alone, which ends there however it is added up
        whole["up"][:, 0] = whole["up_bias"][0] = 0
    wants = {"wants": np.array(case.params.get("wants", True))}
    return join_ranks([whole | wants | {"x": draw(rng, STEPS, t, d), "gradient": draw(rng, STEPS, t, o)}] * p)


def _expect_mlp(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p, given = len(parts), parts[0]
    names = ("up", "up_bias", "down", "down_bias")
    weights = {name: given[name] for name in names}
    owned = cut(len(given["up_bias"]), p)
    grads = {name: np.zeros_like(weight) for name, weight in weights.items()}  # of all steps: nobody clears them
    told: list[Arrays] = [{} for _ in parts]
    for step, (x, gradient) in enumerate(zip(given["x"], given["gradient"], strict=True)):
        before = x @ weights["up"] + weights["up_bias"]
        hidden = np.maximum(before, 0)
        back = gradient @ weights["down"].T * (before > 0)
        new = {"up": x.T @ back, "up_bias": back.sum(0), "down": hidden.T @ gradient, "down_bias": gradient.sum(0)}
        grads = {name: grad + new[name] for name, grad in grads.items()}
        for one, own in zip(told, owned, strict=True):
            one[f"step {step}: result"] = hidden @ weights["down"] + weights["down_bias"]
            one[f"step {step}: x.grad"] = back @ weights["up"].T
            mine = {"up": grads["up"][:, own], "up_bias": grads["up_bias"][own], "down": grads["down"][own]}
            one |= {f"step {step}: {name}.grad": grad for name, grad in (grads | mine).items()}
        weights = {name: weights[name] - RATE * grads[name] for name in names}
    return expect_ranks(told, **all_reduce_costs(given["x"].size + given["gradient"].size, p, times=2 * STEPS))


PARTS_ASK = SPLIT + "run(lambda rank, arrays: {call}, split_ranks(given))"
LINEAR_ASK = (
    SPLIT + "def program(rank, arrays):\n"
    '    names = ("x", "weight", "bias")\n'
    "    x, weight, bias = [torch.from_numpy(arrays[name]).clone().requires_grad_() for name in names]\n"
    '    x.requires_grad_(bool(arrays["x_wants"]))\n'
    "    y = {name}(rank, x, weight, bias)\n"
    '    ((y * torch.from_numpy(arrays["gradient"])).sum() + x.sum()).backward()\n'
    "    return y.detach(), x.grad, weight.grad, bias.grad\n\n\n"
    "run(program, split_ranks(given))"
)

CHECKS = (
    check_ranks(
        name="take_part",
        title="Columns and rows for each rank",
        points=3,
        cases=(
            Case("columns for two ranks", {"p": 2, "shape": (2, 4), "dim": 1}),
            Case("rows for two ranks", {"p": 2, "shape": (4, 3), "dim": 0}),
            Case("seven columns for three", {"p": 3, "shape": (2, 7), "dim": 1}),
            Case("eight entries for three", {"p": 3, "shape": (8,), "dim": 0}),
            Case("more ranks than columns", {"p": 3, "shape": (3, 2), "dim": 1}),
            Case("no columns at all", {"p": 2, "shape": (3, 0), "dim": 1}),
            Case("three dimensions, cut along the last", {"p": 2, "shape": (2, 3, 5), "dim": 2}),
            Case("one rank", {"p": 1, "shape": (3, 2), "dim": 1}),
            Case("seven ranks", {"p": 7, "shape": (10, 18, 2), "dim": 1}, hidden=True),
        ),
        inputs=_draw_whole,
        run=calls.take_part,
        expect=_expect_parts,
        first_hint="Along which dimension is cut, who gets the longer parts, and is the part a view or a copy?",
        hint="tensor_split along dim gives p views, this rank's among them; detach and clone make it a tensor that "
        "stays as it is when x changes.",
        uses=("take_part",),
        snippet=PARTS_ASK.format(call='take_part(rank, torch.from_numpy(arrays["x"]), int(arrays["dim"]))'),
    ),
    check_ranks(
        name="column_linear",
        title="A matrix cut into columns",
        points=6,
        cases=(
            Case("two ranks", {"p": 2, "t": 3, "d": 2, "f": 4}),
            Case("three ranks, five columns", {"p": 3, "t": 2, "d": 4, "f": 5}),
            Case("a rank without columns", {"p": 3, "t": 2, "d": 3, "f": 2}),
            Case(
                "columns of very unequal number", {"p": 2, "t": 1, "d": 3, "f": 5, "cuts": (slice(0, 1), slice(1, 5))}
            ),
            Case("an x that is data and wants no gradient", {"p": 2, "t": 2, "d": 3, "f": 4, "data": True}),
            Case("one rank", {"p": 1, "t": 2, "d": 3, "f": 4}),
            Case("seven ranks", {"p": 7, "t": 5, "d": 6, "f": 18}, hidden=True),
        ),
        inputs=_draw_columns,
        run=calls.column_linear,
        expect=_expect_columns,
        first_hint="Which gradient does a rank see only in part: that of x, of its columns, or of its bias?",
        hint="The forward pass is a product of this rank alone. But every rank uses x, so x must go through the copy "
        "region of this task first: unchanged in the forward pass, all-reduced in the backward pass.",
        uses=("column_parallel_linear", "CopyToTensorParallelRegion"),
        snippet=LINEAR_ASK.replace("{name}", "column_parallel_linear"),
    ),
    check_ranks(
        name="row_linear",
        title="A matrix cut into rows",
        points=6,
        cases=(
            Case("two ranks", {"p": 2, "t": 3, "f": 4, "o": 2}),
            Case("three ranks, five rows", {"p": 3, "t": 2, "f": 5, "o": 4}),
            Case("a rank without rows", {"p": 3, "t": 2, "f": 2, "o": 3}),
            Case("an x that is data and wants no gradient", {"p": 2, "t": 2, "f": 4, "o": 3, "data": True}),
            Case("one rank", {"p": 1, "t": 2, "f": 3, "o": 4}),
            Case("seven ranks", {"p": 7, "t": 5, "f": 18, "o": 6}, hidden=True),
        ),
        inputs=_draw_rows,
        run=calls.row_linear,
        expect=_expect_rows,
        first_hint="What is the sum of the ranks' products, how often is the bias in it, and what is each one's "
        "gradient?",
        hint="ReduceFromTensorParallelRegion takes this rank's product alone, adds up forward and hands the "
        "gradient through backward; the bias is added to its result.",
        uses=("row_parallel_linear", "ReduceFromTensorParallelRegion"),
        snippet=LINEAR_ASK.replace("{name}", "row_parallel_linear"),
    ),
    check_ranks(
        name="parallel_mlp",
        title="Columns, then rows: an MLP",
        points=5,
        cases=(
            Case("two ranks", {"p": 2, "t": 3, "d": 2, "f": 4, "o": 3}),
            Case("three ranks, seven hidden columns", {"p": 3, "t": 2, "d": 3, "f": 7, "o": 2}),
            Case("a matrix that is square", {"p": 2, "t": 2, "d": 4, "f": 4, "o": 4}),
            Case("a hidden column of zeros", {"p": 2, "t": 3, "d": 2, "f": 4, "o": 3, "dead": True}),
            Case("a rank without hidden columns", {"p": 3, "t": 2, "d": 2, "f": 2, "o": 3}),
            Case("made of what wants no gradients", {"p": 2, "t": 2, "d": 3, "f": 4, "o": 2, "wants": False}),
            Case("one rank", {"p": 1, "t": 2, "d": 3, "f": 5, "o": 2}),
            Case("six ranks", {"p": 6, "t": 7, "d": 5, "f": 15, "o": 3}, hidden=True),
        ),
        inputs=_draw_mlp,
        run=calls.parallel_mlp,
        expect=_expect_mlp,
        first_hint="Which dimension of each parameter is cut, which of them is not cut at all, and where is the ReLU?",
        hint="up is cut along its columns, up_bias as up's columns are, down along its rows, and down_bias stays "
        "whole. Each kept part wants a gradient. Columns, ReLU, rows.",
        uses=("ParallelMLP",),
        snippet=SPLIT + "def program(rank, arrays):\n"
        '    names = ("up", "up_bias", "down", "down_bias")\n'
        '    whole = (torch.from_numpy(arrays[name]).clone().requires_grad_(bool(arrays["wants"])) for name in names)\n'
        "    mlp = ParallelMLP(rank, *whole)\n"
        '    x = torch.from_numpy(arrays["x"][0]).clone().requires_grad_()\n'
        "    y = mlp(x)\n"
        '    y.backward(torch.from_numpy(arrays["gradient"][0]))\n'
        "    return y.detach(), x.grad, mlp.up.grad, mlp.down.grad\n\n\n"
        "run(program, split_ranks(given))",
    ),
)
