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
CALLS = ("allocate", "share", "release", "register", "find")
WEIGHTS = {"BlockManager": (0.4, 0.15, 0.45, 0, 0), "PrefixBlocks": (0.25, 0.05, 0.3, 0.1, 0.3)}
"""How often a script makes each call."""


def _as_inputs(case: dict[str, Any]) -> Arrays:
    return {"case": encode_value(case)}


def draw_blocks(rng: Rng, case: Case) -> Arrays:
    """A script of calls on a block manager, of which all are allowed.

    `cached`: every block is known at first. `reads`: how often a large pool is asked what is available after each call.
    """
    p, script, references = case.params, list[list[Any]](), list[int]()
    pool, latest, given = Pool(p["num_blocks"]), dict[int, int](), 0

    def add(call: str, block: int | None = None, key: int | None = None) -> int | None:
        """Make a call, of a block by the place at which it was given last; gives the block that comes back."""
        nonlocal given
        script.append([call, *([] if block is None else [latest[block]]), *([] if key is None else [key])])
        found: int | None = getattr(pool, call)(*([] if block is None else [block]), *([] if key is None else [key]))
        if call in ("allocate", "find"):
            given += 1
            if found is not None:
                latest[found] = given - 1
        return found

    for key in range(p["num_blocks"] if p.get("cached") else 0):
        block = add("allocate")
        add("register", block, key)
        add("release", block)
    calls, places = rng.choice(len(CALLS), p["calls"], p=WEIGHTS[p["manager"]]), rng.random(p["calls"])
    for call, at, key in zip(calls, places, rng.integers(0, 2 * p["num_blocks"] + 1, p["calls"]), strict=True):
        name, some = CALLS[call], int(at * len(references))
        if name == "allocate" and (block := add(name)) is not None:
            references.append(block)
        elif name == "find" and (found := add(name, key=int(key))) is not None and at < 0.5:
            add("share", found)
            references.append(found)
        elif name == "share" and references:
            add(name, references[some])
            references.append(references[some])
        elif name == "release" and references:
            references[some], references[-1] = references[-1], references[some]
            add(name, references.pop())
        elif name == "register" and references:
            add(name, references[some], int(key))
    sizes = {"manager": p["manager"], "num_blocks": p["num_blocks"], "reads": p.get("reads", 0)}
    return _as_inputs({**sizes, "script": script})


def code_of_blocks(arrays: Arrays) -> str:
    """The first calls of a script, and counts after them."""
    case = decode_value(arrays["case"])
    name, given = case["manager"], 0
    lines = [f"manager, other = {name}({case['num_blocks']}), {name}({case['num_blocks']})", "other.allocate()"]
    for call, *arguments in case["script"][:SHOWN]:
        if call == "allocate":
            lines += ["try:", f"    block{given} = manager.allocate()", "except ValueError:", f"    block{given} = -1"]
        elif call == "find":
            lines.append(f"block{given} = manager.find({arguments[0]})")
        else:
            lines.append(f"manager.{call}({', '.join([f'block{arguments[0]}', *map(str, arguments[1:])])})")
        given += call in ("allocate", "find")
    references = "" if case["reads"] else "manager.references, "
    return "\n".join([*lines, f"print({references}manager.available, other.available)"])


def draw_tables(rng: Rng, case: Case) -> Arrays:
    """A script of calls on tables, of which all are allowed: what is committed was reserved, and no prompt ends.

    `single`: every count is one token or none, as in decode steps. `evicted`: it begins with two equal prompts, of
    whose cached blocks the first one is evicted, and a third such.
    """
    p = case.params
    prefix, size, num_blocks = p["tables"] == "PrefixTables", p["block_size"], p["num_blocks"]
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
        add("start", 0, 1)
        add("start", 1, 1)
        add("try_reserve", [[0, size], [1, 3 * size]], 0)
        add("commit", [[0, size]])
        add("commit", [[1, 3 * size]])
        add("drop", 0)
        add("start", 2, 1)
        add("try_reserve", [[2, (num_blocks - 3) * size]], 0)
        add("start", 3, len(tokens))
    while len(script) < p["calls"]:
        what, some = rng.random(), [seq for seq in tables.tables if rng.random() < 0.6]
        if not tables.tables or (len(tables.tables) < p["sequences"] and what < 0.25):
            longest = p["longest"] if p.get("single") else 1 + draw(p["longest"] - 1)
            prompts.append(_draw_prompt(rng, prompts if prefix else [], longest))
            length = len(prompts[-1])
            add("start", len(prompts) - 1, 1 + draw(length - 1) if rng.random() < 0.4 else length)
        elif what < 0.55:
            counts = [(seq, draw(len(prompts[seq]) - tables.computed[seq])) for seq in some]
            left = tables.pool.available - sum(tables.missing(dict(counts)).values())
            add("try_reserve", counts, max(0, left + draw(1)) if rng.random() < 0.4 else draw(1))
        elif what < 0.85:
            add("commit", [(seq, draw(tables.reserved[seq] - tables.computed[seq])) for seq in some])
        else:
            add("drop", int(rng.choice(list(tables.tables))))
    near = [(blocks, more) for blocks in (1, 2, 7) for more in (-1, 0, 1)]
    others = (size, *rng.integers(1, 1000, 9).tolist())
    sizes = [(size, 0), *((other, other * blocks + more) for other in others for blocks, more in near)]
    names = {"tables": p["tables"], "manager": "PrefixBlocks" if prefix else "BlockManager", "num_blocks": num_blocks}
    return _as_inputs({**names, "block_size": size, "prompts": prompts, "script": script, "sizes": sizes})


