"""Hugging Face checkpoints, served: tokens equal those of `transformers`, and known clients get their answers."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from mlsys_lab.errors import InputError
from mlsys_lab.inference.server.serve import ServerConfig
from tests.inference.huggingface_folder import save_llama, save_qwen
from tests.inference.server.serving import COMMAND, Served, serving

PROMPT, MAX_TOKENS, PADDING = "The cache holds", 12, 40


@pytest.fixture(scope="module", params=["plain", "draft"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A Qwen 2 with random weights and a padded vocabulary, by itself and with another one that drafts for it."""
    folder = save_qwen(tmp_path_factory.mktemp("models") / "tiny-qwen", padding=PADDING)
    draft = save_qwen(folder.with_name("tiny-draft"), seed=1, padding=PADDING)
    options = ["--draft", str(draft)] if request.param == "draft" else []
    with serving("--model", str(folder), *options) as running:
        yield running, folder
        running.wait_until_idle()
        assert running.end() == 0 and running.log.read_text() == ""


@pytest.fixture(scope="module")
def client(served: tuple[Served, Path]) -> openai.OpenAI:
    return served[0].client()


def theirs(folder: Path, ids: list[int], max_tokens: int) -> list[int]:
    """Greedy tokens of `transformers`, up to a stop token."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    out = model.generate(torch.tensor([ids]), max_new_tokens=max_tokens, do_sample=False)[0, len(ids) :].tolist()
    return out


def test_tokens_are_those_of_transformers(served: tuple[Served, Path], client: openai.OpenAI) -> None:
    folder = served[1]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    assert client.models.list().data[0].id == "tiny-qwen"
    expected = theirs(folder, tokenizer(PROMPT).input_ids, MAX_TOKENS)
    answer = client.completions.create(model="tiny-qwen", prompt=PROMPT, max_tokens=MAX_TOKENS, temperature=0)
    assert answer.choices[0].text == tokenizer.decode(expected, skip_special_tokens=True)
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is a cache?"}]}]
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is a cache?"}], add_generation_prompt=True, return_dict=False
    )
    expected = theirs(folder, ids, MAX_TOKENS)
    chat = client.chat.completions.create(
        model="tiny-qwen", messages=messages, max_completion_tokens=MAX_TOKENS, temperature=0
    )
    assert chat.choices[0].message.content == tokenizer.decode(expected, skip_special_tokens=True)
    assert chat.usage.prompt_tokens == len(ids)


def test_the_payload_of_vllm_bench_serve_streams(served: tuple[Served, Path]) -> None:
    """As `vllm bench serve` (0.11) sends it, to /v1/completions."""
    payload = {
        "model": "tiny-qwen", "prompt": PROMPT, "repetition_penalty": 1.0, "max_tokens": MAX_TOKENS, "logprobs": None,
        "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.0, "ignore_eos": True,
    }  # fmt: skip
    status, body, _ = served[0].ask("POST", "/v1/completions", payload)
    events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    assert status == 200 and events[-1] == "[DONE]"
    assert json.loads(events[-2])["usage"]["completion_tokens"] == MAX_TOKENS


def test_the_payload_of_lm_eval_scores_prompts(served: tuple[Served, Path]) -> None:
    """As lm-eval's `local-completions` (0.4) sends contexts with their continuations."""
    running, folder = served
    prompts = [[5, 6, 7, 8, 9], [9, 8, 7]]
    payload = {
        "model": "tiny-qwen", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234,
        "echo": True,
    }  # fmt: skip
    status, body, _ = running.ask("POST", "/v1/completions", payload)
    assert status == 200 and [choice["index"] for choice in body["choices"]] == [0, 1]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, choice in zip(prompts, body["choices"], strict=True):
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt])).logits[0].double().log_softmax(-1)
        expected = [float(row[token]) for row, token in zip(logprobs, prompt[1:], strict=False)]
        found = choice["logprobs"]
        assert found["token_logprobs"][0] is None and len(found["token_logprobs"]) == len(prompt) + 1
        assert found["token_logprobs"][1 : len(prompt)] == pytest.approx(expected, abs=1e-4)
        for row, top in zip(logprobs, found["top_logprobs"][1 : len(prompt)], strict=False):
            assert max(top.values()) == pytest.approx(float(row.max()), abs=1e-4)


