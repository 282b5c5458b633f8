"""What a launch refuses, one line each, before anything reaches a GPU."""

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from cuda.bindings import driver

from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.kernels import cuda_cpp
from mlsys_lab.kernels.cuda_cpp import launcher

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
    assert refused(X) == "one is launched with 1 arguments and has 2 parameters: got float* x, int n"
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
    with pytest.raises(
        MissingToolError, match=r"^one needs a GPU: got no CUDA device; help: every step but the compiled"
    ):
        cuda_cpp.launch(ONE, "one", (1,), (8,), X, 8)


def test_tensors_must_be_on_one_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert refused(X, 8) == "one: tensors must be on one GPU: got cpu"
    two = cuda_cpp.Source("__global__ void two(float* x, float* y) {}", "two.cu")
    assert refused(X, X.to("meta"), source=two, kernel="two") == "two: tensors must be on one GPU: got cpu and meta"


class Driver:
    """Stands in for the driver: keeps what it is told, and refuses what it is to refuse."""

    CUresult, CUfunction_attribute = driver.CUresult, driver.CUfunction_attribute

    def __init__(self, refuses: str = "") -> None:
        self.refuses, self.told = refuses, []

    def __getattr__(self, name):
        def call(*given):
            if name == "cuLaunchKernel":
                addresses = ctypes.cast(given[9], ctypes.POINTER(ctypes.c_void_p))
                x, n = (ctypes.cast(addresses[i], ctypes.POINTER(kind))[0] for i, kind in enumerate(KINDS))
                given = (*given[:9], x, n)
            self.told.append((name, *given))
            refused = driver.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
            return (refused if name == self.refuses else driver.CUresult.CUDA_SUCCESS, name)

        return call


KINDS = (ctypes.c_void_p, ctypes.c_int)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that launches nothing."""
    stream, properties = SimpleNamespace(cuda_stream=77), SimpleNamespace(shared_memory_per_block_optin=232448)
    for name, value in {
        "device": nullcontext,
        "current_stream": lambda _: stream,
        "get_device_capability": lambda _: (9, 0),
        "get_device_properties": lambda _: properties,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(launcher, "_device_of", lambda *_: SimpleNamespace(index=0))
    return lambda driver: monkeypatch.setattr(launcher, "load_driver", lambda: driver)


def source(name: str) -> cuda_cpp.Source:
    """Text that no other test has, since a kernel is loaded once."""
    return cuda_cpp.Source(f"{ONE.text} // {name}", "one.cu")


def test_what_the_driver_is_told(gpu):
    told = Driver()
    gpu(told)
    for _ in range(2):
        cuda_cpp.launch(source("told"), "one", (3,), (8, 2), X, -5)
    load, function, first, second = told.told
    assert load[0] == "cuModuleLoadData" and load[1].startswith(b"\x7fELF")
    assert function == ("cuModuleGetFunction", "cuModuleLoadData", b"_Z3onePfi")
    sizes = (3, 1, 1, 8, 2, 1)
    assert first == second == ("cuLaunchKernel", "cuModuleGetFunction", *sizes, 0, 77, X.data_ptr(), -5)


def test_more_shared_memory_is_asked_for_once(gpu):
    told = Driver()
    gpu(told)
    for _ in range(2):
        cuda_cpp.launch(source("shared"), "one", (1,), (8,), X, 8, shared_bytes=100_000)
    asked = [call for call in told.told if call[0] == "cuFuncSetAttribute"]
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert asked == [("cuFuncSetAttribute", "cuModuleGetFunction", attribute, 100_000)]
    assert [call[8] for call in told.told if call[0] == "cuLaunchKernel"] == [100_000, 100_000]
    with pytest.raises(InputError, match="too much shared memory for this GPU: got 300000, expected at most 232448"):
        cuda_cpp.launch(source("shared"), "one", (1,), (8,), X, 8, shared_bytes=300_000)


@pytest.mark.parametrize("call", ("cuModuleLoadData", "cuLaunchKernel"))
def test_what_the_driver_refuses_is_told(gpu, call):
    gpu(Driver(refuses=call))
    with pytest.raises(InputError, match=r"^one: the GPU's driver refuses: got CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES$"):
        cuda_cpp.launch(source(call), "one", (1,), (8,), X, 8)


@pytest.mark.gpu
def test_on_a_gpu_a_kernel_runs_on_the_current_stream():
    x = torch.zeros(40, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        cuda_cpp.launch(ONE, "one", (1,), (32,), x, 1)
    stream.synchronize()
    assert x.sum().item() == 32
