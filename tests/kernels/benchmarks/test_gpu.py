"""`make bench-gpu` works: its table on tiny sizes, in interpreter and emulator, each entry against its expectation."""

import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mlsys_lab.kernels import cuda_cpp
from mlsys_lab.kernels.cuda_cpp.emulator import Emulator
from tests.bench import gpu
from tests.bench.kernels.entries import Case, Entry, Machine, Program
from tests.kernels.cuda_cpp.tools import needs_gxx
from tests.kernels.making import told_by_make
from tests.sampling import sample

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def machine():
    """The GPU where there is one: Triton then compiles, and takes no tensors in the host's memory."""
    if torch.cuda.is_available():
        return Machine("cuda", cuda_cpp.launch)
    return Machine("cpu", Emulator())


@needs_gxx
@pytest.mark.parametrize("entry", sample(gpu.KERNELS, 3), ids=lambda entry: entry.name)
def test_an_entry_gives_what_is_expected(entry, machine):
    case = entry.make(machine, *entry.tiny)
    assert case.wrong() == ""
    for name, call in case.against.items():
        if name != "copy":
            assert replace(case, ours=call).wrong() == "", name
    assert set(entry.asked) <= set(case.against) and case.amount > 0


def test_what_is_wrong_is_told():
    case = Case(lambda: torch.ones(3), {}, lambda: torch.ones(3) * 1.01, 1.0, "TB/s")
    assert case.wrong() == "result 0 is off by 0.0099 of the largest value"
    assert replace(case, ours=lambda: torch.ones(4)).wrong() == "shapes [(4,)] for [(3,)]"
    assert (
        replace(case, ours=lambda: torch.full((3,), torch.nan)).wrong() == "result 0 is off by nan of the largest value"
    )


def set_times(monkeypatch, **times_s):
    """In place of a clock: what each call takes."""

    def compare(calls, samples, **_):
        timings = {name: SimpleNamespace(samples_s=(times_s[name],) * samples) for name in calls}
        return SimpleNamespace(timings=timings)

    monkeypatch.setattr(gpu, "compare", compare)


def test_records_hold_the_speed_and_each_ratio(monkeypatch):
    set_times(monkeypatch, ours=2e-6, copy=1e-6, none=1e-7)
    x = torch.zeros(4)
    twice = Case(lambda: (x.clone(), x.clone()), {"copy": x.clone, "none": lambda: None}, x.clone, 2e6, "TB/s")
    entry = Entry("gpu-twice", "two copies", lambda *_: twice, (7,), (7,), {"copy": 0.9}, samples=3)
    lines = gpu.measured(entry, twice, graph=lambda call: call, device="cpu")
    speed, against_copy, against_none = (line.record for line in lines)
    assert [line.record.name for line in lines] == ["gpu-twice", "gpu-twice-against-copy", "gpu-twice-against-none"]
    assert speed.unit == "TB/s" and speed.bound.how == "none in the same run"
    assert speed.p50 == pytest.approx(1.0) and speed.fraction_of_bound == pytest.approx(0.05)
    assert against_copy.samples == pytest.approx((0.5,) * 3) and against_none.p50 == pytest.approx(0.05)
    assert [line.asked for line in lines] == [None, 0.9, None]
    assert not replace(lines[1], asked=1e9).met and replace(lines[1], asked=0.0).met and lines[0].met
    assert speed.parameters == {"sizes": [7]}


def test_speeds_are_taken_with_a_clock():
    x = torch.zeros(4)
    copy = Case(x.clone, {"copy": x.clone}, x.clone, 1e6, "TB/s")
    entry = Entry("gpu-copy", "a copy", lambda *_: copy, (7,), (7,), {"copy": 0.9}, samples=3)
    lines = gpu.measured(entry, copy, graph=lambda call: call, device="cpu")
    assert len(lines) == 2 and all(len(line.record.samples) == 3 and min(line.record.samples) > 0 for line in lines)


def test_a_program_is_held_against_others_by_what_each_does_and_against_limits(monkeypatch, machine):
    set_times(monkeypatch, ours=3e-3, half=1e-3)
    half, never = torch.zeros(4), Machine.randn

    def make(*_):
        ours = lambda: (half.clone(), half.clone())  # noqa: E731
        more = {"checked": lambda: torch.ones(2), "amounts": {"half": 5e5}, "limits": {"peak": 100.0}}
        return Program(ours, {"half": half.clone}, lambda: torch.ones(2), 1e6, "tokens/s", **more)

    entry = Entry("gpu-program", "a program", make, (7,), (7,), {"half": 0.9, "peak": 0.5}, samples=3)
    case = entry.make(machine)
    assert case.wrong() == ""
    assert replace(case, checked=lambda: torch.zeros(2)).wrong() == "result 0 is off by 1 of the largest value"
    speed, against_half, against_peak = gpu.measured(entry, case, graph=never, device="cpu")
    assert [line.asked for line in (speed, against_half, against_peak)] == [None, 0.9, 0.5]
    assert against_peak.record.samples == tuple(one / 100 for one in speed.record.samples)
    assert speed.record.unit == "tokens/s" and speed.record.bound.how == "half in the same run"
    assert against_half.record.p50 == pytest.approx((1e6 / 3e-3) / (5e5 / 1e-3))


