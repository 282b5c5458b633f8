"""What the papers print beyond the course's list of oracles: tables, advice, intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from mlsys_lab.scaling import (
    BESIROGLU_2024,
    CEREBRAS_COMPUTE,
    CEREBRAS_FLOOR,
    CEREBRAS_GPT,
    GOPHER_FLOPS,
    HOFFMANN_2022,
    HOFFMANN_TABLES,
    KAPLAN_FRONTIER,
    PF_DAY,
    ChinchillaLaw,
    PowerLaw,
    Runs,
    bootstrap,
    fit_parametric,
    inference_optimal,
    reach_loss,
    training_flops,
)
from tests.oracles.catalogue import oracles

PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yml").read_text(encoding="utf-8"))
MIDDLE_80_PERCENT = 2 * 1.2816
"""Width of the middle 80 % of a normal distribution, in standard deviations."""


def table(name):
    """Power laws through a table of optimal models: N by C, and the tokens that 6ND = C leaves."""
    inputs = PUBLISHED[name]["inputs"]
    params = PowerLaw.fit(inputs["C"], inputs["N"])
    return params, PowerLaw.fit(inputs["C"], np.array(inputs["C"]) / (6 * np.array(inputs["N"])))


def approach_1():
    rows = oracles()["SL03"]
    return PowerLaw.fit(rows.expected, rows.inputs["N"]), PowerLaw.fit(rows.expected, rows.inputs["D"])


def approach_3():
    """With the misprinted row's FLOPs replaced by 6ND of its own parameters and tokens."""
    inputs = PUBLISHED["approach_3"]["inputs"]
    row = inputs["misprinted_row"]
    flops = list(inputs["C"])
    flops[row] = float(training_flops(inputs["N"][row], inputs["D"][row]))
    return PowerLaw.fit(flops, inputs["N"]), PowerLaw.fit(flops, inputs["D"])


def inference():
    inputs = PUBLISHED["inference"]["inputs"]
    law = ChinchillaLaw(**{name: inputs[name] for name in ("E", "A", "B", "alpha", "beta")})
    frontier = law.frontier()
    tokens = frontier.tokens(frontier.params.inverse(inputs["N"]))
    large = reach_loss(law, float(law.loss(inputs["N"], tokens)), inputs["N"], inputs["served"])
    best = inference_optimal(law, large.loss, inputs["served"])
    small = reach_loss(law, large.loss, 7e9, inputs["served"])
    saved = large.total_flops - small.total_flops
    return [best.n_params, small.tokens / large.tokens, saved, saved / large.total_flops]


def runs_needed(width, runs, target):
    """Intervals narrow with the root of the number of runs."""
    return runs * (width / target) ** 2


def intervals():
    inputs = PUBLISHED["intervals"]["inputs"]
    width = MIDDLE_80_PERCENT * inputs["standard_error"]
    return [runs_needed(width, inputs["runs"], inputs["high"] - inputs["low"])]


def cerebras():
    fitted = PowerLaw.fit(CEREBRAS_GPT.flops, CEREBRAS_GPT.loss - CEREBRAS_FLOOR)
    return [fitted.exponent, CEREBRAS_FLOOR + CEREBRAS_COMPUTE(CEREBRAS_GPT.flops[-1])]


COMPUTED = {
    "cerebras_gpt": cerebras,
    "approach_1": lambda: [law.exponent for law in approach_1()] + [approach_1()[0](GOPHER_FLOPS)],
    "approach_2": lambda: [law.exponent for law in table("approach_2")],
    "approach_3": lambda: [law.exponent for law in approach_3()],
    "approach_3_gopher": lambda: [approach_3()[0](GOPHER_FLOPS)],
    "kaplan_1e21": lambda: [KAPLAN_FRONTIER.params(1e21 / PF_DAY / 2), approach_1()[0](1e21)],
    "inference": inference,
    "intervals": intervals,
}


def test_every_oracle_of_the_file_is_tried() -> None:
    assert COMPUTED.keys() == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_is_reproduced(name: str) -> None:
    oracle = PUBLISHED[name]
    got = [float(number) for number in COMPUTED[name]()]
    assert got == pytest.approx(oracle["expected"], rel=oracle["rel_tol"])


