"""Tokenizers of Hugging Face folders: tokenizer.json through the library `tokenizers`, chat templates through Jinja.

Needs the extra `serve`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from mlsys_lab.errors import InputError
from mlsys_lab.inference.text.interface import Message

TOKENIZER, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
GENERATION = "generation_config.json"
MODEL_FILES = (GENERATION, "config.json")
"""Files that may name the tokens at which the model stops; the first that does counts."""
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte as a token of its own, in vocabularies of SentencePiece."""
SPACE = "▁"
"""A space in such vocabularies."""


class HuggingFaceTokenizer:
    """`ChatTokenizer` of a Hugging Face folder.

    Args:
        tokenizer: of the library `tokenizers`.
        settings: the content of tokenizer_config.json.
        template: the chat template, None if the model has none.
        stop_token_ids: tokens that end an answer.
        vocab_size: logits of the model. Many models pad their vocabulary beyond the tokenizer's; padding has no bytes.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        settings: dict[str, Any],
        template: str | None,
        stop_token_ids: Sequence[int],
        vocab_size: int = 0,
    ) -> None:
        self.tokenizer, self.settings, self.stop_token_ids = tokenizer, settings, tuple(stop_token_ids)
        self.vocab_size = max(vocab_size, 1 + max(tokenizer.get_vocab().values()))
        self.template = None if template is None else _compile(template)

    @classmethod
    def load(cls, folder: Path) -> HuggingFaceTokenizer:
        """Read a folder's tokenizer, chat template and stop tokens.

        Raises:
            InputError: a file is missing or damaged.
        """
        path = folder / TOKENIZER
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more specific
            help_ = "copy the tokenizer's files there" if not path.exists() else ""
            raise InputError(f"{path} is no tokenizer", got=" ".join(str(error).split()), help=help_) from None
        settings = _read(folder / SETTINGS)
        template = folder / TEMPLATE
        chat = template.read_text("utf-8") if template.exists() else settings.get("chat_template")
        if isinstance(chat, list):  # several by name
            chat = {one["name"]: one["template"] for one in chat}.get("default")
        vocab_size = _read(folder / "config.json").get("vocab_size", 0)
        return cls(tokenizer, settings, chat, _stop_token_ids(folder, tokenizer, settings), vocab_size)

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a text to continue, with the special tokens that the tokenizer puts first."""
        return list(self.tokenizer.encode(_utf8(text)).ids)

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Token ids of a conversation by the model's chat template, up to where the assistant's answer starts.

        A template that knows no tools ignores `tools`.

        Raises:
            InputError: the model has no chat template, or its template refuses the conversation.
        """
        text = self._render(messages, tools, add_generation_prompt=True)
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_answer(self, messages: Sequence[Message]) -> tuple[list[int], int]:
        """Token ids of a conversation that ends with the assistant's answer, and how many of them precede it.

        Raises:
            InputError: as `encode_chat`, and for a template that does not render the prompt before the answer.
        """
        prompt = self._render(messages[:-1], add_generation_prompt=True)
        text = self._render(messages, add_generation_prompt=False)
        if not text.startswith(prompt):
            raise InputError(
                "the chat template does not render an answer after its prompt",
                got=repr(text[-40:]),
                expected=f"to follow {prompt[-40:]!r}",
            )
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return list(encoding.ids), sum(start < len(prompt) for start, _ in encoding.offsets)

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, add_generation_prompt: bool
    ) -> str:
        if self.template is None:
            raise InputError("the model has no chat template", help="use completions, or a model tuned for chats")
        turns = [
            {"role": role, "content": content} | ({"tool_calls": calls} if calls else {})
            for role, content, calls in messages
        ]
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        special = {name: _content(self.settings.get(name)) for name in names}
        try:
            text = self.template.render(
                messages=turns, add_generation_prompt=add_generation_prompt, tools=tools or None, **special
            )
        except TemplateError as error:
            raise InputError("the chat template refuses the conversation", got=error.message or str(error)) from None
        return _utf8(text)

    def token_bytes(self, token: int) -> bytes:
        """Bytes of a token, none for a special one or padding; InputError for an id outside the vocabulary."""
        if not 0 <= token < self.vocab_size:
            raise InputError("unknown token", got=token, expected=f"0 to {self.vocab_size - 1}")
        return self._bytes[token]

    @cached_property
    def special_tokens(self) -> dict[int, str]:
        """Names of the special tokens by id."""
        added = self.tokenizer.get_added_tokens_decoder()
        return {token: one.content for token, one in added.items() if one.special}

    @cached_property
    def _bytes(self) -> list[bytes]:
        document = json.loads(self.tokenizer.to_str())
        is_byte_level = "ByteLevel" in json.dumps(document.get("decoder"))
        added = {one["id"]: b"" if one["special"] else one["content"].encode() for one in document["added_tokens"]}
        table = [b""] * self.vocab_size
        for text, token in self.tokenizer.get_vocab().items():
            if token in added:
                table[token] = added[token]
            elif is_byte_level:
                table[token] = bytes(BYTE_OF[character] for character in text)
            elif byte := BYTE.fullmatch(text):
                table[token] = bytes([int(byte[1], 16)])
            else:
                table[token] = text.replace(SPACE, " ").encode()
        return table


def _byte_of() -> dict[str, int]:
    """GPT-2's characters for bytes: printable bytes stand for themselves, the others for characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_of()


class _GenerationMarks(Extension):
    """Renders what some templates mark as the assistant's, {% generation %} … {% endgeneration %}, as it is."""

    tags = {"generation"}  # noqa: RUF012, as jinja declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compile(template: str) -> Template:
    """A chat template with what templates of published models use."""

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationMarks]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise InputError("the chat template is no Jinja template", got=error.message or str(error)) from None


def _read(path: Path) -> dict[str, Any]:
    """A JSON object, empty if there is no such file."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not JSON", got=" ".join(str(error).split())) from None
    if not isinstance(document, dict):
        raise InputError(f"{path} is no object", got=type(document).__name__, expected="names and values")
    return document


def _stop_token_ids(folder: Path, tokenizer: Tokenizer, settings: dict[str, Any]) -> list[int]:
    for name in MODEL_FILES:
        found = _read(folder / name).get("eos_token_id")
        if found is not None:
            return list(found) if isinstance(found, list) else [found]
    token = tokenizer.token_to_id(_content(settings.get("eos_token")) or "")
    return [] if token is None else [token]


def _content(token: Any) -> str | None:
    """A special token's text; some files have an object with its properties."""
    text: str | None = token["content"] if isinstance(token, dict) else token
    return text


def _utf8(text: str) -> str:
    """The text; InputError if it contains a lone surrogate, which has no UTF-8 encoding."""
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        got = ascii(problem.object[problem.start])
        raise InputError("the text holds half a character", got=got, expected="text in UTF-8") from None
    return text
