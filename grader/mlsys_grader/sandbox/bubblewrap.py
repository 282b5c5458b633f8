"""The bubblewrap command line around the launcher of submissions.

Inside there is no network and a read-only root with the system's libraries, Python, its environment and the course
package without the modules that the lab asks learners to write. The course folder, other submissions and the home
folder are invisible. Source: bwrap(1).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.sandbox import contents
from mlsys_grader.sandbox.device import Device
from mlsys_grader.sandbox.inside.jail import SCRATCH
from mlsys_lab.errors import MissingToolError

DEVICES = ("null", "full", "random", "urandom")
"""Devices that a job needs. /dev/zero is left out: mapped shared, it is memory that no limit counts."""
KEPT_CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN", "SETUID", "SETGID", "SETPCAP", "SETFCAP", "KILL")
"""Capabilities that the launcher needs to isolate a job (`inside.jail`); SETFCAP for a user namespace. Jobs have none.
"""


def bubblewrap(lab: GradedLab, *, device: Device | None = None) -> list[str]:
    """Build the command line up to the program that runs inside.

    Raises `MissingToolError` without bubblewrap, `InputError` if submissions could read what decides on them.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise MissingToolError(
            "bubblewrap is not installed, and submissions are not run without a sandbox",
            help="`apt install bubblewrap`, or --unsafe to run them with your own rights",
        )
    contents.refuse_readable(contents.find_private())
    command = [program, "--die-with-parent", "--new-session", "--hostname", "lab", "--unshare-uts"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-cgroup-try"]
    if os.geteuid() != 0:
        command += ["--unshare-user", "--uid", "0", "--gid", "0"]
    command += ["--cap-drop", "ALL"]
    for capability in KEPT_CAPABILITIES:
        command += ["--cap-add", f"CAP_{capability}"]
    for folder in ("/lib", "/lib64", "/bin", "/sbin"):  # Triton runs /sbin/ldconfig to find the driver
        if Path(folder).is_symlink():
            command += ["--symlink", str(Path(folder).readlink()), folder]
        elif Path(folder).is_dir():
            command += ["--ro-bind", folder, folder]
    command += ["--proc", "/proc", "--dir", "/dev", "--dir", "/dev/shm"]
    command += ["--tmpfs", SCRATCH]  # torch locates CUDA's libraries with a temporary file; jobs mount over it
    for name in DEVICES:
        command += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    if device is not None:
        command += device.bubblewrap_arguments()
    binds = [*contents.bind_system(), *contents.bind_project(lab)]
    above = contents.find_folders(binds)  # bubblewrap would create them readable by root only
    for folder in above:
        command += ["--dir", folder]
    if "/tmp" not in above:
        command += ["--symlink", SCRATCH, "/tmp"]  # the default temporary folder
    for source, target in binds:
        command += ["--ro-bind", source, target]
    for folder in contents.find_hidden():
        command += ["--tmpfs", folder]
    return [*command, "--remount-ro", "/", "--chdir", "/"]
