"""The tokenizer of a folder, in the course's format or Hugging Face's."""

from __future__ import annotations

import json
from pathlib import Path

from mlsys_lab.errors import InputError
from mlsys_lab.inference.text.chat import BookTokenizer
from mlsys_lab.inference.text.interface import ChatTokenizer
from mlsys_lab.inference.text.tokenizer import Tokenizer

FILE = "tokenizer.json"
BUNDLED = Path(__file__).parents[1] / "pretrained"
"""Folder of the tokenizer that comes with the course."""


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
