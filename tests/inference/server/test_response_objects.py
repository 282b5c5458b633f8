"""Responses in OpenAI's format, built from the engine's outputs."""

from __future__ import annotations

import pytest

from mlsys_lab.inference.server.chat_fields import ChatMessage, Function, Tool
from mlsys_lab.inference.server.messages import OutputDelta, TokenLogprob
from mlsys_lab.inference.server.protocol import (
    MODEL,
    ChatCompletionRequest,
    CompletionRequest,
    StreamOptions,
)
from mlsys_lab.inference.server.response_objects import ResponseBuilder
from tests.inference.server.letters import Letters


def token(text: bytes, logprob: float | None, *top: tuple[int, bytes, float]) -> TokenLogprob:
    return TokenLogprob(0, text, logprob, list(top))


# "é" is two tokens of a byte each; the last of the four tokens is the stop token.
DELTAS = [
    OutputDelta(0, 0, 1, "a", [token(b"a", -0.5)], None, 0),
    OutputDelta(0, 0, 1, "", [token(b"\xc3", -1.0)], None, 0),
    OutputDelta(0, 0, 1, "é", [token(b"\xa9", -2.0)], None, 0),
    OutputDelta(0, 0, 1, "", [], "stop", 3, num_cached_tokens=1),
]


def builder(*, chat, **fields):
    fields = {"model": MODEL, "stream_options": StreamOptions(include_usage=True)} | fields
    if chat:
        request = ChatCompletionRequest(messages=[ChatMessage("user", "A")], logprobs=True, **fields)
    else:
        request = CompletionRequest(**{"prompt": "A", "logprobs": 0} | fields)
    return ResponseBuilder(request, request.to_engine(request.encode(Letters()), None), Letters())


def test_a_whole_completion():
    body = builder(chat=False).response(2, DELTAS)
    assert body["object"] == "text_completion" and body["model"] == MODEL and body["id"].startswith("cmpl-")
    counts = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert body["usage"] == counts | {"prompt_tokens_details": {"cached_tokens": 1}}
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["index"]) == ("aé", "stop", 0)
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["a", r"bytes:\xc3", r"bytes:\xa9"]
    assert logprobs["token_logprobs"] == [-0.5, -1.0, -2.0] and logprobs["text_offset"] == [0, 1, 1]


def test_a_whole_chat_has_the_bytes_of_tokens():
    (choice,) = builder(chat=True).response(2, DELTAS)["choices"]
    assert choice["message"] == {"role": "assistant", "content": "aé"}
    assert [one["bytes"] for one in choice["logprobs"]["content"]] == [[97], [0xC3], [0xA9]]


def test_logprobs_of_the_stop_sequence_are_left_out():
    late = [*DELTAS[:2], OutputDelta(0, 0, 1, "", [token(b"\xa9", -2.0)], "stop", 1)]
    (choice,) = builder(chat=False).response(2, late)["choices"]
    assert choice["logprobs"]["tokens"] == ["a"]


@pytest.mark.parametrize("chat", [True, False])
def test_chunks_add_up_to_the_whole(chat):
    stream = builder(chat=chat, stream=True)
    chunks = stream.first_chunks() + [stream.chunk(delta) for delta in DELTAS]
    (last,) = stream.last_chunks(2)
    assert {chunk["id"] for chunk in [*chunks, last]} == {stream.id}
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 5
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(one["delta"].get("content", "") if chat else one["text"] for one in choices) == "aé"
    assert [one["finish_reason"] for one in choices] == [None] * (len(choices) - 1) + ["stop"]
    if chat:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""} and choices[-1]["delta"] == {}
    else:
        assert [offset for one in choices for offset in one["logprobs"]["text_offset"]] == [0, 1, 1]


def test_sequences_have_their_own_outputs_and_logprobs_are_optional():
    plain = builder(chat=False, logprobs=None, n=2)
    other = OutputDelta(0, 1, 1, "b", [], "length", 1)
    choices = plain.response(2, [DELTAS[0], other, *DELTAS[1:]])["choices"]
    assert [(one["index"], one["text"], one["finish_reason"]) for one in choices] == [
        (0, "aé", "stop"),
        (1, "b", "length"),
    ]
    assert [one["logprobs"] for one in choices] == [None, None]


