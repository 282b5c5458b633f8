"""Checks of lab 06: IsoFLOP fits, the parametric fit, the bootstrap, allocation, a campaign, real runs."""

from mlsys_lab.checks.deciding.scaling_laws import allocation, interval, isoflop, parametric, planning, real
from mlsys_lab.checks.learner.spec import Lab

LAB = Lab(
    "scaling-laws",
    isoflop.CHECKS + parametric.CHECKS + interval.CHECKS + allocation.CHECKS + planning.CHECKS + real.CHECKS,
)
