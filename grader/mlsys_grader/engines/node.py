"""A worker on a cluster node: one sandbox, one submission at a time. Independent of Ray."""

from __future__ import annotations

import hashlib
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mlsys_checks import load_checks
from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.artifact import Artifact
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.engines import Task
from mlsys_grader.engines.local import LocalEngine
from mlsys_grader.judging.verdict import Verdict
from mlsys_grader.sandbox.gpu import Gpu, find_gpu
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_grader.speed.bench import Bench
from mlsys_grader.speed.devices import needs_gpu, open_benches
from mlsys_grader.speed.measure import find_unmeasured, make_opener
from mlsys_grader.speed.rounds import MeasurementConfig
from mlsys_lab.errors import CourseError
from mlsys_lab.stack.labinfo import find_lab

FINGERPRINTED = ("course", "intake", "sandbox", "judging", "speed", "engines")
"""Packages of the grader that must be identical on all nodes: those that form and carry verdicts."""


@dataclass(frozen=True)
class LabSubset(GradedLab):
    """A lab reduced to the checks in `names`."""

    names: tuple[str, ...] = ()

    @cached_property
    def checks(self) -> Lab:
        whole = load_checks(self.info)
        return Lab(whole.topic, tuple(check for check in whole.checks if check.name in self.names))


def compute_fingerprint(lab: GradedLab) -> str:
    """Hash the lab's version and the grader's code: nodes with equal hashes form equal verdicts."""
    grader = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(path for room in FINGERPRINTED for path in (grader / room).rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return f"{lab.version}/{digest.hexdigest()[:16]}"


class Judge:
    """Judge the checks `checks` of the lab `lab`, as this node's checkout has it.

    `labs` and `path` are "" except for an instructor's own lab: its folder of labs and the import path of its checks,
    the same on every node. `measures`: this worker has a device to itself and also measures performance points.
    """

    def __init__(
        self,
        *,
        lab: str,
        labs: str,
        path: str,
        checks: list[str],
        time_factor: float,
        unsafe: bool,
        backend: str | None,
        measures: bool,
    ) -> None:
        self._name = lab
        self._labs = Path(labs) if labs else None
        self._path = path
        self._checks = tuple(checks)
        self._time_factor = time_factor
        self._unsafe, self._backend = unsafe, backend
        self._measures = measures
        self._held = ExitStack()
        self._benches: dict[str, Bench] = {}

    def ready(self, expected: str) -> str:
        """Open the sandbox; return why this node must not judge, or "". `expected` is the head's fingerprint."""
        node = f"{socket.gethostname()} may not judge"
        if self._path and self._path not in sys.path:
            sys.path.append(self._path)
        try:
            info = find_lab(self._name, self._labs)
            if (found := compute_fingerprint(GradedLab(info))) != expected:
                stale = CourseError(
                    f"{node}: its checkout is not the head's",
                    got=f"{self._name} {found}",
                    expected=expected,
                    help="bring both to the same commit and install it there",
                )
                return str(stale)
            self._lab = LabSubset(info, names=self._checks)
            gpu = self._open_benches() if self._measures else None
            judging = Sandbox(self._lab, unsafe=self._unsafe, backend=self._backend)
            self._engine = LocalEngine(judging, time_factor=self._time_factor)
            # Kernels are interpreted for judging, and compiled on a GPU for timing.
            self._timing = judging
            if gpu is not None:
                self._timing = Sandbox(self._lab, unsafe=self._unsafe, backend=self._backend, device=gpu)
        except CourseError as error:
            return f"{node}: {error}"
        return ""

    def judge(self, name: str, source: str, seeds: Mapping[str, int]) -> dict[str, Any]:
        """Judge an artifact: the verdicts as plain fields, or the error that prevented them."""
        artifact = Artifact.parse(name, source)
        (result,) = self._engine.judge_all([Task("", artifact, seeds)])
        try:
            verdicts = [self._measured(artifact, verdict) for verdict in result.verdicts]
        except CourseError as error:
            return {"verdicts": [], "error": str(error)}
        return {"verdicts": [asdict(verdict) for verdict in verdicts], "error": result.error}

    def _open_benches(self) -> Gpu | None:
        """Open a bench per check for this worker's life; return the GPU that jobs need."""
        gpu = find_gpu()  # Ray exposes a worker's own GPU
        self._benches = self._held.enter_context(open_benches(self._lab, self._checks, MeasurementConfig(), gpu))
        return gpu if needs_gpu(self._benches.values()) else None

    def _measured(self, artifact: Artifact, verdict: Verdict) -> Verdict:
        if verdict.check not in self._benches or not find_unmeasured([verdict]):
            return verdict
        bench = self._benches[verdict.check]
        opened = make_opener(self._timing, artifact, self._lab.checks[verdict.check], bench)
        return replace(verdict, performance=bench.measure(opened))
