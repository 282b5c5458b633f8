"""Checks of tasks 1, 5, 6 and of attention: what is kept, and which tokens look at it. Oracle: lists and loops."""

from __future__ import annotations

import numpy as np

from mlsys_lab.checks.deciding.compare import close
from mlsys_lab.checks.deciding.kv_cache.oracle import Lists, Script, mix, read_plan
from mlsys_lab.checks.learner import kv_cache as calls
from mlsys_lab.checks.learner.kv_cache import follow
from mlsys_lab.checks.learner.spec import Arrays, Case, Check

LAYERS, HEAD = 3, 4
"""Layers and size of a head of the aging model, whose keys these are."""
PAIRS = (("keys", "k"), ("values", "v"))
LONG = 20
"""Steps of a plan from which on its code is a loop."""
LOOP = """a = cache.start()
for first in range(0, {tokens}, {count}):
    new = slice(first, first + {count})
    got = [cache.update(layer, a, k[layer, :, new], v[layer, :, new]) for layer in (0, 1, 2)]
    cache.advance(a, {count})
got"""


# --- cache, ring ------------------------------------------------------------------------------------------------------


def _draw_updates(rng: np.random.Generator, case: Case) -> Arrays:
    """A plan, keys and values of all of its tokens, and the sizes of the cache."""
    p = case.params
    plan = read_plan(p["plan"])
    shape = (LAYERS, p.get("kv_heads", 4), int(plan.clip(min=0).sum()), HEAD)
    sizes = {name: np.array(p[name]) for name in ("capacity", "window", "chunk") if name in p}
    drawn = {name: rng.standard_normal(shape).astype(p.get("dtype", "float64")) for name in "kv"}
    rows = np.array(p.get("sequences", plan.shape[1]))
    return {**drawn, "plan": plan, "sequences": rows, "told": np.array(p.get("told", 0)), **sizes}


def _expect_updates(arrays: Arrays) -> Arrays:
    """All tokens that a sequence has, or those that the first new one sees in a window, and the new ones."""
    lists, fed, answers = Lists(), 0, Arrays()
    for step, new in follow(arrays["plan"], lists):
        for sequence, count in new.items():
            past, numbers = len(lists.kept[sequence]), lists.kept[sequence]
            numbers += range(fed, fed + count)
            fed += count
            first = max(0, past - int(arrays["window"]) + 1) if "window" in arrays else 0
            for layer in range(LAYERS) if step >= int(arrays["told"]) else ():
                where = f"of step {step}, layer {layer}, sequence {sequence}"
                answers[f"positions {where}"] = np.arange(first, len(numbers))
                answers |= {f"{name} {where}": arrays[x][layer, :, numbers[first:]].swapaxes(0, 1) for name, x in PAIRS}
    return answers


def _code_of_updates(arrays: Arrays) -> str:
    """A plan as code; a long one, which feeds one sequence as many tokens in each step, as a loop."""
    rows, single = arrays["sequences"], ".float()" if arrays["k"].dtype == np.float32 else ""
    window, made = "", f"Contiguous(model, sequences={rows}, capacity={arrays.get('capacity')})"
    if "window" in arrays:
        window, made = (
            f", window={arrays['window']}",
            f"SlidingWindow(model, sequences={rows}, chunk={arrays['chunk']})",
        )
    script, fed = Script(f"model = AgingModel(kv_heads={arrays['k'].shape[1]}{window}){single}", f"cache = {made}"), 0
    script.lines.insert(0, 'k, v = map(torch.from_numpy, (given["k"], given["v"]))  # (layers, heads, tokens, size)')
    if len(arrays["plan"]) > LONG:
        count, tokens = arrays["plan"].max(), arrays["k"].shape[2]
        return "\n".join([*script.lines, LOOP.format(count=count, tokens=tokens)])
    for _, new in follow(arrays["plan"], script):
        ends = fed + np.cumsum([0, *new.values()])
        parts = [(script.name(sequence), f":, {i}:{j}") for sequence, i, j in zip(new, ends, ends[1:], strict=False)]
        updates = [(layer, *part) for layer in range(LAYERS) for part in parts]
        script.lines += [f"cache.update({layer}, {s}, k[{layer}, {at}], v[{layer}, {at}])" for layer, s, at in updates]
        script.lines += [f"cache.advance({script.name(sequence)}, {count})" for sequence, count in new.items()]
        fed = int(ends[-1])
    return "\n".join(script.lines)


# --- masks and attention ----------------------------------------------------------------------------------------------


def _draw_places(rng: np.random.Generator, case: Case) -> Arrays:
    """Positions of new tokens, and of the keys up to them, in disorder where the case says so."""
    past, new = case.params["past"], case.params["new"]
    keys = np.arange(case.params.get("first", 0), past + new)
    if case.params.get("disorder"):
        rng.shuffle(keys)
    window = {"window": np.array(case.params["window"])} if "window" in case.params else {}
    return {"queries": np.arange(past, past + new), "keys": keys, **window}


