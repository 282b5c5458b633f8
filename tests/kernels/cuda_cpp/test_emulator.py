"""The emulator tells right kernels from wrong ones: each of these is a step with one line spoilt."""

import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.kernels import cuda_cpp
from mlsys_lab.kernels.cuda_cpp.emulator import Emulator, _folder
from mlsys_lab.kernels.matmul import cuda_steps as matmul
from mlsys_lab.kernels.reduction import cuda_steps as reduction
from mlsys_lab.kernels.transpose import cuda_steps as transpose
from mlsys_lab.stack.limits import OutOfTimeError, time_limit
from tests.kernels.cuda_cpp.tools import needs_gxx

pytestmark = needs_gxx


class Spoilt:
    """Runs a source with one text in the place of another, in both orders; `wrong` if either is refused or differs."""

    def __init__(self, before: str, after: str) -> None:
        self.before, self.after, self.changed = before, after, False

    def launcher(self, reversed: bool):
        run = Emulator(reversed=reversed)

        def launch(source, kernel, *rest, **named):
            self.changed |= self.before in source.text
            run(cuda_cpp.Source(source.text.replace(self.before, self.after), source.name), kernel, *rest, **named)

        return launch

    def wrong(self, call, expected: torch.Tensor) -> bool:
        try:
            right = all(torch.equal(call(self.launcher(order)), expected) for order in (False, True))
        except InputError:
            right = False
        assert self.changed, "the text to spoil is not in the source"
        return not right


@pytest.mark.parametrize(
    ("step", "before", "after"),
    (
        ("tiled", "    __syncthreads();\n", ""),
        ("padded", "tile[threadIdx.x][k]", "tile[k][threadIdx.x]"),
        ("vectorised", "tx ^ (ty & 7)", "tx"),
    ),
)
def test_of_transpose(step, before, after):
    x = torch.randn(70, 40)
    assert Spoilt(before, after).wrong(lambda launch: transpose.run(step, x, launch=launch), x.T)


@pytest.mark.parametrize(
    ("step", "before", "after"),
    (
        ("interleaved", "    __syncthreads();\n", ""),
        ("sequential", "t < apart", "t <= apart"),
        ("warp_shuffle", "int apart = 16", "int apart = 8"),
        ("one_pass", "gridDim.x - 1", "gridDim.x - 2"),
    ),
)
def test_of_reduction(step, before, after):
    x = torch.arange(5000.0).remainder(7)
    spoilt = Spoilt(before, after)
    assert spoilt.wrong(lambda launch: reduction.run(step, x, launch=launch), x.sum())


@pytest.mark.parametrize(
    ("step", "before", "after"),
    (
        ("shared_tile", "        __syncthreads();\n    }\n    if", "    }\n    if"),
        ("warp_tile", "        __syncthreads();\n    }\n    write", "    }\n    write"),
        ("tensor_cores", "cp_async_wait<STAGES - 2>();", ""),
        ("tensor_cores", "cp_async_wait<STAGES - 2>();", "cp_async_wait<STAGES - 1>();"),
        ("tensor_cores", "        __syncthreads();  // this", "  // this"),
        ("tensor_cores", "ldmatrix_x4_transposed(b", "ldmatrix_x4(b"),
        ("tensor_cores", "now.b[s / 2][s % 2 * 2],", "now.b[s / 2][s % 2],"),
    ),
)
def test_of_matmul(step, before, after):
    dtype = torch.bfloat16 if step == "tensor_cores" else torch.float32
    a, b = torch.randint(-4, 5, (72, 200)).to(dtype), torch.randint(-4, 5, (200, 40)).to(dtype)
    spoilt = Spoilt(before, after)
    assert spoilt.wrong(lambda launch: matmul.run(step, a, b, launch=launch), (a.double() @ b.double()).to(dtype))


def test_a_store_beyond_the_end_is_told():
    source = cuda_cpp.Source("__global__ void f(float* x, int n) { x[threadIdx.x] = 1.0f; }")
    told = r"^kernel.cu: line 1 `.*`: block 0 thread 7 writes element 7 of 7 of x, beyond the end of the array$"
    with pytest.raises(InputError, match=told):
        Emulator()(source, "f", (1,), (8,), torch.zeros(7), 7)


