"""Cross-entropy in Triton against torch, and what it asks of memory."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.cross_entropy import MAX_BLOCK, STEPS, cost, cross_entropy, reference
from mlsys_lab.kernels.trace.traffic import total
from tests.kernels.closeness import assert_near
from tests.kernels.operators import DTYPES, compiles_whole, looked_at, reads_and_writes

SHAPES = [(1, 1), (1, 2), (3, 5), (31, 67), (5, 1031), (2, MAX_BLOCK + 1)]


def logits_and_targets(
    rows: int, columns: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = 3 * torch.randn(rows, columns, dtype=dtype)
    targets = torch.randint(0, columns, (rows,))
    targets[-1] = columns - 1
    targets[1:-1:2] = -100
    return logits.requires_grad_(), targets


def loss_and_gradient(
    function, logits: torch.Tensor, *args: object, **kwargs: object
) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[no-untyped-def]
    """Of a loss that is counted three times; the function gets logits that it may overwrite."""
    loss = function(logits * 1, *args, **kwargs)
    return loss.detach(), *torch.autograd.grad(3 * loss, logits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step", STEPS)
def test_loss_and_gradient(step: str, shape: tuple[int, int], dtype: torch.dtype, device: str) -> None:
    logits, targets = (one.to(device) for one in logits_and_targets(*shape, dtype))
    got = loss_and_gradient(cross_entropy, logits, targets, step=step)
    want = loss_and_gradient(F.cross_entropy, logits.double(), targets)
    assert got[0].dtype == torch.float32 and got[1].dtype == dtype
    for mine, other in zip(got, want, strict=True):
        assert_near(mine, other)
    assert not got[1][targets == -100].any()


def test_the_reference_is_cross_entropy() -> None:
    logits, targets = logits_and_targets(9, 31)
    want = loss_and_gradient(F.cross_entropy, logits.double(), targets)
    for mine, other in zip(loss_and_gradient(reference, logits, targets), want, strict=True):
        assert_near(mine, other)


@pytest.mark.parametrize("step", STEPS)
def test_another_index_to_ignore(step: str) -> None:
    logits, targets = logits_and_targets(5, 7)
    targets[targets < 0] = 3
    got = loss_and_gradient(cross_entropy, logits, targets, ignore_index=3, step=step)
    want = loss_and_gradient(F.cross_entropy, logits.double(), targets, ignore_index=3)
    for mine, other in zip(got, want, strict=True):
        assert_near(mine, other)


@pytest.mark.parametrize("step", STEPS)
def test_no_row_and_rows_that_are_all_ignored_have_the_loss_nan(step: str) -> None:
    for rows in (0, 3):
        logits, targets = torch.randn(rows, 5, requires_grad=True), torch.full((rows,), -100)
        loss, gradient = loss_and_gradient(cross_entropy, logits, targets, step=step)
        assert loss.isnan() and gradient.shape == (rows, 5)
        assert torch.equal(loss.isnan(), F.cross_entropy(logits, targets).isnan())


@pytest.mark.parametrize("step", STEPS)
def test_a_target_that_is_no_column_gives_nan_and_touches_nothing_else(step: str) -> None:
    for target in (-1, 5, 2**40):
        logits, targets = torch.randn(3, 5, requires_grad=True), torch.tensor([1, target, 2])
        found = []
        looked_at(lambda: found.append(loss_and_gradient(cross_entropy, logits, targets, step=step)))  # noqa: B023
        assert found[0][0].isnan()
        assert_near(
            found[0][1][[0, 2]], loss_and_gradient(F.cross_entropy, logits.double(), targets.clamp(0, 4))[1][[0, 2]]
        )


@pytest.mark.parametrize("step", STEPS)
def test_large_logits_and_minus_infinities(step: str) -> None:
    logits = torch.full((3, MAX_BLOCK + 7), -math.inf)
    logits[0, -3:] = torch.tensor([1.0, 2.0, 3.0])  # a whole block of −inf before
    logits[1], logits[1, 5], logits[2] = -3e4, 3e4, 1e4
    targets = torch.tensor([logits.shape[1] - 1, 5, 0])
    got = loss_and_gradient(cross_entropy, logits.requires_grad_(), targets, step=step)
    want = loss_and_gradient(F.cross_entropy, logits.double(), targets)
    for mine, other in zip(got, want, strict=True):
        assert_near(mine, other)


@pytest.mark.parametrize("step", STEPS)
def test_a_row_with_nan_or_infinity_has_the_loss_nan(step: str) -> None:
    for bad in (math.nan, math.inf):
        logits, targets = logits_and_targets(3, 7)
        logits.data[0, 2] = bad
        loss, gradient = loss_and_gradient(cross_entropy, logits, targets, step=step)
        assert loss.isnan() and gradient[0].isnan().any() and not gradient[1:].isnan().any()


def test_in_place_leaves_the_gradient_where_the_logits_were() -> None:
    logits, targets = logits_and_targets(5, 67)
    scores = logits * 1
    loss = cross_entropy(scores, targets, step="in_place")
    want = torch.autograd.grad(F.cross_entropy(logits, targets), logits)[0]
    assert_near(scores, want.double())
    loss.backward()
    assert_near(logits.grad, want.double())


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile does
@pytest.mark.parametrize("step", STEPS)
def test_the_operators_are_torchs(step: str) -> None:
    logits, targets = logits_and_targets(5, 7)
    if step == "recomputed":
        torch.library.opcheck(torch.ops.mlsys_lab.cross_entropy.default, (logits, targets, -100))
        given = (torch.rand(5), logits.detach(), targets, torch.rand(5), -100)
        torch.library.opcheck(torch.ops.mlsys_lab.cross_entropy_backward.default, given)
    else:
        given = (logits.detach(), targets, torch.ones(()), -100)
        torch.library.opcheck(torch.ops.mlsys_lab.cross_entropy_in_place.default, given)
    compiles_whole(lambda x: cross_entropy(2 * x, targets, step=step), [logits])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recomputed_reads_each_logit_once_forward_and_once_backward(dtype: torch.dtype) -> None:
    rows, columns = 3, MAX_BLOCK + 1
    logits, targets = torch.randn(rows, columns, dtype=dtype, requires_grad=True), torch.tensor([0, 7, columns - 1])
    forward, backward = looked_at(lambda: cross_entropy(logits, targets).backward())
    moved = reads_and_writes(forward)
    assert moved["logits_ptr"] == (1 + 1 / columns, 0)  # the target's once more
    assert moved["losses_ptr"] == moved["log_sums_ptr"] == (0, 1)
    assert total(forward).asked_bytes == cost.forward(rows, columns, logits.itemsize)[1] + rows * logits.itemsize
    assert reads_and_writes(backward)["logits_ptr"] == (1, 0) and reads_and_writes(backward)["d_logits_ptr"] == (0, 1)
    least = cost.backward(rows, columns, logits.itemsize)[1]
    assert least <= total(backward).asked_bytes <= 1.01 * least


def test_in_place_reads_twice_as_it_must_know_the_sum_before_the_first_gradient() -> None:
    logits, targets = torch.randn(2, 1031), torch.tensor([0, -100])
    (trace,) = looked_at(lambda: cross_entropy(logits, targets, step="in_place"))
    assert reads_and_writes(trace)["logits_ptr"] == ((2 + 1 / 1031) / 2, 1)  # the ignored row is not read


@pytest.mark.parametrize(
    ("logits", "targets", "says"),
    [
        (torch.ones(3, 4).double(), torch.zeros(3).long(), "dtype of logits: got torch.float64"),
        (torch.ones(3, 4), torch.zeros(3), "dtype of targets: got torch.float32, expected torch.int64"),
        (torch.ones(4, 3).T, torch.zeros(3).long(), "logits is not contiguous"),
        (torch.ones(3, 4), torch.zeros(6).long()[::2], "targets is not contiguous"),
        (torch.ones(3, 4), torch.zeros(3).long().to("meta"), "logits and targets are on two devices"),
        (torch.ones(3, 4), torch.zeros(4).long(), r"shape of targets: got \(4,\), expected \(3,\)"),
        (torch.ones(2, 3, 4), torch.zeros(2).long(), r"dimensions of logits: got shape \(2, 3, 4\), expected 2"),
        (torch.ones(3, 0), torch.zeros(3).long(), "rows of logits have no elements"),
    ],
)
def test_bad_input_is_one_line(logits: torch.Tensor, targets: torch.Tensor, says: str) -> None:
    with pytest.raises(InputError, match=says):
        cross_entropy(logits, targets)


def test_an_unknown_step() -> None:
    with pytest.raises(InputError, match="unknown step: got 'fast', expected one of recomputed, in_place"):
        cross_entropy(torch.ones(1, 1), torch.zeros(1).long(), step="fast")
