"""Measure performance points for passed checks, and complete their verdicts.

A check that failed has no performance points. One that passed has them "not measured" until a machine with its device
runs `grade`: then only this part is measured and entered, and correctness is not judged again.
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
from mlsys_grader.speed.rounds import MeasurementConfig, NoAnswerError, TimedProcess
from mlsys_lab.errors import InputError

MEMORY_BYTES = {"cpu": 3 << 30, "cuda": HOST_MEMORY_BYTES}
"""Host memory limit of a timed process."""
CPU_S = 3600


def find_unmeasured(verdicts: Sequence[Verdict]) -> list[str]:
    """Names of the checks whose performance points have not been measured."""
    return [v.check for v in verdicts if v.performance is not None and not v.performance.measured]


def measure_all(
    lab: GradedLab,
    options: Options,
    wanted: dict[str, tuple[Artifact, tuple[Verdict, ...]]],
    config: MeasurementConfig | None = None,
) -> Iterator[tuple[str, tuple[Verdict, ...]]]:
    """Yield each student with verdicts completed by measurements; yields nothing without the device."""
    config = config or MeasurementConfig()
    names = {name for _, verdicts in wanted.values() for name in find_unmeasured(verdicts)}
    gpu = find_gpu()
    with ExitStack() as stack:
        found_benches = stack.enter_context(open_benches(lab, names, config, gpu))
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
) -> Callable[[], AbstractContextManager[TimedProcess]]:
    """Make the function that starts a timed process of a submission; the process is dead after its block.

    For a traced check the process loads kernels only, plus kernel sources that an earlier process returned: nothing
    that could replace what the course calls.
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
    def started(order: Mapping[str, Any]) -> Iterator[TimedProcess]:
        with sandbox.job() as job:
            process = TimedProcess(job.channel, orders)
            process.request("job", order, deadline=time.monotonic() + bench.config.start_s)
            yield process

    @contextmanager
    def opened() -> Iterator[TimedProcess]:
        """Open the timed process while no other submission runs. Raises `NoAnswerError` if the sandbox dies."""
        try:
            with sandbox.access.hold(exclusive=True):
                kernel_sources = {}
                if check.kernel_sources:
                    with started({**order, "traced": False}) as process:
                        kernel_sources = _read_sources(process, check, bench.config)
                with started({**order, "kernel_sources": kernel_sources}) as process:
                    yield process
        except SandboxDiedError:
            raise NoAnswerError("it ended the whole sandbox") from None

    return opened


def _read_sources(process: TimedProcess, check: Check, config: MeasurementConfig) -> dict[str, str]:
    """Kernel sources that a submission's functions return. Raises `NoAnswerError` unless they are text."""
    meta = {
        "call": call_name(give_sources),
        "uses": check.kernel_sources,
        "time_limit_s": check.time_limit_s,
        "memory_bytes": None,
        "random_seed": 0,
    }
    deadline = time.monotonic() + config.start_s
    reply = process.request("case", meta, name_sources(check.kernel_sources), deadline=deadline)
    try:
        return read_sources(check.kernel_sources, reply.arrays)
    except InputError as error:
        raise NoAnswerError(str(error)) from None
