"""Two pools end every request, lose no token and send what the closed form says; one alone sees no difference."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlsys_lab.configs.presets import preset
from mlsys_lab.errors import InputError
from mlsys_lab.flops.bounds import machine
from mlsys_lab.flops.cache import kv_cache_bytes
from mlsys_lab.flops.layout import Layout
from mlsys_lab.hardware import device
from mlsys_lab.inference.engine import SchedulerConfig
from mlsys_lab.inference.simulator import (
    Arrival,
    KVTransferLink,
    LineClock,
    Objective,
    Pool,
    Service,
    disaggregate,
    log_normal,
    poisson,
    report,
    simulate,
)
from mlsys_lab.inference.simulator.planner import build_pool

CLOCK = LineClock(0.01, 1e-3, 1e-5)
LOADS = st.lists(
    st.builds(
        Arrival,
        st.floats(0, 3),
        st.lists(st.integers(0, 3), min_size=1, max_size=20).map(tuple),
        st.integers(1, 8),
    ),
    min_size=1,
    max_size=12,
)
FAST = KVTransferLink(1.0, math.inf)


@settings(max_examples=100)
@given(LOADS, st.integers(1, 3), st.integers(1, 3), st.floats(10, 1e5), st.integers(10, 40))
def test_two_pools_end_every_request_and_send_each_cache_once(arrivals, readers, writers, bytes_per_s, num_blocks):
    config = SchedulerConfig(3, 8)
    prefill, decode = (Pool(CLOCK, num_blocks, config, count, block_size=3) for count in (readers, writers))
    done = disaggregate(arrivals, prefill, decode, KVTransferLink(4.0, bytes_per_s))
    coming = sorted(arrivals, key=lambda one: one.time_s)
    assert done.sent_bytes == 4 * sum(len(one.prompt) for one in coming if one.num_output_tokens > 1)
    for one, arrival in zip(done.served, coming, strict=True):
        assert one.arrived_s == arrival.time_s and len(one.tokens_s) == arrival.num_output_tokens
        assert one.tokens_s == sorted(one.tokens_s) and one.ttft_s > 0
        if arrival.num_output_tokens > 1:  # sent, then fed to a step
            assert one.gaps_s[0] >= 4 * len(arrival.prompt) / bytes_per_s + CLOCK.step_s
    alone = prefill.serve([one._replace(num_output_tokens=1) for one in coming])
    assert [one.tokens_s[0] for one in done.served] == [one.tokens_s[0] for one in alone]


@settings(max_examples=50)
@given(LOADS, st.integers(1, 3))
def test_requests_that_never_meet_see_one_server(arrivals, count):
    """An infinite wire between two pools, and a load without overlap: times are those of one replica."""
    apart = [one._replace(time_s=100.0 * number) for number, one in enumerate(arrivals)]
    config = SchedulerConfig(3, 8, enable_prefix_caching=False)
    pool = Pool(CLOCK, 20, config, count, block_size=3)
    mixed = simulate(apart, CLOCK, num_blocks=20, block_size=3, config=config).served
    for served in (disaggregate(apart, pool, pool, FAST).served, pool.serve(apart)):
        for one, other in zip(served, mixed, strict=True):
            assert one.tokens_s == pytest.approx(other.tokens_s)


def test_caches_leave_a_replica_one_after_the_other():
    """Both prompts are read in the first step; the second cache waits for the first: 20 bytes each, 10 a second."""
    load = [Arrival(0.0, (number,) * 5, 2) for number in range(2)]
    pool = Pool(lambda parts, moved: 1.0, 20, SchedulerConfig(4, 64))
    first, second = disaggregate(load, pool, pool, KVTransferLink(4.0, 10.0)).served
    assert first.tokens_s == [1.0, 4.0] and second.tokens_s == [1.0, 6.0]
    two = replace(pool, count=2)
    assert [one.tokens_s for one in disaggregate(load, two, pool, KVTransferLink(4.0, 10.0)).served] == [[1.0, 4.0]] * 2


def test_parting_keeps_an_objective_that_whole_prompts_in_steps_of_writers_miss():
    """Four groups of eight devices, one load and objective: mixed with whole prompts, mixed in chunks, three and one.

    The first is what DistServe was compared with; in chunks of the right budget the second does as well.
    """
    config, one = preset("llama3-70b"), machine(device("H100"), "bf16")
    service = Service(100.0, log_normal(1000, 60), Objective(0.5, 0.012))
    load = poisson(service.rate, 100, service.lengths, seed=13)

    def pool(count, tokens):
        return build_pool(config, one, service, SchedulerConfig(256, tokens), Layout(tensor=8), count=count)

    wire = KVTransferLink(kv_cache_bytes(config, 1), 8 * one.network_bytes_per_s)
    apart = disaggregate(load, pool(3, 1024), pool(1, 1024), wire)
    assert apart.sent_bytes == sum(kv_cache_bytes(config, len(one.prompt)) for one in load if one.num_output_tokens > 1)
    good = [report(served, service.objective).slo_attainment for served in (pool(4, 8192).serve(load), apart.served)]
    chunked = report(pool(4, 256).serve(load), service.objective).slo_attainment
    assert good[0] < 0.5 < 0.95 < min(good[1], chunked)


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="count must be at least 1: got 0"):
        Pool(CLOCK, 4, SchedulerConfig(), count=0)
    with pytest.raises(InputError, match="bytes_per_s must be positive: got 0"):
        KVTransferLink(1.0, 0)
