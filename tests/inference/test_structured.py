"""Structured outputs: every finished text parses and follows its schema, and no other sequence notices."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine import Engine, Request, SamplingParams
from mlsys_lab.inference.generate import generate
from mlsys_lab.inference.pretrained import FOLDER
from mlsys_lab.inference.server.grammars import choice_grammar, json_grammar, regex_grammar, tool_call_grammar
from mlsys_lab.inference.speculative import ModelDrafter, SpeculativeEngine, speculate
from mlsys_lab.inference.structured import GrammarCompiler
from mlsys_lab.inference.text import BookTokenizer, load_tokenizer
from tests.inference.huggingface_folder import save_llama, save_qwen
from tests.inference.making import V, build, draw

MODEL, PATTERN = build(), r"(ab|c){2,5}[12]?"
FREE, SEED = SamplingParams(temperature=2, seed=5), 3


class Few:
    """`ChatTokenizer` of the 13 tokens of the small models; the last one is the stop token."""

    tokens = (*(bytes([byte]) for byte in b'abc12{}":, '), b"ab", b"")
    stop_token_ids = (V - 1,)

    def token_bytes(self, token: int) -> bytes:
        return self.tokens[token]


COMPILER = GrammarCompiler(Few(), V)


def constrained(request: Request, grammar: str) -> Request:
    stops = [[token] for token in Few.stop_token_ids]
    make = COMPILER.compile(grammar).fork
    return replace(request, make_constraint=make, stop_token_sequences=stops)


def decode(token_ids: tuple[int, ...]) -> str:
    return b"".join(map(Few().token_bytes, token_ids)).decode()


REQUESTS = [Request(draw(n, seed=n), 14, SamplingParams(temperature=2, seed=n), n=1 + n % 2) for n in (3, 4, 5, 6)]
MIXED = [constrained(one, regex_grammar(PATTERN)) if i % 2 else one for i, one in enumerate(REQUESTS)]


def is_complete(token_ids: tuple[int, ...]) -> bool:
    return re.fullmatch(PATTERN, decode(token_ids)) is not None


def test_a_constrained_sequence_leaves_the_batch_alone_through_preemptions() -> None:
    engine = Engine(MODEL, num_blocks=12, block_size=2)
    preemptions = []
    numbers = [engine.add_request(one) for one in MIXED]
    found: dict[int, list[Any]] = {number: [] for number in numbers}
    while not engine.is_idle:
        for delta in engine.step():
            preemptions.append(delta.stats.num_preemptions)
            if delta.completion:
                found[delta.request_id].append((delta.index, delta.completion))
    assert max(preemptions) > 0
    for number, one, plain in zip(numbers, MIXED, REQUESTS, strict=True):
        outputs = [completion for _, completion in sorted(found[number], key=lambda pair: pair[0])]
        assert [one.token_ids for one in outputs] == [one.token_ids for one in generate(MODEL, [one])[0]]
        if one is not plain:
            assert all(is_complete(each.token_ids) and each.finish_reason == "stop" for each in outputs)
    assert [one.token_ids for one in generate(MODEL, MIXED)[0]] == [
        one.token_ids for one in generate(MODEL, REQUESTS)[0]
    ]


def test_log_probabilities_are_the_model_s_own() -> None:
    (output,) = generate(MODEL, [constrained(Request(draw(4), 14, FREE), regex_grammar(PATTERN))])[0]
    with torch.no_grad():
        logits = MODEL(torch.tensor([[*draw(4), *output.token_ids]]))[0]
    expected = logits.log_softmax(-1)[3:-1].gather(-1, torch.tensor(output.token_ids)[:, None])[:, 0]
    assert output.logprobs == pytest.approx(expected.tolist())


def test_drafts_stay_away_from_constrained_sequences() -> None:
    greedy = [replace(one, sampling_params=SamplingParams(temperature=0), n=1) for one in MIXED]
    engine = SpeculativeEngine(MODEL, drafter=lambda: ModelDrafter(build(seed=1)), num_blocks=40, block_size=4)
    numbers, found = [engine.add_request(one) for one in greedy], engine.run()
    drafted = [found[number][0].token_ids for number in numbers]
    assert drafted == [one[0].token_ids for one in generate(MODEL, greedy)] and is_complete(drafted[1])
    with pytest.raises(InputError, match="drafts are verified without a constraint"):
        speculate(MODEL, greedy[1], ModelDrafter(MODEL))


@pytest.mark.parametrize("grammar", [regex_grammar("abz"), json_grammar({"enum": ["z"]})])
def test_a_text_that_no_token_continues_is_no_complete_one(grammar: str) -> None:
    (output,) = generate(MODEL, [constrained(Request(draw(4), 14, FREE), grammar)])[0]
    assert output.finish_reason == "length" and len(output.token_ids) < 14


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (json_grammar({"type": "text"}), "Invalid type: text"),
        (json_grammar({"type": "object", "not": {"required": ["a"]}}), 'Unimplemented keys: ["not"]'),
        (json_grammar({"type": "integer", "minimum": 2, "maximum": 1}), "Unsatisfiable schema"),
        (json_grammar({"$ref": "#/$defs/a"}), "Pointer '/$defs/a' does not exist"),
        (regex_grammar("("), "unclosed group"),
    ],
)
def test_what_is_not_supported_is_said_in_one_line(grammar: str, said: str) -> None:
    with pytest.raises(InputError, match="the grammar or schema is not supported") as caught:
        COMPILER.compile(grammar)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture(scope="module", params=["book", "byte-level", "SentencePiece"])
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], str]:
    """A function that draws a text of a grammar, from tokens that are all alike likely."""
    folders: dict[str, Callable[[Path], Path]] = {
        "byte-level": partial(save_qwen, padding=40),
        "SentencePiece": save_llama,
    }
    save = folders.get(request.param)
    tokenizer = load_tokenizer(save(tmp_path_factory.mktemp("folder")) if save else FOLDER)
    vocab_size = (tokenizer.tokenizer if isinstance(tokenizer, BookTokenizer) else tokenizer).vocab_size
    compiler = GrammarCompiler(tokenizer, vocab_size)

    def sample(grammar: str, seed: int) -> str:
        generator, constraint, token_ids = torch.Generator().manual_seed(seed), compiler.compile(grammar).fork(), []
        reason = None
        while reason is None:
            allowed = constraint.mask()
            assert len(allowed) == vocab_size and len(token_ids) < 2000
            token_ids.append(int(allowed.double().multinomial(1, generator=generator)))
            reason = constraint.accept(token_ids[-1])
        assert reason == "stop"
        kept = token_ids[:-1] if token_ids[-1] in tokenizer.stop_token_ids else token_ids
        return b"".join(map(tokenizer.token_bytes, kept)).decode()

    return sample


SCALARS = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.integers(-99, 99).map(lambda low: {"type": "integer", "minimum": low, "maximum": low + 40}),
    st.integers(0, 4).map(lambda size: {"type": "string", "minLength": size, "maxLength": size + 3}),
    st.just({"type": "string", "pattern": "^[a-c]{1,4}$"}),
    st.lists(st.one_of(st.text(max_size=3), st.integers(-9, 9), st.none()), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def as_object(properties: dict[str, Any]) -> dict[str, Any]:
        required = sorted(properties)[::2]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    return st.one_of(
        inner.map(lambda one: {"type": "array", "items": one, "minItems": 1, "maxItems": 3}),
        st.dictionaries(st.text(min_size=1, max_size=4), inner, max_size=3).map(as_object),
        st.lists(inner, min_size=1, max_size=2).map(lambda several: {"anyOf": several}),
    )


@settings(max_examples=25, deadline=None)
@given(st.recursive(SCALARS, _containers, max_leaves=5), st.integers(0, 99))
def test_any_schema_is_followed(sample: Callable[[str, int], str], schema: dict[str, Any], seed: int) -> None:
    jsonschema.validate(json.loads(sample(json_grammar(schema), seed)), schema)


def test_other_grammars_are_followed(sample: Callable[[str, int], str]) -> None:
    choices = ['yes "and" no', "naïve\n", "/"]
    assert {sample(choice_grammar(choices), seed) for seed in range(20)} == set(choices)
    pattern = r"[a-c]/\/\n?é{2,3}"
    assert all(re.fullmatch(pattern, sample(regex_grammar(pattern), seed)) for seed in range(5))
    schema = {"$ref": "#/$defs/one", "$defs": {"one": {"enum": ["</tool_call>", 2]}}}
    for seed in range(5):
        text = sample(tool_call_grammar({"f": {"type": "null"}, "g": schema}), seed)
        call = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
        jsonschema.validate(call["arguments"], {"f": {"type": "null"}, "g": schema}[call["name"]])