def test_a_barrier_that_not_all_reach_is_told():
    text = "__global__ void f(int n) { if (threadIdx.x < n) __syncthreads(); else __syncwarp(); }"
    with pytest.raises(InputError, match=r"^f: threads wait at a barrier that others never reach$"):
        Emulator()(cuda_cpp.Source(text), "f", (1,), (64,), 40)


def test_a_barrier_in_each_of_two_branches_is_told():
    text = "__global__ void f(int n) {\nif (threadIdx.x < n)\n__syncthreads();\nelse %s }"
    told = "^f: threads of a block wait for one another at two barriers: got lines 3 and 4, expected each barrier where"
    with pytest.raises(InputError, match=told):
        Emulator()(cuda_cpp.Source(text % "__syncthreads();"), "f", (1,), (64,), 40)
    Emulator()(cuda_cpp.Source(text % "__syncthreads();"), "f", (1,), (64,), 64)  # none of a block takes the other
    Emulator()(cuda_cpp.Source(text % "; for (int i = 0; i < 2; i++) __syncthreads();"), "f", (1,), (64,), 0)


@pytest.mark.parametrize(
    "text",
    (
        "__device__ float kept[2]; __global__ void f(float* x) { kept[threadIdx.x] += 1; x[0] = kept[1]; }",
        'extern "C" __global__ void f(float* x) { static float kept[2]; kept[threadIdx.x] += 1; x[0] = kept[1]; }',
        "__device__ int kept = 3; __global__ void f(float* x) { x[0] = kept++; }",
    ),
)
def test_what_all_blocks_share_is_told(text):
    with pytest.raises(InputError, match=r"^kernel.cu: all blocks share one `kept`, and race for it; help: only what"):
        Emulator()(cuda_cpp.Source(text), "f", (1,), (1,), torch.zeros(2))


def test_blocks_are_run_in_the_order_that_is_asked_for():
    source = cuda_cpp.Source(
        "__global__ void f(int* order, int* at) {\norder[atomicAdd(at, 1)] = blockIdx.x + 3 * blockIdx.y; }"
    )
    order = torch.full((4,), -1, dtype=torch.int32)
    Emulator(blocks=(4, 0, 5))(source, "f", (3, 2), (1,), order, torch.zeros(1, dtype=torch.int32))
    assert order.tolist() == [4, 0, 5, -1]


def test_a_part_of_a_large_array_lies_where_the_kernel_looks_for_it():
    body = "{ size_t i = (size_t)row * row + threadIdx.x; y[i] = x[%s]; }"
    text = f"__global__ void f(const float* x, float* y, int row) {body}"
    x, y, row = torch.arange(3.0), torch.zeros(3), 70_000
    run = Emulator(parts=[cuda_cpp.Part(row * row)] * 2)
    run(cuda_cpp.Source(text % "i"), "f", (1,), (3,), x, y, row)
    assert torch.equal(x, y)
    with pytest.raises(InputError, match=r"reads element -4294967296 of 3 of x, before the start of the array$"):
        run(cuda_cpp.Source(text % "row * row + threadIdx.x"), "f", (1,), (3,), x, y, row)


