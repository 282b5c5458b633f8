"""Incremental decoding: a character whose bytes are split over tokens is held back until it is complete."""

from __future__ import annotations

import codecs

from mlsys_lab.inference.text.interface import TokenBytes


class Stream:
    """Incremental decoder: its pieces, joined, are the text of all tokens."""

    def __init__(self, tokenizer: TokenBytes) -> None:
        self.tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """Text that one more token completes, "" if it ends within a character; InputError for an unknown token."""
        return self._decoder.decode(self.tokenizer.token_bytes(token))

    def end(self) -> str:
        """Text that remains after the last token: "", or U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)
