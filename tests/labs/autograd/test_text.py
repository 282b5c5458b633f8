"""Numbers and claims in the text of lab 01."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_lab.checks.deciding.autograd import LAB
from mlsys_lab.checks.deciding.autograd.training import least_accuracy
from mlsys_lab.checks.deciding.verdict import draw_inputs
from tests.labs.harness import labs, module_of

AUTOGRAD = next(lab for lab in labs() if lab.info.topic == "autograd")
TEXT = AUTOGRAD.source.read_text(encoding="utf-8")


def test_the_message_tells_the_accuracy_that_is_asked_for() -> None:
    check = LAB["train_digits"]
    images = len(draw_inputs(check, check.cases[0], 0)["_y_test"])
    truth = {"labels": np.zeros(images, np.int64)}
    missed = {"labels": (np.arange(images) < images * 0.09).astype(np.int64)}
    mismatch = check.compare(missed, truth)
    assert mismatch is not None and f"{least_accuracy(images):.1%}" in mismatch.expected


def test_what_has_no_answer_raises_what_the_text_says() -> None:
    module = module_of(AUTOGRAD.reference, "reference.ipynb")
    for error, call in (
        (OverflowError, module.Value(1000.0).exp),
        (ZeroDivisionError, lambda: module.Value(0.0) ** -1),
    ):
        assert f"`{error.__name__}`" in TEXT
        with pytest.raises(error):
            call()
