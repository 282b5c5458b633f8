"""Choose the program that builds the sandbox: bubblewrap, else podman, else docker; without any, refuse."""

from __future__ import annotations

import subprocess
from typing import Literal, get_args

from mlsys_checks.sides import find_stack
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.sandbox import container
from mlsys_grader.sandbox.container import Containers
from mlsys_grader.sandbox.device import Device
from mlsys_grader.sandbox.launcher import Launcher
from mlsys_lab.errors import InputError, MissingToolError, did_you_mean

Backend = Literal["bubblewrap", "podman", "docker"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
NONE = "none"
"""Backend name for running without a sandbox (--unsafe)."""
PROBE = ["bwrap", "--unshare-net", "--unshare-pid", "--ro-bind", "/", "/", "true"]
PROBE_S = 20.0


def find_problem(name: str) -> str:
    """Return why a backend cannot run submissions here, in one line; "" if it can."""
    if name != "bubblewrap":
        return container.find_problem(name)
    try:
        done = subprocess.run(PROBE, capture_output=True, text=True, timeout=PROBE_S, check=False)
    except FileNotFoundError:
        return "bubblewrap is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    said = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"bubblewrap may not build a sandbox here ({said})"


def choose_backend(name: str | None = None) -> str:
    """Choose a backend: `name`, or the first that works. Raises `MissingToolError` if that one, or every one, fails."""
    if name is not None and name not in BACKENDS:
        expected = f"one of {', '.join(BACKENDS)}"
        raise InputError("no sandbox of this name", got=name, expected=expected, help=did_you_mean(name, BACKENDS))
    problems = []
    for backend in [name] if name else BACKENDS:
        why = find_problem(backend)
        if not why:
            return backend
        problems.append(why if backend == "bubblewrap" else f"{backend}: {why}")
    raise MissingToolError(
        "; ".join(problems),
        help="`apt install bubblewrap` (on Ubuntu also an AppArmor profile that lets it make user namespaces), or "
        f"`{container.make_build_command(name if name in BACKENDS[1:] else 'podman')}`, or --unsafe: no sandbox at all",
    )


def launch(lab: GradedLab, backend: str, *, device: Device | None = None) -> Launcher | Containers:
    """Start what hands over children for submissions; `backend` is what `choose_backend` said, or `NONE`.

    Raises `InputError` where a solved lab that this one runs on is not installed.
    """
    if len(find_stack(lab.info)) < len(lab.info.stack):
        expected = f"those of {', '.join(lab.info.stack)}"
        raise InputError(f"{lab.name} runs on solved labs", got="none here", expected=expected, help="use a checkout")
    if backend in ("bubblewrap", NONE):
        return Launcher(lab, unsafe=backend == NONE, device=device)
    return Containers(lab, backend, device=device)
