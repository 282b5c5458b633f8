"""Checks of lab 10: names, points, hints, and the ranges from which cases are drawn."""

from __future__ import annotations

from typing import Any

from mlsys_checks.sandboxed import kv_cache as calls
from mlsys_checks.sandboxed.spec import Case, Check, Lab, Range, draw_cases
from mlsys_checks.trusted.answers import agree
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.kv_cache import generators as draw
from mlsys_checks.trusted.repeats import repeat_first_case

CACHE: dict[str, Any] = {"rows": Range(1, 4), "capacity": Range(1, 12), "longest": Range(1, 6), "n_layers": Range(1, 4)}
CACHE |= {"calls": Range(12, 26), "others": True}
ONE = {**CACHE, "rows": 1, "capacity": 6, "longest": 3, "n_layers": 2, "calls": 7}
RING: dict[str, Any] = {"rows": Range(1, 3), "window": Range(1, 7), "longest": Range(1, 5), "n_layers": Range(1, 3)}
RING |= {"calls": Range(14, 30), "others": True}
LONG_RING = {**RING, "rows": 1, "window": 6, "longest": 9, "n_layers": 3, "kv_heads": 4, "fill": 1, "calls": 50}
TURNOVER = {"rows": Range(2, 3), "capacity": 40, "longest": 2, "calls": 36, "full": True, "turnover": 1}
PACK = {"sequences": Range(1, 6), "fed": Range(1, 4), "longest": Range(1, 7)}
MASK = {"cached": Range(0, 24), "new": Range(1, 12)}
ATTENTION = {"K": Range(1, 4), "G": 1, "T": Range(1, 6), "cached": Range(0, 7), "H": Range(1, 8)}
LARGER_ATTENTION = {"T": Range(7, 16), "cached": Range(9, 30), "H": Range(8, 16)}
PASSES = {"rows": Range(1, 4), "capacity": Range(4, 20), "longest": Range(1, 6), "n_layers": Range(1, 4)}
PASSES |= {"calls": Range(8, 16)}
FIXED_PASSES = {**PASSES, "rows": 2, "capacity": 12, "longest": 4, "n_layers": 2, "calls": 6}
WINDOWED = {**PASSES, "window": Range(1, 6), "ring": Range(0, 1), "grouped": Range(0, 1)}
PREFILL = {"tokens": Range(1, 30), "chunk": Range(1, 9), "held": "some"}
DECODE = {"tokens": Range(1, 12), "max_tokens": Range(1, 9), "chunk": Range(1, 6), "held": Range(0, 2)}
DECODE |= {"others": Range(0, 3)}
FEW = {"max_tokens": 5, "chunk": 3, "held": 0, "others": 0}
STEPS = {"tokens": Range(1, 9), "steps": Range(1, 6), "k": Range(0, 5), "others": Range(0, 3)}
COSTS = {"parts": Range(1, 4), "new": Range(1, 40), "cached": Range(0, 60), "window": Range(0, 30)}

