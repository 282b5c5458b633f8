"""Docker or podman as the sandbox, where bubblewrap is missing: one container per submission, the same policy as flags.

Frames cross the program's standard input and output; a relay inside (`inside.relay`) forwards them. Python, NumPy and
torch come from an image built once (grader/Containerfile); the visible part of the project is mounted read-only. A
container takes seconds to start Python and import torch, where a fork takes milliseconds, so containers are started
ahead. Sources: docker-run(1), podman-run(1).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import tempfile
import threading
from collections import deque
from pathlib import Path

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.sandbox import contents
from mlsys_grader.sandbox.device import Device
from mlsys_grader.sandbox.inside import jail, seccomp, wire
from mlsys_grader.sandbox.inside.watch import MEMORY
from mlsys_grader.sandbox.launcher import Job
from mlsys_lab.errors import MissingToolError

IMAGE = "mlsys-lab-sandbox"
ENTRY = (
    f"import sys; sys.path.insert(0, {str(contents.HOME)!r}); "
    "from mlsys_grader.sandbox.inside.relay import main; main(sys.argv[1:])"
)
MEMORY_BYTES = 4 << 30
"""Memory of all processes of a container: a check's default budget plus what Python and torch take."""
PROCESSES, CORES = 160, 2
FIRST_UID, UIDS = 10_000, 50_000
"""User ids that a rootless container can have too."""
ANSWER_S = 60.0
"""A container program that has not answered a small request by then counts as broken."""
NOT_STARTED = 125
"""Exit status of docker and podman when they could not start a container."""
KILLED = 128
"""Offset that the relay, like a shell, adds to the number of the signal that ended the child."""


def make_flags(lab: GradedLab, name: str, profile: Path) -> list[str]:
    """Arguments of a container called `name`: its policy, with the system call filter in `profile`."""
    user = FIRST_UID + secrets.randbelow(UIDS)
    found = ["--name", name, "--interactive", "--attach", "stdin", "--attach", "stdout", "--pull", "never"]
    found += ["--network", "none", "--hostname", "lab", "--ipc", "private", "--log-driver", "none"]
    found += ["--read-only", "--workdir", jail.SCRATCH, "--user", f"{user}:{user}", "--cap-drop", "ALL"]
    found += ["--security-opt", "no-new-privileges", "--security-opt", f"seccomp={profile}"]
    found += ["--memory", str(MEMORY_BYTES), "--memory-swap", str(MEMORY_BYTES), "--shm-size", str(jail.SHM_BYTES)]
    found += ["--pids-limit", str(PROCESSES), "--cpus", str(min(CORES, os.cpu_count() or 1))]
    found += ["--tmpfs", f"{jail.SCRATCH}:rw,nosuid,nodev,size={jail.TMP_BYTES},mode=1777"]
    for what, most in (("nofile", jail.OPEN_FILES), ("nproc", PROCESSES), ("core", 0)):
        found += ["--ulimit", f"{what}={most}:{most}"]
    for variable, value in contents.make_environment(jail.SCRATCH).items():
        if variable != "PATH":  # the image defines its own
            found += ["--env", f"{variable}={value}"]
    for source, target in contents.bind_project(lab):
        found += ["--mount", f"type=bind,source={source},target={target},readonly"]
    return found


def make_profile(*, gpu: bool = False) -> str:
    """Write the filter of `inside.seccomp` as the JSON that docker and podman read, for jobs with or without a GPU."""
    refuse = {"action": "SCMP_ACT_ERRNO", "errnoRet": 1}
    masked: list[tuple[str, int, int, int | None]] = [
        ("clone", 0, seccomp.NEW_NAMESPACES, None),
        ("mmap", 3, seccomp.REFUSED_MAPPINGS, None),
    ]
    if not gpu:
        masked.append(("mmap", 3, seccomp.MAP_SHARED_ANONYMOUS, seccomp.MAP_SHARED_ANONYMOUS))
    rules: list[dict[str, object]] = [
        {
            **refuse,
            "names": [name for name in seccomp.list_refused(gpu=gpu) if name != "seccomp"],
        },  # the relay installs the filter itself
        {"action": "SCMP_ACT_ERRNO", "errnoRet": 38, "names": ["clone3"]},
        {"action": "SCMP_ACT_ERRNO", "errnoRet": 0, "names": list(seccomp.IDLE)},
    ]
    for name, index, mask, equal in masked:
        for bit in [equal] if equal else [1 << place for place in range(32) if mask >> place & 1]:
            compared = {"index": index, "value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"}
            rules.append({**refuse, "names": [name], "args": [compared]})
    for family in set(range(64)) - {*seccomp.FAMILIES, socket.AF_NETLINK}:
        rules.append({**refuse, "names": ["socket"], "args": [_is(0, family)]})
    for family in set(range(64)) - {socket.AF_UNIX}:
        rules.append({**refuse, "names": ["socketpair"], "args": [_is(0, family)]})
    rules += [{**refuse, "names": ["socket"], "args": [_is(2, protocol)]} for protocol in seccomp.PROTOCOLS]
    rules += [{**refuse, "names": ["prctl"], "args": [_is(0, option)]} for option in seccomp.OPTIONS]
    other_protocol = {"index": 2, "value": seccomp.NETLINK_ROUTE, "op": "SCMP_CMP_NE"}
    rules.append({**refuse, "names": ["socket"], "args": [_is(0, socket.AF_NETLINK), other_protocol]})
    rules += [{**refuse, "names": ["fcntl"], "args": [_is(1, command)]} for command in seccomp.LOCKS]
    taken_for_set = {"action": "SCMP_ACT_ERRNO", "errnoRet": 0, "names": ["setsockopt"]}
    rules += [{**taken_for_set, "args": [_is(1, socket.SOL_SOCKET), _is(2, option)]} for option in seccomp.BUFFERS]
    zero_copy = [_is(1, socket.SOL_SOCKET), _is(2, seccomp.SO_ZEROCOPY)]
    rules.append({**refuse, "names": ["setsockopt"], "args": zero_copy})
    machines = ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "architectures": machines, "syscalls": rules})


