from __future__ import annotations

import math
import random
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from micrograd.engine import Value as MicrogradValue

from mlsys_lab.autograd import Value, topological_order
from mlsys_lab.errors import InputError


def test_the_textbook_graph():
    x, y, z = Value(-2.0), Value(5.0), Value(-4.0)
    f = (x + y) * z
    f.backward()
    assert (f.data, x.grad, y.grad, z.grad, f.grad) == (-12.0, -4.0, -4.0, 3.0, 1.0)


def test_self_multiplication_and_shared_subexpressions():
    x = Value(3.0)
    square = x * x
    (square + square * square).backward()  # x² + x⁴
    assert x.grad == 2 * 3 + 4 * 27
    assert square.grad == 1 + 2 * 9


def test_difference_and_quotient_of_a_value_with_itself():
    x = Value(3.0)
    (x - x + x / x).backward()
    assert x.grad == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize(
    ("base", "exponent", "power", "slope"),
    [
        (0, 2, 0, 0),
        (0, 1, 0, 1),
        (0, 0, 1, 0),
        (0, 0.5, 0, math.inf),
        (0, 1.5, 0, 0),
        (-2, 3, -8, 12),
        (-2, 0, 1, 0),
        (-2, -2, 0.25, 0.25),
        (-2, -1, -0.5, -0.25),
        (4, 0.5, 2, 0.25),
        (4, -0.5, 0.5, -0.0625),
        (5, 1, 5, 1),
    ],
)
def test_powers(base, exponent, power, slope):
    x = Value(base)
    y = x**exponent
    y.backward()
    assert (y.data, x.grad) == (power, slope)


def test_power_of_two_values():
    x, n = Value(2.0), Value(3.0)
    y = x**n
    y.backward()
    assert (y.data, x.grad) == (8.0, 12.0)
    assert n.grad == pytest.approx(8 * math.log(2))
    zero, two = Value(0.0), Value(2.0)
    (zero**two).backward()
    assert (zero.grad, two.grad) == (0.0, 0.0)
    exponent = Value(3.0)
    (2**exponent).backward()
    assert exponent.grad == pytest.approx(8 * math.log(2))


@pytest.mark.parametrize(
    ("base", "exponent"), [(-2.0, 2.0), (-2.0, -3.0), (-1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (0.0, 2.0)]
)
def test_powers_where_the_logarithm_of_the_base_is_not_real(base, exponent):
    x, n = Value(base), Value(exponent)
    y = x**n
    y.backward()
    leaves = [torch.tensor(number, dtype=torch.float64, requires_grad=True) for number in (base, exponent)]
    expected = leaves[0] ** leaves[1]
    expected.backward()
    assert y.data == expected.item()
    assert [x.grad, n.grad] == pytest.approx([leaf.grad.item() for leaf in leaves], nan_ok=True)


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (lambda: Value(-1.0).log(), "positive"),
        (lambda: Value(0.0).log(), "positive"),
        (lambda: Value(0.0) ** -1, "negative power"),
        (lambda: Value(-8.0) ** (1 / 3), "fractional power"),
        (lambda: Value(1.0) / 0, "division by zero"),
        (lambda: 1 / Value(0.0), "division by zero"),
        (lambda: Value(1000.0).exp(), "larger than a float"),
        (lambda: Value(1e200) ** 2, "larger than a float"),
        (lambda: Value("3"), "one real number"),
        (lambda: Value(10**400), "larger than a float"),
        (lambda: Value(1.0) * 10**5000, "larger than a float"),
        (lambda: Value(1.0) + "3", "one real number"),
        (lambda: Value(1.0) ** None, "one real number"),
    ],
)
def test_bad_input_is_one_clear_line(compute, words):
    with pytest.raises(InputError, match=words) as caught:
        compute()
    assert "\n" not in str(caught.value)


def test_tiny_divisors_do_not_underflow():
    x = Value(1e-170)
    (x / 1e-170).backward()
    assert x.grad == pytest.approx(1e170)
    y = Value(1e-170)
    (1e-200 / y).backward()
    assert y.grad == pytest.approx(-1e140)


def test_backward_twice_doubles_every_gradient_and_no_more():
    x, y = Value(2.0), Value(-3.0)
    f = ((x * y).tanh() + x) * y
    f.backward()
    once = {v: v.grad for v in topological_order(f)}
    f.backward()
    assert all(v.grad == 2 * grad for v, grad in once.items())


def test_backward_from_two_results_adds_up():
    x, y = Value(2.0), Value(5.0)
    shared = x * y
    a, b = shared + 1, shared * 2
    a.backward()
    b.backward()
    assert (x.grad, y.grad, shared.grad) == (15.0, 6.0, 3.0)


def test_changing_data_after_the_forward_pass_changes_no_derivative():
    x, y = Value(2.0), Value(5.0)
    f = x * y
    x.data, y.data = 100.0, 100.0
    f.backward()
    assert (x.grad, y.grad) == (5.0, 2.0)


def test_topological_order_puts_operands_first_and_each_value_once():
    x = Value(1.0)
    a = x + 1
    b = a * x
    f = b + a * b
    order = topological_order(f)
    place = {v: i for i, v in enumerate(order)}
    assert len(place) == len(order) and order[-1] is f
    assert all(place[operand] < place[v] for v in order for operand, _ in v.edges)


