"""What the official client gets is what `generate` writes, whole and as a stream; what is wrong, it is told."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import openai
import pytest

from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.generate import generate
from mlsys_lab.inference.pretrained import load_pair
from mlsys_lab.inference.server.protocol import MODEL
from mlsys_lab.inference.text import Detokenizer, Message, Stream, encode_chat
from mlsys_lab.inference.text.chat import END

PAIR = load_pair()
PROMPTS = ("The memory of a GPU", "A cache", "Attention", "def", "Ein naïver Käse 🧀", "1", "A kernel is", "The loss")
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def client(served):
    with served.client() as made:
        yield made


def write(prompt, most, sampling=GREEDY, stop=(), **options):
    end = PAIR.tokenizer.special_id(END)
    tokens = [end, *PAIR.tokenizer.encode(prompt)] if isinstance(prompt, str) else prompt

    def make_detokenizer():
        return Detokenizer(Stream(PAIR.tokenizer), stop)

    (texts,) = generate(
        PAIR.target,
        [Request(tokens, most, sampling, stop_token_sequences=[[end]], make_detokenizer=make_detokenizer, **options)],
    )
    return texts


def shown(token):
    """A token as OpenAI's completions show it: bytes that are no text by themselves as those of a literal."""
    return f"bytes:{repr(token)[2:-1]}" if "\ufffd" in token.decode(errors="replace") else token.decode()


def test_greedy_texts_are_those_of_generate_many_at_once_and_one_after_the_other(client):
    def complete(prompt):
        return client.completions.create(model=MODEL, prompt=prompt, max_tokens=40, temperature=0, logprobs=0)

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        together = list(pool.map(complete, PROMPTS))
    for prompt, *answers in zip(PROMPTS, together, map(complete, PROMPTS), strict=True):
        (expected,) = write(prompt, 40)
        tokens = [shown(PAIR.tokenizer.token_bytes(token)) for token in expected.token_ids]
        for answer in answers:
            (choice,) = answer.choices
            assert (choice.text, choice.finish_reason) == (expected.text, expected.finish_reason)
            assert choice.logprobs.tokens == tokens
            assert choice.logprobs.token_logprobs == pytest.approx(expected.logprobs, abs=1e-4)
            prompt_tokens = 1 + len(PAIR.tokenizer.encode(prompt))
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt_tokens, len(tokens))


def test_a_chat_is_answered_as_generate_does(client):
    turns = [("system", "Be brief."), ("user", "What is bandwidth?")]
    messages = [{"role": role, "content": content} for role, content in turns]
    ask = partial(client.chat.completions.create, model=MODEL, messages=messages, temperature=0)
    (expected,) = write(encode_chat(PAIR.tokenizer, [Message(*turn) for turn in turns]), 60)
    answer = ask(max_completion_tokens=60, logprobs=True)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    content = choice.logprobs.content
    assert b"".join(bytes(one.bytes) for one in content).decode(errors="replace") == expected.text
    assert [one.logprob for one in content] == pytest.approx(expected.logprobs, abs=1e-4)
    chunks = list(ask(max_tokens=60, stream=True, logprobs=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant" and {chunk.id for chunk in chunks} == {chunks[0].id}
    *texts, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in texts) == expected.text
    assert [chunk.choices[0].finish_reason for chunk in texts] == [None] * (len(texts) - 1) + [expected.finish_reason]
    streamed = [one for chunk in texts if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert [one.bytes for one in streamed] == [one.bytes for one in content]
    assert [one.logprob for one in streamed] == pytest.approx(expected.logprobs, abs=1e-4)
    assert last.choices == [] and last.usage.total_tokens == answer.usage.total_tokens
    assert 0 == answer.usage.prompt_tokens_details.cached_tokens < last.usage.prompt_tokens_details.cached_tokens


def test_a_chat_that_names_no_number_goes_on_to_the_end_of_the_turn_or_the_context(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "What is a cache?"}], temperature=0
    )
    assert answer.choices[0].finish_reason == "stop" or answer.usage.total_tokens == PAIR.target.config.context


def test_several_texts_come_by_seed_and_stream_as_they_come_whole(client):
    ask = partial(client.completions.create, model=MODEL, prompt=PROMPTS[0], n=3, max_tokens=12, top_p=0.9)
    whole = ask(seed=7, logprobs=0)
    expected = write(PROMPTS[0], 12, SamplingParams(top_p=0.9, seed=7), n=3)
    assert [choice.text for choice in whole.choices] == [text.text for text in expected]
    assert [choice.index for choice in whole.choices] == [0, 1, 2] and len(set(text.text for text in expected)) == 3
    assert whole.usage.completion_tokens == sum(len(text.token_ids) for text in expected)
    assert [choice.text for choice in ask(seed=8).choices] != [choice.text for choice in whole.choices]
    texts, offsets = ["", "", ""], [[], [], []]
    for chunk in ask(seed=7, stream=True, logprobs=0):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        offsets[choice.index] += choice.logprobs.text_offset
    assert texts == [text.text for text in expected]
    assert offsets == [choice.logprobs.text_offset for choice in whole.choices]


def test_a_stop_string_ends_a_text_before_it(client):
    (plain,) = write(PROMPTS[0], 40)
    stop = plain.text[9:12]
    assert stop.strip()
    before = plain.text[: plain.text.index(stop)]
    ask = partial(client.completions.create, model=MODEL, prompt=PROMPTS[0], max_tokens=40, temperature=0, logprobs=0)
    choice = ask(stop=["never written", stop]).choices[0]
    assert (choice.text, choice.finish_reason) == (before, "stop")
    (expected,) = write(PROMPTS[0], 40, stop=[stop])
    assert choice.logprobs.token_logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert "".join(chunk.choices[0].text for chunk in ask(stop=stop, stream=True)) == before


