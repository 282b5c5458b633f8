"""Ray on this machine, for whoever runs workers on it: imported without statistics, started with a token of its own."""

from __future__ import annotations

import os
import secrets
import sys
from typing import Any

from mlsys_lab.errors import CourseError, MissingToolError

STARTS = 3
"""How often Ray is started until it stands: it gives itself 30 s, which a busy machine may not keep."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "^"}
"""No statistics to anybody; nothing of what other jobs' workers die of among our own lines ("^" is in every line)."""
OBJECT_STORE_BYTES = 100 << 20
"""Shared memory of a Ray that is started here: what crosses between processes is small."""


def import_ray(*, own: bool, extra: str) -> Any:
    """The module `ray`; `MissingToolError` that names the extra of this package where it is not installed.

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
        raise MissingToolError("Ray is not installed", help=f"pip install 'mlsys-lab[{extra}]'") from None
    return ray


def start_ray(ray: Any, workers: int, *, gpus: int | None, help: str) -> None:
    """Start Ray on this machine with room for `workers`; with `gpus` GPUs, or with None as many as Ray finds.

    Raises `CourseError` with Ray's first line and this help when it does not start.
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
                raise CourseError("Ray does not start on this machine", got=said[:300], help=help) from None
