"""Checks of lab 02: work and bounds, timing, regimes, requests of a warp, occupancy, two kernels; in its tasks' order.

The two kernels are traced: what is compared is what they computed and what their warps asked for.
"""

from mlsys_lab.checks.deciding.again import ask_again
from mlsys_lab.checks.deciding.gpu_model import kernels, limits, requests, residency, timing, work
from mlsys_lab.checks.learner.spec import Lab

MODELS = (*work.CHECKS, limits.BOUND, *timing.CHECKS, limits.REGIME)
CHECKS = MODELS + requests.CHECKS + residency.CHECKS + kernels.CHECKS
LAB = Lab("gpu-model", ask_again(CHECKS))
