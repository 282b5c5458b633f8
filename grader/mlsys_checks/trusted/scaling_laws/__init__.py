"""Checks of lab 06: IsoFLOP fits, the parametric fit, the bootstrap, allocation, a campaign, real runs."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.scaling_laws import bootstrap, fits, isoflop, law, planning, runs

FITS = isoflop.CHECKS + fits.CHECKS + bootstrap.CHECKS
LAB = Lab("scaling-laws", repeat_first_case(FITS + law.CHECKS + planning.CHECKS + runs.CHECKS))