def test_diamonds_in_a_row_take_linear_time():
    x = Value(1.0)
    y = x
    for _ in range(500):  # 2^500 paths
        y = y * 0.5 + y * 0.5
    y.backward()
    assert x.grad == 1.0


CHAIN = """
from mlsys_lab.autograd import Value
for backward in (True, False):
    x = Value(1.0)
    y = x
    for _ in range(50_000):
        y = y + 1.0
    if backward:
        y.backward()
        assert x.grad == 1.0 and y.data == 50_001.0
    del y
print("freed")
"""


def test_a_chain_of_50_000_operations_differentiates_and_is_freed():
    # In a process of its own: recursion while freeing would end it with a segmentation fault.
    run = subprocess.run([sys.executable, "-c", CHAIN], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "freed"), run.stderr


UNARY = {
    "relu": lambda v: v.relu(),
    "tanh": lambda v: v.tanh(),
    "exp": lambda v: (v * 0.1).exp(),
    "log": lambda v: (v * v + 1.0).log(),
    "neg": lambda v: -v,
    "cube": lambda v: v**3 * 0.01,
    "inverse": lambda v: (v * v + 1.0) ** -0.5,
    "reflected": lambda v: 1.5 - 2 * v + 3 / (v * v + 2.0),
}
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: (a * b).tanh(),
    "div": lambda a, b: a / (b * b + 1.0),
}


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 40))
def test_random_graphs_agree_with_torch(seed, size):
    rng = random.Random(seed)
    numbers = [rng.uniform(-2, 2) for _ in range(3)]
    ours = [Value(x) for x in numbers]
    theirs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in numbers]
    leaves = list(zip(ours, theirs, strict=True))
    for _ in range(size):
        if rng.random() < 0.5:
            f, i = rng.choice(list(UNARY.values())), rng.randrange(len(ours))
            ours.append(f(ours[i]))
            theirs.append(f(theirs[i]))
        else:
            f, i, j = rng.choice(list(BINARY.values())), rng.randrange(len(ours)), rng.randrange(len(ours))
            ours.append(f(ours[i], ours[j]))
            theirs.append(f(theirs[i], theirs[j]))
    total, expected = ours[-1] + ours[-2] * 0.5, theirs[-1] + theirs[-2] * 0.5
    total.backward()
    expected.backward()
    assert total.data == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    for value, leaf in leaves:
        assert value.grad == pytest.approx(0.0 if leaf.grad is None else leaf.grad.item(), rel=1e-9, abs=1e-12)


def test_micrograd_programs_run_unchanged():
    def program(value):  # the example of micrograd's README
        a, b = value(-4.0), value(2.0)
        c = a + b
        d = a * b + b**3
        c += c + 1
        c += 1 + c + (-a)
        d += d * 2 + (b + a).relu()
        d += 3 * d + (b - a).relu()
        e = c - d
        f = e**2
        g = f / 2.0
        g += 10.0 / f
        g.backward()
        return g.data, a.grad, b.grad

    assert program(Value) == pytest.approx(program(MicrogradValue), rel=1e-14)


def test_names_for_drawings():
    x = Value(2.0, label="x")
    assert (x.label, x.op, x.edges) == ("x", "", ())
    y = x * 3
    assert (y.op, [slope for _, slope in y.edges]) == ("*", [3.0, 2.0])
    assert repr(y) == "Value(data=6.0, grad=0.0)"


def test_comparisons_are_those_of_the_numbers():
    a, b = Value(1.0), Value(2.0)
    assert (a < b, a <= 1, a > b, a < 2, b >= 2.0, a == Value(1.0), a == 1, a != 1) == (
        *(True, True, False, True, True, True, True, False),
    )
    assert (max(a, b), min(a, b), sorted([b, a])[0]) == (b, a, a)
    assert a != None and a != "1"  # noqa: E711
    assert [bool(Value(x)) for x in (0.0, -0.0, 0.1)] == [False, False, True]
    assert len({a, Value(1.0)}) == 2 and {a: 3}[a] == 3
    assert (f"{b:.2f}", f"{b}") == ("2.00", repr(b))
    with pytest.raises(InputError, match="one real number: got str"):
        a < "1"  # noqa: B015
    for convert in (float, int, math.exp):  # the gradient would be lost
        with pytest.raises(TypeError):
            convert(a)


def test_slopes_too_large_for_a_float_are_infinite_where_the_power_is_not():
    for base, exponent, slope in ((1e-200, -1.0, -math.inf), (-1e-200, -1.0, -math.inf), (-1e-110, -2.0, math.inf)):
        x, n = Value(base), torch.tensor(base, dtype=torch.float64, requires_grad=True)
        power, expected = x**exponent, n**exponent
        power.backward()
        expected.backward()
        assert (power.data, x.grad) == (pytest.approx(expected.item()), slope) == (power.data, n.grad.item())


def test_relu_lets_nan_through_as_torch_does():
    x = Value(math.nan)
    y = x.relu()
    y.backward()
    assert math.isnan(y.data) and x.grad == 1.0
