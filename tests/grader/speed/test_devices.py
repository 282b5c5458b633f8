"""Who holds a device, and for which checks there are open_benches."""

import subprocess
import sys
from dataclasses import replace
from functools import cached_property

import pytest
import timed_checks

from mlsys_checks.sandboxed.spec import Lab
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.sandbox.gpu import Gpu
from mlsys_grader.speed import devices as module
from mlsys_grader.speed.devices import find_measurable, hold_device, needs_gpu, open_benches
from mlsys_grader.speed.rounds import MeasurementConfig
from mlsys_lab.errors import MissingToolError
from mlsys_lab.stack.labinfo import read_lab
from tests.grader.conftest import FIXTURES, PROJECT

HOLD = """
import sys
from mlsys_grader.speed.devices import hold_device

with hold_device(sys.argv[1]):
    print("mine", flush=True)
"""


def hold(device):
    command = [sys.executable, "-c", HOLD, device]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT)


class Twice(GradedLab):
    """The timed lab, with a second check that has performance points on the same device."""

    @cached_property
    def checks(self):
        mix = timed_checks.LAB["mix"]
        return Lab("timed", (mix, replace(mix, name="mix_again")))


class Standing:
    """In place of a bench: its processes are another test's matter."""

    def __init__(self, performance, checks, check, path, config, gpu):
        self.performance, self.gpu = performance, gpu

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Nowhere(Standing):
    def __enter__(self):
        raise MissingToolError("no CUDA device here")


@pytest.fixture
def twice():
    return Twice(read_lab(FIXTURES / "solutions" / "02-timed"))


def test_one_submission_at_a_time_has_the_device_and_another_device_is_free():
    with hold_device("cuda-0"):
        other = hold("cuda-0")
        assert hold("cuda-1").communicate(timeout=240)[0] == "mine\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(timeout=1)
    assert other.communicate(timeout=240)[0] == "mine\n"


def test_two_checks_on_one_device_share_the_hold_on_it(twice, monkeypatch):
    """Each asking for it would wait for the other for ever."""
    monkeypatch.setattr(module, "Bench", Standing)
    assert [check.name for check in find_measurable(twice)] == ["mix", "mix_again"]
    with open_benches(twice, {"mix", "mix_again"}, MeasurementConfig(), Gpu(2)) as found:
        assert list(found) == ["mix", "mix_again"] and {bench.gpu for bench in found.values()} == {Gpu(2)}
        assert not needs_gpu(found.values())
        other = hold("cpu")
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(timeout=1)
    assert other.communicate(timeout=240)[0] == "mine\n"


def test_only_what_is_asked_for_and_works_here(twice, monkeypatch):
    monkeypatch.setattr(module, "Bench", Nowhere)
    with open_benches(twice, {"mix"}, MeasurementConfig(), Gpu()) as found:
        assert found == {}
    monkeypatch.setattr(module, "has_device", lambda kind: False)
    with open_benches(twice, {"mix"}, MeasurementConfig(), Gpu()) as found:
        assert found == {}
