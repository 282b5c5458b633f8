"""Published figures, reproduced by the cells of chapter 01."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import pytest
import yaml

PAGE = "01-introduction"
ORACLES = yaml.safe_load(Path(__file__).with_name("introduction.yml").read_text(encoding="utf-8"))


def growth(page):
    return [page.growth_20y[name] for name in ("peak FLOP/s", "memory bandwidth", "interconnect bandwidth")]


def chinchilla_rows(page):
    rows = ORACLES["SL03"]["inputs"]
    return [page.training_flops(N, D) for N, D in zip(rows["N"], rows["D"], strict=True)]


def states(page):
    sizes = ORACLES["ME01"]["inputs"]["N"]
    return [page.state_bytes[kept] * N / 1e9 for kept in ("bf16", "bf16 and fp32") for N in sizes]


def critical_tokens(page):
    inputs = ORACLES["CO09"]["inputs"]
    return [page.critical_tokens(inputs["peak"], link) for link in inputs["links"]]


COMPUTED = {
    "FT01": lambda page: [page.hours_between_failures, page.gpu_hours_between_failures],
    "FT07": lambda page: [page.task_growth, page.months_to_work_month],
    "FT08": growth,
    "FL07": lambda page: [page.gpt3_pf_days],
    "FL09": lambda page: [page.llama_flops],
    "SL02": lambda page: [page.loss_by_compute(1), page.twice_the_size],
    "SL03": chinchilla_rows,
    "SL05": lambda page: [page.loss(70e9, 1.4e12), page.loss(280e9, 300e9)],
    "SL06": lambda page: page.printed_fit,
    "SL08": lambda page: [page.refit[0], page.refit[1] / page.refit[0]],
    "ME01": states,
    "ME02": lambda page: [page.state_bytes["fp32"]],
    "TR09": lambda page: [page.deepseek_cost / 1e6, page.deepseek_hours / 1e6],
    "TR11": lambda page: list(page.mfu.values()),
    "CO09": critical_tokens,
}


def test_every_oracle_of_the_file_is_tried() -> None:
    assert COMPUTED.keys() == ORACLES.keys()


@pytest.mark.parametrize("name", ORACLES)
def test_the_page_reproduces(name: str, page) -> None:
    oracle = ORACLES[name]
    assert list(COMPUTED[name](page)) == pytest.approx(oracle["expected"], rel=oracle["rel_tol"])


def test_the_printed_mfu_is_not_what_rounding_gives(page) -> None:
    """The chapter says that one of the three printed percentages does not follow from the rounded rate beside it."""
    printed = ORACLES["TR11"]["expected"]
    off = [got for got, want in zip(page.mfu.values(), printed, strict=True) if round(got, 2) != want]
    assert off == [400 / 989]


def test_a_fit_s_optimum_is_a_minimum_of_its_own_loss(page) -> None:
    """The closed form against a search over N at the same compute."""
    compute = page.GOPHER_FLOPS
    best, _ = page.printed_fit
    losses = {N: page.loss(N, compute / (6 * N)) for N in (best * 1.02**k for k in range(-80, 81))}
    assert min(losses, key=losses.__getitem__) == pytest.approx(best, rel=0.011)


def test_at_the_crossover_time_and_memory_allow_the_same_model(page) -> None:
    for device in page.devices.values():
        peak, memory = page.training_peak(device), device.memory_bytes
        days = page.crossover_days(peak, memory)
        assert page.largest_by_time(peak, days) == pytest.approx(page.largest_by_memory(memory), rel=1e-12)
        assert page.largest_by_time(peak, 4 * days) == pytest.approx(2 * page.largest_by_memory(memory), rel=1e-12)


def test_the_answer_holds_what_the_prose_concludes(page) -> None:
    # "time stops you first", "the two ceilings lie within a factor", "the ridge rose ... then it stopped"
    assert page.by_time < page.by_memory
    assert page.by_time == pytest.approx(sqrt(0.4 * 989.4e12 * 30 * 86400 / 120), rel=1e-12)
    assert 1 < page.balance < 4
    assert page.tokens_in_node == pytest.approx(989.4e12 / 450e9, rel=1e-12)
    assert page.flops_missed == pytest.approx(page.overhead_s * 989.4e12, rel=1e-12)
    assert page.p1_N == pytest.approx(page.by_time * sqrt(page.p1_hours / 720), rel=1e-12)
    ridge = page.ridge
    assert ridge["V100"] < ridge["A100 80GB"] < ridge["H100"] > ridge["B200"] > ridge["H200"]
    # Problem 6: with every state on each GPU memory comes first, divided among them time does.
    assert page.by_memory < page.p6_time < 8 * page.by_memory
