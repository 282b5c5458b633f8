"""What a launch refuses, one line each, before anything reaches a GPU."""

import pytest
import torch

from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.kernels import cuda_cpp

SOURCE = cuda_cpp.Source(
    "__global__ void add(const float* x, float* y, const bf16* z, int n, float scale, bool flag, T* odd) {}", "mine.cu"
)
X, Z, ODD = torch.zeros(8), torch.zeros(8, dtype=torch.bfloat16), torch.zeros(1)
ONE = cuda_cpp.Source("__global__ void one(float* x, int n) { if (n) x[threadIdx.x] = 1; }", "one.cu")


def refused(*arguments, source=ONE, kernel="one", grid=(1,), block=(8,)) -> str:
    with pytest.raises(InputError) as error:
        cuda_cpp.launch(source, kernel, grid, block, *arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def given(**changed):
    values = {"x": X, "y": X, "z": Z, "n": 8, "scale": 1.0, "flag": True, "odd": ODD} | changed
    return refused(*values.values(), source=SOURCE, kernel="add")


def test_arguments_must_fit_the_parameters():
    assert refused(X) == "one takes 2 arguments: got 1, expected float* x, int n"
    assert given(x=X.double()) == (
        "add: argument 'x' has the wrong dtype: got torch.float64, expected torch.float32 for float* x"
    )
    assert given(z=X).endswith("got torch.float32, expected torch.bfloat16 for bf16* z")
    assert given(y=3) == "add: argument 'y' is no tensor: got int, expected float* y"
    assert given(n=X) == "add: argument 'n' is a tensor: expected int n; help: pass a number: .item()"
    assert given(n=2.5) == "add: argument 'n' is of the wrong type: got float, expected int n"
    assert given(n=2**31) == "add: argument 'n' is out of range: got 2147483648, expected int n"
    assert given() == "add: argument 'odd' has a type that no tensor can be passed as: got T* odd"


def test_tensors_must_be_contiguous():
    told = given(x=torch.zeros(8, 2)[:, 0])
    assert told == "add: argument 'x' is not contiguous: got strides (2,); help: call .contiguous()"


@pytest.mark.parametrize(
    ("grid", "block", "told"),
    (
        ((0,), (8,), "the grid is no size: got (0,)"),
        ((1, 1, 1, 1), (8,), "the grid is no size"),
        ((1,), (), "the block is no size"),
        ((1, 65536), (8,), "the grid is too large: got (1, 65536), expected at most (2147483647, 65535, 65535)"),
        ((1,), (32, 33), "the block is too large: got (32, 33), expected at most 1024 threads"),
        ((1,), (1, 1, 65), "the block is too large"),
    ),
)
def test_extents_must_be_those_of_a_gpu(grid, block, told):
    assert told in refused(X, 8, grid=grid, block=block)


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingToolError, match=r"^one needs a GPU: got no CUDA device$"):
        cuda_cpp.launch(ONE, "one", (1,), (8,), X, 8)


def test_tensors_must_be_on_one_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert refused(X, 8) == "one: tensors must be on one GPU: got cpu"
    two = cuda_cpp.Source("__global__ void two(float* x, float* y) {}", "two.cu")
    assert refused(X, X.to("meta"), source=two, kernel="two") == "two: tensors must be on one GPU: got cpu and meta"


@pytest.mark.gpu
def test_on_a_gpu_a_kernel_runs_on_the_current_stream():
    x = torch.zeros(40, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        cuda_cpp.launch(ONE, "one", (1,), (32,), x, 1)
    stream.synchronize()
    assert x.sum().item() == 32
