"""What chapter 13 computes and concludes, against published figures and against arithmetic written out here."""

from __future__ import annotations

import heapq
import math
from itertools import pairwise

import numpy as np
import pytest

from tests.oracles.catalogue import oracles
from tests.oracles.conftest import CHAPTERS

PAGE = "13-serving"

PEAK, BANDWIDTH, MEMORY, LINK, NETWORK = 989.4e12, 3.35e12, 80 * 2**30, 450e9, 50e9  # an H100
D, LAYERS, HEADS, GROUPS, HEAD, F, V = 8192, 80, 64, 8, 128, 28_672, 128_256  # Llama 3 70B
CARDS, PROMPT, ANSWER, EFFICIENCY = 8, 1000, 120, 0.6
BLOCKS = LAYERS * (2 * D * D + 2 * D * GROUPS * HEAD + 3 * D * F)
NORMS = (2 * LAYERS + 1) * D
TOKEN = 2 * LAYERS * 2 * GROUPS * HEAD  # bytes of cache


def exactly(value):
    return pytest.approx(value, rel=1e-9)


def flops(new: int, past: int) -> float:
    """FLOPs of new tokens of a sequence after cached ones, with logits for the last."""
    pairs = new * past + new * (new + 1) / 2
    return 2 * new * BLOCKS + 2 * V * D + 4 * LAYERS * HEADS * HEAD * pairs


def step_s(parts: list[tuple[int, int]], efficiency: float = EFFICIENCY) -> float:
    """Least seconds of a step on eight cards, over the efficiency: by compute, memory, links."""
    new, seen = sum(one for one, _ in parts), sum(sum(part) for part in parts)
    compute_s = sum(flops(*part) for part in parts) / CARDS / PEAK
    memory_s = (2 * ((BLOCKS + V * D) / CARDS + NORMS) + TOKEN * seen / CARDS) / BANDWIDTH
    link_s = LAYERS * 2 * 2 * (CARDS - 1) / CARDS * new * D * 2 / LINK  # two all-reduces a layer
    return max(compute_s, memory_s, link_s) / efficiency


REQUEST = flops(PROMPT, 0) + ANSWER * flops(1, PROMPT + ANSWER - 1)


def replay(arrivals, budget: int) -> list[tuple[float, list[float]]]:
    """Arrival and times of tokens of each request: first come, first served, with room for all, one token a writer."""
    coming, running, now, done = sorted(arrivals, key=lambda one: one.time_s), [], 0.0, []
    while coming or running:
        if not running:
            now = max(now, coming[0].time_s)
        while coming and coming[0].time_s <= now:
            one = coming.pop(0)
            running.append({"pending": len(one.prompt), "past": 0, "writes": one.num_output_tokens, "times": []})
            done.append((one.time_s, running[-1]["times"]))
        left = budget - sum(one["pending"] == 1 and one["past"] > 0 for one in running)
        fed = []
        for one in running:
            writes = one["pending"] == 1 and one["past"] > 0
            count = 1 if writes else min(one["pending"], left)
            left -= 0 if writes else count
            if count:
                fed.append((one, count))
        now += step_s([(count, one["past"]) for one, count in fed])
        for one, count in fed:
            one["past"] += count
            one["pending"] -= count
            if not one["pending"]:
                one["times"].append(now)
                one["pending"] = 1
        running = [one for one in running if len(one["times"]) < one["writes"]]
    return done


def tail(done, percent: float) -> tuple[float, float]:
    """Percentile of times to the first token and of times per token."""
    first = [times[0] - came for came, times in done]
    each = [(times[-1] - times[0]) / (len(times) - 1) for _, times in done if len(times) > 1]
    return float(np.percentile(first, percent)), float(np.percentile(each, percent))


def test_in10_is_quoted_as_printed() -> None:
    text = (CHAPTERS / f"{PAGE}.md").read_text("utf-8")
    low, high = oracles()["IN10"].figures
    assert f'glue("held_low", "{low}"' in text and f'glue("held_high", "{high}"' in text


