"""Checks of tasks 2b and 3: buckets that leave during the backward pass, and micro-batches that send once.

Oracle: derivatives by hand, in NumPy. When buckets left is read from the log: see `leaving`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlsys_checks.sandboxed.data_parallel import overlap as calls
from mlsys_checks.sandboxed.ranks import DEFERRED, join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case
from mlsys_checks.trusted.data_parallel.buckets import fill_buckets
from mlsys_checks.trusted.data_parallel.leaving import Leaving, compare_leaving, expect_leaving, find_leaving
from mlsys_checks.trusted.data_parallel.steps import (
    STEPS,
    WEIGHTS,
    count_bytes,
    draw,
    draw_tokens,
    draw_weights,
    forms_of,
    weights_of,
)
from mlsys_checks.trusted.traffic import check_ranks, expect_ranks

RATE = 0.1
"""What the calls multiply a gradient by before they subtract it."""


def _draw_signs(rng: np.random.Generator, passes: int, weights: int) -> Arrays:
    """Draw what gradients are multiplied by: for each backward pass one sign for each weight, and one more."""
    return {DEFERRED: rng.choice([-1.0, 1.0], passes * (weights + 1))}


# --- DDP --------------------------------------------------------------------------------------------------------------


def _draw_chain(rng: np.random.Generator, case: Case) -> Arrays:
    shapes, p = case.params["shapes"], case.params["p"]
    orders, without, zeros = (case.params.get(name, {}) for name in ("orders", "without", "zeros"))
    spread, dtype = case.params.get("spread", 0.5), case.params.get("dtype", "float64")
    steps, parts = case.params.get("steps", STEPS), []
    for rank in range(p):
        used = [[not {(rank, i), (rank, i, s)} & {*without} for i in range(len(shapes))] for s in range(steps)]
        parts.append(
            draw_weights(rng, shapes, spread, dtype)  # other ones on each rank: rank 0's count
            | {f"x{i}": draw(rng, steps, *shape, spread=0.5 * (i not in zeros)) for i, shape in enumerate(shapes)}
            | {"order": np.array(orders.get(rank, range(len(shapes)))), "used": np.array(used)}
            | {"bucket_bytes": np.array(case.params["bucket_bytes"])}
            | _draw_signs(rng, steps, len(shapes))
            | forms_of(case)
        )
    return join_ranks(parts)


def _expect_chain(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p, weights = len(parts), weights_of(parts[0])
    buckets = fill_buckets([w.nbytes for w in weights], int(parts[0]["bucket_bytes"]))
    told: Arrays = {}
    steps = len(parts[0]["x0"])
    for step in range(steps):
        sums = [np.zeros_like(w) for w in weights]
        for part in parts:
            xs = [part[f"x{i}"][step] * part["used"][step, i] for i in range(len(weights))]
            factors = [1 + float(np.sum(w * x)) for w, x in zip(weights, xs, strict=True)]
            *signs, sign = part[DEFERRED].reshape(steps, -1)[step].tolist()
            for i in part["order"][::-1].tolist():
                sums[i] += xs[i] * np.prod(factors[:i] + factors[i + 1 :]) * sign
                sign *= signs[i]
        told |= {f"w{i}.grad of step {step}": total / p for i, total in enumerate(sums)}
        weights = [w - RATE * total / p for w, total in zip(weights, sums, strict=True)]
    size = count_bytes(weights)
    return expect_ranks(
        [told] * p,
        total_bytes=(p - 1) * size * (1 + 2 * steps),
        total_messages=(p - 1) * (len(weights) + 2 * steps * p * len(buckets)),
        **expect_leaving(
            [_find_leaving_of_chain(part, buckets) for part in parts],
            [count_bytes([weights[i] for i in bucket]) for bucket in buckets],
            signs=len(weights) + 1,
            steps=steps,
        ),
    )


def _find_leaving_of_chain(part: Arrays, buckets: Sequence[range]) -> list[Leaving]:
    """The backward pass asks for the last sign at first, then for that of each layer once it has gone through it."""
    layers = part["order"][::-1].tolist()
    return [find_leaving(layers, used, [len(layers), *layers], buckets) for used in part["used"].tolist()]


# --- accumulation -----------------------------------------------------------------------------------------------------


def _draw_batches(rng: np.random.Generator, case: Case) -> Arrays:
    count, width, without = case.params["weights"], case.params["width"], case.params.get("without", ())
    weights = draw_weights(rng, [(width,)] * count)
    parts = []
    alike, outlier = (case.params.get(name, False) for name in ("alike", "outlier"))
    for rank, tokens in enumerate(draw_tokens(case)):
        batches = tokens.shape[1]
        uses = [[(rank, batch, i) not in without for i in range(count)] for batch in range(batches)]
        rows = draw(rng, tokens.sum(), width, spread=1e4 if outlier and rank == 0 else 1.0)
        if alike and batches:  # all of a step are the first
            steps = np.split(rows, tokens.sum(1).cumsum()[:-1])
            rows = np.concatenate([np.tile(one[: len(one) // batches], (batches, 1)) for one in steps])
        a_row = 10**9 if outlier and rank else 1  # each row is so many tokens that are alike
        parts.append(
            weights
            | {"rows": rows, "tokens": tokens * a_row, "tokens a row": np.array(a_row), "alike": np.array(alike)}
            | {"uses": np.array(uses, dtype=bool).reshape(batches, count)}
            | _draw_signs(rng, STEPS * batches, count)
            | {"bucket_bytes": np.array(case.params["bucket_bytes"])}
            | ({"value": np.array(case.params["values"][rank])} if "values" in case.params else {})
        )
    return join_ranks(parts)


def _expect_batches(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p, weights = len(parts), weights_of(parts[0])
    buckets = fill_buckets([w.nbytes for w in weights], int(parts[0]["bucket_bytes"]))
    told: Arrays = {}
    for step in range(STEPS):
        total = sum(int(part["tokens"][step].sum()) for part in parts)
        sums = [np.zeros_like(w) for w in weights]
        for part in parts:
            a_row, uses = int(part["tokens a row"]), part["uses"]
            pieces = np.split(part["rows"], np.cumsum(part["tokens"] // a_row)[:-1])[step * len(uses) :]
            signs = part[DEFERRED].reshape(-1, len(weights) + 1)[step * len(uses) :]
            for rows, used, sign in zip(pieces, uses, signs, strict=False):
                outcome = rows @ sum(w * use for w, use in zip(weights, used, strict=True))
                for i in np.flatnonzero(used):
                    sums[i] += 2 * a_row * rows.T @ outcome * sign[i]  # of the sum over tokens
        told |= {f"w{i}.grad of step {step}": one / total for i, one in enumerate(sums)}
        told |= {f"sync after step {step}": np.array(True)}
        weights = [w - RATE * one / total for w, one in zip(weights, sums, strict=True)]
    size = count_bytes(weights)
    return expect_ranks(
        [told] * p,
        total_bytes=(p - 1) * size * (1 + 2 * STEPS) + STEPS * p * (p - 1) * 64,
        total_messages=(p - 1) * (len(weights) + STEPS * 2 * p * (len(buckets) + 1)),
        **expect_leaving(
            [
                [
                    _find_leaving_of_batch(used, buckets) if tokens else []
                    for step in part["tokens"].tolist()
                    for used, tokens in zip(part["uses"].tolist(), step, strict=True)
                ]
                for part in parts
            ],
            [count_bytes([weights[i] for i in bucket]) for bucket in buckets],
            signs=len(weights) + 1,
            steps=STEPS,
        ),
    )


def _find_leaving_of_batch(used: list[bool], buckets: Sequence[range]) -> Leaving:
    """The backward pass asks for the sign of each weight that is used before it computes its gradient."""
    layers = np.flatnonzero(used)[::-1].tolist()
    return find_leaving(layers, used, [*layers, len(used)], buckets)


SMALL = {"weights": 2, "width": 2, "bucket_bytes": 16}

CHECKS = (
    check_ranks(
        name="ddp",
        title="Buckets that leave during the backward pass",
        points=16,
        cases=(
            Case("two ranks, one bucket", {"p": 2, "shapes": [(2,), (3,)], "bucket_bytes": 1000}),
            Case("a bucket for each layer", {"p": 3, "shapes": [(2,), (1, 2), (3,)], "bucket_bytes": 1}),
            Case("buckets of two layers", {"p": 2, "shapes": [(2,), (1,), (3,), (2,), (1,)], "bucket_bytes": 40}),
            Case(
                "a rank does not use a layer",
                {"p": 2, "shapes": [(2,), (2,), (1,), (3,)], "bucket_bytes": 24, "without": [(1, 2)]},
            ),
            Case(
                "a rank uses none of a bucket",
                {"p": 3, "shapes": [(2,), (2,), (1,)], "bucket_bytes": 16, "without": [(0, 2), (2, 1)]},
            ),
            Case(
                "nobody uses a layer", {"p": 2, "shapes": [(2,), (2,)], "bucket_bytes": 8, "without": [(0, 1), (1, 1)]}
            ),
            Case(
                "one rank's last layer is the other's first",
                {"p": 2, "shapes": [(2,), (3,), (2,), (1,), (2,)], "bucket_bytes": 8, "orders": {1: [4, 3, 2, 1, 0]}},
            ),
            Case(
                "vectors and scales that begin as zeros, a gradient that stays zero",
                {"p": 2, "shapes": [(2,), (), (), (2,)], "bucket_bytes": 16, "spread": 0.0, "zeros": [3]},
            ),
            Case("float32", {"p": 2, "shapes": [(3,), (2,), (1,)], "bucket_bytes": 12, "dtype": "float32"}),
            Case(
                "float16",
                {"p": 2, "steps": 1, "shapes": [(3,), (2,)], "bucket_bytes": 4, "spread": 0.0, "dtype": "float16"},
            ),
            Case(
                "one that lies transposed in memory, one without axes, one empty",
                {"p": 2, "shapes": [(2, 3), (), (0,), (2,)], "bucket_bytes": 32, "transposed": True},
            ),
            Case("one rank", {"p": 1, "shapes": [(2,), (2,)], "bucket_bytes": 16, "without": [(0, 0)]}),
            Case(
                "in every step other layers are used",
                {
                    "p": 2,
                    "steps": 4,
                    "shapes": [(2,), (2,), (1,), (3,)],
                    "bucket_bytes": 40,
                    "without": [(0, 0, 0), (1, 2, 1), (1, 1, 2), (1, 0, 2)],
                },
            ),
            Case(
                "six ranks, six buckets, most in an order of their own",
                {
                    "p": 6,
                    "shapes": [(7,), (3, 2), (2,), (2,), (), (3,), (11,), (2, 4), (2, 2), (10,)],
                    "bucket_bytes": 100,
                    "orders": {1: [3, 1, 5, 9, 0, 8, 2, 4, 6, 7], 2: [*range(9, -1, -1)], 3: [*range(1, 10), 0]},
                    "without": [(0, 9), (3, 2)],
                },
                hidden=True,
            ),
        ),
        inputs=_draw_chain,
        run=calls.ddp,
        expect=_expect_chain,
        compare=compare_leaving,
        first_hint="Follow one bucket: which hook completes it, what must have left before it, and who sends it if a "
        "hook is never called?",
        hint="Note in the hook who has come. While the next bucket in order has all of its parameters among them, "
        "average it. finish() averages what is left, zeros for a grad that is None, and forgets who came.",
        uses=("DDP",),
        snippet=WEIGHTS + "def program(rank, arrays):\n"
        "    weights = leaves(arrays)\n"
        "    h = torch.ones((), dtype=weights[0].dtype, requires_grad=True) * 1\n"
        '    ddp = DDP(rank, weights, int(arrays["bucket_bytes"]))\n'
        '    signs = arrays["deferred"].tolist()  # the check multiplies gradients by these on their way\n'
        '    for i in arrays["order"].tolist():\n'
        "        h.register_hook(lambda gradient, i=i: gradient * signs[i])\n"
        '        if arrays["used"][0, i]:\n'
        '            h = h * (1 + (weights[i] * torch.from_numpy(arrays[f"x{i}"])[0]).sum())\n'
        "    (h * signs[len(weights)]).backward()\n"
        "    ddp.finish()\n"
        "    return [weight.grad for weight in weights]\n\n\n"
        "run(program, split_ranks(given))",
    ),
    check_ranks(
        name="accumulate",
        title="Micro-batches that send once",
        points=11,
        cases=(
            Case("two ranks, one micro-batch", SMALL | {"tokens": [[3], [3]]}),
            Case("three of unequal length", SMALL | {"tokens": [[1, 4, 2], [3, 3, 1]], "bucket_bytes": 1}),
            Case("unequal numbers", SMALL | {"tokens": [[2], [1, 3], [4, 1, 1]], "bucket_bytes": 64}),
            Case("a micro-batch of padding alone", SMALL | {"tokens": [[2, 0], [0, 3]]}),
            Case("a rank without micro-batches", SMALL | {"tokens": [[2, 1], []], "weights": 1, "width": 3}),
            Case("a rank with padding alone", SMALL | {"tokens": [[0, 0], [1, 2]]}),
            Case(
                "the last micro-batch does not use a parameter",
                SMALL | {"tokens": [[2, 3], [1, 2]], "weights": 3, "without": [(0, 1, 2), (1, 1, 0)]},
            ),
            Case("one function for three micro-batches", SMALL | {"tokens": [[2, 2, 2], [3]], "alike": True}),
            Case("three tokens among billions, and far off", SMALL | {"tokens": [[2, 1], [3]], "outlier": True}),
            Case("losses of zero, and NaN", SMALL | {"tokens": [[2, 1], [3]], "values": [0.0, np.nan]}),
            Case("one rank", SMALL | {"tokens": [[1, 2, 4]]}),
            Case(
                "four ranks",
                {
                    "tokens": [[9, 2], [31], [0, 7, 0], [5, 5, 5, 5]],
                    "weights": 4,
                    "width": 5,
                    "bucket_bytes": 80,
                    "without": [(1, 0, 3), (3, 3, 1)],
                },
                hidden=True,
            ),
        ),
        inputs=_draw_batches,
        run=calls.accumulate,
        expect=_expect_batches,
        compare=compare_leaving,
        first_hint="What does each loss count, after which may gradients leave, and what is a mean over none?",
        hint="Leave out micro-batches whose weight is 0. Switch sync off for all that are left but the last, multiply "
        "each loss by its weight before backward(), switch sync on again, and finish(). Where torch says that "
        "something was modified in place, a loss was computed before the one before it had gone back.",
        uses=("DDP", "accumulate"),
        snippet=WEIGHTS + "def program(rank, arrays):\n"
        "    weights = leaves(arrays)\n"
        '    counts = (arrays["tokens"] // arrays["tokens a row"]).ravel().tolist()\n'
        '    batches = torch.split(torch.from_numpy(arrays["rows"]), counts)\n'
        '    signs = torch.from_numpy(arrays["deferred"]).split(len(weights) + 1)\n\n'
        "    def mean_loss(rows, used, turns):\n"
        "        parts = [rows @ weight for weight, uses in zip(weights, used) if uses]\n"
        "        for part, sign in zip(parts, next(turns)[:-1][used]):  # the check multiplies gradients by these\n"
        "            part.register_hook(lambda gradient, sign=sign: gradient * sign)\n"
        "        loss = sum(parts).square().mean()\n"
        '        return loss - loss.detach() + float(arrays["value"]) if "value" in arrays else loss\n\n'
        "    turns = [iter(signs[i:]) for i in range(len(signs))]\n"
        '    losses = [lambda one=one: mean_loss(*one) for one in zip(batches, arrays["uses"], turns)]\n'
        '    losses = losses[:1] * len(losses) if arrays["alike"] else losses\n'
        '    ddp = DDP(rank, weights, int(arrays["bucket_bytes"]))\n'
        '    accumulate(ddp, rank, losses, arrays["tokens"][0].tolist())\n'
        "    return [weight.grad for weight in weights]\n\n\n"
        "run(program, split_ranks(given))",
    ),
)
