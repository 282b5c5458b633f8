"""Checks of lab 06: IsoFLOP fits, the parametric fit, the bootstrap, allocation, a campaign, in the tasks' order."""

from mlsys_lab.checks.scaling_laws import allocation, interval, isoflop, parametric, planning
from mlsys_lab.checks.spec import Lab

LAB = Lab(
    "scaling-laws",
    isoflop.CHECKS + parametric.CHECKS + interval.CHECKS + allocation.CHECKS + planning.CHECKS,
)
