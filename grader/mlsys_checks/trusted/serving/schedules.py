"""Checks of tasks 2, 3, 4 and 5: schedulers driven through loads that are drawn, their logs played again."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.serving import schedulers as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.serving.loads import check_schedules, make_case
from mlsys_checks.trusted.serving.replay import Rules

# --- steps_to_first ---------------------------------------------------------------------------------------------------


def _draw_prompts(rng: np.random.Generator, case: Case) -> Arrays:
    if case.params.get("in_turn"):
        return {"asked": _change_in_turn(rng)}
    chunk, writers = rng.integers(1, 60, 12), rng.integers(0, 20, 12)
    prompt = chunk * rng.integers(1, 9, 12) + rng.integers(-1, 2, 12)
    asked = [(max(1, p), w, w + c) for p, w, c in zip(prompt.tolist(), writers.tolist(), chunk.tolist(), strict=True)]
    return {"asked": np.array(asked)}


def _change_in_turn(rng: np.random.Generator) -> np.ndarray:
    """Rows of prompt, writers and tokens: chunks that are all full, then one number changed, by one or to its least."""
    chunk, writers, chunks = (int(rng.integers(least, 3 * least)) for least in (7, 5, 3))
    prompt, tokens = chunk * chunks, writers + chunk
    least = [(1, writers, tokens), (prompt, 0, tokens), (prompt, writers, writers + 1), (1, 0, 1)]
    return np.vstack([np.array([prompt, writers, tokens]) + np.eye(4, 3, dtype=np.int64), least])


def _expect_steps(arrays: Arrays) -> Arrays:
    steps = []
    for prompt, writers, tokens in arrays["asked"].tolist():
        left, count = prompt, 0
        while left > 0:
            left, count = left - (tokens - writers), count + 1
        steps.append(count)
    return {"steps": np.array(steps)}


def _code_of_steps(arrays: Arrays) -> str:
    return "\n".join(f"steps_to_first{tuple(row)}" for row in arrays["asked"].tolist())


CONTINUOUS = (
    check_schedules(
        "continuous",
        "Steps put together anew",
        14,
        (
            make_case("three requests", Rules.CONTINUOUS, pool=(12, 4), limits=(2, 99), requests=3),
            make_case("one slot", Rules.CONTINUOUS, pool=(9, 3), limits=(1, 99), requests=4, over=6),
            make_case("more slots than requests", Rules.CONTINUOUS, pool=(40, 4), limits=(9, 9), requests=6, over=3),
            make_case("few blocks", Rules.CONTINUOUS, pool=(7, 3), limits=(4, 4), requests=12, over=20),
            make_case("blocks of one token", Rules.CONTINUOUS, pool=(20, 1), limits=(3, 99), requests=8, over=9),
            make_case(
                "single tokens", Rules.CONTINUOUS, pool=(3, 4), limits=(3, 99), requests=7, prompt=(1, 1), writes=(1, 2)
            ),
            make_case(
                "some are given up", Rules.CONTINUOUS, pool=(12, 3), limits=(3, 99), requests=24, over=20, gone=0.5
            ),
            make_case(
                "equal texts, some are given up",
                Rules.CONTINUOUS,
                pool=(32, 3),
                limits=(8, 99),
                requests=16,
                prompt=(3, 3),
                writes=(5, 9),
                beginnings=1,
                equal=True,
                gone=0.5,
            ),
            make_case("admitted by name", Rules.CONTINUOUS, pool=(14, 4), limits=(3, 99), requests=6, admits=2),
            make_case(
                "many", Rules.CONTINUOUS, pool=(14, 4), limits=(5, 99), requests=50, over=70, gone=0.2, hidden=True
            ),
            make_case("a crowd", Rules.CONTINUOUS, pool=(44, 4), limits=(17, 99), requests=40, over=1, hidden=True),
        ),
        "Write down for one step who runs, what of each is kept, and how many blocks are available. Who may come in?",
        "Feed all that is pending of those who run; admit the first that waits as long as a slot is free and blocks "
        "for all but its last token can be reserved; give back all blocks of whoever ends.",
    ),
)
CHUNKED = (
    check_schedules(
        "chunked",
        "Chunks under a budget",
        14,
        (
            make_case("a long prompt", Rules.CHUNKED, pool=(20, 4), limits=(2, 5), requests=3, prompt=(6, 14)),
            make_case("one token a step", Rules.CHUNKED, pool=(9, 3), limits=(1, 1), requests=4, over=9),
            make_case("a token for each", Rules.CHUNKED, pool=(30, 3), limits=(4, 4), requests=9, over=20),
            make_case(
                "long prompts, few blocks", Rules.CHUNKED, pool=(8, 4), limits=(3, 7), requests=9, prompt=(8, 23)
            ),
            make_case("a wide budget", Rules.CHUNKED, pool=(40, 2), limits=(6, 40), requests=15, over=10),
            make_case("some are given up", Rules.CHUNKED, pool=(12, 3), limits=(3, 6), requests=14, over=30, gone=0.5),
            make_case(
                "many",
                Rules.CHUNKED,
                pool=(24, 4),
                limits=(5, 9),
                requests=40,
                over=120,
                prompt=(1, 30),
                gone=0.1,
                hidden=True,
            ),
            make_case(
                "a crowd",
                Rules.CHUNKED,
                pool=(99, 4),
                limits=(24, 32),
                requests=70,
                prompt=(1, 5),
                writes=(6, 12),
                over=2,
                hidden=True,
            ),
        ),
        "Of one step: who has one token pending, what is left of the budget after them, and whose turn is next?",
        "What is left is the budget less the tokens in the batch so far; a text takes the smaller of that and what is "
        "pending, in the order of arrival, and the first that waits comes in only while something is left.",
    ),
    Check(
        name="steps_to_first",
        title="Steps until the first token",
        points=3,
        cases=(
            Case("a dozen prompts"),
            Case("one number changed in turn", {"in_turn": True}),
            Case("another dozen", hidden=True),
        ),
        inputs=_draw_prompts,
        run=calls.steps_to_first,
        expect=_expect_steps,
        compare=close,
        first_hint="What do the writers leave of each step, and what becomes of a last chunk that is not full?",
        hint="Divide the prompt by what is left of a step, and round up.",
        uses=("steps_to_first",),
        describe=_code_of_steps,
    ),
)
SHARED = (
    check_schedules(
        "shared",
        "Requests that share beginnings",
        7,
        (
            make_case("two alike", Rules.CHUNKED, prefix=True, pool=(12, 2), limits=(2, 6), requests=3, beginnings=1),
            make_case(
                "one token a step", Rules.CHUNKED, prefix=True, pool=(9, 2), limits=(1, 1), requests=5, beginnings=1
            ),
            make_case(
                "many alike",
                Rules.CHUNKED,
                prefix=True,
                pool=(40, 3),
                limits=(6, 20),
                requests=16,
                over=30,
                beginnings=2,
            ),
            make_case(
                "few blocks", Rules.CHUNKED, prefix=True, pool=(9, 2), limits=(4, 9), requests=16, over=40, beginnings=2
            ),
            make_case(
                "read at the same time",
                Rules.CHUNKED,
                prefix=True,
                pool=(90, 1),
                limits=(6, 60),
                requests=12,
                prompt=(5, 12),
                beginnings=1,
            ),
            make_case(
                "prompts that are known to the end",
                Rules.CONTINUOUS,
                prefix=True,
                pool=(16, 2),
                limits=(3, 99),
                requests=14,
                prompt=(4, 8),
                over=40,
                beginnings=1,
            ),
            make_case(
                "many more",
                Rules.CHUNKED,
                prefix=True,
                pool=(20, 4),
                limits=(5, 12),
                requests=40,
                prompt=(1, 30),
                over=100,
                beginnings=3,
                gone=0.2,
                hidden=True,
            ),
            make_case(
                "a crowd",
                Rules.CHUNKED,
                prefix=True,
                pool=(180, 2),
                limits=(20, 120),
                requests=44,
                prompt=(1, 30),
                writes=(4, 12),
                over=5,
                beginnings=3,
                hidden=True,
            ),
        ),
        "When a text comes in, which tokens are kept already, and what is left to be fed and to be reserved?",
        "Begin at the length that the tables give, in feed as in admit; reserve only what is missing; let a text that "
        "was not admitted leave no reference behind.",
    ),
)
PREEMPTIVE = (
    check_schedules(
        "preemptive",
        "Whoever came last gives way",
        14,
        (
            make_case(
                "two, few blocks",
                Rules.PREEMPTIVE,
                pool=(4, 2),
                limits=(2, 6),
                requests=2,
                prompt=(2, 4),
                writes=(3, 4),
            ),
            make_case("one at a time", Rules.PREEMPTIVE, pool=(6, 3), limits=(1, 3), requests=4, over=9),
            make_case(
                "several, few blocks", Rules.PREEMPTIVE, pool=(9, 2), limits=(4, 8), requests=24, over=9, writes=(4, 9)
            ),
            make_case(
                "many run", Rules.PREEMPTIVE, pool=(24, 2), limits=(8, 16), requests=60, prompt=(1, 4), writes=(9, 18)
            ),
            make_case(
                "two give way in a step",  # seven with two full blocks each, and one block left for seven writers
                Rules.PREEMPTIVE,
                pool=(15, 4),
                limits=(8, 40),
                requests=8,
                prompt=(4, 4),
                writes=(12, 12),
            ),
            make_case(
                "one that takes all memory",
                Rules.PREEMPTIVE,
                pool=(3, 4),
                limits=(2, 20),
                requests=3,
                prompt=(9, 11),
                writes=(2, 2),
            ),
            make_case("blocks of one token", Rules.PREEMPTIVE, pool=(20, 1), limits=(4, 9), requests=9, over=12),
            make_case(
                "while a prompt is read",
                Rules.PREEMPTIVE,
                pool=(26, 1),
                limits=(3, 3),
                requests=24,
                prompt=(6, 14),
                writes=(6, 12),
            ),
            make_case("enough for all", Rules.PREEMPTIVE, pool=(60, 3), limits=(5, 8), requests=12, over=20),
            make_case("admitted by name", Rules.PREEMPTIVE, pool=(60, 3), limits=(4, 60), requests=8, admits=1),
            make_case(
                "they find what they left",
                Rules.PREEMPTIVE,
                prefix=True,
                pool=(9, 2),
                limits=(4, 9),
                requests=12,
                over=12,
                writes=(4, 9),
                beginnings=2,
            ),
            make_case(
                "long prompts, some are given up",
                Rules.PREEMPTIVE,
                pool=(12, 3),
                limits=(4, 5),
                requests=16,
                prompt=(3, 20),
                writes=(3, 14),
                over=60,
                gone=0.3,
            ),
            make_case(
                "many",
                Rules.PREEMPTIVE,
                prefix=True,
                pool=(16, 3),
                limits=(6, 10),
                requests=40,
                prompt=(1, 20),
                writes=(1, 20),
                over=120,
                beginnings=3,
                gone=0.1,
                hidden=True,
            ),
            make_case("a crowd", Rules.PREEMPTIVE, pool=(56, 3), limits=(17, 40), requests=36, over=1, hidden=True),
        ),
        "A writer finds no block: who came last of those who run, what does it hold, and where does it wait then?",
        "Try to reserve one token more for the writer; as long as that fails, let the last of those who run give way, "
        "and stop if that was the writer itself. Whoever gave way has no number and no blocks.",
    ),
)
