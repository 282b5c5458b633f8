"""Fit a clock to the steps that a server measured, so that simulations of it are about this machine.

TRACE is what `mlsys-lab serve --trace-out` has written under a load. A step takes a time of its own, and more for each
new token, each token in the KV cache and each sequence. `mlsys-lab simulate-serving --clock` then uses these times in
place of the bounds of a device, and so does `mlsys-lab plan-serving --clock`.

examples:
  mlsys-lab serve --trace-out trace.jsonl
  mlsys-lab calibrate trace.jsonl --out clock.json
  mlsys-lab simulate-serving llama3-8b --clock clock.json --blocks 256 --step-tokens 256 --trace trace.jsonl
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mlsys_lab.cli.app import argument, option


@dataclass(kw_only=True)
class Arguments:
    """The trace, and the file that the clock is written to."""

    trace: Annotated[Path, argument("a trace of a server")]
    out: Annotated[Path, option("the clock", "FILE")] = Path("clock.json")


def run(args: Arguments) -> int:
    """Write the clock, and print it with its errors; returns exit code 0."""
    from mlsys_lab.inference.simulator.calibration import fit_clock, read_steps, relative_errors
    from mlsys_lab.inference.simulator.clock import save_clock

    steps = read_steps(args.trace)
    clock = fit_clock(steps)
    save_clock(clock, args.out)
    errors = relative_errors(clock, steps)
    total = sum(clock(one.parts, 0) for one in steps) / sum(one.step_s for one in steps)
    print(
        f"{args.out}: {len(steps)} steps, half of them within {statistics.median(errors):.1%} of the clock; "
        f"by the clock all together take {total:.1%} of the time measured"
    )
    print(
        f"a step {1e3 * clock.step_s:.3g} ms, and {1e6 * clock.token_s:.3g} µs for each new token, "
        f"{1e9 * clock.cached_s:.3g} ns for each cached one, {1e6 * clock.sequence_s:.3g} µs for each sequence"
    )
    return 0
