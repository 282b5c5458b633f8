from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.scaling import ChinchillaLaw, KaplanLaw, Runs, fit_parabola
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.isoflop import LAWS, IsoFlop, isoflop_data, isoflop_table, law_constants
from tests.pages import read_letter_sizes


def figure(law: str = "Chinchilla", **state) -> str:
    data = isoflop_data(law) | state
    return element("isoflop", fallback=isoflop_table(data), **data)._repr_html_()


def random_law(rng: random.Random) -> ChinchillaLaw | KaplanLaw:
    if rng.random() < 0.5:
        return ChinchillaLaw(
            E=rng.choice([0.0, rng.uniform(0.5, 2.5)]),
            A=10 ** rng.uniform(1, 4),
            B=10 ** rng.uniform(1, 4),
            alpha=rng.uniform(0.1, 0.9),
            beta=rng.uniform(0.1, 0.9),
        )
    return KaplanLaw(
        N_c=10 ** rng.uniform(12, 15),
        D_c=10 ** rng.uniform(12, 15),
        alpha_N=rng.uniform(0.03, 0.2),
        alpha_D=rng.uniform(0.03, 0.2),
    )


def test_six_constants_say_what_the_law_says() -> None:
    for law in LAWS.values():
        c = law_constants(law)
        for n_params, tokens in ((1e8, 1e9), (7e10, 1.4e12)):
            terms = c["A"] / n_params ** c["alpha"] + c["B"] / tokens ** c["beta"]
            assert c["E"] + terms ** c["gamma"] == pytest.approx(float(law.loss(n_params, tokens)), rel=1e-12)


def test_the_table_holds_each_law_s_optimum_for_gopher_s_budget() -> None:
    text = isoflop_table(isoflop_data())
    for name, law in LAWS.items():
        split = law.frontier()
        n_params, tokens = float(split.params(5.76e23)), float(split.tokens(5.76e23))
        assert f"<td>{name}</td><td>5.76e+23</td><td>{n_params:.3g}</td><td>{tokens:.3g}</td>" in text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: isoflop_data("Chinchila"),
            "law: got 'Chinchila', expected one of .*did you mean 'Chinchilla'",
        ),
        (lambda: isoflop_data(budget_flops=1e30), r"budget out of range: got 1e\+30 FLOPs"),
        (lambda: isoflop_data(budget_flops=float("nan")), "budget out of range"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = IsoFlop.of("Kaplan", budget_flops=1e21)
    assert widget._esm == esm("isoflop")
    assert (widget.law, widget.budget, widget.runs) == ("Kaplan", 1e21, False)
    site = re.search(r'application/json">(.*?)</script>', figure("Kaplan"))
    assert site and json.loads(site.group(1))["laws"] == widget.laws


def test_the_figure_and_python_agree_on_losses_and_optima(open_module) -> None:
    rng = random.Random(11)
    cases = [(random_law(rng), 10 ** rng.uniform(17, 26), 10 ** rng.uniform(6, 13)) for _ in range(400)]
    page = open_module("isoflop", "lossOf", "optimum", "budgetOf")
    got = page.evaluate(
        """(cases) => cases.map(([law, C, N]) => {
          const best = optimum(law, C);
          return [best.N, best.D, best.loss, lossOf(law, N, C / (6 * N)), budgetOf(law, best.N)];
        })""",
        [(law_constants(law), flops, n_params) for law, flops, n_params in cases],
    )
    for (law, flops, n_params), values in zip(cases, got, strict=True):
        split = law.frontier()
        best_n, best_d = float(split.params(flops)), float(split.tokens(flops))
        expected = [best_n, best_d, float(law.loss(best_n, best_d)), float(law.loss(n_params, flops / (6 * n_params)))]
        # The exponents reach 30 and more where a law is steep: one rounding of N_opt's logarithm is 1e-15 · 30.
        assert values == pytest.approx([*expected, flops], rel=1e-12)


def test_the_figure_s_parabola_is_the_package_s(open_module) -> None:
    rng = random.Random(12)
    cases = []
    for _ in range(300):
        law, flops = random_law(rng), 10 ** rng.uniform(17, 26)
        split = law.frontier()
        best = float(law.loss(split.params(flops), split.tokens(flops)))
        cases.append((law, flops, rng.uniform(0, 0.05) * best, rng.randrange(2**31)))
    page = open_module("isoflop", "noisyRuns", "parabola")
    got = page.evaluate(
        """(cases) => cases.map(([law, C, noise, seed]) => {
          const runs = noisyRuns(law, C, noise, seed);
          return { runs, ...parabola(runs) };
        }).map(({ runs, N, loss, value }) => ({ runs, N, loss, ends: [runs[0].N, runs.at(-1).N].map(value) }))""",
        [(law_constants(law), flops, noise, seed) for law, flops, noise, seed in cases],
    )
    without = 0
    for (_law, flops, _noise, _seed), one in zip(cases, got, strict=True):
        sizes = np.array([run["N"] for run in one["runs"]], dtype=float)
        expected = fit_parabola(Runs(sizes, flops / (6 * sizes), np.array([run["loss"] for run in one["runs"]])))
        # Both solve least squares over 9 points, by other routes; a flat bottom magnifies their roundings.
        assert one["ends"] == pytest.approx(expected(sizes[[0, -1]]).tolist(), rel=1e-9)
        if expected.curvature > 0:
            assert one["N"] == pytest.approx(expected.n_opt, rel=1e-6)
            assert one["loss"] == pytest.approx(expected.loss_opt, rel=1e-9)
        else:
            assert one["N"] is None
            without += 1
    assert without > 0


def test_the_runs_noise_is_normal_and_comes_from_the_seed(open_module) -> None:
    page = open_module("isoflop", "deviates")
    draw = "(seed) => { const next = deviates(seed); return Array.from({ length: 20000 }, () => next()); }"
    first, again, other = (np.array(page.evaluate(draw, seed)) for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()
    # Within four standard errors of a mean of 0, a spread of 1 and a fourth moment of 3.
    assert abs(first.mean()) < 4 / 20_000**0.5 and abs(first.std() - 1) < 4 / 40_000**0.5
    assert abs((first**4).mean() - 3) < 4 * (96 / 20_000) ** 0.5


def test_the_keyboard_spends_another_budget(open_page) -> None:
    page = open_page(figure(budget=1e21))
    verdict, least = page.locator("mlsys-isoflop .verdict"), page.locator("mlsys-isoflop circle.least")
    before = float(least.get_attribute("cx"))
    page.get_by_label("Budget").focus()
    page.keyboard.press("ArrowRight")
    flops = 10**21.05
    split = LAWS["Chinchilla"].frontier()
    assert page.get_by_label("Budget").get_attribute("aria-valuetext") == "1.12·10²¹ FLOP"
    assert f"{float(split.tokens_per_param(flops)):.3g} tokens per parameter" in verdict.inner_text()
    assert float(least.get_attribute("cx")) > before
    page.keyboard.press("End")
    assert "10²⁶ FLOP" in page.locator("mlsys-isoflop .detail").last.inner_text()


def test_dragging_across_the_picture_moves_the_minimum_under_the_pointer(open_page) -> None:
    page = open_page(figure(budget=1e19))
    box = page.locator("mlsys-isoflop svg[role=img]").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 120, steps=4)
    page.mouse.up()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 120)
    at = float(page.locator("mlsys-isoflop circle.least").get_attribute("cx"))
    assert at == pytest.approx(box["width"] * 0.6, abs=1)


