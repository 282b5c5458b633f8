"""Write the course's tokenizer in Hugging Face's format, for `transformers`, `tokenizers` and `load_tokenizer`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlsys_lab.inference.text.chat import END, ROLES
from mlsys_lab.inference.text.huggingface import BYTE_OF, GENERATION, SETTINGS, TOKENIZER
from mlsys_lab.inference.text.tokenizer import Tokenizer

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '"
    + END
    + "' }}{% endfor %}{% if add_generation_prompt %}{{ '"
    + ROLES["assistant"]
    + "' }}{% endif %}"
)
"""`encode_chat` as a template."""


def save_huggingface(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json with the chat template, and generation_config.json, to a folder.

    Texts get the end token first, as `BookTokenizer.encode_prompt` has it. `tokenizer` must have the special tokens of
    `inference.text.chat`.
    """
    character_of = {byte: character for character, byte in BYTE_OF.items()}
    number_of_special = len(tokenizer.special)
    names = [
        "".join(character_of[byte] for byte in tokenizer.token_bytes(token))
        for token in range(tokenizer.vocab_size - number_of_special)
    ]
    special = {name: tokenizer.special_id(name) for name in tokenizer.special}
    end = special[END]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, "content": name, "special": True} | flags for name, token in special.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": END, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {END: {"id": END, "ids": [end], "tokens": [END]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {name: token for token, name in enumerate(names)} | special,
            "merges": [[names[left], names[right]] for left, right in tokenizer.merges],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END,
        "eos_token": END,
        "chat_template": CHAT_TEMPLATE,
    }
    generation = {"bos_token_id": end, "eos_token_id": end}
    for name, content in ((TOKENIZER, document), (SETTINGS, settings), (GENERATION, generation)):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
