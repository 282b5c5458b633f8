"""From a trained checkpoint to its served load and the simulation of it: trace, calibrated clock, latencies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine import SchedulerConfig
from mlsys_lab.inference.simulator import LineClock, log_normal, poisson, read_trace, report, simulate
from mlsys_lab.inference.simulator.calibration import Step, fit_clock, read_steps
from mlsys_lab.inference.simulator.clock import load_clock, save_clock
from mlsys_lab.inference.simulator.metrics import Objective
from mlsys_lab.parallel.train.__main__ import main as train
from tests.inference.server.clients import send
from tests.inference.server.serving import serving

BLOCKS, SEQUENCES = 256, 16
LOAD = poisson(12.0, 40, log_normal(40, 30, longest=300), seed=3)


def test_what_was_trained_is_served_traced_calibrated_and_simulated(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]]
):
    run, model, trace, clock = (str(tmp_path / name) for name in ("run", "model", "trace.jsonl", "clock.json"))
    assert train(["--steps", "2", "--batch", "1", "--seq-len", "512", "--checkpoints", run]) == 0
    assert call("export", run, model)[0] == 0
    options = ("--model", model, "--blocks", str(BLOCKS), "--sequences", str(SEQUENCES), "--trace-out", trace)
    with serving(*options) as served:
        measured = send(served.address, "model", LOAD)
    traced = read_trace(Path(trace))
    assert sorted((len(one.prompt), one.num_output_tokens) for one in traced) == sorted(
        (len(one.prompt), one.num_output_tokens) for one in LOAD
    )
    code, out, err = call("calibrate", trace, "--out", clock)
    assert (code, err) == (0, "") and "half of them within" in out
    config = SchedulerConfig(max_num_seqs=SEQUENCES)
    simulated = simulate(traced, load_clock(Path(clock)), num_blocks=BLOCKS, config=config).served
    found, expected = (report(one, Objective(1, 1)) for one in (simulated, measured))
    # How near they are is measured by tests/bench/calibration.py; a busy machine serves two loads differently.
    assert 0.3 < found.tpot_s[50] / expected.tpot_s[50] < 3
    code, out, _ = call(
        "simulate-serving", "llama3-8b", "--trace", trace, "--clock", clock, "--blocks", str(BLOCKS),
        "--sequences", str(SEQUENCES), "--json",
    )  # fmt: skip
    (row,) = json.loads(out)["runs"]
    assert code == 0 and row["tpot_s"]["50"] == pytest.approx(found.tpot_s[50])


def test_a_clock_is_found_again_from_its_own_steps():
    clock, random = LineClock(2e-3, 3e-5, 4e-8, 1e-4), np.random.default_rng(0)
    steps = []
    for _ in range(200):
        parts = [
            (int(new), int(past))
            for new, past in zip(random.integers(1, 50, 8), random.integers(0, 400, 8), strict=True)
        ]
        parts = parts[: random.integers(1, 9)]
        steps.append(Step(clock(parts, 0) * random.uniform(0.99, 1.01), parts))
    steps[7] = Step(9.0, steps[7].parts)  # another process had the machine
    fitted = fit_clock(steps)
    for name in ("step_s", "token_s", "cached_s", "sequence_s"):
        assert getattr(fitted, name) == pytest.approx(getattr(clock, name), rel=0.15), name


def test_steps_that_vary_do_not_make_the_clock_fast():
    clock, random = LineClock(2e-3, 3e-5, 0.0, 1e-4), np.random.default_rng(0)
    parts = [[(int(new), 10)] * 3 for new in random.integers(1, 50, 3000)]
    noise = random.lognormal(-(0.4**2) / 2, 0.4, 3000)  # with a mean of 1
    steps = [Step(clock(one, 0) * factor, one) for one, factor in zip(parts, noise, strict=True)]
    total = sum(fit_clock(steps)(one, 0) for one in parts)
    assert total == pytest.approx(sum(one.step_s for one in steps), rel=0.02)


def test_files_that_are_no_trace_or_clock_are_refused_in_a_line(tmp_path: Path):
    path = tmp_path / "file"
    for read in (read_steps, load_clock):
        with pytest.raises(InputError, match="cannot be read: got No such file or directory"):
            read(path)
    path.write_text("not JSON")
    with pytest.raises(InputError, match="is no trace of a server"):
        read_steps(path)
    path.write_text('{"step_s": 1, "parts": [[1, 0]]}\n')
    with pytest.raises(InputError, match="has too few steps: got 1, expected at least 20"):
        read_steps(path)
    with pytest.raises(InputError, match="is no clock"):
        load_clock(path)
    save_clock(LineClock(1, 2, 3, 4), path)
    assert load_clock(path) == LineClock(1, 2, 3, 4)
