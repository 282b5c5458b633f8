"""Numbers that a learner sees their functions called with: what a solution may know that was made for these cases."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from mlsys_grader.proving.in_process import load_for_check
from mlsys_lab.checks.deciding.artifact import Artifact
from mlsys_lab.checks.deciding.verdict import bind_call, draw_inputs, public_inputs
from mlsys_lab.checks.learner.attempt import attempt
from mlsys_lab.checks.learner.spec import Lab
from mlsys_lab.checks.runner import PUBLIC_SEED

MOST = 8
"""Values of an argument that are kept: one that has more is a draw, which nobody writes down."""

Values = dict[tuple[str, str], tuple[object, ...]]
"""Values of an argument, in the order in which they came, by the name of its function and its own."""


def find_shown_values(reference: str, lab: Lab) -> Values:
    """Numbers that the functions of a reference get in public cases, where they are few."""
    artifact = Artifact.parse("reference", reference)
    found: dict[tuple[str, str], dict[object, None]] = {}
    for check in lab.checks:
        module = load_for_check(check, artifact)
        for case in (case for case in check.cases if not case.hidden):
            # One program of a launch gets what all get, and an interpreter that is watched is slow.
            with _watch_calls(artifact, found, enough=check.uses if check.traced else ()):
                inputs = draw_inputs(check, case, PUBLIC_SEED)
                attempt(bind_call(check, inputs), module, public_inputs(inputs))
    return {name: tuple(values) for name, values in found.items() if len(values) <= MOST}


@contextmanager
def _watch_calls(
    artifact: Artifact, found: dict[tuple[str, str], dict[object, None]], enough: Collection[str]
) -> Iterator[None]:
    """Note numbers that functions of an artifact are called with, until those named in `enough` have been seen."""
    waiting = set(enough)

    def note(frame: FrameType, event: str, _: Any) -> None:
        """Note the numbers that a function is called with, and stop once all of `enough` have been called."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(artifact.name):
            return
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            if (value := _number_of(frame.f_locals.get(name))) is not None:
                found.setdefault((code.co_qualname, name), {})[value] = None
        waiting.discard(code.co_qualname)
        if enough and not waiting:
            sys.setprofile(None)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def _number_of(value: Any) -> int | float | None:
    """A Python number, also inside of what Triton's interpreter makes of one; None for anything else."""
    value = getattr(value, "value", value) if type(value).__module__.startswith("triton.") else value
    handle = getattr(value, "handle", None)
    if handle is not None and not value.type.is_ptr() and handle.data.size == 1:
        value = handle.data.item()
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
