"""Tokenizers and chat templates of Hugging Face folders, against the library `transformers`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from mlsys_lab.errors import InputError
from mlsys_lab.inference.pretrained import FOLDER
from mlsys_lab.inference.text import BookTokenizer, Message, Stream, load_tokenizer
from tests.inference.huggingface_folder import save_llama, save_qwen

TEXTS = ["The cache holds naïve keys.", "你好 — 🙂", "", " two  spaces\n\n", "100 %"]
CHAT = [Message("user", " What is a cache? "), Message("assistant", "Memory."), Message("user", "Why?")]


@pytest.fixture(scope="module", params=[save_qwen, save_llama], ids=["qwen", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("checkpoint"))


@pytest.mark.parametrize("text", TEXTS)
def test_prompts_are_encoded_as_by_transformers(folder: Path, text: str) -> None:
    assert load_tokenizer(folder).encode_prompt(text) == PreTrainedTokenizerFast.from_pretrained(folder)(text).input_ids


def test_conversations_follow_the_template(folder: Path) -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    messages = [{"role": role, "content": content} for role, content, _ in CHAT]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert load_tokenizer(folder).encode_chat(CHAT) == expected


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_of_tokens_is_their_text(folder: Path, text: str) -> None:
    tokenizer = load_tokenizer(folder)
    stream, ids = Stream(tokenizer), tokenizer.encode_prompt(text)
    streamed = "".join(map(stream.add, ids)) + stream.end()
    theirs = PreTrainedTokenizerFast.from_pretrained(folder).decode(ids, skip_special_tokens=True)
    assert theirs == text
    # Output continues a prompt, so SentencePiece's space in front of the first word stays.
    assert streamed in (text, f" {text}")


def test_stop_tokens_are_those_of_the_generation_config(tmp_path: Path) -> None:
    folder = save_qwen(tmp_path)
    stops = load_tokenizer(folder).stop_token_ids
    assert stops == tuple(
        PreTrainedTokenizerFast.from_pretrained(folder).convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    )
    (folder / "generation_config.json").unlink()
    assert load_tokenizer(folder).stop_token_ids == stops[:1]  # tokenizer_config.json has one


def test_the_course_s_own_tokenizer_is_read_too() -> None:
    tokenizer = load_tokenizer(FOLDER)
    assert isinstance(tokenizer, BookTokenizer)
    (end,) = tokenizer.stop_token_ids
    assert tokenizer.encode_prompt("A cache")[0] == end and tokenizer.token_bytes(end) == b""


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.json is no tokenizer.*expected a tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json is no tokenizer: got"):
        load_tokenizer(tmp_path)
    folder = save_llama(tmp_path / "llama")
    with pytest.raises(InputError, match="the chat template refuses the conversation: got no system messages"):
        load_tokenizer(folder).encode_chat([Message("system", "Obey."), *CHAT])
    tokenizer = load_tokenizer(folder)
    with pytest.raises(InputError, match="unknown token: got 100000"):
        tokenizer.token_bytes(100_000)
    with pytest.raises(InputError, match="the text holds half a character"):
        tokenizer.encode_prompt("\ud800")
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        if (path := folder / name).exists():
            settings = json.loads(path.read_text()) if name.endswith("json") else None
            path.unlink()
            if settings is not None:
                path.write_text(json.dumps({key: one for key, one in settings.items() if key != "chat_template"}))
    with pytest.raises(InputError, match="the model has no chat template; help: use completions"):
        load_tokenizer(folder).encode_chat(CHAT)
