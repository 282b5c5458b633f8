"""Interactive figure of continuous batching: arriving requests, a token budget, and the steps of the scheduler.

The figure reimplements `inference.engine.Scheduler` and its block manager in JavaScript; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import anywidget
import traitlets

from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.inference.engine import BlockManager, Scheduler, SchedulerConfig
from mlsys_lab.inference.engine import Sequence as EngineSequence
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table


class RequestKind(NamedTuple):
    """Requests with equal token counts and priority, whose prompts share a prefix of `num_shared_tokens`."""

    num_prompt_tokens: int
    num_output_tokens: int
    priority: int = 0
    num_shared_tokens: int = 0


KINDS = {
    "question": RequestKind(3, 6),
    "document": RequestKind(14, 4, num_shared_tokens=8),
    "urgent": RequestKind(3, 3, priority=1),
}
NUM_BLOCKS, BLOCK_SIZE, MAX_NUM_SEQS = 9, 4, 4
MAX_REQUESTS, MAX_TOKEN_BUDGET = 10, 16
INITIAL_ARRIVALS = ((0, "question"), (0, "document"), (1, "question"), (3, "document"), (4, "urgent"))
"""Requests of the initial figure: the step after which each arrives, and its kind."""


def scheduler_data(
    arrivals: Iterable[tuple[int, str]] = INITIAL_ARRIVALS, *, token_budget: int = 6, step: int = 0
) -> dict[str, Any]:
    """Data of the figure: requests as (step after which it arrives, kind), tokens per step, and the step shown.

    InputError for an unknown kind, too many requests, and a budget below one token for each running sequence.
    """
    given = sorted(arrivals, key=lambda one: one[0])
    for at, kind in given:
        if kind not in KINDS:
            near = did_you_mean(kind, KINDS)
            raise InputError("unknown kind of request", got=kind, expected=", ".join(KINDS), help=near)
        if at < 0:
            raise InputError("a request arrives after a step", got=at, expected="0 or more")
    if len(given) > MAX_REQUESTS or token_budget not in range(MAX_NUM_SEQS, MAX_TOKEN_BUDGET + 1):
        got, expected = (
            f"{len(given)} requests, {token_budget} tokens",
            f"up to {MAX_REQUESTS}, {MAX_NUM_SEQS} to {MAX_TOKEN_BUDGET}",
        )
        raise InputError("not supported by the figure", got=got, expected=expected)
    return {
        "kinds": {name: kind._asdict() for name, kind in KINDS.items()},
        "num_blocks": NUM_BLOCKS,
        "block_size": BLOCK_SIZE,
        "max_num_seqs": MAX_NUM_SEQS,
        "arrivals": [[at, kind] for at, kind in given],
        "token_budget": token_budget,
        "step": step,
    }


def run_scheduler(arrivals: Sequence[tuple[int, str]], token_budget: int) -> list[dict[str, Any]]:
    """Run the package's scheduler on the requests; returns its state before the first step and after each.

    Requests are named by letters in order of arrival. A state lists the requests `waiting` and `running` in scheduling
    order, those `preempted` and `finished` in the step, the step's `num_scheduled_tokens` and new `num_cached_tokens`
    by request, `num_computed_tokens` of the running ones, and the requests that use each block (`owners`).
    """
    scheduler = Scheduler(BlockManager(NUM_BLOCKS, BLOCK_SIZE), SchedulerConfig(MAX_NUM_SEQS, token_budget))
    names: dict[EngineSequence, str] = {}
    pending = sorted(arrivals, key=lambda one: one[0])
    states: list[dict[str, Any]] = []
    while True:
        scheduled: dict[str, int] = {}
        cached: dict[str, int] = {}
        preempted: list[str] = []
        finished: list[str] = []
        if states:
            cached_before = {seq: seq.num_cached_tokens for seq in names}
            output = scheduler.schedule()
            scheduled = {names[seq]: n for seq, n in output.num_scheduled_tokens.items()}
            newly_cached = {seq: seq.num_cached_tokens - before for seq, before in cached_before.items()}
            cached = {names[seq]: n for seq, n in newly_cached.items() if n}
            preempted = [names[seq] for seq in output.preempted]
            scheduler.update_from_output(output, [[0]] * len(output.sampled))
            for seq in output.sampled:
                if seq.num_output_tokens == seq.max_tokens:
                    scheduler.finish(seq)
                    finished.append(names[seq])
        while pending and pending[0][0] <= len(states):
            _, kind = pending.pop(0)
            prompt = _prompt(KINDS[kind], len(names))
            seq = scheduler.add(prompt, KINDS[kind].num_output_tokens, priority=KINDS[kind].priority)
            names[seq] = chr(ord("A") + len(names))
        running = {names[seq]: seq for seq in scheduler.running}
        states.append(
            {
                "waiting": [names[seq] for seq in scheduler.waiting],
                "running": list(running),
                "preempted": preempted,
                "finished": finished,
                "num_scheduled_tokens": scheduled,
                "num_cached_tokens": cached,
                "num_computed_tokens": {name: seq.num_computed_tokens for name, seq in running.items()},
                "owners": [
                    "".join(name for name, seq in running.items() if block in seq.block_table)
                    for block in range(NUM_BLOCKS)
                ],
            }
        )
        if scheduler.is_idle and not pending:
            return states


def _prompt(kind: RequestKind, number: int) -> list[int]:
    """Token ids of a prompt: the shared prefix of its kind, then its own."""
    return [-1 - i if i < kind.num_shared_tokens else 100 * (number + 1) + i for i in range(kind.num_prompt_tokens)]


def scheduler_table(data: Mapping[str, Any]) -> str:
    """Table of the steps, for pages without JavaScript."""
    rows = []
    for step, state in enumerate(run_scheduler(data["arrivals"], data["token_budget"])[1:], start=1):
        scheduled = ", ".join(f"{name} {count}" for name, count in state["num_scheduled_tokens"].items())
        groups = (" ".join(state[group]) or "–" for group in ("preempted", "finished", "waiting"))
        rows.append((step, scheduled, *groups, sum(map(bool, state["owners"]))))
    return table(("step", "scheduled tokens", "preempted", "finished", "waiting", "blocks in use"), rows)


class SchedulerSteps(anywidget.AnyWidget):
    """Notebook figure to which requests can be added: `SchedulerSteps.of([(0, "document")], token_budget=8)`."""

    _esm = esm("scheduler")
    kinds: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    num_blocks = traitlets.Int().tag(sync=True)
    block_size = traitlets.Int().tag(sync=True)
    max_num_seqs = traitlets.Int().tag(sync=True)
    arrivals: traitlets.List[Any] = traitlets.List().tag(sync=True)
    token_budget = traitlets.Int().tag(sync=True)
    step = traitlets.Int().tag(sync=True)

    @classmethod
    def of(cls, arrivals: Iterable[tuple[int, str]] = INITIAL_ARRIVALS, **options: Any) -> Self:
        """Figure with these requests; `options` are keyword arguments of `scheduler_data`."""
        return cls(**scheduler_data(arrivals, **options))
