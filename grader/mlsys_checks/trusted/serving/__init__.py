"""Checks of lab 11: names, points, hints, and the ranges from which cases are drawn.

generators   cases (scripts of calls, workloads of requests), oracles of functions
replay       reference pool, block tables and schedulers, on which the learner's logs are replayed
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlsys_checks.sandboxed import serving as calls
from mlsys_checks.sandboxed.spec import Case, Check, Lab, Range, Run, draw_cases
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.logs import check_log
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.serving import generators, replay


def _run(run: Run) -> dict[str, Any]:
    """Return `run` of a check, and code that prints each of its calls or steps in a notebook."""
    code = f"from mlsys_checks.sandboxed import serving\n\nserving.print_run(serving.{run.__name__}, globals(), given)"
    return {"run": run, "snippet": code}


def _function(run: Run, inputs: Any, expect: Any) -> dict[str, Any]:
    """Return both sides of a check that compares results of a function."""
    return {"inputs": inputs, "expect": expect, "compare": close, **_run(run)}


def _make_pool_check(pool: str, large_case: dict[str, int], **check_fields: Any) -> Check:
    sizes = {"pool": pool, "num_blocks": Range(1, 12), "calls": Range(20, 150)}
    sizes |= {"cached": Range(0, 1)} if pool == "PrefixBlockPool" else {}
    cases = (
        Case("a few calls", {**sizes, "num_blocks": 3, "calls": 12}),
        Case("one block", {**sizes, "num_blocks": 1, "calls": 40}),
        Case("very many blocks: too many for a search", {"pool": pool, "large": True, **large_case}),
        *draw_cases(sizes, public=4, hidden=2, num_blocks=Range(2, 30), calls=Range(200, 500)),
    )
    check_fields |= {"inputs": generators.draw_pool_script, "uses": (pool,), "time_limit_s": 4.0}
    return check_log(replay.replay_script, cases=cases, **_run(calls.run_script), **check_fields)


def _make_manager_check(manager: str, *, situations: dict[str, Any], **check_fields: Any) -> Check:
    sizes = {"manager": manager, "num_blocks": Range(2, 14), "block_size": Range(1, 4), "sequences": Range(1, 6)}
    sizes |= {"longest": Range(1, 24), "calls": Range(60, 160)}
    few = {"num_blocks": 6, "block_size": 3, "sequences": 2, "longest": 9, "calls": 20}
    larger = {"num_blocks": Range(30, 99), "sequences": Range(8, 12), "longest": Range(9, 60), "calls": Range(200, 300)}
    cases = (
        *(Case(name, {**sizes, **of_kind}) for name, of_kind in {"a few calls": few, **situations}.items()),
        *draw_cases(sizes, public=8, hidden=2, **larger),
    )
    check_fields |= {"inputs": generators.draw_manager_script, "uses": ("Sequence", manager)}
    return check_log(replay.replay_script, cases=cases, **_run(calls.run_script), **check_fields)


DEFAULT_WORKLOAD = {
    "block_size": Range(1, 4),
    "requests": Range(1, 24),
    "prompt": Range(1, 12),
    "output": Range(1, 12),
    "memory": Range(0, 15),
    "seqs": Range(1, 9),
    "budget": Range(0, 10),
    "prefixes": Range(0, 2),
    "over": Range(0, 40),
    "aborted": Range(0, 5),
}
"""Ranges of a workload's parameters; see `generators.draw_workload`."""
LARGER = {"requests": Range(20, 50), "prompt": Range(1, 30), "seqs": Range(2, 24)}
ALL_AT_ONCE = {"over": 0, "aborted": 0}
"""Requests that arrive at once, none of them aborted."""
CROWD = {**ALL_AT_ONCE, "requests": 40, "seqs": Range(18, 24), "memory": 12, "budget": 60}
FEW = {**ALL_AT_ONCE, "requests": 3, "prompt": 6, "output": 6, "memory": 8, "seqs": 2}
BLOCKED = {**FEW, "requests": 4, "prompt": 9, "memory": 5, "seqs": 4, "block_size": 2, "equal": 1, "small_last": 1}
"""The second request has no room; the last one, of a single token, would have."""
AMPLE_BLOCKS = {**ALL_AT_ONCE, "seqs": 4, "memory": 30}
DECODING = {**ALL_AT_ONCE, "requests": 24, "seqs": Range(8, 12), "budget": 60, "memory": Range(2, 4), "equal": 1}
DECODING |= {"prompt": 4, "output": 16}
PREFILLING = {**ALL_AT_ONCE, "requests": 24, "seqs": 3, "budget": Range(0, 1), "memory": Range(3, 4), "prefixes": 0}
PREFILLING |= {"prompt": 14, "output": 12}
SITUATIONS = {
    "one request takes all memory": {"requests": Range(3, 12), "memory": 0, "prompt": 9, "output": 1, "aborted": 0},
    **{f"many decode, {size} tokens a block": {**DECODING, "block_size": size} for size in (1, 2, 4)},
    **{f"a prompt is computed, {size} tokens a block": {**PREFILLING, "block_size": size} for size in (1, 2, 3)},
}
"""Parameters of workloads that run out of blocks in rare ways."""


