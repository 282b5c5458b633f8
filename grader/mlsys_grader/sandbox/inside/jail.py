"""What a process takes from itself before it runs a submission's code.

The launching process stands inside bubblewrap: no network, a read-only root with Python, the environment and the course
package only. Each submission's process then gets namespaces of its own on top, so that no two of them share
processes, shared memory, temporary files or sockets, and gives up every privilege. Linux only; sources: unshare(2),
mount(2), user_namespaces(7), capabilities(7), netdevice(7), prctl(2), getrlimit(2).

The kernel counts processes by user. A launcher that is root gives each job a user id of its own. One that holds a
single id (bubblewrap started by an ordinary user) gives each job a user namespace of its own, which Linux 5.14 and
later count apart; where that is refused too, the jobs share the limit on processes, and a fork bomb in one can keep
another from starting a thread.
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
"""Ids that no system hands out. A job draws its own by chance, because graders on one machine do not talk."""
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
"""Files and folders in each of the two, because the kernel keeps about a kilobyte for an empty one."""
OPEN_FILES, PENDING_SIGNALS = 256, 1024


def _call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def unshare() -> None:
    """Detach from the launcher: the next child is process 1 of its own world. Needs /proc."""
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
    """Whether this process stands in a user namespace in which it is the only user."""
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split()[2:] == ["1"]


def isolate() -> None:
    """Shut this process, the first after `unshare`, into its cell: own folders and loopback, no rights, the filter."""
    enable_loopback()
    mount_private_folders()
    os.chdir(SCRATCH)
    drop_privileges()
    seccomp.install(gpu=has_gpu())


def enable_loopback() -> None:
    """Bring up the one interface of this network namespace: ranks of a job may talk to each other, on 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        _, flags = INTERFACE.unpack(fcntl.ioctl(any_socket, SIOCGIFFLAGS, INTERFACE.pack(b"lo", 0)))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, INTERFACE.pack(b"lo", flags | IFF_UP))


def mount_private_folders() -> None:
    """Give this process its own empty temporary folders, within a quota, and hide the launcher's process table."""
    libc = _libc()
    _call(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "make mounts private")
    for target, options, flags in (
        (SCRATCH.encode(), f"size={TMP_BYTES},nr_inodes={FILES},mode=1777", MS_NOSUID | MS_NODEV),
        (b"/dev/shm", f"size={SHM_BYTES},nr_inodes={FILES},mode=1777", MS_NOSUID | MS_NODEV),
        (b"/proc", "size=4096,mode=0555", MS_NOSUID | MS_NODEV | MS_RDONLY),
    ):
        kind = b"tmpfs"
        if target == b"/proc" and has_gpu():  # a driver reads it: the job's own processes, of its own namespace
            kind, options, flags = b"proc", "", MS_NOSUID | MS_NODEV
        _call(libc.mount(kind, target, kind, flags, options.encode()), f"mount {target.decode()}")
    for device in filter(Path.is_char_device, Path("/dev").iterdir()):  # all jobs could set and read a device's times
        kept = os.statvfs(device).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        flags = MS_REMOUNT | MS_BIND | MS_RDONLY | kept
        _call(libc.mount(None, bytes(device), None, flags, None), f"make {device} read-only")


def has_gpu() -> bool:
    """Whether this sandbox was given a GPU."""
    return Path("/dev/nvidiactl").exists()


def drop_privileges() -> None:
    """Become a user that is nobody else, with no capability now or after any exec.

    Under a user namespace with a single mapped id there is nobody else to become: the id stays, its capabilities go.
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
    """Bound what a runaway submission can take; no core dumps, no message queues.

    CPU seconds, the size of a file, open files and locked memory are those of each process, which `watch` adds up;
    processes, which are threads too, and pending signals and timers are those of the whole job.
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
    """What the kernel says of this process, to be opened before `mount_private_folders` hides it and read at any time."""
    return open("/proc/self/status")  # noqa: PTH123 - pathlib is slower and this runs per submission


def read_data_bytes(status: IO[str]) -> int:
    """Bytes of private writable memory that this process has mapped, which is what RLIMIT_DATA counts."""
    status.seek(0)
    for line in status:
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmData")


def limit_memory(budget_bytes: int, already_bytes: int) -> None:
    """Let this process map `budget_bytes` of private memory beyond `already_bytes`; further requests fail.

    glibc keeps freed blocks of up to 32 MiB for later use, and the kernel counts what is kept: large blocks are made
    to go back at once, or four times the memory in use would count. With a GPU there is no such cap: CUDA reserves
    address space far beyond what it uses, and `sandbox.inside.watch` has to do.
    """
    if has_gpu():
        return
    _libc().mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
    cap = already_bytes + budget_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (cap, cap))
