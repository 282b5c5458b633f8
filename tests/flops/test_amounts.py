"""Amounts that cannot be: one line that names them, and never a division by zero."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from mlsys_lab.configs.transformer import Experts, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import activations, cache, communication, compute, memory, peaks, utilisation
from mlsys_lab.flops.einsum import Einsum, replication
from mlsys_lab.flops.memory import RECIPES, states
from mlsys_lab.flops.roofline import bound, critical_batch

ROOFS = {"peak_flops_per_s": 1.0, "bandwidth_bytes_per_s": 1.0}
CONFIG = TransformerConfig("c", 4, d_model=8, n_heads=4, d_ff=12, vocab_size=9, context=16, experts=Experts(4, 2, 8))
MODULES = (activations, cache, communication, compute, memory, peaks, utilisation)
MAY_BE_ZERO = {
    "flops", "hardware_flops", "model_flops", "needed_bytes", "size_bytes", "weight_bytes", "gradient_bytes",
    "parameters", "past", "head_tokens", "zero_stage", "check_zero_stage.stage",
    "pairs.tokens", "kv_cache_bytes.tokens", "kv_cache_bytes.batch",
}  # fmt: skip


def takers() -> list[tuple[str, Callable[..., object], dict[str, Any], str]]:
    """Every amount that a public function of `MODULES` takes, with arguments that it accepts."""
    found = []
    known = {"config": CONFIG, "recipe": RECIPES["mixed16"], "d_ff": 12, "zero_stage": 3, "axes": [2]}
    known |= dict.fromkeys(("kept", "whole"), activations.LayerActivations(1, 1, 1, 1))
    for module in MODULES:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ != module.__name__ or name.startswith("_"):
                continue
            taken = inspect.signature(function).parameters.values()
            amounts = [one.name for one in taken if one.annotation in ("int", "float", "int | None", "float | None")]
            rest = {one.name: known[one.name] for one in taken if one.name not in amounts and one.name in known}
            arguments = rest | {amount: known.get(amount, 1) for amount in amounts}
            found += [(f"{name}.{amount}", function, arguments, amount) for amount in amounts]
    return found


@pytest.mark.parametrize(
    ("function", "arguments", "amount"), [case[1:] for case in takers()], ids=[case[0] for case in takers()]
)
def test_no_function_takes_an_amount_that_cannot_be(
    function: Callable[..., object], arguments: dict[str, Any], amount: str
) -> None:
    function(**arguments)
    zero_too = amount in MAY_BE_ZERO or f"{function.__name__}.{amount}" in MAY_BE_ZERO
    for wrong in (-1, float("nan")) if zero_too else (0, -1, float("nan")):
        with pytest.raises(InputError) as caught:
            function(**arguments | {amount: wrong})
        assert "\n" not in str(caught.value) and str(wrong) in str(caught.value)
    if zero_too:
        function(**arguments | {amount: 0})


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
