"""Checks of task 4: prompts in chunks, greedy text. Oracle: passes over lists of tokens."""

from __future__ import annotations

import numpy as np
import torch

from mlsys_checks.sandboxed.kv_cache import steps as calls
from mlsys_checks.sandboxed.kv_cache.steps import PROMPTS
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.kv_cache.oracle import (
    Texts,
    begin_others,
    draw_others,
    draw_tokens,
    draw_weights,
    end_others,
    write_model,
    write_others,
)
from mlsys_checks.trusted.kv_cache.steps import USES
from mlsys_lab.models.aging import AgingModel

CONTEXT = AgingModel().config.context
HOLDING = """class Holding(Contiguous):
    def start(self, prompt=()):
        a, held = super().start(prompt), {held}
        if list(prompt)[: len(held)] == held:
            for layer, (k, v) in enumerate(torch.from_numpy(given["beginning"])):
                self.update(layer, a, k, v)
            self.advance(a, len(held))
        return a
"""


def _draw_prompt(rng: np.random.Generator, case: Case) -> Arrays:
    """Two prompts, a token that may follow, and the case's numbers."""
    numbers = {name: np.array(case.params.get(name, 0)) for name in ("held", "chunk", "count")}
    tokens = case.params["tokens"]
    drawn = {"prompt": tokens, "another": max(1, tokens - 2), "following": 1}
    weights = draw_weights(rng, case) | draw_others(rng, case)
    return weights | {name: draw_tokens(rng, count) for name, count in drawn.items()} | numbers


def _draw_generate(rng: np.random.Generator, case: Case) -> Arrays:
    """Two prompts, and keys and values (L, 2, K, held, H) of the first one's beginning where a cache holds that."""
    arrays = _draw_prompt(rng, case)
    if not arrays["held"]:
        return arrays
    c = AgingModel().config
    shape = (c.n_layers, 2, c.n_kv_heads, int(arrays["held"]), c.head_dim)
    return arrays | {"beginning": rng.standard_normal(shape)}


def _hold_beginning(texts: Texts, sequence: int, arrays: Arrays, prompt: list[int]) -> None:
    """Give a new sequence what the cache holds of its prompt, which is all of the case's beginning or nothing."""
    held = int(arrays["held"])
    if held and prompt[:held] == arrays["prompt"].tolist()[:held]:
        layers = [(k, v) for k, v in torch.from_numpy(arrays["beginning"])]
        texts.kept[sequence] += [
            {layer: (k[:, i], v[:, i]) for layer, (k, v) in enumerate(layers)} for i in range(held)
        ]


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
    answers = {"logits": logits, "length": np.array(len(prompt)), "logits after one token more": after}
    texts.truncate(sequence, len(prompt))
    return answers | {"logits of the prompt once more": _feed_prompt(texts, sequence, prompt, int(arrays["chunk"]))}


def _code_of_prefill(arrays: Arrays) -> str:
    held, prompt = int(arrays["held"]), arrays["prompt"].tolist()
    made = f"prompt = {prompt}\ncache = Contiguous(model, sequences=1, capacity={len(prompt) + 1})\na = cache.start()"
    begun = f"\nbegun = extend(model, cache, {{a: prompt[:{held}]}})" if held else ""
    asked = f"prefill(model, cache, a, prompt, {arrays['chunk']})"
    more = f"extend(model, cache, {{a: {arrays['following'].tolist()}}})\ncache.truncate(a, {len(prompt)})"
    return f"{write_model(arrays)}\n{made}{begun}\n{asked}\n{more}\n{asked}  # once more"


def _expect_generate(arrays: Arrays) -> Arrays:
    texts, answers = Texts(arrays), Arrays()
    following = begin_others(texts, arrays)
    for call, name in enumerate(PROMPTS):
        sequence, prompt = texts.start(), arrays[name].tolist()
        _hold_beginning(texts, sequence, arrays, prompt)
        logits = _feed_prompt(texts, sequence, prompt, int(arrays["chunk"]))
        written = [int(logits.argmax())]
        for _ in range(int(arrays["count"]) - 1):
            written.append(int(texts.feed({sequence: written[-1:]})[-1].argmax()))
        answers[f"tokens of call {call}"] = np.array(written)
        texts.drop(sequence)
    return answers | end_others(texts, following)


def _code_of_generate(arrays: Arrays) -> str:
    longest = max(len(arrays["prompt"]) + int(arrays["count"]), arrays["beside"].shape[1])
    kind, begun = "Contiguous", []
    if "beginning" in arrays:
        kind, begun = "Holding", [HOLDING.format(held=arrays["prompt"].tolist()[: int(arrays["held"])])]
    made = f"cache = {kind}(model, sequences={len(arrays['beside']) + 1}, capacity={longest})"
    size = f"{arrays['count']}, {arrays['chunk']}"
    asked = [
        f"generate(model, cache, {arrays[name].tolist()}, {size})  # call {call}" for call, name in enumerate(PROMPTS)
    ]
    first, last = write_others(arrays)
    return "\n".join([write_model(arrays), *begun, made, *first, *asked, *last])


CHECKS = (
    Check(
        name="prefill",
        title="A prompt in chunks",
        points=9,
        cases=(
            Case("chunks that come out even", {"tokens": 8, "chunk": 4}),
            Case("a shorter last chunk", {"tokens": 11, "chunk": 4}),
            Case("one chunk is enough", {"tokens": 5, "chunk": 9}),
            Case("token by token", {"tokens": 6, "chunk": 1}),
            Case("the beginning is held", {"tokens": 10, "held": 3, "chunk": 4}),
            Case("all of it is held", {"tokens": 6, "held": 6, "chunk": 4}),
            Case("a prompt of one token, which is held", {"tokens": 1, "held": 1, "chunk": 3}),
            Case("all but the last is held", {"tokens": 7, "held": 6, "chunk": 2, "learned": True}),
            Case("a long chunk", {"tokens": 23, "chunk": 20}),
            Case("a long one", {"tokens": 41, "held": 5, "chunk": 5}, hidden=True),
        ),
        inputs=_draw_prompt,
        run=calls.prefill,
        expect=_expect_prefill,
        compare=close,
        describe=_code_of_prefill,
        first_hint="Which tokens of the prompt does each pass feed, and is there one for the last logits?",
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
            Case("beside another", {"tokens": 4, "count": 4, "chunk": 3, "beside": (1, 9)}),
            Case("beside two others", {"tokens": 7, "count": 3, "chunk": 2, "beside": (2, 3)}),
            Case("a cache that holds the beginning", {"tokens": 8, "held": 3, "count": 3, "chunk": 2}),
            Case("a cache that holds the whole prompt", {"tokens": 4, "held": 4, "count": 2, "chunk": 3}),
            Case("a prompt token by token", {"tokens": 4, "count": 3, "chunk": 1}),
            Case("as long as a text can get", {"tokens": CONTEXT - 3, "count": 4, "chunk": 40}),
            Case("beside five others", {"tokens": 9, "count": 20, "chunk": 5, "beside": (5, 4)}, hidden=True),
        ),
        inputs=_draw_generate,
        run=calls.generate,
        expect=_expect_generate,
        compare=close,
        describe=_code_of_generate,
        first_hint="Which call is the first to be wrong, from which token on? Later ones show what it has left behind.",
        hint="Give start the prompt. The logits of prefill give the first token. Feed each token alone to get the "
        "next, but not the last; then drop the sequence, and leave all others alone.",
        uses=(*USES, "prefill", "generate"),
    ),
)
