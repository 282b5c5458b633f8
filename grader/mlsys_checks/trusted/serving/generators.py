"""Generators of lab 11's cases, and oracles of its functions.

`draw_…` returns the inputs of a case: a script of calls, which is made on the reference while it is drawn, or a
workload of requests. `render_…` returns a public case as code to paste into the notebook.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.serving import DOUBLE_SIZE_COUNT, VOCAB_SIZE, alternate_list_tuple
from mlsys_checks.sandboxed.spec import Arrays, Case, Range
from mlsys_checks.sandboxed.values import decode_value, encode_value
from mlsys_checks.trusted.serving.replay import ReferencePool, make_reference_manager

Rng = np.random.Generator
MAX_SHOWN_CALLS = 14
"""Number of a script's calls that are rendered as code."""
CALLS = ("allocate", "touch", "free", "cache", "get_cached_block")
CALL_PROBS = {"BlockPool": (0.4, 0.15, 0.45, 0, 0), "PrefixBlockPool": (0.25, 0.05, 0.3, 0.1, 0.3)}
"""Probability of each of CALLS in a script, by class of pool."""


def _as_inputs(case: dict[str, Any]) -> Arrays:
    return {"case": encode_value(case)}


def draw_pool_script(rng: Rng, case: Case) -> Arrays:
    """Draw a script of valid calls on a block pool.

    Before the first drawn call all blocks are cached (`cached`), or some are allocated (`held`). `reads`: how often
    num_free_blocks of a large pool is read after each call.
    """
    p, script, references = case.params, list[list[Any]](), list[int]()
    pool, latest, given = ReferencePool(p["num_blocks"]), dict[int, int](), 0

    def add(call: str, block: int | None = None, block_hash: int | None = None) -> int | None:
        """Add a call to the script and make it on the reference pool; return its result.

        The script refers to a block by the index of the last call that returned it.
        """
        nonlocal given
        own, rest = [] if block is None else [block], [] if block_hash is None else [block_hash]
        script.append([call, *(latest[one] for one in own), *rest])
        found: int | None = getattr(pool, call)(*own, *rest)
        if call in ("allocate", "get_cached_block"):
            given += 1
            if found is not None:
                latest[found] = given - 1
        return found

    for block_hash in range(p["num_blocks"] if p.get("cached") else 0):
        block = add("allocate")
        add("cache", block, block_hash)
        add("free", block)
    references += [block for _ in range(p.get("held", 0)) if (block := add("allocate")) is not None]
    calls, places = rng.choice(len(CALLS), p["calls"], p=CALL_PROBS[p["pool"]]), rng.random(p["calls"])
    for call, at, block_hash in zip(calls, places, rng.integers(0, 2 * p["num_blocks"] + 1, p["calls"]), strict=True):
        name, some = CALLS[call], int(at * len(references))
        if name == "allocate" and (block := add(name)) is not None:
            references.append(block)
        elif name == "get_cached_block" and (found := add(name, block_hash=int(block_hash))) is not None and at < 0.5:
            add("touch", found)
            references.append(found)
        elif name == "touch" and references:
            add(name, references[some])
            references.append(references[some])
        elif name == "free" and references:
            references[some], references[-1] = references[-1], references[some]
            add(name, references.pop())
        elif name == "cache" and references:
            add(name, references[some], int(block_hash))
    sizes = {"pool": p["pool"], "num_blocks": p["num_blocks"], "reads": p.get("reads", 0)}
    return _as_inputs({**sizes, "script": script})


def render_pool_script(arrays: Arrays) -> str:
    """Render the first calls of a script and the counts after them."""
    case = decode_value(arrays["case"])
    name, given = case["pool"], 0
    lines = [f"pool, other = {name}({case['num_blocks']}), {name}({case['num_blocks']})", "other.allocate()"]
    for call, *arguments in case["script"][:MAX_SHOWN_CALLS]:
        if call == "allocate":
            lines += ["try:", f"    block{given} = pool.allocate()", "except ValueError:", f"    block{given} = -1"]
        elif call == "get_cached_block":
            lines.append(f"block{given} = pool.get_cached_block({arguments[0]})")
        else:
            lines.append(f"pool.{call}({', '.join([f'block{arguments[0]}', *map(str, arguments[1:])])})")
        given += call in ("allocate", "get_cached_block")
    counts = "" if case["reads"] else "pool.ref_cnt, "
    return "\n".join([*lines, f"print({counts}pool.num_free_blocks, other.num_free_blocks)"])


