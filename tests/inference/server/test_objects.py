"""Answers in OpenAI's form, of deltas as the engine sends them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlsys_lab.inference.server.messages import GenerateRequest, OutputDelta
from mlsys_lab.inference.server.objects import Shape, Usage
from mlsys_lab.inference.server.protocol import MODEL, Wanted

ASK = GenerateRequest(0, prompt="A", logprobs=True)
# "é" comes in two tokens, of a byte each; the last of the four tokens ended the text and is no part of it.
DELTAS = [
    OutputDelta(0, 0, 1, "a", [[97]], [-0.5], None, 0),
    OutputDelta(0, 0, 1, "", [[0xC3]], [-1.0], None, 0),
    OutputDelta(0, 0, 1, "é", [[0xA9]], [-2.0], None, 0),
    OutputDelta(0, 0, 1, "", [], [], "stop", 3),
]


def shape(*, chat, stream, **fields):
    return Shape(Wanted(replace(ASK, **fields), chat, stream, include_usage=True))


def test_a_whole_completion():
    usage = Usage(2)
    for delta in DELTAS:
        usage.add(delta)
    body = shape(chat=False, stream=False).whole(DELTAS, usage)
    assert body["object"] == "text_completion" and body["model"] == MODEL and body["id"].startswith("cmpl-")
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["index"]) == ("aé", "stop", 0)
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["a", "\ufffd", "\ufffd"] and logprobs["token_logprobs"] == [-0.5, -1.0, -2.0]
    assert logprobs["text_offset"] == [0, 1, 1]


def test_a_whole_chat_tells_bytes():
    (choice,) = shape(chat=True, stream=False).whole(DELTAS, Usage(2))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "aé"}
    assert [one["bytes"] for one in choice["logprobs"]["content"]] == [[97], [0xC3], [0xA9]]


def test_what_is_sent_beyond_the_end_is_left_out():
    late = [*DELTAS[:2], OutputDelta(0, 0, 1, "", [[0xA9]], [-2.0], "stop", 1)]
    (choice,) = shape(chat=False, stream=False).whole(late, Usage(2))["choices"]
    assert choice["logprobs"]["tokens"] == ["a"]


@pytest.mark.parametrize("chat", [True, False])
def test_chunks_add_up_to_the_whole(chat):
    stream = shape(chat=chat, stream=True)
    usage, chunks = Usage(2), stream.first()
    for delta in DELTAS:
        usage.add(delta)
        chunks.append(stream.chunk(delta))
    (last,) = stream.last(usage)
    assert {chunk["id"] for chunk in [*chunks, last]} == {stream.id}
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 5
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(one["delta"].get("content", "") if chat else one["text"] for one in choices) == "aé"
    assert [one["finish_reason"] for one in choices] == [None] * (len(choices) - 1) + ["stop"]
    if chat:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""} and choices[-1]["delta"] == {}
    else:
        assert [offset for one in choices for offset in one["logprobs"]["text_offset"]] == [0, 1, 1]


def test_without_log_probabilities_there_are_none_and_each_text_has_its_own_pieces():
    plain = shape(chat=False, stream=False, logprobs=False, n=2)
    other = OutputDelta(0, 1, 1, "b", [], [], "length", 1)
    choices = plain.whole([DELTAS[0], other, *DELTAS[1:]], Usage(2))["choices"]
    assert [(one["index"], one["text"], one["finish_reason"]) for one in choices] == [
        (0, "aé", "stop"),
        (1, "b", "length"),
    ]
    assert [one["logprobs"] for one in choices] == [None, None]
