"""Join a Ray cluster, or start one on this machine; every failure is one line, within a minute."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

from mlsys_lab import local_ray
from mlsys_lab.errors import CourseError, InputError

CONNECT_S, JOIN_S = 5.0, 40.0
"""Time limits for connecting to the head's port, and for joining the cluster."""
PROBE = "import sys, ray; ray.init(address=sys.argv[1], logging_level='ERROR', log_to_driver=False)"


def import_ray(*, own: bool) -> Any:
    """Import `ray`, to join a cluster or to start our `own`; `MissingToolError` if it is missing."""
    return local_ray.import_ray(own=own, extra="cluster")


def start_ray(ray: Any, workers: int, gpus: int | None = None) -> None:
    """Start Ray on this machine with `workers` CPUs and all GPUs, or `gpus` of them.

    Raises `CourseError` with Ray's first error line.
    """
    local_ray.start_ray(ray, workers, gpus=gpus, help="grade without --engine ray")


def join_cluster(ray: Any, address: str) -> None:
    """Join the cluster whose head is at `address`, HOST:PORT; `InputError` if there is none."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise InputError("not the address of a cluster", got=address, expected="HOST:PORT, as `ray start --head` says")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise _unanswered(address, getattr(error, "strerror", None) or str(error)) from None
    # Where something other than Ray listens, Ray retries for minutes and then ends its process: probe in another one.
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE, address], capture_output=True, text=True, timeout=JOIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise _unanswered(address, f"nothing in {JOIN_S:g} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CourseError(
            f"cannot join the cluster at {address}",
            got=last[:300],
            help="grade on one of its machines, with the Ray and the Python of its head",
        )
    ray.init(address=address, logging_level="ERROR", log_to_driver=False)


def _unanswered(address: str, got: str) -> InputError:
    return InputError(f"no Ray cluster answers at {address}", got=got, help="`ray status` on its head")
