"""Checks of lab 11: blocks and tables, batching, chunks, shared beginnings, preemption, a promise."""

from mlsys_lab.checks.deciding.again import ask_again
from mlsys_lab.checks.deciding.serving import blocks, promise, schedules, tables
from mlsys_lab.checks.learner.spec import Lab

BEFORE = blocks.BLOCKS + tables.TABLES_ALONE + schedules.CONTINUOUS + schedules.CHUNKED
LATER = blocks.PREFIX + tables.PREFIX + schedules.SHARED + schedules.PREEMPTIVE
LAB = Lab("serving", ask_again(BEFORE + LATER + promise.CHECKS))
