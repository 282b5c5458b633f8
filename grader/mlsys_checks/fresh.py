"""Check a saved notebook in a fresh process, independent of the live kernel's state and limited in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mlsys_lab.errors import CourseError

START_LIMIT_S = 120.0
"""Time for a cold import of torch and for the exported cells, which stop themselves after 30 s."""
GRACE_S = 120.0
"""Time beyond a check's limit before the process is killed: inputs and the oracle, on a busy machine. An endless loop
in the learner's code is stopped at the limit, by its alarm.
"""
POLL_S = 0.05
ONE_THREAD = MappingProxyType(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
"""Environment of the process, as in the grader's sandbox: a check's products are small, and waking a thread takes forty
times as long as a product of five numbers.
"""


@dataclass(frozen=True)
class SavedReport:
    """Outcome of one check on a saved notebook: `runner.Report` in plain values.

    `refused`: the notebook's code could not be loaded, for the reason in `what`.
    """

    name: str
    title: str
    points: float
    passed: bool = False
    unfinished: bool = False
    refused: bool = False
    case: str = ""
    given: str = ""
    what: str = ""
    got: str = ""
    expected: str = ""
    hint: str = ""
    time_s: float = 0.0

    @property
    def earned(self) -> float:
        """Points earned."""
        return self.points if self.passed else 0.0


class ChecksBrokenError(CourseError):
    """The checks themselves could not run."""


def check_saved(checks_module: str, notebook: Path, start_limit_s: float = START_LIMIT_S) -> Iterator[SavedReport]:
    """Run all public checks of `checks_module` on a notebook; yield each report as it completes.

    The process runs in the notebook's folder, so that earlier labs are found, but cannot import files from it, just as
    a grader could not. Output of the learner's code is dropped.
    """
    with tempfile.TemporaryDirectory(prefix="mlsys-lab-") as scratch:
        results, errors = Path(scratch) / "results.jsonl", Path(scratch) / "stderr"
        command = [sys.executable, "-P", "-m", "mlsys_checks", checks_module, str(notebook.resolve()), str(results)]
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                cwd=notebook.resolve().parent,
                env={**os.environ, **ONE_THREAD},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,  # ranks started by the learner's code end with it
            )
        try:
            yield from _reports(process, results, errors, start_limit_s)
        finally:
            _kill(process)


def _reports(
    process: subprocess.Popen[bytes], results: Path, errors: Path, start_limit_s: float
) -> Iterator[SavedReport]:
    plan: list[dict[str, Any]] = []
    done = 0
    for event in _events(process, results, start_limit_s):
        if "plan" in event:
            plan = event["plan"]
        elif "refused" in event:
            for check in plan:
                yield _planned(check, what=event["refused"], unfinished=event["unfinished"], refused=True)
            return
        elif "silent_s" in event:
            yield from _cut_short(plan[done:], f"it did not come to an end within {event['silent_s']:.0f} s")
            return
        elif "loaded" not in event:
            yield _planned(plan[done], **{key: event[key] for key in event if key != "name"})
            done += 1
    if not plan:
        lines = errors.read_text(errors="replace").strip().splitlines()
        raise ChecksBrokenError("the checks could not be started", got=lines[-1] if lines else "no message")
    if done < len(plan):
        yield from _cut_short(plan[done:], f"it ended the process ({_ending(process.wait())})")


def _events(process: subprocess.Popen[bytes], results: Path, start_limit_s: float) -> Iterator[dict[str, Any]]:
    """The child's events as they come; {"silent_s": …} if it is silent for longer than allowed."""
    limits_s: list[float] = []
    seen, allowed_s, since = 0, start_limit_s, time.monotonic()
    while True:
        ended = process.poll() is not None
        lines = results.read_text(encoding="utf-8").split("\n")[:-1] if results.exists() else []
        for line in lines[seen:]:
            event = json.loads(line)
            if "plan" in event:
                limits_s = [check["limit_s"] + GRACE_S for check in event["plan"]]
            else:  # the artifact has loaded, or a check has ended
                allowed_s = limits_s.pop(0) if limits_s else GRACE_S
            since = time.monotonic()
            yield event
        seen = len(lines)
        if ended:
            return
        if time.monotonic() - since > allowed_s:
            yield {"silent_s": allowed_s}
            return
        time.sleep(POLL_S)


def _cut_short(left: list[dict[str, Any]], why: str) -> Iterator[SavedReport]:
    for index, check in enumerate(left):
        yield _planned(check, what=why if index == 0 else f"not tried, because {left[0]['name']} stopped the process")


def _planned(check: dict[str, Any], **outcome: Any) -> SavedReport:
    return SavedReport(check["name"], check["title"], check["points"], **outcome)


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and, where there are process groups, its descendants."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):  # all of them have ended
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
