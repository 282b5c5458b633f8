"""Plans against all layouts tried one by one."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest

from mlsys_lab.configs.presets import preset
from mlsys_lab.configs.transformer import Experts, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.bounds import Machine
from mlsys_lab.flops.estimate import estimate_training
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import RECIPES
from mlsys_lab.flops.planner import INTERLEAVES, MOST_MICRO_BATCH, Plan, plan

DENSE = TransformerConfig("dense", 6, 64, 8, 192, 320, 256, n_kv_heads=4)
ROUTED = dataclasses.replace(DENSE, name="routed", experts=Experts(count=4, active=2, d_ff=96))
MIXED = RECIPES["mixed18"]
SLOW = Machine(1e12, 1e12, 1e11, 1e10, 1e9, node=2)


def plans(config=DENSE, on=SLOW, *, devices=4, batch=12, tokens=256, **given) -> list[Plan]:
    return plan(config, on, MIXED, devices=devices, batch=batch, tokens=tokens, given=given)


def every_estimate(config: TransformerConfig, on: Machine, devices: int, batch: int, tokens: int):
    """Estimates of all layouts that the planner may choose from; what cannot be is refused one by one."""
    degrees = [k for k in range(1, devices + 1) if devices % k == 0]
    settings = (
        range(4),
        (False, True),
        ("none", "selective", "full"),
        range(1, MOST_MICRO_BATCH + 1),
        INTERLEAVES,
    )
    for data, tensor, pipeline, expert in itertools.product(degrees, degrees, degrees, degrees):
        if data * tensor * pipeline != devices or tensor > on.node:
            continue
        for zero, divided, recomputation, micro_batch, interleave in itertools.product(*settings):
            try:
                layout = Layout(
                    data, tensor, pipeline, expert, 1, zero, divided, recomputation, micro_batch, interleave
                )
                yield layout, estimate_training(config, on, layout, MIXED, batch=batch, tokens=tokens)
            except InputError:
                continue


@pytest.mark.parametrize("config", [DENSE, ROUTED], ids=["dense", "routed"])
@pytest.mark.parametrize("share", [2.0, 0.6, 0.3])
def test_no_layout_that_fits_is_faster_than_the_first_plan(config: TransformerConfig, share: float) -> None:
    """With room for all, and where the fastest of all no longer fits."""
    fastest = plans(config)[0]
    on = dataclasses.replace(SLOW, memory_bytes=share * fastest.memory.total)
    best, *_ = found = plans(config, on)
    tried = list(every_estimate(config, on, 4, 12, 256))
    times = [one.bounds["step"].in_turn_s for _, one in tried if one.fits]
    assert best.time_s > fastest.time_s or share > 0.3
    assert best.missing_bytes == 0 and best.time_s == pytest.approx(min(times), rel=1e-12)
    grids = {(one.data, one.tensor, one.pipeline, one.expert) for one, _ in tried}
    planned = [one.layout for one in found]
    assert sorted((one.data, one.tensor, one.pipeline, one.expert) for one in planned) == sorted(grids)


def test_where_nothing_fits_the_least_memory_is_told() -> None:
    on = dataclasses.replace(SLOW, memory_bytes=1e3)
    best, *_ = plans(on=on)
    least = min(one.memory.total for _, one in every_estimate(DENSE, on, 4, 12, 256))
    assert best.memory.total == least
    assert best.missing_bytes == least - 1e3


def test_plans_are_in_order_and_those_that_do_not_fit_are_last() -> None:
    least = sorted(one.memory.total for one in plans(on=dataclasses.replace(SLOW, memory_bytes=1.0)))
    found = plans(on=dataclasses.replace(SLOW, memory_bytes=least[len(least) // 2]))
    keys = [(one.missing_bytes, one.time_s) for one in found]
    assert keys == sorted(keys) and keys[0][0] == 0 < keys[-1][0]


def test_a_plan_s_parts_are_its_time_and_its_figures_those_of_the_estimate() -> None:
    for one in plans(ROUTED):
        wanted = estimate_training(ROUTED, SLOW, one.layout, MIXED, batch=12, tokens=256)
        assert sum(one.parts.values()) == pytest.approx(one.time_s)
        assert (one.bound, one.memory) == (wanted.bounds["step"], wanted.memory)
        assert one.mfu * one.time_s == pytest.approx(wanted.mfu * one.bound.time_s)
        assert json.loads(json.dumps(one.as_dict())) == one.as_dict()


def test_recomputation_and_bubble_are_parts_of_compute() -> None:
    one = next(one for one in plans(recomputation="full") if one.layout.pipeline == 2)
    without = next(other for other in plans(recomputation="none") if other.layout.pipeline == 2)
    assert one.parts["recomputation"] > 0 == without.parts["recomputation"]
    assert one.parts["model"] == pytest.approx(without.parts["model"])
    micro_batches = one.layout.micro_batches(12)
    busy = one.parts["model"] + one.parts["recomputation"]
    assert 0 < one.parts["bubble"] < busy / one.layout.interleave / micro_batches
    alone = next(one for one in plans() if one.layout.pipeline == 1)
    assert alone.parts["bubble"] == 0


def test_a_plan_loses_by_the_part_that_grew_most() -> None:
    best, *others = plans()
    assert best.loss(best)[1] == 0
    for one in others:
        part, lost_s = one.loss(best)
        assert lost_s == max(one.parts[name] - best.parts[name] for name in best.parts)
        assert lost_s == one.parts[part] - best.parts[part]
        assert lost_s >= (one.time_s - best.time_s) / len(best.parts)


def test_what_is_given_is_not_chosen() -> None:
    given = {"tensor": 4, "zero_stage": 3, "recomputation": "selective", "micro_batch": 3, "interleave": 1}
    (one,) = plans(**given)  # a node has 2 devices
    assert {name: getattr(one.layout, name) for name in given} == given
    assert {one.layout.sequence_parallel for one in plans(sequence_parallel=True)} == {True}
    assert {one.layout.data for one in plans(data=2)} == {2}
    assert {one.layout.context for one in plans(context=2)} == {2}


def test_long_sequences_are_divided_among_context_parallel_ranks() -> None:
    config = dataclasses.replace(DENSE, context=8192)
    assert {one.layout.context for one in plans(config, tokens=8192)} == {1, 2}
    assert {one.layout.context for one in plans(config, tokens=4096)} == {1}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: plans(devices=0), "devices out of range: got 0, expected a whole number, at least 1"),
        (lambda: plans(batch=-3), "batch out of range: got -3"),
        (lambda: plans(tokens=0), "tokens of a sequence out of range: got 0"),
        (lambda: plans(preset("gpt2"), tokens=2048), "gpt2 has no positions for that many tokens"),
        (lambda: plans(tensr=2), "a layout has no such field: got 'tensr'; help: did you mean 'tensor'"),
        (lambda: plans(zero_stage=4), "unknown ZeRO stage: got 4"),
        (lambda: plans(micro_batch=0), "Layout.micro_batch out of range: got 0"),
        (lambda: plans(expert=2), "no layout divides dense so: got 4 devices, 12 sequences of 256 tokens, expert 2"),
        (lambda: plans(devices=7, batch=5), "no layout divides dense so: got 7 devices, 5 sequences of 256 tokens"),
    ],
)
def test_what_cannot_be_is_one_line(call, said) -> None:
    with pytest.raises(InputError, match=said):
        call()
