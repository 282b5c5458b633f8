"""Formats and tools as OpenAI's own client asks for them, of the bundled model and of a Qwen with random weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field
from transformers import PreTrainedTokenizerFast

from mlsys_lab.inference.server.protocol import MODEL
from tests.inference.huggingface_folder import save_qwen
from tests.inference.server.serving import Served, serving

USER = {"role": "user", "content": "Is it warm in Rome?"}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Rome", "Zürich"]}},
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "It", "parameters": PARAMETERS}}
CLOCK = {"type": "function", "function": {"name": "get_time"}}


class Forecast(BaseModel):
    city: Literal["Rome", "Zürich"]
    is_warm: bool
    days: Annotated[list[Literal["sunny", "rainy"]], Field(max_length=3)]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    folder = save_qwen(tmp_path_factory.mktemp("models") / "tiny-qwen", context=1024)
    draft = save_qwen(folder.with_name("draft"), seed=1, context=1024)
    with serving("--model", str(folder), "--draft", str(draft)) as running:
        yield running, folder


@pytest.fixture(params=["bundled", "qwen"])
def ask(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A chat's request to either model."""
    if request.param == "bundled":
        served, model = request.getfixturevalue("served"), MODEL
    else:
        served, model = request.getfixturevalue("qwen")[0], "tiny-qwen"
    with served.client() as client:
        yield partial(client.chat.completions.create, model=model, messages=[USER], max_tokens=200)


def test_a_schema_is_followed_by_each_choice_and_in_a_stream(ask: Any) -> None:
    schema = PARAMETERS | {"properties": PARAMETERS["properties"] | {"note": {"type": "string", "maxLength": 9}}}
    given = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema, "strict": True}}
    answer = ask(response_format=given, n=4, seed=2)
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    contents = [choice.message.content for choice in answer.choices]
    for content in contents:
        jsonschema.validate(json.loads(content), schema)
    stream = ask(response_format=given, n=4, seed=2, stream=True)
    streamed = [""] * 4
    for chunk in stream:
        (choice,) = chunk.choices
        streamed[choice.index] += choice.delta.content or ""
    assert streamed == contents and len(set(contents)) > 1
    # The client turns a class into a schema, and the answer into an object of it.
    parsed = ask.func.__self__.parse(**ask.keywords, response_format=Forecast, seed=1)
    assert isinstance(parsed.choices[0].message.parsed, Forecast)


def test_any_object_is_an_object_and_completions_have_formats_too(ask: Any) -> None:
    choices = ask(response_format={"type": "json_object"}, n=8, temperature=2, seed=1).choices
    assert any(choice.finish_reason == "stop" for choice in choices)
    for choice in choices:
        assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)
    complete = partial(ask.func.__self__._client.completions.create, model=ask.keywords["model"], prompt="A")
    assert complete(extra_body={"structured_outputs": {"choice": ["yes", "no/"]}}).choices[0].text in ("yes", "no/")
    text = complete(extra_body={"structured_outputs": {"regex": r"[a-c]{3}/\d"}}).choices[0].text
    assert re.fullmatch(r"[a-c]{3}/\d", text)


def test_a_required_call_is_the_answer(ask: Any) -> None:
    answer = ask(tools=[WEATHER, CLOCK], tool_choice="required", n=4, seed=3)
    names = set()
    for choice in answer.choices:
        (call,) = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        names.add(call.function.name)
        expected = {"get_weather": PARAMETERS, "get_time": {"const": {}}}[call.function.name]
        jsonschema.validate(json.loads(call.function.arguments), expected)
    assert names == {"get_weather", "get_time"}
    named = {"tools": [WEATHER, CLOCK], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
    (call,) = ask(**named, seed=4).choices[0].message.tool_calls
    stream = ask(**named, seed=4, stream=True)
    chunks = [chunk.choices[0] for chunk in stream]
    deltas = [one for chunk in chunks for one in chunk.delta.tool_calls or []]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "" and chunks[-1].finish_reason == "tool_calls"
    assert [(one.index, one.function.name, one.function.arguments) for one in deltas] == [
        (0, "get_weather", call.function.arguments)
    ]


def test_a_cut_call_has_the_arguments_so_far(ask: Any) -> None:
    named = {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "seed": 4}
    whole = ask(**named)
    (call,) = whole.choices[0].message.tool_calls
    num_tokens = whole.usage.completion_tokens
    for max_tokens in (3, num_tokens * 3 // 4, num_tokens - 2):
        cut = ask.func(**ask.keywords | named | {"max_tokens": max_tokens}).choices[0]
        assert cut.finish_reason == "length" and not cut.message.content
        for one in cut.message.tool_calls or []:
            assert one.function.name == "get_weather" and call.function.arguments.startswith(one.function.arguments)
        assert bool(cut.message.tool_calls) == (max_tokens > 3)
        chunks = list(ask.func(**ask.keywords | named | {"max_tokens": max_tokens, "stream": True}))
        choices = [chunk.choices[0] for chunk in chunks]
        deltas = [one for choice in choices for one in choice.delta.tool_calls or []]
        assert [(one.function.name, one.function.arguments) for one in deltas] == [
            (one.function.name, one.function.arguments) for one in cut.message.tool_calls or []
        ]
        assert len(chunks) == 2 and choices[-1].finish_reason == "length"


def test_the_template_gets_tools_calls_and_results(qwen: tuple[Served, Path]) -> None:
    served, folder = qwen
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4"},
    ]
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    as_object = call | {"function": call["function"] | {"arguments": {"city": "Rome"}}}
    plain = [USER, {"role": "assistant", "content": "", "tool_calls": [as_object]}, {"role": "tool", "content": "4"}]
    asked = {"model": "tiny-qwen", "messages": messages, "max_tokens": 1, "tools": [WEATHER]}
    for options, tools in [({}, [WEATHER]), ({"tool_choice": "none"}, None)]:
        expected = theirs.apply_chat_template(plain, tools=tools, add_generation_prompt=True, return_dict=False)
        with served.client() as client:
            answer = client.chat.completions.create(**asked, **options)
        assert answer.usage.prompt_tokens == len(expected)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"response_format": {"type": "xml"}}, "response_format: got {'type': 'xml'}, expected {type: 'text'}"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
            "the grammar",
        ),
        ({"response_format": {"type": "json_object"}, "stop": "a"}, "stop, stop_token_ids and ignore_eos do not go"),
        ({"response_format": {"type": "json_object"}, "tools": [CLOCK]}, "an output of a format cannot be a call"),
        ({"tools": [{"type": "function"}]}, "tools: got [{'type': 'function'}], expected a list of {type: 'function'"),
        ({"tools": [CLOCK], "tool_choice": "any"}, "tool_choice: got 'any', expected 'none', 'auto', 'required' or"),
        ({"tool_choice": "required"}, "tool_choice: got 'required', but there are no tools"),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice: got 'f', which is not one of the tools",
        ),
    ],
)
def test_what_is_not_supported_is_said_in_one_line(served: Served, fields: dict[str, Any], said: str) -> None:
    with served.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[USER], **fields)
    assert caught.value.body["message"].startswith(said) and "\n" not in caught.value.body["message"]
