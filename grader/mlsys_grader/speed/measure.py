"""Bring performance points into records: beside a check's own marks, and measured when they can be.

A check that was not passed has no performance points. One that was passed has them "not measured" until a machine with
its device runs `grade`: then this part alone is measured and entered, and correctness is not judged again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from mlsys_checks.sandboxed.kernel_sources import give_sources, name_sources, read_sources
from mlsys_checks.sandboxed.spec import Check, call_name
from mlsys_checks.trusted.artifact import Artifact
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging.options import Options
from mlsys_grader.judging.verdict import Verdict
from mlsys_grader.sandbox.gpu import HOST_MEMORY_BYTES, find_gpu
from mlsys_grader.sandbox.launcher import SandboxDiedError
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_grader.speed.bench import Bench
from mlsys_grader.speed.devices import needs_gpu, open_benches
from mlsys_grader.speed.rounds import Broken, Effort, Party
from mlsys_lab.errors import InputError

MEMORY_BYTES = {"cpu": 3 << 30, "cuda": HOST_MEMORY_BYTES}
"""What a timed process may hold of the host's memory."""
CPU_S = 3600


def find_unmeasured(verdicts: Sequence[Verdict]) -> list[str]:
    """Find the checks whose points for speed have not been measured, by name."""
    return [v.check for v in verdicts if v.performance is not None and not v.performance.measured]


def measure_all(
    lab: GradedLab,
    options: Options,
    wanted: dict[str, tuple[Artifact, tuple[Verdict, ...]]],
    effort: Effort | None = None,
) -> Iterator[tuple[str, tuple[Verdict, ...]]]:
    """Measure points for speed: yields each student with verdicts so completed; nothing without the device."""
    effort = effort or Effort()
    names = {name for _, verdicts in wanted.values() for name in find_unmeasured(verdicts)}
    gpu = find_gpu()
    with ExitStack() as stack:
        found_benches = stack.enter_context(open_benches(lab, names, effort, gpu))
        if not found_benches:
            return
        given = gpu if needs_gpu(found_benches.values()) else None
        sandbox = stack.enter_context(Sandbox(lab, unsafe=options.unsafe, backend=options.sandbox, device=given))
        for student, (artifact, verdicts) in wanted.items():
            found = {
                name: bench.measure(make_opener(sandbox, artifact, lab.checks[name], bench))
                for name, bench in found_benches.items()
                if name in find_unmeasured(verdicts)
            }
            yield student, tuple(replace(v, performance=found.get(v.check, v.performance)) for v in verdicts)


def make_opener(
    sandbox: Sandbox, artifact: Artifact, check: Check, bench: Bench
) -> Callable[[], AbstractContextManager[Party]]:
    """Make what starts a timed process of a submission in the sandbox; at the end of its block that process is dead.

    Of a traced check's submission, the process has loaded kernels only, and texts of kernels that a process before it
    was asked for: nothing that could replace what the course calls.
    """
    performance = check.performance
    assert performance is not None
    orders = {
        "make": call_name(performance.make),
        "call": call_name(performance.call),
        "device": bench.torch_device,
    }
    order = {
        "name": artifact.name,
        "source": artifact.source,
        "traced": check.traced,
        "time_limit_s": check.time_limit_s,
        "memory_bytes": MEMORY_BYTES[performance.device],
        "cpu_s": CPU_S,
    }

    @contextmanager
    def started(order: Mapping[str, Any]) -> Iterator[Party]:
        with sandbox.job() as job:
            party = Party(job.channel, orders)
            party.request("job", order, deadline=time.monotonic() + bench.effort.start_s)
            yield party

    @contextmanager
    def opened() -> Iterator[Party]:
        """Lend the process that is timed, while no other submission is at work. `Broken` where the sandbox dies."""
        try:
            with sandbox.access.hold(exclusive=True):
                kernel_sources = {}
                if check.kernel_sources:
                    with started({**order, "traced": False}) as party:
                        kernel_sources = _read_sources(party, check, bench.effort)
                with started({**order, "kernel_sources": kernel_sources}) as party:
                    yield party
        except SandboxDiedError:
            raise Broken("it ended the whole sandbox") from None

    return opened


def _read_sources(party: Party, check: Check, effort: Effort) -> dict[str, str]:
    """The texts that a submission's functions give. Raises `Broken` unless it is text."""
    meta = {
        "call": call_name(give_sources),
        "uses": check.kernel_sources,
        "time_limit_s": check.time_limit_s,
        "memory_bytes": None,
        "random_seed": 0,
    }
    deadline = time.monotonic() + effort.start_s
    reply = party.request("case", meta, name_sources(check.kernel_sources), deadline=deadline)
    try:
        return read_sources(check.kernel_sources, reply.arrays)
    except InputError as error:
        raise Broken(str(error)) from None
