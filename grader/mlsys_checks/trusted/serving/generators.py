"""Generators of lab 11's cases, and oracles of its functions.

`draw_…` returns the inputs of a case: a script of calls, which are made on the reference while they are drawn, a
workload of requests, or arguments of a function, whose results `expect_…` returns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.serving import VOCAB_SIZE
from mlsys_checks.sandboxed.spec import Arrays, Case, Range
from mlsys_checks.sandboxed.values import decode_value, encode_value
from mlsys_checks.trusted.serving.replay import ManagerScript, PoolScript

Rng = np.random.Generator
CALLS = ("allocate", "touch", "free", "cache", "get_cached_block")
CALL_PROBS = {"BlockPool": (0.4, 0.15, 0.45, 0, 0), "PrefixBlockPool": (0.25, 0.05, 0.3, 0.1, 0.3)}
"""Probability of each of CALLS in a script, by class of pool."""


def _as_inputs(case: dict[str, Any]) -> Arrays:
    return {"case": encode_value(case)}


def draw_pool_script(rng: Rng, case: Case) -> Arrays:
    """Draw a script of valid calls on a block pool.

    Before the first drawn call all blocks are cached (`cached`), or some are allocated (`held`). `large`: the state
    after a call is the number of free blocks alone.
    """
    p, calls, references = case.params, list[list[Any]](), list[int]()  # a block for each reference, as an index
    script = PoolScript(p)

    def add(call: str, *arguments: int) -> int | None:
        """Add a call; return the index of the block that it returns, if any."""
        calls.append([call, *arguments])
        return None if script.make_call(call, *arguments) is None else len(script.blocks) - 1

    for i in range(p["num_blocks"] if p.get("cached") else 0):
        add("allocate")
        add("cache", i, i)
        add("free", i)
    for _ in range(p.get("held", 0)):
        add("allocate")
        references.append(len(script.blocks) - 1)
    drawn = rng.choice(CALLS, p["calls"], p=CALL_PROBS[p["pool"]]).tolist()
    hashes = rng.integers(0, 2 * p["num_blocks"] + 1, p["calls"]).tolist()
    for call, at, block_hash in zip(drawn, rng.random(p["calls"]), hashes, strict=True):
        some = int(at * len(references))
        if call == "allocate" and (found := add(call)) is not None:
            references.append(found)
        elif call == "get_cached_block" and (found := add(call, block_hash)) is not None and at < 0.5:
            add("touch", found)
            references.append(found)
        elif call == "touch" and references:
            add(call, references[some])
            references.append(references[some])
        elif call == "free" and references:
            add(call, references.pop(some))
        elif call == "cache" and references:
            add(call, references[some], block_hash)
    return _as_inputs({**{name: p.get(name, 0) for name in ("pool", "num_blocks", "large")}, "script": calls})


def draw_manager_script(rng: Rng, case: Case) -> Arrays:
    """Draw a script of valid calls on a block manager, which compute no more tokens than a sequence has slots for.

    `single`: every call is for at most one token, as in decode steps. `evicted`: two equal prompts are cached, their
    first block is evicted, and an equal prompt follows.
    """
    p, calls = case.params, list[list[Any]]()
    size, num_blocks = p["block_size"], p["num_blocks"]
    script = ManagerScript(p)
    prompts = script.prompts

    def add(call: str, *arguments: int) -> None:
        calls.append([call, *arguments])
        script.make_call(call, *arguments)

    def draw(most: int) -> int:
        most = min(most, 1) if p.get("single") else most
        return most if rng.random() < 0.3 else int(rng.integers(0, most + 1))

    for tokens in range(2 * size + 2):
        add("blocks_for", tokens)
    if p.get("evicted"):
        token_ids = rng.integers(0, 3, 3 * size + 1).tolist()
        prompts += [token_ids, token_ids, [3] * num_blocks * size, token_ids]
        for i, count in ((0, size), (1, 3 * size)):
            add("allocate_prefix", i, 1)
            add("allocate_slots", i, count, 0)
        add("cache_full_blocks", 0, size)
        add("cache_full_blocks", 1, 3 * size)
        add("free", 0)
        add("allocate_prefix", 2, 1)
        add("allocate_slots", 2, (num_blocks - 3) * size, 0)
        add("allocate_prefix", 3, len(token_ids))
    while len(calls) < p["calls"]:
        what, seqs = rng.random(), list(script.tables)
        if not seqs or (len(seqs) < p["sequences"] and what < 0.2):
            longest = p["longest"] if p.get("single") else 1 + draw(p["longest"] - 1)
            prompts.append(_draw_prompt(rng, prompts if script.enable_prefix_caching else [], longest))
            length = len(prompts[-1])
            add("allocate_prefix", len(prompts) - 1, 1 + draw(length - 1) if rng.random() < 0.4 else length)
            continue
        i = int(rng.choice(seqs))
        left, slots = len(prompts[i]) - script.computed[i], len(script.tables[i]) * size - script.computed[i]
        if what < 0.55:
            count = draw(left)
            spare = script.pool.num_free_blocks - script.num_missing_blocks(i, count)
            add("allocate_slots", i, count, max(0, spare + draw(1)) if rng.random() < 0.4 else draw(1))
        elif what < 0.87:
            add("cache_full_blocks", i, draw(min(left, slots)))
        else:
            add("free", i)
    names = {name: p[name] for name in ("manager", "num_blocks", "block_size")}
    return _as_inputs({**names, "prompts": prompts, "script": calls})


def _draw_prompt(rng: Rng, others: Sequence[list[int]], length: int) -> list[int]:
    """Draw a prompt that is new, repeats an earlier prompt, or shares a prefix with it."""
    old = others[-1 - int(rng.integers(min(3, len(others))))] if others and rng.random() < 0.8 else []
    begins = old[: int(rng.integers(len(old) + 1))] if rng.random() < 0.4 else old
    return [*begins, *rng.integers(0, 2, max(length - len(begins), 0 if begins else 1)).tolist()]


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
    """Return the number of hashes at both block sizes, and which are equal: those of equal prefixes of full blocks."""
    case, seen = decode_value(arrays["case"]), dict[tuple[int, ...], int]()
    size = case["block_size"]
    prefixes = [tuple(prompt[:end]) for prompt in case["prompts"] for end in range(size, len(prompt) + 1, size)]
    counts = [len(prompt) // one for prompt in case["prompts"] for one in (size, 2 * size)]
    equal = [seen.setdefault(prefix, len(seen)) for prefix in prefixes]
    return {"numbers of hashes": np.array(counts), "which hashes are equal": np.array(equal)}


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

FIRST_ARRIVAL_S = 2.0
"""When requests of a Poisson workload begin to arrive: not at 0, where times would equal delays."""


def draw_poisson_workload(rng: Rng, case: Case) -> Arrays:
    """Draw Poisson arrivals in phases: number of requests, rate per second, ranges of prompt and output tokens."""
    p = case.params
    gaps_s = np.concatenate([rng.exponential(1 / rate, n) for n, rate, _, _ in p["phases"]])
    lengths, outputs = (
        np.concatenate([rng.integers(sizes[i][0], sizes[i][1], sizes[0]) for sizes in p["phases"]]) for i in (2, 3)
    )
    arrivals_s = np.round((FIRST_ARRIVAL_S + np.cumsum(gaps_s)) / TICK_S) * TICK_S
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


def draw_steps(rng: Rng, case: Case) -> Arrays:
    """Draw rows of prompt tokens, decoding sequences and token budget: full chunks, one token more or less, edges."""
    size = case.params["size"]
    chunk, decodes = rng.integers(1, size + 1, 8), rng.integers(0, size, 8)
    prompt = np.maximum(1, chunk * rng.integers(1, 9, 8) + rng.integers(-1, 2, 8))
    row = np.array([12 * chunk[0], decodes[0], decodes[0] + chunk[0]])
    edges = [(1, 0, 1), (size, 0, 1), (1, size, size + 1), *np.add(row, [(0, 0, 0), (1, 0, 0), (0, 1, 1), (0, 0, 1)])]
    return _as_inputs({"rows": np.vstack([edges, np.column_stack([prompt, decodes, decodes + chunk])]).tolist()})


def expect_steps(arrays: Arrays) -> Arrays:
    """Return the number of prefill chunks of each prompt."""
    rows = decode_value(arrays["case"])["rows"]
    return {"steps": np.array([len(range(0, prompt, tokens - decodes)) for prompt, decodes, tokens in rows])}


def draw_budgets(rng: Rng, case: Case) -> Arrays:
    """Draw step times in ticks, and calls with TPOT limits near the step time of some chunk.

    Limits are the step time of a chunk exactly, one tick less, and half-way to that of one more token; a chunk of one
    token is not in time at all. Each call is followed by calls with one argument changed.
    """
    p, calls = case.params, list[Any]()
    power = 1 << int(rng.integers(1, 7))
    least, most = (np.array(times_s) / TICK_S for times_s in ((1e-3, 2e-5, 1e-8), (4e-3, 4e-5, 4e-8)))
    for chunk in (p["chunk"], 1, power - 1, power, 3 * power):
        decodes, past = Range(0, p["decodes"]).draw(rng), Range(0, p["past"]).draw(rng)
        compute = rng.integers(least.astype(int), most.astype(int))
        memory = compute // (1, 20, 1) * (0, 1, 3)
        memory[0] = (compute - memory) @ (1, decodes + chunk // 2, decodes * past) if rng.random() < 0.5 else 0
        pair_s = int(rng.integers(0, int(5e-9 / TICK_S))) * TICK_S if rng.random() < 0.5 else 0.0
        step_time = {"compute": (compute * TICK_S).tolist(), "memory": (memory * TICK_S).tolist(), "pair_s": pair_s}
        step_time["factor"] = 1
        exact_s, next_s = (float(_seconds(step_time, decodes, past, tokens)) for tokens in (chunk, chunk + 1))
        for limit_s in (exact_s, exact_s - TICK_S, (exact_s + next_s) / 2):
            calls.append((step_time, decodes, past, limit_s))
        calls += [({**step_time, "factor": 2}, decodes, past, exact_s), (step_time, decodes, past, exact_s / 2)]
        calls += [(step_time, decodes + 2, past, exact_s), (step_time, decodes, past + 1000, exact_s)]
    return _as_inputs({"calls": calls})


def _seconds(step_time: dict[str, Any], decodes: int, past: int, chunk: int | np.ndarray) -> np.ndarray:
    """Return the time of a step in seconds, for one chunk size or an array of them."""
    lines = (step_time["compute"], step_time["memory"])
    times_s = (step_s + token_s * (decodes + chunk) + past_s * decodes * past for step_s, token_s, past_s in lines)
    pairs = decodes * (past + 1) + chunk * (chunk + 1) // 2
    return np.asarray(step_time["factor"] * (np.maximum(*times_s) + step_time["pair_s"] * pairs))


def expect_budgets(arrays: Arrays) -> Arrays:
    """Return the largest budget within the TPOT limit, by trying all chunk sizes."""
    tokens, chunks = list[int](), np.arange(1, 1 << 14)  # more than any chunk
    for step_time, decodes, past, tpot_s in decode_value(arrays["case"])["calls"]:
        in_time = _seconds(step_time, decodes, past, chunks) <= tpot_s
        tokens.append(decodes + max(1, int(in_time.sum())))
    return {"tokens": np.array(tokens)}
