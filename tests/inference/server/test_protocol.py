"""Bodies validated field by field, and translated for the engine."""

from __future__ import annotations

import pytest

from mlsys_lab.inference.server.errors import ApiError
from mlsys_lab.inference.server.messages import GenerateRequest
from mlsys_lab.inference.server.protocol import MODEL, ChatCompletionRequest, CompletionRequest, parse_request

USER = {"role": "user", "content": "A"}
PLAIN = {"model": MODEL, "prompt": "A"}
CHAT = {"model": MODEL, "messages": [USER]}


def test_defaults_are_openai_s():
    completion, chat = parse_request(PLAIN, CompletionRequest), parse_request(CHAT, ChatCompletionRequest)
    assert completion.to_engine() == GenerateRequest(0, prompt="A", max_tokens=16)
    assert chat.to_engine() == GenerateRequest(0, messages=[("user", "A")], max_tokens=None)
    assert not (completion.stream or chat.stream or chat.stream_options.include_usage)


def test_every_field_reaches_the_engine():
    body = {"max_tokens": 5, "n": 2, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["a", "b"], "logprobs": 0}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    parsed = parse_request(PLAIN | body | options, CompletionRequest)
    sampling = {"n": 2, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["a", "b"]}
    assert parsed.to_engine() == GenerateRequest(0, "A", None, 5, logprobs=True, **sampling)
    assert parsed.stream and parsed.stream_options.include_usage
    assert parse_request(CHAT | {"logprobs": True}, ChatCompletionRequest).to_engine().logprobs
    assert not parse_request(PLAIN, CompletionRequest).to_engine().logprobs


@pytest.mark.parametrize(
    ("limits", "max_tokens"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": None}, None),
    ],
)
def test_max_completion_tokens_takes_precedence(limits, max_tokens):
    assert parse_request(CHAT | limits, ChatCompletionRequest).to_engine().max_tokens == max_tokens


def test_null_is_absent_and_one_stop_string_is_a_list_of_one():
    nulls = dict.fromkeys(("n", "stop", "seed", "suffix", "unknown"))
    assert parse_request(PLAIN | nulls, CompletionRequest) == parse_request(PLAIN, CompletionRequest)
    assert parse_request(PLAIN | {"stop": "end"}, CompletionRequest).to_engine().stop == ["end"]
    assert parse_request(PLAIN | {"temperature": 0}, CompletionRequest).to_engine().temperature == 0.0


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"prompt": None}, "prompt", "prompt is missing, expected one prompt"),
        ({"prompt": True}, "prompt", "prompt: got True"),
        ({"prompt": [1, True]}, "prompt", "prompt: got [1, True]"),
        ({"max_tokens": True}, "max_tokens", "max_tokens: got True, expected a whole number, 1 to 2147483647"),
        ({"max_tokens": 1.0}, "max_tokens", "max_tokens: got 1.0"),
        ({"n": 0}, "n", "n: got 0, expected 1 to 8"),
        ({"temperature": float("nan")}, "temperature", "temperature: got nan, expected 0 to 2"),
        ({"temperature": "1"}, "temperature", "temperature: got '1'"),
        ({"seed": 2**63}, "seed", "seed: got 9223372036854775808"),
        ({"stop": ["x" * 101]}, "stop", "stop: got ['xxx"),
        ({"stream_options": {"usage": True}}, "stream_options", "stream_options: got {'usage': True}"),
        ({"echo": True}, "echo", "echo is not supported: got True"),
        (
            {"prompt": "y" * 99, "frequency_penalty": "z" * 99},
            "frequency_penalty",
            "frequency_penalty is not supported",
        ),
    ],
)
def test_errors_name_the_field(change, param, message):
    with pytest.raises(ApiError) as caught:
        parse_request(PLAIN | change, CompletionRequest)
    assert caught.value.message.startswith(message) and len(caught.value.message) < 200
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("body", [None, [], "x", 3])
def test_a_body_that_is_not_an_object_is_rejected(body):
    with pytest.raises(ApiError, match="the body is not a JSON object"):
        parse_request(body, ChatCompletionRequest)


@pytest.mark.parametrize("messages", [{}, ["A"], [{"role": "user"}], [USER | {"content": [USER]}], [USER | {"x": 1}]])
def test_messages_have_a_role_and_text(messages):
    with pytest.raises(ApiError, match="messages: got"):
        parse_request(CHAT | {"messages": messages}, ChatCompletionRequest)
