"""Idle time of a pipeline whose backward pass is in two parts (Qi et al., arXiv:2401.10241)."""

from __future__ import annotations

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_at_least_one, require_positive


def split_bubble(
    stages: int, micro_batches: int, *, forward: float = 1.0, inputs: float = 1.0, weights: float = 1.0
) -> float:
    """Idle time of the schedule ZB-H1 over its busy time: (p - 1)(F + B - W)/(m(F + B + W)).

    forward, inputs, weights: times F, B and W that a stage takes for a micro-batch's forward pass, for the gradients of
    what goes into its layers, and for those of its weights (table 1 of the paper). With none put off, B + W in one
    pass, it is `mlsys_lab.flops.communication.bubble`. Raises InputError where that is not the schedule's idle time:
    with fewer micro-batches than stages, and W longer than F or B.
    """
    require_at_least_one(stages=stages)
    require_positive(forward=forward, inputs=inputs, weights=weights)
    if micro_batches < stages or weights > min(forward, inputs):
        got = f"m={micro_batches}, p={stages}, F={forward:g}, B={inputs:g}, W={weights:g}"
        raise InputError("this schedule's idle time has another form", got=got, expected="m ≥ p, W ≤ F, W ≤ B")
    return (stages - 1) * (forward + inputs - weights) / (micro_batches * (forward + inputs + weights))
