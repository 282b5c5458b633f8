"""Checks of task 1: ranks that start alike, and gradients weighted by tokens. Oracle: derivatives by hand, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlsys_checks.sandboxed.data_parallel import steps as calls
from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case
from mlsys_checks.trusted.traffic import check_ranks, expect_ranks

SPLIT = "from mlsys_checks.sandboxed.ranks import split_ranks\n\n\n"
"""What code that runs a case on its ranks begins with."""
WEIGHTS = "from mlsys_checks.sandboxed.data_parallel.steps import leaves\n" + SPLIT
"""Code that has the case's ranks in `split_ranks` and makes a rank's weights by `leaves`, for a learner to paste."""
STEPS = 2
"""Steps of training that the calls make, or calls in a row, if a case names no other number."""


def draw(rng: np.random.Generator, *shape: int, spread: float = 1.0) -> np.ndarray:
    """Draw numbers with two decimals."""
    return np.array(np.round(rng.normal(0, spread, shape), 2))


def draw_weights(
    rng: np.random.Generator, shapes: Sequence[tuple[int, ...]], spread: float = 1.0, dtype: str = "float64"
) -> Arrays:
    """Draw parameters w0, w1, …"""
    return {f"w{i}": draw(rng, *shape, spread=spread).astype(dtype) for i, shape in enumerate(shapes)}


def forms_of(case: Case) -> Arrays:
    """What is unusual about a case's parameters: the number of one that is frozen, or that matrices lie transposed."""
    return {name: np.array(case.params[name]) for name in ("frozen", "transposed") if name in case.params}


def draw_tokens(case: Case) -> list[np.ndarray]:
    """Counts of each rank's micro-batches in each step, (STEPS, batches).

    Odd ranks have twice as many in a later step, even ones as many as before: who remembers weights by its own counts
    has wrong ones then.
    """
    first = [np.array(tokens, np.int64) for tokens in case.params["tokens"]]
    return [np.stack([counts << step * (rank % 2) for step in range(STEPS)]) for rank, counts in enumerate(first)]


def weights_of(part: Arrays, letter: str = "w") -> list[np.ndarray]:
    """The arrays w0, w1, … of a rank."""
    return [array for name, array in part.items() if name[0] == letter and name[1:].isdecimal()]


def count_bytes(arrays: Sequence[np.ndarray]) -> int:
    """Bytes of arrays together."""
    return sum(array.nbytes for array in arrays)