def test_trouble_with_one_entry_leaves_the_others(monkeypatch, machine):
    def broken(*_):
        raise RuntimeError("no\nsuch luck")

    def off(*_):
        return Case(lambda: torch.ones(2), {}, lambda: torch.zeros(2), 1.0, "TB/s")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    entries = [Entry("gpu-broken", "", broken, (), ()), Entry("gpu-off", "", off, (), ())]
    first, second = gpu.all_measured(entries, machine, float("inf"))
    assert first.trouble == "RuntimeError: no such luck" and second.trouble.startswith("wrong: result 0 is off by")
    assert not first.met and not second.met
    (late, _) = gpu.all_measured(entries, machine, 0.0)
    assert late.trouble == "not measured: out of time"
    assert gpu.shown([first, second, late]).row_count == 3


def test_names_are_records_names_and_every_goal_of_the_kernels_is_in_the_table():
    names = [entry.name for entry in [*gpu.KERNELS, *gpu.PROGRAMS]]
    assert len(set(names)) == len(names) and all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)
    asked = {entry.name: dict(entry.asked) for entry in gpu.KERNELS if entry.asked}
    assert asked == {
        "gpu-add-triton": {"copy": 0.90},
        "gpu-add-cuda-vectorised": {"copy": 0.90},
        "gpu-softmax-8192x1024": {"copy": 0.90},
        "gpu-softmax-8192x8192": {"copy": 0.90},
        "gpu-softmax-4096x32768": {"copy": 0.90},
        "gpu-layer-norm-forward": {"copy": 0.90},
        "gpu-rms-norm-forward": {"copy": 0.90},
        "gpu-layer-norm-backward": {"copy": 0.80},
        "gpu-rms-norm-backward": {"copy": 0.80},
        "gpu-reduction-cuda-one-pass": {"copy": 0.90},
        "gpu-transpose-cuda-vectorised": {"copy": 0.90},
        "gpu-matmul-triton-descriptors-2048": {"cublas": 0.92},
        "gpu-matmul-triton-descriptors-4096": {"cublas": 0.92},
        "gpu-matmul-triton-descriptors-8192": {"cublas": 0.92},
        "gpu-matmul-cuda-warp-tile": {"cublas": 0.85},
        "gpu-matmul-cuda-tensor-cores": {"cublas": 0.5},
        "gpu-attention-forward-4096": {"flash": 1.4, "cudnn": 0.80},
        "gpu-attention-forward-16384": {"flash": 1.4, "cudnn": 0.80},
        "gpu-attention-backward-4096": {"flash": 1.2},
        "gpu-attention-backward-16384": {"flash": 1.2},
    }


def test_without_a_gpu_it_says_so_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == 1
    told = capsys.readouterr()
    assert told.out == "" and told.err == "tests/bench/gpu.py measures a GPU, and torch finds no CUDA device here\n"


def test_one_command_runs_it_and_the_other_benchmarks_do_not():
    recipe = partial(told_by_make, PROJECT)
    assert " autograd " in recipe("bench") and " gpu " not in recipe("bench")
    assert recipe("bench-gpu").splitlines()[-1].strip() == ".venv/bin/python tests/bench/gpu.py --record"
    some = recipe("bench-gpu", "GPU_PYTHON=python3", "ONLY=matmul")
    assert some.strip() == "python3 tests/bench/gpu.py --record --only 'matmul'"


@pytest.mark.gpu
def test_on_a_gpu_a_replayed_call_is_measured():
    x = torch.zeros(1 << 20, device="cuda")
    case = Case(lambda: x + 1, {"copy": x.clone}, lambda: x + 1, x.nbytes * 2, "TB/s")
    entry = Entry("gpu-plus-one", "x + 1", lambda *_: case, (1,), (1,), samples=3)
    with torch.cuda.stream(torch.cuda.Stream()):
        speed, ratio = gpu.measured(entry, case)
    assert speed.record.p50 > 0 and ratio.record.p50 > 0
