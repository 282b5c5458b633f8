"""SparseGPT against least squares, the optimal brain surgeon's update by hand, and all 2:4 masks of small layers."""

from itertools import combinations, product

import pytest
import torch

from mlsys_lab.efficiency.pruning.masks import apply_mask, magnitude_mask, two_four_mask, wanda_mask
from mlsys_lab.efficiency.pruning.sparsegpt import sparsegpt
from mlsys_lab.efficiency.quantization.gptq import hessian
from mlsys_lab.errors import InputError

O, I, N = 5, 32, 200
W = torch.randn(O, I, generator=torch.Generator().manual_seed(0)).double()


def inputs(seed=1, width=I, rank=12, noise=0.3):
    """Correlated inputs (N, width), as activations are: mixtures of `rank` sources, with noise."""
    generator = torch.Generator().manual_seed(seed)
    sources, mixture = torch.randn(N, rank, generator=generator), torch.randn(rank, width, generator=generator)
    return (sources @ mixture + noise * torch.randn(N, width, generator=generator)).double()


def squared_error(weight, original, x):
    return (x @ (weight - original).T).square().sum().item()


def least_squares(row, mask, x):
    """Weights of one output at the places of the mask that reproduce its outputs on x best."""
    best = torch.zeros_like(row)
    best[mask] = torch.linalg.lstsq(x[:, mask], (x @ row)[:, None]).solution[:, 0]
    return best