def draw_manager_script(rng: Rng, case: Case) -> Arrays:
    """Draw a script of valid calls on a block manager, which compute no more tokens than a sequence has slots for.

    `single`: every call is for at most one token, as in decode steps. `evicted`: two equal prompts are cached, their
    first block is evicted, and an equal prompt follows.
    """
    p = case.params
    prefix, size, num_blocks = p["manager"] == "PrefixBlockManager", p["block_size"], p["num_blocks"]
    tables = make_reference_manager(p)
    prompts, script = list[list[int]](), list[list[Any]]()

    def add(call: str, *arguments: Any) -> None:
        script.append([call, *arguments])
        tables.apply(prompts, call, *arguments)

    def draw(most: int) -> int:
        most = min(most, 1) if p.get("single") else most
        return most if rng.random() < 0.3 else int(rng.integers(0, most + 1))

    if p.get("evicted"):
        tokens = rng.integers(0, 3, 3 * size + 1).tolist()
        prompts += [tokens, tokens, [3] * num_blocks * size, tokens]
        for i, count in ((0, size), (1, 3 * size)):
            add("allocate_prefix", i, 1)
            add("allocate_slots", i, count, 0)
        add("mark_computed", 0, size)
        add("mark_computed", 1, 3 * size)
        add("free", 0)
        add("allocate_prefix", 2, 1)
        add("allocate_slots", 2, (num_blocks - 3) * size, 0)
        add("allocate_prefix", 3, len(tokens))
    while len(script) < p["calls"]:
        what, seqs = rng.random(), list(tables.tables)
        if not seqs or (len(seqs) < p["sequences"] and what < 0.2):
            longest = p["longest"] if p.get("single") else 1 + draw(p["longest"] - 1)
            prompts.append(_draw_prompt(rng, prompts if prefix else [], longest))
            length = len(prompts[-1])
            add("allocate_prefix", len(prompts) - 1, 1 + draw(length - 1) if rng.random() < 0.4 else length)
            continue
        i = int(rng.choice(seqs))
        if what < 0.55:
            count = draw(len(prompts[i]) - tables.computed[i])
            left = tables.pool.num_free_blocks - tables.num_missing_blocks({i: count})[i]
            add("allocate_slots", i, count, max(0, left + draw(1)) if rng.random() < 0.4 else draw(1))
        elif what < 0.87:
            add("mark_computed", i, draw(tables.capacity[i] - tables.computed[i]))
        else:
            add("free", i)
    near = [(blocks, more) for blocks in (1, 2, 7) for more in (-1, 0, 1)]
    others = (size, *rng.integers(1, 1000, 9).tolist())
    sizes = [(size, 0), *((other, other * blocks + more) for other in others for blocks, more in near)]
    names = {"manager": p["manager"], "num_blocks": num_blocks, "block_size": size}
    return _as_inputs({**names, "prompts": prompts, "script": script, "sizes": sizes})


def _draw_prompt(rng: Rng, others: Sequence[list[int]], length: int) -> list[int]:
    """Draw a prompt that is new, repeats an earlier prompt, or shares a prefix with it."""
    old = others[-1 - int(rng.integers(min(3, len(others))))] if others and rng.random() < 0.8 else []
    begins = old[: int(rng.integers(len(old) + 1))] if rng.random() < 0.4 else old
    return [*begins, *rng.integers(0, 2, max(length - len(begins), 0 if begins else 1)).tolist()]


