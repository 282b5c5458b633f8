"""Checks of task 6: a budget by a clock, and goodput of a policy beside that of the judge's own on the same load."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from mlsys_checks.sandboxed.serving import schedulers as calls
from mlsys_checks.sandboxed.serving.schedulers import WRITTEN
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.serving.loads import code_of_requests, code_of_tables
from mlsys_checks.trusted.serving.pool import BrokenRuleError, as_given, judge
from mlsys_checks.trusted.serving.replay import Replay, Rules

SHARE = 0.8
"""How much of the judge's own goodput is asked for."""
POOL, LIMITS = (400, 16), (12, 2000)
LINE = (5e-3, 2e-4, 2e-7)
"""A clock: seconds of a step, of a new token, of one that was kept."""
USUAL = (20, 150), (5, 20)
"""Lengths of prompts and of answers in a rush."""
PATIENT, HASTY = ({"objective": promised} for promised in ((2.0, 0.022), (0.3, 0.035)))
"""Promises: seconds to the first token, and of each further one."""
LONG, EXACT = 100, (2.0**-8, 2.0**-12, 2.0**-22)
"""A prompt and a clock: the one is read by the other in a time that is known to the last digit."""
TO_THE_LAST = {"clock": EXACT, "objective": (EXACT[0] + LONG * EXACT[1], 0.1)}
"""A promise that is kept if such a prompt is read at once and alone."""
TICK_S = 2.0**-40
"""What the clocks of `token_budget` count in, and the times of requests."""
MOST_TOKENS = 1 << 14
"""More than any chunk of a case."""


# --- token_budget -----------------------------------------------------------------------------------------------------


def _draw_budget(rng: np.random.Generator, case: Case) -> Arrays:
    """A clock in whole ticks, so that sums are exact; the memory's line binds up to the chunk `binds`, if any."""
    p, writers, past = case.params, case.params["writers"], case.params["past"]
    least, most = np.array([(1e-3, 2e-5, 1e-8), (4e-3, 4e-5, 4e-8)]) / TICK_S
    compute = rng.integers(least.astype(int), most.astype(int))
    memory = compute // (1, 20, 1) * (0, 1, 3)
    if binds := p.get("binds", 0):
        memory[0] = (compute - memory) @ (1, writers + binds, writers * past)
    pair = int(p.get("pair_s", 0) / TICK_S)
    drawn = {"clocks": np.array([compute, memory]) * TICK_S, "pair_s": np.array(pair * TICK_S)}
    drawn |= {"asked": np.array([writers, past])}
    if p.get("late"):
        return drawn | {"tpot_s": np.array(_seconds(drawn, 1) * 0.9)}
    last, beyond = (_seconds(drawn, p["chunk"] + more) for more in (0, 1))
    if p.get("short"):
        return drawn | {"tpot_s": beyond - TICK_S}
    return drawn | {"tpot_s": np.array(last if p.get("exact") else last + (beyond - last) * rng.uniform(0.2, 0.8))}


def _seconds(arrays: Arrays, chunk: int | np.ndarray, wider: int = 0, longer: int = 0) -> np.ndarray:
    """Seconds of a step by the case's clock, for a chunk or for each of several, with more writers or past."""
    writers, past = (arrays["asked"] + (wider, longer)).tolist()
    lines = (step + token * (writers + chunk) + cached * writers * past for step, token, cached in arrays["clocks"])
    pairs = writers * (past + 1) + chunk * (chunk + 1) // 2
    return np.asarray(np.maximum(*lines) + float(arrays["pair_s"]) * pairs)


def _expect_budget(arrays: Arrays) -> Arrays:
    writers, expected = int(arrays["asked"][0]), {}
    for name, (factor, wider, longer, part) in calls.ASKED.items():
        seconds = factor * _seconds(arrays, np.arange(1, MOST_TOKENS), wider, longer)
        expected[name] = np.array(writers + wider + max(1, int((seconds <= part * arrays["tpot_s"]).sum())))
    return expected


def _code_of_budget(arrays: Arrays) -> str:
    compute, memory = (f"Clock(*{line})" for line in arrays["clocks"].tolist())
    (writers, past), tpot_s = arrays["asked"].tolist(), float(arrays["tpot_s"])
    names = {1: "clock", 2: "slow"}
    turns = [(names[factor], writers + n, past + more, part * tpot_s) for factor, n, more, part in calls.ASKED.values()]
    return "\n".join(
        [
            f"compute_s, memory_s = {compute}, {memory}",
            "def clock(parts):",
            "    pairs = sum(new * past + new * (new + 1) // 2 for new, past in parts)",
            f"    return max(compute_s(parts), memory_s(parts)) + {float(arrays['pair_s'])} * pairs",
            "def slow(parts): return 2 * clock(parts)",
            *(f"print(token_budget({', '.join(map(str, turn))}))" for turn in turns),
        ]
    )


