"""A notebook's kernel, forked from the server at ADDRESS; the signals that this process gets are passed on to it.

python kernel.py ADDRESS -f CONNECTION_FILE
"""

import os
import signal
import sys
from pathlib import Path

from forks import Forked

CODE = "from ipykernel.kernelapp import launch_new_instance; launch_new_instance()"


def main(address: str, *arguments: str) -> int:
    """Be the kernel for whoever started it, until it ends; returns its exit status."""
    place = {"folder": Path.cwd(), "environment": dict(os.environ)}
    kernel = Forked(address, ["-c", CODE, *arguments], [0, 1, 2], **place)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(kernel.pid, number))
    return kernel.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
