"""Task 8: attention over a paged cache. Oracle: each sequence's pages laid out, and softmax in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from scipy.special import softmax

from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.sandboxed.triton import decode as calls
from mlsys_checks.sandboxed.triton.launches import READS_NAN, blocks
from mlsys_checks.trusted.traced import allow_at_most
from mlsys_checks.trusted.triton import snippets
from mlsys_checks.trusted.triton.comparison import agree_nearly
from mlsys_checks.trusted.triton.kinds import draw_kind, result_dtype
from mlsys_checks.trusted.triton.scores import raise_scores

INT = 4
"""Bytes of an int32."""


def _inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Pages lie anywhere in a cache that has some to spare; slots that no token has filled are NaN."""
    p = {"page": 16, "kv_heads": 2, "group": 2, "width": 32, "dtype": np.float32, "spread": 1.0, **case.params}
    lengths, page = p["lengths"], p["page"]
    most = max(blocks(length, page) for length in lengths)
    free = rng.permutation(sum(blocks(length, page) for length in lengths) + 2).astype(np.int32)
    cache = np.full((2, len(free), page, p["kv_heads"], p["width"]), np.nan)
    table = np.full((len(lengths), most), -1, dtype=np.int32)
    taken = iter(free)
    for sequence, length in enumerate(lengths):
        for i in range(blocks(length, page)):
            table[sequence, i] = number = next(taken)
            filled = min(page, length - i * page)
            cache[:, number, :filled] = rng.normal(scale=p["spread"], size=(2, filled, p["kv_heads"], p["width"]))
    q = rng.normal(scale=p["spread"], size=(len(lengths), p["kv_heads"] * p["group"], p["width"]))
    if "alike" in p:  # all queries, and all keys: every score is the same, however far from zero
        q *= 0.0
        cache[0] *= 0.0
    if "scores" in p:  # of the first sequence, whose pages are laid out for it and taken up again
        pages = table[0, : blocks(lengths[0], page)]
        keys = cache[0, pages].reshape(-1, p["kv_heads"], p["width"]).swapaxes(0, 1)
        raise_scores(q[0], keys, p["scores"])
        cache[0, pages] = keys.swapaxes(0, 1).reshape(-1, page, p["kv_heads"], p["width"])
    if "quiet" in p:
        q[:, :: p["group"]] *= 0.01  # of each group the first query, whose scores are all about 0
    k, v = cache.astype(p["dtype"])
    return {
        "q": q.astype(p["dtype"]),
        "k": k,
        "v": v,
        "table": table,
        "length": np.array(lengths, dtype=np.int32),
        "scale": np.array(case.params.get("scale", p["width"] ** -0.5)),
        **draw_kind(case),
    }


