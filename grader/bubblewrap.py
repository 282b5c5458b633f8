"""The bubblewrap command line around the launcher of submissions.

Inside: no network; a read-only root that holds the system's libraries, Python, its environment and the course
package, without the modules that the lab asks learners to write; nothing of the course folder, of other submissions,
of the home folder.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from grader.jail import SCRATCH
from grader.labs import GradedLab
from mlsys_lab.errors import InputError, MissingToolError

HOME = Path("/course")
"""Where the course package lies inside the sandbox."""
GRADER_MODULES = ("__init__.py", "wire.py", "seccomp.py", "jail.py", "worker.py")


def environment(scratch: str) -> dict[str, str]:
    """Nothing of the instructor's environment reaches a submission."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": scratch,
        "TMPDIR": scratch,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        **one_thread,
    }


def bubblewrap(package: Path, lab: GradedLab, extra: list[str]) -> list[str]:
    """The command line up to the program that is to run inside. Raises `MissingToolError` without bubblewrap."""
    program = shutil.which("bwrap")
    if program is None:
        raise MissingToolError(
            "bubblewrap is not installed, and submissions are not run without a sandbox",
            help="`apt install bubblewrap`, or --unsafe to run them with your own rights",
        )
    command = [program, "--die-with-parent", "--new-session", "--hostname", "lab", "--unshare-uts"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-cgroup-try"]
    if os.geteuid() != 0:
        command += ["--unshare-user", "--uid", "0", "--gid", "0"]
    command += ["--cap-drop", "ALL"]
    for capability in ("SYS_ADMIN", "NET_ADMIN", "SETUID", "SETGID", "SETPCAP", "KILL"):  # for grader.jail
        command += ["--cap-add", f"CAP_{capability}"]
    for folder in ("/usr", "/lib", "/lib64", "/bin"):
        if Path(folder).is_symlink():
            command += ["--symlink", str(Path(folder).readlink()), folder]
        elif Path(folder).is_dir():
            command += ["--ro-bind", folder, folder]
    command += ["--proc", "/proc", "--dev", "/dev", "--dir", SCRATCH]
    prefixes = [
        prefix for prefix in dict.fromkeys((sys.base_prefix, sys.prefix)) if not Path(prefix).is_relative_to("/usr")
    ]
    own = Path(__file__).parent
    binds = [(folder, folder) for folder in ("/etc/ld.so.cache", *prefixes, *extra) if Path(folder).exists()]
    binds.append((str(package), str(HOME / "mlsys_lab")))
    binds += [(str(own / name), str(HOME / "grader" / name)) for name in GRADER_MODULES]
    # bubblewrap would make missing parents readable by root only.
    parents = {parent for _, target in binds for parent in Path(target).parents if parent != Path("/")}
    for folder in sorted(map(str, parents)):
        command += ["--dir", folder]
    if Path("/tmp") not in parents:
        command += ["--symlink", SCRATCH, "/tmp"]  # for code that asks for no other folder
    for source, target in binds:
        command += ["--ro-bind", source, target]
    command += _covers(package, lab)
    return [*command, "--remount-ro", "/", "--chdir", "/"]


def _covers(package: Path, lab: GradedLab) -> list[str]:
    """Hide the withheld modules; and the whole package where it lies in the environment itself, since HOME has it."""
    command: list[str] = []
    for module in lab.info.withheld:
        inside = Path(*module.split(".")[1:])
        if (package / inside).is_dir():
            command += ["--tmpfs", str(HOME / "mlsys_lab" / inside)]
        elif (package / inside.with_suffix(".py")).is_file():
            command += ["--ro-bind", "/dev/null", str(HOME / "mlsys_lab" / inside.with_suffix(".py"))]
        else:
            raise InputError(f"lab.toml of {lab.name} withholds a module that there is not", got=module)
    if package.is_relative_to(sys.prefix):
        command += ["--tmpfs", str(package), "--tmpfs", str(Path(__file__).parent)]
    return command
