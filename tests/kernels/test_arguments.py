"""One line for each argument that a kernel cannot take."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels import arguments

FLOATS = (torch.float32, torch.float64)


def test_tensors_alike_give_their_device():
    assert arguments.check_contiguous(FLOATS, x=torch.ones(3), y=torch.ones(2, 2)) == torch.device("cpu")
    assert arguments.check_contiguous(FLOATS, x=torch.ones(0)) == torch.device("cpu")


@pytest.mark.parametrize(
    "x, y, message",
    [
        (torch.ones(2), [1.0], "y must be a tensor of torch: got list"),
        (torch.ones(2), torch.ones(2, dtype=torch.int32), "dtype of y: got torch.int32, expected torch.float32 or"),
        (torch.ones(2), torch.ones(2).double(), "x and y have two dtypes: got torch.float32 and torch.float64"),
        (torch.ones(2), torch.ones(2, device="meta"), "x and y are on two devices: got cpu and meta"),
        (torch.ones(2), torch.ones(2, 3).T, "y is not contiguous: got strides (1, 3); help: y.contiguous()"),
    ],
)
def test_tensors_that_do_not_go_together(x, y, message):
    with pytest.raises(InputError) as error:
        arguments.check_contiguous(FLOATS, x=x, y=y)
    assert str(error.value).startswith(message)


def test_ranks_and_shapes():
    arguments.check_rank(2, a=torch.ones(2, 3), b=torch.ones(0, 0))
    arguments.check_shape((2, 3), a=torch.ones(2, 3))
    with pytest.raises(InputError, match=r"^dimensions of b: got shape \(3,\), expected 2 of them$"):
        arguments.check_rank(2, a=torch.ones(2, 3), b=torch.ones(3))
    with pytest.raises(InputError, match=r"^shape of b: got \(3, 2\), expected \(2, 3\)$"):
        arguments.check_shape((2, 3), a=torch.ones(2, 3), b=torch.ones(3, 2))


def test_steps():
    arguments.check_step("naive", {"naive": "", "tiled": ""})
    with pytest.raises(InputError, match=r"^unknown step: got 'fast', expected one of naive, tiled$"):
        arguments.check_step("fast", {"naive": "", "tiled": ""})


def test_shared_memory():
    arguments.check_shared_memory(49152, "a tile")
    with pytest.raises(
        InputError, match=r"^a tile is too large for shared memory: got 49153 bytes, expected at most 49152$"
    ):
        arguments.check_shared_memory(49153, "a tile")
    arguments.check_shared_memory(200_000, "a tile", limit_bytes=232_448)
