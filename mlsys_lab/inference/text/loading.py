"""The tokenizer of a folder, in the course's format or Hugging Face's."""

from __future__ import annotations

import json
from pathlib import Path

from mlsys_lab.errors import InputError
from mlsys_lab.inference.text.chat import BookTokenizer
from mlsys_lab.inference.text.interface import ChatTokenizer
from mlsys_lab.inference.text.tokenizer import Tokenizer

FILE = "tokenizer.json"
ASSETS = (
    FILE,
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "generation_config.json",
    "config.json",
)
"""Files of a model's folder that belong to its tokenizer or say how it is used, as opposed to weights."""
BUNDLED = Path(__file__).parents[1] / "pretrained"
"""Folder of the tokenizer that comes with the course."""


def asset_files(folder: Path) -> list[Path]:
    """Files of `ASSETS` that a folder has, to be copied with a model that is trained further."""
    return [path for name in ASSETS if (path := folder / name).is_file()]


def load_tokenizer(folder: Path) -> ChatTokenizer:
    """Read a folder's tokenizer.json, with the chat template next to it.

    Raises:
        InputError: a file is missing or damaged.
    """
    path = folder / FILE
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        got = " ".join(str(error).split())
        raise InputError(f"{path} is no tokenizer", got=got, expected="a tokenizer.json") from None
    if isinstance(document, dict) and "merges" in document:
        return BookTokenizer(Tokenizer.load(path))
    from mlsys_lab.inference.text.huggingface import HuggingFaceTokenizer

    return HuggingFaceTokenizer.load(folder)