def test_in03_is_the_page_s_published_ratio_of_servers(page) -> None:
    oracle = oracles()["IN03"]
    assert page.published_readers == pytest.approx(oracle.figures[2], rel=oracle.rel_tol)


def test_the_bounds(page) -> None:
    tokens = PROMPT + ANSWER
    assert page.alone.bounds["decode"].time_s == exactly(step_s([(1, tokens - 1)], 1.0))
    assert page.prompt.bounds["prefill"].time_s == exactly(step_s([(PROMPT, 0)], 1.0))
    assert page.full.bounds["decode"].time_s == exactly(step_s([(1, tokens - 1)] * page.most, 1.0))
    room = CARDS * 0.9 * MEMORY - 2 * (BLOCKS + 2 * V * D)
    assert page.most == pytest.approx(room / TOKEN / tokens, rel=2e-3)  # norms on every card
    assert page.flops == exactly(REQUEST)
    assert page.peak / page.flops == exactly(CARDS * PEAK / REQUEST)
    assert page.flops == pytest.approx(2 * 70e9 * tokens, rel=0.02)  # "about 2N(n + m)"


def test_tensor_parallelism_adds_160_all_reduces(page) -> None:
    """Two a layer, each after the other: +1.6 ms on 5.2 at 10 µs, and as long as the arithmetic of a prompt."""
    assert page.num_all_reduces == 2 * LAYERS == 160
    assert page.added_s["a round figure"] == exactly(1.6e-3)
    assert page.alone.bounds["decode"].time_s == pytest.approx(5.2e-3, rel=0.01)
    assert page.prefill_reduce_s == exactly(160 * 1.75 * PROMPT * 2 * D / 242.45e9)
    compute_s = flops(PROMPT, 0) / CARDS / PEAK
    assert page.prefill_in_turn == exactly(compute_s / (compute_s + page.prefill_reduce_s))


def test_static_and_continuous_batches(page) -> None:
    free = [0] * page.slots
    for writes in page.answers:
        heapq.heappush(free, heapq.heappop(free) + writes)
    assert page.continuous == max(free)
    assert page.static == 8 * 120


def test_a_shared_prefix_is_computed_once(page) -> None:
    written = 120 * (ANSWER - 1)  # the last token is not fed
    assert page.fed_tokens[0] == exactly(120 * PROMPT + written)
    assert page.fed_tokens[800] == exactly(800 + 120 * (PROMPT - 800) + written)
    done = replay(page.chats(0), 1024)
    assert page.prefix_ttft[0] == exactly(tail(done, 95)[0])


def test_an_agent_session(page) -> None:
    """30 turns of 1,500 + 100 tokens after 8,000: every turn's prompt from scratch, or its tool result alone."""
    ends = [8000 + 1600 * turn + 1500 for turn in range(30)]
    assert page.uncached_flops == exactly(sum(flops(end, 0) for end in ends))
    assert page.cached_flops == exactly(flops(9500, 0) + sum(flops(1500, end - 1500) for end in ends[1:]))
    assert page.context == 56_000
    assert page.session_bytes == 56_000 * TOKEN


def test_tiers_of_the_cache(page) -> None:
    each = 56_000 * TOKEN / CARDS
    assert list(page.load_s.values()) == exactly([each / rate for rate in (63e9, NETWORK, 7e9)])
    assert page.even_bytes_per_s == exactly(each * EFFICIENCY * CARDS * PEAK / flops(56_000, 0))


