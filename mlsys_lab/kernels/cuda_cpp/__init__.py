"""CUDA C++: compiled anywhere, launched on a GPU, emulated on a CPU.

`launch` compiles a kernel's text with NVRTC, NVIDIA's compiler as a library, and has the driver launch it. The other
way would be torch's `load_inline`, which writes a C++ extension and builds it with nvcc. NVRTC was chosen because

* it needs no toolkit, no host compiler and no ninja: one wheel, which also compiles where there is no GPU, so that
  errors are seen, and registers and shared memory read, on any laptop with Linux;
* it is quick: on two cores of a server a kernel of three lines takes 0.06 s for sm_90 and a step of the matmul ladder
  0.2 to 1 s, where nvcc takes 1.2 s for the same three lines and g++ 54 s for an extension with one empty function,
  nearly all of it torch's headers;
* its messages are about the learner's file alone, with no line of generated code in between.

What it costs: the host side is Python, and the headers of the toolkit (cuda_bf16.h, mma.h, CUB) are not at hand;
`ptx.cuh` has the few instructions that the steps of this package need. Both are called through `cuda.bindings` and not
through `cuda.core` on top of it, which until its release 0.7 asks for a GPU's driver even to compile.
"""

from mlsys_lab.kernels.cuda_cpp.compiler import Compiled, Resources, compile_cuda
from mlsys_lab.kernels.cuda_cpp.emulator import Emulator
from mlsys_lab.kernels.cuda_cpp.launcher import Launcher, Source, launch
from mlsys_lab.kernels.cuda_cpp.memory import Part

__all__ = ["Compiled", "Emulator", "Launcher", "Part", "Resources", "Source", "compile_cuda", "launch"]
