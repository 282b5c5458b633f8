"""Checks of lab 06: IsoFLOP fits, the parametric fit, the bootstrap, allocation, a campaign, real runs."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.again import ask_again
from mlsys_checks.trusted.scaling_laws import bootstrap, fits, isoflop, law, planning, runs

FITS = isoflop.CHECKS + fits.CHECKS + bootstrap.CHECKS
LAB = Lab("scaling-laws", ask_again(FITS + law.CHECKS + planning.CHECKS + runs.CHECKS))