def render_manager_script(arrays: Arrays) -> str:
    """Render the first calls of a script, and the block tables and counts after them."""
    case = decode_value(arrays["case"])
    prompts, lines = case["prompts"], [f"manager = {_render_manager(case)}"]
    tables = make_reference_manager(case)
    lengths: dict[int, int] = {}
    for call, i, *arguments in case["script"][:MAX_SHOWN_CALLS]:
        if call == "allocate_prefix":
            lengths[i] = arguments[0]
            seq = f"Sequence({i}, {prompts[i][: lengths[i]]}, {lengths[i]}, {len(prompts[i])})"
            lines += [f"seq{i} = {seq}", f"print(manager.allocate_prefix(seq{i}))"]
        elif call == "allocate_slots":
            lines.append(f"print(manager.allocate_slots(seq{i}, {arguments[0]}, {arguments[1]}))")
        elif call == "mark_computed":
            end = tables.computed[i] + arguments[0]
            lines += [f"seq{i}.token_ids += {prompts[i][lengths[i] : end]}"] if end > lengths[i] else []
            lines += [f"seq{i}.num_computed_tokens = {end}", f"manager.cache_full_blocks(seq{i})"]
            lengths[i] = max(lengths[i], end)
        else:
            lines.append(f"manager.free(seq{i})")
        tables.apply(prompts, call, i, *arguments)
    shown = ", ".join(f"seq{i}.block_table" for i in tables.tables)
    return "\n".join([*lines, f"print({shown}{', ' * bool(shown)}manager.pool.ref_cnt, manager.pool.num_free_blocks)"])


def _render_manager(case: dict[str, Any]) -> str:
    return f"{case['manager']}({case['num_blocks']}, {case['block_size']})"


BASES = (1, 10, 31, 33, 37, 131, 256, 257, 1000, 1009, 10_000, 65_536)
"""Bases of polynomial hashes that collide, because token ids exceed the base."""
COLLIDING = (
    *([16867, 28445, 41977, 11869], [4146, 1001, 32096, 3]),
    *([26703, 24422, 14245, 57041], [4204, 4795, 18578, 3]),
)
"""Two pairs of blocks whose tuples collide under CPython's `hash`, the second pair after an element of hash 0."""


