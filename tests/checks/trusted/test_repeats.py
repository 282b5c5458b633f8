"""The first case is asked once more, so that nothing that is kept between calls passes."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from mlsys_checks.runner import run_check
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.verdict import draw_inputs


def test_the_first_case_comes_again_after_the_public_ones_with_other_numbers(fakes):
    (check,) = repeat_first_case([fakes.ADD_ONE])
    assert [case.name for case in check.cases] == ["single", "many", "single, once more with other numbers", "empty"]
    first, again = (draw_inputs(check, check.cases[i], 0)["x"] for i in (0, 2))
    assert first.shape == again.shape
    assert not np.array_equal(first, again)


def test_results_kept_by_shape_pass_once_but_not_twice(fakes):
    (twice,) = repeat_first_case([fakes.TWICE])
    kept = {}
    forgetful = SimpleNamespace(twice=lambda x: kept.setdefault(x.shape, 2 * x))
    assert run_check(fakes.TWICE, forgetful).passed
    report = run_check(twice, forgetful)
    assert report.case is not None and report.case.name == "small, once more with other numbers"
    assert run_check(twice, SimpleNamespace(twice=lambda x: 2 * x)).passed


def test_traced_kernels_can_keep_nothing(fakes):
    traced = replace(fakes.TWICE, traced=True)
    assert repeat_first_case([traced]) == (traced,)