def _expect_mask(arrays: Arrays) -> Arrays:
    window = int(arrays["window"]) if "window" in arrays else len(arrays["keys"]) + 1
    seen = [[key in range(query - window + 1, query + 1) for key in arrays["keys"]] for query in arrays["queries"]]
    return {"mask": np.array(seen, dtype=bool)}


def _draw_attention(rng: np.random.Generator, case: Case) -> Arrays:
    """Queries, keys, values and a mask: causal, or any of which every query sees something."""
    p = case.params
    n, k, t, s, h = p["N"], p.get("K", p["N"]), p["T"], p["S"], p.get("H", 6)
    if p.get("any"):
        mask = rng.random((t, s)) < 0.5
        mask[np.arange(t), rng.integers(0, s, t)] = True
    else:
        mask = np.arange(s) <= np.arange(s - t, s)[:, None]
    drawn = {"q": rng.standard_normal((n, t, h)) * p.get("size", 1.0)}
    drawn |= {name: rng.standard_normal((k, s, h)) for name in ("keys", "values")}
    return {name: x.astype(p.get("dtype", "float64")) for name, x in drawn.items()} | {"mask": mask}


def _expect_attention(arrays: Arrays) -> Arrays:
    """Each head of each query by itself; equal, consecutive shares of the query heads have one key head."""
    q, keys, values = arrays["q"], arrays["keys"], arrays["values"]
    owners = np.repeat(np.arange(len(keys)), len(q) // len(keys)).tolist()
    heads = np.empty(q.shape, q.dtype)
    for n, owner in enumerate(owners):
        for t, seen in enumerate(arrays["mask"]):
            heads[n, t] = mix(q[n, t], keys[owner, seen], values[owner, seen])
    return {"heads": heads}


CACHE = (
    Check(
        name="cache",
        title="Keys and values, kept by sequence and layer",
        points=10,
        cases=(
            Case("one sequence, token by token", {"plan": "+ 1 1 1 1", "capacity": 6}),
            Case("a prompt, then tokens, up to the last place", {"plan": "+ 5 1 1", "capacity": 7}),
            Case("three sequences in turns", {"plan": "++0 23+ 104 310 112", "capacity": 9, "kv_heads": 2}),
            Case("tokens are taken back", {"plan": "++ 54 c1 21 1a 12", "capacity": 8, "kv_heads": 1}),
            Case(
                "another gets a dropped one's row",
                {"plan": "++ 42 -1 +1 11 20 0- 1+ 13", "capacity": 7, "sequences": 2},
            ),
            Case("numbers of single precision", {"plan": "+ 3 2", "capacity": 5, "dtype": "float32"}),
            Case(
                "five sequences",
                {"plan": "+++++ 12345 10b21 -120e +1111 30012", "capacity": 11, "kv_heads": 2},
                hidden=True,
            ),
        ),
        inputs=_draw_updates,
        run=calls.cache,
        expect=_expect_updates,
        compare=close,
        describe=_code_of_updates,
        pointer="Which row, which layer, from which place on? And whose is the memory in which k and v came?",
        hint="New tokens go behind the length(sequence) that are kept, whatever has lain there; what comes back ends "
        "with the last new one. Copy numbers into memory of the cache.",
        uses=("AgingModel", "Contiguous"),
    ),
)
ATTENTION = (
    Check(
        name="visible",
        title="Which keys a token sees",
        points=4,
        cases=(
            Case("a chunk, keys in disorder", {"past": 7, "new": 4, "disorder": True}),
            Case("a prompt", {"past": 0, "new": 4}),
            Case("one token", {"past": 6, "new": 1}),
            Case("a chunk", {"past": 5, "new": 3}),
            Case("keys in disorder, the first of them gone", {"past": 6, "new": 3, "first": 2, "disorder": True}),
            Case("many", {"past": 23, "new": 17, "disorder": True}, hidden=True),
        ),
        inputs=_draw_places,
        run=calls.visible,
        expect=_expect_mask,
        compare=close,
        ask="visible(queries, keys)",
        pointer="Positions decide, not places in the arrays: which of the two has the larger position?",
        hint="Hold each query's position against each key's, rows against columns; a token sees itself, too.",
        uses=("visible",),
    ),
    Check(
        name="attend",
        title="Attention to what the mask lets through",
        points=7,
        cases=(
            Case("one token", {"N": 2, "T": 1, "S": 5}),
            Case("a chunk", {"N": 3, "T": 4, "S": 9}),
            Case("a mask with holes", {"N": 2, "T": 5, "S": 7, "any": True}),
            Case("large scores", {"N": 2, "T": 3, "S": 6, "size": 300.0}),
            Case("one key", {"N": 4, "T": 1, "S": 1}),
            Case("single precision, heads of 16", {"N": 2, "T": 3, "S": 8, "H": 16, "dtype": "float32"}),
            Case("many", {"N": 5, "T": 13, "S": 31, "H": 10, "any": True}, hidden=True),
        ),
        inputs=_draw_attention,
        run=calls.attend,
        expect=_expect_attention,
        compare=close,
        ask="attend(q, keys, values, mask)",
        pointer="Do the shares of a query add to 1, and over which keys? What are the scores divided by?",
        hint="Scores are products of q and keys over H, divided by the root of H. Where the mask is False they "
        "become minus infinity before the softmax over keys.",
        uses=("attend",),
    ),
)
LATER = (
    Check(
        name="attend_grouped",
        title="Query heads that share keys",
        points=8,
        cases=(
            Case("two heads of keys for six", {"N": 6, "K": 2, "T": 3, "S": 7}),
            Case("multi-query", {"N": 4, "K": 1, "T": 2, "S": 5}),
            Case("every head its own", {"N": 3, "K": 3, "T": 4, "S": 4}),
            Case("one token", {"N": 8, "K": 4, "T": 1, "S": 6}),
            Case("holes, single precision", {"N": 4, "K": 2, "T": 5, "S": 6, "any": True, "dtype": "float32"}),
            Case("many", {"N": 12, "K": 3, "T": 7, "S": 19, "any": True}, hidden=True),
        ),
        inputs=_draw_attention,
        run=calls.attend_grouped,
        expect=_expect_attention,
        compare=close,
        ask="attend_grouped(q, keys, values, mask)",
        pointer="Which query heads look at key head 0? And which row of the mask has query t of head 1?",
        hint="Consecutive query heads share. Laid out as (K, G, T, H), then (K, G times T, H), a group's queries are "
        "rows of one head; every head of the group needs the mask's T rows again.",
        uses=("attend_grouped",),
    ),
    Check(
        name="in_window",
        title="Which keys a token sees in a window",
        points=4,
        cases=(
            Case("a chunk, keys in disorder", {"past": 8, "new": 3, "window": 4, "disorder": True}),
            Case("one token", {"past": 8, "new": 1, "window": 3}),
            Case("a chunk", {"past": 6, "new": 4, "window": 3}),
            Case("a window of one token", {"past": 2, "new": 3, "window": 1}),
            Case("a window longer than the text", {"past": 1, "new": 3, "window": 9}),
            Case("the first keys are gone", {"past": 7, "new": 3, "window": 4, "first": 3, "disorder": True}),
            Case("many", {"past": 29, "new": 11, "window": 8, "disorder": True}, hidden=True),
        ),
        inputs=_draw_places,
        run=calls.in_window,
        expect=_expect_mask,
        compare=close,
        ask="in_window(queries, keys, window)",
        pointer="How many True are in a row of a query that has enough before it?",
        hint="Exactly `window` of them: the token itself, and keys up to window − 1 before it; keys after it never.",
        uses=("in_window",),
    ),
    Check(
        name="ring",
        title="A ring for a model with a window",
        points=9,
        cases=(
            Case("token by token", {"plan": "+ 1 1 1 1 1 1 1 1", "window": 4, "chunk": 1}),
            Case("chunks", {"plan": "+ 3 3 2 3 1 3", "window": 5, "chunk": 3, "kv_heads": 2}),
            Case("two sequences", {"plan": "++ 21 12 22 02 11", "window": 3, "chunk": 2}),
            Case("three, token by token", {"plan": "+++ 111 101 110 111", "window": 2, "chunk": 1}),
            Case("a window of one token", {"plan": "+ 2 1 2", "window": 1, "chunk": 2}),
            Case("a window longer than the text", {"plan": "+ 3 2", "window": 7, "chunk": 4}),
            Case("tokens are taken back", {"plan": "+ 4 4 f 3 4 i 2", "window": 4, "chunk": 4, "kv_heads": 1}),
            Case("a row is used again", {"plan": "+ 3 3 - + 2 2", "window": 4, "chunk": 3, "sequences": 1}),
            Case("single precision", {"plan": "+ 2 2 1", "window": 2, "chunk": 2, "dtype": "float32"}),
            Case("a long text", {"plan": "+" + 50 * " 9", "window": 6, "chunk": 9, "told": 50}),
            Case(
                "they come and go",
                {"plan": "++0 41+ 432 2c4 444 -14 +40 301", "window": 6, "chunk": 4, "kv_heads": 2},
                hidden=True,
            ),
        ),
        inputs=_draw_updates,
        run=calls.ring,
        expect=_expect_updates,
        compare=close,
        describe=_code_of_updates,
        pointer="Window 4, chunks of 3: what does the pass over tokens 9, 10, 11 see, and in how many slots does it "
        "lie?",
        hint="The first new token sees window − 1 back, and all new ones must lie beside these. Tokens go to their "
        "position modulo the slots; what comes back begins window − 1 before the first new one.",
        uses=("AgingModel", "SlidingWindow"),
        memory_bytes=192 << 10,
    ),
)