def _is(index: int, value: int) -> dict[str, object]:
    """Compare the low half of an argument: the kernel reads no more, and a higher bit must not hide the value."""
    return {"index": index, "value": 0xFFFFFFFF, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


class Containers:
    """Prestarted containers for one lab: the counterpart of `sandbox.launcher.Launcher`."""

    def __init__(self, lab: GradedLab, program: str, *, device: Device | None = None) -> None:
        self._lab, self._program = lab, program
        self._device = device.container_arguments(program) if device is not None else []
        self._folder = tempfile.TemporaryDirectory()
        self._profile = Path(self._folder.name, "seccomp.json")
        self._profile.write_text(make_profile(gpu=device is not None), encoding="utf-8")
        self._store: deque[Job] = deque()

    def wait(self, spares: int) -> None:
        """Start `spares` containers. Raises `MissingToolError` without the program or the image."""
        if why := find_problem(self._program):
            raise MissingToolError(
                f"{self._program} cannot run submissions", got=why, help=make_build_command(self._program)
            )
        while len(self._store) < spares:
            self._store.append(self._start())

    def acquire_job(self) -> Job:
        """Take the oldest prestarted container; a new one replaces it."""
        self._store.append(self._start())
        return self._store.popleft()

    def close(self) -> None:
        """Remove the unused containers."""
        while self._store:
            self._store.popleft().close()
        self._folder.cleanup()

    def _start(self) -> Job:
        name = f"mlsys-lab-{secrets.token_hex(8)}"
        command = [self._program, "run", *make_flags(self._lab, name, self._profile), *self._device]
        command += ["--entrypoint", "python3", IMAGE, "-s", "-P", "-B", "-c", ENTRY, *self._lab.call_modules]
        channel, inner_channel = socket.socketpair()
        supervisor, inner_supervisor = socket.socketpair()
        running = subprocess.Popen(
            command,
            stdin=inner_channel.fileno(),
            stdout=inner_channel.fileno(),
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        ends = (running, name, inner_channel, inner_supervisor)
        threading.Thread(target=self._supervise, args=ends, name=name, daemon=True).start()
        return Job(channel=channel, supervisor=supervisor)

    def _supervise(
        self, running: subprocess.Popen[bytes], name: str, channel: socket.socket, supervisor: socket.socket
    ) -> None:
        """Supervise a container: remove it when the judge lets go, and report its exit."""
        waiting = threading.Thread(target=self._wait_for_release, args=(name, supervisor), daemon=True)
        waiting.start()
        said = running.communicate()[1].decode(errors="replace").strip().splitlines()
        status = running.returncode
        with channel, contextlib.suppress(wire.WireError):
            if status == NOT_STARTED:
                wire.send(channel, wire.Frame("broken", {"what": said[-1] if said else "no message"}))
        excess = MEMORY if self._run("inspect", "--format", "{{.State.OOMKilled}}", name) == "true" else ""
        code = KILLED - status if status > KILLED else status
        with supervisor:
            with contextlib.suppress(wire.WireError, OSError):  # the judge may be gone
                wire.send(supervisor, wire.Frame("ended", {"code": code, "excess": excess}))
            self._run("rm", "--force", name)
            with contextlib.suppress(OSError):
                supervisor.shutdown(socket.SHUT_RDWR)
                waiting.join()

    def _wait_for_release(self, name: str, supervisor: socket.socket) -> None:
        with contextlib.suppress(OSError, wire.WireError):
            while supervisor.recv(1):  # usage is not counted here
                wire.send(supervisor, wire.Frame("used", {"cpu_s": None, "waited_s": None}))
        self._run("kill", name)

    def _run(self, *words: str) -> str:
        """Run a subcommand of the container program and return its output; a container that is gone is no error."""
        done = subprocess.run([self._program, *words], capture_output=True, text=True, timeout=ANSWER_S, check=False)
        return done.stdout.strip()


def find_problem(program: str, image: str = IMAGE) -> str:
    """Return why a container program cannot run an image here, in one line; "" if it can."""
    return _find_refusal([program, "image", "inspect", image])


def find_unresponsive(program: str) -> str:
    """Return why a container program does not respond (its service is down, for example); "" if it does."""
    return _find_refusal([program, "info"])


def _find_refusal(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except FileNotFoundError:
        return "it is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or ["it does not say why"])[-1]


def make_build_command(program: str) -> str:
    """The command that builds the image, for a message."""
    return f"{program} build --tag {IMAGE} --file grader/Containerfile ."
