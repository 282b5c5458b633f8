"""Which system calls a submission's process is refused: a seccomp filter, built here and laid on by each job.

Namespaces and capabilities decide what a process may reach; the filter takes away the kernel's doors that a lab never
needs, so that a fault behind one of them is out of reach, and memory that no limit counts cannot be had. A refused call
fails with EPERM, except that clone3 does not exist (ENOSYS), after which libc falls back to clone, whose flags a
filter can read, and that some calls seem to be done (`IDLE`, sizes of sockets' buffers). A call of a foreign
architecture kills the process.

The filter also closes the ways in which two jobs could exchange data without the judge. Jobs share no memory that they
can write to, but they map the same read-only files, and they share the kernel's tables. Refused is every call found so
far that lets one job read exactly, without a clock, what another job has done:

    futexes      The kernel identifies a shared futex by its page, and the page of a read-only file is the same in every
                 job. The kernel itself wakes such a futex when a thread exits (`CLONE_CHILD_CLEARTID`, robust lists),
                 so it is not enough to refuse the wake: no job may wait. A shared wait returns at once with EAGAIN, or
                 with ETIMEDOUT if it has a timeout. Callers look at their word again, which is correct but busy:
                 `pthread_join`, `std::future::get` and the semaphores of `multiprocessing` spin instead of sleeping.
                 Private futexes, which everything inside one process uses, are untouched.
    page cache   whether a page is in memory: RWF_NOWAIT, mincore, cachestat, and MADV_PAGEOUT, which evicts
    counters     of the whole machine: free memory and threads (sysinfo), inode numbers of process descriptors,
                 cookies of sockets, free blocks of any mounted file system (ustat), names in the cache of directory
                 entries (RESOLVE_CACHED of openat2), extents in a file system's cache (ioctl)

Sources for futexes: futex(2), and `get_futex_key`, `mm_release` and `handle_futex_death` in the kernel.

Why numbers by hand and not names and libseccomp (tried with pyseccomp 0.1.2 on libseccomp 2.5.4): the filter is laid on
inside, in bubblewrap and in containers alike, and there the library is not: in bubblewrap pyseccomp does not find it,
the image of the containers has no pyseccomp, and where the judge runs on macOS there is none outside either, to build
the filter and hand it in. bubblewrap itself does not need it, so it would be one more thing to install. Its comparisons
are of 64 bits, though the kernel reads a socket's family as 32: `socket(40 | 1 << 32, ...)` gets past "equal to 40";
"one of these bits" and "none of these families" become a rule each, and the filter grows by most of its length; and the
number of seccomp(2) stays here all the same. A test holds every number below against libseccomp's own table, for both
machines.

Sources: seccomp(2), clone(2), mmap(2), fcntl(2), flock(2), vmsplice(2), prctl(2), preadv2(2), madvise(2),
openat2(2), ustat(2), socket(7), unix(7), address_families(7), and
the kernel's Documentation/userspace-api/seccomp_filter.rst; numbers from asm/unistd_64.h (x86_64) and
asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from dataclasses import dataclass

from mlsys_lab.errors import MissingToolError

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""By the kernel's name of the machine: AUDIT_ARCH_*, which a filter sees."""
REFUSED: dict[str, tuple[int | None, int | None]] = {  # numbers on x86_64, on aarch64
    # other worlds: namespaces, mounts, roots
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # programs that run in the kernel, and what watches it
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "syslog": (103, 116),
    "lookup_dcookie": (212, 18),
    # keys
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # the machine itself
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "personality": (135, 92),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    # what other jobs do, as tables of the whole machine tell it exactly
    "mincore": (27, 232),  # which pages of a file are in memory
    "cachestat": (451, 451),
    "openat2": (437, 437),  # which names have been looked up
    "ustat": (136, None),  # free blocks of another job's file system
    "sysinfo": (99, 179),  # how many threads the machine has, and how much free memory
    "pidfd_open": (434, 434),  # its inode number counts the processes of the machine
    "process_mrelease": (448, 448),
    "move_pages": (279, 239),  # whether another process maps a page
    "migrate_pages": (256, 238),
    "mbind": (237, 235),
    "get_mempolicy": (239, 236),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "membarrier": (324, 283),
    "futex_waitv": (449, 449),
    "futex_wake": (454, 454),
    "futex_wait": (455, 455),
    "futex_requeue": (456, 456),
    # memory and messages that no limit of the job counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "remap_file_pages": (216, 234),
    "shmget": (29, 194),
    "shmctl": (31, 195),
    "shmat": (30, 196),
    "semget": (64, 190),
    "semctl": (66, 191),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "io_setup": (206, 0),
    "vmsplice": (278, 75),  # a pipe would hold a huge page by one byte of it
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    "seccomp": (317, 277),  # once ours is on: each thread could lay on thousands
}
IDLE: dict[str, tuple[int, int]] = {
    "flock": (73, 32),  # on a file that all jobs read: what one locks another would see
    "sync": (162, 81),
    "syncfs": (306, 267),
    "fadvise64": (221, 223),  # throws out of memory what all jobs read
}
"""Calls that reach beyond the job, to the machine or to other jobs, and are taken for done: libraries make them."""
FOR_CUDA = ("memfd_create",)
"""What NVIDIA's driver needs to start, besides shared memory without a file: let through where a job has a GPU.

No limit on a single process counts them; `inside.watch` counts what of them is mapped. Source for memfd_create:
https://github.com/NVIDIA/OpenShell/issues/1696 (CUDA error 304 without it).
"""
CLONE, CLONE3, MMAP, SOCKET, FCNTL = (56, 220), (435, 435), (9, 222), (41, 198), (72, 25)
SETSOCKOPT, SOCKETPAIR, PRCTL = (54, 208), (53, 199), (157, 167)
FUTEX, PREADV2, MADVISE, IOCTL, GETSOCKOPT = (202, 98), (327, 286), (28, 233), (16, 29), (55, 209)
FUTEX_WAKE, FUTEX_PRIVATE_FLAG, FUTEX_COMMANDS = 1, 128, 0x7F
"""The one command that a shared futex takes; what it wakes are threads that wait, and no thread waits on one."""
ADVICE = (12, 21)
"""What madvise(2) may not be asked for: MADV_MERGEABLE, which compares pages with other jobs', and MADV_PAGEOUT."""
IOCTL_KINDS = (0x5400, 0x8900)
"""Kinds of ioctl(2) commands that a job without a GPU has, those of terminals (which pipes and sockets take too) and of
sockets; a file system's would tell what its caches hold.
"""
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET; NEWTIME cannot be asked of clone."""
CLONE_PIDFD = 0x1000
MAP_SHARED_ANONYMOUS, REFUSED_MAPPINGS = 0x21, 0x40100
"""The lowest bit of MAP_SHARED and of MAP_SHARED_VALIDATE, and MAP_ANONYMOUS; MAP_GROWSDOWN and MAP_HUGETLB.

