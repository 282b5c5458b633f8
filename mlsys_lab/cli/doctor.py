"""Show what this machine can run, and how to fix what is missing.

Everything in the course runs without a GPU; a GPU adds measurements.

examples:
  mlsys-lab doctor
  mlsys-lab doctor --json

`mlsys-grader doctor` shows what grading needs in addition.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mlsys_lab.cli.app import flag
from mlsys_lab.kernels.runtime import INSTALL
from mlsys_lab.stack.labinfo import labs_root, released_labs

OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True)
class Finding:
    """One thing that a part of the course needs: whether it was found, what was found, and how to fix it if not."""

    name: str
    ok: bool
    found: str
    needed_for: str
    required: bool = False
    fix: str = ""


@dataclass(kw_only=True)
class Arguments:
    """The form of the output."""

    json: Annotated[bool, flag("--json", "print the findings as JSON")] = False


def run(args: Arguments) -> int:
    """Print what was found on this machine; returns exit code 1 if something that every lab needs is missing."""
    return report([probe() for probe in PROBES], as_json=args.json)


def report(findings: Sequence[Finding], *, as_json: bool) -> int:
    """Print findings as a table with the fixes below it, or as JSON; returns 1 if something required is missing."""
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        _print(findings)
    return 0 if all(finding.ok for finding in findings if finding.required) else 1


def _print(findings: Sequence[Finding]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "what", "found", "for"):
        table.add_column(heading)
    for finding in findings:
        sign = "[green]✓[/]" if finding.ok else "[red]✗[/]" if finding.required else "[yellow]–[/]"
        table.add_row(sign, finding.name, escape(finding.found), finding.needed_for)
    console = Console(highlight=False)
    console.print(table)
    for finding in findings:
        if not finding.ok and finding.fix:
            console.print(f"\n{finding.name}: {escape(finding.fix)}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _python() -> Finding:
    ok = sys.version_info[:2] >= OLDEST_PYTHON
    wanted = ".".join(map(str, OLDEST_PYTHON))
    return Finding("Python", ok, platform.python_version(), "everything", True, f"install Python {wanted} or later")


def _torch() -> Finding:
    found = _version("torch")
    return Finding("torch", bool(found), found or "not installed", "every lab", True, "pip install torch")


def _jupyterlab() -> Finding:
    found = _version("jupyterlab")
    fix = 'pip install "mlsys-lab[lab]", or open the labs in Colab or VS Code'
    return Finding("JupyterLab", bool(found), found or "not installed", "working on labs on this machine", fix=fix)


def find_gpu() -> Finding:
    """Find a GPU that torch can use, or why there is none."""
    name, purpose = "GPU (CUDA)", "performance points; every lab runs without"
    if not _version("torch"):
        return Finding(name, False, "unknown without torch", purpose, fix="pip install torch")
    import torch

    if torch.cuda.is_available():
        props = torch.cuda.get_device_properties(0)
        found = f"{torch.cuda.device_count()} × {props.name}, {props.total_memory / 2**30:.0f} GiB"
        return Finding(name, True, f"{found}, CUDA {torch.version.cuda}", purpose)
    if torch.version.cuda is None:
        found, fix = "this torch is built without CUDA", "on a machine with an NVIDIA GPU, install torch's CUDA build"
    else:
        found, fix = "none is visible", "check the driver with `nvidia-smi`, or use a GPU runtime in Colab"
    return Finding(name, False, found, purpose, fix=fix)


def find_triton() -> Finding:
    """Find Triton, and whether it compiles or interprets."""
    found = _version("triton") if find_spec("triton") else ""
    purpose = "the Triton lab: compiled on a GPU, interpreted on any CPU"
    if not found:
        return Finding("Triton", False, "not installed", purpose, fix=f"{INSTALL} (Linux)")
    import torch

    return Finding("Triton", True, f"{found}, {'compiled' if torch.cuda.is_available() else 'interpreted'}", purpose)


def _numba() -> Finding:
    purpose = "labs of the GPU and CUDA: compiled on a GPU, simulated on any CPU"
    for library in ("numba", "numba-cuda", "greenlet"):
        if not _version(library):
            return Finding("Numba CUDA", False, f"{library} is not installed", purpose, fix=INSTALL)
    return Finding("Numba CUDA", True, _version("numba"), purpose)


def _ranks() -> Finding:
    name, purpose = "ranks (gloo)", "collectives and parallel training on one machine"
    fix = "install a torch build with torch.distributed"
    if not _version("torch"):
        return Finding(name, False, "unknown without torch", purpose, fix=fix)
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        return Finding(name, False, "torch has no gloo", purpose, fix=fix)
    try:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        dist.destroy_process_group()
    except RuntimeError as error:  # most often a host name that does not resolve
        return Finding(name, False, str(error).splitlines()[0], purpose, fix="export GLOO_SOCKET_IFNAME=lo")
    return Finding(name, True, f"{os.cpu_count()} cores", purpose)


def _labs() -> Finding:
    names = [lab.name for lab in released_labs()]
    found = ", ".join(names) or f"none in {labs_root()}"
    return Finding("released labs", bool(names), found, "starting a lab", fix="in a checkout, run `make labs`")


PROBES: tuple[Callable[[], Finding], ...] = (
    _python,
    _torch,
    _jupyterlab,
    _labs,
    find_gpu,
    find_triton,
    _numba,
    _ranks,
)
