"""Generators of lab 11's cases, from one block and one token on, and oracles of its functions.

`draw_…` gives a check's inputs: scripts of calls, made on a pool of ours while they are drawn, or loads of requests.
`code_of_…` writes a public case as code that can be pasted into the notebook.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.serving import VOCABULARY, WIDE, mix_kinds
from mlsys_checks.sandboxed.spec import Arrays, Case, Range
from mlsys_checks.sandboxed.values import decode_value, encode_value
from mlsys_checks.trusted.serving.replay import Pool, Tables

Rng = np.random.Generator
SHOWN = 14
"""Calls of a script that its code writes out."""
CALLS = ("allocate", "touch", "free", "cache", "get_cached_block")
WEIGHTS = {"BlockPool": (0.4, 0.15, 0.45, 0, 0), "PrefixBlockPool": (0.25, 0.05, 0.3, 0.1, 0.3)}
"""How often a script makes each call."""


def _as_inputs(case: dict[str, Any]) -> Arrays:
    return {"case": encode_value(case)}


def draw_blocks(rng: Rng, case: Case) -> Arrays:
    """A script of calls on a block pool, of which all are allowed.

    `cached`: every block is cached at first. `reads`: how often num_free_blocks of a large pool is read after a call.
    """
    p, script, references = case.params, list[list[Any]](), list[int]()
    pool, latest, given = Pool(p["num_blocks"]), dict[int, int](), 0

    def add(call: str, block: int | None = None, block_hash: int | None = None) -> int | None:
        """Make a call, of a block by the index at which it was returned last; returns the block that comes back."""
        nonlocal given
        script.append(
            [call, *([] if block is None else [latest[block]]), *([] if block_hash is None else [block_hash])]
        )
        found: int | None = getattr(pool, call)(
            *([] if block is None else [block]), *([] if block_hash is None else [block_hash])
        )
        if call in ("allocate", "get_cached_block"):
            given += 1
            if found is not None:
                latest[found] = given - 1
        return found

    for block_hash in range(p["num_blocks"] if p.get("cached") else 0):
        block = add("allocate")
        add("cache", block, block_hash)
        add("free", block)
    calls, places = rng.choice(len(CALLS), p["calls"], p=WEIGHTS[p["pool"]]), rng.random(p["calls"])
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


def code_of_blocks(arrays: Arrays) -> str:
    """The first calls of a script, and counts after them."""
    case = decode_value(arrays["case"])
    name, given = case["pool"], 0
    lines = [f"pool, other = {name}({case['num_blocks']}), {name}({case['num_blocks']})", "other.allocate()"]
    for call, *arguments in case["script"][:SHOWN]:
        if call == "allocate":
            lines += ["try:", f"    block{given} = pool.allocate()", "except ValueError:", f"    block{given} = -1"]
        elif call == "get_cached_block":
            lines.append(f"block{given} = pool.get_cached_block({arguments[0]})")
        else:
            lines.append(f"pool.{call}({', '.join([f'block{arguments[0]}', *map(str, arguments[1:])])})")
        given += call in ("allocate", "get_cached_block")
    counts = "" if case["reads"] else "pool.ref_cnt, "
    return "\n".join([*lines, f"print({counts}pool.num_free_blocks, other.num_free_blocks)"])


def draw_tables(rng: Rng, case: Case) -> Arrays:
    """A script of calls on a block manager, of which all are allowed: what is computed has blocks, and no prompt ends.

    `single`: every count is one token or none, as in decode steps. `evicted`: it begins with two equal prompts, of
    whose cached blocks the first one is evicted, and a third such.
    """
    p = case.params
    prefix, size, num_blocks = p["manager"] == "PrefixBlockManager", p["block_size"], p["num_blocks"]
    tables, prompts, script = Tables(num_blocks, size, prefix=prefix), list[list[int]](), list[list[Any]]()

    def add(call: str, *arguments: Any) -> None:
        script.append([call, *arguments])
        tables.play(prompts, call, *arguments)

    def draw(most: int) -> int:
        most = min(most, 1) if p.get("single") else most
        return most if rng.random() < 0.3 else int(rng.integers(0, most + 1))

    if p.get("evicted"):
        tokens = rng.integers(0, 3, 3 * size + 1).tolist()
        prompts += [tokens, tokens, [3] * num_blocks * size, tokens]
        for call in (
            *(("start", 0, 1), ("start", 1, 1), ("allocate_slots", 0, size, 0), ("allocate_slots", 1, 3 * size, 0)),
            *(("compute", 0, size), ("compute", 1, 3 * size), ("free", 0), ("start", 2, 1)),
            *(("allocate_slots", 2, (num_blocks - 3) * size, 0), ("start", 3, len(tokens))),
        ):
            add(*call)
    while len(script) < p["calls"]:
        what, seqs = rng.random(), list(tables.tables)
        if not seqs or (len(seqs) < p["sequences"] and what < 0.2):
            longest = p["longest"] if p.get("single") else 1 + draw(p["longest"] - 1)
            prompts.append(_draw_prompt(rng, prompts if prefix else [], longest))
            length = len(prompts[-1])
            add("start", len(prompts) - 1, 1 + draw(length - 1) if rng.random() < 0.4 else length)
            continue
        i = int(rng.choice(seqs))
        if what < 0.55:
            count = draw(len(prompts[i]) - tables.computed[i])
            left = tables.pool.num_free_blocks - tables.missing({i: count})[i]
            add("allocate_slots", i, count, max(0, left + draw(1)) if rng.random() < 0.4 else draw(1))
        elif what < 0.87:
            add("compute", i, draw(tables.reserved[i] - tables.computed[i]))
        else:
            add("free", i)
    near = [(blocks, more) for blocks in (1, 2, 7) for more in (-1, 0, 1)]
    others = (size, *rng.integers(1, 1000, 9).tolist())
    sizes = [(size, 0), *((other, other * blocks + more) for other in others for blocks, more in near)]
    names = {"manager": p["manager"], "num_blocks": num_blocks, "block_size": size}
    return _as_inputs({**names, "prompts": prompts, "script": script, "sizes": sizes})


def _draw_prompt(rng: Rng, others: Sequence[list[int]], length: int) -> list[int]:
    """A prompt of its own, or one that repeats another, or begins as it does."""
    old = others[-1 - int(rng.integers(min(3, len(others))))] if others and rng.random() < 0.8 else []
    begins = old[: int(rng.integers(len(old) + 1))] if rng.random() < 0.4 else old
    return [*begins, *rng.integers(0, 2, max(length - len(begins), 0 if begins else 1)).tolist()]


def code_of_tables(arrays: Arrays) -> str:
    """The first calls of a script, and block tables and counts after them."""
    case = decode_value(arrays["case"])
    prompts, lines = case["prompts"], [f"manager = {_code_of_manager(case)}"]
    tables = Tables(case["num_blocks"], case["block_size"], prefix=case["manager"] == "PrefixBlockManager")
    lengths: dict[int, int] = {}
    for call, i, *arguments in case["script"][:SHOWN]:
        if call == "start":
            lengths[i] = arguments[0]
            seq = f"Sequence({i}, {prompts[i][: lengths[i]]}, {lengths[i]}, {len(prompts[i])})"
            lines += [f"seq{i} = {seq}", f"print(manager.allocate_prefix(seq{i}))"]
        elif call == "allocate_slots":
            lines.append(f"print(manager.allocate_slots(seq{i}, {arguments[0]}, {arguments[1]}))")
        elif call == "compute":
            end = tables.computed[i] + arguments[0]
            lines += [f"seq{i}.token_ids += {prompts[i][lengths[i] : end]}"] if end > lengths[i] else []
            lines += [f"seq{i}.num_computed_tokens = {end}", f"manager.cache_full_blocks(seq{i})"]
            lengths[i] = max(lengths[i], end)
        else:
            lines.append(f"manager.free(seq{i})")
        tables.play(prompts, call, i, *arguments)
    shown = ", ".join(f"seq{i}.block_table" for i in tables.tables)
    return "\n".join([*lines, f"print({shown}{', ' * bool(shown)}manager.pool.ref_cnt, manager.pool.num_free_blocks)"])


def _code_of_manager(case: dict[str, Any]) -> str:
    return f"{case['manager']}({case['num_blocks']}, {case['block_size']})"


BASES = (1, 10, 31, 33, 37, 131, 256, 257, 1000, 1009, 10_000, 65_536)
"""Bases of sums in which tokens are taken for digits, although there are more tokens than digits."""
COLLIDING = (
    *([16867, 28445, 41977, 11869], [4146, 1001, 32096, 3]),
    *([26703, 24422, 14245, 57041], [4204, 4795, 18578, 3]),
)
"""Two blocks for which CPython's `hash` of a tuple gives one number, and two behind an element whose hash is 0."""