RLIMIT_DATA counts neither shared memory nor a stack that grows. All jobs take huge pages from one pool, and how many
are left would tell one job what another took.
"""
LOCKS = (6, 7, 37, 38, 1024, 1026, 1036, 1038)
"""Commands of fcntl(2) that leave records in the kernel, for one file as many as it has bytes: F_SETLK, F_SETLKW,
F_OFD_SETLK, F_OFD_SETLKW; F_SETLEASE, F_NOTIFY; and hints at a file, F_SET_RW_HINT and F_SET_FILE_RW_HINT."""
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
"""Kinds of sockets that a job may open; AF_NETLINK besides, for the list of interfaces (getifaddrs) only."""
NETLINK_ROUTE = 0
PROTOCOLS = (33, 115, 132, 136, 256, 262)
"""What of the internet's a job may not open: DCCP, L2TP, SCTP, UDP-Lite, SMC and MPTCP, doors that no lab needs."""
BUFFERS = (socket.SO_SNDBUF, socket.SO_RCVBUF)
"""Options of a socket that are taken for set: how large its buffers may be is the machine's setting, on some 64 MiB."""
SO_ZEROCOPY = 60
"""An option of a socket that lets it hold huge pages by one byte of each, counted as one small page."""
SO_PASSPIDFD = 76
COUNTED = (57, 77)
"""What getsockopt(2) may not be asked for: SO_COOKIE, which counts the sockets of the machine, and SO_PEERPIDFD."""
OPTIONS = (22, 62, 67, 78)
"""What prctl(2) may not be asked for: PR_SET_SECCOMP, as the call; PR_SCHED_CORE, which keeps others off a core;
PR_SET_MEMORY_MERGE, as MADV_MERGEABLE; PR_FUTEX_HASH, whose table is memory of the kernel, as much as is asked for."""
X32 = 0x40000000
KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
SET_MODE_FILTER, ALL_THREADS = 1, 1


