"""Masks against torch's own pruning and all masks of small groups, and what is refused."""

from itertools import combinations

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from mlsys_lab.efficiency.pruning.masks import apply_mask, magnitude_mask, n_m_mask, two_four_mask, wanda_mask
from mlsys_lab.errors import InputError

W = torch.randn(6, 20, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("density", [0.01, 0.3, 0.5, 0.77, 1])
def test_magnitudes_of_a_layer_are_those_that_torch_keeps(density):
    layer = nn.Linear(20, 6, bias=False)
    layer.weight = nn.Parameter(W.clone())
    torch_prune.l1_unstructured(layer, "weight", amount=1 - density)
    mask = magnitude_mask(W, density)
    assert torch.equal(mask, layer.weight_mask.bool())
    assert torch.equal(apply_mask(W, mask), layer.weight)


def test_magnitudes_of_an_output_compete_with_each_other_alone():
    scaled = W * torch.tensor([1, 10, 100, 1, 1, 1])[:, None]
    assert torch.equal(magnitude_mask(scaled, 0.4, per_output=True), magnitude_mask(W, 0.4, per_output=True))
    rows = [magnitude_mask(row[None], 0.4) for row in W]
    assert torch.equal(magnitude_mask(W, 0.4, per_output=True), torch.cat(rows))


def test_wanda_drops_what_changes_an_output_least_when_inputs_are_orthogonal():
    """Then the squared change of an output is the sum of (w·‖x‖)² of what is dropped: all masks of a row are tried."""
    x = torch.linalg.qr(torch.randn(30, 8, generator=torch.Generator().manual_seed(1))).Q * torch.arange(1.0, 9)
    w = W[:, :8]
    mask = wanda_mask(w, x.norm(dim=0), 0.5)
    for row in range(len(w)):
        changes = {}
        for kept in combinations(range(8), 4):
            dropped = w[row].clone()
            dropped[list(kept)] = 0
            changes[kept] = (x @ dropped).square().sum().item()
        assert tuple(mask[row].nonzero()[:, 0].tolist()) == min(changes, key=changes.get)


def test_wanda_is_magnitude_per_output_for_equal_inputs():
    assert torch.equal(wanda_mask(W, torch.full((20,), 3.0), 0.3), magnitude_mask(W, 0.3, per_output=True))


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (4, 10), (5, 5)])
def test_of_all_masks_of_a_group_the_one_with_the_largest_sum_is_taken(n, m):
    scores = W.abs()
    for group, mask in zip(scores.view(-1, m), n_m_mask(scores, n, m).view(-1, m), strict=True):
        best = max(combinations(range(m), n), key=lambda kept: group[list(kept)].sum().item())
        assert tuple(mask.nonzero()[:, 0].tolist()) == best
    if (n, m) == (2, 4):
        assert torch.equal(two_four_mask(scores), n_m_mask(scores, 2, 4))


def test_of_equal_scores_the_earlier_are_kept():
    assert two_four_mask(torch.ones(1, 8)).tolist() == [[True, True, False, False] * 2]
    assert magnitude_mask(torch.zeros(2, 3), 0.5).sum() == 3 - 0  # of 6, half


@pytest.mark.parametrize("density", [0, -0.5, 1.5, float("nan"), "half", True])
def test_a_density_outside_its_range_is_one_line(density):
    with pytest.raises(InputError, match=r"^density out of range: got .*, expected a number above 0, at most 1$"):
        magnitude_mask(W, density)


def test_wrong_shapes_and_numbers_are_one_line():
    broken = W.clone()
    broken[2, 3] = float("nan")
    with pytest.raises(InputError, match=r"^weights are not finite: got nan at \[2, 3\], 1 in all, expected finite"):
        magnitude_mask(broken, 0.5)
    with pytest.raises(InputError, match=r"^weights are not finite"):
        wanda_mask(broken, torch.ones(20), 0.5)
    with pytest.raises(InputError, match=r"^input norms are not finite: got inf at \[0\]"):
        wanda_mask(W, torch.full((20,), float("inf")), 0.5)
    with pytest.raises(InputError, match=r"^input norms of another layer: got \(6,\), expected \(20,\)$"):
        wanda_mask(W, torch.ones(6), 0.5)
    with pytest.raises(InputError, match=r"^mask of another weight: got \(20, 6\) of torch.bool, expected \(6, 20\)"):
        apply_mask(W, torch.ones(20, 6, dtype=torch.bool))
    with pytest.raises(InputError, match=r"^mask of another weight: got \(6, 20\) of torch.float32"):
        apply_mask(W, torch.ones(6, 20))
    with pytest.raises(
        InputError, match=r"^groups of 4 do not divide the inputs: got 18 inputs, expected multiple of 4"
    ):
        two_four_mask(W[:, :18])
    with pytest.raises(InputError, match=r"^m out of range: got 4, expected a whole number, at least 5$"):
        n_m_mask(W, 5, 4)
