"""Checks of lab 04: a mask, softmax, RMS norm and its backward pass, tiles, attention, pages, in order of its tasks.

Every check but that of Task 7's two functions is traced: `calls` records the learner's kernels, and what is compared is
values first, then what is wrong with memory, then traffic and shares of work (`mlsys_checks.trusted.traced`).
"""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.triton import attention, decode, matmul, norms, rows

LAB = Lab("triton", repeat_first_case(rows.CHECKS + norms.CHECKS + matmul.CHECKS + attention.CHECKS + decode.CHECKS))
