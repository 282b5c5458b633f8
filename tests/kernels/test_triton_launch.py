"""Launches of Triton kernels where something else has imported Triton first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
OPTIMIZER_FIRST = """
import torch
torch.optim.SGD([torch.zeros(1, requires_grad=True)])
import sys
assert "triton" in sys.modules, "torch no longer imports Triton here: this test can go"
from mlsys_lab.kernels.softmax import softmax
from mlsys_lab.kernels.trace.triton_interpreter import recorded
x = torch.arange(12.0).reshape(3, 4)
once = softmax(x)
with recorded() as traces:
    again = softmax(x)
assert torch.allclose(once, torch.softmax(x, -1)) and torch.equal(once, again)
assert len(traces[0].accesses) == 24
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, Triton compiles")
def test_an_optimizer_of_torch_may_come_before_the_first_kernel() -> None:
    ran = subprocess.run([sys.executable, "-c", OPTIMIZER_FIRST], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
