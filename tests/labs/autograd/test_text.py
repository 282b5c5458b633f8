"""Numbers and claims in the text of lab 01."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from mlsys_checks.trusted.autograd import LAB
from mlsys_checks.trusted.autograd.classifier import TARGET, least_accuracy
from mlsys_checks.trusted.verdict import draw_inputs
from tests.labs.figures import assert_held
from tests.labs.harness import labs, module_of

AUTOGRAD = next(lab for lab in labs() if lab.info.topic == "autograd")
TEXT = AUTOGRAD.source.read_text(encoding="utf-8")
GIVEN = (
    "shapes (64, 10) and (10,), each bias is *used* 64 times",
    "shape (3, 1) is multiplied by one of shape (2, 3, 4)",
    "of 1000",
    "One entry of `shape` may be −1",
    "a vocabulary of 100,000",
)


def computed() -> Iterator[str]:
    check = LAB["train_digits"]
    images = len(draw_inputs(check, check.cases[0], 0)["_y_test"])
    yield f"at least {100 * TARGET:.3g} % test accuracy"
    yield f"Aim: at least {100 * TARGET:.3g} % on images"
    asked = f"{100 * least_accuracy(images):.3g} %"
    yield f"One test of {images} images may be unlucky: the check asks for {asked} of them"
    yield f"nothing keeps a logit below {math.ceil(math.log(np.finfo(np.float32).max))}"


def test_figures_are_computed_or_given() -> None:
    assert_held(AUTOGRAD, computed=computed(), given=GIVEN)


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
