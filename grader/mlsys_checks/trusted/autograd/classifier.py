"""Task 7's last part: a classifier of handwritten digits. Oracle: labels that the judge keeps."""

from __future__ import annotations

import math

import numpy as np

from mlsys_checks.sandboxed.autograd import training as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.autograd.digits import digits
from mlsys_checks.trusted.autograd.tensor import F32

TARGET = 0.95
"""Share of unseen digits that is to be read correctly."""
COPIES, BRIGHT = 1000, 1000.0
"""How often one of the test images comes again, and how much brighter: whatever is taken of them all is far off."""
STANDARD_ERRORS = 3
"""How far below TARGET the share of one test set may lie: which images it holds is chance, and costs nobody points."""
BLIND_ACCURACY = 0.5
"""What a network that has learned nothing reads at most: one in ten, or by luck of its first weights a few more."""
WITHOUT_ACCURACY = 0.5
"""What is read at least of the other digits after a training without one: with half of the images, nearly as many."""


def _digits_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """A random split of scikit-learn's 1,797 digits, with noise, pixels moved and classes renamed.

    To a fully connected network one scramble of all images changes nothing; weights from elsewhere fail. Behind the
    test images comes one of them many times over, far too bright: no other one's label may depend on that.
    """
    images, labels = digits()
    images = images / 16 + rng.normal(0, 0.02, images.shape)
    images, labels = images[:, rng.permutation(64)], rng.permutation(10)[labels]
    order = rng.permutation(len(images))
    test, train = order[:360], order[360:]
    return {
        "x_train": images[train].astype(np.float32),
        "y_train": labels[train].astype(np.int64),
        "x_test": np.concatenate([images[test], np.repeat(BRIGHT * images[test[:1]], COPIES, axis=0)]).astype(F32),
        "_y_test": labels[test].astype(np.int64),
    }


def _digits_expect(arrays: Arrays) -> Arrays:
    """The labels of the images, and without gradients hardly any of them; −1 for a copy, which counts for nothing."""
    return {"labels": np.concatenate([arrays["_y_test"], np.full(COPIES, -1)])}


def least_accuracy(images: int) -> float:
    """The share of so many test images that a classifier has to read which reads TARGET of all."""
    return TARGET - STANDARD_ERRORS * math.sqrt(TARGET * (1 - TARGET) / images)


def _digits_compare(got: Arrays, expected: Arrays) -> Mismatch | None:
    labels, truth = got["labels"], expected["labels"]
    if labels.shape != truth.shape or labels.dtype.kind not in "iu":
        found, wanted = f"{labels.dtype} of shape {labels.shape}", f"integers of shape {truth.shape}"
        return Mismatch("the predicted labels have the wrong form", found, wanted, is_form=True)
    counted = truth >= 0
    accuracy, images = float((labels == truth)[counted].mean()), int(counted.sum())
    least = least_accuracy(images)
    if accuracy < least:
        asked = f"at least {least:.1%}: {TARGET:.0%}, less what chance does on {images} images"
        return Mismatch("too many digits are misread", f"accuracy {accuracy:.1%}", asked)
    without, counted = got[calls.WITHOUT], truth > 0
    if without.shape != truth.shape or (without == truth)[counted].mean() < WITHOUT_ACCURACY:
        what = "digits are misread where one digit is missing from the training images"
        return Mismatch(what, f"labels {without[counted][:8]}", f"for most of the others {truth[counted][:8]}")
    if (alone := got[calls.ALONE]).shape != (1,):
        what = "the predicted label of a single image has the wrong form"
        return Mismatch(what, f"shape {alone.shape}", "integers of shape (1,)", is_form=True)
    told, walks = int(got["losses"]), int(got["backward passes"])
    if 2 * told < walks:
        return Mismatch("losses are missing", f"{told} losses of {walks} backward passes", "the loss of every step")
    if np.unique(got[calls.FIRST]).size > 1:
        return Mismatch("two trainings begin differently", "two first losses", "a torch.Generator of fixed seed")
    blind = got[calls.BLIND]
    if blind.shape != truth.shape or (blind == truth)[truth >= 0].mean() > BLIND_ACCURACY:
        what = "it reads digits without your engine's gradients: something else has learned them"
        return Mismatch(what, "right labels where `backward` does nothing", f"at most {BLIND_ACCURACY:.0%} of them")
    return None


CHECKS = (
    Check(
        name="train_digits",
        title="Read unseen digits: at least 95 %",
        points=6,
        cases=(Case("a random split, pixels and classes in another order, one image far too bright"),),
        inputs=_digits_inputs,
        run=calls.digits,
        snippet="train_classifier(x_train, y_train, x_test)[0]",
        expect=_digits_expect,
        compare=_digits_compare,
        first_hint="Plot the losses that you return: do they fall at all, and do they stop falling too early?",
        hint="Does the loss fall? If not, try other learning rates, in factors of 3. If it falls and the test is "
        "still poor, train for more epochs or widen the hidden layer. Predict with argmax over the classes. What you "
        "take off the images comes from the training images, for the test images too; numbers are drawn from a "
        "torch.Generator of your own.",
        uses=("Tensor", "MLP", "SGD", "train_step", "train_classifier"),
        time_limit_s=60,
    ),
)
