"""Measure collectives: the table of nccl-tests (time, bandwidths, wrong elements) for our algorithms and torch's.

examples:
  mlsys-lab bench-collectives
  mlsys-lab bench-collectives --backend gloo --ranks 4 --collective all_gather
  mlsys-lab bench-collectives --backend nccl --ranks 8 --max-bytes 1073741824

On threads, ranks take turns in one process: times compare algorithms by their messages, and say nothing about a
network.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Annotated

from mlsys_lab.cli.app import flag, option
from mlsys_lab.cli.spinner import spinner
from mlsys_lab.errors import InputError


@dataclass(kw_only=True)
class Arguments:
    """The ranks, the collective, its algorithms and the sizes of the array."""

    backend: Annotated[str, option("threads, gloo or nccl")] = "threads"
    ranks: Annotated[int, option("number of ranks")] = 4
    collective: Annotated[str, option("all_reduce, broadcast, …")] = "all_reduce"
    algorithms: Annotated[str | None, option("comma-separated names (all by default)")] = None
    min_bytes: Annotated[int, option("smallest array")] = 1024
    max_bytes: Annotated[int, option("largest array")] = 1 << 20
    factor: Annotated[int, option("ratio of successive sizes")] = 8
    iterations: Annotated[int, option("timed calls")] = 5
    json: Annotated[bool, flag("--json", "print the rows as JSON")] = False


def run(args: Arguments) -> int:
    """Print the table, or JSON; return exit code 1 if any element is wrong."""
    from mlsys_lab.comm.measure import measure

    if args.factor < 2 or not 1 <= args.min_bytes <= args.max_bytes:
        raise InputError(
            "sizes grow from --min-bytes to --max-bytes by --factor, at least 2",
            got=f"{args.min_bytes} to {args.max_bytes} by {args.factor}",
        )
    sizes = [args.min_bytes]
    while sizes[-1] * args.factor <= args.max_bytes:
        sizes.append(sizes[-1] * args.factor)
    names = args.algorithms.split(",") if args.algorithms else None
    with spinner(f"measuring {args.collective} on {args.ranks} ranks, {len(sizes)} size{'s' * (len(sizes) != 1)}"):
        rows = measure(
            args.collective,
            args.ranks,
            sizes,
            backend=args.backend,  # type: ignore[arg-type]  # `measure` refuses other names, with a suggestion
            algorithms=names,
            iterations=args.iterations,
        )
    measured = [row.size_bytes for row in rows[: len(sizes)]]
    if measured != sizes:
        changed = ", ".join(f"{size} -> {own}" for size, own in zip(sizes, measured, strict=True) if size != own)
        print(f"sizes rounded to whole elements on each of {args.ranks} ranks, in bytes: {changed}", file=sys.stderr)
    if args.json:
        print(json.dumps([asdict(row) | {"bus_bytes_per_s": row.bus_bytes_per_s} for row in rows]))
    else:
        print(f"# {args.collective} of float32 on {args.ranks} ranks, backend {args.backend}")
        print(f"{'algorithm':18}{'size (B)':>12}{'time (us)':>12}{'algbw (GB/s)':>14}{'busbw (GB/s)':>14}{'#wrong':>8}")
        for row in rows:
            print(
                f"{row.algorithm:18}{row.size_bytes:12}{row.time_s * 1e6:12.1f}"
                f"{row.algorithm_bytes_per_s / 1e9:14.3g}{row.bus_bytes_per_s / 1e9:14.3g}{row.wrong:8}"
            )
    return 1 if any(row.wrong for row in rows) else 0
