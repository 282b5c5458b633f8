"""Published figures, reproduced by the cells of chapter 01."""

from __future__ import annotations

from math import sqrt

import pytest

from tests.oracles.catalogue import oracles

PAGE = "01-introduction"


def growth(page):
    return [page.growth_20y[name] for name in ("peak FLOP/s", "memory bandwidth", "interconnect bandwidth")]


def chinchilla_rows(page):
    rows = oracles()["SL03"].inputs
    return [page.training_flops(N, D) for N, D in zip(rows["N"], rows["D"], strict=True)]


def states(page):
    sizes = oracles()["ME01"].inputs["N"]
    return [page.state_bytes[kept] * N / 1e9 for kept in ("bf16", "bf16 and fp32") for N in sizes]


def critical_tokens(page):
    inputs = oracles()["CO09"].inputs
    return [page.critical_tokens(inputs["C"], link) for link in inputs["W"]]


# The page gives some of an entry's figures only: None stands for the others.
COMPUTED = {
    "FT01": lambda page: [page.hours_between_failures, page.gpu_hours_between_failures / 1e3],
    "FT08": growth,
    "FL07": lambda page: [page.gpt3_pf_days],
    "FL09": lambda page: [page.llama_flops],
    "SL02": lambda page: [page.loss_by_compute(1), page.twice_the_size],
    "SL03": chinchilla_rows,
    "SL05": lambda page: [page.loss(70e9, 1.4e12), page.loss(280e9, 300e9)],
    "SL06": lambda page: [None, None, *page.printed_fit],
    "SL08": lambda page: [None, page.refit[0], page.refit[1] / page.refit[0]],
    "ME01": states,
    "ME02": lambda page: [page.state_bytes["fp32"]],
    "TR09": lambda page: [page.deepseek_cost / 1e6, page.deepseek_hours / 1e6],
    "TR11": lambda page: list(page.mfu.values()),
    "CO09": lambda page: [*critical_tokens(page), None],
}


@pytest.mark.parametrize("name", COMPUTED)
def test_the_page_reproduces(name: str, page) -> None:
    oracle, computed = oracles()[name], COMPUTED[name](page)
    pairs = [(got, want) for got, want in zip(computed, oracle.figures, strict=True) if got is not None]
    assert [float(got) for got, _ in pairs] == pytest.approx([want for _, want in pairs], rel=oracle.rel_tol)


def test_tr11_contradicts_its_own_rate(page) -> None:
    """The chapter says that one of the three printed percentages does not follow from the rounded rate beside it."""
    printed = oracles()["TR11"].expected
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
