"""A small network as one C file of int8 arithmetic, for a microcontroller.

network    Network, Convolution, MaxPool; plan_arena(network) -> Arena: where activations lie in memory
quantize   quantize_network(model, calibration) -> Network: int8 weights and activations, int32 sums
simulate   simulate(network, images): the same integers, in NumPy
c_code     generate_c(network, images): the C program
programs   run_here(source), run_on_board(source): on this machine, or on a Cortex-M4 that QEMU emulates
digits     a classifier of handwritten digits

`python -m mlsys_lab.efficiency.embedded digits.c` writes that classifier and prints its figures.
"""

from mlsys_lab.efficiency.embedded.c_code import generate_c
from mlsys_lab.efficiency.embedded.network import Arena, Convolution, MaxPool, Network, plan_arena
from mlsys_lab.efficiency.embedded.programs import BoardRun, run_here, run_on_board
from mlsys_lab.efficiency.embedded.quantize import quantize_network
from mlsys_lab.efficiency.embedded.simulate import simulate

__all__ = [
    "Arena",
    "BoardRun",
    "Convolution",
    "MaxPool",
    "Network",
    "generate_c",
    "plan_arena",
    "quantize_network",
    "run_here",
    "run_on_board",
    "simulate",
]
