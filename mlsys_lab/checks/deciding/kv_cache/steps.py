"""Checks of tasks 2 to 4: positions, passes of an aging model over ragged batches, prompts in chunks, greedy text."""

from __future__ import annotations

import numpy as np

from mlsys_lab.checks.deciding.compare import close
from mlsys_lab.checks.deciding.kv_cache.oracle import Script, Texts, draw_tokens, draw_weights, read_plan, write_model
from mlsys_lab.checks.learner import kv_cache as calls
from mlsys_lab.checks.learner.kv_cache import follow
from mlsys_lab.checks.learner.spec import Arrays, Case, Check

USES = ("AgingModel", "Contiguous", "extend")


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
        **draw_weights(rng, learned=case.params.get("learned", False)),
        "plan": plan,
        "tokens": draw_tokens(rng, int(plan.clip(min=0).sum())),
        "every_token": every,
        "capacity": np.array(case.params.get("capacity", 16)),
        "backwards": np.array(case.params.get("backwards", False)),
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
    made = f"cache = Contiguous(model, sequences={arrays['plan'].shape[1]}, capacity={arrays['capacity']})"
    script, fed = Script(write_model(arrays), made), iter(arrays["tokens"].tolist())
    for step, new in follow(arrays["plan"], script):
        parts = [f"{script.name(sequence)}: {[next(fed) for _ in range(count)]}" for sequence, count in new.items()]
        if arrays["backwards"]:
            parts.reverse()
        asked = ", every_token=True" if arrays["every_token"][step] else ""
        script.lines.append(f"extend(model, cache, {{{', '.join(parts)}}}{asked})")
    return "\n".join(script.lines)


# --- prefill, generate ------------------------------------------------------------------------------------------------


def _draw_prompt(rng: np.random.Generator, case: Case) -> Arrays:
    """Two prompts, a token that may follow, and the case's numbers."""
    numbers = {name: np.array(case.params.get(name, 0)) for name in ("held", "chunk", "count")}
    tokens = case.params["tokens"]
    drawn = {"prompt": tokens, "another": max(1, tokens - 2), "following": 1}
    weights = draw_weights(rng, learned=case.params.get("learned", False))
    return weights | {name: draw_tokens(rng, count) for name, count in drawn.items()} | numbers


def _feed_prompt(texts: Texts, sequence: int, prompt: list[int], chunk: int) -> np.ndarray:
    """Logits after a prompt of which a sequence has the beginning; fed in chunks, at least its last token."""
    texts.truncate(sequence, len(prompt) - 1)
    while rest := prompt[len(texts.kept[sequence]) :]:
        logits = texts.feed({sequence: rest[:chunk]})
    last: np.ndarray = logits[-1]
    return last


def _expect_prefill(arrays: Arrays) -> Arrays:
    texts, prompt = Texts(arrays), arrays["prompt"].tolist()
    sequence = texts.start()
    if arrays["held"]:
        texts.feed({sequence: prompt[: int(arrays["held"])]})
    logits = _feed_prompt(texts, sequence, prompt, int(arrays["chunk"]))
    after = texts.feed({sequence: arrays["following"].tolist()})
    return {"logits": logits, "length": np.array(len(prompt)), "logits after one token more": after}


def _code_of_prefill(arrays: Arrays) -> str:
    held, prompt = int(arrays["held"]), arrays["prompt"].tolist()
    made = f"prompt = {prompt}\ncache = Contiguous(model, sequences=1, capacity={len(prompt) + 1})\na = cache.start()"
    begun = f"\nbegun = extend(model, cache, {{a: prompt[:{held}]}})" if held else ""
    asked = f"prefill(model, cache, a, prompt, {arrays['chunk']})"
    return f"{write_model(arrays)}\n{made}{begun}\n{asked}\nextend(model, cache, {{a: {arrays['following'].tolist()}}})"


def _expect_generate(arrays: Arrays) -> Arrays:
    texts, answers = Texts(arrays), Arrays()
    for name in ("prompt", "another"):
        sequence = texts.start()
        logits = _feed_prompt(texts, sequence, arrays[name].tolist(), int(arrays["chunk"]))
        written = [int(logits.argmax())]
        for _ in range(int(arrays["count"]) - 1):
            written.append(int(texts.feed({sequence: written[-1:]})[-1].argmax()))
        answers[f"tokens after {name}"] = np.array(written)
    return answers


def _code_of_generate(arrays: Arrays) -> str:
    made = f"cache = Contiguous(model, sequences=1, capacity={len(arrays['prompt']) + int(arrays['count'])})"
    size = f"{arrays['count']}, {arrays['chunk']}"
    asked = [f"generate(model, cache, {arrays[name].tolist()}, {size})" for name in ("prompt", "another")]
    return "\n".join([write_model(arrays), made, *asked])


