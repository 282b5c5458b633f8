"""PyTorch as it is where submissions run: without its compiler."""

import pytest
import torch

from mlsys_grader.sandbox.inside.compiler import disable_compiler


@pytest.fixture
def uncompiled(monkeypatch):
    for name in ("compile", "use_deterministic_algorithms"):
        monkeypatch.setattr(torch, name, getattr(torch, name))  # put back at the end
    disable_compiler()
    yield
    torch.use_deterministic_algorithms(False)


def double(x):
    return 2 * x


def test_code_stays_as_it_is_written(uncompiled):
    layer = torch.nn.Linear(2, 2)
    assert torch.compile(double) is double and torch.compile(layer, fullgraph=True) is layer
    assert torch.compile(mode="reduce-overhead")(double) is double


def test_settings_are_taken_without_it(uncompiled):
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