def test_constants_of_one_s_own_and_what_no_law_has(open_page) -> None:
    page = open_page(figure())
    page.get_by_label("β").fill("0.33")
    page.get_by_label("β").press("Tab")
    assert page.get_by_label("Law").input_value() == "own"
    law = ChinchillaLaw(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.33)
    ratio = float(law.frontier().tokens_per_param(5.76e23))
    assert f"{ratio:.3g} tokens per parameter" in page.locator("mlsys-isoflop .verdict").inner_text()
    for typed, got in (("-1", "−1"), ("", "nothing")):
        page.get_by_label("β").fill(typed)
        page.get_by_label("β").press("Tab")
        assert page.locator("mlsys-isoflop .error").inner_text() == f"β: got {got}, expected a number above 0"
        assert not page.locator("mlsys-isoflop svg[role=img]").is_visible()
    page.get_by_label("Law").select_option("Kaplan")
    assert page.locator("mlsys-isoflop .error").inner_text() == ""
    assert page.locator("mlsys-isoflop svg[role=img]").is_visible()


def test_noisy_runs_move_the_parabola_s_minimum(open_page) -> None:
    page = open_page(figure(budget=1e20, noise=0.0))
    assert page.locator("mlsys-isoflop circle.run").count() == 0
    page.get_by_label("noisy runs").check()
    assert page.locator("mlsys-isoflop circle.run").count() == 9
    exact = page.locator("mlsys-isoflop .fit-words").inner_text()
    page.get_by_label("Noise").focus()
    page.keyboard.press("End")
    noisy = page.locator("mlsys-isoflop .fit-words").inner_text()
    page.get_by_role("button", name="run again").click()
    assert len({exact, noisy, page.locator("mlsys-isoflop .fit-words").inner_text()}) == 3


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("law", LAWS)
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, law: str, width: int) -> None:
    page = open_page(figure(law, runs=True), width=width)
    sizes = read_letter_sizes(page, "mlsys-isoflop")
    assert len(sizes) > 8 and min(sizes) >= 11
    assert page.evaluate("document.documentElement.scrollWidth") <= width
