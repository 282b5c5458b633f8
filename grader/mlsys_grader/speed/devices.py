"""Benches for a lab's performance points, and the devices that they run on.

Measurements on a device are serialised over all courses and commands by a lock file per device.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mlsys_checks.sandboxed.spec import Check
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging.performance import has_device
from mlsys_grader.sandbox.gpu import Gpu
from mlsys_grader.speed.bench import Bench
from mlsys_grader.speed.rounds import MeasurementConfig
from mlsys_lab.errors import CourseError, MissingToolError


def find_measurable(lab: GradedLab) -> list[Check]:
    """The lab's checks with performance points whose device may be on this machine."""
    checks = lab.checks.checks
    return [check for check in checks if check.performance is not None and has_device(check.performance.device)]


@contextmanager
def open_benches(
    lab: GradedLab, names: Collection[str], config: MeasurementConfig, gpu: Gpu
) -> Iterator[dict[str, Bench]]:
    """Open a bench for each check in `names` whose device works here; `gpu` is the GPU to use.

    Waits for the devices and holds them for the block. Raises `CourseError` if a baseline fails.
    """
    wanted = {check.name: check.performance for check in find_measurable(lab) if check.name in names}
    path = [lab.foreign_path] if lab.foreign_path else []
    found = {}
    with ExitStack() as stack:
        for kind in sorted({performance.device for performance in wanted.values() if performance}):
            stack.enter_context(hold_device(f"{kind}-{gpu.index}" if kind == "cuda" else kind))
        for name, performance in wanted.items():
            assert performance is not None
            bench = Bench(performance, lab.info.checks_module, name, path, config, gpu)
            try:
                found[name] = stack.enter_context(bench)
            except MissingToolError:
                continue  # a driver without a working device
        yield found


def needs_gpu(found: Iterable[Bench]) -> bool:
    return any(bench.performance.device == "cuda" for bench in found)


@contextmanager
def hold_device(device: str) -> Iterator[None]:
    """Hold a device: wait for other graders on this machine that measure on it."""
    path = Path(tempfile.gettempdir()) / f"mlsys-grader-{device}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise CourseError(f"cannot take the lock of the device {device}", got=f"{path}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