def _make_schedule_check(
    scheduler: str, sizes: dict[str, Any], situations: dict[str, Any], **check_fields: Any
) -> Check:
    """Return a check that replays a scheduler under workloads; `sizes` and `situations` override DEFAULT_WORKLOAD."""
    workload = {"scheduler": scheduler, "manager": "BlockManager", **DEFAULT_WORKLOAD, **sizes}
    check_fields |= {"inputs": generators.draw_workload, "uses": (workload["manager"], "SchedulerConfig", scheduler)}
    cases = (
        *(Case(name, {**workload, **of_kind}) for name, of_kind in {"three requests": FEW, **situations}.items()),
        *draw_cases(workload, public=8, hidden=2, **LARGER),
        Case("many at once", {**workload, **CROWD}, hidden=True),
    )
    return check_log(replay.replay_schedule, cases=cases, **_run(calls.run_scheduler), **check_fields)


SINGLE = {"num_blocks": 12, "block_size": Range(2, 4), "sequences": 2, "longest": 12, "single": 1}
BURST_LENGTHS = (20, 150), (5, 20)
"""Ranges of prompt tokens and of output tokens in a burst."""


def _make_load(name: str, ttft_s: float, tpot_s: float, *phases: Any, **fields: Any) -> Case:
    """Return a case with objectives; a phase has requests, requests per second, ranges of prompt and output tokens."""
    return Case(name, {"step_time": (5e-3, 2e-4, 2e-7), "slo": (ttft_s, tpot_s), "phases": phases, **fields})


EXACT_STEP_TIME = (2.0**-8, 2.0**-12, 2.0**-22)
"""Seconds per step, per new token and per computed token, in powers of two, so that sums are exact."""
TTFT_OF_100_S = EXACT_STEP_TIME[0] + 100 * EXACT_STEP_TIME[1]
"""TTFT that a prompt of 100 tokens meets exactly if it is prefilled in one step, alone."""
LOADS = (
    _make_load("long prompts among decodes", 2.0, 0.022, (28, 30, (20, 400), (15, 40))),
    _make_load("a burst", 0.3, 0.035, (90, 70, *BURST_LENGTHS)),
    _make_load("a burst, then calm", 0.3, 0.035, (110, 50, *BURST_LENGTHS), (20, 25, *BURST_LENGTHS)),
    _make_load("a burst of short and long prompts", 0.3, 0.035, (90, 90, (10, 400), (3, 8))),
    _make_load("short prompts, then longer", 0.3, 0.035, (150, 2000, (40, 60), (2, 8)), (60, 25, (60, 110), (2, 8))),
    _make_load("steps are too long anyway", 2.0, 0.004, (30, 30, (20, 150), (1, 3))),
    _make_load(
        "in time to the last moment", TTFT_OF_100_S, 0.1, (12, 2, (100, 101), (2, 9)), step_time=EXACT_STEP_TIME
    ),
    replace(_make_load("a burst of long prompts", 0.5, 0.03, (60, 60, (20, 260), (5, 30))), hidden=True),
)

