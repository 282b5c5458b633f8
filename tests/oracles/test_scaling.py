"""Published figures on scaling laws, from the laws and their frontiers."""

from __future__ import annotations

import pytest

from mlsys_lab.scaling.laws import (
    BESIROGLU_2024,
    GOPHER_FLOPS,
    HOFFMANN_2022,
    KAPLAN_COMPUTE,
    KAPLAN_PARAMS,
    KAPLAN_TOKENS,
    training_flops,
)
from tests.oracles.catalogue import oracles


def chinchilla_optimum(i):
    frontier = HOFFMANN_2022.frontier()
    G = frontier.params(6)  # N_opt = G (C/6)^a
    return [frontier.a, G, frontier.params(i["C"]), frontier.tokens(i["C"])]


def refit_optimum(i):
    frontier = BESIROGLU_2024.frontier()
    return [frontier.a, frontier.params(i["C"]), frontier.tokens_per_param(i["C"])]


COMPUTED = {
    "SL01": lambda i: [*KAPLAN_PARAMS(i["N"]), KAPLAN_TOKENS(i["D"])],
    "SL02": lambda i: [KAPLAN_COMPUTE(1), KAPLAN_PARAMS(2) / KAPLAN_PARAMS(1)],
    "SL03": lambda i: list(training_flops(i["N"], i["D"])),
    "SL05": lambda i: list(HOFFMANN_2022.loss([70e9, 280e9], [1.4e12, 300e9])),
    "SL06": chinchilla_optimum,
    "SL07": lambda i: [getattr(BESIROGLU_2024, name) for name in ("A", "B", "E", "alpha", "beta")],
    "SL08": refit_optimum,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))


@pytest.mark.parametrize(("name", "law"), [("SL05", HOFFMANN_2022), ("SL06", HOFFMANN_2022), ("SL08", BESIROGLU_2024)])
def test_the_law_has_the_constants_of_the_source(name: str, law: object) -> None:
    inputs = dict(oracles()[name].inputs)
    assert inputs.pop("C", GOPHER_FLOPS) == GOPHER_FLOPS
    assert {constant: getattr(law, constant) for constant in inputs} == inputs


def test_sl06_contradicts_what_the_paper_reports_beside_its_constants() -> None:
    oracle = oracles()["SL06"]
    frontier = HOFFMANN_2022.frontier()
    assert frontier.a == pytest.approx(oracle.arithmetic["a"], rel=0.001)
    assert round(frontier.a, 2) != oracle.printed["a"]
    parameters = frontier.params(GOPHER_FLOPS)
    assert parameters == pytest.approx(oracle.arithmetic["parameters"], rel=0.01)
    assert parameters < 0.85 * oracle.printed["parameters"]