PACK = (
    Check(
        name="pack",
        title="New tokens side by side, with their positions",
        points=5,
        cases=(
            Case("one sequence that is new", {"lengths": [0], "new": {0: 4}}),
            Case("one token of each of three", {"lengths": [5, 0, 11], "new": {0: 1, 1: 1, 2: 1}}),
            Case("other numbers of tokens, in another order", {"lengths": [3, 7, 1, 4], "new": {3: 2, 0: 5, 1: 1}}),
            Case("five parts", {"lengths": [9, 2, 0, 6, 13], "new": {4: 3, 1: 1, 2: 7, 0: 2, 3: 1}}, hidden=True),
        ),
        inputs=_draw_pack,
        run=calls.pack,
        expect=_expect_pack,
        compare=close,
        describe=_code_of_pack,
        pointer="Of one sequence: how many of its tokens are kept, and where in the row is its last new one?",
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
            Case("chunks, logits of every token", {"plan": "+ 3 4 2", "every_token": (1, 2, 3)}),
            Case("three sequences, one token each", {"plan": "+++ 253 111 111"}),
            Case("prompt, chunk and token in one pass", {"plan": "++0 04+ 326 141 013", "every_token": (3,)}),
            Case("parts in another order", {"plan": "++ 31 14 21", "backwards": True, "every_token": (2,)}),
            Case("tokens are taken back", {"plan": "++ 54 c1 3b 12"}),
            Case("another gets a dropped one's row", {"plan": "++ 62 -1 +0 21 11"}),
            Case("learned positions", {"plan": "++ 31 24 11", "learned": True}),
            Case("a full cache", {"plan": "++ 42 13", "capacity": 5}),
            Case("five sequences", {"plan": "+++++ 71243 15a1- 2140+ 11116", "every_token": (3,)}, hidden=True),
        ),
        inputs=_draw_extend,
        run=calls.extend,
        expect=_expect_extend,
        compare=close,
        describe=_code_of_extend,
        pointer="Which step is the first to be wrong? Later ones see keys of earlier passes: how many did the model "
        "make?",
        hint="One call of the model, with positions, your own attention, and rows unless every token is asked for. "
        "Cut q, k and v along the tokens; update says what a part looks at. Advance once, after the pass.",
        uses=USES,
    ),
    Check(
        name="prefill",
        title="A prompt in chunks",
        points=9,
        cases=(
            Case("chunks that come out even", {"tokens": 8, "chunk": 4}),
            Case("a shorter last chunk", {"tokens": 11, "chunk": 4}),
            Case("one chunk is enough", {"tokens": 5, "chunk": 9}),
            Case("token by token", {"tokens": 4, "chunk": 1}),
            Case("the beginning is held", {"tokens": 10, "held": 3, "chunk": 4}),
            Case("all of it is held", {"tokens": 6, "held": 6, "chunk": 4}),
            Case("a prompt of one token, which is held", {"tokens": 1, "held": 1, "chunk": 3}),
            Case("all but the last is held", {"tokens": 7, "held": 6, "chunk": 2, "learned": True}),
            Case("a long one", {"tokens": 23, "held": 5, "chunk": 7}, hidden=True),
        ),
        inputs=_draw_prompt,
        run=calls.prefill,
        expect=_expect_prefill,
        compare=close,
        describe=_code_of_prefill,
        pointer="Which tokens of the prompt does each pass feed, and is there one for the last logits?",
        hint="Begin behind what the cache holds, and feed slices of `chunk` tokens. Where it holds everything, "
        "truncate it by one token first. Logits come as a row for each sequence.",
        uses=(*USES, "prefill"),
    ),
    Check(
        name="generate",
        title="Greedy text",
        points=8,
        cases=(
            Case("eight tokens", {"tokens": 5, "count": 8, "chunk": 3}),
            Case("one token", {"tokens": 6, "count": 1, "chunk": 9}),
            Case("a prompt of one token", {"tokens": 1, "count": 5, "chunk": 4}),
            Case("twenty tokens", {"tokens": 9, "count": 20, "chunk": 4}, hidden=True),
        ),
        inputs=_draw_prompt,
        run=calls.generate,
        expect=_expect_generate,
        compare=close,
        describe=_code_of_generate,
        pointer="Which token is the first wrong one? The second text shows what the first one has left behind.",
        hint="The logits of prefill give the first token. Feed each token alone to get the next, but not the last; "
        "then drop the sequence.",
        uses=(*USES, "prefill", "generate"),
    ),
)
