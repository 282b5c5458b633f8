"""Measure collectives: the table of nccl-tests (time, bandwidths, wrong elements) for our algorithms and torch's.

examples:
  mlsys-lab bench-collectives
  mlsys-lab bench-collectives --backend gloo --ranks 4 --collective all_gather
  mlsys-lab bench-collectives --backend nccl --ranks 8 --max-bytes 1073741824

On threads, ranks take turns in one process: times compare algorithms by their messages, and say nothing about a
network.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from mlsys_lab.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mlsys-lab bench-collectives`."""
    parser.add_argument("--backend", default="threads", help="threads, gloo or nccl (default: threads)")
    parser.add_argument("--ranks", type=int, default=4, help="number of ranks (default: 4)")
    parser.add_argument("--collective", default="all_reduce", help="all_reduce, broadcast, … (default: all_reduce)")
    parser.add_argument("--algorithms", help="comma-separated names (default: all)")
    parser.add_argument("--min-bytes", type=int, default=1024, help="smallest array (default: 1024)")
    parser.add_argument("--max-bytes", type=int, default=1 << 20, help="largest array (default: 1048576)")
    parser.add_argument("--factor", type=int, default=8, help="ratio of successive sizes (default: 8)")
    parser.add_argument("--iterations", type=int, default=5, help="timed calls (default: 5)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")


def run(args: argparse.Namespace) -> int:
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
    rows = measure(
        args.collective, args.ranks, sizes, backend=args.backend, algorithms=names, iterations=args.iterations
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