def test_routing_by_prefix_computes_each_prefix_once(page) -> None:
    seen = len({customer for customer, _ in page.asked})
    assert page.hit_rate["by prefix"] == pytest.approx((240 - seen) * (3000 // 16 * 16) / 240 / 3200, rel=0.02)
    assert 24 / 4 < 2400 * 16 / 3000 < 24  # prefixes that fit on a replica


def test_budgets(page) -> None:
    for budget, run in page.budgets.items():
        done = replay(page.load, budget)
        gaps = [after - before for _, times in done for before, after in pairwise(times)]
        assert run.itl_s[99] == exactly(float(np.percentile(gaps, 99)))
        assert (run.ttft_s[95], run.tpot_s[95]) == exactly(tail(done, 95))
    assert step_s([(round(page.largest_budget), 0)]) == pytest.approx(50e-3, rel=0.02)


def test_load_and_latency(page) -> None:
    for rate, run in page.curve.items():
        arrivals = page.poisson(rate, 3000, page.lengths, seed=13)
        done = replay(arrivals, 1024)
        assert (run.ttft_s[95], run.tpot_s[95]) == exactly(tail(done, 95))
        stays = [times[-1] - came for came, times in done]
        assert page.inside[rate] == exactly(rate * np.mean(stays))
        assert run.tpot_s[95] < 0.05
    assert page.curve[page.best].slo_attainment >= 0.95 > page.curve[page.lost].slo_attainment


def test_recompute_and_swap(page) -> None:
    back = page.ways["Llama 3 70B, eight GPUs"]
    assert back["recompute"] == exactly(flops(1000, 0) / CARDS / PEAK)
    assert back["swap"] == exactly(2 * 1000 * TOKEN / CARDS / 63e9)


def test_drafts_pay_until_steps_are_compute_bound(page) -> None:
    written = sum(0.7**i for i in range(5))
    for batch, gain in page.gains.items():
        checking, plain = step_s([(5, 1060)] * batch), step_s([(1, 1060)] * batch)
        assert gain == exactly(written * plain / checking)


def test_many_adapters_on_one_base(page) -> None:
    matrices = [(D, D), (D, GROUPS * HEAD), (D, GROUPS * HEAD), (D, D), (D, F), (D, F), (F, D)]
    adapter = 2 * LAYERS * 16 * sum(map(sum, matrices))
    weights, cache = 2 * (BLOCKS + V * D + NORMS), TOKEN * (PROMPT + 1)  # a text's is read, a token's written
    assert (page.adapter, page.adapter_texts) == (exactly(adapter), exactly(adapter / TOKEN / (PROMPT + ANSWER)))
    assert page.merged_s == exactly(32 * (weights + cache) / CARDS / BANDWIDTH)
    assert page.batched_s == exactly((weights + 32 * (cache + adapter)) / CARDS / BANDWIDTH)


def test_disaggregated_servers(page) -> None:
    assert page.sent_s == exactly(PROMPT * TOKEN / CARDS / NETWORK)
    assert page.ratio == exactly(step_s([(PROMPT, 0)]) * 256 / (step_s([(1, 1060)] * 256) * ANSWER))


def test_groups_that_share_a_load(page) -> None:
    """Requests in turn to each of four groups, each served alone; disaggregated, bytes sent by hand."""
    for budget, run in zip((8192, 1024, 256), page.kept_by.values(), strict=False):
        done = [one for first in range(4) for one in replay(page.busy[first::4], budget)]
        assert (run.ttft_s[95], run.tpot_s[95]) == exactly(tail(done, 95))
    assert page.apart.sent_bytes == TOKEN * sum(len(one.prompt) for one in page.busy if one.num_output_tokens > 1)
    assert page.wire.bytes_per_s == CARDS * NETWORK


def test_models_that_share_gpus(page) -> None:
    """Equal services, first come first served: one queue for each model, or one of both at twice the speed."""
    service_s = page.one_each([(PROMPT, 0)], 0)

    def mean_wait(arrivals, each_s: float) -> float:
        free, stays = 0.0, []
        for came in sorted(one.time_s for one in arrivals):
            free = max(free, came) + each_s
            stays.append(free - came)
        return float(np.mean(stays))

    alone, both = page.mean_s.values()
    assert alone == exactly(np.mean([mean_wait(load, service_s) for load in page.loads]))
    assert both == exactly(mean_wait([one for load in page.loads for one in load], page.halves([(PROMPT, 0)], 0)))
    assert page.halves([(PROMPT, 0)], 0) == exactly(service_s / 2)


def test_offload(page) -> None:
    """OPT-30B in 16 bits over PCIe 3.0: matrices and norms once a step, caches of each sequence, prompts by compute."""
    width, layers, pcie = 7168, 48, 15.75e9
    weights = 2 * (layers * (12 * width**2 + 13 * width) + 50_257 * width + 2 * width)
    token = 2 * layers * 2 * width
    for batch, cached in ((1, 0), (4, 0), (144, 1)):
        prefill_s = 2 * (layers * 12 * width**2 * 512) * batch / 65e12
        steps_s = [(weights + cached * batch * past * token) / pcie for past in range(512, 543)]
        expected = batch * 32 / (max(prefill_s, weights / pcie) + sum(steps_s))
        assert page.speeds[batch] == pytest.approx(expected, rel=0.02)  # attention of the prompts


def test_costs(page) -> None:
    second = 8 * 2.50 / 3600
    assert page.best_cost == exactly(second / (page.best * ANSWER) * 1e6)
    assert page.cost(1, 40) == exactly(second / 40 * 1e6)


def test_deepseek_s_day(page) -> None:
    """As printed: 226.75 nodes at 2 dollars per GPU-hour are 87,072 dollars; 56.3 % of the input was cached."""
    assert page.deepseek_day == exactly(87_072)
    assert page.deepseek_cost == exactly(87_072 / 168_000)
    cached = page.DEEPSEEK_HIT / page.DEEPSEEK_INPUT
    assert cached == pytest.approx(0.563, abs=1e-3)


def test_latent_attention_is_copied_by_tensor_parallelism(page) -> None:
    left = 0.9 * 8 * page.hardware.device("H200").memory_bytes - 671e9
    assert page.tp_tokens == pytest.approx(left / 8 / (61 * 576 * 2), rel=2e-3)
    # Queries, keys and values through latent vectors of 1,536 and 512, 64 numbers with positions, and the output.
    d, heads = 7168, 128
    latent = d * 1536 + 1536 * heads * 192 + d * (512 + 64) + 512 * heads * 256 + heads * 128 * d
    assert page.dp_tokens == pytest.approx((left - 7 * 61 * latent) / (61 * 576 * 2), rel=2e-3)


def test_all_to_alls_of_a_decode_step(page) -> None:
    """DeepEP V1's table for 128 ranks, in the 61 - 3 layers with experts."""
    assert page.ep_step_s == exactly((61 - 3) * (192e-6 + 369e-6))


def test_the_design_problem(page) -> None:
    decodes = 300 * flops(1, 6150)
    each = 0.8 * flops(1000, 5000) + 0.2 * flops(6000, 0) + decodes
    node = 0.5 * CARDS * PEAK / each
    assert page.p8_node == exactly(node)
    assert page.p8_nodes == math.ceil(40 / (0.75 * node)) == 5
    assert page.p8_inside == exactly(8 * 12.5)
    assert page.p8_cache == exactly(100 * 6300 * TOKEN)
    assert page.p8_cost == exactly(5 * 20 / 3600 / 12_000 * 1e6)


def test_problems(page) -> None:
    one = 2 * 500 * (6.98e9 + 7.50e9)  # prompts without the head
    assert page.p1_rate == pytest.approx(0.5 * PEAK / one, rel=0.03)
    assert page.p1_inside == exactly(page.p1_rate * 15)
    assert page.p2_static == 50 + 40 + 60
    assert page.p2_continuous == 130  # 10, 20, 40, 60 in one slot, 50, 30 in the other
    assert page.p3_share == exactly(31.5 / 431.5)
    assert page.p4_chunks == math.ceil(8000 / (0.03 * 0.5 * PEAK / 16e9 - 100))
    assert page.p5_even == exactly(131_072 / 8e9 * 0.5 * 989e12)
    assert page.percentile(page.p6_gaps, 99) == np.percentile(page.p6_gaps, 99) == 400
    assert page.p7_cost == exactly(6 / 3600 / 1500 * 1e6)
