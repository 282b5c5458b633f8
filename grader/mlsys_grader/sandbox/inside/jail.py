"""How a process isolates itself before it runs a submission's code.

The launcher runs inside bubblewrap: no network, a read-only root with Python, the environment and the course package.
Each submission's process then enters its own namespaces, so that no two share processes, shared memory, temporary files
or sockets, and drops every privilege. Linux only; sources: unshare(2), mount(2), user_namespaces(7), capabilities(7),
netdevice(7), prctl(2), getrlimit(2).

The kernel counts processes per user. A launcher that is root gives each job its own user id. One with a single id
(bubblewrap started by an ordinary user) gives each job its own user namespace, which Linux 5.14 and later count
separately; where that is refused too, jobs share the process limit, and a fork bomb in one can keep another from
starting a thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import secrets
import signal
import socket
import struct
from pathlib import Path
from typing import IO

from mlsys_grader.sandbox.inside import seccomp

NOBODY = 65534
FIRST_UID, UIDS = 2_000_000_000, 100_000_000
"""Ids that no system assigns. Each job draws one at random, because graders on one machine do not coordinate."""
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
INTERFACE = struct.Struct("16sh22x")
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 0x1, 0x2, 0x4, 0x8, 0x20, 0x1000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_DUMPABLE, PR_SET_PDEATHSIG = 24, 38, 4, 1
M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES = -3, 1 << 20
CAPABILITY_VERSION_3 = 0x20080522
SCRATCH = "/scratch"
"""The one folder that a submission may write to."""
TMP_BYTES, SHM_BYTES = 64 << 20, 64 << 20
FILES = 4096
"""Files and folders in each of the two: the kernel keeps about a kilobyte even for an empty one."""
OPEN_FILES, PENDING_SIGNALS = 256, 1024


def _call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def unshare() -> None:
    """Detach from the launcher: the next child is process 1 of a new namespace. Needs /proc."""
    flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    user, group = os.getuid(), os.getgid()
    if _single_id() and _libc().unshare(flags | CLONE_NEWUSER) == 0:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{NOBODY} {user} 1"),
            ("gid_map", f"{NOBODY} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text, encoding="ascii")
    else:
        _call(_libc().unshare(flags), "unshare")


def _single_id() -> bool:
    """Whether this process is in a user namespace with a single user."""
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split()[2:] == ["1"]


def isolate() -> None:
    """Isolate this process, the first after `unshare`: private folders, loopback, no privileges, system call filter."""
    enable_loopback()
    mount_private_folders()
    os.chdir(SCRATCH)
    drop_privileges()
    seccomp.install(gpu=has_gpu())


def enable_loopback() -> None:
    """Bring up the loopback interface of this network namespace, so that ranks of a job can talk on 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        _, flags = INTERFACE.unpack(fcntl.ioctl(any_socket, SIOCGIFFLAGS, INTERFACE.pack(b"lo", 0)))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, INTERFACE.pack(b"lo", flags | IFF_UP))


def mount_private_folders() -> None:
    """Mount empty temporary folders with a quota, and hide the launcher's process table."""
    libc = _libc()
    _call(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "make mounts private")
    for target, options, flags in (
        (SCRATCH.encode(), f"size={TMP_BYTES},nr_inodes={FILES},mode=1777", MS_NOSUID | MS_NODEV),
        (b"/dev/shm", f"size={SHM_BYTES},nr_inodes={FILES},mode=1777", MS_NOSUID | MS_NODEV),
        (b"/proc", "size=4096,mode=0555", MS_NOSUID | MS_NODEV | MS_RDONLY),
    ):
        kind = b"tmpfs"
        if target == b"/proc" and has_gpu():  # the driver needs it; it shows only the job's own processes
            kind, options, flags = b"proc", "", MS_NOSUID | MS_NODEV
        _call(libc.mount(kind, target, kind, flags, options.encode()), f"mount {target.decode()}")
    for device in filter(
        Path.is_char_device, Path("/dev").iterdir()
    ):  # otherwise jobs could exchange data through a device's timestamps
        kept = os.statvfs(device).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        flags = MS_REMOUNT | MS_BIND | MS_RDONLY | kept
        _call(libc.mount(None, bytes(device), None, flags, None), f"make {device} read-only")


def has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


def drop_privileges() -> None:
    """Become a unique user with no capability, now or after any exec.

    In a user namespace with a single mapped id, the id stays and only its capabilities go.
    """
    libc = _libc()
    capability = 0
    while libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    with contextlib.suppress(PermissionError):
        os.setgroups([])
    for user in (FIRST_UID + secrets.randbelow(UIDS), NOBODY):
        with contextlib.suppress(OSError):
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            break
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _call(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    _call(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    _call(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "not dumpable")
    _call(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "die with the attendant")


def limit(*, cpu_s: int, file_bytes: int, processes: int) -> None:
    """Limit what a runaway submission can take; no core dumps, no message queues.

    CPU seconds, file size, open files and locked memory are limited per process, and summed up by `watch`; processes
    (threads count), pending signals and timers are limited per job.
    """
    for what, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_SIGPENDING, PENDING_SIGNALS),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def open_status() -> IO[str]:
    """Open this process's status file, before `mount_private_folders` hides it; readable at any time."""
    return open("/proc/self/status")  # noqa: PTH123 - pathlib is slower and this runs per submission


def read_data_bytes(status: IO[str]) -> int:
    """Private writable memory mapped by this process, in bytes: what RLIMIT_DATA counts."""
    status.seek(0)
    for line in status:
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmData")


def limit_memory(budget_bytes: int, already_bytes: int) -> None:
    """Limit private memory to `budget_bytes` beyond `already_bytes`; further requests fail.

    glibc keeps freed blocks of up to 32 MiB, and the kernel counts them: large blocks are returned at once, otherwise
    four times the memory in use would count. With a GPU there is no such limit, because CUDA reserves far more address
    space than it uses; `sandbox.inside.watch` takes over.
    """
    if has_gpu():
        return
    _libc().mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
    cap = already_bytes + budget_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (cap, cap))