def test_metrics_count_what_became_of_requests(client, served):
    before = served.wait_until_idle()
    for _ in range(2):
        client.completions.create(model=MODEL, prompt=" ".join(PROMPTS) * 3, max_tokens=2, n=2)
    after = served.wait_until_idle()
    rise = {name.removeprefix("mlsys_"): after[name] - before.get(name, 0) for name in after}
    assert rise["e2e_request_latency_seconds_count"] == rise["request_queue_time_seconds_count"] == 4
    assert 0 < rise["request_queue_time_seconds_sum"] < rise["e2e_request_latency_seconds_sum"]
    assert 0 < rise["prefix_cache_hits_total"] < rise["prefix_cache_queries_total"] == 2 * rise["prompt_tokens_total"]


def test_what_asks_for_nothing_is_taken(client):
    ask = partial(client.completions.create, model=MODEL, prompt=PROMPTS[1], max_tokens=5, temperature=0)
    plain = ask().choices[0].text
    options = {"top_p": 0.5, "seed": 3, "user": "somebody", "presence_penalty": 0, "logit_bias": {}, "echo": False}
    assert ask(**options).choices[0].text == plain
    tokens = [PAIR.tokenizer.special_id(END), *PAIR.tokenizer.encode(PROMPTS[1])]
    assert ask(prompt=tokens).choices[0].text == plain


@pytest.mark.parametrize("stream", [False, True])
def test_at_temperature_0_all_choices_are_alike_with_a_seed_or_without(client, stream):
    asked = {"model": MODEL, "prompt": "A cache", "max_tokens": 6, "temperature": 0}
    (alone,) = client.completions.create(**asked).choices
    answer = client.completions.create(**asked, n=3, seed=7, stream=stream)
    texts = ["", "", ""]
    for part in answer if stream else [answer]:
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert texts == [alone.text] * 3


def test_the_model_is_listed(client):
    assert [model.id for model in client.models.list()] == [MODEL, "mlsys-lab-digits"]
    model = client.models.retrieve(MODEL)
    assert model.object == "model" and model.max_model_len == PAIR.target.config.context
    assert 0 <= time.time() - model.created < 24 * 3600
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


@pytest.mark.parametrize(
    "fields, param, said",
    [
        ({"model": "gpt-4"}, "model", "no such model: got 'gpt-4', expected 'mlsys-lab-target'"),
        ({"prompt": ["one", "two"]}, "prompt", "prompt: got ['one', 'two'], expected one prompt"),
        ({"prompt": []}, "prompt", "prompt: got [], expected one prompt"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens: got 0, expected a whole number, 1 to 2147483647"),
        ({"max_tokens": 600}, None, "prompt and max_tokens outgrow the context"),
        ({"prompt": [1024]}, None, "unknown token in the prompt: got 1024, expected 0 to 1023"),
        ({"n": 9}, "n", "n: got 9, expected 1 to 8"),
        ({"temperature": 2.5}, "temperature", "temperature: got 2.5, expected 0 to 2"),
        ({"top_p": 0}, "top_p", "top_p: got 0, expected above 0, at most 1"),
        ({"seed": -1}, "seed", "seed: got -1"),
        ({"stop": ["a", ""]}, "stop", "stop: got ['a', '']"),
        ({"stop": list("abcde")}, "stop", "stop: got ['a', 'b'"),
        ({"logprobs": 5}, "logprobs", "logprobs: got 5, expected 0: no alternative tokens"),
        ({"suffix": "end"}, "suffix", "suffix is not supported: got 'end'"),
        ({"presence_penalty": 1}, "presence_penalty", "presence_penalty is not supported: got 1"),
        ({"stream": "yes"}, "stream", "stream: got 'yes', expected true or false"),
        ({"extra_body": {"temprature": 1}}, None, "unknown field: got 'temprature'"),
    ],
)
def test_what_is_wrong_is_said_in_the_standard_form(client, fields, param, said):
    expected = openai.NotFoundError if "model" in fields else openai.BadRequestError
    with pytest.raises(expected) as caught:
        client.completions.create(**({"model": MODEL, "prompt": "A", "max_tokens": 1} | fields))
    body = caught.value.body
    assert body.keys() == {"message", "type", "param", "code"} and body["type"] == "invalid_request_error"
    assert body["message"].startswith(said) and body["param"] == param


USER, NO_TOOLS = {"role": "user", "content": "A"}, "this model's chat template has no tool calls or results"
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    "messages, said",
    [
        ([], "the conversation is empty"),
        ([{"role": "user", "content": ""}], "message 1 of the conversation is empty"),
        ([{"role": "developer", "content": "x"}], "unknown role in the conversation"),
        ([USER, {"role": "assistant", "tool_calls": [CALL]}], f"{NO_TOOLS}: got calls in message 2"),
        ([USER, {"role": "tool", "tool_call_id": "1", "content": "4"}], f"{NO_TOOLS}: got a result in message 2"),
        ([{"role": "user"}], "messages: got"),
        ([{"role": "assistant", "content": "x"}], "the last message is not the user's"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_that_is_none_is_refused_before_a_stream_begins(client, messages, said, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=messages, stream=stream)
    assert caught.value.body["message"].startswith(said)