def _expect(arrays: Arrays, counted: bool) -> Arrays:
    q, k, v = (arrays[name].astype(np.float64) for name in ("q", "k", "v"))
    group = q.shape[1] // k.shape[2]
    out = np.empty_like(q)
    for sequence, length in enumerate(arrays["length"].tolist()):
        pages = arrays["table"][sequence, : blocks(length, k.shape[1])]
        keys, values = (one[pages].reshape(-1, *one.shape[2:])[:length] for one in (k, v))  # (length, kv_heads, D)
        for head in range(q.shape[1]):
            scores = keys[:, head // group] @ q[sequence, head] * float(arrays["scale"])
            out[sequence, head] = softmax(scores) @ values[:, head // group]
    expected = {"out": out.astype(result_dtype(arrays, arrays["q"].dtype))}
    return expected | _most(arrays, expected["out"].itemsize) if counted else expected


def _agree(got: Arrays, expected: Arrays) -> Mismatch | None:
    """As `agree_nearly`; of NaN it says where it may come from, if slots or pages of no token were read."""
    mismatch, out, read = agree_nearly(got, expected), got.get("out"), got.get(READS_NAN)
    if mismatch is None or out is None or out.dtype.kind != "f" or not np.isnan(out).any():
        return mismatch
    if read is None or read.ndim or not read > 0:
        return mismatch
    why = "slots and pages that no token has filled hold NaN, and 0 · NaN is NaN too"
    return replace(mismatch, what=f"{mismatch.what}; {why}")


def _most(arrays: Arrays, itemsize: int) -> Arrays:
    """`itemsize` is that of the result."""
    q, (_, page, kv_heads, width) = arrays["q"], arrays["k"].shape
    lengths = arrays["length"].tolist()
    row, pages = width * q.itemsize, [blocks(length, page) for length in lengths]
    group = q.shape[1] // kv_heads
    cached = sum(lengths) * kv_heads * row
    return allow_at_most(
        "decode_kernel",
        reads={
            "q_ptr": q.nbytes,
            "k_ptr": cached,
            "v_ptr": cached,
            "table_ptr": sum(pages) * kv_heads * INT,
            "length_ptr": len(lengths) * kv_heads * INT,
        },
        writes={"out_ptr": q.size * itemsize},
        busiest=(2 * max(lengths) + group) * row + group * width * itemsize + (max(pages) + 1) * INT,
        widest=max(group, page) * width,
        programs=len(lengths) * kv_heads,
    )


CHECKS = (
    Check(
        name="decode",
        title="A new token's attention over pages",
        points=10,
        cases=(
            Case("one full page", {"lengths": [16], "kv_heads": 1, "group": 1}),
            Case("pages in any order, the last not full", {"lengths": [67, 3]}),
            Case("four queries a group", {"lengths": [18], "group": 4, "scale": 0.7}),
            Case("scores far apart", {"lengths": [50], "kv_heads": 1, "spread": 5.0}),
            Case(
                "half precision in, float32 out",
                {
                    "lengths": [64, 11],
                    "kv_heads": 1,
                    "page": 32,
                    "width": 16,
                    "dtype": np.float16,
                    "wide": True,
                    "scale": 0.3,
                    "group": 4,
                },
            ),
            Case("the first key outweighs all others", {"lengths": [36], "scores": {0: 110.0}}),
            Case("all scores far below zero", {"lengths": [19], "scores": {None: -110.0}}),
            Case(
                "half precision, one score, 10³⁰ below zero",
                {"lengths": [19], "scores": {None: -1e6}, "alike": True, "dtype": np.float16, "scale": 2.0**80},
            ),
            Case("a group of 32 unlike queries", {"lengths": [20], "group": 32, "scores": {0: 110.0}, "quiet": True}),
            Case("one token", {"lengths": [1], "kv_heads": 1}),
            Case(
                "one query a group, many pages, the last key outweighs",
                {"lengths": [1025], "kv_heads": 1, "group": 1, "width": 16, "scores": {1024: 110.0}},
            ),
            Case("others", {"lengths": [5, 65], "kv_heads": 3, "group": 2, "page": 32, "width": 16}, hidden=True),
        ),
        inputs=_inputs,
        run=calls.decode,
        expect=partial(_expect, counted=False),
        compare=_agree,
        snippet=snippets.DECODE,
        first_hint="Where in the cache is the sequence's last token: which page, which slot, which head?",
        hint="t // PAGE tells which entry of the sequence's row of the table, t % PAGE which slot; a slot is kv_heads "
        "rows of D. Slots from the sequence's end on are not loaded, and their scores are -inf. A program's query "
        "heads are the GROUP neighbours of its key/value head.",
        uses=("decode_kernel",),
        traced=True,
    ),
    Check(
        name="decode_traffic",
        title="Each cached key once for all queries of its group",
        points=5,
        cases=(
            Case("four queries a group", {"lengths": [41, 20], "group": 4}),
            Case("others", {"lengths": [5, 3, 33], "group": 2, "page": 32, "width": 16}, hidden=True),
        ),
        inputs=_inputs,
        run=calls.decode,
        expect=partial(_expect, counted=True),
        compare=_agree,
        snippet=snippets.DECODE,
        first_hint="How many pages does this sequence fill, and how often is each of its keys loaded?",
        hint="Load a page's keys once, under a mask that ends with the sequence, and multiply them with all queries of "
        "the group at once. Go through as many pages as the sequence has, not through the whole table.",
        uses=("decode_kernel",),
        traced=True,
    ),
)
