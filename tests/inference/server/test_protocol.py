"""Bodies validated field by field, and translated for the engine."""

from __future__ import annotations

import pytest

from mlsys_lab.inference.server.errors import ApiError
from mlsys_lab.inference.server.messages import GenerateRequest
from mlsys_lab.inference.server.protocol import MODEL, ChatCompletionRequest, CompletionRequest, parse_request
from tests.inference.server.letters import Letters

USER = {"role": "user", "content": "A"}
PLAIN = {"model": MODEL, "prompt": "A"}
CHAT = {"model": MODEL, "messages": [USER]}


def engine_request(body, request_type=CompletionRequest):
    return parse_request(body, request_type).to_engine([[7]], None)


def test_defaults_are_openai_s():
    completion, chat = parse_request(PLAIN, CompletionRequest), parse_request(CHAT, ChatCompletionRequest)
    assert engine_request(PLAIN) == GenerateRequest(0, [[7]], max_tokens=16)
    assert engine_request(CHAT, ChatCompletionRequest) == GenerateRequest(0, [[7]], max_tokens=None)
    assert not (completion.stream or chat.stream or chat.stream_options.include_usage)


def test_every_field_reaches_the_engine():
    sampling = {"n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": 3, "stop": ["a", "b"]}
    sampling |= {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -1.0, "ignore_eos": True}
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": 2, "echo": True, "max_tokens": 5}
    body = PLAIN | sampling | options | {"logit_bias": {"12": -3}, "stop_token_ids": [4]}
    parsed = parse_request(body, CompletionRequest)
    own = {"num_logprobs": 2, "prompt_logprobs": True, "logit_bias": [(12, -3.0)], "stop_token_ids": [4]}
    assert parsed.to_engine([[7]], "a") == GenerateRequest(0, [[7]], 5, adapter="a", **sampling, **own)
    assert parsed.stream and parsed.stream_options.include_usage
    assert engine_request(CHAT | {"logprobs": True}, ChatCompletionRequest).num_logprobs == 0
    chat = CHAT | {"logprobs": True, "top_logprobs": 3}
    assert engine_request(chat, ChatCompletionRequest).num_logprobs == 3
    assert engine_request(PLAIN).num_logprobs is None


def test_greedy_requests_leave_nothing_to_chance():
    body = PLAIN | {"temperature": 0, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": 3}
    assert engine_request(body) == GenerateRequest(0, [[7]], 16, temperature=0.0)
    assert engine_request(PLAIN | {"top_k": -1}).top_k is None


@pytest.mark.parametrize(
    ("prompt", "encoded"),
    [("ab", [[97, 98]]), (["a", "b"], [[97], [98]]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_a_prompt_is_a_text_or_token_ids_or_several_of_either(prompt, encoded):
    assert parse_request(PLAIN | {"prompt": prompt}, CompletionRequest).encode(Letters()) == encoded


def test_a_message_may_come_in_parts():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    parsed = parse_request(CHAT | {"messages": [USER | {"content": parts}]}, ChatCompletionRequest)
    assert parsed.encode(Letters()) == [[97, 98]]


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
    assert engine_request(CHAT | limits, ChatCompletionRequest).max_tokens == max_tokens


def test_null_is_absent_and_one_stop_string_is_a_list_of_one():
    nulls = dict.fromkeys(("n", "stop", "seed", "suffix", "unknown"))
    assert parse_request(PLAIN | nulls, CompletionRequest) == parse_request(PLAIN, CompletionRequest)
    assert engine_request(PLAIN | {"stop": "end"}).stop == ["end"]
    assert engine_request(PLAIN | {"temperature": 0}).temperature == 0.0


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"prompt": None}, "prompt", "prompt is missing, expected text or a list of token ids"),
        ({"prompt": True}, "prompt", "prompt: got True"),
        ({"prompt": [1, True]}, "prompt", "prompt: got [1, True]"),
        ({"max_tokens": True}, "max_tokens", "max_tokens: got True, expected a whole number, 0 to 2147483647"),
        ({"max_tokens": 1.0}, "max_tokens", "max_tokens: got 1.0"),
        ({"n": 0}, "n", "n: got 0, expected 1 to 8"),
        ({"temperature": float("nan")}, "temperature", "temperature: got nan, expected 0 to 2"),
        ({"temperature": "1"}, "temperature", "temperature: got '1'"),
        ({"seed": 2**63}, "seed", "seed: got 9223372036854775808"),
        ({"stop": ["x" * 101]}, "stop", "stop: got ['xxx"),
        ({"stream_options": {"usage": True}}, "stream_options", "stream_options: got {'usage': True}"),
        ({"best_of": 2}, "best_of", "best_of is not supported: got 2"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "logit_bias: got the key 'a', expected token ids"),
        ({"prompt": ["a", 1]}, "prompt", "prompt: got ['a', 1], expected text or a list of token ids"),
        ({"prompt": "y" * 99, "frequency_penalty": "z" * 99}, "frequency_penalty", "frequency_penalty: got 'zz"),
    ],
)
def test_errors_name_the_field(change, param, message):
    with pytest.raises(ApiError) as caught:
        parsed = parse_request(PLAIN | change, CompletionRequest)
        parsed.to_engine(parsed.encode(Letters()), None)
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