# --- promise ----------------------------------------------------------------------------------------------------------


def _draw_load(rng: np.random.Generator, case: Case) -> Arrays:
    """Requests at random times, in phases: how many, how many a second, lengths of prompts, and of answers.

    Times are whole ticks, so that they add up exactly on a clock in ticks.
    """
    p = case.params
    gaps = np.concatenate([rng.exponential(1 / rate, count) for count, rate, _, _ in p["phases"]])
    lengths = np.concatenate([rng.integers(prompt[0], prompt[1], count) for count, _, prompt, _ in p["phases"]])
    writes = np.concatenate([rng.integers(answer[0], answer[1], count) for count, _, _, answer in p["phases"]])
    return {
        "scheduler": np.array(Rules.FREE.value),
        "prefix": np.array(True),
        "pool": np.array(POOL),
        "limits": np.array(LIMITS),
        "clock": np.array(p.get("clock", LINE)),
        "objective": np.array(p["objective"]),
        "prompts": rng.integers(0, WRITTEN, int(lengths.sum())),
        "lengths": lengths,
        "writes": writes,
        "comes_s": np.round((p.get("from_s", 0.0) + np.cumsum(gaps)) / TICK_S) * TICK_S,
        "leaves_s": np.full(len(gaps), math.inf),
        "admits": np.array([], dtype=np.int64),
        "most_steps": np.array(4 * int(lengths.sum() + writes.sum())),
    }


def good_of(asked: Arrays, times_s: list[list[float]]) -> int:
    """How many requests got what was promised, by the times of their tokens."""
    ttft_s, tpot_s = asked["objective"].tolist()
    good = 0
    for comes_s, times in zip(asked["comes_s"].tolist(), times_s, strict=True):
        mean_s = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
        good += times[0] - comes_s <= ttft_s and mean_s <= tpot_s
    return good


def serve(asked: Arrays) -> list[list[float]]:
    """Times of tokens by the judge's own policy, on boundless memory: late ones last, short prompts first."""
    (step_s, token_s, cached_s), (ttft_s, tpot_s) = asked["clock"].tolist(), asked["objective"].tolist()
    sequences, now_s = int(asked["limits"][0]), 0.0
    prompt, writes, comes_s = (asked[name].tolist() for name in ("lengths", "writes", "comes_s"))
    kept, times_s = [0] * len(prompt), [list[float]() for _ in prompt]
    left, running = [*range(len(prompt))], list[int]()
    while left or running:
        if not running:
            now_s = max(now_s, comes_s[left[0]])
        writers = [i for i in running if times_s[i]]
        cached = sum(kept[i] for i in writers)
        budget = int((tpot_s - step_s - cached_s * cached) / token_s) - len(writers)
        budget = max(budget, sequences - len(writers))
        new = dict.fromkeys(writers, 1)
        here = [i for i in left if comes_s[i] <= now_s]
        here.sort(key=lambda i: (now_s + step_s + token_s * prompt[i] > comes_s[i] + ttft_s, prompt[i]))
        for i in [*(i for i in running if not times_s[i]), *here]:
            if not budget or (i in left and len(running) == sequences):
                break
            if i in left:
                left.remove(i)
                running.append(i)
            new[i] = min(prompt[i] - kept[i], budget)
            budget -= new[i]
        now_s += step_s + token_s * sum(new.values()) + cached_s * sum(kept[i] for i in new)
        for i, count in new.items():
            kept[i] += count
            if kept[i] >= prompt[i]:
                times_s[i].append(now_s)
        running = [i for i in running if len(times_s[i]) < writes[i]]
    return times_s


def _replay(got: Arrays, asked: Arrays) -> None:
    world = Replay(asked)
    world.play(got)
    good, own = good_of(asked, world.times_s), good_of(asked, serve(asked))
    if good < SHARE * own:
        ttft_s, tpot_s = asked["objective"].tolist()
        first = sum(times[0] - comes <= ttft_s for times, comes in zip(world.times_s, asked["comes_s"], strict=True))
        gaps = [after - before for times in world.times_s for before, after in pairwise(times)]
        over = sum(gap > tpot_s for gap in gaps) / max(1, len(gaps))
        what = f"too few requests get what was promised: {first} their first token in time, {over:.0%} of gaps too long"
        raise BrokenRuleError(what, f"{good} of {len(world.times_s)}", f"{math.ceil(SHARE * own)}")