def _draw_prompt(rng: Rng, others: Sequence[list[int]], length: int) -> list[int]:
    """A prompt of its own, or one that repeats another, or begins as it does."""
    old = others[-1 - int(rng.integers(min(3, len(others))))] if others and rng.random() < 0.8 else []
    begins = old[: int(rng.integers(len(old) + 1))] if rng.random() < 0.4 else old
    return [*begins, *rng.integers(0, 2, max(length - len(begins), 0 if begins else 1)).tolist()]


def code_of_tables(arrays: Arrays) -> str:
    """The first calls of a script, and tables and counts after them."""
    case = decode_value(arrays["case"])
    prompts, lines = case["prompts"], [f"tables = {_code_of_empty_tables(case)}"]
    tables = Tables(case["num_blocks"], case["block_size"], prefix=case["tables"] == "PrefixTables")
    for call, *arguments in case["script"][:SHOWN]:
        if call == "start":
            lines.append(f"text{arguments[0]} = tables.start({prompts[arguments[0]][: arguments[1]]})")
        elif call == "try_reserve":
            counts = ", ".join(f"text{seq}: {count}" for seq, count in arguments[0])
            lines.append(f"print(tables.try_reserve({{{counts}}}, spare={arguments[1]}))")
        elif call == "commit":
            firsts = tables.computed
            new = [f"text{seq}: {prompts[seq][firsts[seq] : firsts[seq] + count]}" for seq, count in arguments[0]]
            lines.append(f"tables.commit({{{', '.join(new)}}})")
        else:
            lines.append(f"tables.drop(text{arguments[0]})")
        tables.play(prompts, call, *arguments)
    return "\n".join([*lines, "print(tables.tables, tables.blocks.references, tables.blocks.available)"])


def _code_of_empty_tables(case: dict[str, Any]) -> str:
    return f"{case['tables']}({case['manager']}({case['num_blocks']}), {case['block_size']})"


BASES = (1, 10, 31, 33, 37, 131, 256, 257, 1000, 1009, 10_000, 65_536)
"""Bases of sums in which tokens are taken for digits, although there are more tokens than digits."""
COLLIDING = (
    *([16867, 28445, 41977, 11869], [4146, 1001, 32096, 3]),
    *([26703, 24422, 14245, 57041], [4204, 4795, 18578, 3]),
)
"""Two blocks for which CPython's `hash` of a tuple gives one number, and two behind an element whose hash is 0."""


