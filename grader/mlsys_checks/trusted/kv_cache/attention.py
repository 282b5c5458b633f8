"""Checks of masks and attention, tasks 2, 3, 5 and 6: which tokens look at which. Oracle: loops over pairs."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.kv_cache import caches as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.kv_cache.oracle import mix

FAR = 2**53
"""From here on not even floats of 64 bits tell whole numbers apart."""


def _draw_places(rng: np.random.Generator, case: Case) -> Arrays:
    """Positions of new tokens or of those that the case names, and of the keys, in disorder where it says so."""
    past, new = case.params["past"], case.params["new"]
    keys = np.arange(case.params.get("first", 0), past + new)
    queries = np.array(case.params.get("queries", range(past, past + new)))
    if case.params.get("disorder"):
        rng.shuffle(keys)
    window = {"window": np.array(case.params["window"])} if "window" in case.params else {}
    return {"queries": queries, "keys": keys, **window}


def _expect_mask(arrays: Arrays) -> Arrays:
    queries, keys = arrays["queries"].tolist(), arrays["keys"].tolist()
    window = int(arrays["window"]) if "window" in arrays else max(queries) + 1
    seen = [[query - window < key <= query for key in keys] for query in queries]
    return {"mask": np.array(seen, dtype=bool)}


def _draw_attention(rng: np.random.Generator, case: Case) -> Arrays:
    """Queries, keys, values and a mask: causal, or any of which every query sees something and not all."""
    p = case.params
    n, k, t, s, h = p["N"], p.get("K", p["N"]), p["T"], p["S"], p.get("H", 6)
    if p.get("any"):
        mask = rng.random((t, s)) < 0.5
        seen, steps = rng.integers(1, s, (2, t))
        mask[np.arange(t), seen] = True
        mask[np.arange(t), (seen + steps) % s] = False
    else:
        mask = np.arange(s) <= np.arange(s - t, s)[:, None]
    drawn = {"q": rng.standard_normal((n, t, h)) * p.get("size", 1.0)}
    drawn |= {name: rng.standard_normal((k, s, h)) for name in ("keys", "values")}
    if p.get("below"):  # scores far below 0; of the first key, which only the last query may see, far above the others
        drawn |= {"q": -3e4 * np.abs(drawn["q"]), "keys": np.abs(drawn["keys"])}
        drawn["keys"][:, 0] *= 1e-3
        mask[:-1, 0] = False
    if p.get("zeros"):  # scores that are 0 of what is seen: of one query all, of the others one
        drawn["q"][:, 0] = drawn["keys"][:, -1] = 0.0
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


ATTENTION = (
    Check(
        name="visible",
        title="Which keys a token sees",
        points=4,
        cases=(
            Case("a chunk, keys in disorder", {"past": 7, "new": 4, "disorder": True}),
            Case("a prompt", {"past": 0, "new": 4}),
            Case("the first token", {"past": 0, "new": 1}),
            Case("one token", {"past": 6, "new": 1}),
            Case("a chunk", {"past": 5, "new": 3}),
            Case("keys in disorder, the first of them gone", {"past": 6, "new": 3, "first": 2, "disorder": True}),
            Case(
                "positions that floats do not tell apart", {"past": FAR + 4, "new": 3, "first": FAR, "disorder": True}
            ),
            Case("queries that are not neighbours", {"past": 6, "new": 4, "queries": (7, 2, 9)}),
            Case("one token, and keys behind it", {"past": 3, "new": 5, "queries": (4,), "disorder": True}),
            Case("many", {"past": 23, "new": 17, "disorder": True}, hidden=True),
        ),
        inputs=_draw_places,
        run=calls.visible,
        expect=_expect_mask,
        compare=close,
        snippet="visible(queries, keys)",
        first_hint="Positions decide, not places in the arrays: which of the two has the larger position?",
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
            Case("scores far below 0", {"N": 3, "T": 5, "S": 8, "any": True, "below": True}),
            Case("one token, a mask with holes", {"N": 2, "T": 1, "S": 9, "any": True}),
            Case("a query and a key of zeros", {"N": 2, "T": 3, "S": 6, "any": True, "zeros": True}),
            Case("one key", {"N": 4, "T": 1, "S": 1}),
            Case("one head", {"N": 1, "T": 3, "S": 5}),
            Case("heads of one number", {"N": 2, "T": 3, "S": 4, "H": 1}),
            Case("single precision, heads of 16", {"N": 2, "T": 3, "S": 8, "H": 16, "dtype": "float32"}),
            Case("many", {"N": 5, "T": 13, "S": 31, "H": 10, "any": True}, hidden=True),
        ),
        inputs=_draw_attention,
        run=calls.attend,
        expect=_expect_attention,
        compare=close,
        snippet="attend(q, keys, values, mask)",
        first_hint="Do the shares of a query add to 1, and over which keys? What are the scores divided by?",
        hint="Scores are products of q and keys over H, divided by the root of H. Where the mask is False they "
        "become minus infinity before the softmax over keys.",
        uses=("attend",),
    ),
)
SHARED = (
    Check(
        name="attend_grouped",
        title="Query heads that share keys",
        points=6,
        cases=(
            Case("two heads of keys for six", {"N": 6, "K": 2, "T": 3, "S": 7}),
            Case("multi-query", {"N": 4, "K": 1, "T": 2, "S": 5}),
            Case("every head its own", {"N": 3, "K": 3, "T": 4, "S": 4}),
            Case("one head", {"N": 1, "K": 1, "T": 3, "S": 5}),
            Case("one token, heads of one number", {"N": 8, "K": 4, "T": 1, "S": 6, "H": 1}),
            Case("scores far below 0", {"N": 4, "K": 2, "T": 3, "S": 8, "any": True, "below": True}),
            Case("a query and a key of zeros", {"N": 6, "K": 3, "T": 2, "S": 5, "any": True, "zeros": True}),
            Case("one token, a mask with holes", {"N": 4, "K": 2, "T": 1, "S": 9, "any": True}),
            Case("holes, single precision", {"N": 4, "K": 2, "T": 5, "S": 6, "any": True, "dtype": "float32"}),
            Case("many", {"N": 12, "K": 3, "T": 7, "S": 19, "any": True}, hidden=True),
        ),
        inputs=_draw_attention,
        run=calls.attend_grouped,
        expect=_expect_attention,
        compare=close,
        snippet="attend_grouped(q, keys, values, mask)",
        first_hint="Which query heads look at key head 0? And which row of the mask has query t of head 1?",
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
            Case("the first token", {"past": 0, "new": 1, "window": 3}),
            Case("one token", {"past": 8, "new": 1, "window": 3}),
            Case("a chunk", {"past": 6, "new": 4, "window": 3}),
            Case("a window of one token", {"past": 2, "new": 3, "window": 1}),
            Case("a window longer than the text", {"past": 1, "new": 3, "window": 9}),
            Case("a window longer than any text", {"past": 2, "new": 2, "window": FAR}),
            Case(
                "positions that floats do not tell apart",
                {"past": FAR + 6, "new": 3, "first": FAR, "window": 4, "disorder": True},
            ),
            Case("the first keys are gone", {"past": 7, "new": 3, "window": 4, "first": 3, "disorder": True}),
            Case("queries that are not neighbours", {"past": 6, "new": 4, "queries": (8, 3, 9), "window": 3}),
            Case("one token, and keys behind it", {"past": 3, "new": 5, "queries": (5,), "window": 2}),
            Case("many", {"past": 29, "new": 11, "window": 8, "disorder": True}, hidden=True),
        ),
        inputs=_draw_places,
        run=calls.in_window,
        expect=_expect_mask,
        compare=close,
        snippet="in_window(queries, keys, window)",
        first_hint="How many True are in a row of a query that has enough before it?",
        hint="Exactly `window` of them: the token itself, and keys up to window − 1 before it; keys after it never.",
        uses=("in_window",),
    ),
)
