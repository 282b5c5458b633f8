"""Chapter 08: its published figures, and each of its other numbers by arithmetic of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.oracles.catalogue import oracles

PAGE = "08-scaling-laws"
PUBLISHED = yaml.safe_load(Path(__file__).parents[1].joinpath("scaling", "published.yml").read_text(encoding="utf-8"))
C = 0.40 * 989.4e12 * 64 * 30 * 86400
REFIT = (1.8172, 482.01, 2085.43, 0.3478, 0.3658)
PRINTED = (1.69, 406.4, 410.7, 0.34, 0.28)


def loss(law, n, d):
    E, A, B, alpha, beta = law
    return E + A / n**alpha + B / d**beta


def least(law, flops, low=1e7, high=1e13):
    """The best size and its loss by trying 20,000 of them."""
    sizes = np.geomspace(low, high, 20_001)
    losses = loss(law, sizes, flops / (6 * sizes))
    return float(sizes[losses.argmin()]), float(losses.min())


def reaching(law, target):
    """The FLOPs whose best loss is `target`, by bisection."""
    low, high = 1e15, 1e30
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if least(law, middle, 1e5, 1e15)[1] > target else (low, middle)
    return low


COMPUTED = {
    "SL01": lambda page: [page.KAPLAN_PARAMS(1.5e9), page.KAPLAN_PARAMS(175e9), page.KAPLAN_TOKENS(300e9)],
    "SL02": lambda page: [page.KAPLAN_COMPUTE(1), 2**page.KAPLAN_PARAMS.exponent],
    "SL05": lambda page: [page.chinchilla, page.gopher],
    "SL06": lambda page: [page.HOFFMANN_2022.frontier().a, None, page.printed.n_params, page.printed.tokens],
    "SL08": lambda page: [page.BESIROGLU_2024.frontier().a, page.refit.n_params, page.refit.tokens_per_param],
}


@pytest.mark.parametrize("name", COMPUTED)
def test_the_page_reproduces(name: str, page) -> None:
    oracle, computed = oracles()[name], COMPUTED[name](page)
    pairs = [(float(got), want) for got, want in zip(computed, oracle.figures, strict=True) if got is not None]
    assert [got for got, _ in pairs] == pytest.approx([want for _, want in pairs], rel=oracle.rel_tol)


def test_exponents_of_the_papers_tables_are_those_that_it_reports(page) -> None:
    """By NumPy's own line through the logarithms; the reported ones are the oracle's."""
    for name, (fit, off) in page.through.items():
        rows = page.HOFFMANN_TABLES[name]
        slopes = [np.polyfit(np.log(rows.flops), np.log(column), 1)[0] for column in (rows.n_params, rows.tokens)]
        assert [fit.a, fit.b] == pytest.approx(slopes, rel=1e-9)
        oracle = PUBLISHED[name.replace(" ", "_")]
        assert list(page.reported[name]) == oracle["expected"][:2]
        assert slopes == pytest.approx(oracle["expected"][:2], rel=oracle["rel_tol"])
        assert off == pytest.approx(rows.flops / (6 * rows.n_params * rows.tokens), rel=1e-12)


def test_one_row_of_the_appendix_is_off_by_ten(page) -> None:
    inputs = PUBLISHED["approach_3"]["inputs"]
    row = inputs["misprinted_row"]
    assert page.misprinted == pytest.approx(6 * inputs["N"][row] * inputs["D"][row], rel=1e-12)
    assert page.misprinted / inputs["C"][row] == pytest.approx(10, rel=5e-3)
    corrected = [*inputs["C"]]
    corrected[row] = page.misprinted
    assert page.corrected_a == pytest.approx(np.polyfit(np.log(corrected), np.log(inputs["N"]), 1)[0], rel=1e-9)
    assert page.corrected_a == pytest.approx(page.through["approach 3"][0].a, rel=2e-3)  # "hardly notices"


def test_real_runs_are_fitted_as_a_line_through_logarithms_fits_them(page) -> None:
    oracle = PUBLISHED["cerebras_gpt"]
    flops, measured = np.array(oracle["inputs"]["C"]), np.array(oracle["inputs"]["L"])
    floor = oracle["inputs"]["E"]
    assert list(page.above) == [0, floor, 1]
    told = {}
    for guess, power in page.above.items():
        slope, level = np.polyfit(np.log(flops[:-1]), np.log(measured[:-1] - guess), 1)
        assert power.exponent == pytest.approx(slope, rel=1e-9)
        told[guess] = guess + np.exp(level) * flops[-1] ** slope
        assert guess + power(flops[-1]) == pytest.approx(told[guess], rel=1e-9)
        seen = guess + np.exp(level) * flops[:-1] ** slope
        assert np.abs(seen / measured[:-1] - 1).max() <= page.worst * (1 + 1e-9)
    assert page.all_seven == pytest.approx(np.polyfit(np.log(flops), np.log(measured - floor), 1)[0], rel=1e-9)
    assert min(told, key=lambda guess: abs(told[guess] - measured[-1])) == 0  # "no floor at all, comes nearest"
    assert page.by_hand == pytest.approx(np.log(2.608 / 1.572) / np.log(2.3e22 / 2.6e18), rel=1e-12)
    assert page.growth == pytest.approx(2.3e22 / 2.6e18) and page.ends == sorted(page.ends)
    assert page.counted[[0, -1]] == pytest.approx([6 * 111e6 * 2.22e9 / 2.6e18, 6 * 13e9 * 2.57e11 / 2.3e22])


def test_the_correction_is_right_in_both_directions(page) -> None:
    """Rounded exponents give 32 billion, those of the paper's source the 40 that it prints."""
    assert page.printed.n_params == pytest.approx(least(PRINTED, 5.76e23)[0], rel=1e-3)
    precise = (1.69, 406.4, 410.7, 0.3392, 0.2849)
    assert page.precise.n_params == pytest.approx(least(precise, 5.76e23)[0], rel=1e-3)
    assert round(page.precise.n_params / 1e9) == 40 and round(page.printed.n_params / 1e9) == 32
    assert round(0.2849 / (0.3392 + 0.2849), 2) == 0.46


