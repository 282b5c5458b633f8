"""Join a Ray cluster, or start one on this machine; every way that fails is one line, within a minute."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from typing import Any

from mlsys_lab.errors import CourseError, InputError, MissingToolError

CONNECT_S, JOIN_S = 5.0, 40.0
"""How soon the port of a cluster's head must accept a connection, and how soon a process must have joined it."""
STARTS = 3
"""How often Ray is started on this machine until it stands: it gives itself 30 s, which a busy machine may not keep."""
TRIAL = "import sys, ray; ray.init(address=sys.argv[1], logging_level='ERROR', log_to_driver=False)"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "^"}
"""No statistics to anybody; nothing of what other jobs' workers die of among our own lines ("^" is in every line)."""
OBJECT_STORE_BYTES = 100 << 20
"""Shared memory of a Ray that is started here: artifacts and verdicts are small."""


def import_ray(*, own: bool) -> Any:
    """The module `ray`; `MissingToolError` where it is not installed.

    `own`: a Ray is to be started here. Its ports will be open to the network, and who may speak to them may run
    anything: so they ask for a token that only this process and its children know.
    """
    if "ray" not in sys.modules:  # Ray reads these once, as it is imported
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        if own and "RAY_AUTH_MODE" not in os.environ:
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        import ray
    except ModuleNotFoundError:
        raise MissingToolError("Ray is not installed", help="pip install 'mlsys-lab[cluster]'") from None
    return ray


def start_ray(ray: Any, workers: int, gpus: int | None = None) -> None:
    """Start Ray on this machine with room for `workers`; with as many GPUs as Ray finds, or `gpus` of them.

    Raises `CourseError` with Ray's first line when it does not start.
    """
    for attempt in range(1, STARTS + 1):
        try:
            ray.init(
                address="local",
                num_cpus=max(workers, os.cpu_count() or 1),
                num_gpus=gpus,
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                logging_level="ERROR",
                log_to_driver=False,
                _system_config={"enable_metrics_collection": False},
            )
            return
        except Exception as error:  # a busy machine, full memory, ports: Ray has no class for them
            ray.shutdown()
            if attempt == STARTS:
                said = (str(error).strip().splitlines() or [type(error).__name__])[0]
                help = "grade without --engine ray"
                raise CourseError("Ray does not start on this machine", got=said[:300], help=help) from None


def join_cluster(ray: Any, address: str) -> None:
    """Become part of the cluster whose head is at `address`, HOST:PORT; `InputError` where there is none."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise InputError("not the address of a cluster", got=address, expected="HOST:PORT, as `ray start --head` says")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise _unanswered(address, getattr(error, "strerror", None) or str(error)) from None
    # Where something other than Ray listens, Ray tries for minutes and then ends its process: not this one.
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRIAL, address], capture_output=True, text=True, timeout=JOIN_S, check=False
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
