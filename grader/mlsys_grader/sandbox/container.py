"""Docker or podman around submissions, where there is no bubblewrap: one container for each, the same policy in flags.

The frames cross over the program's standard input and output, and a relay inside (`inside.relay`) hands them on.
Python, NumPy and torch come from an image that is built once (grader/Containerfile); what the sandbox may see of the
project is bound into it, read-only. A container starts Python anew and imports torch, which takes seconds where a
fork takes milliseconds: containers are therefore started ahead. Sources: docker-run(1), podman-run(1).
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
"""What all processes of a container may hold: a check's default budget, and what Python and torch take themselves."""
PROCESSES, CORES = 160, 2
FIRST_UID, UIDS = 10_000, 50_000
"""Ids that a container without root's rights can have too."""
ANSWER_S = 60.0
"""A container program that has not answered a small question by then does not work."""
NOT_STARTED = 125
"""The status of docker and podman themselves when they could not start a container."""
KILLED = 128
"""Added by the relay, as by a shell, to the number of the signal that ended the child."""


def make_flags(lab: GradedLab, name: str, profile: Path) -> list[str]:
    """Make the arguments of a container called `name`: its policy, with the system call filter in `profile`."""
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
        if variable != "PATH":  # the image says where its Python is
            found += ["--env", f"{variable}={value}"]
    for source, target in contents.bind_project(lab):
        found += ["--mount", f"type=bind,source={source},target={target},readonly"]
    return found


def make_profile(*, gpu: bool = False) -> str:
    """Write the filter of `inside.seccomp`, for jobs with a GPU or without, as the JSON that docker and podman read."""
    refuse = {"action": "SCMP_ACT_ERRNO", "errnoRet": 1}
    masked: list[tuple[str, int, int, int | None]] = [
        ("clone", 0, seccomp.NEW_NAMESPACES, None),
        ("mmap", 3, seccomp.REFUSED_MAPPINGS, None),
    ]
    if not gpu:
        masked.append(("mmap", 3, seccomp.MAP_SHARED_ANONYMOUS, seccomp.MAP_SHARED_ANONYMOUS))
    rules: list[dict[str, object]] = [
        {**refuse, "names": [name for name in seccomp.list_refused(gpu=gpu) if name != "seccomp"]},  # for the relay
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
    """A comparison of the low half of an argument, all that the kernel reads: a higher bit must not hide it."""
    return {"index": index, "value": 0xFFFFFFFF, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


class Containers:
    """Containers for one lab, kept in store: what `sandbox.launcher.Launcher` is for bubblewrap."""

    def __init__(self, lab: GradedLab, program: str, *, device: Device | None = None) -> None:
        self._lab, self._program = lab, program
        self._device = device.container_arguments(program) if device is not None else []
        self._folder = tempfile.TemporaryDirectory()
        self._profile = Path(self._folder.name, "seccomp.json")
        self._profile.write_text(make_profile(gpu=device is not None), encoding="utf-8")
        self._store: deque[Job] = deque()

    def wait(self, spares: int) -> None:
        """Have `spares` containers started. Raises `MissingToolError` without the program or the image."""
        if why := find_problem(self._program):
            raise MissingToolError(
                f"{self._program} cannot run submissions", got=why, help=make_build_command(self._program)
            )
        while len(self._store) < spares:
            self._store.append(self._start())

    def acquire_job(self) -> Job:
        """Hand over the oldest container of the store; another takes its place."""
        self._store.append(self._start())
        return self._store.popleft()

    def close(self) -> None:
        """Remove the containers that nobody has used."""
        while self._store:
            self._store.popleft().close()
        self._folder.cleanup()

    def _start(self) -> Job:
        name = f"mlsys-lab-{secrets.token_hex(8)}"
        command = [self._program, "run", *make_flags(self._lab, name, self._profile), *self._device]
        command += ["--entrypoint", "python3", IMAGE, "-s", "-P", "-B", "-c", ENTRY, *self._lab.call_modules]
        channel, inner_channel = socket.socketpair()
        supervisor, inner_life = socket.socketpair()
        running = subprocess.Popen(
            command,
            stdin=inner_channel.fileno(),
            stdout=inner_channel.fileno(),
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        ends = (running, name, inner_channel, inner_life)
        threading.Thread(target=self._supervise, args=ends, name=name, daemon=True).start()
        return Job(channel=channel, supervisor=supervisor)

    def _supervise(
        self, running: subprocess.Popen[bytes], name: str, channel: socket.socket, supervisor: socket.socket
    ) -> None:
        """What an attendant is to a jailed child: remove the container when the judge lets go, tell its end."""
        waiting = threading.Thread(target=self._wait_for_release, args=(name, supervisor), daemon=True)
        waiting.start()
        said = running.communicate()[1].decode(errors="replace").strip().splitlines()
        status = running.returncode
        with channel, contextlib.suppress(wire.WireError):
            if status == NOT_STARTED:
                wire.send(channel, wire.Frame("broken", {"what": said[-1] if said else "no message"}))
        excess = MEMORY if self._say("inspect", "--format", "{{.State.OOMKilled}}", name) == "true" else ""
        code = KILLED - status if status > KILLED else status
        with supervisor:
            with contextlib.suppress(wire.WireError, OSError):  # unless the judge has let go
                wire.send(supervisor, wire.Frame("ended", {"code": code, "excess": excess}))
            self._say("rm", "--force", name)
            with contextlib.suppress(OSError):
                supervisor.shutdown(socket.SHUT_RDWR)
                waiting.join()

    def _wait_for_release(self, name: str, supervisor: socket.socket) -> None:
        with contextlib.suppress(OSError, wire.WireError):
            while supervisor.recv(1):  # the judge asks what has been used; here nobody counts
                wire.send(supervisor, wire.Frame("used", {"cpu_s": None, "waited_s": None}))
        self._say("kill", name)

    def _say(self, *words: str) -> str:
        """Give the program a small order and return what it says; a container that is gone already is no trouble."""
        done = subprocess.run([self._program, *words], capture_output=True, text=True, timeout=ANSWER_S, check=False)
        return done.stdout.strip()


def find_problem(program: str, image: str = IMAGE) -> str:
    """Find why a container program cannot run an image here, in one line; "" when it can."""
    return _find_refusal([program, "image", "inspect", image])


def find_unresponsive(program: str) -> str:
    """Find why a container program does not answer at all, as where its service does not run; "" when it does."""
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
    """The command that makes the image with a container program, for a message."""
    return f"{program} build --tag {IMAGE} --file grader/Containerfile ."
