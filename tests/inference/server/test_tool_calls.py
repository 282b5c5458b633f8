"""Calls in a chat's text, however the text comes in pieces."""

from __future__ import annotations

import json

import pytest

from mlsys_lab.inference.server.tool_calls import ToolCallParser

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1e400, "b": "</tool_call>"}}\n</tool_call>'
OTHER = '<tool_call>{"arguments": {}, "name": "g"}</tool_call>'


@pytest.mark.parametrize(
    ("text", "content", "names"),
    [
        ("a < b <tool", "a < b <tool", []),
        (f"Wait.\n{CALL}", "Wait.", ["f"]),
        (f"{CALL}\n{OTHER}\n", "", ["f", "g"]),
        (f"{OTHER} done ", " done", ["g"]),
        ('<tool_call>{"name": 1}</tool_call> b', '<tool_call>{"name": 1}</tool_call> b', []),
        ('<tool_call>{"name": "f", "arguments": "x"}</tool_call>',) * 2 + ([],),
        (f" {CALL[:-1]}", f" {CALL[:-1]}", []),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_separated_from_content(text: str, content: str, names: list[str], size: int) -> None:
    parser, contents, calls = ToolCallParser(), "", []
    for start in range(0, len(text), size):
        piece, found = parser.add(text[start : start + size])
        contents, calls = contents + piece, calls + found
    assert (contents + parser.end(), [one["function"]["name"] for one in calls]) == (content, names)
    assert parser.num_calls == len(calls) == len({one["id"] for one in calls})
    for one in calls:
        text = one["function"]["arguments"]
        assert one["type"] == "function" and text in CALL + OTHER and isinstance(json.loads(text), dict)
