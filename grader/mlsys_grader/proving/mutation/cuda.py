"""Operators on a kernel's text in CUDA C++, which stands in a Python string: what a C++ compiler would still accept."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from mlsys_grader.proving.mutation.code import Function, pair_alike

KERNEL = "__global__"
"""What a text with a kernel holds."""
_NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|^\s*#[^\n]*", re.DOTALL | re.MULTILINE)
"""Comments, and what is for the preprocessor."""
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_AXIS = re.compile(r"(?<=Idx\.)[xy]\b|(?<=Dim\.)[xy]\b")
_BARRIER = re.compile(r"__sync\w+\(\s*\);")
_GUARD = re.compile(r"\bif \(")
_ASSIGNMENT = re.compile(r"(?<=[;{})])\s*(\w+\s*(?:\[[^;{}]*?\]\s*)*[-+*/]?=[^=;{}][^;{}]*);")
_OPERATION = re.compile(r"(?<= )(?:<=|>=|==|!=|&&|\|\||\+=|-=|[-+*/%^<>])(?= )")
_PARAMETER = re.compile(r"[(,]\s*((?:const )?\w+\s*\*?(?: __restrict__)?) ?(\w+)(?=[,)])")
_LOCAL = re.compile(r"(?:\bint|\bunsigned|\bfloat|,) (\w+) =(?!=)")
TURNED = {
    "<": ("<=", ">"),
    "<=": ("<", ">="),
    ">": (">=", "<"),
    ">=": (">", "<="),
    "==": ("!=",),
    "!=": ("==",),
    "&&": ("||",),
    "||": ("&&",),
    "+=": ("=", "-="),
    "-=": ("=", "+="),
    "+": ("-",),
    "-": ("+",),
    "*": ("/", "+"),
    "/": ("*", "%"),
    "%": ("/",),
    "^": ("|",),
}
"""Each sign and what it is mistaken for."""
Change = tuple[int, int, str]
"""Where in a text something else is put, from and to, and what."""


def change_cuda_text(node: ast.AST, function: Function) -> Iterator[str]:
    """The text of a kernel in CUDA C++ with another number, sign, axis or name, or without a statement or a guard."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and KERNEL in node.value:
        text = node.value
        no_code = [match.span() for match in _NO_CODE.finditer(text)]
        for start, end, new in _find_changes(text):
            if not any(begin <= start < finish for begin, finish in no_code):
                yield repr(text[:start] + new + text[end:])


def _find_changes(text: str) -> Iterator[Change]:
    for match in _NUMBER.finditer(text):
        value = int(match[0])
        yield from ((*match.span(), str(other)) for other in dict.fromkeys((value + 1, value - 1, value // 2)))
    yield from ((*match.span(), "xy"[match[0] == "x"]) for match in _AXIS.finditer(text))
    yield from ((*match.span(), ";") for match in _BARRIER.finditer(text))
    yield from ((*match.span(1), "") for match in _ASSIGNMENT.finditer(text))
    for match in _OPERATION.finditer(text):
        yield from ((*match.span(), other) for other in TURNED[match[0]])
        if match[0] in ("&&", "||"):
            yield (_operand_before(text, match.start()), match.end() + 1, "")
            yield (match.start(), _operand_after(text, match.end()), "")
    for match in _GUARD.finditer(text):
        yield (match.end(), _operand_after(text, match.end(), stop=""), "true")
    yield from _mistake_names(text)


def _mistake_names(text: str) -> Iterator[Change]:
    """For each use of a parameter or of a local name the next one of its kind, or the first for the last."""
    kinds: dict[str, dict[str, None]] = {}
    for kind, name in _PARAMETER.findall(text[text.index(KERNEL) :].partition("{")[0]):
        kinds.setdefault("pointer" if "*" in kind else kind, {})[name] = None
    kinds["local"] = dict.fromkeys(_LOCAL.findall(text))
    others = pair_alike(kinds.values())
    body = text.index("{", text.index(KERNEL))
    for match in re.finditer(r"(?<![\w.])[A-Za-z_]\w*\b(?! =[^=])", text):
        if match.start() > body and match[0] in others:
            yield (*match.span(), others[match[0]])


def _operand_before(text: str, at: int) -> int:
    """Where the operand that ends before `at` begins: after a sign that binds less, or a bracket that is open."""
    depth = 0
    for i in range(at - 1, -1, -1):
        depth += (text[i] in ")]") - (text[i] in "([")
        if depth < 0 or (depth == 0 and (text[i] in ";{},?:|&" or text[i : i + 2] == "= ")):
            return i + 1 if text[i] in "([" else i + 2
    return 0


def _operand_after(text: str, at: int, stop: str = ";{},?:|&") -> int:
    """Where the operand that begins at `at` ends: before a sign that binds less, or a bracket that closes."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in "([") - (text[i] in ")]")
        if depth < 0 or (depth == 0 and text[i] in stop):
            return i
    return len(text)
