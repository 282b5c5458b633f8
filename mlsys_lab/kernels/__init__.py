"""GPU kernels in Numba's CUDA, CUDA C++ and Triton, and a microscope (`trace`) for what they do to memory."""