def test_where_pruned_columns_come_first_what_is_left_is_the_least_squares_solution():
    """Columns compensate those before them. The first half is nearly a mixture of the second, and so is not salient."""
    x = inputs(rank=I)
    x[:, : I // 2] = x[:, I // 2 :] @ torch.linalg.qr(inputs(2)[: I // 2, : I // 2]).Q + 0.02 * x[:, : I // 2]
    w = W.sign() * (0.5 + W.abs())
    weight, mask = sparsegpt(w, x.T @ x, 0.5, damping=0)
    assert torch.equal(mask, (torch.arange(I) >= I // 2).expand(O, I))
    expected = torch.stack([least_squares(row, mask[0], x) for row in w])
    torch.testing.assert_close(weight, expected, rtol=1e-6, atol=1e-8)
    assert (weight - w)[mask].abs().max() > 0.5  # it is not a small correction


@pytest.mark.parametrize(("density", "width"), [(0.4, 32), ("2:4", 32), ("2:4", 136)])
def test_it_is_the_optimal_brain_surgeon_s_update_column_by_column(density, width):
    """Each update needs the inverse Hessian of the columns that are left, here inverted for each."""
    x, left = inputs(width=width), inputs(5, width=width)[:O].clone()
    weight, mask = sparsegpt(left, x.T @ x, density, block_size=8, damping=0)
    for column in range(width):
        inverse = torch.linalg.inv((x.T @ x)[column:, column:])
        error = left[:, column].masked_fill(mask[:, column], 0) / inverse[0, 0]
        left[:, column:] -= error[:, None] * inverse[0]
    torch.testing.assert_close(weight, apply_mask(left, mask), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("density", "step"), [(0.4, 8), ("2:4", 4)])
def test_a_mask_keeps_the_largest_saliencies_of_weights_compensated_so_far(density, step):
    x = inputs()
    _, mask = sparsegpt(W, x.T @ x, density, block_size=8, damping=0)
    left = W.clone()
    for column in range(I):
        inverse = torch.linalg.inv((x.T @ x)[column:, column:])
        if column % step == 0:
            diagonals = [torch.linalg.inv((x.T @ x)[j:, j:])[0, 0] for j in range(column, column + step)]
            saliency = left[:, column : column + step] ** 2 / torch.stack(diagonals)
            expected = two_four_mask(saliency) if step == 4 else saliency >= saliency.flatten().sort().values[-16]
            assert torch.equal(mask[:, column : column + step], expected)
        left[:, column:] -= (left[:, column].masked_fill(mask[:, column], 0) / inverse[0, 0])[:, None] * inverse[0]


def test_orthogonal_inputs_leave_nothing_to_compensate():
    x = torch.linalg.qr(inputs(rank=I)).Q * torch.linspace(1, 4, I)
    weight, mask = sparsegpt(W, x.T @ x, "2:4", damping=0)
    assert torch.equal(mask, two_four_mask(W.abs() * x.norm(dim=0)))
    torch.testing.assert_close(weight, apply_mask(W, mask))
    assert torch.equal(sparsegpt(W[:1], x.T @ x, 0.3, damping=0).mask, wanda_mask(W[:1], x.norm(dim=0), 0.3))


def test_its_error_lies_between_the_best_of_all_2_4_masks_and_magnitude_s():
    """36 masks of eight inputs, each with its least-squares weights; the best is a bound that nothing passes."""
    x, rows = inputs(3, width=8, rank=4, noise=2), inputs(4, width=8, rank=8)[:20]
    pairs = list(combinations(range(4), 2))
    masks = torch.zeros(36, 8, dtype=torch.bool)
    for mask, (first, second) in zip(masks, product(pairs, pairs), strict=True):
        mask[[*first, *(4 + i for i in second)]] = True
    best = sum(min(squared_error(least_squares(row, mask, x)[None], row[None], x) for mask in masks) for row in rows)
    ours = squared_error(sparsegpt(rows, x.T @ x, "2:4", damping=0).weight, rows, x)
    magnitude = squared_error(apply_mask(rows, two_four_mask(rows.abs())), rows, x)
    assert best <= ours < 3 * best
    assert ours < magnitude


@pytest.mark.parametrize("density", [0.25, 0.5, "2:4"])
def test_exactly_as_many_weights_as_asked_for_are_left_in_the_dtype_of_the_layer(density):
    x = inputs(width=36).float()
    w = inputs(2, width=36)[:6].float()
    weight, mask = sparsegpt(w, hessian(x), density, block_size=12)
    assert weight.dtype == torch.float32 and torch.equal(weight != 0, mask)
    assert mask.sum() == 6 * 36 * (0.5 if density == "2:4" else density)
    error = squared_error(weight, w, x)
    uncompensated = two_four_mask(w.abs()) if density == "2:4" else magnitude_mask(w, density)
    assert error < squared_error(apply_mask(w, uncompensated), w, x)


def test_a_density_of_1_changes_nothing():
    weight, mask = sparsegpt(W, inputs().T @ inputs(), 1.0)
    assert torch.equal(weight, W) and mask.all()


def test_what_it_refuses_is_one_line():
    x = inputs()
    h = x.T @ x
    for dependent in (torch.cat([x[:, :-1], x[:, :1]], -1), x[: I - 1]):
        assert sparsegpt(W, dependent.T @ dependent, 0.5).weight.isfinite().all()
        with pytest.raises(InputError, match=r"^singular Hessian, of rank 31 for 32 inputs: got damping 0; help: cal"):
            sparsegpt(W, dependent.T @ dependent, 0.5, damping=0)
    with pytest.raises(InputError, match=r"^Hessian of another layer: got \(31, 31\), expected \(32, 32\)$"):
        sparsegpt(W, h[1:, 1:], 0.5)
    with pytest.raises(InputError, match=r"^entries of the Hessian are not finite: got inf at \[0, 0\]"):
        sparsegpt(W, h / 0, 0.5)
    with pytest.raises(InputError, match=r"^weights are not finite: got nan"):
        sparsegpt(W * float("nan"), h, 0.5)
    with pytest.raises(InputError, match=r"^density out of range: got 0, "):
        sparsegpt(W, h, 0)
    with pytest.raises(InputError, match=r"^density out of range: got '1:4', "):
        sparsegpt(W, h, "1:4")
    with pytest.raises(InputError, match=r"^groups of 4 do not divide the inputs: got 30 inputs"):
        sparsegpt(W[:, 2:], h[2:, 2:], "2:4")
