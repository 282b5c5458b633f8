"""Inputs as code: what is not finite too."""

from __future__ import annotations

import numpy as np
import torch

from mlsys_lab.checks.deciding.snippet import write_input


def test_infinities_and_nan_are_written_by_names_that_a_notebook_knows() -> None:
    array = np.array([[1.5, -np.inf], [np.nan, np.inf]], np.float32)
    written = write_input("x", array)
    assert written == "torch.tensor([[1.5, -torch.inf], [torch.nan, torch.inf]], dtype=torch.float32)"
    np.testing.assert_array_equal(eval(written, {"torch": torch}).numpy(), array)
