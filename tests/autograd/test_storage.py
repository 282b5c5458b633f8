from __future__ import annotations

import numpy as np
import pytest
import torch

from mlsys_lab.autograd import Tensor
from mlsys_lab.errors import InputError, MissingToolError


def test_torch_tensors_are_shared_and_arrays_are_copied():
    t, a = torch.zeros(2), np.zeros(2)
    x, y = Tensor(t), Tensor(a)
    t[0], a[0] = 1.0, 1.0
    assert x.data.tolist() == [1.0, 0.0]
    assert y.data.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (1.5, torch.float32, ()),
        ([[1.0, 2.0]], torch.float32, (1, 2)),
        ([], torch.float32, (0,)),
        ([1, 2], torch.int64, (2,)),
        (np.ones((2, 3)), torch.float64, (2, 3)),
        (np.float32(2), torch.float32, ()),
        (np.arange(6.0)[::-2], torch.float64, (3,)),
        (np.array(3.0), torch.float64, ()),
    ],
    ids=str,
)
def test_what_a_tensor_can_be_made_of(data, dtype, shape):
    x = Tensor(data)
    assert (x.dtype, x.shape) == (dtype, shape)
    np.testing.assert_array_equal(x.numpy(), np.asarray(data, dtype=x.numpy().dtype))


def test_read_only_arrays_are_fine():
    a = np.ones(3)
    a.setflags(write=False)
    assert Tensor(a).data.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "data",
    ["abc", None, [[1], [2, 3]], np.array(["a"]), np.array([None]), object()],
    ids=lambda data: repr(data).partition(" at 0x")[0],  # a test's name is the same in every process
)
def test_what_it_cannot_be_made_of(data):
    with pytest.raises(InputError, match="cannot make a tensor of this") as caught:
        Tensor(data)
    assert "\n" not in str(caught.value)


def test_tensors_under_torch_autograd_are_refused():
    with pytest.raises(InputError, match="torch's autograd"):
        Tensor(torch.ones(2, requires_grad=True))


def test_dtype_on_request():
    assert Tensor([1, 2], dtype=torch.float64).dtype == torch.float64
    assert Tensor(torch.ones(2), dtype=torch.float64).dtype == torch.float64


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_device_that_is_not_there():
    with pytest.raises(MissingToolError, match="got cuda"):
        Tensor([1.0], device="cuda")
    with pytest.raises(MissingToolError, match="got nonsense"):
        Tensor([1.0], device="nonsense")
