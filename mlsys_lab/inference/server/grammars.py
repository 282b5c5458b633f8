"""Grammars of what clients ask for, in llguidance's dialect of Lark; the engine's process compiles them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON has the white space of `json.dumps`: a model that is free to add white space may never stop adding it."""
CALL_START, CALL_END = "<tool_call>", "</tool_call>"
"""What encloses a call in the format of Hermes, which Qwen's chat templates ask for."""

ESCAPES = {"/": r"\/", "\n": r"\n"}
"""What cannot stand for itself between the slashes of a regular expression; escaped characters stay as they are."""


def json_grammar(schema: Mapping[str, Any]) -> str:
    """The JSON texts that a schema allows."""
    return f"start: {_json(schema)}"


def choice_grammar(choices: list[str]) -> str:
    """One of several texts."""
    return "start: " + " | ".join(map(json.dumps, choices))


def regex_grammar(pattern: str) -> str:
    """The texts that a regular expression matches as a whole."""
    escaped = re.sub(r"\\.|/|\n", lambda found: ESCAPES.get(found[0], found[0]), pattern, flags=re.DOTALL)
    return f"start: /{escaped}/"


def tool_call_grammar(parameters: Mapping[str, Mapping[str, Any]]) -> str:
    """A call of one function, in Hermes' format; `parameters` are the schemas of the functions' arguments by name."""
    start, end = json.dumps(f"{CALL_START}\n"), json.dumps(f"\n{CALL_END}")
    rules = [f"start: {start} ({' | '.join(f'call_{i}' for i in range(len(parameters)))}) {end}"]
    for i, (name, schema) in enumerate(parameters.items()):
        head = json.dumps(f'{{"name": "{name}", "arguments": ')
        rules += [f'call_{i}: {head} arguments_{i} "}}"', f"arguments_{i}: {_json(schema)}"]
    return "\n".join(rules)


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": SPACING})
