"""What a process takes from itself before it runs a submission's code.

The launching process stands inside bubblewrap: no network, a read-only root with Python, the environment and the course
package only. Each submission's process then gets namespaces of its own on top, so that no two of them share
processes, shared memory, temporary files or sockets, and gives up every privilege. Linux only; sources: unshare(2),
mount(2), capabilities(7), prctl(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from typing import IO

NOBODY = 65534
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 0x1, 0x2, 0x4, 0x4000, 0x40000
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_DUMPABLE = 24, 38, 4
M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES = -3, 1 << 20
CAPABILITY_VERSION_3 = 0x20080522
SCRATCH = "/scratch"
"""The one folder that a submission may write to."""
TMP_BYTES, SHM_BYTES = 64 << 20, 64 << 20


def _call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def unshare() -> None:
    """Detach from the launcher: the next child is process 1 of its own world."""
    flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    _call(_libc().unshare(flags), "unshare")


def furnish() -> None:
    """Give this process its own empty temporary folders, within a quota, and hide the launcher's process table."""
    libc = _libc()
    _call(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "make mounts private")
    for target, options, flags in (
        (SCRATCH.encode(), f"size={TMP_BYTES},mode=1777", MS_NOSUID | MS_NODEV),
        (b"/dev/shm", f"size={SHM_BYTES},mode=1777", MS_NOSUID | MS_NODEV),
        (b"/proc", "size=4096,mode=0555", MS_NOSUID | MS_NODEV | MS_RDONLY),
    ):
        _call(libc.mount(b"tmpfs", target, b"tmpfs", flags, options.encode()), f"mount {target.decode()}")


def drop_privileges() -> None:
    """Become nobody, with no capability now or after any exec.

    Under a user namespace with a single mapped id there is nobody else to become: the id stays, its capabilities go.
    """
    libc = _libc()
    capability = 0
    while libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    with contextlib.suppress(PermissionError):
        os.setgroups([])
    with contextlib.suppress(OSError):
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _call(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    _call(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    _call(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "not dumpable")


def limit(*, cpu_s: int, file_bytes: int, processes: int) -> None:
    """Bound what a runaway submission can take: CPU seconds, size of a file, processes, open files; no core dumps."""
    for what, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def open_status() -> IO[str]:
    """What the kernel says of this process, to be opened before `furnish` hides it and read at any time."""
    return open("/proc/self/status")  # noqa: PTH123 - pathlib is slower and this runs per submission


def data_bytes(status: IO[str]) -> int:
    """Bytes of private writable memory that this process has mapped, which is what RLIMIT_DATA counts."""
    status.seek(0)
    for line in status:
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmData")


def cap_memory(budget_bytes: int, already_bytes: int) -> None:
    """Let this process map `budget_bytes` of private memory beyond `already_bytes`; further requests fail.

    glibc keeps freed blocks of up to 32 MiB for later use, and the kernel counts what is kept: large blocks are made
    to go back at once, or four times the memory in use would count.
    """
    _libc().mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
    cap = already_bytes + budget_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (cap, cap))
