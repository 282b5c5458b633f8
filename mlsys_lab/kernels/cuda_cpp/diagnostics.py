"""Reduce a compiler's log to one line: the first error, at a line of the learner's file."""

from __future__ import annotations

import re

from mlsys_lab.errors import InputError

ERROR = re.compile(
    r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<what>.+)$", re.M
)
USED_AT = re.compile(r"\bat line (?P<line>\d+)(?: of (?P<file>\S+))?")
ASSEMBLER = re.compile(r"(?:^\s*ptxas error\s*|; error\s*): (?P<what>.+?)\s*$", re.M)
EXPRESSIONS = "__nv_name_map"
"""File name that NVRTC's messages use for the requested kernels."""


def compile_error(log: str, source: str, name: str) -> InputError:
    """The error for a failed compilation, in one line: `NAME:LINE: error: …` with the source line.

    An error inside a header is reported at the line of the learner's file that includes or uses it; a requested kernel
    that is not in the file is reported as missing.
    """
    errors = list(ERROR.finditer(log))
    if not errors and (refused := ASSEMBLER.search(log)):
        return InputError(f"{name} does not assemble: {refused['what']}")
    if not errors:
        return InputError(f"{name} does not compile", got=" ".join(log.split()) or "no word from the compiler")
    spans = [*(error.start() for error in errors), len(log)]
    located = [
        (_line(error, log[error.end() : end], name), error["what"])
        for error, end in zip(errors, spans[1:], strict=True)
    ]
    own = [(line, what) for line, what in located if line is not None]
    if own:  # templates are compiled after the rest: the first error in the file need not be the log's first
        line, what = min(own, key=lambda one: one[0])
        return _error_at(name, line, what, source, len(errors) - 1)
    if errors[0]["file"].strip() == EXPRESSIONS:
        wanted = log[errors[0].end() :].partition("pragma nv_mangled_name")[2].splitlines()[0].strip()
        return InputError(f"{name} has no such kernel ({errors[0]['what']})", got=wanted)
    return InputError(f"{name} does not compile: {errors[0]['file']}:{errors[0]['line']}: {errors[0]['what']}")


def _line(error: re.Match[str], rest: str, name: str) -> int | None:
    """Line of the file `name` at which an error lies, or which included the header where it lies; None if neither."""
    if error["file"].strip() == name:
        return int(error["line"])
    for place in USED_AT.finditer(rest):
        if place["file"] is None or place["file"].strip('"') == name:
            return int(place["line"])
    return None


def _error_at(name: str, line: int, what: str, source: str, others: int) -> InputError:
    lines = source.splitlines()
    text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    shown = f" in `{text}`" if text else ""
    more = f"{others} more error{'s' if others > 1 else ''} after this one" if others else ""
    return InputError(f"{name}:{line}: error: {what}{shown}", help=more)