def test_prompts_are_scored_without_a_new_token(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny-qwen", prompt=[5, 6, 7], max_tokens=0, echo=True, logprobs=0)
    (choice,) = answer.choices
    assert choice.finish_reason == "length" and len(choice.logprobs.token_logprobs) == 3
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 0)


def test_padding_of_the_vocabulary_is_no_text(served: tuple[Served, Path], client: openai.OpenAI) -> None:
    running, folder = served
    size = len(PreTrainedTokenizerFast.from_pretrained(folder))
    asked = {"model": "tiny-qwen", "max_tokens": 4, "logprobs": 20}
    forced = {str(token): 100.0 for token in range(size, size + PADDING)}
    engine = running.find_engine()
    (choice,) = client.completions.create(prompt=[size, size + PADDING - 1], logit_bias=forced, **asked).choices
    assert (choice.text, choice.finish_reason) == ("", "length") and choice.logprobs.tokens == [""] * 4
    sampled = {"temperature": 2, "extra_body": {"ignore_eos": True}}  # or a sampled stop token would end it
    (choice,) = client.completions.create(prompt=[size, 5], echo=True, **sampled, **asked).choices
    assert len(choice.logprobs.tokens) == 6 and choice.logprobs.tokens[0] == ""
    (chat,) = client.chat.completions.create(
        model="tiny-qwen", messages=[{"role": "user", "content": "A"}], logit_bias=forced, max_tokens=4
    ).choices
    assert chat.message.content == "" and running.find_engine() == engine
    with pytest.raises(openai.BadRequestError):
        client.completions.create(prompt=[size + PADDING], **asked)


def test_vllm_s_fields_act(client: openai.OpenAI) -> None:
    def ask(**fields: object) -> openai.types.Completion:
        extra = {name: fields.pop(name) for name in list(fields) if name in ("top_k", "stop_token_ids", "ignore_eos")}
        return client.completions.create(model="tiny-qwen", prompt=[5, 6], max_tokens=6, extra_body=extra, **fields)

    greedy = ask(temperature=0, logprobs=1).choices[0]
    assert ask(top_k=1, seed=3).choices[0].text == greedy.text
    forced = ask(temperature=0, logit_bias={"40": 100}, logprobs=0).choices[0]
    assert len(set(forced.logprobs.tokens)) == 1 and forced.logprobs.token_logprobs[0] < math.log(0.5)
    stopped = ask(temperature=0, logit_bias={"40": 100}, stop_token_ids=[40]).choices[0]
    assert (stopped.text, stopped.finish_reason) == ("", "stop")
    penalised = ask(temperature=0, frequency_penalty=2, presence_penalty=2, logit_bias={"40": 5, "41": 4}, logprobs=0)
    assert len(set(penalised.choices[0].logprobs.tokens)) > 1


def test_tokens_can_be_asked_for(served: tuple[Served, Path]) -> None:
    running, folder = served
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    status, body, _ = running.ask("POST", "/tokenize", {"model": "tiny-qwen", "prompt": PROMPT})
    assert (status, body["tokens"]) == (200, tokenizer(PROMPT).input_ids) and body["max_model_len"] == 128
    status, back, _ = running.ask("POST", "/detokenize", {"model": "tiny-qwen", "tokens": body["tokens"]})
    assert (status, back) == (200, {"prompt": PROMPT})
    assert running.ask("POST", "/detokenize", {"tokens": [9999]})[1]["error"]["message"].startswith("unknown token")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"model": "nowhere"}, "no such model: got nowhere, expected a folder with config.json and safetensors"),
        ({"model": "{folder}", "draft": "nowhere"}, "no such draft: got nowhere"),
        ({"draft": "{folder}", "adapters": {"a": "{folder}"}}, "drafts go with the package's own scheduler"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, options: dict[str, object], complaint: str) -> None:
    folder = str(save_llama(tmp_path / "llama"))

    def fill(value: object) -> object:
        return {name: folder for name in value} if isinstance(value, dict) else str(value).format(folder=folder)

    with pytest.raises(InputError, match=complaint):
        ServerConfig(**{name: fill(value) for name, value in options.items()})  # type: ignore[arg-type]


def test_a_draft_model_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    qwen, llama = save_qwen(tmp_path / "qwen"), save_llama(tmp_path / "llama")
    command = [COMMAND, "serve", "--port", "0", "--model", str(qwen), "--draft", str(llama)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
    assert "has another vocabulary: got" in refused.stderr
