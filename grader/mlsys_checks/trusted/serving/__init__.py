"""Checks of lab 11: blocks and tables, batching, chunks, shared beginnings, preemption, a promise."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.serving import blocks, promise, schedules, tables

BEFORE = blocks.BLOCKS + tables.TABLES_ALONE + schedules.CONTINUOUS + schedules.CHUNKED
LATER = blocks.PREFIX + tables.PREFIX + schedules.SHARED + schedules.PREEMPTIVE
LAB = Lab("serving", repeat_first_case(BEFORE + LATER + promise.CHECKS))
