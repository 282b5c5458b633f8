"""One grader at a time in a course folder.

The lock is filelock's, which is the kernel's (flock) on a file in the folder: it ends with the process that holds it,
however that process ends, so nothing has to be cleaned up after a crash. The file says who holds it, for the message to
a second grader.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from filelock import FileLock, Timeout

from mlsys_grader.course.folder import Course
from mlsys_lab.errors import InputError

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def lock_course(course: Course, command: str) -> Iterator[None]:
    """Hold the course while a command writes to it.

    Raises `InputError` at once, without waiting, when another process holds it (and says who), when the folder cannot
    be written to, and when its file system has no locks.
    """

    def note(descriptor: int) -> None:
        with contextlib.suppress(OSError):  # a full disk: the lock holds without its holder's name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_describe_holder(command)).encode(), 0)

    lock = FileLock(course.lock, mode=0o644, blocking=False, fallback_to_soft=False, on_acquired=note)
    try:
        lock.acquire()
    except Timeout:
        raise _refusal(course) from None
    except OSError as error:
        if error.errno in NO_LOCKS:
            raise InputError(
                f"the file system of the course folder {course.root} has no locks, so two graders could write at once",
                got=error.strerror,
                help="keep the course folder on a local disk",
            ) from None
        raise InputError(f"cannot write to the course folder {course.root}", got=error.strerror) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.truncate(course.lock, 0)
        lock.release()


def find_user_and_host() -> tuple[str, str]:
    """Find who runs this process, and on which host; the user's number where the system knows no name."""
    try:
        return getpass.getuser(), socket.gethostname()
    except (KeyError, OSError):
        return str(os.getuid()), socket.gethostname()


def _describe_holder(command: str) -> dict[str, object]:
    user, host = find_user_and_host()
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {"command": command, "user": user, "host": host, "pid": os.getpid(), "since": since}


def _refusal(course: Course) -> InputError:
    try:
        holder = json.loads(course.lock.read_bytes()[:4096])
        who = "`{command}` by {user} on {host}, process {pid}, since {since}".format(**holder)
    except (ValueError, TypeError, KeyError, OSError):
        who = "a process that has not said who it is"
    return InputError("another grader works in this course folder", got=who, help="wait until it has ended")