def draw_hashes(rng: Rng, case: Case) -> Arrays:
    """Prompts with a common prefix that differ in one token, and with equal blocks after different prefixes.

    `near`: blocks that are equal if one joins digits, adds, counts to a base, takes `hash`, or cuts tokens short.
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
    """Equal numbers for equal prefixes of full blocks."""
    case, seen = decode_value(arrays["case"]), dict[tuple[int, ...], int]()
    size = case["block_size"]
    prefixes = [tuple(prompt[:end]) for prompt in case["prompts"] for end in range(size, len(prompt) + 1, size)]
    counts, wide = ([len(prompt) // of for prompt in case["prompts"]] for of in (size, 2 * size))
    equal = [seen.setdefault(prefix, len(seen)) for prefix in prefixes]
    return {"number of hashes": np.array(counts), "which hashes are equal": np.array(equal), WIDE: np.array(wide)}


def code_of_hashes(arrays: Arrays) -> str:
    """Hashes of all prompts, and how many there are at another size."""
    case = decode_value(arrays["case"])
    prompts, size = mix_kinds(case["prompts"]), case["block_size"]
    call = f"print(hash_blocks(token_ids, {size}), len(hash_blocks(token_ids, {2 * size})))"
    return f"for token_ids in {prompts}:\n    {call}"


def draw_load(rng: Rng, case: Case) -> Arrays:
    """Requests for a scheduler, a step a second, in memory from as little as the longest one needs.

    Prompts have up to `prompt` tokens, and outputs up to `output`, or in one draw of three, or where they are to be
    `equal`, all as many. Requests arrive within `over` seconds; of ten, `aborted` leave. `memory`: tenths of what the
    `seqs` largest need together. `prefixes`: how many prefixes prompts have in common. `admits`: how many requests are
    admitted by name before the first step; there is room for them.
    """
    p, n = case.params, case.params["requests"]
    equal = bool(p.get("equal")) or rng.random() < 1 / 3
    lengths, outputs = (
        [p[name]] * n if equal else rng.integers(1, p[name] + 1, n).tolist() for name in ("prompt", "output")
    )
    common = [rng.integers(0, VOCABULARY, max(lengths)).tolist() for _ in range(p.get("prefixes", 0))]
    prompts = []
    for length in lengths:
        begins = common[int(rng.integers(len(common)))][:length] if common and rng.random() < 0.9 else []
        begins = begins[: int(rng.integers(length + 1))] if rng.random() < 0.3 else begins
        prompts.append([*begins, *rng.integers(0, VOCABULARY, length - len(begins)).tolist()])
    arrivals_s = np.sort(rng.integers(0, p.get("over", 0) + 1, n)).astype(float)
    aborted = rng.random(n) < (p.get("aborted", 0) / 10)
    leaves_s = np.where(aborted, arrivals_s + rng.integers(0, 15, n), math.inf)
    needs = [-(-(length + count - 1) // p["block_size"]) for length, count in zip(lengths, outputs, strict=True)]
    num_blocks = max(max(needs), sum(sorted(needs)[-p["seqs"] :]) * p["memory"] // 10)
    return _as_load(
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


def _as_load(p: Any, **load: Any) -> Arrays:
    names = {name: p[name] for name in ("scheduler", "manager", "block_size")}
    max_steps = 4 * (sum(map(len, load["prompts"])) + sum(load["outputs"])) + 100
    return _as_inputs({**names, "max_steps": max_steps, **load})


TICK_S = 2.0**-40
"""What the step times of `token_budget` count in, and the times of requests, so that sums are exact."""


def draw_traffic(rng: Rng, case: Case) -> Arrays:
    """Requests at random times, in phases: how many, how many a second, tokens of prompts, and of outputs."""
    p = case.params
    gaps_s = np.concatenate([rng.exponential(1 / rate, n) for n, rate, _, _ in p["phases"]])
    lengths, outputs = (
        np.concatenate([rng.integers(sizes[i][0], sizes[i][1], sizes[0]) for sizes in p["phases"]]) for i in (2, 3)
    )
    arrivals_s = np.round((p.get("from_s", 0.0) + np.cumsum(gaps_s)) / TICK_S) * TICK_S
    return _as_load(
        {"scheduler": "SLOScheduler", "manager": "BlockManager", "block_size": 16},
        num_blocks=400,
        config=(12, 2000),
        step_time=p["step_time"],
        slo=p["slo"],
        prompts=[rng.integers(0, VOCABULARY, length).tolist() for length in lengths],
        outputs=outputs.tolist(),
        arrivals_s=arrivals_s.tolist(),
        leaves_s=[math.inf] * len(outputs),
        admits=[],
    )


def code_of_load(arrays: Arrays) -> str:
    """The requests of a load, and a scheduler that serves them."""
    load = decode_value(arrays["case"])
    requests = zip(*(load[name] for name in ("prompts", "outputs", "arrivals_s", "leaves_s")), strict=True)
    lines = [
        f"    Request({prompt}, {count}, {arrival_s:g}, {leave_s:g})," for prompt, count, arrival_s, leave_s in requests
    ]
    lines = ["from math import inf", "requests = [", *lines, "]"]
    made = f"scheduler = {load['scheduler']}({_code_of_manager(load)}, SchedulerConfig{tuple(load['config'])}"
    if load["admits"]:
        lines += [f"{made})", "seqs = [scheduler.add(one.prompt_token_ids, one.max_tokens) for one in requests]"]
        lines += [f"print([scheduler.admit(seqs[i]) for i in {load['admits']}])"]
        lines += ["print({seq.seq_id: n for seq, n in scheduler.schedule().num_scheduled_tokens.items()})"]
    elif "slo" in load:
        lines += [f"step_time, slo = StepTime{tuple(load['step_time'])}, SLO{tuple(load['slo'])}"]
        lines += [f"{made}, step_time, slo)", "steps, times_s = simulate(scheduler, requests, step_time)"]
        lines += ["for request, times in zip(requests, times_s):"]
        lines += ["    tpot_s = (times[-1] - times[0]) / max(1, len(times) - 1)"]
        lines += ['    print(f"TTFT {times[0] - request.arrival_s:.3f} s, TPOT {tpot_s:.4f} s")']
    else:
        lines += [f"{made})", "for step, counts in enumerate(simulate(scheduler, requests)[0]):"]
        lines += ["    print(step, counts)"]
    return "\n".join(lines)


def draw_steps(rng: Rng, case: Case) -> Arrays:
    """Rows of prompt tokens, decoding sequences and token budget: full chunks, a token more or less, and edges."""
    size = case.params["size"]
    chunk, decodes = rng.integers(1, size + 1, 8), rng.integers(0, size, 8)
    prompt = np.maximum(1, chunk * rng.integers(1, 9, 8) + rng.integers(-1, 2, 8))
    row = np.array([12 * chunk[0], decodes[0], decodes[0] + chunk[0]])
    edges = [(1, 0, 1), (size, 0, 1), (1, size, size + 1), *np.add(row, [(0, 0, 0), (1, 0, 0), (0, 1, 1), (0, 0, 1)])]
    return {"rows": np.vstack([edges, np.column_stack([prompt, decodes, decodes + chunk])])}


def expect_steps(arrays: Arrays) -> Arrays:
    """Count chunks until nothing of a prompt is left."""
    steps = [len(range(0, prompt, tokens - decodes)) for prompt, decodes, tokens in arrays["rows"].tolist()]
    return {"steps": np.array(steps)}


def code_of_steps(arrays: Arrays) -> str:
    """A call for each row."""
    return "\n".join(f"steps_to_first{tuple(row)}" for row in arrays["rows"].tolist())


def draw_budgets(rng: Rng, case: Case) -> Arrays:
    """Step times in whole ticks, and calls with each: a limit between two chunks, at one, just below, or too short.

    Of two step times the second takes twice as long. After each call come calls in which one argument differs.
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
    """Seconds of a step, for a chunk or for each of several."""
    lines = (step_time["compute"], step_time["memory"])
    times_s = (step_s + token_s * (decodes + chunk) + past_s * decodes * past for step_s, token_s, past_s in lines)
    pairs = decodes * (past + 1) + chunk * (chunk + 1) // 2
    return np.asarray(step_time["factor"] * (np.maximum(*times_s) + step_time["pair_s"] * pairs))


def expect_budgets(arrays: Arrays) -> Arrays:
    """Count the chunks that end in time."""
    case, tokens = decode_value(arrays["case"]), []
    for which, decodes, past, tpot_s in case["calls"]:
        in_time = (
            _seconds(case["step_times"][which], decodes, past, np.arange(1, 1 << 14)) <= tpot_s
        )  # more than any chunk
        tokens.append(decodes + max(1, int(in_time.sum())))
    return {"tokens": np.array(tokens)}


def code_of_budgets(arrays: Arrays) -> str:
    """Step times as functions of parts, and the calls."""
    case = decode_value(arrays["case"])
    lines = ["def make_step_time(compute, memory, pair_s, factor):", "    def step_time(parts):"]
    lines += ["        pairs = sum(new * past + new * (new + 1) // 2 for new, past in parts)"]
    lines += ["        return factor * (max(StepTime(*compute)(parts), StepTime(*memory)(parts)) + pair_s * pairs)"]
    lines += ["    return step_time", f"step_times = [make_step_time(**one) for one in {case['step_times']}]"]
    calls = (f"step_times[{which}], {', '.join(map(str, rest))}" for which, *rest in case["calls"])
    return "\n".join([*lines, *(f"print(token_budget({call}))" for call in calls)])