@dataclass(frozen=True)
class _Step:
    """One instruction; a jump names the labels to go on at, each the next of that name; "" is the next instruction."""

    code: int
    value: int = 0
    then: str = ""
    otherwise: str = ""
    label: str = ""


ENDS = (
    _Step(RETURN, ALLOW, label="allow"),
    _Step(RETURN, ERRNO, label="done"),
    _Step(RETURN, ERRNO | errno.EPERM, label="refuse"),
    _Step(RETURN, ERRNO | errno.ENOSYS, label="missing"),
    _Step(RETURN, ERRNO | errno.EAGAIN, label="again"),
    _Step(RETURN, ERRNO | errno.ETIMEDOUT, label="late"),
    _Step(RETURN, ERRNO | errno.EOPNOTSUPP, label="unsupported"),
    _Step(RETURN, KILL, label="kill"),
)


def list_refused(*, gpu: bool = False) -> dict[str, tuple[int | None, int | None]]:
    """List the system calls that are refused whatever their arguments, with their numbers."""
    return {name: numbers for name, numbers in REFUSED.items() if not (gpu and name in FOR_CUDA)}


def _steps(column: int, audit: int, *, gpu: bool) -> list[_Step]:
    """The filter as text: `column` picks an architecture's numbers."""

    def argument(index: int, label: str = "") -> _Step:  # the low half; the flags and families read here fit in it
        return _Step(LOAD, ARGUMENTS_AT + 8 * index, label=label)

    refused = [number[column] for number in list_refused(gpu=gpu).values()]
    return [
        _Step(LOAD, ARCHITECTURE_AT),
        _Step(JUMP_EQUAL, audit, otherwise="kill"),
        _Step(LOAD, NUMBER_AT),
        _Step(JUMP_AT_LEAST, X32, then="refuse"),
        _Step(JUMP_EQUAL, CLONE[column], then="clone"),
        _Step(JUMP_EQUAL, MMAP[column], then="mmap"),
        _Step(JUMP_EQUAL, SOCKET[column], then="socket"),
        _Step(JUMP_EQUAL, FCNTL[column], then="fcntl"),
        _Step(JUMP_EQUAL, SETSOCKOPT[column], then="option"),
        _Step(JUMP_EQUAL, SOCKETPAIR[column], then="pair"),
        _Step(JUMP_EQUAL, PRCTL[column], then="self"),
        _Step(JUMP_EQUAL, FUTEX[column], then="futex"),
        _Step(JUMP_EQUAL, PREADV2[column], then="read"),
        _Step(JUMP_EQUAL, MADVISE[column], then="advice"),
        _Step(JUMP_EQUAL, IOCTL[column], then="allow" if gpu else "control"),
        _Step(JUMP_EQUAL, GETSOCKOPT[column], then="count"),
        _Step(JUMP_EQUAL, CLONE3[column], then="missing"),
        *(_Step(JUMP_EQUAL, number[column], then="done") for number in IDLE.values()),
        *(_Step(JUMP_EQUAL, number, then="refuse") for number in refused if number is not None),
        *ENDS,  # a jump spans 255 instructions at most
        argument(0, label="clone"),
        _Step(JUMP_ANY_BIT, NEW_NAMESPACES | CLONE_PIDFD, then="refuse", otherwise="allow"),
        argument(1, label="futex"),
        _Step(JUMP_ANY_BIT, FUTEX_PRIVATE_FLAG, then="allow"),
        _Step(AND, FUTEX_COMMANDS),
        _Step(JUMP_EQUAL, FUTEX_WAKE, then="allow"),
        argument(3),
        _Step(JUMP_EQUAL, 0, then="again", otherwise="late"),
        argument(5, label="read"),
        _Step(JUMP_EQUAL, 0, then="allow", otherwise="unsupported"),
        argument(2, label="advice"),
        *(_Step(JUMP_EQUAL, advice, then="refuse") for advice in ADVICE),
        _Step(RETURN, ALLOW),
        argument(1, label="control"),
        _Step(AND, 0xFF00),
        *(_Step(JUMP_EQUAL, kind, then="allow") for kind in IOCTL_KINDS),
        _Step(RETURN, ERRNO | errno.ENOTTY),
        argument(1, label="count"),
        _Step(JUMP_EQUAL, socket.SOL_SOCKET, otherwise="allow"),
        argument(2),
        *(_Step(JUMP_EQUAL, option, then="refuse") for option in COUNTED),
        _Step(RETURN, ALLOW),
        argument(3, label="mmap"),
        _Step(JUMP_ANY_BIT, REFUSED_MAPPINGS, then="refuse"),
        _Step(AND, MAP_SHARED_ANONYMOUS),
        _Step(JUMP_EQUAL, MAP_SHARED_ANONYMOUS, then="allow" if gpu else "refuse", otherwise="allow"),
        argument(0, label="socket"),
        *(_Step(JUMP_EQUAL, family, then="protocol") for family in FAMILIES),
        _Step(JUMP_EQUAL, socket.AF_NETLINK, otherwise="refuse"),
        argument(2),
        _Step(JUMP_EQUAL, NETLINK_ROUTE, then="allow", otherwise="refuse"),
        argument(2, label="protocol"),
        *(_Step(JUMP_EQUAL, protocol, then="refuse") for protocol in PROTOCOLS),
        _Step(RETURN, ALLOW),
        argument(0, label="pair"),
        _Step(JUMP_EQUAL, socket.AF_UNIX, then="allow", otherwise="refuse"),
        argument(0, label="self"),
        *(_Step(JUMP_EQUAL, option, then="refuse") for option in OPTIONS),
        _Step(RETURN, ALLOW),
        argument(1, label="fcntl"),
        *(_Step(JUMP_EQUAL, command, then="refuse") for command in LOCKS),
        _Step(RETURN, ALLOW),
        argument(1, label="option"),
        _Step(JUMP_EQUAL, socket.SOL_SOCKET, otherwise="allow"),
        argument(2),
        *(_Step(JUMP_EQUAL, option, then="done") for option in BUFFERS),
        _Step(JUMP_EQUAL, SO_ZEROCOPY, then="refuse"),
        _Step(JUMP_EQUAL, SO_PASSPIDFD, then="refuse"),
        *ENDS,
    ]


