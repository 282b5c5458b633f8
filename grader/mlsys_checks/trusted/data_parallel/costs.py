"""Checks of task 5b: what each stage of ZeRO keeps and sends. Oracle: bytes and chunks, counted one by one."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.data_parallel import sharded as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.values import encode_text
from mlsys_checks.trusted.answers import agree


def _draw_cost(rng: np.random.Generator, case: Case) -> Arrays:
    p, chunk = case.params["p"], int(rng.integers(*case.params.get("chunk", (10, 10**6)))) | 1
    return {"n": np.array(p * chunk), "p": np.array(p)}


def _expect_cost(arrays: Arrays) -> Arrays:
    """Who keeps each of a parameter's 16 bytes, and what a ring carries past each rank, chunk by chunk."""
    n, p = int(arrays["n"]), int(arrays["p"])
    chunk = n // p
    told: Arrays = {}
    for stage, whole_bytes in enumerate((16, 4, 2, 0)):  # bytes of a parameter that every rank has
        told[f"stage {stage}: bytes kept"] = encode_text(whole_bytes * n + (16 - whole_bytes) * chunk)
        rounds = [chunk] * (p - 1) * (3 if stage == 3 else 2)
        told[f"stage {stage}: elements sent"] = encode_text(sum(rounds))
    return told


CHECKS = (
    Check(
        name="step_cost",
        title="Bytes kept and elements sent, predicted",
        points=4,
        cases=(
            Case("four ranks", {"p": 4}),
            Case("one rank", {"p": 1}),
            Case("sixty-four ranks", {"p": 64}),
            Case("more bytes than int64 counts", {"p": 48, "chunk": (4 * 10**16, 10**17)}),
            Case("seven ranks", {"p": 7}, hidden=True),
        ),
        inputs=_draw_cost,
        run=calls.step_cost,
        expect=_expect_cost,
        compare=agree,
        first_hint="Which of 2, 2 and 12 bytes does each stage divide by p? How many halves of an all-reduce does it "
        "run?",
        hint="A reduce-scatter sends n - n/p elements from each rank, and so does an all-gather. Stages 0 to 2 run one "
        "of each, stage 3 gathers twice.",
        uses=("step_cost",),
        snippet="[step_cost(n, p, stage) for stage in range(4)]",
    ),
)
