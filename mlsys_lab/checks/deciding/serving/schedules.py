"""Checks of tasks 2, 3, 4 and 5: schedulers driven through loads that are drawn, their logs played again."""

from __future__ import annotations

import math

import numpy as np

from mlsys_lab.checks.deciding.compare import close
from mlsys_lab.checks.deciding.serving.pool import as_given, judge
from mlsys_lab.checks.deciding.serving.replay import Replay, Rules
from mlsys_lab.checks.learner import serving as calls
from mlsys_lab.checks.learner.serving import SCHEDULERS, TABLES, WRITTEN, ragged
from mlsys_lab.checks.learner.spec import Arrays, Case, Check

EVERY_STEP = np.array([1.0, 0.0, 0.0])
"""A clock on which each step takes a second."""


def draw_requests(rng: np.random.Generator, case: Case) -> Arrays:
    """Requests of a case: prompts, how much each writes, when it comes, and when it is given up."""
    p, count = case.params, case.params["requests"]
    (least, longest), (fewest, most) = p["prompt"], p["writes"]
    beginnings = [rng.integers(0, WRITTEN, longest).tolist() for _ in range(p.get("beginnings", 0))]
    prompts = []
    for _ in range(count):
        length = int(rng.integers(least, longest + 1))
        begins = beginnings[int(rng.integers(len(beginnings)))] if beginnings and rng.random() < 0.8 else []
        shared = begins[: int(rng.integers(length + 1))] if rng.random() < 0.5 else begins[:length]
        prompts.append(shared + rng.integers(0, WRITTEN, length - len(shared)).tolist())
    comes_s = np.sort(rng.integers(0, p.get("over", 0) + 1, count)).astype(np.float64)
    leaves_s = np.full(count, math.inf)
    gone = rng.random(count) < p.get("gone", 0)
    leaves_s[gone] = (comes_s + rng.integers(0, 15, count))[gone]
    writes = rng.integers(fewest, most + 1, count)
    lengths = np.array([len(prompt) for prompt in prompts])
    return {
        "scheduler": np.array(p["rules"]),
        "prefix": np.array(bool(p.get("prefix"))),
        "pool": np.array(p["pool"]),
        "limits": np.array(p["limits"]),
        "clock": EVERY_STEP,
        "prompts": np.array([token for prompt in prompts for token in prompt], dtype=np.int64),
        "lengths": lengths,
        "writes": writes,
        "comes_s": comes_s,
        "leaves_s": leaves_s,
        "most_steps": np.array(int(4 * (lengths + writes).sum() + 100)),
    }


def _replay(got: Arrays, asked: Arrays) -> None:
    Replay(asked).play(got)


def code_of_requests(arrays: Arrays) -> str:
    """Requests of a case as code."""
    rows = zip(
        arrays["comes_s"].tolist(),
        ragged(arrays["prompts"], arrays["lengths"]),
        arrays["writes"].tolist(),
        arrays["leaves_s"].tolist(),
        strict=True,
    )
    written = [
        f"    Request({comes:g}, {prompt}, {writes}{'' if leaves == math.inf else f', leaves_s={leaves:g}'}),"
        for comes, prompt, writes, leaves in rows
    ]
    return "\n".join(["requests = [", *written, "]"])


def code_of_tables(arrays: Arrays) -> str:
    """Empty tables of a case as code."""
    tables, manager = TABLES[int(arrays["prefix"])]
    count, page = arrays["pool"].tolist()
    return f"{tables}({manager}({count}), {page})"


def _code_of_schedule(arrays: Arrays) -> str:
    sequences, tokens = arrays["limits"].tolist()
    made = f"{SCHEDULERS[int(arrays['scheduler'])]}({code_of_tables(arrays)}, Limits({sequences}, {tokens}))"
    loop = "for step, fed in enumerate(drive(scheduler, requests)[0]):\n    print(step, fed)"
    return f"{code_of_requests(arrays)}\nscheduler = {made}\n{loop}"


def _schedule(name: str, title: str, points: float, cases: tuple[Case, ...], pointer: str, hint: str) -> Check:
    tables = {one for case in cases for one in TABLES[bool(case.params.get("prefix"))]}
    return Check(
        name=name,
        title=title,
        points=points,
        cases=cases,
        inputs=draw_requests,
        run=calls.schedule,
        expect=as_given,
        compare=judge(_replay),
        pointer=pointer,
        hint=hint,
        uses=(*sorted(tables), "Limits", SCHEDULERS[cases[0].params["rules"]]),
        describe=_code_of_schedule,
    )


def _case(name: str, rules: Rules, *, hidden: bool = False, **params: object) -> Case:
    return Case(name, {"rules": rules, "prompt": (1, 9), "writes": (1, 9)} | params, hidden=hidden)


# --- steps_to_first ---------------------------------------------------------------------------------------------------


