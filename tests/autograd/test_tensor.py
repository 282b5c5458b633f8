from __future__ import annotations

import copy
import operator

import numpy as np
import pytest
import torch

from mlsys_lab.autograd import Tensor, nn, no_grad, record
from mlsys_lab.errors import InputError


def test_leaves_get_gradients_and_results_do_not():
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    assert y.node.op == "mul"
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
    assert y.grad is None and y.requires_grad and y.node.op == "released"


def test_backward_with_a_gradient_is_a_vector_jacobian_product():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    (x * x).backward([[1.0, 0.0], [0.0, -1.0]])
    assert x.grad.tolist() == [[2.0, 0.0], [0.0, -8.0]]


def test_gradients_add_up_over_passes():
    x = Tensor(3.0, requires_grad=True)
    for _ in range(3):
        (x * x).backward()
    assert x.grad.item() == 18.0


def test_backward_from_a_leaf():
    x = Tensor(3.0, requires_grad=True)
    x.backward()
    assert x.grad.item() == 1.0


def test_leaves_do_not_share_gradient_storage():
    a, b = Tensor([1.0, 2.0], requires_grad=True), Tensor([3.0, 4.0], requires_grad=True)
    seed = torch.ones(2)
    (a + b).backward(seed)
    a.grad.zero_()
    assert b.grad.tolist() == [1.0, 1.0] and seed.tolist() == [1.0, 1.0]
    a.grad = b.grad = None
    (a.reshape(1, 2).T.reshape(2) + b[:2]).backward(seed)
    a.grad.zero_()
    assert b.grad.tolist() == [1.0, 1.0] and seed.tolist() == [1.0, 1.0]


def test_leaf_gradients_can_be_changed_element_by_element():
    x = Tensor(torch.ones(2, 3), requires_grad=True)
    x.mean().backward()  # the vjp returns one number, broadcast
    x.grad[0, 0] = 5.0
    assert x.grad[0, 0] == 5.0 and torch.equal(x.grad.flatten()[1:], torch.full((5,), 1 / 6))


def test_second_pass_over_a_released_graph():
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(InputError, match=r"released.*retain_graph=True"):
        y.backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_second_pass_over_a_retained_graph():
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).exp().sum()
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    torch.testing.assert_close(x.grad, 2 * once)


def test_a_shared_part_released_by_another_result():
    x = Tensor(2.0, requires_grad=True)
    shared = x * x
    a, b = shared * 3.0, shared * 5.0
    a.backward()
    with pytest.raises(InputError, match="released"):
        b.backward()


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (lambda: Tensor([1.0, 2.0], requires_grad=True).backward(), r"one element: got shape \(2,\)"),
        (lambda: Tensor([1.0], requires_grad=True).backward([1.0, 2.0]), r"shape: got \(2,\), expected \(1,\)"),
        (lambda: Tensor(1.0).backward(), "needs no gradient"),
        (lambda: Tensor([1, 2], requires_grad=True), "got dtype torch.int64"),
        (lambda: Tensor([True], requires_grad=True), "got dtype torch.bool"),
        (lambda: Tensor([1.0, 2.0]).item(), "one element"),
        (lambda: len(Tensor(1.0)), "no length"),
        (lambda: torch.tensor(Tensor([1.0])), "x.data is the torch tensor"),
        (lambda: Tensor([Tensor(1.0), Tensor(2.0)]), "list of Tensors is no array; help: cat"),
        (lambda: Tensor([1.0], dtype="float32"), "not a dtype: got float32"),
        (lambda: Tensor(10**30), "Overflow"),
        (lambda: Tensor([1.0]).sum("a"), "an axis is a whole number: got a"),
        (lambda: Tensor([1.0]).sum(0.5), "an axis is a whole number: got 0.5"),
        (lambda: bool(Tensor([1.0, 2.0]) > 0), r"truth value is for tensors of one element: got shape \(2,\)"),
        (lambda: float(Tensor([1.0, 2.0])), r"float\(\) is for tensors of one element"),
        (lambda: Tensor([1.0, 2.0]) < Tensor([1.0, 2.0, 3.0]), "lt: "),
    ],
)
def test_bad_input(compute, words):
    with pytest.raises(InputError, match=words):
        compute()


def test_no_grad_records_nothing():
    x = Tensor([1.0], requires_grad=True)
    with no_grad():
        y = x * 2
    assert not y.requires_grad and y.node is None
    with pytest.raises(InputError, match="outside no_grad"):
        y.backward()
    assert (x * 2).requires_grad


def test_no_grad_as_a_decorator_and_after_an_exception():
    @no_grad()
    def double(x):
        return x * 2

    x = Tensor([1.0], requires_grad=True)
    assert not double(x).requires_grad
    with pytest.raises(ZeroDivisionError), no_grad():
        raise ZeroDivisionError
    assert (x * 2).requires_grad


def test_detach_shares_storage_and_forgets_history():
    x = Tensor([1.0], requires_grad=True)
    y = (x * 2).detach()
    assert not y.requires_grad
    z = x.detach()
    z.data[0] = 5.0
    assert x.item() == 5.0