def test_alternatives_come_with_the_token_itself():
    own, other = token(b"a", -2.0, (5, b"b", -0.5)), token(b"c", -0.1, (6, b"c", -0.1))
    deltas = [OutputDelta(0, 0, 2, "ac", [own, other], "length", 2)]
    (choice,) = builder(chat=False, logprobs=1).response(1, deltas)["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"a": -2.0, "b": -0.5}, {"c": -0.1}]
    (choice,) = builder(chat=True, top_logprobs=1).response(1, deltas)["choices"]
    assert [one["top_logprobs"][0]["token"] for one in choice["logprobs"]["content"]] == ["b", "c"]


def test_alternatives_of_equal_text_have_keys_of_their_own():
    partial = token(b" \xe2\x80", -1.0, (1, b"\xe2", -0.5), (2, b"\xe3", -2.0), (0, b" \xe2\x80", -1.0))
    special = TokenLogprob(300, b"", -1.0, [(301, b"", -0.5), (300, b"", -1.0), (7, b"", -4.0)])
    padding = TokenLogprob(8, b"", -3.0, [(7, b"", -0.5), (8, b"", -3.0)])
    deltas = [OutputDelta(0, 0, 3, "", [partial, special, padding], "length", 3)]
    (choice,) = builder(chat=False, logprobs=3).response(1, deltas)["choices"]
    tokens, tops = choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"]
    assert tokens == [r"bytes: \xe2\x80", "<|end|>", ""]
    assert [top[own] for top, own in zip(tops, tokens, strict=True)] == choice["logprobs"]["token_logprobs"]
    assert tops[0] == {r"bytes: \xe2\x80": -1.0, r"bytes:\xe2": -0.5, r"bytes:\xe3": -2.0}
    assert tops[1] == {"<|end|>": -1.0, "<|pad|>": -0.5, "": -4.0}
    (choice,) = builder(chat=True, top_logprobs=2).response(1, deltas)["choices"]
    assert [one["token"] for one in choice["logprobs"]["content"][1]["top_logprobs"]][:2] == ["<|pad|>", "<|end|>"]


def test_an_echo_has_the_prompts_before_their_outputs():
    deltas = [OutputDelta(0, index, 1, text, [], "length", 1) for index, text in enumerate("wxyz")]
    for stream in (False, True):
        made = builder(chat=False, prompt=["ab", "c"], echo=True, n=2, logprobs=None, stream=stream)
        if stream:
            texts = [made.chunk(delta)["choices"][0]["text"] for delta in deltas]
        else:
            texts = [choice["text"] for choice in made.response(3, deltas)["choices"]]
        assert texts == ["abw", "abx", "cy", "cz"]
    echoed = [token(b"a", None), token(b"b", -3.0, (9, b"q", -1.0))]
    deltas = [OutputDelta(0, 0, 0, "", [], "length", 0, prompt_logprobs=echoed)]
    (choice,) = builder(chat=False, prompt=[97, 98], echo=True, logprobs=1, max_tokens=0).response(2, deltas)["choices"]
    assert choice["text"] == "ab" and choice["logprobs"]["token_logprobs"] == [None, -3.0]
    assert choice["logprobs"]["top_logprobs"] == [None, {"b": -3.0, "q": -1.0}]
    assert choice["logprobs"]["text_offset"] == [0, 1]


CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TOOLS = [Tool("function", Function("f"))]


def test_a_call_that_the_model_chose_is_no_text():
    deltas = [OutputDelta(0, 0, 1, text, [], None, 0) for text in ("Well", ".\n", CALL[:9], CALL[9:])]
    deltas.append(OutputDelta(0, 0, 1, "", [], "stop", 4))
    (choice,) = builder(chat=True, tools=TOOLS).response(2, deltas)["choices"]
    (call,) = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": "Well."} and choice["finish_reason"] == "tool_calls"
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
    made = builder(chat=True, tools=TOOLS)
    chunks = [made.chunk(delta)["choices"][0] for delta in deltas]
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == "Well."
    assert [(one["index"], one["function"]) for one in chunks[3]["delta"]["tool_calls"]] == [(0, call["function"])]
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * 4 + ["tool_calls"]
    (plain,) = builder(chat=True, tools=TOOLS, tool_choice="none").response(2, deltas)["choices"]
    assert plain["message"]["content"] == f"Well.\n{CALL}" and plain["finish_reason"] == "stop"


FORCED = '<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>'


def cut(length, choice):
    """The message and the streamed choices of a call that is cut after a number of characters."""
    deltas = [OutputDelta(0, 0, 1, letter, [], None, 0) for letter in FORCED[:length]]
    deltas.append(OutputDelta(0, 0, 1, "", [], "length", length))
    whole, stream = (builder(chat=True, tools=TOOLS, tool_choice=choice) for _ in range(2))
    (one,) = whole.response(2, deltas)["choices"]
    assert one["finish_reason"] == "length"
    stream.generated.num_logprobs = None
    return one["message"], [chunk["choices"][0] for chunk in map(stream.chunk, deltas) if chunk]


def test_a_forced_call_that_is_cut_has_its_arguments_so_far():
    arguments, start = '{"a": "}"}', FORCED.index('{"a"')
    for length in range(1, len(FORCED)):
        message, chunks = cut(length, "required")
        calls = message.get("tool_calls", [])
        has_name = length > FORCED.index('"f"') + 2
        expected = [{"name": "f", "arguments": arguments[: max(0, length - start)]}] if has_name else []
        assert not message["content"] and [one["function"] for one in calls] == expected
        (chunk,) = chunks  # no empty ones before it
        assert chunk["finish_reason"] == "length" and "content" not in chunk["delta"]
        assert [one["function"] for one in chunk["delta"].get("tool_calls", [])] == expected


def test_a_call_of_the_model_s_own_that_is_cut_stays_text():
    for length in range(1, len(FORCED)):
        message, chunks = cut(length, "auto")
        assert message == {"role": "assistant", "content": FORCED[:length]}
        assert "".join(one["delta"].get("content", "") for one in chunks) == FORCED[:length]


@pytest.mark.parametrize("is_parallel", [True, False])
def test_calls_after_the_first_are_dropped_on_request(is_parallel):
    deltas = [OutputDelta(0, 0, 1, CALL * 2, [], None, 0), OutputDelta(0, 0, 1, CALL, [], "stop", 2)]
    fields = {"chat": True, "tools": TOOLS, "parallel_tool_calls": is_parallel}
    (choice,) = builder(**fields).response(2, deltas)["choices"]
    assert len(choice["message"]["tool_calls"]) == (3 if is_parallel else 1)
    made = builder(**fields)
    chunks = [made.chunk(delta)["choices"][0]["delta"].get("tool_calls", []) for delta in deltas]
    assert [one["index"] for calls in chunks for one in calls] == ([0, 1, 2] if is_parallel else [0])