def test_rows_of_a_part_lie_as_far_apart_as_those_of_the_array():
    columns = 2**31 - 2**10
    body = "{ size_t i = (size_t)threadIdx.y * columns + columns - 3 + threadIdx.x; y[%s] = x[%s]; }"
    text = f"__global__ void f(const float* x, float* y, int columns) {body}"
    x, y = torch.arange(12.0).view(4, 3), torch.zeros(4, 3)
    run = Emulator(parts=[cuda_cpp.Part(columns - 3, pitch=columns)] * 2)
    run(cuda_cpp.Source(text % ("i", "i")), "f", (1,), (3, 4), x, y, columns)
    assert torch.equal(x, y)
    for place in ("(unsigned)i", "(int)i", "i + 1"):
        with pytest.raises(InputError, match=r"reads element .* of x, (beyond the end|before the start) of the array$"):
            run(cuda_cpp.Source(text % ("i", place)), "f", (1,), (3, 4), x, y, columns)
    with pytest.raises(InputError, match=r"writes element .* of y, before the start of the array$"):
        run(cuda_cpp.Source(text % ("i - 1", "i")), "f", (1,), (3, 4), x, y, columns)
    with pytest.raises(MissingToolError, match=r"^a large array needs more addresses"):
        Emulator(parts=[cuda_cpp.Part(pitch=2**45)])(cuda_cpp.Source(text % (0, 0)), "f", (1,), (1,), x, y, 0)
    with pytest.raises(InputError, match=r"^the pitch of a part: got 12 bytes .* \(3,\), expected a matrix, and"):
        Emulator(parts=[cuda_cpp.Part(pitch=3)])(cuda_cpp.Source(text % (0, 0)), "f", (1,), (1,), x[0], y, 0)


def test_small_words_of_the_language_are_there():
    text = """__constant__ float half = 0.5f; __constant__ const float unused = 0;
    __device__ __noinline__ float2 pair(dim3 at) { return make_float2(at.y, __fmaf_rn(at.x, half, at.z)); }
    __global__ void f(float* x) { const dim3 at(4, threadIdx.x + 1);
    if (threadIdx.x == 6) *(float2*)x = pair(at); }"""
    x = torch.zeros(2)
    Emulator()(cuda_cpp.Source(text), "f", (1,), (7,), x)
    assert x.tolist() == [7, 3]


@pytest.mark.parametrize(
    ("body", "told"),
    (
        ("*(float*)64 = 1;", "f touches memory that is nobody's: got a program that ended with SIGSEGV"),
        ("x[0] = ((float4*)(x + 1))->x;", "kernel.cu: line 1 .* touches several numbers at once where they do not"),
        ("x[0] = thread;", r"kernel.cu cannot be emulated: kernel.cu:1: .thread. was not declared in this scope"),
        ('asm("nop;");', "kernel.cu has assembly in it, which runs on a GPU only"),
        (
            "}\n#include </etc/passwd>\n{",
            'kernel.cu includes what is not there: got </etc/passwd>, expected "ptx.cuh" or',
        ),
        ("}\n%:inc\\\nlude </etc/passwd>\n{", "kernel.cu includes what is not there"),
    ),
)
def test_what_cannot_be_run_is_told(body, told):
    with pytest.raises(InputError, match=f"^{told}") as error:
        Emulator()(cuda_cpp.Source(f"__global__ void f(float* x) {{ {body} }}"), "f", (1,), (1,), torch.zeros(1))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    (
        "__global__ void f(float* x) { while (true) x[0] += 1; }",
        "template <int N, int M> struct Tree { Tree<N - 1, 2 * M> left; Tree<N - 1, 2 * M + 1> right; };\n"
        "template <int M> struct Tree<0, M> {};\n"
        "__global__ void f(float* x) { Tree<40, 0> tree; }",
    ),
    ids=("a kernel", "a compilation"),
)
def test_what_does_not_end_is_ended_with_the_wait_for_it(text):
    source = cuda_cpp.Source(text)
    with pytest.raises(OutOfTimeError), time_limit(2.0):
        Emulator()(source, "f", (1,), (1,), torch.zeros(1))
    while [line for line in Path("/proc").glob("[0-9]*/cmdline") if _folder().name in read(line)]:
        time.sleep(0.01)  # it has been told to end, which a busy machine does in its own time


def read(path: Path) -> str:
    with suppress(OSError):  # it has ended
        return path.read_text(errors="replace")
    return ""


def test_without_a_compiler_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingToolError, match=r"^running CUDA C\+\+ without a GPU needs g\+\+; help: apt install"):
        Emulator()(cuda_cpp.Source("__global__ void f(int n) {}"), "f", (1,), (1,), 3)
