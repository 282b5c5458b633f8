"""Checks of steps, tasks 2, 3 and 6: positions, and passes of an aging model over ragged batches. Oracle: lists."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.kv_cache import steps as calls
from mlsys_checks.sandboxed.kv_cache.plans import follow
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.kv_cache.oracle import Script, Texts, draw_tokens, draw_weights, read_plan, write_model

USES = ("Contiguous", "extend")
FAILING = """def fail(*given):
    raise MemoryError("a pass that fails behind its last layer")
hook = model.norm.register_forward_pre_hook(fail)
try:
    failed = extend(model, cache, {{{new}}})
except MemoryError:
    hook.remove()"""


# --- pack -------------------------------------------------------------------------------------------------------------


def _draw_pack(rng: np.random.Generator, case: Case) -> Arrays:
    """Sequences of given lengths, some of which get tokens."""
    lengths, new = case.params["lengths"], case.params["new"]
    return {
        "sequences": np.arange(len(lengths)),
        "lengths": np.array(lengths),
        "fed": np.array(list(new)),
        "counts": np.array(list(new.values())),
        "tokens": draw_tokens(rng, sum(new.values())),
    }


def _expect_pack(arrays: Arrays) -> Arrays:
    positions, ends = [], []
    for sequence, count in zip(arrays["fed"], arrays["counts"], strict=True):
        positions += list(range(arrays["lengths"][sequence], arrays["lengths"][sequence] + count))
        ends.append(len(positions) - 1)
    return {"tokens": arrays["tokens"][None], "positions": np.array([positions]), "ends": np.array(ends)}


def _code_of_pack(arrays: Arrays) -> str:
    fed, parts = iter(arrays["tokens"].tolist()), zip(arrays["fed"].tolist(), arrays["counts"].tolist(), strict=True)
    new = {sequence: [next(fed) for _ in range(count)] for sequence, count in parts}
    lengths = arrays["lengths"].tolist()
    made = f"cache = Sequences({len(lengths)})\nfor length in {lengths}:\n    cache.advance(cache.start(), length)\n"
    return f"{made}pack(cache, {new})"


# --- extend -----------------------------------------------------------------------------------------------------------


def _draw_extend(rng: np.random.Generator, case: Case) -> Arrays:
    """A plan with tokens for it; which of its steps ask for the logits of every token; in which order parts come."""
    plan = read_plan(case.params["plan"])
    every = np.isin(np.arange(len(plan)), case.params.get("every_token", ()))
    return {
        **draw_weights(rng, case),
        "plan": plan,
        "tokens": draw_tokens(rng, int(plan.clip(min=0).sum())),
        "every_token": every,
        "capacity": np.array(case.params.get("capacity", 16)),
        **({"chunk": np.array(case.params["chunk"])} if "chunk" in case.params else {}),
        "backwards": np.array(case.params.get("backwards", False)),
        **({"fails": np.array(case.params["fails"])} if "fails" in case.params else {}),
    }


def _expect_extend(arrays: Arrays) -> Arrays:
    texts, fed, answers = Texts(arrays), iter(arrays["tokens"].tolist()), Arrays()
    for step, counts in follow(arrays["plan"], texts):
        new = {sequence: [next(fed) for _ in range(count)] for sequence, count in counts.items()}
        if arrays["backwards"]:
            new = dict(reversed(new.items()))
        logits = texts.feed(new)
        ends = np.cumsum([len(part) for part in new.values()]) - 1
        answers[f"logits of step {step}"] = logits if arrays["every_token"][step] else logits[ends]
    return answers | {"lengths": np.array([len(kept) for kept in texts.kept.values()])}


def _code_of_extend(arrays: Arrays) -> str:
    """A plan as code, with the sequences called a, b, c as they come."""
    kind, size = ("SlidingWindow", "chunk") if "chunk" in arrays else ("Contiguous", "capacity")
    made = f"cache = {kind}(model, sequences={arrays['plan'].shape[1]}, {size}={arrays[size]})"
    script, fed = Script(write_model(arrays), made), iter(arrays["tokens"].tolist())
    for step, new in follow(arrays["plan"], script):
        parts = [f"{script.name(sequence)}: {[next(fed) for _ in range(count)]}" for sequence, count in new.items()]
        if arrays["backwards"]:
            parts.reverse()
        if step == arrays.get("fails"):
            script.lines += FAILING.format(new=", ".join(parts)).splitlines()
        asked = ", every_token=True" if arrays["every_token"][step] else ""
        script.lines.append(f"extend(model, cache, {{{', '.join(parts)}}}{asked})  # step {step}")
    return "\n".join(script.lines)


PACK = (
    Check(
        name="pack",
        title="New tokens side by side, with their positions",
        points=5,
        cases=(
            Case("one sequence that is new", {"lengths": [0], "new": {0: 4}}),
            Case("one token of each of three", {"lengths": [5, 0, 11], "new": {0: 1, 1: 1, 2: 1}}),
            Case("other numbers of tokens, in another order", {"lengths": [3, 7, 1, 4], "new": {3: 2, 0: 5, 1: 1}}),
            Case("texts longer than floats tell apart", {"lengths": [2**53, 6], "new": {1: 2, 0: 3}}),
            Case("five parts", {"lengths": [9, 2, 0, 6, 13], "new": {4: 3, 1: 1, 2: 7, 0: 2, 3: 1}}, hidden=True),
        ),
        inputs=_draw_pack,
        run=calls.pack,
        expect=_expect_pack,
        compare=close,
        describe=_code_of_pack,
        first_hint="Of one sequence: how many of its tokens are kept, and where in the row is its last new one?",
        hint="Positions count on from what the cache keeps, anew for each sequence. The parts end where the "
        "running sum of their lengths is, less one. Tokens and positions have one row.",
        uses=("pack",),
    ),
)
STEPS = (
    Check(
        name="extend",
        title="A pass over a ragged batch",
        points=12,
        cases=(
            Case("a prompt, then token by token", {"plan": "+ 4 1 1 1"}),
            Case("chunks, logits of every token", {"plan": "+ 3 7 2", "every_token": (1, 2, 3)}),
            Case("three sequences, one token each", {"plan": "+++ 253 111 111"}),
            Case("prompt, chunk and token in one pass", {"plan": "++0 04+ 326 141 013", "every_token": (3,)}),
            Case("parts in another order", {"plan": "++ 22 14 33 21", "backwards": True, "every_token": (2,)}),
            Case("tokens are taken back", {"plan": "++ 54 c1 3b 12"}),
            Case("another gets a dropped one's row", {"plan": "++ 62 -1 +0 21 11"}),
            Case("learned positions", {"plan": "++ 31 24 11", "learned": True}),
            Case("four layers", {"plan": "++ 31 14 11", "n_layers": 4}),
            Case("one layer", {"plan": "++ 31 14 11", "n_layers": 1, "every_token": (1, 2)}),
            Case("a full cache", {"plan": "++ 42 13", "capacity": 5}),
            Case("a pass that failed is made again", {"plan": "++ 31 23 11", "fails": 2}),
            Case("five sequences", {"plan": "+++++ 71243 15a1- 2140+ 11116", "every_token": (3,)}, hidden=True),
        ),
        inputs=_draw_extend,
        run=calls.extend,
        expect=_expect_extend,
        compare=close,
        describe=_code_of_extend,
        first_hint="Which step is the first to be wrong? Later ones see keys of earlier passes: how many did the model "
        "make?",
        hint="One call of the model, with positions, your own attention, and rows unless every token is asked for. "
        "Cut q, k and v along the tokens; update says what a part looks at. Advance once, after the pass.",
        uses=USES,
    ),
)
WINDOWED = (
    Check(
        name="windowed",
        title="Steps of a model with a window and shared heads",
        points=4,
        cases=(
            Case("a ring, token by token", {"plan": "+ 1 1 1 1 1", "window": 3, "chunk": 1}),
            Case("a ring, chunks", {"plan": "+ 4 4 3 4", "window": 3, "chunk": 4}),
            Case(
                "a ring, shared heads, two sequences",
                {"plan": "++ 34 13 41 14", "window": 4, "chunk": 4, "kv_heads": 2},
            ),
            Case("a window, all tokens kept", {"plan": "++ 62 11 14 11", "window": 3}),
            Case("shared heads, no window", {"plan": "++0 43+ 216 131", "kv_heads": 2, "every_token": (2,)}),
            Case("one head of keys", {"plan": "++ 51 12 31", "kv_heads": 1, "window": 5}),
            Case(
                "they come and go",
                {"plan": "++0 41+ 432 2c4 444 -14 +40 301", "window": 6, "chunk": 4, "kv_heads": 2},
                hidden=True,
            ),
        ),
        inputs=_draw_extend,
        run=calls.extend,
        expect=_expect_extend,
        compare=close,
        describe=_code_of_extend,
        first_hint="Which step is the first to be wrong? How many tokens does each of its queries see, and at which "
        "head of keys does it look?",
        hint="extend leaves attention to attend_part, which takes in_window where the model has a window, and "
        "attend_grouped where heads are shared. Parts of q are views: they may not lie in one piece.",
        uses=(*USES, "SlidingWindow", "attend_grouped", "in_window"),
    ),
)