def _code_of_load(arrays: Arrays) -> str:
    made = f"PromisedScheduler({code_of_tables(arrays)}, Limits(*{LIMITS}), clock, objective)"
    clock, objective = (tuple(arrays[name].tolist()) for name in ("clock", "objective"))
    return "\n".join(
        [
            code_of_requests(arrays),
            f"clock, objective = Clock(*{clock}), Objective(*{objective})",
            f"steps, times_s = drive({made}, requests, clock)",
            "for one, times in zip(requests, times_s):",
            "    gap_s = (times[-1] - times[0]) / max(1, len(times) - 1)",
            '    print(f"first token after {times[0] - one.comes_s:.3f} s, one every {gap_s:.4f} s")',
        ]
    )


CHECKS = (
    Check(
        name="token_budget",
        title="A budget by the clock",
        points=3,
        cases=(
            Case("a few writers", {"writers": 4, "past": 100, "chunk": 37}),
            Case("nobody writes", {"writers": 0, "past": 0, "chunk": 12}),
            Case("to the very end", {"writers": 6, "past": 300, "chunk": 75, "exact": True}),
            Case("attention costs time", {"writers": 60, "past": 900, "chunk": 200, "pair_s": 5e-9, "exact": True}),
            Case("a step too long anyway", {"writers": 9, "past": 50, "late": True}),
            Case("memory binds at first", {"writers": 30, "past": 500, "chunk": 90, "binds": 30}),
            Case("one token more", {"writers": 3, "past": 0, "chunk": 1}),
            Case("one token more, to the very end", {"writers": 5, "past": 40, "chunk": 1, "exact": True}),
            Case("a power of two, to the very end", {"writers": 7, "past": 60, "chunk": 64, "exact": True}),
            Case("one tick short of a power of two", {"writers": 4, "past": 90, "chunk": 63, "short": True}),
            Case("one tick short of one more", {"writers": 8, "past": 150, "chunk": 50, "short": True}),
            Case("one tick short of any", {"writers": 60, "past": 3, "chunk": 0, "short": True}),
            Case("time for a whole book", {"writers": 1, "past": 20, "chunk": 9000}),
            Case("a large chunk", {"writers": 17, "past": 300, "chunk": 1500, "pair_s": 2e-9}, hidden=True),
        ),
        inputs=_draw_budget,
        run=calls.token_budget,
        expect=_expect_budget,
        compare=close,
        first_hint="Ask the clock for your answer, and for one token more: which of the two lasts too long?",
        hint="A step has a part for each writer, and one for the chunk; let the chunk grow until the clock says too "
        "much, and go back by one. The budget counts the writers' tokens as well.",
        uses=("Clock", "token_budget"),
        describe=_code_of_budget,
    ),
    Check(
        name="promise",
        title="Goodput on loads not seen before",
        points=9,
        cases=(
            Case("long prompts among those who write", {"phases": [(28, 30, (20, 400), (15, 40))]} | PATIENT),
            Case("a rush", {"phases": [(90, 70, *USUAL)]} | HASTY),
            Case("a rush, then calm", {"phases": [(110, 50, *USUAL), (20, 25, *USUAL)]} | HASTY),
            Case("a rush of short prompts and long ones", {"phases": [(90, 90, (10, 400), (3, 8))]} | HASTY),
            Case(
                "a crowd with short prompts, then calm with longer ones",
                {"phases": [(150, 2000, (40, 60), (2, 8)), (60, 25, (60, 110), (2, 8))], "from_s": 2.0} | HASTY,
            ),
            Case("steps are too long anyway", {"phases": [(30, 30, (20, 150), (1, 3))], "objective": (2.0, 0.004)}),
            Case("in time to the last moment", {"phases": [(12, 2, (LONG, LONG + 1), (2, 9))]} | TO_THE_LAST),
            Case(
                "a rush of long prompts",
                {"phases": [(60, 60, (20, 260), (5, 30))], "objective": (0.5, 0.03)},
                hidden=True,
            ),
        ),
        inputs=_draw_load,
        run=calls.schedule,
        expect=as_given,
        compare=judge(_replay),
        first_hint="Which of the two promises is broken more often: the first token's, or the mean gap's?",
        hint="Gaps: let token_budget set the budget of each step by those who write in it. First tokens: order those "
        "who wait, first by whether they can still be in time, then by what they cost the others.",
        uses=("Clock", "Limits", "Objective", "PrefixBlocks", "PrefixTables", "PromisedScheduler"),
        describe=_code_of_load,
    ),
)
