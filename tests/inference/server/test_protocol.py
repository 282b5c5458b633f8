"""Bodies read into what is asked of the engine, field by field."""

from __future__ import annotations

import pytest

from mlsys_lab.inference.server.errors import ApiError
from mlsys_lab.inference.server.messages import GenerateRequest
from mlsys_lab.inference.server.protocol import MODEL, Wanted, read_chat, read_completion

TURN = {"role": "user", "content": "A"}
PLAIN = {"model": MODEL, "prompt": "A"}
CHAT = {"model": MODEL, "messages": [TURN]}


def test_a_body_that_says_little_asks_for_what_openai_s_api_says():
    assert read_completion(PLAIN) == Wanted(GenerateRequest(0, prompt="A", max_tokens=16), False, False, False)
    assert read_chat(CHAT) == Wanted(GenerateRequest(0, messages=[("user", "A")], max_tokens=None), True, False, False)


def test_every_field_arrives():
    body = {"max_tokens": 5, "n": 2, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["a", "b"], "logprobs": 0}
    wanted = read_completion(PLAIN | body | {"stream": True, "stream_options": {"include_usage": True}})
    ask = GenerateRequest(0, "A", None, 5, n=2, temperature=0.5, top_p=0.9, seed=3, stop=["a", "b"], logprobs=True)
    assert wanted == Wanted(ask, chat=False, stream=True, include_usage=True)


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": None}, None),
    ],
)
def test_of_two_names_for_the_most_tokens_of_a_chat_the_newer_counts(limits, most):
    assert read_chat(CHAT | limits).ask.max_tokens == most


def test_null_is_absent_and_one_stop_string_is_a_list_of_one():
    assert read_completion(PLAIN | dict.fromkeys(("n", "stop", "seed", "suffix", "unknown"))) == read_completion(PLAIN)
    assert read_completion(PLAIN | {"stop": "end"}).ask.stop == ["end"]
    assert read_completion(PLAIN | {"temperature": 0}).ask.temperature == 0.0


@pytest.mark.parametrize(
    ("change", "param", "said"),
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
        ({"echo": True}, "echo", "echo is not offered: got True"),
        ({"prompt": "y" * 99, "frequency_penalty": "z" * 99}, "frequency_penalty", "frequency_penalty is not offered"),
    ],
)
def test_what_is_wrong_is_named(change, param, said):
    with pytest.raises(ApiError) as caught:
        read_completion(PLAIN | change)
    assert caught.value.message.startswith(said) and len(caught.value.message) < 200
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("body", [None, [], "x", 3])
def test_what_is_no_object_is_refused(body):
    with pytest.raises(ApiError, match="the body is no JSON object"):
        read_chat(body)


@pytest.mark.parametrize("messages", [{}, ["A"], [{"role": "user"}], [TURN | {"content": [TURN]}], [TURN | {"x": 1}]])
def test_a_conversation_has_turns_of_text_and_nothing_else(messages):
    with pytest.raises(ApiError, match="messages: got"):
        read_chat(CHAT | {"messages": messages})
