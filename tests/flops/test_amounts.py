"""Amounts that cannot be: one line that names them, and never a division by zero."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.flops import communication
from mlsys_lab.flops.amounts import not_negative, positive
from mlsys_lab.flops.einsum import Einsum, replication
from mlsys_lab.flops.memory import RECIPES, states
from mlsys_lab.flops.roofline import bound, critical_batch

ROOFS = {"peak_flops_per_s": 1.0, "bandwidth_bytes_per_s": 1.0}


def test_amounts_may_be_zero_only_where_that_is_said() -> None:
    positive(flops=1e-300, devices=1)
    not_negative(flops=0.0)
    for amount in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="time_s must be positive"):
            positive(devices=1, time_s=amount)
    for amount in (-1e-9, float("nan")):
        with pytest.raises(InputError, match="flops must not be negative"):
            not_negative(flops=amount)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: bound(-1, 1, **ROOFS), "flops must not be negative"),
        (lambda: bound(1, 0, **ROOFS), "size_bytes must be positive"),
        (lambda: bound(1, 1, **(ROOFS | {"peak_flops_per_s": 0})), "peak_flops_per_s must be positive"),
        (lambda: critical_batch(240, weight_bytes=0), "weight_bytes must be positive"),
        (lambda: Einsum.parse("i->i", i=0).intensity(), "elements must be positive"),
        (lambda: Einsum.parse("ij,jk->ik", i=2, j=3, k=4).intensity(0), "element_bytes must be positive"),
        (lambda: replication({"X": 0}, {"i": "X"}), "X must be positive"),
        (lambda: communication.data_parallel_bytes(1, 1, 8, zero_stage=4), "unknown ZeRO stage: got 4"),
        (lambda: states(1, RECIPES["fp32"], zero_stage=-1), "unknown ZeRO stage: got -1"),
        (lambda: communication.critical_tokens(1e15, 0), "link_bytes_per_s must be positive"),
        (lambda: communication.tensor_limit(28672, 0, 1), "peak_flops_per_s must be positive"),
    ],
)
def test_what_cannot_be_is_one_line(call: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_no_work_takes_the_time_of_its_bytes() -> None:
    nothing = bound(0, 8, peak_flops_per_s=1, bandwidth_bytes_per_s=2)
    assert (nothing.time_s, nothing.fraction, nothing.limit) == (4, 0, "memory")
