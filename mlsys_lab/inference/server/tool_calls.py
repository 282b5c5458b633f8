"""Calls of functions in a chat's text, in Hermes' format: `<tool_call>{"name": ..., "arguments": {}}</tool_call>`."""

from __future__ import annotations

import json
import re
import secrets
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw, Struct

from mlsys_lab.inference.server.grammars import CALL_END, CALL_START

MAYBE_START = re.compile(
    r"\s*(?:" + "|".join(CALL_START[:length] for length in range(len(CALL_START), 0, -1)) + r")?\Z"
)
"""The end of a text that may turn out to be the start of a call, with the white space before it."""

CUT_CALL = re.compile(re.escape(CALL_START) + r'\s*{"name": "([\w-]+)"(?:, "arguments": (.*))?', re.DOTALL)
"""The start of a call that `grammars.tool_call_grammar` forces, from its name on."""


class _Call(Struct):
    name: str
    arguments: Raw


class ToolCallParser:
    """Splits the text of one choice into content and calls, while it is generated.

    Text is held back while it may be part of a call. A call is complete at its end tag; a text that looks like one but
    has no valid JSON remains content. White space around calls is dropped.
    """

    def __init__(self) -> None:
        self.num_calls = 0
        self._held = ""

    def add(self, piece: str) -> tuple[str, list[dict[str, Any]]]:
        """Append a piece; returns the content that is final, and the calls that it completes, in OpenAI's format."""
        self._held += piece
        content = ""
        calls: list[dict[str, Any]] = []
        while (start := self._held.find(CALL_START)) >= 0:
            before = self._held[:start].rstrip()
            content += before
            found = _read_call(self._held[start + len(CALL_START) :])
            if found is None:
                self._held = self._held[len(before) :]
                return content, calls
            call, self._held = found
            calls.append(self._make_call(call.name, bytes(call.arguments).decode()))
        final = MAYBE_START.search(self._held).start()  # type: ignore[union-attr]  # an empty end matches too
        content, self._held = content + self._held[:final], self._held[final:]
        return content, calls

    def end(self) -> str:
        """Content that was held back and is no call."""
        rest, self._held = self._held, ""
        return rest if rest.strip() or not self.num_calls else ""

    def end_forced(self) -> list[dict[str, Any]]:
        """The call of a text that had to be one, if it was cut short: with its arguments as far as they go.

        There is none if the call is complete, or if even its name is cut.
        """
        cut, self._held = CUT_CALL.match(self._held), ""
        if cut is None:
            return []
        name, arguments = cut[1], cut[2] or ""
        with suppress(ValueError, RecursionError):  # arguments that are complete end before the text does
            arguments = arguments[: json.JSONDecoder().raw_decode(arguments)[1]]
        return [self._make_call(name, arguments)]

    def _make_call(self, name: str, arguments: str) -> dict[str, Any]:
        self.num_calls += 1
        function = {"name": name, "arguments": arguments}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _read_call(text: str) -> tuple[_Call, str] | None:
    """The call that a text starts with, after its start tag, and the text after its end tag; None if there is none."""
    end = text.find(CALL_END)
    while end >= 0:
        with suppress(msgspec.DecodeError):  # an end tag may also be part of an argument
            call = msgspec.json.decode(text[:end], type=_Call)
            if bytes(call.arguments).startswith(b"{"):
                return call, text[end + len(CALL_END) :]
        end = text.find(CALL_END, end + 1)
    return None
