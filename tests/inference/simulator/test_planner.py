"""Plans keep their objective with as few replicas as do, and say what one less would miss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlsys_lab.configs.presets import preset
from mlsys_lab.errors import InputError
from mlsys_lab.flops.bounds import machine
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.hardware import device
from mlsys_lab.inference.engine import SchedulerConfig
from mlsys_lab.inference.simulator import (
    BoundClock,
    LineClock,
    Objective,
    Service,
    log_normal,
    plan_measured,
    plan_serving,
    simulate,
)
from mlsys_lab.inference.simulator.planner import BLOCK_SIZE, MIN_SLO_ATTAINMENT, num_cache_blocks
from mlsys_lab.inference.simulator.steady import measure_steady_state

CONFIG = preset("llama3-8b")
STEPS = SchedulerConfig(64, 512)
ONE = machine(device("H100"), "bf16", node=1)
SERVICE = Service(12.0, log_normal(400, 40), Objective(0.4, 0.03))


def steady(replicas, num_blocks, service=SERVICE, requests=200):
    clock = BoundClock(CONFIG, ONE, efficiency=service.efficiency)

    def serve(load):
        return simulate(load, clock, num_blocks=num_blocks, block_size=BLOCK_SIZE, config=STEPS).served

    rate = service.rate / replicas
    return measure_steady_state(
        serve, rate, service.lengths, service.objective, max_num_seqs=STEPS.max_num_seqs, requests=requests
    )


def test_one_replica_less_would_miss_it():
    service = replace(SERVICE, rate=200.0)
    (found,) = plan_serving(CONFIG, ONE, service, scheduler_config=STEPS)
    assert found.replicas > 1 and found.devices == found.replicas and found.layout.tensor == 1
    assert (
        steady(found.replicas, found.num_blocks, service).report.slo_attainment >= MIN_SLO_ATTAINMENT
        and found.report.slo_attainment >= MIN_SLO_ATTAINMENT
    )
    assert found.shortage in ("ttft", "tpot", "compute", "memory")
    if found.shortage in ("ttft", "tpot"):
        assert steady(found.replicas - 1, found.num_blocks, service).report.slo_attainment < MIN_SLO_ATTAINMENT
    served = found.simulation.served
    written = sum(len(one.tokens_s) for one in served) / len(served)
    assert found.cost_per_million_tokens(3.6, 200.0) == pytest.approx(found.devices * 1e-3 / (200 * written) * 1e6)


def test_no_plan_has_fewer_devices_than_arithmetic_alone_needs():
    """2·N·T FLOPs a request at 0.6 of the peak: at 2000 a second, runs of 200 requests said 24 devices."""
    service = replace(SERVICE, rate=2000.0, lengths=lambda random: (1000, 20), objective=Objective(1.0, 0.1))
    (found,) = plan_serving(CONFIG, ONE, service, scheduler_config=SchedulerConfig(256, 1024))
    multiplied = parameters(CONFIG).total - 2 * CONFIG.vocab_size * CONFIG.d_model  # no embedding, logits once a token
    least = 2000 * 2 * multiplied * 1020 / (0.6 * 989.4e12)
    assert least < found.devices < 1.25 * least
    assert found.utilisation["compute"] == pytest.approx(least / found.devices, rel=0.05)
    assert found.utilisation["compute"] < 1 and 0 < found.utilisation["cache"] < 1


def test_a_run_is_long_enough_to_see_what_a_short_one_hides():
    """One step a second for two sequences, eight tokens each: a request every four seconds is what it takes."""

    def serve(load):
        return simulate(load, lambda parts, moved: 1.0, num_blocks=100, config=SchedulerConfig(2, 64)).served

    def measure(rate, **options):
        return measure_steady_state(serve, rate, lambda random: (1, 8), Objective(60.0, 2.0), max_num_seqs=2, **options)

    for rate, overloaded in ((0.15, False), (0.3, True), (2.0, True)):
        found = measure(rate, requests=400)
        assert found.is_overloaded == overloaded, rate
        assert found.report.goodput == (0 if overloaded else pytest.approx(rate * found.report.slo_attainment))
    assert measure(0.15, requests=400).report.slo_attainment > 0.9
    assert measure(0.15, requests=400, capacity=0.1).is_overloaded
    with pytest.raises(InputError, match="length of the run out of range: got 10 requests"):
        measure(0.1, requests=10)


def test_what_no_number_of_replicas_can_serve_is_one_line():
    with pytest.raises(InputError, match=r"the load is too large: got 1e\+09 requests/s, expected at most .* 4096"):
        plan_serving(CONFIG, ONE, replace(SERVICE, rate=1e9), scheduler_config=STEPS)
    with pytest.raises(InputError, match="rate must be finite: got inf"):
        replace(SERVICE, rate=float("inf"))


def test_blocks_fill_what_weights_leave():
    num_blocks = num_cache_blocks(CONFIG, ONE, SERVICE, Layout(), tokens=512)
    room = 0.9 * ONE.memory_bytes - 2 * parameters(CONFIG).total
    token_bytes = 2 * 2 * 8 * 128 * 32  # bf16, keys and values, heads, width, layers
    assert 0.97 * room < num_blocks * BLOCK_SIZE * token_bytes < room
    assert num_cache_blocks(CONFIG, replace(ONE, memory_bytes=1e9), SERVICE, Layout(), tokens=512) == 0


def test_experts_divided_among_ranks_leave_room_where_none_was():
    """Weights of 94 GB on two devices of 80 GB: held whole by none, and by both with half of the experts each."""
    config, service = preset("mixtral-8x7b"), replace(SERVICE, rate=2.0)
    with pytest.raises(InputError, match="fit on no replica"):
        plan_serving(config, ONE, service, scheduler_config=STEPS)
    (found,) = plan_serving(config, ONE, service, scheduler_config=STEPS, expert=2)
    assert found.layout == Layout(data=2, expert=2) and (found.replicas, found.devices) == (1, 2)
    whole, experts = parameters(config).total, 32 * 8 * 3 * 4096 * 14_336
    room = 0.9 * ONE.memory_bytes - 2 * (whole - experts / 2)
    token_bytes = 2 * 2 * 8 * 128 * 32
    assert 0.97 * room < found.num_blocks / 2 * BLOCK_SIZE * token_bytes < room
    with pytest.raises(InputError, match="llama3-8b has no experts to divide: got 2"):
        plan_serving(CONFIG, ONE, SERVICE, scheduler_config=STEPS, expert=2)


def test_an_objective_that_no_replica_keeps_is_said_so():
    (found,) = plan_serving(CONFIG, ONE, replace(SERVICE, objective=Objective(0.4, 0.001)), scheduler_config=STEPS)
    assert found.replicas is None and found.devices is None and found.shortage == "tpot"
    assert found.cost_per_million_tokens(1.0, 12.0) is None


def test_what_fits_nowhere_is_refused():
    small = replace(ONE, memory_bytes=10e9)
    with pytest.raises(InputError, match="llama3-8b and the longest request fit on no replica: got up to 1"):
        plan_serving(CONFIG, small, SERVICE, scheduler_config=STEPS)
    with pytest.raises(InputError, match="efficiency out of range: got 0, expected above 0, at most 1"):
        replace(SERVICE, efficiency=0)


def test_a_measured_clock_plans_batch_limits_and_blocks():
    """A step takes a second and a request eight steps: a replica of up to n sequences serves n requests in 8 s."""
    service = Service(1.5, lambda random: (1, 8), Objective(60.0, 2.0))
    clock = LineClock(1.0, 0.0, 0.0)
    plans = plan_measured(clock, service, blocks=[100, 2], scheduler_config=SchedulerConfig(4, 64))
    assert [(one.replicas, one.num_blocks) for one in plans] == sorted((one.replicas, one.num_blocks) for one in plans)
    found = {(one.num_blocks, one.max_num_seqs): one for one in plans}
    assert set(found) == {(blocks, limit) for blocks in (100, 2) for limit in (1, 2, 4)}
    for (blocks, limit), one in found.items():
        at_once = min(limit, blocks)  # a request takes one block
        assert 1.5 * 8 / at_once <= one.replicas
        assert one.utilisation["engine"] == pytest.approx(1.5 * 8 / limit / one.replicas) and one.binds == "engine"

        def serve(load, blocks=blocks, limit=limit):
            return simulate(load, clock, num_blocks=blocks, config=SchedulerConfig(limit, 64)).served

        rate = service.rate / (one.replicas - 1)
        options = {"max_num_seqs": limit, "requests": 200}
        fewer = measure_steady_state(serve, rate, service.lengths, service.objective, **options)
        assert fewer.report.slo_attainment < MIN_SLO_ATTAINMENT
    with pytest.raises(InputError, match="does not fit into the cache: got 2 blocks, expected at least 3"):
        plan_measured(clock, replace(service, lengths=lambda random: (40, 1)), blocks=[9, 2], scheduler_config=STEPS)
    with pytest.raises(InputError, match="the load is too large"):
        plan_measured(clock, replace(service, rate=1e9), blocks=[9], scheduler_config=STEPS)
