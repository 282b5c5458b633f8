"""This machine's CPU, measured."""

from __future__ import annotations

import os
import sys

import pytest

from mlsys_lab.errors import MissingToolError
from mlsys_lab.hardware import cpu, measure_cpu


def test_measured_cpu_is_a_plausible_device() -> None:
    measured = measure_cpu()
    assert measured.kind == "cpu" and measured.source == "measured on this machine"
    assert 1 <= measured.units <= (os.cpu_count() or 1)
    assert 1e9 < measured.peak("fp32") < 1e14
    assert 1e8 < measured.memory_bandwidth_bytes_per_s < 1e13
    assert 2**28 < measured.memory_bytes < 2**46
    assert measured.name


def test_without_torch_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingToolError, match="pip install torch"):
        measure_cpu()


def test_without_a_posix_system_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sysconf")
    with pytest.raises(MissingToolError, match="WSL"):
        cpu.memory_bytes()