def draw_keys(rng: Rng, case: Case) -> Arrays:
    """Prompts with a common prefix that differ in one token, and with equal blocks after different prefixes.

    `near`: blocks that are equal for whoever joins digits, adds, counts to a base, hashes, or cuts tokens short.
    """
    p = case.params
    size, blocks = p["block_size"], p["blocks"]
    base = rng.integers(0, p.get("vocabulary", 9), size * blocks + p.get("more", 0)).tolist()
    texts = [base, base[: size * blocks]]
    if not p.get("alone"):
        for place in (0, size - 1, size * (blocks // 2), size * blocks - 1):
            texts.append([token + (i == place) for i, token in enumerate(base)])
        block, zeros = base[:size], [0] * size
        texts += [block * 3, zeros + block, base[:-1], zeros * 3, [], block[::-1] + zeros]
    if p.get("near"):
        one, other = (int(token) for token in rng.integers(70_000, 130_000, 2))
        digit, ten = int(rng.integers(1, 10)), int(rng.integers(10, 100))
        pairs = [(one, other), (other, one), (one, other + 256), (one, other + 65_536)]
        pairs += [(ten, 100 * digit + ten), (10 * ten + digit, ten), *((one + 1, other - base) for base in BASES)]
        texts += [[*pair, *base[: size - 2]] for pair in pairs] + list(COLLIDING)
    return _as_inputs({"texts": texts, "block_size": size})


def expect_keys(arrays: Arrays) -> Arrays:
    """Equal numbers for equal prefixes of full blocks."""
    case, seen = decode_value(arrays["case"]), dict[tuple[int, ...], int]()
    size = case["block_size"]
    prefixes = [tuple(text[:end]) for text in case["texts"] for end in range(size, len(text) + 1, size)]
    counts, wide = ([len(text) // of for text in case["texts"]] for of in (size, 2 * size))
    equal = [seen.setdefault(prefix, len(seen)) for prefix in prefixes]
    return {"counts": np.array(counts), "equal": np.array(equal), WIDE: np.array(wide)}


def code_of_keys(arrays: Arrays) -> str:
    """Keys of all prompts, and how many there are at another size."""
    case = decode_value(arrays["case"])
    texts, size = mix_kinds(case["texts"]), case["block_size"]
    return f"for text in {texts}:\n    print(keys(text, {size}), len(keys(text, {2 * size})))"


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
        limits=(p["seqs"], p["seqs"] + p["budget"]),
        clock=(1.0, 0.0, 0.0),
        prompts=prompts,
        outputs=outputs,
        arrivals_s=arrivals_s.tolist(),
        leaves_s=leaves_s.tolist(),
        admits=(1 + rng.choice(n - 1, p.get("admits", 0), replace=False)).tolist(),
    )


def _as_load(p: Any, **load: Any) -> Arrays:
    names = {name: p[name] for name in ("scheduler", "tables", "block_size")}
    manager = "PrefixBlocks" if p["tables"] == "PrefixTables" else "BlockManager"
    max_steps = 4 * (sum(map(len, load["prompts"])) + sum(load["outputs"])) + 100
    return _as_inputs({**names, "manager": manager, "max_steps": max_steps, **load})


TICK_S = 2.0**-40
"""What the clocks of `token_budget` count in, and the times of requests, so that sums are exact."""


def draw_traffic(rng: Rng, case: Case) -> Arrays:
    """Requests at random times, in phases: how many, how many a second, tokens of prompts, and of outputs."""
    p = case.params
    gaps_s = np.concatenate([rng.exponential(1 / rate, n) for n, rate, _, _ in p["phases"]])
    lengths, outputs = (
        np.concatenate([rng.integers(sizes[i][0], sizes[i][1], sizes[0]) for sizes in p["phases"]]) for i in (2, 3)
    )
    arrivals_s = np.round((p.get("from_s", 0.0) + np.cumsum(gaps_s)) / TICK_S) * TICK_S
    return _as_load(
        {"scheduler": "PromisedScheduler", "tables": "PageTables", "block_size": 16},
        num_blocks=400,
        limits=(12, 2000),
        clock=p["clock"],
        objective=p["objective"],
        prompts=[rng.integers(0, VOCABULARY, length).tolist() for length in lengths],
        outputs=outputs.tolist(),
        arrivals_s=arrivals_s.tolist(),
        leaves_s=[math.inf] * len(outputs),
        admits=[],
    )


def code_of_load(arrays: Arrays) -> str:
    """The requests of a load, and a scheduler that serves them."""
    load = decode_value(arrays["case"])
    requests = zip(*(load[name] for name in ("arrivals_s", "prompts", "outputs", "leaves_s")), strict=True)
    lines = [
        f"    Request({arrival_s:g}, {prompt}, {count}, {leave_s:g})," for arrival_s, prompt, count, leave_s in requests
    ]
    lines = ["from math import inf", "requests = [", *lines, "]"]
    made = f"scheduler = {load['scheduler']}({_code_of_empty_tables(load)}, Limits{tuple(load['limits'])}"
    if load["admits"]:
        lines += [f"{made})", "texts = [scheduler.add(one.prompt, one.writes) for one in requests]"]
        lines += [f"print([scheduler.admit(texts[i]) for i in {load['admits']}])", "print(scheduler.schedule().new)"]
    elif "objective" in load:
        lines += [f"clock, objective = Clock{tuple(load['clock'])}, Objective{tuple(load['objective'])}"]
        lines += [f"{made}, clock, objective)", "steps, times_s = drive(scheduler, requests, clock)"]
        lines += [
            "for one, times in zip(requests, times_s):",
            "    gap_s = (times[-1] - times[0]) / max(1, len(times) - 1)",
        ]
        lines += ['    print(f"first token after {times[0] - one.comes_s:.3f} s, one every {gap_s:.4f} s")']
    else:
        lines += [f"{made})", "for step, fed in enumerate(drive(scheduler, requests)[0]):", "    print(step, fed)"]
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
    """Clocks in whole ticks, and calls with each: a limit between two chunks, at one, a tick before one, or too short.

    Of two clocks the second takes twice as long. After each call come calls in which one argument differs.
    """
    p, clocks, calls = case.params, list[dict[str, Any]](), list[Any]()
    least, most = np.array([(1e-3, 2e-5, 1e-8), (4e-3, 4e-5, 4e-8)]) / TICK_S
    for clock, end in enumerate(("between", "exact", "short", "late", "tick")):
        decodes, past = Range(0, p["decodes"]).draw(rng), Range(0, p["past"]).draw(rng)
        power = 1 << int(rng.integers(1, 7))
        chunk = {"between": p["chunk"], "exact": power, "short": power - 1, "late": 1, "tick": 3 * power}[end]
        compute = rng.integers(least.astype(int), most.astype(int))
        memory = compute // (1, 20, 1) * (0, 1, 3)
        memory[0] = (compute - memory) @ (1, decodes + chunk // 2, decodes * past) if rng.random() < 0.5 else 0
        pair_s = int(rng.integers(0, int(5e-9 / TICK_S))) * TICK_S if rng.random() < 0.5 else 0.0
        lines = {"compute": (compute * TICK_S).tolist(), "memory": (memory * TICK_S).tolist(), "pair_s": pair_s}
        clocks += [{**lines, "factor": factor} for factor in (1, 2)]
        times_s = [float(_seconds(clocks[-2], decodes, past, tokens)) for tokens in (1, chunk, chunk + 1)]
        limits_s = {"between": (times_s[1] + times_s[2]) / 2, "exact": times_s[1], "late": 0.9 * times_s[0]}
        call = np.array([2 * clock, decodes, past, limits_s.get(end, times_s[2] - TICK_S)])
        changes = ((1, 0, 0), (0, 2, 0), (0, 0, 1000))
        calls += [call, *(np.add(call, (*change, 0)) for change in changes), call * (1, 1, 1, 0.5)]
    return _as_inputs({"clocks": clocks, "calls": [[*map(int, call[:3]), float(call[3])] for call in calls]})


def _seconds(clock: dict[str, Any], decodes: int, past: int, chunk: int | np.ndarray) -> np.ndarray:
    """Seconds of a step, for a chunk or for each of several."""
    lines = (clock["compute"], clock["memory"])
    times_s = (step_s + token_s * (decodes + chunk) + past_s * decodes * past for step_s, token_s, past_s in lines)
    pairs = decodes * (past + 1) + chunk * (chunk + 1) // 2
    return np.asarray(clock["factor"] * (np.maximum(*times_s) + clock["pair_s"] * pairs))


def expect_budgets(arrays: Arrays) -> Arrays:
    """Count the chunks that end in time."""
    case, tokens = decode_value(arrays["case"]), []
    for clock, decodes, past, tpot_s in case["calls"]:
        in_time = _seconds(case["clocks"][clock], decodes, past, np.arange(1, 1 << 14)) <= tpot_s  # more than any chunk
        tokens.append(decodes + max(1, int(in_time.sum())))
    return {"tokens": np.array(tokens)}


def code_of_budgets(arrays: Arrays) -> str:
    """Clocks as functions of parts, and the calls."""
    case = decode_value(arrays["case"])
    lines = ["def make_clock(compute, memory, pair_s, factor):", "    def clock(parts):"]
    lines += ["        pairs = sum(new * past + new * (new + 1) // 2 for new, past in parts)"]
    lines += ["        return factor * (max(Clock(*compute)(parts), Clock(*memory)(parts)) + pair_s * pairs)"]
    lines += ["    return clock", f"clocks = [make_clock(**clock) for clock in {case['clocks']}]"]
    return "\n".join([*lines, *(f"print(token_budget(clocks[{n}], *{rest}))" for n, *rest in case["calls"])])