CHECKS = (
    Check(
        name="cache",
        title="Keys and values by sequence and layer",
        points=10,
        cases=(
            Case("one sequence", ONE),
            Case("one token per row", {**CACHE, "capacity": 1, "rows": Range(2, 4), "calls": 14}),
            Case("rows are used again", {**CACHE, **TURNOVER}),
            Case("longer than the context", {**ONE, "capacity": Range(66, 90), "longest": 12, "fill": 1, "calls": 9}),
            Case("room for a long sequence", {**ONE, "capacity": 8192, "kv_heads": 1, "n_layers": 3, "others": False}),
            Case("single precision", {**CACHE, "single": True}),
            Case("many rows and layers", {**CACHE, "rows": Range(5, 7), "n_layers": Range(5, 6), "full": True}),
            *draw_cases(CACHE, public=5, hidden=2, rows=Range(3, 5), capacity=Range(6, 16), calls=Range(25, 40)),
        ),
        inputs=draw.draw_updates,
        run=calls.update,
        expect=draw.expect_updates,
        compare=draw.compare_updates,
        describe=draw.render_updates,
        first_hint="In which row and layer, and from which position on, do the new tokens belong? Whose memory do `k` "
        "and `v` use?",
        hint="New tokens go behind the `length(sequence)` cached ones, whatever was there; the result ends with the "
        "last new token. Copy the numbers into memory that belongs to this cache.",
        uses=("Contiguous",),
        memory_bytes=7 << 20,
    ),
    Check(
        name="pack",
        title="New tokens side by side, with their positions",
        points=5,
        cases=(
            Case("one new sequence", {"sequences": 1, "fed": 4, "longest": 4}),
            Case("all sequences", {"sequences": 4, "fed": 4, "longest": 5}),
            Case("a position that floats cannot hold", {"sequences": 2, "fed": 4, "longest": 3, "far": True}),
            *draw_cases(PACK, public=3, hidden=1, sequences=Range(5, 9)),
        ),
        inputs=draw.draw_pack,
        run=calls.pack,
        expect=draw.expect_pack,
        compare=close,
        describe=draw.render_pack,
        first_hint="For one sequence: how many of its tokens are cached, and in which row of the packed tokens is its "
        "last new one?",
        hint="Positions start at the cached length, for each sequence by itself. The last rows are the running sum of "
        "the numbers of new tokens, minus one. Tokens and positions have one row.",
        uses=("Cache", "pack"),
    ),
    Check(
        name="visible",
        title="Causal mask by position",
        points=4,
        cases=(
            Case("a chunk", {"cached": 5, "new": 3, "disorder": False}),
            Case("a first token", {"cached": 0, "new": 1}),
            Case("one query, keys behind it", {"cached": 3, "new": 6, "disorder": True}),
            Case("positions that floats cannot hold", {"cached": 4, "new": 4, "far": True, "disorder": True}),
            *draw_cases(MASK, public=4, hidden=1, cached=Range(20, 40)),
        ),
        inputs=draw.draw_positions,
        run=calls.causal_mask,
        expect=draw.expect_mask,
        compare=draw.compare_mask,
        snippet="causal_mask(query_positions, key_positions)",
        first_hint="The mask depends on positions, not on where they are in the arrays: which of the two is larger?",
        hint="Compare each query's position with each key's, queries as rows and keys as columns. A token sees itself.",
        uses=("causal_mask",),
    ),
    Check(
        name="attend",
        title="Attention over visible keys",
        points=7,
        cases=(
            Case("a chunk", {**ATTENTION, "K": 2, "T": 3, "cached": 4, "H": 6, "any": False}),
            Case("one token, a mask with holes", {**ATTENTION, "T": 1, "cached": 8, "any": True}),
            Case("large scores", {**ATTENTION, "size": 300.0, "H": 6}),
            Case("scores far below 0", {**ATTENTION, "T": 5, "cached": 3, "H": 6, "below": True, "any": True}),
            Case("a query and a key of zeros", {**ATTENTION, "T": 3, "cached": 3, "zeros": True, "any": True}),
            Case("single precision", {**ATTENTION, "H": 16, "single": True}),
            *draw_cases(ATTENTION, public=3, hidden=1, **LARGER_ATTENTION),
        ),
        inputs=draw.draw_attention,
        run=calls.attend,
        expect=draw.expect_attention,
        compare=close,
        snippet="attend(q, keys, values, mask)",
        first_hint="Do the weights of a query sum to 1, and over which keys? What are the scores divided by?",
        hint="Scores are products of q and keys, divided by the root of the head dimension. Where the mask is False, "
        "they become minus infinity before the softmax over keys.",
        uses=("attend",),
    ),
    Check(
        name="extend",
        title="One pass over a ragged batch",
        points=12,
        cases=(
            Case("two sequences", FIXED_PASSES),
            Case("one token per sequence", {**PASSES, "rows": 3, "longest": 1, "calls": 14}),
            Case("learned positions", {**PASSES, "learned": True}),
            *draw_cases(PASSES, public=5, hidden=2, rows=Range(3, 5), n_layers=Range(2, 5)),
        ),
        inputs=draw.draw_passes,
        run=calls.extend,
        expect=draw.expect_passes,
        compare=draw.compare_logits,
        describe=draw.render_passes,
        first_hint="Which pass is the first to be wrong? Later ones see keys of earlier passes: how many passes did "
        "the model make?",
        hint="Call the model once, with positions, your own attention, and rows unless every token is wanted. Split q, "
        "k and v along the tokens; `update` returns what a sequence attends to. Advance after the pass.",
        uses=("Cache", "attend_sequence", "extend"),
    ),
    Check(
        name="prefill",
        title="Chunked prefill",
        points=9,
        cases=(
            Case("a shorter last chunk", {"tokens": 11, "chunk": 4}),
            Case("chunks of equal length", {"tokens": 8, "chunk": 4}),
            Case("one chunk is enough", {"tokens": Range(2, 6), "chunk": 9}),
            Case("all of it is cached", {"tokens": Range(2, 9), "chunk": 4, "held": "all"}),
            Case("a prompt of one token, which is cached", {"tokens": 1, "chunk": 3, "held": "all"}),
            Case("all but the last is cached", {"tokens": Range(2, 9), "chunk": 2, "held": "but one"}),
            *draw_cases(PREFILL, public=4, hidden=2, tokens=Range(30, 60), chunk=Range(2, 40)),
        ),
        inputs=draw.draw_prefill,
        run=calls.prefill,
        expect=draw.expect_prefill,
        compare=draw.compare_passes,
        describe=draw.render_prefill,
        first_hint="Which tokens of the prompt does each pass compute, and is there a pass that gives the last logits?",
        hint="Start behind what is cached, and feed slices of `chunk` tokens. If everything is cached, truncate the "
        "cache by one token first. The logits have one row per sequence.",
        uses=("Cache", "extend", "prefill"),
    ),
    Check(
        name="generate",
        title="Greedy decoding",
        points=8,
        cases=(
            Case("five tokens", {**FEW, "tokens": 5}),
            Case("one token", {**FEW, "tokens": 6, "max_tokens": 1, "chunk": 9}),
            Case("a prefix is cached", {**FEW, "tokens": 8, "chunk": 2, "held": 1}),
            Case("the whole prompt is cached", {**FEW, "tokens": 4, "held": 2}),
            *draw_cases(DECODE, public=5, hidden=2, tokens=Range(9, 30), max_tokens=Range(9, 34), others=Range(2, 5)),
        ),
        inputs=draw.draw_decode,
        run=calls.greedy_decode,
        expect=draw.expect_decode,
        compare=draw.compare_passes,
        describe=draw.render_decode,
        first_hint="Which pass is the first to be wrong: one of the prompt, or which output token does it feed?",
        hint="Give `start` the prompt. The logits of `prefill` give the first token. Feed each token by itself to get "
        "the next, but not the last; then drop this sequence and no other.",
        uses=("Cache", "extend", "prefill", "greedy_decode"),
    ),
    Check(
        name="attend_grouped",
        title="Query heads that share KV heads",
        points=6,
        cases=(
            Case("two KV heads for six", {**ATTENTION, "K": 2, "G": 3, "T": 3, "cached": 4, "H": 6}),
            Case("multi-query", {**ATTENTION, "K": 1, "G": 4, "any": True}),
            Case("one token, a mask with holes", {**ATTENTION, "G": 2, "T": 1, "cached": 8, "any": True}),
            Case("single precision", {**ATTENTION, "G": 2, "H": 16, "single": True}),
            Case("many query heads for one KV head", {**ATTENTION, "K": 1, "G": 32, "T": 1, "cached": 199, "H": 16}),
            *draw_cases({**ATTENTION, "G": Range(1, 4)}, public=4, hidden=1, **LARGER_ATTENTION),
        ),
        inputs=draw.draw_attention,
        run=calls.attend_grouped,
        expect=draw.expect_attention,
        compare=close,
        snippet="attend_grouped(q, keys, values, mask)",
        first_hint="Which query heads use KV head 0? And which row of the mask belongs to query t of head 1?",
        hint="Consecutive query heads share a KV head. As (K, G, T, H), then (K, G times T, H), a group's queries are "
        "rows of one head; every head of the group needs the T rows of the mask again.",
        uses=("attend", "attend_grouped"),
        memory_bytes=512 << 10,
    ),
    Check(
        name="in_window",
        title="Sliding-window mask",
        points=4,
        cases=(
            Case("a chunk", {"cached": 6, "new": 4, "window": 3, "disorder": False}),
            Case("a window of one token", {**MASK, "window": 1}),
            Case("a window longer than the sequence", {**MASK, "window": 2**40}),
            Case("positions that floats cannot hold", {"cached": 6, "new": 4, "window": 4, "far": True}),
            *draw_cases({**MASK, "window": Range(1, 12)}, public=4, hidden=1, cached=Range(20, 40)),
        ),
        inputs=draw.draw_positions,
        run=calls.sliding_window_mask,
        expect=draw.expect_mask,
        compare=draw.compare_mask,
        snippet="sliding_window_mask(query_positions, key_positions, window)",
        first_hint="How many True are in the row of a query that has enough tokens before it?",
        hint="Exactly `window`: the token itself, and the keys up to `window` - 1 positions before it; never a key "
        "after it.",
        uses=("sliding_window_mask",),
    ),
    Check(
        name="ring",
        title="A ring buffer for a sliding window",
        points=7,
        cases=(
            Case("one sequence", {**RING, "rows": 1, "window": 4, "longest": 2, "n_layers": 1, "calls": 9}),
            Case("token by token", {**RING, "longest": 1}),
            Case("a window of one token", {**RING, "window": 1}),
            Case("a window longer than the sequence", {**RING, "window": Range(50, 60), "rows": 1, "calls": 12}),
            Case("a row is used again", {**RING, "rows": 1, "calls": 30}),
            Case("single precision", {**RING, "single": True}),
            Case("a long sequence", LONG_RING),
            Case("many sequences, one after the other", {**LONG_RING, "fill": 2, "calls": 120}),
            *draw_cases(RING, public=5, hidden=2, window=Range(3, 9), longest=Range(2, 8), rows=4, full=True),
        ),
        inputs=draw.draw_updates,
        run=calls.update,
        expect=draw.expect_updates,
        compare=draw.compare_updates,
        describe=draw.render_updates,
        first_hint="Window 5, chunks of 3: what does the pass over tokens 8, 9, 10 see, and in how many slots is it?",
        hint="The first new token sees `window` - 1 tokens before it, and all new ones need slots next to these. A "
        "token's slot is its position modulo the number of slots.",
        uses=("SlidingWindow",),
        memory_bytes=256 << 10,
    ),
    Check(
        name="windowed",
        title="Passes with sliding windows and grouped heads",
        points=4,
        cases=(
            Case("a ring", {**FIXED_PASSES, "window": 3, "ring": 1}),
            Case("a window, all tokens cached", {**WINDOWED, "ring": 0, "window": Range(1, 3), "calls": 12}),
            Case("one token per pass", {**WINDOWED, "longest": 1, "window": 2, "calls": 16}),
            Case("grouped heads", {**PASSES, "grouped": 1}),
            *draw_cases(WINDOWED, public=4, hidden=2, rows=Range(2, 4), calls=Range(14, 22)),
        ),
        inputs=draw.draw_passes,
        run=calls.windowed,
        expect=draw.expect_passes,
        compare=draw.compare_logits,
        describe=draw.render_passes,
        first_hint="Which pass is the first to be wrong? How many tokens does each of its queries see, and which KV "
        "head does it use?",
        hint="`extend` leaves attention to `attend_sequence`, which uses your `sliding_window_mask` and "
        "`attend_grouped`. The parts of q are views, which need not be contiguous in memory.",
        uses=("Contiguous", "SlidingWindow", "extend", "attend", "attend_grouped", "sliding_window_mask"),
    ),
    Check(
        name="step_work",
        title="FLOPs and bytes of a step",
        points=6,
        cases=(
            Case("one sequence decodes", {"parts": 1, "new": 1, "cached": 40, "window": 0}),
            Case("a window", {"parts": 3, "new": 9, "cached": 40, "window": 8}),
            Case("a chunk that outgrows the window", {"parts": 2, "new": 9, "cached": 3, "window": 5}),
            Case("a very large model", {"parts": 2, "new": 40, "cached": 30, "window": 0, "times": 2**19}),
            *draw_cases(COSTS, public=2, hidden=2, parts=Range(3, 6)),
        ),
        inputs=draw.draw_costs,
        run=calls.step_cost,
        expect=draw.expect_costs,
        compare=close,
        describe=draw.render_costs,
        first_hint="Which of the four numbers is wrong, and in which call? What do calls with equal numbers have in "
        "common?",
        hint="New token i of a part (counted from 1) sees the cached tokens and i new ones, or `window` in all. Of the "
        "cache, read what the first new token sees. Scores belong to query heads, cached bytes to KV heads.",
        uses=("TransformerConfig", "StepCost", "step_cost"),
    ),
    Check(
        name="predict_step",
        title="Least time of a step, and what binds",
        points=4,
        cases=(Case("two steps", {"calls": 2}), *draw_cases({"calls": Range(2, 6)}, public=2, hidden=1)),
        inputs=draw.draw_times,
        run=calls.least_time,
        expect=draw.expect_times,
        compare=agree,
        describe=draw.render_times,
        first_hint="Do arithmetic and memory overlap, or does one wait for the other?",
        hint="Each time is an amount divided by a rate. At best both proceed at once, so that the longer one counts.",
        uses=("Machine", "StepCost", "least_time"),
    ),
    Check(
        name="accept",
        title="Which drafts are accepted, and the token after them",
        points=8,
        cases=(
            Case("one draft", {"k": 1, "V": 4}),
            Case("no drafts", {"k": 0, "V": Range(2, 8)}),
            Case("a single token", {"k": 2, "V": 1}),
            Case("the drafter equals the model", {"k": Range(9, 12), "V": 6, "kind": "equal"}),
            Case("the drafter nearly equals the model", {"k": 2, "V": 6, "kind": "nearly equal"}),
            Case("tokens without probability", {"k": Range(2, 4), "V": 7, "kind": "zeros"}),
            Case("sums that are not quite 1", {"k": 1, "V": 40, "kind": "float32"}),
            Case("drafts that are certain", {"k": Range(1, 3), "V": 3, "kind": "certain"}),
            Case("drafts that are very unlikely", {"k": 3, "V": 6, "kind": "rare"}),
            Case("a residual of zeros", {"k": 2, "V": 4, "kind": "no residual"}),
            Case("the last of many is rejected", {"k": Range(9, 12), "V": 6, "kind": "late"}),
            *draw_cases({"k": Range(1, 6), "V": Range(2, 12)}, public=2, hidden=2, V=Range(20, 50)),
        ),
        inputs=draw.draw_accept,
        run=calls.accept,
        expect=draw.expect_accept,
        compare=draw.compare_rows,
        snippet="[accept(*row) for row in zip(drafts, proposed, wanted, uniforms)]",
        first_hint="Is the number of accepted drafts wrong, or the token? In rows where all are accepted, or where one "
        "is rejected?",
        hint="The first rejected draft ends the run: draw from the positive part of `wanted` less `proposed` in its "
        "row, else from the last row of `wanted`. Compare running sums with the last uniform times their total.",
        uses=("accept",),
    ),
    Check(
        name="verify",
        title="A step that verifies drafts",
        points=6,
        cases=(
            Case("three drafts per step", {"tokens": 4, "steps": 4, "k": 3, "others": 0}),
            Case("no drafts", {"tokens": 5, "steps": 3, "k": 0, "others": 0}),
            Case("a sequence of one token", {"tokens": 1, "steps": 2, "k": 3, "others": 1}),
            *draw_cases(STEPS, public=4, hidden=2, steps=Range(6, 12), others=Range(2, 5)),
        ),
        inputs=draw.draw_steps,
        run=calls.speculative_step,
        expect=draw.expect_steps,
        compare=draw.compare_passes,
        describe=draw.render_steps,
        first_hint="Which step is the first to be wrong, and what did the step before it leave in the cache?",
        hint="Feed the last token and all drafts: row i of the logits follows the i-th of these. The cache keeps the "
        "tokens and the accepted drafts; the token after them has not been computed.",
        uses=("Cache", "accept", "extend", "speculative_step"),
    ),
)
LAB = Lab("kv-cache", repeat_first_case(CHECKS))
