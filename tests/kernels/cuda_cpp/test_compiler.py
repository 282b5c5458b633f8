"""CUDA C++ text is compiled without a GPU; what is wrong with it is told in one line, at the learner's own."""

import sys

import pytest
from cuda.bindings import nvrtc

from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.kernels import cuda_cpp
from mlsys_lab.kernels.cuda_cpp import compiler
from mlsys_lab.kernels.cuda_cpp.diagnostics import compile_error

GOOD = """#include "quads.cuh"
template <int N>
__global__ void scale(float* x, float by) {
    __shared__ float part[N];
    part[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = part[N - 1 - threadIdx.x] * by;
}
__global__ void table(int* x) {
    int held[64];
    for (int i = 0; i < 64; i++) held[i] = x[i];
    for (int i = 0; i < 64; i++) x[i] = held[x[i] & 63];
}
"""


def refused(source, *kernels, **options) -> str:
    with pytest.raises(InputError) as error:
        cuda_cpp.compile_cuda(source, kernels, name="steps.cu", **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("arch", ("sm_80", "sm_90"))
def test_kernels_and_instances_of_templates_are_compiled_and_their_resources_read(arch):
    compiled = cuda_cpp.compile_cuda(GOOD, ("scale<64>", "scale<128>", "table"), name="steps.cu", arch=arch)
    assert compiled.cubin.startswith(b"\x7fELF") and len(set(compiled.symbols.values())) == 3
    scale, twice, table = (compiled.resources[kernel] for kernel in ("scale<64>", "scale<128>", "table"))
    assert (scale.shared_bytes, twice.shared_bytes, table.shared_bytes) == (256, 512, 0)
    assert scale.stack_bytes == 0 and table.stack_bytes == 256, "an array with a computed index lies in local memory"
    assert 0 < scale.registers < 64 and scale.spill_bytes == 0


def test_spills_are_told():
    many = "".join(f"float v{i} = x[{i} * y]; " for i in range(120))
    used = " + ".join(f"v{i} * x[v{i} > 0 ? {i} : y]" for i in range(120))
    source = (
        f"__global__ void __launch_bounds__(1024, 2) f(float* x, int y) {{ {many} __syncthreads(); x[0] = {used}; }}"
    )
    found = cuda_cpp.compile_cuda(source, ("f",)).resources["f"]
    assert found.registers == 32 and found.spill_bytes > 0


def test_the_same_text_is_compiled_once():
    assert cuda_cpp.compile_cuda(GOOD, ("table",)) is cuda_cpp.compile_cuda(GOOD, ("table",))


def test_an_error_is_told_at_its_line_with_the_line():
    assert refused(GOOD.replace("part[N - 1", "pard[N - 1"), "scale<64>") == (
        'steps.cu:7: error: identifier "pard" is undefined in `x[threadIdx.x] = pard[N - 1 - threadIdx.x] * by;`'
    )


def test_of_several_errors_the_first_is_told_and_the_others_are_counted():
    twice = GOOD.replace("held[64]", "held[64").replace("part[N - 1", "pard[N - 1")
    told = refused(twice, "scale<64>")
    assert told.startswith("steps.cu:7: error:") and told.endswith("help: 1 more error after this one")


def test_an_error_in_an_instance_of_a_template_is_told_at_the_templates_line():
    assert refused(GOOD, "scale<0>").startswith("steps.cu:4: error: the size of an array must be greater than zero in")


def test_an_error_inside_a_header_is_told_at_the_line_that_led_there():
    source = '#include "mine.cuh"\n__global__ void f(float* x) {\n    x[0] = half(x[0]);\n}\n'
    log = """/home/me/mine.cuh(1): error: expression must have class type but it has type "float"
  template <class T> __device__ T half(T x) { return x.foo(); }
                                                     ^
          detected during instantiation of "T half(T) [with T=float]" at line 3 of steps.cu

1 error detected in the compilation of "steps.cu".
"""
    told = 'steps.cu:3: error: expression must have class type but it has type "float" in `x[0] = half(x[0]);`'
    assert str(compile_error(log, source, "steps.cu")) == told
    wrong = '#include "ptx.cuh"\n__global__ void f(float* x) {\n    cp_async_wait<bf16>();\n}\n'
    assert refused(wrong, "f").startswith("steps.cu:3: error: no instance of function template")


def test_an_error_in_a_header_that_no_line_leads_to_is_told_at_the_header():
    log = '/home/me/mine.cuh(7): error: expected a ";"\n  int x\n       ^\n\n1 error detected\n'
    assert str(compile_error(log, "", "steps.cu")) == 'steps.cu does not compile: /home/me/mine.cuh:7: expected a ";"'
    assert str(compile_error(" \n", "", "steps.cu")) == "steps.cu does not compile: got no word from the compiler"


def test_what_the_assembler_refuses_is_told_without_its_report():
    body = "__shared__ float y[20000]; y[threadIdx.x] = x[0]; __syncthreads(); x[1] = y[2];"
    large = f"__global__ void f(float* x) {{ {body} }}"
    assert refused(large, "f") == (
        "steps.cu does not assemble: Entry function '_Z1fPf' uses too much shared data (0x13880 bytes, 0xc000 max)"
    )
    assert "'foo'" in refused('__global__ void f() { asm("foo;"); }', "f")


def test_what_is_asked_for_must_be_there():
    assert refused(GOOD, "scael<4>") == 'steps.cu has no such kernel (identifier "scael" is undefined): got scael<4>'
    assert refused(GOOD) == "steps.cu: no kernel to compile: expected the names of one or more"
    assert refused(GOOD, "table", arch="90") == "no such architecture: got '90', expected like 'sm_90'"
    assert refused(GOOD, "table", arch="sm_12") == (
        "this NVRTC compiles for no such architecture: got 'sm_12', expected like 'sm_90'"
    )
    assert refused("#include <nowhere.h>\n", "f").startswith('steps.cu:1: error: cannot open source file "nowhere.h"')


def test_without_the_compiler_it_says_so(monkeypatch):
    def missing():
        raise RuntimeError('Failure finding "libnvrtc.so": No such file\nlisted: ...')

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    with pytest.raises(MissingToolError) as error:
        cuda_cpp.compile_cuda(GOOD + "// no compiler", ("table",))
    assert str(error.value) == (
        'compiling CUDA C++ needs NVRTC and cuda-bindings: got Failure finding "libnvrtc.so": No such file; '
        'help: pip install "mlsys-lab[kernels]"'
    )


def test_without_the_bindings_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(MissingToolError, match=r"needs NVRTC and cuda-bindings: .*; help: pip install"):
        compiler.load_nvrtc()


def test_cudas_headers_of_sixteen_bit_numbers_can_be_included() -> None:
    pytest.importorskip("numba_cuda")
    text = """#include <cuda_fp16.h>
    #include <cuda_bf16.h>
    __global__ void f(__half* x, __nv_bfloat16* y) { x[0] = __hfma(x[0], x[1], x[2]), y[0] = __float2bfloat16(1); }"""
    assert cuda_cpp.compile_cuda(text, ("f",)).resources["f"].registers > 0