def test_torch_autograd_never_sees_storage_even_when_it_records():
    x = Tensor(torch.randn(3, 3), requires_grad=True)
    with torch.enable_grad():
        y = ((x @ x).softmax().log() * x[[0, 1, 1]]).sum()
    assert not y.data.requires_grad and y.data.grad_fn is None
    y.backward()
    assert not x.grad.requires_grad


def test_comparisons_are_elementwise_and_have_no_gradient():
    x = Tensor([-1.0, 0.0, 2.0], requires_grad=True)
    for relation in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        for other in (0, torch.tensor([2.0, 0.0, 2.0]), Tensor([2.0, 0.0, 2.0]), np.array([[1.0], [2.0]])):
            got = relation(x, other)
            theirs = other if isinstance(other, int) else Tensor(other).data
            assert not got.requires_grad
            assert torch.equal(got.data, relation(x.data, theirs))
    assert x.max() == 2.0 and x.sum() > 0
    assert not x.sum() > 1
    assert (float(Tensor(2.5)), int(Tensor([3])), {x: 1}[x]) == (2.5, 3, 1)


def test_attributes():
    x = Tensor([[1.0, 2.0, 3.0]])
    assert (x.shape, x.ndim, x.dtype, x.device.type, len(x)) == ((1, 3), 2, torch.float32, "cpu", 1)
    assert x.numpy().tolist() == [[1.0, 2.0, 3.0]]
    assert Tensor(2.5).item() == 2.5
    assert "requires_grad=True" in repr(Tensor(1.0, requires_grad=True))
    assert repr(Tensor([1.0]).exp()) == "Tensor([2.7183])"
    assert "op=exp" in repr(Tensor([1.0], requires_grad=True).exp())


def test_an_operation_of_ones_own():
    x = Tensor([1.0, 2.0], requires_grad=True)
    x_data = x.data
    y = record(x_data.sin(), (x, lambda g: g * x_data.cos()))
    y.sum().backward()
    torch.testing.assert_close(x.grad, x_data.cos())


@pytest.mark.gpu
def test_a_step_on_the_gpu_equals_the_step_on_the_cpu():
    grads = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        data = torch.randn(5, 7, dtype=torch.float64)
        x = Tensor(data, requires_grad=True, device=device)
        assert x.device.type == device
        y = (x @ x.T).softmax().log().gelu() + x.mean(1, keepdims=True).exp()
        (y[[0, 0, 3]] * 2).sum().backward()
        assert x.grad.device.type == device
        grads.append(x.grad.cpu())
    torch.testing.assert_close(*grads)


@pytest.mark.gpu
def test_operands_on_two_devices():
    with pytest.raises(InputError, match="on cuda"):
        Tensor(torch.ones(2)) + Tensor(torch.ones(2), device="cuda")


@pytest.mark.gpu
def test_gradients_travel_between_devices():
    x = Tensor([1.0, 2.0], requires_grad=True)
    (x.to("cuda") * 3.0).sum().backward()
    assert x.grad.device.type == "cpu" and x.grad.tolist() == [3.0, 3.0]


def test_what_is_no_array_is_not_equal_to_a_tensor():
    x = Tensor([1.0, 2.0])
    for other in (None, "a", object(), {}):
        assert (x == other) is False and (other == x) is False and (x != other) is True
    assert x in [None, x]
    with pytest.raises(InputError, match="cannot make a tensor of this: got NoneType"):
        x > None  # noqa: B015


def test_conversions():
    x = Tensor([1.0, -2.0], requires_grad=True)
    assert (f"{x.sum():.2f}", f"{Tensor(3):d}", f"{Tensor([2.0])}") == ("-1.00", "3", "Tensor([2.])")
    with pytest.raises(InputError, match=r"the format '.1f' is for tensors of one element: got shape \(2,\)"):
        f"{x:.1f}"
    assert np.asarray(x).dtype == np.float32 and np.array(x, dtype=np.float64).tolist() == [1.0, -2.0]
    assert np.asarray(x).base is not None and not np.shares_memory(np.array(x, copy=True), x.numpy())
    assert type(Tensor(3).item()) is int and type(Tensor(3.0).item()) is float
    assert repr(Tensor([1.5], dtype=torch.bfloat16)) == "Tensor([1.5])"
    assert x.reshape(np.int64(2)).sum(np.int64(0)).item() == -1.0
    assert not x.to(torch.int64).requires_grad


def test_a_leaf_is_copied_deeply_and_a_result_is_not():
    x = Tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    twin = copy.deepcopy(x)
    twin.data.zero_()
    twin.grad.zero_()
    assert (x.data.tolist(), x.grad.tolist(), twin.requires_grad) == ([1.0, 2.0], [2.0, 4.0], True)
    module = nn.Linear(2, 2)
    again = copy.deepcopy([module, module])
    assert again[0] is again[1] and isinstance(again[0].weight, nn.Parameter)
    with pytest.raises(InputError, match="only leaves can be copied: got a result of mul"):
        copy.deepcopy(x * x)
