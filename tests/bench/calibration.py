"""How near simulations on a calibrated clock are to a served load: `python -m tests.bench.calibration`.

Two models, three loads each: the bundled one, and a LLaMA of about 30 M parameters with random weights. Each is served
by `mlsys-lab serve --trace-out`; the clock is fitted to the trace of one more load, and simulates the three. Printed
are the latencies that clients measured and those simulated; exit status 1 if a TPOT misses its goal.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from mlsys_lab.inference.engine import SchedulerConfig
from mlsys_lab.inference.server.protocol import MODEL
from mlsys_lab.inference.simulator import Arrival, LineClock, log_normal, poisson, read_trace, report, simulate
from mlsys_lab.inference.simulator.calibration import fit_clock, read_steps
from mlsys_lab.inference.simulator.metrics import Objective, Report
from tests.bench.models import save_llama
from tests.inference.server.clients import send
from tests.inference.server.serving import serving

BLOCKS, SEQUENCES, REQUESTS = 512, 16, 60
GOALS = {50: 0.10, 99: 0.25}
"""Largest relative error of TPOT, by percentile."""
RATES = {"bundled": (4.0, 8.0, 16.0), "llama-30m": (1.0, 2.0, 4.0)}
CALIBRATION_SEED = 7


def load(rate: float, seed: int) -> list[Arrival]:
    """Requests of 60 + 40 tokens on average."""
    return poisson(rate, REQUESTS, log_normal(60, 40, longest=400), seed=seed)


def serve(model: Path | None, rates: tuple[float, ...], folder: Path) -> tuple[LineClock, list[tuple[Report, Report]]]:
    """The clock of a calibration load, and for each rate what clients measured and what is simulated."""
    options = ["--blocks", str(BLOCKS), "--sequences", str(SEQUENCES)]
    options += [] if model is None else ["--model", str(model)]
    name = MODEL if model is None else model.name

    def run(arrivals: list[Arrival], trace: Path) -> Report:
        with serving(*options, "--trace-out", str(trace)) as served:
            send(served.address, name, load(rates[-1], 1)[:4])  # warms up
            trace_from = len(trace.read_text().splitlines())
            measured = send(served.address, name, arrivals)
        lines = trace.read_text().splitlines()[trace_from:]
        trace.write_text("\n".join(lines) + "\n")
        return report(measured, OBJECTIVE)

    run(load(rates[1], CALIBRATION_SEED), folder / f"{name}.jsonl")
    clock = fit_clock(read_steps(folder / f"{name}.jsonl"))
    pairs = []
    for rate in rates:
        trace = folder / f"{name}-{rate}.jsonl"
        measured = run(load(rate, 3), trace)
        simulated = simulate(
            read_trace(trace), clock, num_blocks=BLOCKS, config=SchedulerConfig(max_num_seqs=SEQUENCES)
        )
        pairs.append((measured, report(simulated.served, OBJECTIVE)))
    return clock, pairs


OBJECTIVE = Objective(1.0, 1.0)


def main() -> int:
    """Exit status: 1 if a TPOT misses its goal."""
    missed = False
    print(
        f"{'model':12}{'rate':>6}" + "".join(f"{one:>26}" for one in ("TPOT p50, ms", "TPOT p99, ms", "TTFT p50, ms"))
    )
    with tempfile.TemporaryDirectory() as folder:
        models = {"bundled": None, "llama-30m": save_llama(Path(folder) / "llama-30m")}
        for name, model in models.items():
            _, pairs = serve(model, RATES[name], Path(folder))
            for rate, (measured, simulated) in zip(RATES[name], pairs, strict=True):
                cells = ""
                for kind, percentile in (("tpot_s", 50), ("tpot_s", 99), ("ttft_s", 50)):
                    found, expected = getattr(simulated, kind)[percentile], getattr(measured, kind)[percentile]
                    error = found / expected - 1
                    cells += f"{f'{1e3 * expected:.2f} → {1e3 * found:.2f} ({error:+.0%})':>26}"
                    missed |= kind == "tpot_s" and abs(error) > GOALS[percentile]
                print(f"{name:12}{rate:6}{cells}", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