def build_program(machine: str, *, gpu: bool = False) -> bytes:
    """The filter for an architecture, as the kernel reads it, for a job that has a GPU or none.

    Raises `MissingToolError` for an architecture that is not known.
    """
    if machine not in ARCHITECTURES:
        raise MissingToolError(
            "there is no system call filter for this machine", got=machine, expected=" or ".join(ARCHITECTURES)
        )
    steps = _steps(list(ARCHITECTURES).index(machine), ARCHITECTURES[machine], gpu=gpu)
    written: list[bytes] = []
    following: dict[str, int] = {}
    for place, step in reversed(list(enumerate(steps))):
        jumps = (following[label] - place - 1 if label else 0 for label in (step.then, step.otherwise))
        written.insert(0, struct.pack("=HBBI", step.code, *jumps, step.value))
        following[step.label] = place
    return b"".join(written)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def install(*, gpu: bool = False) -> None:
    """Lay the filter on this process, which may have a GPU, all its threads and all that it starts; for good.

    Needs PR_SET_NO_NEW_PRIVS first. Raises `OSError` where the kernel does not take it.
    """
    machine = os.uname().machine
    steps = build_program(machine, gpu=gpu)
    buffer = ctypes.create_string_buffer(steps, len(steps))
    filtered = _Program(len(steps) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    number = REFUSED["seccomp"][list(ARCHITECTURES).index(machine)]
    if libc.syscall(number, SET_MODE_FILTER, ALL_THREADS, ctypes.byref(filtered)) != 0:
        failed = ctypes.get_errno()
        raise OSError(failed, f"seccomp filter: {os.strerror(failed)}")
