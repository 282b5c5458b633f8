"""Checks of lab 10: caches, positions, ragged batches, chunks, shared heads, windows, cost, drafts."""

from mlsys_lab.checks.deciding.again import ask_again
from mlsys_lab.checks.deciding.kv_cache import caches, drafts, steps, work
from mlsys_lab.checks.learner.spec import Lab

LAB = Lab("kv-cache", ask_again(caches.CHECKS + steps.CHECKS + caches.LATER + work.CHECKS + drafts.CHECKS))
