"""Open files below an untrusted folder without following links.

A path that was checked can be a link by the time it is opened. So each name is opened relative to the descriptor of its
parent, and what was opened is what is read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from mlsys_lab.errors import InputError

READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
LINK = "a link, not a file"


def open_below(root: Path, names: Sequence[str], flags: int = 0) -> int:
    """Open the path `names` below a folder; `OSError` if a component is a link or missing."""
    here = os.open(root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    for number, name in enumerate(names, start=1):
        kind = flags if number == len(names) else os.O_DIRECTORY
        above = here
        try:
            here = os.open(name, READ | kind, dir_fd=above)
        finally:
            os.close(above)
    return here


def read_below(root: Path, names: Sequence[str], size: int) -> bytes:
    """Read at most `size` bytes of a regular file below a folder; `InputError` if it is none."""
    try:
        descriptor = open_below(root, names)
    except OSError as error:
        raise InputError(LINK if is_link_error(error) else error.strerror or "it cannot be read") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError(LINK)
        return file.read(size)


def is_link_error(error: OSError) -> bool:
    """Whether an open failed because of a link: ELOOP, or ENOTDIR where a folder was expected."""
    return isinstance(error, NotADirectoryError) or error.errno == errno.ELOOP
