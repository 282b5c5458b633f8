"""Mistakes that learners have made and that only hidden cases found: now a case that is shown fails too."""

from __future__ import annotations

import pytest

from mlsys_checks.runner import run_check
from tests.labs.harness import kernels_of, labs, module_of

LABS = {lab.info.topic: lab for lab in labs()}
HALO = "near[t + 2] = x[i + 1] if i + 1 < x.size else float32(0)"
STRIDED = "for i in range(cuda.grid(1), y.size, cuda.gridsize(1)):"
HEAD = "tl.program_id(1) * S\n"
MISTAKES = {
    "smooth: no right neighbour": ("cuda", "smooth", HALO, "near[t + 2] = float32(0)"),
    "smooth: the right neighbour of the end": ("cuda", "smooth", HALO, "near[t + 2] = x[i + 1]"),
    "smooth: the last element is no neighbour": ("cuda", "smooth", HALO, HALO.replace("x.size", "x.size - 1")),
    "smooth: the block's last thread has one, the array's has not": (
        "cuda",
        "smooth",
        "near[t + 1] = x[i] if i < x.size else float32(0)\n",
        "if i < x.size:\n        near[t + 1] = x[i]\n",
    ),
    "axpy: an odd one is left out": ("cuda", "axpy", STRIDED, STRIDED.replace("y.size", "y.size // 2 * 2")),
    "axpy: two at a time": (
        "cuda",
        "axpy",
        f"{STRIDED}\n        y[i] += a * x[i]\n",
        "for i in range(2 * cuda.grid(1), y.size - 1, 2 * cuda.gridsize(1)):\n"
        "        y[i] += a * x[i]\n        y[i + 1] += a * x[i + 1]\n",
    ),
    "flash: heads lie as far apart as whole blocks": (
        "triton",
        "flash",
        HEAD,
        "tl.program_id(1) * tl.num_programs(0) * BLOCK_M\n",
    ),
    "flash: heads lie apart by what keys fill": (
        "triton",
        "flash",
        HEAD,
        "tl.program_id(1) * tl.cdiv(S, BLOCK_N) * BLOCK_N\n",
    ),
    "flash: heads lie D apart": ("triton", "flash", HEAD, "tl.program_id(1) * D\n"),
    "flash: all programs have the first head": ("triton", "flash", HEAD, "tl.program_id(1) * 0\n"),
    "flash: keys of a head are padded": (
        "triton",
        "flash",
        "k_offsets = (head + keys)[:, None] * D",
        "k_offsets = (head + keys)[:, None] * BLOCK_D",
    ),
    "flash: the log-sum-exp of a head is padded": (
        "triton",
        "flash",
        "lse_ptr + head + queries",
        "lse_ptr + tl.program_id(1) * tl.num_programs(0) * BLOCK_M + queries",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_case_that_is_shown_finds_it(mistake: str) -> None:
    topic, name, right, wrong = MISTAKES[mistake]
    lab = LABS[topic]
    assert lab.reference.count(right) == 1
    report = run_check(lab.checks[name], kernels_of(module_of(lab.reference.replace(right, wrong), "mistake.ipynb")))
    assert report.mismatch is not None and report.case is not None, "no public case fails"
    assert not report.case.hidden and report.given
