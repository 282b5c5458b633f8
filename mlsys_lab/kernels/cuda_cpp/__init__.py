"""CUDA C++: compiled anywhere, launched on a GPU, emulated on a CPU.

`launch` compiles a kernel with NVRTC, NVIDIA's runtime compilation library, and launches it through the driver. The
alternative is torch's `load_inline`, which generates a C++ extension and builds it with nvcc. NVRTC was chosen because

* it needs no toolkit, host compiler or ninja: one wheel, which also compiles without a GPU, so that errors, registers
  and shared memory can be inspected on any Linux laptop;
* it is fast: on two cores of a server a kernel of three lines takes 0.06 s for sm_90 and a step of the matmul ladder
  0.2 to 1 s, where nvcc takes 1.2 s for the same three lines and g++ 54 s for an extension with one empty function,
  nearly all of it torch's headers;
* its messages refer to the learner's file alone, not to generated code.

The costs: the host side is Python, and the toolkit's headers (cuda_bf16.h, mma.h, CUB) are not available; `ptx.cuh` has
the few instructions that the steps of this package need. Both are called through `cuda.bindings` rather than
`cuda.core`, which until its release 0.7 needs a GPU driver even to compile.
"""

from mlsys_lab.kernels.cuda_cpp.compiler import Compiled, Resources, compile_cuda
from mlsys_lab.kernels.cuda_cpp.emulator import Emulator
from mlsys_lab.kernels.cuda_cpp.launcher import Launcher, Source, launch
from mlsys_lab.kernels.cuda_cpp.memory import Part

__all__ = ["Compiled", "Emulator", "Launcher", "Part", "Resources", "Source", "compile_cuda", "launch"]
