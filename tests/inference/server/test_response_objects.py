"""Responses in OpenAI's format, built from the engine's outputs."""

from __future__ import annotations

import pytest

from mlsys_lab.inference.server.messages import OutputDelta
from mlsys_lab.inference.server.protocol import (
    MODEL,
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    StreamOptions,
)
from mlsys_lab.inference.server.response_objects import ResponseBuilder

# "é" is two tokens of a byte each; the last of the four tokens is the stop token.
DELTAS = [
    OutputDelta(0, 0, 1, "a", [b"a"], [-0.5], None, 0),
    OutputDelta(0, 0, 1, "", [b"\xc3"], [-1.0], None, 0),
    OutputDelta(0, 0, 1, "é", [b"\xa9"], [-2.0], None, 0),
    OutputDelta(0, 0, 1, "", [], [], "stop", 3),
]


def builder(*, chat, **fields):
    fields = {"model": MODEL, "stream_options": StreamOptions(include_usage=True)} | fields
    if chat:
        return ResponseBuilder(ChatCompletionRequest(messages=[ChatMessage("user", "A")], logprobs=True, **fields))
    return ResponseBuilder(CompletionRequest(**{"prompt": "A", "logprobs": 0} | fields))


def test_a_whole_completion():
    body = builder(chat=False).response(2, DELTAS)
    assert body["object"] == "text_completion" and body["model"] == MODEL and body["id"].startswith("cmpl-")
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["index"]) == ("aé", "stop", 0)
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["a", "\ufffd", "\ufffd"] and logprobs["token_logprobs"] == [-0.5, -1.0, -2.0]
    assert logprobs["text_offset"] == [0, 1, 1]


def test_a_whole_chat_has_the_bytes_of_tokens():
    (choice,) = builder(chat=True).response(2, DELTAS)["choices"]
    assert choice["message"] == {"role": "assistant", "content": "aé"}
    assert [one["bytes"] for one in choice["logprobs"]["content"]] == [[97], [0xC3], [0xA9]]


def test_logprobs_of_the_stop_sequence_are_left_out():
    late = [*DELTAS[:2], OutputDelta(0, 0, 1, "", [b"\xa9"], [-2.0], "stop", 1)]
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
    other = OutputDelta(0, 1, 1, "b", [], [], "length", 1)
    choices = plain.response(2, [DELTAS[0], other, *DELTAS[1:]])["choices"]
    assert [(one["index"], one["text"], one["finish_reason"]) for one in choices] == [
        (0, "aé", "stop"),
        (1, "b", "length"),
    ]
    assert [one["logprobs"] for one in choices] == [None, None]