@pytest.mark.parametrize("approach", [2, 3])
def test_the_packages_tables_are_the_papers(approach: int) -> None:
    rows, inputs = HOFFMANN_TABLES[f"approach {approach}"], PUBLISHED[f"approach_{approach}"]["inputs"]
    for column, letter in ((rows.n_params, "N"), (rows.tokens, "D"), (rows.flops, "C")):
        assert column == pytest.approx(inputs[letter], rel=1e-12)


def test_the_packages_first_table_is_the_papers() -> None:
    rows, oracle = HOFFMANN_TABLES["approach 1"], oracles()["SL03"]
    for column, printed in zip(vars(rows).values(), (*oracle.inputs.values(), oracle.expected), strict=True):
        assert column == pytest.approx(printed, rel=1e-12)


def test_the_packages_runs_are_the_papers() -> None:
    """Tokens are steps of a batch of sequences, and the largest run is the one that the law was not fitted to."""
    inputs = PUBLISHED["cerebras_gpt"]["inputs"]
    assert CEREBRAS_GPT.n_params == pytest.approx(inputs["N"]) and CEREBRAS_GPT.flops == pytest.approx(inputs["C"])
    assert list(CEREBRAS_GPT.loss) == inputs["L"] and inputs["E"] == CEREBRAS_FLOOR
    tokens = np.array(inputs["steps"]) * inputs["batch"] * inputs["context"]
    assert CEREBRAS_GPT.tokens == pytest.approx(tokens, rel=5e-3)
    assert CEREBRAS_GPT.tokens / CEREBRAS_GPT.n_params == pytest.approx(20, rel=0.02)
    assert CEREBRAS_FLOOR + CEREBRAS_COMPUTE(CEREBRAS_GPT.flops) == pytest.approx(CEREBRAS_GPT.loss, rel=0.012)


def test_a_published_column_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        CEREBRAS_GPT.loss[0] = 1


def test_the_misprinted_row_is_off_by_ten() -> None:
    inputs = PUBLISHED["approach_3"]["inputs"]
    off = training_flops(inputs["N"], inputs["D"]) / inputs["C"]
    row = inputs["misprinted_row"]
    assert off[row] == pytest.approx(10, rel=0.01)
    assert np.delete(off, row) == pytest.approx(1, rel=0.05)


def test_kaplan_s_exponents_add_up() -> None:
    """What is spent is split between parameters and tokens; 0.73 against Chinchilla's 0.50."""
    assert KAPLAN_FRONTIER.a + KAPLAN_FRONTIER.b == pytest.approx(1)
    assert KAPLAN_FRONTIER.a == 0.73


def test_the_printed_constants_do_not_prefer_what_the_paper_trained() -> None:
    """About 90 tokens per parameter by the rounded constants, 20 by table 3 and by Chinchilla itself."""
    assert HOFFMANN_2022.frontier().tokens_per_param(GOPHER_FLOPS) > 4 * 1.4e12 / 70e9
    assert BESIROGLU_2024.frontier().tokens_per_param(GOPHER_FLOPS) == pytest.approx(1.4e12 / 70e9, rel=0.1)


def test_an_interval_as_narrow_as_the_published_takes_hundreds_of_thousands_of_runs() -> None:
    """Simulated: 240 runs over Chinchilla's range of sizes and compute, noise of 2 %, as the refit's standard error."""
    rng = np.random.default_rng(0)
    n_params = np.exp(rng.uniform(np.log(6e7), np.log(1.6e10), 240))
    flops = np.exp(rng.uniform(np.log(6e18), np.log(1e22), 240))
    tokens = flops / (6 * n_params)
    loss = BESIROGLU_2024.loss(n_params, tokens) * np.exp(rng.normal(0, 0.02, 240))
    runs = Runs(n_params, tokens, loss)
    start = [fit_parametric(runs).law]
    found = bootstrap(lambda drawn: fit_parametric(drawn, starts=start).frontier.a, runs, resamples=100)
    assert found.low < BESIROGLU_2024.frontier().a < found.high
    assert runs_needed(float(found.high - found.low), 240, 0.001) > 100_000
