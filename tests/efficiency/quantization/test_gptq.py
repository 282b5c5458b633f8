"""Error-compensated rounding: the loss that it reports, below that of rounding to nearest, and the paper's form."""

import pytest
import torch

from mlsys_lab.efficiency.quantization import Int4Linear, compensate
from mlsys_lab.efficiency.quantization.gptq import DAMPING, hessian
from mlsys_lab.efficiency.quantization.layers import AffineGrid
from mlsys_lab.errors import InputError

O, I, N = 6, 64, 300
W = torch.randn(O, I, generator=torch.Generator().manual_seed(0)).double()


def inputs(seed=1, rank=20):
    """Inputs that hang together, as activations do: mixtures of fewer sources, with a little noise."""
    generator = torch.Generator().manual_seed(seed)
    sources, mixture = torch.randn(N, rank, generator=generator), torch.randn(rank, I, generator=generator)
    return (sources @ mixture + 0.1 * torch.randn(N, I, generator=generator)).double()


def loss(layer, x):
    off = (layer.weight() - W).double()
    return torch.einsum("oi,ij,oj->o", off, hessian(x), off)


@pytest.mark.parametrize("group", [16, 64])
def test_the_error_that_it_reports_is_the_error(group):
    layer, error = compensate(W, inputs(), group_size=group)
    torch.testing.assert_close(error, loss(layer, inputs()), rtol=1e-4, atol=0)


@pytest.mark.parametrize("seed", range(5))
def test_outputs_are_nearer_than_those_of_weights_rounded_to_nearest(seed):
    x = inputs(seed)
    compensated, nearest = compensate(W, x).layer, Int4Linear.from_weight(W)
    errors = [((layer.weight().double() - W) @ x.T).square().sum() for layer in (compensated, nearest)]
    assert errors[0] < 0.5 * errors[1]
    assert (compensated.weight() - W).norm() > (nearest.weight() - W).norm()  # the weights themselves are further off


def test_inputs_that_have_nothing_to_do_with_each_other_leave_nothing_to_mend():
    x = 3 * torch.eye(I).double()
    assert torch.equal(compensate(W, x).layer.weight(), Int4Linear.from_weight(W).weight())


def test_it_is_optimal_brain_quantisation_column_by_column():
    """The update in its first form (equations 2 and 3): the inverse of the Hessian of what is left, for each column."""
    x, left, off = inputs(), W.clone(), []
    grid = AffineGrid(W)
    for column in range(I):
        inverse = torch.linalg.inv(hessian(x)[column:, column:])
        rounded = grid.decode(grid.encode(left[:, column]), left[:, column])
        left[:, column:] -= (left[:, column] - rounded)[:, None] * inverse[0] / inverse[0, 0]
        off.append(rounded)
    torch.testing.assert_close(compensate(W, x).layer.weight().double(), torch.stack(off, -1), rtol=1e-6, atol=1e-6)


def test_the_hessian_is_damped_by_a_share_of_its_mean():
    x = inputs()
    expected = x.T @ x
    expected += DAMPING * expected.diagonal().mean() * torch.eye(I)
    torch.testing.assert_close(hessian(x), expected)
    assert hessian(torch.nn.functional.pad(x, (0, 3))).diagonal()[-1] > 0  # an input that is never used


def test_bad_inputs_are_one_line():
    with pytest.raises(InputError, match="calibration inputs are all zero"):
        compensate(W, torch.zeros(5, I))
    with pytest.raises(InputError, match=r"inputs of another layer: got \(5, 3\), expected \(n, 64\)"):
        compensate(W, torch.ones(5, 3))
    with pytest.raises(InputError, match="groups do not divide the inputs: got groups of 60"):
        compensate(W, inputs(), group_size=60)
