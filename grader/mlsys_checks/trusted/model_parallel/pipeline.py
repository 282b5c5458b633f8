"""Checks of task 3: a schedule, played by the judge, and a stage that carries out actions. Oracle: NumPy, in one piece.

A schedule is right if it ends in time and keeps little, whatever its order. That a rank lets go of what has gone back
is counted: hidden activations are far wider than what a stage receives and sends.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from mlsys_checks.sandboxed.model_parallel import pipeline as calls
from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.model_parallel.tensor import ITEM, SPLIT, draw
from mlsys_checks.trusted.traffic import check_ranks, expect_ranks

FORWARD, BACKWARD = 0, 1
DURATIONS = ((1.0, 2.0), (2.0, 1.0), (1.0, 1.0))
"""Seconds of a forward and a backward pass with which a schedule is played."""
ROUNDING = 1e-9
Orders = list[list[tuple[int, int]]]


def play(orders: Orders, seconds: tuple[float, float]) -> tuple[float, list[int]]:
    """When the last action ends, or infinity where stages wait for each other; micro-batches that each stage keeps."""
    p = len(orders)
    ends: dict[tuple[int, int, int], float] = {}
    free, at, kept, most = [0.0] * p, [0] * p, [0] * p, [0] * p
    moved = True
    while moved:
        moved = False
        for r, order in enumerate(orders):
            while at[r] < len(order):
                kind, i = order[at[r]]
                source = r - 1 if kind == FORWARD else r + 1
                needs = [(kind, i, source)] if 0 <= source < p else []
                needs += [(FORWARD, i, r)] if kind == BACKWARD else []
                if any(need not in ends for need in needs):
                    break
                free[r] = max([free[r], *(ends[need] for need in needs)]) + seconds[kind]
                ends[kind, i, r] = free[r]
                kept[r] += 1 if kind == FORWARD else -1
                most[r] = max(most[r], kept[r])
                at[r] += 1
                moved = True
    done = all(place == len(order) for place, order in zip(at, orders, strict=True))
    return (max(free) if done else float("inf")), most


def _draw_sizes(rng: np.random.Generator, case: Case) -> Arrays:
    del rng
    return {"p": np.array(case.params["p"]), "m": np.array(case.params["m"])}


def _expect_limits(arrays: Arrays) -> Arrays:
    p, m = int(arrays["p"]), int(arrays["m"])
    ends = [(m + p - 1) * (forward_s + backward_s) for forward_s, backward_s in DURATIONS]
    return {"m": np.array(m), "ends": np.array(ends), "kept": np.array([min(p - r, m) for r in range(p)])}


def _compare_schedules(got: Arrays, expected: Arrays) -> Mismatch | None:
    m = int(expected["m"])
    orders: Orders = [[(kind, i) for kind, i in got[f"stage {r}"].tolist()] for r in range(len(expected["kept"]))]
    each = [(kind, i) for kind in (FORWARD, BACKWARD) for i in range(m)]
    for r, order in enumerate(orders):
        if sorted(order) != each:
            wanted = f"{m} micro-batches, each forward once and backward once"
            return Mismatch(f"stage {r} has other actions than its own", f"{len(order)} actions", wanted)
    for seconds, end_s in zip(DURATIONS, expected["ends"].tolist(), strict=True):
        end, kept = play(orders, seconds)
        if end == float("inf"):
            return Mismatch("the stages wait for each other, and the step never ends", "no end", f"{end_s:g} s")
        for r, (most, limit) in enumerate(zip(kept, expected["kept"].tolist(), strict=True)):
            if most > limit:
                return Mismatch(f"stage {r} keeps too much", f"{most} micro-batches", f"at most {limit}")
        if end > end_s * (1 + ROUNDING):
            times = f"forward {seconds[0]:g} s, backward {seconds[1]:g} s"
            return Mismatch(f"the bubble is too large ({times})", f"ends after {end:g} s", f"after {end_s:g} s")
    return None


# --- carried out ------------------------------------------------------------------------------------------------------

HIDDEN = 1200
"""Hidden columns of the case in which memory counts: 38,400 bytes for each micro-batch of its four rows."""
BUDGET_BYTES = 340_000
"""Room for a stage's weights and gradients (38 KB), two micro-batches in flight and as much for work on one: 194 KB
with 1F1B. Whoever goes forward with all sixteen first holds more than 600 KB."""


def _one_forward_one_backward(p: int, m: int) -> Orders:
    """Forward passes as long as there is room for min(p - r, m), else a backward pass."""
    orders: Orders = []
    for r in range(p):
        order: list[tuple[int, int]] = []
        done = [0, 0]
        while done[BACKWARD] < m:
            room = done[FORWARD] < m and done[FORWARD] - done[BACKWARD] < min(p - r, m)
            kind = FORWARD if room else BACKWARD
            order.append((kind, done[kind]))
            done[kind] += 1
        orders.append(order)
    return orders


def _orders(kind: str, p: int, m: int) -> Orders:
    forward = [(FORWARD, i) for i in range(m)]
    backward = [(BACKWARD, i) for i in range(m)]
    if kind == "1F1B":
        return _one_forward_one_backward(p, m)
    if kind == "turned":  # micro-batches begin in the middle
        return [[(kind, (i + m // 2) % m) for kind, i in order] for order in _one_forward_one_backward(p, m)]
    if kind == "mixed":  # early stages as in GPipe, the last as early as can be
        return [forward + backward] * (p - 1) + _one_forward_one_backward(p, m)[-1:]
    return [forward + (backward if kind == "GPipe" else backward[::-1])] * p


def _draw_stages(rng: np.random.Generator, case: Case) -> Arrays:
    widths, m, hidden = case.params["widths"], case.params["m"], case.params.get("hidden", 5)
    p = len(widths) - 1
    rows = case.params.get("rows") or [int(rng.integers(1, 4)) for _ in range(m)]
    parts: list[Arrays] = []
    for r, order in enumerate(_orders(case.params.get("order", "1F1B"), p, m)):
        part = {
            "first": draw(rng, widths[r], hidden, spread=widths[r] ** -0.5),
            "second": draw(rng, hidden, widths[r + 1], spread=hidden**-0.5),
            "actions": np.array(order, dtype=np.int64),
        }
        if r == 0:
            part |= {f"x{i}": draw(rng, t, widths[0]) + 1e-4 * i for i, t in enumerate(rows)}  # no two of them alike
        if r == p - 1:
            part |= {f"target{i}": draw(rng, t, widths[-1]) for i, t in enumerate(rows)}
        parts.append(part)
    return join_ranks(parts)


def _expect_stages(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p, m = len(parts), len(parts[0]["actions"]) // 2
    told: list[Arrays] = [{f"{n}.grad": np.zeros_like(part[n]) for n in ("first", "second")} for part in parts]
    total, sent = 0.0, np.zeros(p)
    for i in range(m):
        xs, hiddens = [parts[0][f"x{i}"]], []
        for part in parts:
            hiddens.append(np.tanh(xs[-1] @ part["first"]))
            xs.append(hiddens[-1] @ part["second"])
        target = parts[-1][f"target{i}"]
        along = (xs[-1] * target).sum(1)
        total += np.square(along).mean() / m
        gradient = 2 * along[:, None] * target / len(along) / m
        for r in reversed(range(p)):
            told[r]["second.grad"] += hiddens[r].T @ gradient
            back = gradient @ parts[r]["second"].T * (1 - hiddens[r] ** 2)
            told[r]["first.grad"] += xs[r].T @ back
            gradient = back @ parts[r]["first"].T
            sent[r] += (gradient.size if r else 0) * ITEM + (xs[r + 1].size if r < p - 1 else 0) * ITEM
    told[-1]["loss"] = np.array(total)
    went_back = [i for kind, i in parts[0]["actions"].tolist() if kind == BACKWARD]
    told[0]["micro-batches in the order in which they went back"] = np.array(went_back)
    messages = np.array([m * ((r > 0) + (r < p - 1)) for r in range(p)])
    return expect_ranks(told, bytes=sent.astype(np.int64), messages=messages)


CHECKS = (
    Check(
        name="schedule",
        title="One forward, one backward",
        points=10,
        cases=(
            Case("two stages, three micro-batches", {"p": 2, "m": 3}),
            Case("four stages, eight micro-batches", {"p": 4, "m": 8}),
            Case("as many micro-batches as stages", {"p": 3, "m": 3}),
            Case("fewer micro-batches than stages", {"p": 5, "m": 2}),
            Case("one micro-batch", {"p": 3, "m": 1}),
            Case("one stage", {"p": 1, "m": 4}),
            Case("seven stages", {"p": 7, "m": 11}, hidden=True),
            Case("two stages, many micro-batches", {"p": 2, "m": 23}, hidden=True),
        ),
        inputs=_draw_sizes,
        run=calls.schedule,
        expect=_expect_limits,
        compare=_compare_schedules,
        first_hint="How many micro-batches may stage r have let in when the first one comes back, and what follows "
        "then?",
        hint="Stage r lets in p - 1 - r, or all m if that is fewer. Then each further forward pass is followed by the "
        "oldest backward pass, and in the end come those that are left.",
        uses=("one_forward_one_backward",),
        snippet="one_forward_one_backward(p, m)",
    ),
    partial(check_ranks, memory_bytes=BUDGET_BYTES)(
        name="run_stage",
        title="A stage at work",
        points=11,
        cases=(
            Case("two stages", {"widths": [2, 3, 2], "m": 3}),
            Case("three stages of other widths", {"widths": [2, 4, 3, 1], "m": 4}),
            Case("three stages of equal widths", {"widths": [2, 2, 2, 2], "m": 3, "rows": [2, 2, 2]}),
            Case("as GPipe does it", {"widths": [3, 2, 2], "m": 3, "order": "GPipe"}),
            Case("backward from the last to the first", {"widths": [2, 3, 2], "m": 3, "order": "last first"}),
            Case("a stage far ahead of the next", {"widths": [2, 2, 3], "m": 4, "order": "mixed"}),
            Case("micro-batches in another order", {"widths": [2, 3, 2], "m": 3, "rows": [1, 3, 2], "order": "turned"}),
            Case("one micro-batch", {"widths": [2, 3, 4], "m": 1}),
            Case("one stage", {"widths": [3, 2], "m": 3}),
            Case("wide layers, many micro-batches", {"widths": [1, 1, 1], "m": 16, "rows": [4] * 16, "hidden": HIDDEN}),
            Case("four stages, seventeen micro-batches", {"widths": [5, 2, 3, 7, 2], "m": 17}, hidden=True),
        ),
        inputs=_draw_stages,
        run=calls.run_stage,
        expect=_expect_stages,
        first_hint="Follow one micro-batch: who gives this rank its x, who its gradient, who waits, and what is let "
        "go?",
        hint="What is received wants a gradient (requires_grad_), or x.grad stays None. Sends must not wait for the "
        "other side: isend, and wait for all requests after the last action. Take x and y out of the dictionary of "
        "what is kept when their micro-batch goes back.",
        uses=("run_stage",),
        snippet=SPLIT + "def program(rank, arrays):\n"
        '    names = ("first", "second")\n'
        "    first, second = (torch.from_numpy(arrays[name]).clone().requires_grad_() for name in names)\n"
        '    actions = [(("forward", "backward")[kind], i) for kind, i in arrays["actions"].tolist()]\n'
        '    inputs = [torch.from_numpy(arrays[name]) for name in arrays if name[0] == "x"]\n\n'
        "    def loss(y, i):\n"
        '        return (y * torch.from_numpy(arrays[f"target{i}"])).sum(1).square().mean()\n\n'
        "    mean = run_stage(rank, actions, lambda x: (x @ first).tanh() @ second, inputs, loss)\n"
        "    return mean, first.grad, second.grad\n\n\n"
        "run(program, split_ranks(given))",
    ),
)
