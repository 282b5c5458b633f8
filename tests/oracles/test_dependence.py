"""What an entry names as computing its figures is what computes them: made wrong, all but the restated go wrong."""

from __future__ import annotations

import pytest

from tests.oracles.catalogue import Oracle, computations, oracles
from tests.oracles.disturb import disturb

BY_THE_PACKAGE = [oracle for oracle in oracles().values() if oracle.functions]
LOOK_UPS = {"hardware.device", "configs.presets.preset"}
"""Functions that say what a table holds: a figure that only starts from them is worked out somewhere else."""


@pytest.mark.parametrize("oracle", BY_THE_PACKAGE, ids=lambda oracle: oracle.id)
def test_every_figure_depends_on_what_is_said_to_compute_it(oracle: Oracle, monkeypatch) -> None:
    assert not LOOK_UPS & set(oracle.functions)
    compute = computations()[oracle.id]
    oracle.check(*compute(oracle.inputs))
    disturb(monkeypatch, *oracle.functions)
    pairs = zip(compute(oracle.inputs), oracle.figures, strict=True)
    right = [at for at, (got, figure) in enumerate(pairs) if float(got) == pytest.approx(figure, rel=oracle.rel_tol)]
    assert right == list(oracle.restated), f"{', '.join(oracle.functions)} gone wrong, these figures are still right"


@pytest.mark.parametrize("oracle", BY_THE_PACKAGE, ids=lambda oracle: oracle.id)
def test_every_function_named_has_a_part_in_it(oracle: Oracle) -> None:
    compute = computations()[oracle.id]
    right = [float(figure) for figure in compute(oracle.inputs)]
    for function in oracle.functions:
        with pytest.MonkeyPatch.context() as patch:
            disturb(patch, function)
            assert [float(figure) for figure in compute(oracle.inputs)] != right, f"{function} changes nothing"