def test_the_answer_is_the_least_of_many_tries(page) -> None:
    assert pytest.approx(C, rel=1e-12) == page.C
    size, lowest = least(REFIT, C)
    assert page.best.n_params == pytest.approx(size, rel=1e-3)
    assert page.best.tokens == pytest.approx(C / 6 / size, rel=1e-3)
    assert page.best.loss == pytest.approx(lowest, rel=1e-6)
    other = least(PRINTED, C)[0]
    assert page.at_printed == pytest.approx(loss(REFIT, other, C / 6 / other) - lowest, rel=1e-2)
    kaplan = 1.3e9 * (C / 8.64e19) ** 0.73
    assert page.by_kaplan == pytest.approx(kaplan, rel=1e-12)
    assert page.at_kaplan == pytest.approx(loss(REFIT, kaplan, C / 6 / kaplan) - lowest, rel=1e-6)


def test_what_a_wrong_size_wastes(page) -> None:
    size, lowest = least(REFIT, C)
    for factor, spent in ((2, page.spent), (10, page.spent_ten)):
        worst = max(loss(REFIT, s, C / 6 / s) for s in (size * factor, size / factor))
        assert spent == pytest.approx(reaching(REFIT, worst), rel=1e-3)
    assert page.twice_off == pytest.approx(
        max(loss(REFIT, s, C / 6 / s) for s in (2 * size, size / 2)) - lowest, rel=1e-3
    )


def test_the_experiment_finds_its_truth_and_the_form_makes_it_sharper(page) -> None:
    truth = REFIT[4] / (REFIT[3] + REFIT[4])
    assert page.a_iso.low < truth < page.a_iso.high
    assert page.a_para.low < truth < page.a_para.high
    assert page.width_para < page.width_iso
    assert page.spread_N == pytest.approx(1000 ** float(page.a_iso.high - page.a_iso.low))
    assert all(parabola.has_minimum for parabola in page.iso.parabolas)


def test_serving_moves_the_optimum_as_a_search_does(page) -> None:
    E, A, B, alpha, beta = REFIT
    sizes = np.geomspace(1e9, 1e12, 100_001)
    left = page.best.loss - E - A / sizes**alpha
    with np.errstate(invalid="ignore"):
        tokens = (B / np.where(left > 0, left, np.nan)) ** (1 / beta)
    total = 6 * sizes * tokens + 2 * sizes * 1e13
    at = np.nanargmin(total)
    assert page.busy.n_params == pytest.approx(sizes[at], rel=1e-3)
    assert page.busy.total_flops == pytest.approx(total[at], rel=1e-6)
    assert page.naive == pytest.approx(C + 2 * page.best.n_params * 1e13, rel=1e-9)


def test_the_problems_by_another_way(page) -> None:
    E, _, B, alpha, beta = REFIT
    lowest = least(REFIT, C)[1]
    assert page.terms[0] / sum(page.terms) == pytest.approx(beta / (alpha + beta), rel=1e-9)
    assert page.p2_factor == pytest.approx(reaching(REFIT, lowest - 0.1) / C, rel=1e-3)
    assert page.p2_half == pytest.approx(reaching(REFIT, E + (lowest - E) / 2) / C, rel=1e-3)
    assert page.p3_loss == pytest.approx(loss(REFIT, C / 6e11, 1e11), rel=1e-12)
    assert page.p3_limit == pytest.approx(E + B / 1e11**beta, rel=1e-9)
    assert loss(REFIT, page.p3_even, 1e11) == pytest.approx(lowest, rel=1e-6)
    half, tokens = page.best.n_params / 2, page.p4_half
    assert loss(REFIT, half, tokens) == pytest.approx(lowest, rel=1e-6)
    assert 6 * half * tokens + 2 * half * page.p4_even == pytest.approx(C + 4 * half * page.p4_even, rel=1e-9)
    best = least(REFIT, 1e23)
    wrong = best[0] * 1000**0.02
    assert page.p5_wrong == pytest.approx(loss(REFIT, wrong, 1e23 / 6 / wrong) - best[1], rel=2e-2)
