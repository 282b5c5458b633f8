"""Checks of lab 02: work and bounds, timing, regimes, requests of a warp, occupancy, two kernels; in its tasks' order.

The two kernels are traced: what is compared is what they computed and what their warps asked for.
"""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.gpu_model import kernels, limits, requests, residency, timing, work
from mlsys_checks.trusted.repeats import repeat_first_case

MODELS = (*work.CHECKS, limits.BOUND, *timing.CHECKS, limits.REGIME)
CHECKS = MODELS + requests.CHECKS + residency.CHECKS + kernels.CHECKS
LAB = Lab("gpu-model", repeat_first_case(CHECKS))
