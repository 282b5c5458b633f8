"""One grader at a time in a course folder.

The lock is the kernel's (flock) on a file in the folder: it ends with the process that holds it, however that ends, so
nothing has to be cleaned up after a crash. The file says who holds it, for the message to whoever comes second.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from mlsys_grader.course.folder import Course
from mlsys_lab.errors import InputError

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def lock_course(course: Course, command: str) -> Iterator[None]:
    """Hold the course while a command writes to it.

    Raises `InputError` at once, without waiting, when another process holds it (and says who), when the folder cannot
    be written to, and when its file system has no locks.
    """
    descriptor = _open(course)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _refusal(course, descriptor, error) from None
        with contextlib.suppress(OSError):  # a full disk: the lock holds without its holder's name
            _note(descriptor, command)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Wait for the lock on the file at `path`, made if need be, and hold it."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_user_and_host() -> tuple[str, str]:
    """Find who runs this process, and on which host; the user's number where the system knows no name."""
    try:
        return getpass.getuser(), socket.gethostname()
    except (KeyError, OSError):
        return str(os.getuid()), socket.gethostname()


def _open(course: Course) -> int:
    try:
        return os.open(course.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise InputError(f"cannot write to the course folder {course.root}", got=error.strerror) from None


def _note(descriptor: int, command: str) -> None:
    user, host = find_user_and_host()
    since = datetime.now(UTC).isoformat(timespec="seconds")
    holder = {"command": command, "user": user, "host": host, "pid": os.getpid(), "since": since}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _refusal(course: Course, descriptor: int, error: OSError) -> InputError:
    if error.errno in NO_LOCKS:
        return InputError(
            f"the file system of the course folder {course.root} has no locks, so two graders could write at once",
            got=error.strerror,
            help="keep the course folder on a local disk",
        )
    if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
        raise error
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        who = "`{command}` by {user} on {host}, process {pid}, since {since}".format(**holder)
    except (ValueError, TypeError, KeyError, OSError):
        who = "a process that has not said who it is"
    return InputError("another grader works in this course folder", got=who, help="wait until it has ended")
