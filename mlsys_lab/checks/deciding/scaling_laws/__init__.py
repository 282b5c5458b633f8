"""Checks of lab 06: IsoFLOP fits, the parametric fit, the bootstrap, allocation, a campaign, real runs."""

from mlsys_lab.checks.deciding.again import ask_again
from mlsys_lab.checks.deciding.scaling_laws import bootstrap, fits, isoflop, law, planning, runs
from mlsys_lab.checks.learner.spec import Lab

FITS = isoflop.CHECKS + fits.CHECKS + bootstrap.CHECKS
LAB = Lab("scaling-laws", ask_again(FITS + law.CHECKS + planning.CHECKS + runs.CHECKS))
