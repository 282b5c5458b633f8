"""One operation, several languages: the step that is asked for is the one that runs."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import operation
from mlsys_lab.kernels.matmul import cuda_steps, matmul, numba_steps
from mlsys_lab.kernels.operation import perform, steps_in
from mlsys_lab.kernels.reduction import total
from mlsys_lab.kernels.transpose import transpose
from mlsys_lab.kernels.vector_add import vector_add


@pytest.fixture
def asked(monkeypatch):
    """The steps that were run, instead of running them."""
    steps: list[str] = []

    def run(step, *tensors):
        steps.append(step)
        return tensors[0]

    monkeypatch.setattr(numba_steps, "run", run)
    monkeypatch.setattr(cuda_steps, "run", run)
    return steps


def test_a_step_by_its_name_and_the_last_without_one(asked):
    a = torch.ones(2, 2)
    matmul(a, a, step="naive")
    matmul(a, a)
    matmul(a, a, language="cuda")
    matmul(a.bfloat16(), a.bfloat16(), language="cuda")
    matmul(a, a, language="cuda", step="shared_tile")
    assert asked == ["naive", "register_tile_2d", "warp_tile", "tensor_cores", "shared_tile"]


def test_each_language_computes_the_same():
    x = torch.arange(6.0).view(2, 3)
    for language in ("numba", "triton"):
        assert torch.equal(vector_add(x, x, language=language), 2 * x)
        assert torch.equal(matmul(x, x.T.contiguous(), language=language), x @ x.T)


def test_the_last_steps_compute(device):
    x = torch.arange(6.0, device=device).view(2, 3)
    assert torch.equal(transpose(x), x.T) and total(x).item() == 15 and torch.equal(vector_add(x, x), 2 * x)


def test_what_there_is_not():
    with pytest.raises(InputError, match="unknown language: got cobol, expected numba or cuda or triton"):
        perform("matmul", "cobol", None)
    with pytest.raises(
        InputError, match=r"transpose is not written in this language: got triton, expected numba or cuda$"
    ):
        steps_in("transpose", "triton")


def test_a_module_that_is_missing_in_a_step_is_not_taken_for_a_missing_step(monkeypatch):
    def import_module(name):
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setattr(operation.importlib, "import_module", import_module)
    with pytest.raises(ModuleNotFoundError, match="scipy"):
        steps_in("matmul", "numba")