def count_padded_bytes(arrays: Sequence[np.ndarray], p: int) -> int:
    """Bytes of arrays laid end to end and padded to p equal chunks: whoever divides so sends no more."""
    n, size = sum(array.size for array in arrays), arrays[0].itemsize
    return -(-n // p) * p * size


def _draw_start(rng: np.random.Generator, case: Case) -> Arrays:
    shapes, dtype = case.params["shapes"], case.params.get("dtype", "float64")
    return join_ranks([draw_weights(rng, shapes, dtype=dtype) | forms_of(case) for _ in range(case.params["p"])])


def _expect_start(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p, first = len(parts), weights_of(parts[0])
    told = {f"{kind}w{i}": w for kind in ("", "torch's ") for i, w in enumerate(first)}
    sent = 2 * (p - 1)  # of both kinds
    return expect_ranks([told] * p, total_bytes=sent * count_bytes(first), total_messages=sent * len(first))


def _draw_tokens(rng: np.random.Generator, case: Case) -> Arrays:
    return join_ranks([{"tokens": tokens} for tokens in draw_tokens(case)])


def _expect_weights(arrays: Arrays) -> Arrays:
    tokens = [part["tokens"] for part in split_ranks(arrays)]
    p, told = len(tokens), list[Arrays]({} for _ in tokens)
    for step in range(STEPS):
        total = sum(int(one[step].sum()) for one in tokens)
        for one, counts in zip(told, (one[step] for one in tokens), strict=True):
            one[f"count of step {step}"] = np.array(len(counts))
            one |= {f"weights[{i}] of step {step}": np.array(p * count / total) for i, count in enumerate(counts)}
    return expect_ranks(told, messages=2 * STEPS * (p - 1), largest_message=64)


def _draw_losses(rng: np.random.Generator, case: Case) -> Arrays:
    shapes, without = case.params["shapes"], case.params.get("without", ())
    dtype = case.params.get("dtype", "float64")
    weights = draw_weights(rng, shapes, dtype=dtype) | forms_of(case)
    return join_ranks(
        [
            weights
            | {f"x{i}": draw(rng, *shape).astype(dtype) for i, shape in enumerate(shapes)}
            | {"used": np.array([(rank, i) not in without for i in range(len(shapes))]), "tokens": np.array(tokens)}
            for rank, tokens in enumerate(case.params["tokens"])
        ]
    )


def _expect_gradients(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p, weights = len(parts), weights_of(parts[0])
    total = sum(int(part["tokens"]) for part in parts)
    told = {}
    for i, w in enumerate(weights):
        xs = [int(part["tokens"]) * part[f"x{i}"] * part["used"][i] for part in parts]
        told[f"w{i}.grad"] = (2 * w * np.sum(xs, axis=0) / total).astype(w.dtype)
    size = count_bytes(weights)
    return expect_ranks(
        [told] * p,
        messages=4 * (p - 1),
        total_bytes=2 * (p - 1) * size + p * (p - 1) * 64,
        largest_message=max(size, 64),
    )


CHECKS = (
    check_ranks(
        name="copy_from_first",
        title="All ranks start alike",
        points=4,
        cases=(
            Case("two ranks", {"p": 2, "shapes": [(2,), (1, 3)]}),
            Case("float32, one empty, one without axes", {"p": 3, "shapes": [(2, 2), (0,), ()], "dtype": "float32"}),
            Case("one that lies transposed in memory", {"p": 2, "shapes": [(2,), (2, 3)], "transposed": True}),
            Case("one that is frozen, and wants no gradient", {"p": 2, "shapes": [(2,), (3,), (1,)], "frozen": 1}),
            Case("one rank", {"p": 1, "shapes": [(3,)]}),
            Case("seven ranks", {"p": 7, "shapes": [(7, 3), (7,), (11,), (), (2,)]}, hidden=True),
        ),
        inputs=_draw_start,
        run=calls.copy_from_first,
        expect=_expect_start,
        first_hint="Whose numbers must be in the data of every rank's parameters in the end?",
        hint="A broadcast gives rank 0's array on every rank. Write it into the parameter's own data; "
        "a name inside your function is nobody's parameter.",
        uses=("Tensor", "copy_from_first"),
        snippet=WEIGHTS + "def program(rank, arrays):\n"
        "    parameters = [Tensor(one.detach(), requires_grad=one.requires_grad) for one in leaves(arrays)]\n"
        "    copy_from_first(rank, parameters)\n"
        "    return [one.data for one in parameters]\n\n\n"
        "run(program, split_ranks(given))",
    ),
    check_ranks(
        name="loss_weights",
        title="What a rank's mean losses count",
        points=7,
        cases=(
            Case("six tokens and two", {"tokens": [[6], [2]]}),
            Case("two micro-batches each", {"tokens": [[3, 5], [4, 4], [1, 7]]}),
            Case("unequal numbers of micro-batches", {"tokens": [[3], [2, 6, 5]]}),
            Case("a micro-batch without tokens, a rank without", {"tokens": [[0, 4], [3, 0], [0, 0]]}),
            Case("a rank without micro-batches", {"tokens": [[2, 1], []]}),
            Case("a very large batch", {"tokens": [[2_500_000_001, 8], [1_000_000_007], []]}),
            Case("one rank", {"tokens": [[5, 3]]}),
            Case("four ranks", {"tokens": [[101, 7], [53], [2, 2, 2], [0]]}, hidden=True),
        ),
        inputs=_draw_tokens,
        run=calls.loss_weights,
        expect=_expect_weights,
        first_hint="How many tokens do all ranks have together? The weights of all their micro-batches add up to p.",
        hint="One all_reduce of this rank's own sum gives T. The mean over ranks divides by p, so a micro-batch of t "
        "tokens counts t·p/T.",
        uses=("loss_weights",),
        snippet=SPLIT
        + 'run(lambda rank, arrays: loss_weights(rank, arrays["tokens"][0].tolist()), split_ranks(given))',
    ),
    check_ranks(
        name="backward_together",
        title="Gradients of the mean over all tokens, on your engine",
        points=6,
        cases=(
            Case("two ranks, as many tokens", {"tokens": [4, 4], "shapes": [(2,), (1, 2)]}),
            Case("six tokens and two", {"tokens": [6, 2], "shapes": [(2, 2), (3,), (1,)]}),
            Case("a rank does not use a parameter", {"tokens": [1, 5, 2], "shapes": [(2,), (3,)], "without": [(1, 1)]}),
            Case(
                "float32, and nobody uses a parameter",
                {"tokens": [3, 1], "shapes": [(2,), (1,)], "without": [(0, 1), (1, 1)], "dtype": "float32"},
            ),
            Case("a rank uses none", {"tokens": [2, 3], "shapes": [(2,), (1,)], "without": [(1, 0), (1, 1)]}),
            Case("nobody uses two of a shape", {"tokens": [2], "shapes": [(2,)] * 3, "without": [(0, 0), (0, 1)]}),
            Case(
                "a matrix that lies transposed in memory, a scale without axes, one empty",
                {"tokens": [1, 3], "shapes": [(2, 3), (0,), ()], "transposed": True},
            ),
            Case(
                "one empty, which nobody uses", {"tokens": [2, 1], "shapes": [(2,), (0,)], "without": [(0, 1), (1, 1)]}
            ),
            Case(
                "one rank, which does not use a parameter", {"tokens": [5], "shapes": [(2,), (1,)], "without": [(0, 1)]}
            ),
            Case(
                "six ranks", {"tokens": [17, 3, 90, 41, 8, 25], "shapes": [(5, 7), (7,), (), (1,), (3,)]}, hidden=True
            ),
        ),
        inputs=_draw_losses,
        run=calls.backward_together,
        expect=_expect_gradients,
        first_hint="Three things happen one after the other: weigh the loss, go back, average. Which gives other "
        "numbers?",
        hint="loss_weights gives this rank's factor: multiply the loss by it before backward(). Then join all "
        "gradients to one flat array (zeros for None), add up over ranks, divide by rank.size, cut, reshape.",
        uses=("Tensor", "backward_together"),
        snippet=WEIGHTS + "def program(rank, arrays):\n"
        "    weights = [Tensor(one.detach(), requires_grad=True) for one in leaves(arrays)]\n"
        "    loss = Tensor(torch.zeros((), dtype=weights[0].data.dtype), requires_grad=True)\n"
        "    for i, weight in enumerate(weights):\n"
        '        if arrays["used"][i]:\n'
        '            loss = loss + (weight * weight * Tensor(torch.from_numpy(arrays[f"x{i}"]))).sum()\n'
        '    backward_together(rank, weights, loss, int(arrays["tokens"]))\n'
        "    return [weight.grad for weight in weights]\n\n\n"
        "run(program, split_ranks(given))",
    ),
)
