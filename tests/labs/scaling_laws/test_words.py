"""Lab 06's account of a case that failed: code that makes its inputs again."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from mlsys_lab.checks.deciding.scaling_laws.words import FEW, LAW, describe_calls


def test_the_account_is_code_that_makes_the_inputs_again() -> None:
    law = dict(zip(LAW, (1.7, 406.4, 410.7, 0.34, 0.28), strict=True))
    arrays = {name: np.array(value) for name, value in law.items()} | {"loss": np.array([2.5, np.nan, 2.25])}
    seen: list[object] = []
    names = {"np": np, "Law": SimpleNamespace, "f": lambda *given: seen.extend(given)}
    exec(describe_calls("f(law, loss, {E})")(arrays), names)
    found, loss, floor = seen
    assert vars(found) == law
    np.testing.assert_array_equal(loss, arrays["loss"])
    assert floor == 1.7


def test_of_many_runs_only_the_call_is_shown() -> None:
    arrays = {"x": np.ones(FEW + 1), "y": np.ones(2), "target": np.array(3e22)}
    assert describe_calls("f(x, y, {target})")(arrays) == "f(x, y, 3e+22)"
