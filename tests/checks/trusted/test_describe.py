"""An account of a case that failed is code that makes its inputs again."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from mlsys_checks.sandboxed.scaling_laws import LAW
from mlsys_checks.trusted.describe import MAX_WRITTEN, describe_calls
from mlsys_checks.trusted.scaling_laws.fits import write_inputs


def test_the_account_is_code_that_makes_the_inputs_again() -> None:
    law = dict(zip(LAW, (1.7, 406.4, 410.7, 0.34, 0.28), strict=True))
    arrays = {name: np.array(value) for name, value in law.items()} | {"loss": np.array([2.5, np.nan, 2.25])}
    seen: list[object] = []
    names = {"np": np, "ChinchillaLaw": SimpleNamespace, "f": lambda *given: seen.extend(given)}
    exec(describe_calls("f(law, loss, {E})", given=write_inputs)(arrays), names)
    found, loss, floor = seen
    assert vars(found) == law
    np.testing.assert_array_equal(loss, arrays["loss"])
    assert floor == 1.7


def test_a_long_column_is_taken_from_what_is_given() -> None:
    arrays = {"x": np.ones(MAX_WRITTEN + 1), "y": np.ones(2), "target": np.array(3e22)}
    lines = ['x = given["x"]', "y = np.array([1.0, 1.0])", "f(x, y, 3e+22)"]
    assert describe_calls("f(x, y, {target})")(arrays).splitlines() == lines


def test_numbers_are_written_to_the_last_digit() -> None:
    assert describe_calls("f({x})")({"x": np.array(1 / 3)}) == f"f({1 / 3!r})"
