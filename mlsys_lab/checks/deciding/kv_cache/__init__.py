"""Checks of lab 10: caches, positions, ragged batches, chunks, shared heads, windows, cost, drafts."""

from mlsys_lab.checks.deciding.again import ask_again
from mlsys_lab.checks.deciding.kv_cache import caches, drafts, steps, work
from mlsys_lab.checks.learner.spec import Lab

BEFORE = caches.CACHE + steps.PACK + caches.ATTENTION + steps.STEPS
LAB = Lab("kv-cache", ask_again(BEFORE + caches.LATER + work.CHECKS + drafts.CHECKS))
