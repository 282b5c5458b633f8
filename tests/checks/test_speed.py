"""The line on speed in a notebook: what it says with the device and without, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from mlsys_checks import lab
from mlsys_checks.sandboxed.performance import Performance
from mlsys_checks.sandboxed.spec import Check
from mlsys_checks.speed import speed_of
from mlsys_lab.errors import InputError
from tests.checks.fakes import timed_calls

NO_GPU = not torch.cuda.is_available()


def library(x: torch.Tensor) -> torch.Tensor:
    """x + 1."""
    return x + 1


def check(fakes: ModuleType, device: Any = "cpu") -> Check:
    performance = Performance(2, timed_calls.make, timed_calls.add_one, library, start=0.25, target=0.5, device=device)
    one: Check = fakes.ADD_ONE
    return replace(one, performance=performance)


def answer(function: Any) -> SimpleNamespace:
    return SimpleNamespace(add_one=function)


def test_both_times_and_their_ratio_are_told(fakes: ModuleType) -> None:
    said = speed_of(check(fakes), answer(lambda x: x + 1))
    assert said.startswith("Add one: ") and " of its speed. Points rise from 0.25 to 0.5 of it" in said


def test_slower_code_has_a_lower_ratio(fakes: ModuleType) -> None:
    def slow(x: torch.Tensor) -> torch.Tensor:
        for _ in range(200):
            y = x + 1
        return y

    ratio = float(speed_of(check(fakes), answer(slow)).split(": ")[2].split()[0])
    assert ratio < 0.25


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x + 1.5, "the result is wrong at this size: got 3.6e-01 off, as a norm, expected 2.0e-05"),
        (lambda x: x * float("nan"), "the result is wrong at this size: got nan"),
        (lambda x: (x + 1).double(), r"another shape or dtype: got \(64, 64\), torch.float64, expected \(64, 64\)"),
    ],
)
def test_a_wrong_result_is_not_timed(fakes: ModuleType, function: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        speed_of(check(fakes), answer(function))


def test_code_that_is_not_there_is_named(fakes: ModuleType) -> None:
    with pytest.raises(InputError, match="`add_one` is not defined"):
        speed_of(check(fakes), SimpleNamespace())


def test_a_check_without_points_for_speed_says_so(fakes: ModuleType) -> None:
    with pytest.raises(InputError, match="check 'twice' has no points for speed"):
        lab("fake", {}).speed("twice")


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
def test_without_a_gpu_nothing_is_lost(fakes: ModuleType) -> None:
    said = speed_of(check(fakes, "cuda"), answer(lambda x: x + 1))
    assert said == "Add one: speed is not measured here, there is no GPU. No mark is lost by that."


def test_interpreted_kernels_are_not_timed(fakes: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(InputError, match="without TRITON_INTERPRET=1"):
        speed_of(check(fakes, "cuda"), answer(lambda x: x + 1))
