"""The choice among ways to start a kernel: measured once, the first where nothing can be measured."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import tuning


def test_the_first_where_kernels_are_interpreted(monkeypatch):
    monkeypatch.setattr(tuning, "triton_interprets", lambda: True)
    started = []
    assert tuning.fastest("any work", (3, 1, 2), started.append) == 3
    assert not started
    with pytest.raises(InputError, match="no way to start this kernel fits the device: got 0 ways"):
        tuning.fastest("any work", (), started.append)


def test_the_fastest_is_measured_once_for_each_kind_of_work(monkeypatch):
    times_ms, runs = {"slow": 3.0, "fast": 1.0, "too large": float("inf")}, []
    monkeypatch.setattr(tuning, "triton_interprets", lambda: False)
    monkeypatch.setattr(tuning, "_fastest", {})

    def time_ms(run):
        run()
        return times_ms[runs[-1]]

    monkeypatch.setattr(tuning, "_time_ms", time_ms)
    for _ in range(2):
        assert tuning.fastest("work", tuple(times_ms), runs.append) == "fast"
    assert runs == ["slow", "fast", "too large"]
    times_ms["slow"] = 0.5
    assert tuning.fastest("other work", tuple(times_ms), runs.append) == "slow"
    with pytest.raises(InputError, match="fits the device: got 1 ways"):
        tuning.fastest("more", ("too large",), runs.append)
