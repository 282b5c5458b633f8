"""Checks of lab 03: maps, predictions, shared memory, a sum, a transpose, a matrix product, in the order of its tasks.

All but the predictions are traced: what is compared is what a kernel computed and what it did to memory. Of the kernels
in CUDA C++, which an emulator runs, it is what they computed.
"""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.cuda import cpp, maps, matrices, predictions, shared
from mlsys_checks.trusted.repeats import repeat_first_case

LAB = Lab("cuda", repeat_first_case(maps.CHECKS + predictions.CHECKS + shared.CHECKS + matrices.CHECKS + cpp.CHECKS))