def _draw_prompts(rng: np.random.Generator, case: Case) -> Arrays:
    chunk, writers = rng.integers(1, 60, 12), rng.integers(0, 20, 12)
    prompt = chunk * rng.integers(1, 9, 12) + rng.integers(-1, 2, 12)
    asked = [(max(1, p), w, w + c) for p, w, c in zip(prompt.tolist(), writers.tolist(), chunk.tolist(), strict=True)]
    return {"asked": np.array(asked)}


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
    _schedule(
        "continuous",
        "Steps put together anew",
        14,
        (
            _case("three requests", Rules.CONTINUOUS, pool=(12, 4), limits=(2, 99), requests=3),
            _case("one slot", Rules.CONTINUOUS, pool=(9, 3), limits=(1, 99), requests=4, over=6),
            _case("more slots than requests", Rules.CONTINUOUS, pool=(40, 4), limits=(9, 99), requests=6, over=12),
            _case("few blocks", Rules.CONTINUOUS, pool=(7, 3), limits=(4, 99), requests=12, over=20),
            _case("blocks of one token", Rules.CONTINUOUS, pool=(20, 1), limits=(3, 99), requests=8, over=9),
            _case(
                "single tokens", Rules.CONTINUOUS, pool=(3, 4), limits=(3, 99), requests=7, prompt=(1, 1), writes=(1, 2)
            ),
            _case("some are given up", Rules.CONTINUOUS, pool=(12, 3), limits=(3, 99), requests=16, over=20, gone=0.5),
            _case("many", Rules.CONTINUOUS, pool=(14, 4), limits=(5, 99), requests=50, over=70, gone=0.2, hidden=True),
        ),
        "Write down for one step who runs, what of each is kept, and how many blocks are available. Who may come in?",
        "Feed all that is pending of those who run; admit the first that waits as long as a slot is free and blocks "
        "for all but its last token can be reserved; give back all blocks of whoever ends.",
    ),
)
CHUNKED = (
    _schedule(
        "chunked",
        "Chunks under a budget",
        14,
        (
            _case("a long prompt", Rules.CHUNKED, pool=(20, 4), limits=(2, 5), requests=3, prompt=(6, 14)),
            _case("one token a step", Rules.CHUNKED, pool=(9, 3), limits=(1, 1), requests=4, over=9),
            _case("a token for each", Rules.CHUNKED, pool=(30, 3), limits=(4, 4), requests=9, over=20),
            _case("long prompts, few blocks", Rules.CHUNKED, pool=(8, 4), limits=(3, 7), requests=9, prompt=(8, 23)),
            _case("a wide budget", Rules.CHUNKED, pool=(40, 2), limits=(6, 40), requests=15, over=10),
            _case("some are given up", Rules.CHUNKED, pool=(12, 3), limits=(3, 6), requests=14, over=30, gone=0.5),
            _case(
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
        ),
        "Of one step: who has one token pending, what is left of the budget after them, and whose turn is next?",
        "What is left is the budget less the tokens in the batch so far; a text takes the smaller of that and what is "
        "pending, in the order of arrival, and the first that waits comes in only while something is left.",
    ),
    Check(
        name="steps_to_first",
        title="Steps until the first token",
        points=3,
        cases=(Case("a dozen prompts"), Case("another dozen", hidden=True)),
        inputs=_draw_prompts,
        run=calls.steps_to_first,
        expect=_expect_steps,
        compare=close,
        pointer="What do the writers leave of each step, and what becomes of a last chunk that is not full?",
        hint="Divide the prompt by what is left of a step, and round up.",
        uses=("steps_to_first",),
        describe=_code_of_steps,
    ),
)
SHARED = (
    _schedule(
        "shared",
        "Requests that share beginnings",
        7,
        (
            _case("two alike", Rules.CHUNKED, prefix=True, pool=(12, 2), limits=(2, 6), requests=3, beginnings=1),
            _case("one token a step", Rules.CHUNKED, prefix=True, pool=(9, 2), limits=(1, 1), requests=5, beginnings=1),
            _case(
                "many alike",
                Rules.CHUNKED,
                prefix=True,
                pool=(40, 3),
                limits=(6, 20),
                requests=16,
                over=30,
                beginnings=2,
            ),
            _case(
                "few blocks", Rules.CHUNKED, prefix=True, pool=(9, 2), limits=(4, 9), requests=16, over=40, beginnings=2
            ),
            _case(
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
            _case(
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
        ),
        "When a text comes in, which tokens are kept already, and what is left to be fed and to be reserved?",
        "Begin at the length that the tables give, in feed as in admit; reserve only what is missing; let a text that "
        "was not admitted leave no reference behind.",
    ),
)
PREEMPTIVE = (
    _schedule(
        "preemptive",
        "Whoever came last gives way",
        14,
        (
            _case(
                "two, few blocks",
                Rules.PREEMPTIVE,
                pool=(4, 2),
                limits=(2, 6),
                requests=2,
                prompt=(2, 4),
                writes=(3, 4),
            ),
            _case("one at a time", Rules.PREEMPTIVE, pool=(6, 3), limits=(1, 3), requests=4, over=9),
            _case(
                "several, few blocks", Rules.PREEMPTIVE, pool=(9, 2), limits=(4, 8), requests=10, over=9, writes=(4, 9)
            ),
            _case(
                "many run", Rules.PREEMPTIVE, pool=(24, 2), limits=(8, 16), requests=14, prompt=(1, 4), writes=(9, 18)
            ),
            _case("blocks of one token", Rules.PREEMPTIVE, pool=(20, 1), limits=(4, 9), requests=9, over=12),
            _case("enough for all", Rules.PREEMPTIVE, pool=(60, 3), limits=(5, 8), requests=12, over=20),
            _case(
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
            _case(
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
            _case(
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
        ),
        "A writer finds no block: who came last of those who run, what does it hold, and where does it wait then?",
        "Try to reserve one token more for the writer; as long as that fails, let the last of those who run give way, "
        "and stop if that was the writer itself. Whoever gave way has no number and no blocks.",
    ),
)
