"""Text as it is written: a character whose bytes come in several tokens is held back until it is whole."""

from __future__ import annotations

import codecs

from mlsys_lab.inference.text.tokenizer import Tokenizer


class Stream:
    """Text of tokens that come one by one: the pieces, joined, are what `Tokenizer.decode` makes of all of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """Text that one token more completes, often "" where it ends within a character; InputError if unknown."""
        return self._decoder.decode(self.tokenizer.token_bytes(token))

    def end(self) -> str:
        """Text of what is left once no token comes any more: "", or U+FFFD for a character that stayed incomplete."""
        return self._decoder.decode(b"", final=True)