def draw_hashes(rng: Rng, case: Case) -> Arrays:
    """Draw prompts that differ in one token, and prompts with equal blocks after different prefixes.

    `near`: add blocks that collide if hashes are joined digits, sums, polynomials, `hash`, or truncated token ids.
    """
    p = case.params
    size, blocks = p["block_size"], p["blocks"]
    base = rng.integers(0, p.get("vocabulary", 9), size * blocks + p.get("more", 0)).tolist()
    prompts = [base, base[: size * blocks]]
    if not p.get("alone"):
        for place in (0, size - 1, size * (blocks // 2), size * blocks - 1):
            prompts.append([token + (i == place) for i, token in enumerate(base)])
        block, zeros = base[:size], [0] * size
        prompts += [block * 3, zeros + block, base[:-1], zeros * 3, [], block[::-1] + zeros]
    if p.get("near"):
        one, other = (int(token) for token in rng.integers(70_000, 130_000, 2))
        digit, ten = int(rng.integers(1, 10)), int(rng.integers(10, 100))
        pairs = [(one, other), (other, one), (one, other + 256), (one, other + 65_536)]
        pairs += [(ten, 100 * digit + ten), (10 * ten + digit, ten), *((one + 1, other - base) for base in BASES)]
        prompts += [[*pair, *base[: size - 2]] for pair in pairs] + list(COLLIDING)
    return _as_inputs({"prompts": prompts, "block_size": size})


def expect_hashes(arrays: Arrays) -> Arrays:
    """Return the number of hashes and which are equal: those of equal prefixes of full blocks."""
    case, seen = decode_value(arrays["case"]), dict[tuple[int, ...], int]()
    size = case["block_size"]
    prefixes = [tuple(prompt[:end]) for prompt in case["prompts"] for end in range(size, len(prompt) + 1, size)]
    counts, wide = ([len(prompt) // of for prompt in case["prompts"]] for of in (size, 2 * size))
    equal = [seen.setdefault(prefix, len(seen)) for prefix in prefixes]
    return {
        "number of hashes": np.array(counts),
        "which hashes are equal": np.array(equal),
        DOUBLE_SIZE_COUNT: np.array(wide),
    }


def render_hashes(arrays: Arrays) -> str:
    """Render calls for the hashes of all prompts, and for their number at twice the block size."""
    case = decode_value(arrays["case"])
    prompts, size = alternate_list_tuple(case["prompts"]), case["block_size"]
    call = f"print(hash_blocks(token_ids, {size}), len(hash_blocks(token_ids, {2 * size})))"
    return f"for token_ids in {prompts}:\n    {call}"


def draw_workload(rng: Rng, case: Case) -> Arrays:
    """Draw requests for a scheduler whose steps take one second each.

    Prompts have at most `prompt` tokens and outputs at most `output`; in a third of the draws, or if `equal`, exactly
    as many, except that with `small_last` the last request has one of each. Requests arrive within `over` seconds, and
    `aborted` tenths of them are aborted. Blocks of `block_size` tokens; `memory`: tenths of the blocks that the `seqs`
    largest requests need, but at least enough for the largest one. `budget`: token budget above `max_num_seqs`, which
    is `seqs`. `prefixes`: number of shared prefixes. `admits`: number of requests that are admitted explicitly before
    the first step; they fit.
    """
    p, n = case.params, case.params["requests"]
    equal = bool(p.get("equal")) or rng.random() < 1 / 3
    lengths, outputs = (
        [p[name]] * n if equal else rng.integers(1, p[name] + 1, n).tolist() for name in ("prompt", "output")
    )
    if p.get("small_last"):
        lengths[-1] = outputs[-1] = 1
    common = [rng.integers(0, VOCAB_SIZE, max(lengths)).tolist() for _ in range(p.get("prefixes", 0))]
    prompts = []
    for length in lengths:
        begins = common[int(rng.integers(len(common)))][:length] if common and rng.random() < 0.9 else []
        begins = begins[: int(rng.integers(length + 1))] if rng.random() < 0.3 else begins
        prompts.append([*begins, *rng.integers(0, VOCAB_SIZE, length - len(begins)).tolist()])
    arrivals_s = np.sort(rng.integers(0, p.get("over", 0) + 1, n)).astype(float)
    aborted = rng.random(n) < (p.get("aborted", 0) / 10)
    leaves_s = np.where(aborted, arrivals_s + rng.integers(0, 15, n), math.inf)
    needs = [-(-(length + count - 1) // p["block_size"]) for length, count in zip(lengths, outputs, strict=True)]
    num_blocks = max(max(needs), sum(sorted(needs)[-p["seqs"] :]) * p["memory"] // 10)
    return _as_workload(
        p,
        num_blocks=num_blocks,
        config=(p["seqs"], p["seqs"] + p["budget"]),
        step_time=(1.0, 0.0, 0.0),
        prompts=prompts,
        outputs=outputs,
        arrivals_s=arrivals_s.tolist(),
        leaves_s=leaves_s.tolist(),
        admits=(1 + rng.choice(n - 1, p.get("admits", 0), replace=False)).tolist(),
    )


def _as_workload(p: Any, **workload: Any) -> Arrays:
    names = {name: p[name] for name in ("scheduler", "manager", "block_size")}
    max_steps = 4 * (sum(map(len, workload["prompts"])) + sum(workload["outputs"])) + 100
    return _as_inputs({**names, "max_steps": max_steps, **workload})


TICK_S = 2.0**-40
"""Unit of step times and arrival times, a power of two so that sums are exact."""


def draw_poisson_workload(rng: Rng, case: Case) -> Arrays:
    """Draw Poisson arrivals in phases: number of requests, rate per second, ranges of prompt and output tokens."""
    p = case.params
    gaps_s = np.concatenate([rng.exponential(1 / rate, n) for n, rate, _, _ in p["phases"]])
    lengths, outputs = (
        np.concatenate([rng.integers(sizes[i][0], sizes[i][1], sizes[0]) for sizes in p["phases"]]) for i in (2, 3)
    )
    arrivals_s = np.round((p.get("from_s", 0.0) + np.cumsum(gaps_s)) / TICK_S) * TICK_S
    return _as_workload(
        {"scheduler": "SLOScheduler", "manager": "BlockManager", "block_size": 16},
        num_blocks=400,
        config=(12, 2000),
        step_time=p["step_time"],
        slo=p["slo"],
        prompts=[rng.integers(0, VOCAB_SIZE, length).tolist() for length in lengths],
        outputs=outputs.tolist(),
        arrivals_s=arrivals_s.tolist(),
        leaves_s=[math.inf] * len(outputs),
        admits=[],
    )


def render_workload(arrays: Arrays) -> str:
    """Render the requests of a workload and a scheduler that serves them."""
    workload = decode_value(arrays["case"])
    requests = zip(*(workload[name] for name in ("prompts", "outputs", "arrivals_s", "leaves_s")), strict=True)
    lines = [
        f"    Request({prompt}, {count}, {arrival_s:g}, {leave_s:g})," for prompt, count, arrival_s, leave_s in requests
    ]
    lines = ["from math import inf", "requests = [", *lines, "]"]
    made, config = f"scheduler = {workload['scheduler']}({_render_manager(workload)}, ", tuple(workload["config"])
    made += f"SchedulerConfig{config}"
    if workload["admits"]:
        lines += [f"{made})", "seqs = [scheduler.add(one.prompt_token_ids, one.max_tokens) for one in requests]"]
        lines += [f"print([scheduler.admit(seqs[i]) for i in {workload['admits']}])"]
        lines += ["print({seq.seq_id: n for seq, n in scheduler.schedule().num_scheduled_tokens.items()})"]
    elif "slo" in workload:
        lines += [f"step_time, slo = StepTime{tuple(workload['step_time'])}, SLO{tuple(workload['slo'])}"]
        lines += [f"{made}, step_time, slo)", "steps, times_s = simulate(scheduler, requests, step_time)"]
        lines += ["for request, times in zip(requests, times_s):"]
        lines += ["    tpot_s = (times[-1] - times[0]) / max(1, len(times) - 1)"]
        lines += ['    print(f"TTFT {times[0] - request.arrival_s:.3f} s, TPOT {tpot_s:.4f} s")']
    else:
        lines += [f"{made})", "for step, counts in enumerate(simulate(scheduler, requests)[0]):"]
        lines += ["    print(step, counts)"]
    return "\n".join(lines)


def draw_steps(rng: Rng, case: Case) -> Arrays:
    """Draw rows of prompt tokens, decoding sequences and token budget: full chunks, one token more or less, edges."""
    size = case.params["size"]
    chunk, decodes = rng.integers(1, size + 1, 8), rng.integers(0, size, 8)
    prompt = np.maximum(1, chunk * rng.integers(1, 9, 8) + rng.integers(-1, 2, 8))
    row = np.array([12 * chunk[0], decodes[0], decodes[0] + chunk[0]])
    edges = [(1, 0, 1), (size, 0, 1), (1, size, size + 1), *np.add(row, [(0, 0, 0), (1, 0, 0), (0, 1, 1), (0, 0, 1)])]
    return {"rows": np.vstack([edges, np.column_stack([prompt, decodes, decodes + chunk])])}


def expect_steps(arrays: Arrays) -> Arrays:
    """Return the number of prefill chunks of each prompt."""
    steps = [len(range(0, prompt, tokens - decodes)) for prompt, decodes, tokens in arrays["rows"].tolist()]
    return {"steps": np.array(steps)}


def render_steps(arrays: Arrays) -> str:
    """Render a call for each row."""
    return "\n".join(f"steps_to_first{tuple(row)}" for row in arrays["rows"].tolist())


def draw_budgets(rng: Rng, case: Case) -> Arrays:
    """Draw step times in ticks, and calls with TPOT limits near the step time of some chunk.

    A limit lies between the step times of n and n + 1 tokens, exactly at one, one tick below, or below all.
    Step times come in pairs, the second twice as long. Each call is followed by calls with one argument changed.
    """
    p, step_times, calls = case.params, list[dict[str, Any]](), list[Any]()
    least, most = np.array([(1e-3, 2e-5, 1e-8), (4e-3, 4e-5, 4e-8)]) / TICK_S
    for which, end in enumerate(("between", "exact", "short", "late", "tick")):
        decodes, past = Range(0, p["decodes"]).draw(rng), Range(0, p["past"]).draw(rng)
        power = 1 << int(rng.integers(1, 7))
        chunk = {"between": p["chunk"], "exact": power, "short": power - 1, "late": 1, "tick": 3 * power}[end]
        compute = rng.integers(least.astype(int), most.astype(int))
        memory = compute // (1, 20, 1) * (0, 1, 3)
        memory[0] = (compute - memory) @ (1, decodes + chunk // 2, decodes * past) if rng.random() < 0.5 else 0
        pair_s = int(rng.integers(0, int(5e-9 / TICK_S))) * TICK_S if rng.random() < 0.5 else 0.0
        lines = {"compute": (compute * TICK_S).tolist(), "memory": (memory * TICK_S).tolist(), "pair_s": pair_s}
        step_times += [{**lines, "factor": factor} for factor in (1, 2)]
        times_s = [float(_seconds(step_times[-2], decodes, past, tokens)) for tokens in (1, chunk, chunk + 1)]
        limits_s = {"between": (times_s[1] + times_s[2]) / 2, "exact": times_s[1], "late": 0.9 * times_s[0]}
        call = np.array([2 * which, decodes, past, limits_s.get(end, times_s[2] - TICK_S)])
        changes = ((1, 0, 0), (0, 2, 0), (0, 0, 1000))
        calls += [call, *(np.add(call, (*change, 0)) for change in changes), call * (1, 1, 1, 0.5)]
    return _as_inputs({"step_times": step_times, "calls": [[*map(int, call[:3]), float(call[3])] for call in calls]})


def _seconds(step_time: dict[str, Any], decodes: int, past: int, chunk: int | np.ndarray) -> np.ndarray:
    """Return the time of a step in seconds, for one chunk size or an array of them."""
    lines = (step_time["compute"], step_time["memory"])
    times_s = (step_s + token_s * (decodes + chunk) + past_s * decodes * past for step_s, token_s, past_s in lines)
    pairs = decodes * (past + 1) + chunk * (chunk + 1) // 2
    return np.asarray(step_time["factor"] * (np.maximum(*times_s) + step_time["pair_s"] * pairs))


def expect_budgets(arrays: Arrays) -> Arrays:
    """Return the largest budget within the TPOT limit, by trying all chunk sizes."""
    case, tokens = decode_value(arrays["case"]), []
    for which, decodes, past, tpot_s in case["calls"]:
        chunks = np.arange(1, 1 << 14)  # more than any chunk
        in_time = _seconds(case["step_times"][which], decodes, past, chunks) <= tpot_s
        tokens.append(decodes + max(1, int(in_time.sum())))
    return {"tokens": np.array(tokens)}


def render_budgets(arrays: Arrays) -> str:
    """Render the step times as functions, and the calls."""
    case = decode_value(arrays["case"])
    lines = ["def make_step_time(compute, memory, pair_s, factor):", "    def step_time(parts):"]
    lines += ["        pairs = sum(new * past + new * (new + 1) // 2 for new, past in parts)"]
    lines += ["        return factor * (max(StepTime(*compute)(parts), StepTime(*memory)(parts)) + pair_s * pairs)"]
    lines += ["    return step_time", f"step_times = [make_step_time(**one) for one in {case['step_times']}]"]
    calls = (f"step_times[{which}], {', '.join(map(str, rest))}" for which, *rest in case["calls"])
    return "\n".join([*lines, *(f"print(token_budget({call}))" for call in calls)])
