"""Files below a folder that somebody else fills, opened without following a link anywhere on the way.

A path that was looked at can be a link by the time that it is opened. So each name is opened in the descriptor of the
folder above it, and what is read is what was opened.
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
    """Open what `names` lead to below a folder; an `OSError` where one of them is a link, or is not there."""
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
    """Read at most `size` bytes of a plain file below a folder; `InputError` where it is none."""
    try:
        descriptor = open_below(root, names)
    except OSError as error:
        raise InputError(LINK if is_link_error(error) else error.strerror or "it cannot be read") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError(LINK)
        return file.read(size)


def is_link_error(error: OSError) -> bool:
    """Whether an open failed because something on the way is a link: ELOOP, or ENOTDIR where a folder was wanted."""
    return isinstance(error, NotADirectoryError) or error.errno == errno.ELOOP
