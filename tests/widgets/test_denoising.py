from __future__ import annotations

import json
import re

import numpy as np
import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.widgets import element, esm
from mlsys_lab.widgets.denoising import (
    MAX_STEPS,
    SOLVERS,
    Denoising,
    denoising_data,
    denoising_table,
    sampling_of,
    spread_of,
)
from tests.pages import assert_readable

NAME = "mlsys-denoising"


def figure(solver: str = "ddim", **options) -> str:
    data = denoising_data(solver, **options)
    return element("denoising", fallback=denoising_table(data), **data)._repr_html_()


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_figure_samples_like_the_package(open_module, solver: str) -> None:
    data = denoising_data()
    page = open_module("denoising", "sample", "noiseLevels", "spreadOf", "evaluationsOf")
    for steps, scale in ((1, 1.0), (2, 3.0), (5, 0.0), (9, 1.0), (MAX_STEPS, 4.5)):
        sigmas, states, spread, calls = page.evaluate(
            """([data, solver, steps, scale]) => {
              const [sigmas, states] = [noiseLevels(data, steps), sample(data, solver, steps, scale)];
              const { spread, off } = spreadOf(data, states.at(-1), 0);
              return [sigmas, states, [spread, off], evaluationsOf(solver, steps, scale, steps)];
            }""",
            [data, solver, steps, scale],
        )
        run = sampling_of(data, solver, steps, scale)
        np.testing.assert_allclose(sigmas, run.grid, rtol=1e-12, atol=1e-12)
        want = np.stack([state.x.numpy() for state in run.states()])
        np.testing.assert_allclose(np.array(states), want, rtol=1e-6, atol=1e-6)
        assert spread == pytest.approx(spread_of(data, want[-1], 0.0), rel=1e-6, abs=1e-6)
        assert calls == run.sampler.evaluations(steps) * (1 if scale == 1 else 2)


def test_more_steps_bring_the_classes_closer_to_their_spread_and_guidance_tightens_them() -> None:
    data = denoising_data()

    def spread(solver: str, steps: int, scale: float = 1.0) -> float:
        return spread_of(data, sampling_of(data, solver, steps, scale).run().numpy(), 0.0)[0]

    for solver in ("ddim", "heun", "ddpm"):
        assert abs(spread(solver, 24) - 1) < abs(spread(solver, 6) - 1), solver
    assert spread("heun", 24) == pytest.approx(1, abs=0.02) and spread("dpm++", 24) == pytest.approx(1, abs=0.02)
    assert spread("heun", 24, 4.0) < 0.8 * spread("heun", 24)


def test_the_noise_of_each_class_has_mean_0_and_covariance_1() -> None:
    """But for its rounding to two digits, half a hundredth in each number at most."""
    noise = np.array(denoising_data()["noise"]).reshape(MAX_STEPS + 1, 3, -1, 2)
    np.testing.assert_allclose(noise.mean(axis=2), 0, atol=5e-3)
    covariance = noise.swapaxes(2, 3) @ noise / noise.shape[2]
    np.testing.assert_allclose(covariance, np.broadcast_to(np.eye(2), covariance.shape), atol=1e-2)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"solver": "dimm"}, "no such solver in the figure: got dimm, expected ddim, .*; help: did you mean 'ddim'"),
        ({"steps": 25}, "not supported by the figure: got 25 steps, scale 1, expected 1 to 24, 0 to 6"),
        ({"scale": -1}, "not supported by the figure: got 8 steps, scale -1"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line(options, complaint) -> None:
    with pytest.raises(InputError, match=complaint):
        denoising_data(**options)


def test_the_notebook_s_widget_carries_the_site_s_module_and_data() -> None:
    widget = Denoising.of("heun", steps=5, scale=2)
    assert widget._esm == esm("denoising")
    site = re.search(r'application/json">(.*?)</script>', figure("heun", steps=5, scale=2))
    data = json.loads(site.group(1)) if site else {}
    assert data and data == {name: getattr(widget, name) for name in data}


def test_the_picture_follows_menu_and_keyboard(open_page) -> None:
    page = open_page(figure(steps=8))
    verdict, detail = page.locator(f"{NAME} .verdict"), page.locator(f"{NAME} .detail")
    assert verdict.inner_text() == "Spread 0.75 of the exact one, means off by 0.05 deviations"
    assert detail.inner_text().startswith("After step 8 of 8, σ = 0: 8 of 8 evaluations")
    assert page.locator(f"{NAME} .point").count() == 72
    page.get_by_label("Solver").select_option("heun")
    assert detail.inner_text().startswith("After step 8 of 8, σ = 0: 15 of 15 evaluations")
    page.get_by_label("Guidance s").focus()
    page.keyboard.press("ArrowRight")
    assert "30 of 30" in detail.inner_text()
    page.get_by_label("Steps S").focus()
    page.keyboard.press("ArrowLeft")
    assert "After step 7 of 7" in detail.inner_text()
    page.get_by_label("First step").click()
    assert "After step 0 of 7, σ = 20: 0 of 26" in detail.inner_text()
    assert verdict.inner_text().startswith("Spread 1 of the exact one, means off by 0.06")


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_with_letters_of_a_readable_size(open_page, width: int) -> None:
    page = open_page(figure(), width=width)
    assert_readable(page, NAME, width, texts=3)
