"""A worker on a node with a GPU: what it judges on, and what it measures on."""

from contextlib import contextmanager
from types import SimpleNamespace

import kernel_checks
import pytest

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.engines import node
from mlsys_grader.judging.verdict import pass_check
from mlsys_grader.sandbox.gpu import Gpu
from mlsys_lab.stack.labinfo import read_lab
from tests.grader.conftest import FIXTURES

INFO = read_lab(FIXTURES / "solutions" / "03-kernel")


class Recorded:
    """In place of a sandbox: its device is all that counts here."""

    def __init__(self, lab, *, unsafe, backend, device=None):
        self.device = device


@pytest.fixture
def worker(monkeypatch):
    """A worker that measures, on a node with a GPU."""
    bench = SimpleNamespace(performance=kernel_checks.LAB["double"].performance, measure=lambda opened: opened)

    @contextmanager
    def open_benches(lab, names, config, gpu):
        yield {"double": bench}

    monkeypatch.setattr(node, "open_benches", open_benches)
    monkeypatch.setattr(node, "Sandbox", Recorded)
    monkeypatch.setattr(node, "find_lab", lambda name, labs: INFO)
    monkeypatch.setattr(node, "find_gpu", lambda: Gpu(1))
    monkeypatch.setattr(node, "make_opener", lambda sandbox, *rest: sandbox.device)
    monkeypatch.setattr(node, "compute_fingerprint", lambda lab: "alike")
    monkeypatch.setattr(node, "LocalEngine", lambda sandbox, time_factor: SimpleNamespace(sandbox=sandbox))
    options = {"time_factor": 1.0, "unsafe": False, "backend": None, "measures": True}
    return node.Judge(lab="kernel", labs="", path="", checks=["double"], **options)


def test_kernels_are_judged_without_the_gpu_and_timed_with_it(worker):
    """In a sandbox with a device kernels are compiled, and what a check counts of them could not be seen."""
    assert GradedLab(INFO).checks["double"].traced
    assert worker.ready("alike") == ""
    assert worker._engine.sandbox.device is None
    assert worker._measured(None, pass_check(kernel_checks.LAB["double"])).performance == Gpu(1)
