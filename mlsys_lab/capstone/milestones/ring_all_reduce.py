"""Ring all-reduce (2009): bytes that each rank of the learner's all-reduce sends, counted message by message.

The paper's abstract has the lower bound and the ring that meets it; the formula is quoted from later work, such as
nccl-tests' PERFORMANCE.md, which derives the same factor: the paper's own text was not at hand.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mlsys_lab.capstone.milestones.milestone import Figure, Milestone
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.comm import run

WORLD_SIZES = (2, 4, 8)
ELEMENTS = 4096  # divisible by each world size, so that chunks are equal


def _figures(stack: Stack) -> Iterator[Figure]:
    for p in WORLD_SIZES:
        generator = torch.Generator().manual_seed(p)
        xs = [torch.randint(-1000, 1000, (ELEMENTS,), generator=generator) for _ in range(p)]
        results, ledger = run(stack.collectives.all_reduce, xs)
        total = torch.stack(xs).sum(0)
        wrong = sum(int((result != total).sum()) for result in results)
        sent = max(ledger.sent_bytes()) / xs[0].nbytes
        yield from (
            Figure.check(f"{p} ranks: wrong elements of the sum", 0, wrong, "integers add exactly"),
            Figure(f"{p} ranks: bytes sent by the busiest / array", 2 * (p - 1) / p, sent, 1e-12, "a count"),
        )


RING_ALL_REDUCE = Milestone(
    "ring-all-reduce",
    2009,
    "No all-reduce sends less than 2(p-1)/p of the array from its busiest rank, and a ring sends no more",
    "Patarasuk & Yuan, J. Parallel Distrib. Comput. 69(2), 117-124: lower bound and ring algorithm",
    {"collectives": ("all_reduce",)},
    "The experiment on bytes: every message is counted. The lower bound is the paper's proof, and the paper's times on "
    "Ethernet clusters are not reproduced.",
    _figures,
)
