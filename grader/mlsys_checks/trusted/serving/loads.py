"""Loads that schedulers are driven through: requests as they are drawn and as code, and checks that play logs again."""

from __future__ import annotations

import math

import numpy as np

from mlsys_checks.sandboxed.serving import schedulers as calls
from mlsys_checks.sandboxed.serving.blocks import TABLES, ragged
from mlsys_checks.sandboxed.serving.schedulers import SCHEDULERS, WRITTEN
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.serving.pool import as_given, judge
from mlsys_checks.trusted.serving.replay import Replay, Rules

EVERY_STEP = np.array([1.0, 0.0, 0.0])
"""A clock on which each step takes a second."""


def _draw_requests(rng: np.random.Generator, case: Case) -> Arrays:
    """Requests of a case: prompts, how much each writes, when it comes, and when it is given up.

    `admits` are some that are admitted by name before the first step, never the first that waits.
    """
    p, count = case.params, case.params["requests"]
    (least, longest), (fewest, most) = p["prompt"], p["writes"]
    beginnings = [rng.integers(0, WRITTEN, longest).tolist() for _ in range(p.get("beginnings", 0))]
    prompts = []
    for _ in range(count):
        length = int(rng.integers(least, longest + 1))
        begins = beginnings[int(rng.integers(len(beginnings)))] if beginnings and rng.random() < 0.8 else []
        shared = begins[: int(rng.integers(length + 1))] if rng.random() < 0.5 else begins[:length]
        shared = beginnings[0][:length] if p.get("equal") else shared
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
        "admits": 1 + rng.choice(count - 1, p.get("admits", 0), replace=False),
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
    if len(arrays["admits"]):
        loop = "texts = [scheduler.add(one.prompt, one.writes) for one in requests]\n"
        loop += f"print([scheduler.admit(texts[i]) for i in {arrays['admits'].tolist()}])\n"
        loop += "print(scheduler.schedule().new, scheduler.running)"
    return f"{code_of_requests(arrays)}\nscheduler = {made}\n{loop}"


def check_schedules(name: str, title: str, points: float, cases: tuple[Case, ...], first_hint: str, hint: str) -> Check:
    """A check that drives a scheduler through its cases' loads, and plays the log again."""
    tables = {one for case in cases for one in TABLES[bool(case.params.get("prefix"))]}
    return Check(
        name=name,
        title=title,
        points=points,
        cases=cases,
        inputs=_draw_requests,
        run=calls.schedule,
        expect=as_given,
        compare=judge(_replay),
        first_hint=first_hint,
        hint=hint,
        uses=(*sorted(tables), "Limits", SCHEDULERS[cases[0].params["rules"]]),
        describe=_code_of_schedule,
    )


def make_case(name: str, rules: Rules, *, hidden: bool = False, **params: object) -> Case:
    """A load under some rules: prompts and answers of 1 to 9 tokens, unless `params` say otherwise."""
    return Case(name, {"rules": rules, "prompt": (1, 9), "writes": (1, 9)} | params, hidden=hidden)
