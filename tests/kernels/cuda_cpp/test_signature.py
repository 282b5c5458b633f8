"""What a kernel takes is read from its text, however it is laid out."""

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.cuda_cpp.signature import parameters

TEXT = """
// __global__ void commented(int x) {}
/* __global__ void out(int x) {} */
template <int N, bool B>
__global__ void __launch_bounds__(N * (N + 1), 2)
    first(const float* __restrict__ x, float *y, long long n /* elements */, unsigned int const k) { if (n) { } }
static __global__ void second() {}
__global__ __launch_bounds__(64) void third(const unsigned char* image,
                                            bf16* __restrict__ out, double scale) {}
__device__ float helper(float z) { return z; }
"""


def shown(kernel: str) -> list[str]:
    return [str(one) for one in parameters(TEXT, kernel, "steps.cu")]


def test_names_types_and_pointers():
    assert shown("first<4, true>") == ["float* x", "float* y", "long long n", "unsigned int k"]
    assert shown("second") == []
    assert shown("third") == ["unsigned char* image", "bf16* out", "double scale"]


@pytest.mark.parametrize("kernel", ("commented", "out", "helper", "fist<2>"))
def test_what_is_no_kernel_is_told(kernel):
    with pytest.raises(
        InputError, match=r"^steps.cu has no such kernel: got '\w+', expected one of first, second, third"
    ):
        parameters(TEXT, kernel, "steps.cu")


def test_text_without_kernels():
    with pytest.raises(InputError, match="expected a function declared __global__"):
        parameters("int main() {}", "f", "steps.cu")
