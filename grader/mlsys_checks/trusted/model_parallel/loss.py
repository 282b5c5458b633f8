"""Checks of task 2: a loss of divided logits. Oracle: all logits at once, in NumPy."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from mlsys_checks.sandboxed.model_parallel import loss as calls
from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.model_parallel.tensor import ITEM, SPLIT, draw
from mlsys_checks.trusted.traffic import check_ranks, compare_run, expect_ranks


def _draw_logits(rng: np.random.Generator, case: Case) -> Arrays:
    t, widths = case.params["t"], case.params["widths"]
    v, p, starts = sum(widths), len(widths), np.cumsum([0, *widths])
    logits = draw(rng, t, v, spread=case.params.get("spread", 1.0))
    logits += np.linspace(case.params.get("offset", 0.0), 0.0, t)[:, None]
    usable = np.arange(v)
    if (padded := case.params.get("padded", 0)) > 0:  # columns at the end that are no tokens
        logits[:, v - padded :] = -np.inf
        usable = usable[: v - padded]
    if case.params.get("towers"):  # each token has one logit that stands out, on some rank
        logits[np.arange(t), rng.integers(0, v, t)] += 2000.0
    targets = rng.choice(usable, t)
    if "targets_on" in case.params:  # all of them on one rank
        r = case.params["targets_on"]
        targets = rng.integers(starts[r], starts[r + 1], t)
    else:  # each border is met
        edges = np.array([edge for r in range(p) for edge in (starts[r], starts[r + 1] - 1) if edge in usable])
        targets[: len(edges)] = edges[:t]
    gradient = np.array(np.round(rng.uniform(0.5, 3.0), 2))
    again = {"again": np.array(np.round(rng.uniform(0.5, 3.0), 2))} if "again" in case.params else {}
    return join_ranks(
        [
            {"logits": logits[:, a:b], "start": np.array(a), "targets": targets, "gradient": gradient} | again
            for a, b in pairwise(starts)
        ]
    )


def _compare_loss(got: Arrays, expected: Arrays) -> Mismatch | None:
    """As `close`, but a loss is a difference of logits, and gradients are those of probabilities over the tokens.

    Where each token's target is all but certain, little is left of either but what rounding leaves.
    """
    return close(got, expected, min_size={"loss": 1.0, "logits.grad": 1 / len(expected["logits.grad"])})


def _expect_loss(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p, targets, gradient = len(parts), parts[0]["targets"], float(parts[0]["gradient"])
    logits = np.concatenate([part["logits"] for part in parts], axis=1)
    t = len(targets)
    shifted = logits - logits.max(1, keepdims=True)
    log_total = np.log(np.exp(shifted).sum(1))
    loss = (log_total - shifted[np.arange(t), targets]).mean()
    difference = np.exp(shifted - log_total[:, None])
    difference[np.arange(t), targets] -= 1
    cuts = np.cumsum([part["logits"].shape[1] for part in parts])[:-1]
    both = gradient + float(parts[0].get("again", gradient))  # the call goes back twice
    told = [{"loss": np.array(loss), "logits.grad": grad * both / t} for grad in np.split(difference, cuts, axis=1)]
    return expect_ranks(
        told,
        total_bytes=3 * p * (p - 1) * t * ITEM,
        total_messages=6 * p * (p - 1),
        largest_message=3 * p * t * ITEM,
    )


CHECKS = (
    check_ranks(
        name="cross_entropy",
        title="A loss of divided logits",
        points=14,
        cases=(
            Case("two ranks", {"t": 4, "widths": [3, 3]}),
            Case("three ranks, unequal parts", {"t": 6, "widths": [5, 4, 4]}),
            Case("a vocabulary much wider than three", {"t": 3, "widths": [20, 20]}),
            Case("large logits", {"t": 3, "widths": [3, 2], "spread": 400.0}),
            Case("tokens whose logits lie far apart", {"t": 3, "widths": [2, 3], "offset": -30000.0}),
            Case("one logit of each token stands out", {"t": 5, "widths": [3, 3, 3], "towers": True}),
            Case("all targets on the last rank", {"t": 3, "widths": [4, 3, 3], "targets_on": 2}),
            Case("padding on the last rank", {"t": 3, "widths": [4, 4], "padded": 2}),
            Case("a rank of padding alone", {"t": 3, "widths": [3, 3, 2], "padded": 2}),
            Case("one token", {"t": 1, "widths": [3, 3], "targets_on": 1}),
            Case("one rank", {"t": 3, "widths": [4]}),
            Case(
                "six ranks, another gradient when asked again",
                {"t": 15, "widths": [1, 7, 5, 30, 2, 9], "spread": 300.0, "towers": True, "padded": 3, "again": True},
                hidden=True,
            ),
        ),
        inputs=_draw_logits,
        run=calls.cross_entropy,
        expect=_expect_loss,
        compare=partial(compare_run, compare=_compare_loss),
        first_hint="Which of the three numbers of a token does each rank know in part, and relative to which maximum?",
        hint="Gather the ranks' maxima and take the largest for each token. Then the sum of exponentials and the "
        "target's logit, zero where another rank has it, can go through one all_reduce. Backward: softmax of the own "
        "columns, less one at targets that lie here, times the incoming gradient, over T.",
        uses=("vocab_parallel_cross_entropy",),
        snippet=SPLIT + "def program(rank, arrays):\n"
        '    logits = torch.from_numpy(arrays["logits"]).clone().requires_grad_()\n'
        '    targets = torch.from_numpy(arrays["targets"])\n'
        '    loss = vocab_parallel_cross_entropy(rank, logits, int(arrays["start"]), targets)\n'
        '    (loss * float(arrays["gradient"])).backward(retain_graph=True)\n'
        '    (loss * float(arrays["gradient"])).backward()\n'
        "    return loss.item(), logits.grad\n\n\n"
        "run(program, split_ranks(given))",
    ),
)
