"""Say what this machine has for grading and what it lacks, with the fix; exit code 1 where grading would not work.

examples:
  mlsys-grader doctor                        can submissions be judged here?
  mlsys-grader doctor --gpu                  and points for speed be measured?
  mlsys-grader doctor --json
  GPU_IMAGE=mlsys-lab-gpu:1a2b3c mlsys-grader doctor    is that image here?

A process of the sandbox is started as for a submission, with the GPU where there is one; it gets none.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from mlsys_grader.commands import CourseOptions
from mlsys_lab.cli.app import flag
from mlsys_lab.cli.doctor import Finding, find_gpu, find_triton, report
from mlsys_lab.errors import CourseError, MissingToolError

FREE_BYTES = 1 << 30
"""What a class and a gradebook's backups take at the most, in round figures."""
JUDGING, SPEED = "judging submissions", "measuring points for speed"


@dataclass(kw_only=True)
class Arguments(CourseOptions):
    """What is demanded, and the form of the output."""

    gpu: Annotated[bool, flag("--gpu", "demand also what points for speed need")] = False
    json: Annotated[bool, flag("--json", "print the findings as JSON")] = False


def run(args: Arguments) -> int:
    """Print what was found on this machine; returns 1 if something that grading needs is missing."""
    found = [
        _look("released labs", JUDGING, lambda: _find_labs(args.labs)),
        _look("system call filter", JUDGING, _find_filter),
        _look("sandbox", JUDGING, _find_sandbox),
        _look("a process in it", JUDGING, lambda: _start_job(args.labs)),
        _look("disk", JUDGING, lambda: _find_room(args.course)),
    ]
    needed = [
        _look("GPU's device files", SPEED, _find_files),
        replace(find_gpu(), needed_for=SPEED),
        replace(find_triton(), needed_for=SPEED),
        _look("C compiler", SPEED, _find_compiler),
        _look("Numba's compiler", SPEED, _find_nvvm),
    ]
    if image := os.environ.get("GPU_IMAGE"):
        needed.append(_look("GPU_IMAGE", SPEED, lambda: _find_image(image)))
    return report([*found, *(replace(one, required=args.gpu) for one in needed)], as_json=args.json)


def _look(name: str, purpose: str, probe: Callable[[], str]) -> Finding:
    """What a probe found, or the `CourseError` that it raised, as a finding that grading requires."""
    try:
        return Finding(name, True, probe(), purpose, required=True)
    except CourseError as error:
        said = error.what if error.got is None else f"{error.what}: {error.got}"
        fix = error.help or f"expected {error.expected}"
        return Finding(name, False, said, purpose, required=True, fix=fix)


def _find_labs(folder: Path | None) -> str:
    from mlsys_lab.stack.labinfo import require_labs

    return ", ".join(lab.name for lab in require_labs(folder))


def _find_filter() -> str:
    from mlsys_grader.sandbox.inside import seccomp

    machine = os.uname().machine
    return f"{len(seccomp.build_program(machine)) // 8} instructions for {machine}"


def _find_sandbox() -> str:
    from mlsys_grader.sandbox.backend import choose_backend

    return choose_backend()


def _start_job(labs: Path | None) -> str:
    """Start a process as for a submission, to be ready for one: in its namespaces, behind the filter."""
    from mlsys_grader.course.lab import GradedLab
    from mlsys_grader.sandbox.gpu import find_gpu
    from mlsys_grader.sandbox.sandbox import Sandbox
    from mlsys_lab.stack.labinfo import require_labs

    gpu = find_gpu()
    device = gpu if gpu.nodes() else None
    with Sandbox(GradedLab(require_labs(labs)[0]), device=device) as sandbox, sandbox.job():
        return "stood ready" + (" with the GPU's files" if device and sandbox.backend == "bubblewrap" else "")


def _find_room(course: Path) -> str:
    """The least room among the folders that grading writes to."""
    above = next(path for path in (course.absolute(), *course.absolute().parents) if path.is_dir())
    free = {path: shutil.disk_usage(path).free for path in (above, Path(tempfile.gettempdir()))}
    path = min(free, key=lambda path: free[path])
    said = f"{free[path] / 2**30:.1f} GiB free in {path}"
    if free[path] < FREE_BYTES:
        raise CourseError(said, help=f"make room: {FREE_BYTES / 2**30:.0f} GiB are enough for a class")
    return said


def _find_files() -> str:
    from mlsys_grader.sandbox.gpu import find_gpu

    if not (files := find_gpu().nodes()):
        raise MissingToolError(
            "none in /dev", help="install NVIDIA's driver; a container gets them with `docker run --gpus device=0`"
        )
    return ", ".join(path.name for path in files)


def _find_compiler() -> str:
    header = Path(sysconfig.get_path("include"), "Python.h")
    for program in ("gcc", "clang"):
        if path := shutil.which(program, path="/usr/bin:/bin"):  # where the sandbox looks
            if not header.exists():
                raise MissingToolError(f"{path}, but no {header}", help="apt install python3-dev: Triton includes it")
            return f"{path}, Python.h"
    raise MissingToolError("none in /usr/bin", help="apt install gcc libc6-dev: Triton launches its kernels with it")


def _find_nvvm() -> str:
    try:
        found = importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib("nvvm")
    except (ImportError, RuntimeError):
        raise MissingToolError("no libNVVM", help="pip install nvidia-nvvm: Numba compiles kernels with it") from None
    return Path(found.abs_path).name


def _find_image(image: str) -> str:
    """The image in the first of docker and podman that is installed, as the Makefile chooses."""
    from mlsys_grader.sandbox.container import find_problem, find_unresponsive

    if (program := next(filter(shutil.which, ("docker", "podman")), None)) is None:
        raise MissingToolError("neither docker nor podman is installed", help="apt install docker.io")
    if why := find_unresponsive(program):
        raise MissingToolError(f"{program}: {why}", help=f"`{program} info` has to answer: is its service running?")
    if why := find_problem(program, image):
        raise MissingToolError(f"{program}: {why}", help=f"`{program} pull {image}`, or `make gpu-image` in a checkout")
    return image
