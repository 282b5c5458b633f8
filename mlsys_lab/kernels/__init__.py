"""GPU kernels: operations in Numba's CUDA, CUDA C++ and Triton, and a microscope for what they do to memory."""
