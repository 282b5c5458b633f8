from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mlsys_lab.autograd import Tensor, cross_entropy, nn, optim
from mlsys_lab.errors import InputError


def torch_mlp(*sizes):
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (optim.SGD, torch.optim.SGD, {"lr": 0.1}),
        (optim.SGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
        (optim.AdamW, torch.optim.AdamW, {"lr": 1e-3}),
    ],
)
def test_training_steps_of_an_mlp_equal_those_of_torch(draw, dtype, ours, theirs, options):
    torch.manual_seed(0)
    module = nn.MLP(7, 13, 11, 5).to(dtype)
    torch.manual_seed(0)
    reference = torch_mlp(7, 13, 11, 5).to(dtype)
    ours, theirs = ours(module.parameters(), **options), theirs(reference.parameters(), **options)
    x, y = draw(17, 7, dtype=dtype), torch.arange(17) % 5
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-12}
    for _ in range(8):
        loss, expected = cross_entropy(module(Tensor(x)), y), F.cross_entropy(reference(x), y)
        torch.testing.assert_close(loss.data, expected.detach(), **tolerance)
        ours.zero_grad()
        theirs.zero_grad()
        loss.backward()
        expected.backward()
        ours.step()
        theirs.step()
    for p, q in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.data, q.detach(), **tolerance)


def test_layers_start_as_torch_starts_them():
    torch.manual_seed(3)
    ours = nn.Linear(5, 3)
    torch.manual_seed(3)
    theirs = torch.nn.Linear(5, 3)
    assert torch.equal(ours.weight.data, theirs.weight.detach()) and torch.equal(ours.bias.data, theirs.bias.detach())
    assert nn.Linear(5, 3, bias=False).bias is None


def test_layers_compute_what_torch_layers_do(draw):
    x = draw(2, 3, 5)
    for ours, theirs in [
        (nn.Linear(5, 4), torch.nn.Linear(5, 4)),
        (nn.LayerNorm(5), torch.nn.LayerNorm(5)),
        (nn.RMSNorm(5), torch.nn.RMSNorm(5, eps=1e-6)),
    ]:
        ours.to(torch.float64)
        ours.load_state_dict(theirs.to(torch.float64).state_dict())
        torch.testing.assert_close(ours(Tensor(x)).data, theirs(x).detach())
    table, rows = torch.nn.Embedding(7, 3), torch.tensor([[1, 6], [0, 1]])
    ours = nn.Embedding(7, 3)
    ours.load_state_dict(table.state_dict())
    torch.testing.assert_close(ours(rows).data, table(rows).detach())


class Tied(nn.Module):
    def __init__(self):
        self.inner = nn.Sequential(nn.Linear(2, 2), Tensor.relu, nn.Linear(2, 2, bias=False))
        self.scale = nn.Parameter([1.0])
        self.again = self.inner.layers[2].weight
        self.constant = Tensor([2.0])


def test_parameters_are_found_where_they_stand_and_counted_once():
    module = Tied()
    names = [name for name, _ in module.named_parameters()]
    assert names == ["inner.0.weight", "inner.0.bias", "inner.2.weight", "scale", "again"]
    assert len(module.parameters()) == 4
    assert [type(m).__name__ for m in module.modules()] == ["Tied", "Sequential", "Linear", "Linear"]


def test_state_goes_from_one_module_to_another_and_is_a_copy():
    a, b = nn.MLP(3, 4, 2), nn.MLP(3, 4, 2)
    state = a.state_dict()
    b.load_state_dict(state)
    x = Tensor(torch.ones(1, 3))
    assert torch.equal(a(x).data, b(x).data)
    optimizer = optim.SGD(a.parameters(), 1.0)
    a(x).sum().backward()
    optimizer.step()
    assert torch.equal(b.state_dict()["0.weight"], state["0.weight"])
    assert not torch.equal(a.state_dict()["0.weight"], state["0.weight"])


def test_state_that_does_not_fit_changes_nothing():
    module = nn.MLP(3, 4, 2)
    before = module.state_dict()
    good = {name: torch.zeros_like(value) for name, value in before.items()}
    renamed = {("head.weight" if name == "2.weight" else name): value for name, value in good.items()}
    with pytest.raises(InputError, match=r"unknown: head.weight; missing: 2.weight"):
        module.load_state_dict(renamed)
    with pytest.raises(InputError, match=r"2.bias: got \(3,\), expected \(2,\)"):
        module.load_state_dict(good | {"2.bias": torch.zeros(3)})
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_training_mode_reaches_every_module():
    module = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    x = Tensor(torch.ones(100))
    torch.manual_seed(0)
    assert set(module(x).data.tolist()) == {0.0, 4.0}
    assert module.eval()(x) is x
    assert module.train() is module and module.layers[1].layers[0].training


def test_zero_grad_and_to():
    module = nn.MLP(3, 2)
    module(Tensor(torch.ones(1, 3))).sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    module.zero_grad()
    assert all(p.grad is None for p in module.parameters())
    assert {p.dtype for p in module.to(torch.float64).parameters()} == {torch.float64}


def test_bad_input():
    with pytest.raises(InputError, match="sizes of input and output"):
        nn.MLP(3)
    with pytest.raises(InputError, match="int64"):
        nn.Parameter([1, 2])
    with pytest.raises(NotImplementedError, match="Tied does not define forward"):
        Tied()(Tensor([1.0]))


@pytest.mark.gpu
def test_a_module_trains_on_the_gpu():
    module = nn.MLP(3, 4, 2).to("cuda")
    x, y = Tensor(torch.ones(5, 3), device="cuda"), torch.zeros(5, dtype=torch.int64)
    optimizer = optim.AdamW(module.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


class Nested(nn.Module):
    def __init__(self):
        self.heads = {"a": nn.Linear(2, 1, bias=False), "b": nn.Linear(2, 1, bias=False)}
        self.grid = [[nn.LayerNorm(2)], (nn.RMSNorm(2),)]
        self.sizes = {"a": 1, "b": [2, 3]}


class NestedInTorch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = torch.nn.ModuleDict({name: torch.nn.Linear(2, 1, bias=False) for name in "ab"})
        self.grid = torch.nn.ModuleList(
            [torch.nn.ModuleList([torch.nn.LayerNorm(2)]), torch.nn.ModuleList([torch.nn.RMSNorm(2)])]
        )


def test_parameters_are_found_in_lists_and_dictionaries_by_torchs_names():
    ours, theirs = Nested(), NestedInTorch()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())


def test_states_are_arrays_of_any_kind():
    module = nn.Linear(2, 2)
    for state in (
        {"weight": np.ones((2, 2)), "bias": [0.0, 1.0]},
        {"weight": Tensor(torch.ones(2, 2)), "bias": nn.Parameter([0.0, 1.0])},
        {"weight": torch.ones(2, 2, dtype=torch.float64), "bias": torch.nn.Parameter(torch.tensor([0.0, 1.0]))},
    ):
        module.load_state_dict({name: torch.zeros_like(value) for name, value in module.state_dict().items()})
        module.load_state_dict(state)
        assert module.weight.data.tolist() == [[1.0, 1.0]] * 2 and module.bias.data.tolist() == [0.0, 1.0]
        assert module.weight.dtype == torch.float32
    with pytest.raises(InputError, match="a state is arrays by name: got list"):
        module.load_state_dict([1.0])


def test_a_layer_without_inputs_is_its_bias():
    module = nn.Linear(0, 3)
    assert module(np.ones((2, 0), np.float32)).data.tolist() == [module.bias.data.tolist()] * 2
