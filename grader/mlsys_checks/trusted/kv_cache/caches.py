"""Checks of caches, tasks 1 and 6: what is kept, and what comes back. Oracle: lists of tokens."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.kv_cache import caches as calls
from mlsys_checks.sandboxed.kv_cache.plans import DROP, FAILED, OTHER, follow, kind_of_model
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.kv_cache.oracle import Lists, Script, pick_model, read_plan
from mlsys_lab.models.aging import AgingModel

HEAD = AgingModel().config.head_dim
"""Size of a head of the aging model, whose keys these are."""
PAIRS = (("keys", "k"), ("values", "v"))
LONG = 20
"""Steps of a plan from which on its code is a loop."""
LOOP = """a = cache.start()
for first in range(0, {tokens}, {count}):
    new = slice(first, first + {count})
    got = [cache.update(layer, a, k[layer, :, new], v[layer, :, new]) for layer in (0, 1, 2)]
    cache.advance(a, {count})
got"""
LOOP_OF_TEXTS = """for first in range(0, {tokens}, {count}):
    a, new = cache.start(), slice(first, first + {count})
    got = [cache.update(layer, a, k[layer, :, new], v[layer, :, new]) for layer in (0, 1, 2)]
    cache.advance(a, {count})
    cache.drop(a)
got"""


# --- cache, ring ------------------------------------------------------------------------------------------------------


def _draw_updates(rng: np.random.Generator, case: Case) -> Arrays:
    """A plan, keys and values of all of its tokens, and the sizes of the cache."""
    p = case.params
    plan = read_plan(p["plan"])
    shape = (p.get("n_layers", 3), p.get("kv_heads", 4), int(plan.clip(min=0).sum()), HEAD)
    sizes = {name: np.array(p[name]) for name in ("capacity", "chunk", "between") if name in p}
    drawn = {name: rng.standard_normal(shape).astype(p.get("dtype", "float64")) for name in "kv"}
    rows = np.array(p.get("sequences", plan.shape[1]))
    return {**drawn, "plan": plan, "sequences": rows, "told": np.array(p.get("told", 0)), **sizes, **pick_model(case)}


def _expect_updates(arrays: Arrays) -> Arrays:
    """All tokens that a sequence has, or those that the first new one sees in a window, and the new ones."""
    lists, fed, answers = Lists(), 0, Arrays()
    for step, new in follow(arrays["plan"], lists):
        for sequence, count in new.items():
            past, numbers = len(lists.kept[sequence]), lists.kept[sequence]
            numbers += range(fed, fed + count)
            fed += count
            first = max(0, past - int(arrays["window"]) + 1) if "window" in arrays else 0
            for layer in range(len(arrays["k"])) if step >= int(arrays["told"]) else ():
                where = f"of step {step}, layer {layer}, sequence {sequence}"
                answers[f"positions {where}"] = np.arange(first, len(numbers))
                answers |= {f"{name} {where}": arrays[x][layer, :, numbers[first:]].swapaxes(0, 1) for name, x in PAIRS}
    return answers


def _code_of_updates(arrays: Arrays) -> str:
    """A plan as code; a long one, which feeds one sequence as many tokens in each step, as a loop."""
    rows, single = arrays["sequences"], ".float()" if arrays["k"].dtype == np.float32 else ""
    made = f"Contiguous(model, sequences={rows}, capacity={arrays.get('capacity')})"
    if "window" in arrays:
        made = f"SlidingWindow(model, sequences={rows}, chunk={arrays['chunk']})"
    asked = ", ".join(f"{name}={value!r}" for name, value in kind_of_model(arrays).items())
    script, fed = Script(f"model = AgingModel({asked}){single}", f"cache = {made}"), 0
    script.lines.insert(0, 'k, v = map(torch.from_numpy, (given["k"], given["v"]))  # (layers, heads, tokens, size)')
    if len(arrays["plan"]) > LONG:
        count, tokens = arrays["plan"].max(), arrays["k"].shape[2]
        loop = LOOP_OF_TEXTS if (arrays["plan"] == DROP).any() else LOOP
        return "\n".join([*script.lines, loop.format(count=count, tokens=tokens)])
    for step, new in follow(arrays["plan"], script):
        script.lines.append(f"# step {step}")
        ends = fed + np.cumsum([0, *new.values()])
        parts = [(script.name(sequence), f":, {i}:{j}") for sequence, i, j in zip(new, ends, ends[1:], strict=False)]
        updates = [(layer, *part) for layer in range(len(arrays["k"])) for part in parts]
        script.lines += [f"cache.update({layer}, {s}, k[{layer}, {at}], v[{layer}, {at}])" for layer, s, at in updates]
        script.lines += [f"cache.advance({script.name(sequence)}, {count})" for sequence, count in new.items()]
        if not fed and "between" in arrays:
            script.lines += _code_between(arrays, made, updates)
        fed = int(ends[-1])
    return "\n".join(script.lines)


def _code_between(arrays: Arrays, made: str, updates: list[tuple[int, str, str]]) -> list[str]:
    """What comes between the first step, of these updates (layer, sequence, slice), and the next."""
    cache, begun = "cache", []
    if arrays["between"] == OTHER:
        cache, begun = "other", [f"other = {made}", *["other.start()"] * len({s for _, s, _ in updates})]
    again = (
        f"uncounted = {cache}.update({layer}, {s}, -k[{layer}, {at}], -v[{layer}, {at}])" for layer, s, at in updates
    )
    return ["# between", *begun, *again]


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
                {"plan": "++ 42 1- 1+ 11 02 -1 +1 31", "capacity": 7, "sequences": 2},
            ),
            Case("a pass that failed is made again", {"plan": "++ 21 31 12", "capacity": 7, "between": FAILED}),
            Case(
                "after a pass that failed one is cut, one dropped",
                {"plan": "+++ 321 b-0 0+0 221 113", "capacity": 7, "between": FAILED},
            ),
            Case("another cache is filled", {"plan": "+ 3 1", "capacity": 5, "between": OTHER}),
            Case("four layers", {"plan": "++ 21 12", "capacity": 4, "n_layers": 4, "kv_heads": 2}),
            Case("one layer", {"plan": "++ 21 12", "capacity": 3, "n_layers": 1}),
            Case("room for one token each", {"plan": "+++ 110 001", "capacity": 1}),
            Case("a text longer than the context", {"plan": "+" + 8 * " 9", "capacity": 72, "kv_heads": 1, "told": 8}),
            Case("room for long texts, one head of keys", {"plan": "+ 2 1", "capacity": 8192, "kv_heads": 1}),
            Case("numbers of single precision", {"plan": "+ 3 2", "capacity": 5, "dtype": "float32"}),
            Case(
                "five sequences",
                {"plan": "+++++ 12345 10b21 -120e +1111 30012", "capacity": 11, "kv_heads": 2, "n_layers": 5},
                hidden=True,
            ),
        ),
        inputs=_draw_updates,
        run=calls.updates,
        expect=_expect_updates,
        compare=close,
        describe=_code_of_updates,
        first_hint="Which row, which layer, from which place on? And whose is the memory in which k and v came?",
        hint="New tokens go behind the length(sequence) that are kept, whatever has lain there; what comes back ends "
        "with the last new one. Copy numbers into memory of the cache.",
        uses=("Contiguous",),
        memory_bytes=7 << 20,
    ),
)
RING = (
    Check(
        name="ring",
        title="A ring for a model with a window",
        points=7,
        cases=(
            Case("token by token", {"plan": "+ 1 1 1 1 1 1 1 1", "window": 4, "chunk": 1}),
            Case("chunks", {"plan": "+ 3 3 2 3 1 3", "window": 5, "chunk": 3, "kv_heads": 2}),
            Case("two sequences", {"plan": "++ 21 12 22 02 11", "window": 3, "chunk": 2}),
            Case("three, token by token", {"plan": "+++ 111 101 110 111", "window": 2, "chunk": 1}),
            Case("a window of one token", {"plan": "+ 2 1 2", "window": 1, "chunk": 2}),
            Case("a window longer than the text", {"plan": "+ 3 2", "window": 7, "chunk": 4}),
            Case("tokens are taken back", {"plan": "+ 4 4 f 3 4 i 2", "window": 4, "chunk": 4, "kv_heads": 1}),
            Case("a row is used again", {"plan": "+ 3 3 - + 2 2", "window": 4, "chunk": 3, "sequences": 1}),
            Case(
                "after a pass that failed one goes on, one is dropped",
                {"plan": "++ 32 0- 0+ 31 23", "window": 4, "chunk": 3, "between": FAILED},
            ),
            Case("one layer, a window and a chunk of one", {"plan": "+ 1 1 1", "window": 1, "chunk": 1, "n_layers": 1}),
            Case("single precision", {"plan": "+ 2 2 1", "window": 2, "chunk": 2, "dtype": "float32"}),
            Case("a long text", {"plan": "+" + 50 * " 9", "window": 6, "chunk": 9, "told": 50}),
            Case(
                "many texts, one after the other",
                {"plan": "+ 9 -" + 39 * " + 9 -", "window": 6, "chunk": 9, "sequences": 1, "told": 117},
            ),
            Case(
                "they come and go",
                {
                    "plan": "++0+ 41+3 4325 2c41 4445 -142 +400 3015 5000 B000 i000 3000",
                    "window": 6,
                    "chunk": 11,
                    "kv_heads": 2,
                    "n_layers": 4,
                    "told": 2,
                },
                hidden=True,
            ),
        ),
        inputs=_draw_updates,
        run=calls.updates,
        expect=_expect_updates,
        compare=close,
        describe=_code_of_updates,
        first_hint="Window 5, chunks of 3: what does the pass over tokens 8, 9, 10 see, and in how many slots does it "
        "lie?",
        hint="The first new token sees window − 1 back, and all new ones must lie beside these. Tokens go to their "
        "position modulo the slots; what comes back begins window − 1 before the first new one.",
        uses=("SlidingWindow",),
        memory_bytes=192 << 10,
    ),
)