CHECKS = (
    _make_pool_check(
        "BlockPool",
        {"num_blocks": 300_000, "held": 30_000, "calls": 6000},
        name="blocks",
        title="Block pool",
        points=8,
        first_hint="Which list says how many references a block has, and which says what is free? Do they always "
        "agree?",
        hint="allocate takes any free block without a search and sets its count to 1; free puts it back only when its "
        "count has dropped to 0.",
    ),
    _make_manager_check(
        "BlockManager",
        situations={"a token at a time": SINGLE},
        name="tables",
        title="Block tables",
        points=10,
        first_hint="How many blocks does the sequence have, and how many does it need? And what has changed after a "
        "False?",
        hint="Compute how many blocks are missing, at least 0, before you allocate any. Compare that and the reserved "
        "blocks with what is free.",
    ),
    _make_schedule_check(
        "Scheduler",
        {"budget": Range(0, 3)},
        {
            "admitted by name": {**AMPLE_BLOCKS, "requests": 6, "budget": 0, "admits": 2},
            "a small request behind a large one": BLOCKED,
            "equal prompts": {**AMPLE_BLOCKS, "requests": 12, "prompt": 3, "output": 5, "equal": 1, "prefixes": 1},
        },
        name="continuous",
        title="Continuous batching",
        points=14,
        first_hint="Write down for one step which sequences run, how many of their tokens are pending, and how many "
        "blocks are free. Which sequence may be admitted?",
        hint="Schedule all pending tokens of running sequences; then admit the first waiting sequence while a slot is "
        "left and blocks for all but its last token can be allocated.",
    ),
    _make_schedule_check(
        "ChunkedScheduler",
        {"prompt": Range(1, 24), "budget": Range(0, 6)},
        {"room for all": {**AMPLE_BLOCKS, "requests": 16, "prompt": 9, "output": 9, "budget": 6}},
        name="chunked",
        title="Chunked prefill",
        points=14,
        first_hint="For one step: which sequences have one pending token, what is left of the budget after them, and "
        "which is next?",
        hint="The budget left is the limit less the tokens scheduled so far. A prompt gets the smaller of that and "
        "its pending tokens; a waiting sequence is admitted only while some budget is left.",
    ),
    Check(
        **_function(calls.run_steps_to_first, generators.draw_steps, generators.expect_steps),
        uses=("steps_to_first",),
        name="steps_to_first",
        title="Steps until the first token",
        points=3,
        cases=(Case("small numbers", {"size": 9}), *draw_cases({"size": Range(20, 60)}, public=1, hidden=1)),
        first_hint="What do the decoding sequences leave of each step, and what about a last chunk that is not full?",
        hint="Divide the prompt by what is left of each step, and round up.",
    ),
    Check(
        **_function(calls.run_hash_blocks, generators.draw_hashes, generators.expect_hashes),
        uses=("hash_blocks",),
        name="keys",
        title="Hashes of prefixes",
        points=3,
        cases=(
            Case("blocks of two", {"block_size": 2, "blocks": 3}),
            Case("nearly alike", {"block_size": 4, "blocks": 1, "near": True}),
            Case("one long prompt, twice", {"block_size": 1, "blocks": 1500, "alone": True}),
            *draw_cases(
                {"block_size": Range(1, 24), "blocks": Range(1, 5), "more": Range(0, 23), "vocabulary": 2},
                public=4,
                hidden=1,
                vocabulary=30_000,
            ),
        ),
        first_hint="Two sequences have the same block after different prefixes: are its hashes different?",
        hint="Go through the full blocks only; each hash is made of the hash before it and the tokens of its block.",
    ),
    _make_pool_check(
        "PrefixBlockPool",
        {"num_blocks": 30_000, "calls": 12_000, "cached": 1},
        name="prefix_blocks",
        title="Cached blocks",
        points=7,
        first_hint="Of each block: has it a reference, has it a hash, can it be evicted, and in which order?",
        hint="A cached block without references waits in the order in which it was freed. touch takes it out of that "
        "order; allocate takes its hash from it. Dictionaries do all of this without a search.",
    ),
    _make_manager_check(
        "PrefixBlockManager",
        situations={
            "the first block is evicted": {"num_blocks": Range(8, 14), "longest": Range(4, 12), "evicted": True},
            "repeated prompts": {"num_blocks": 60, "block_size": Range(2, 4), "longest": Range(9, 20), "calls": 120},
        },
        name="prefixes",
        title="Block tables with a prefix cache",
        points=8,
        first_hint="A prompt is cached up to its last token: what does it start with? When does a block become cached?",
        hint="Look the hashes up one after the other, touch what is found, stop at the first miss, and leave the last "
        "token out. Cache only blocks that have filled up since the last call.",
    ),
    _make_schedule_check(
        "ChunkedScheduler",
        {"manager": "PrefixBlockManager", "prefixes": Range(1, 3)},
        {},
        name="shared",
        title="Scheduling with a prefix cache",
        points=7,
        first_hint="When a sequence is admitted, which of its tokens are computed already, and how many blocks are "
        "still to be allocated?",
        hint="Start from the tokens that the cache holds, when you admit and when you schedule; allocate only what is "
        "missing; a sequence that is not admitted must drop its references.",
    ),
    _make_schedule_check(
        "PreemptiveScheduler",
        {"manager": "PrefixBlockManager", "memory": Range(0, 7), "output": Range(4, 18)},
        {"admitted by name": {**AMPLE_BLOCKS, "requests": 8, "budget": 60, "admits": 1}, **SITUATIONS},
        name="preemptive",
        title="Preemption",
        points=14,
        first_hint="A decoding sequence finds no block: which running sequence arrived last, what does it hold, and "
        "where does it wait then?",
        hint="Try to allocate a block for the decoding sequence; while that fails, preempt the last running one, and "
        "stop if that was the decoding sequence itself.",
    ),
    Check(
        **_function(calls.run_token_budget, generators.draw_budgets, generators.expect_budgets),
        uses=("StepTime", "token_budget"),
        name="token_budget",
        title="Token budget of a step",
        points=3,
        cases=(
            Case("a few decodes", {"decodes": 4, "past": 100, "chunk": 37}),
            Case("a long prompt", {"decodes": 1, "past": 20, "chunk": 6000}),
            *draw_cases({"decodes": 12, "past": 500, "chunk": 100}, public=2, hidden=1, decodes=60, chunk=300),
        ),
        first_hint="Ask step_time about your answer, and about one token more: which of the two takes too long?",
        hint="A step has a part for each decoding sequence, and one for the chunk. Let the chunk grow until the step "
        "takes too long, then go back by one. The budget counts the decodes as well.",
    ),
    check_log(
        replay.replay_goodput,
        name="promise",
        title="Goodput on unseen loads",
        points=9,
        cases=LOADS,
        inputs=generators.draw_poisson_workload,
        **_run(calls.run_scheduler),
        first_hint="Which of the two objectives is missed more often, TTFT or TPOT?",
        hint="TPOT: let token_budget set the budget of each step. TTFT: order the waiting sequences, first by whether "
        "they can still be in time, then by the length of their prompts.",
        uses=("BlockManager", "SchedulerConfig", "SLO", "SLOScheduler", "StepTime"),
    ),
)
LAB = Lab("serving", repeat_first_case(CHECKS))
