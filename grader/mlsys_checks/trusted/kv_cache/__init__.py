"""Checks of lab 10: caches, positions, ragged batches, chunks, shared heads, windows, cost, drafts."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.kv_cache import attention, caches, drafts, prompts, steps, work
from mlsys_checks.trusted.repeats import repeat_first_case

BEFORE = caches.CACHE + steps.PACK + attention.ATTENTION + steps.STEPS + prompts.CHECKS
LATER = attention.SHARED + caches.RING + steps.WINDOWED
LAB = Lab("kv-cache", repeat_first_case(BEFORE + LATER + work.CHECKS + drafts.CHECKS))
