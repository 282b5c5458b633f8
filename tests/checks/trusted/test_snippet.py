"""Inputs as code: what is not finite too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlsys_checks.trusted.snippet import write_input


def test_infinities_and_nan_are_written_by_names_that_a_notebook_knows() -> None:
    array = np.array([[1.5, -np.inf], [np.nan, np.inf]], np.float32)
    written = write_input("x", array)
    assert written == "torch.tensor([[1.5, -torch.inf], [torch.nan, torch.inf]], dtype=torch.float32)"
    np.testing.assert_array_equal(eval(written, {"torch": torch}).numpy(), array)


@pytest.mark.parametrize("number", [-np.inf, np.inf, np.nan, -2.5, True])
def test_a_number_alone_is_written_so_that_python_reads_it(number: float) -> None:
    np.testing.assert_equal(eval(write_input("x", np.array(number))), number)
