"""Times by hand, figures by numpy, and a server that behaves as queues do."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_lab.configs.presets import preset
from mlsys_lab.errors import InputError
from mlsys_lab.flops.bounds import least_time, machine, serving_work
from mlsys_lab.flops.layout import Layout
from mlsys_lab.hardware import device
from mlsys_lab.inference.engine import Engine, Request, SamplingParams, SchedulerConfig
from mlsys_lab.inference.simulator import (
    Arrival,
    BoundClock,
    LineClock,
    Objective,
    Replica,
    Served,
    bursts,
    log_normal,
    percentile,
    poisson,
    report,
    simulate,
    take_turns,
)
from tests.inference.making import build, draw

H100 = machine(device("H100"), "bf16")


def test_two_requests_by_hand():
    """A second a step and a tenth for each new token, four tokens a step at most."""
    arrivals = [Arrival(0.0, (1,) * 6, 3), Arrival(1.5, (2,) * 2, 2)]
    done = simulate(arrivals, LineClock(1.0, 0.1, 0.0), num_blocks=10, block_size=4, config=SchedulerConfig(2, 4))
    first, second = done.served
    # 4 tokens of the prompt until 1.4, and 2 until 2.6; then one beside both of the other's until 3.9, two until 5.1.
    assert first.tokens_s == pytest.approx([2.6, 3.9, 5.1]) and second.tokens_s == pytest.approx([3.9, 5.1])
    assert (done.steps, done.busy_s, done.mean_sequences) == (4, pytest.approx(5.1), 1.5)
    assert first.ttft_s == pytest.approx(2.6) and first.tpot_s == pytest.approx(1.25)
    assert second.ttft_s == pytest.approx(2.4) and done.mean_tokens == pytest.approx((4 + 2 + 3 + 2) / 4)


def test_a_line_counts_steps_tokens_and_sequences():
    assert LineClock(1.0, 0.1, 0.01, 0.5)([(3, 0), (1, 20)], moved=10) == pytest.approx(1.0 + 0.4 + 0.3 + 1.0)


def test_an_idle_server_waits_for_the_next():
    done = simulate([Arrival(0.0, (1,), 1), Arrival(7.0, (2,), 1)], LineClock(1.0, 0.0, 0.0), num_blocks=4)
    assert [one.tokens_s for one in done.served] == [[1.0], [8.0]] and done.busy_s == 2.0


def test_figures_are_those_of_numpy():
    served = [Served(float(i), [i + 1.0 + 0.1 * i, i + 2.0, i + 2.5 + 0.2 * i]) for i in range(9)]
    figures = report(served, Objective(ttft_s=1.35, tpot_s=1.0))
    first = [one.tokens_s[0] - one.arrived_s for one in served]
    gaps = np.concatenate([np.diff(one.tokens_s) for one in served])
    each = [(one.tokens_s[-1] - one.tokens_s[0]) / 2 for one in served]
    for percent in (50, 95, 99):
        assert figures.ttft_s[percent] == pytest.approx(np.percentile(first, percent))
        assert figures.itl_s[percent] == pytest.approx(np.percentile(gaps, percent))
        assert figures.tpot_s[percent] == pytest.approx(np.percentile(each, percent))
    good = sum(a <= 1.35 and b <= 1.0 for a, b in zip(first, each, strict=True))
    assert 0 < good < 9 and figures.slo_attainment == good / 9
    assert figures.goodput == pytest.approx(good / figures.time_s)
    assert figures.tokens_per_s == pytest.approx(27 / (served[-1].tokens_s[-1]))
    assert percentile([3.0], 99) == 3.0
    with pytest.raises(InputError, match="a report on no request"):
        report([])


@pytest.mark.parametrize(
    ("model", "tensor", "expert"),
    [("llama3-8b", 1, 1), ("llama3-70b", 8, 1), ("deepseek-v2", 8, 1), ("deepseek-v2", 2, 4), ("mixtral-8x7b", 4, 8)],
)
def test_a_step_takes_what_the_bounds_say(model, tensor, expert):
    """Equal sequences in one step are what `serving_work` counts, on each of the ranks that divide the experts."""
    config = preset(model)
    clock = BoundClock(config, H100, tensor=tensor, expert=expert)
    for sequences, new, past in ((16, 1, 700), (8, 512, 0)):
        work = serving_work(
            config, Layout(data=expert, tensor=tensor, expert=expert), sequences=sequences / expert, tokens=new,
            past=past, weight_bytes=2, cache_bytes=2, node=8,
        )  # fmt: skip
        assert clock([(new, past)] * sequences, 0) == pytest.approx(least_time(work, H100).time_s, rel=1e-9)
    assert set(clock.spent_s) <= {"memory", "compute", "network"}
    half = BoundClock(config, H100, tensor=tensor, expert=expert, efficiency=0.5)
    assert half([(1, 9)], 0) == pytest.approx(2 * clock([(1, 9)], 0))
    assert clock([(1, 9)], 1000) > clock([(1, 9)], 0)


def test_ranks_that_divide_experts_wait_for_the_fullest():
    """Prompts bind compute here: nine on four ranks take as long as twelve, whose every rank has three."""
    clock = BoundClock(preset("deepseek-v2"), H100, tensor=2, expert=4)
    prompt = [(2000, 0)]
    nine, twelve = clock(prompt * 9, 0), clock(prompt * 12, 0)
    assert nine == pytest.approx(twelve) and set(clock.spent_s) == {"compute"}


def test_short_memory_costs_time_and_bursts_make_others_wait():
    clock, lengths = LineClock(0.01, 1e-4, 1e-7), log_normal(60, 40)
    load = poisson(6.0, 150, lengths)
    roomy = simulate(load, clock, num_blocks=2000, config=SchedulerConfig(32, 256))
    short = simulate(load, clock, num_blocks=24, config=SchedulerConfig(32, 256))
    assert roomy.preemptions == 0 < short.preemptions
    assert report(short.served).ttft_s[95] > report(roomy.served).ttft_s[95]
    together = simulate(bursts(6.0, 150, lengths, size=50), clock, num_blocks=2000, config=SchedulerConfig(32, 256))
    assert report(together.served).ttft_s[95] > 2 * report(roomy.served).ttft_s[95]
    assert all(len(one.tokens_s) == arrival.num_output_tokens for one, arrival in zip(roomy.served, load, strict=True))


def test_models_that_share_devices_wait_as_queues_theory_says():
    """Constant service D: a request stays D + λD²/(2(1 - λD)) in an M/D/1 queue (AlpaServe, arXiv:2302.11665, §3).

    Alone, each model has λ and D; on both devices together, twice the requests in half the time each.
    """
    rate = 0.6
    loads = [poisson(rate, 3000, lambda random: (1, 1), seed=seed) for seed in (1, 2)]
    one = {"num_blocks": 1000, "config": SchedulerConfig(1, 1)}
    alone = [simulate(load, lambda parts, moved: 1.0, **one) for load in loads]
    shared = take_turns([Replica(load, lambda parts, moved: 0.5, **one) for load in loads])
    for runs, each_s, together in ((alone, 1.0, rate), (shared, 0.5, 2 * rate)):
        stays = [served.ttft_s for run in runs for served in run.served]
        expected = each_s + together * each_s**2 / (2 * (1 - together * each_s))
        assert len(stays) == 6000 and sum(stays) / len(stays) == pytest.approx(expected, rel=0.1)
    assert sum(run.busy_s for run in shared) <= max(run.served[-1].tokens_s[-1] for run in shared)


def test_a_burst_of_one_model_uses_what_another_leaves_idle():
    """AlpaServe's comparison: two models of 13 GB, two devices of 16 GB, bursts; whole, or each divided over both."""
    config, v100 = preset("gpt3-6.7b"), machine(device("V100"), "fp16")
    loads = [bursts(2.0, 96, lambda random: (1024, 1), size=8, seed=seed) for seed in (1, 2)]
    place = {"num_blocks": 200, "config": SchedulerConfig(1, 1024)}
    alone = [simulate(load, BoundClock(config, v100), **place) for load in loads]
    halves = BoundClock(config, v100, tensor=2)
    shared = take_turns([Replica(load, halves, **place) for load in loads])
    means = [sum(served.ttft_s for run in runs for served in run.served) / 192 for runs in (alone, shared)]
    assert 1.5 < means[0] / means[1] < 2.5


def test_the_engine_takes_the_steps_that_were_simulated():
    model, config = build(), SchedulerConfig(3, 5)
    arrivals = [Arrival(0.0, tuple(draw(2 + seed % 5, seed=seed)), 1 + 3 * seed % 8) for seed in range(12)]
    engine, sizes = Engine(model, num_blocks=6, block_size=3, config=config), []
    for one in arrivals:
        engine.add_request(Request(one.prompt, one.num_output_tokens, SamplingParams(temperature=0)))
    while not engine.is_idle:
        engine.step()
        sizes.append(engine.last_scheduler_output.total_num_scheduled_tokens)
    simulated = simulate(arrivals, lambda parts, moved: 1.0, num_blocks=6, block_size=3, config=config)
    assert (simulated.steps, simulated.mean_tokens) == (len(sizes), sum(sizes) / len(sizes))
    assert simulated.preemptions > 0
