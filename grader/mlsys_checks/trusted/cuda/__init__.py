"""Checks of lab 03: maps, predictions, shared memory, a sum, a transpose, a matrix product, in the order of its tasks.

All but the predictions are traced: what is compared is what a kernel computed and what it did to memory. Of the kernels
in CUDA C++, which an emulator runs, it is what they computed.
"""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.again import ask_again
from mlsys_checks.trusted.cuda import cpp, maps, matrices, predictions, shared

LAB = Lab("cuda", ask_again(maps.CHECKS + predictions.CHECKS + shared.CHECKS + matrices.CHECKS + cpp.CHECKS))
