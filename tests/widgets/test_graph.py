from __future__ import annotations

from types import SimpleNamespace

import micrograd.engine as micrograd
import pytest

from mlsys_lab import autograd
from mlsys_lab.errors import InputError
from mlsys_lab.widgets import graph_data
from mlsys_lab.widgets.graph import MAX_NODES


def value(data: float, op: str = "", parents: object = (), grad: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(data=data, grad=grad, _prev=parents, _op=op)


def test_parents_come_before_children_and_the_root_is_last() -> None:
    x, y, z = micrograd.Value(-2.0), micrograd.Value(5.0), micrograd.Value(-4.0)
    f = (x + y) * z
    f.backward()
    nodes = graph_data(f, {"x": x, "y": y, "z": z, "f": f})
    place = {node["id"]: i for i, node in enumerate(nodes)}
    assert all(place[parent] < place[node["id"]] for node in nodes for parent in node["parents"])
    assert nodes[-1]["label"] == "f"
    assert {node["label"]: (node["data"], node["grad"]) for node in nodes} == {
        "x": (-2.0, -4.0), "y": (5.0, -4.0), "z": (-4.0, 3.0), "": (3.0, -4.0), "f": (-12.0, 1.0),
    }  # fmt: skip


def test_gradients_are_absent_before_a_backward_pass() -> None:
    assert [node["grad"] for node in graph_data(micrograd.Value(1.0) + 2.0)] == [None, None, None]


def test_a_value_used_twice_is_one_node_with_two_edges() -> None:
    x = micrograd.Value(3.0)
    nodes = graph_data(x * x)
    assert [node["parents"] for node in nodes] == [[], ["n0", "n0"]]


def test_edges_with_slopes_are_read_too() -> None:
    a, b = (SimpleNamespace(data=d, grad=0.0, edges=(), op="", label=name) for d, name in ((2.0, "a"), (3.0, "b")))
    q = SimpleNamespace(data=2 / 3, grad=0.0, edges=((a, 1 / 3), (b, -2 / 9)), op="/", label="")
    assert [(node["label"], node["op"], node["parents"]) for node in graph_data(q)] == [
        ("a", "", []), ("b", "", []), ("", "/", ["n0", "n1"]),
    ]  # fmt: skip


def test_a_minus_with_one_operand_is_a_negation() -> None:
    assert graph_data(value(-1.0, "-", (value(1.0),)))[-1]["op"] == "neg"


def test_a_difference_without_order_is_not_guessed() -> None:
    assert graph_data(value(1.0, "-", (value(3.0), value(2.0))))[-1]["op"] == "-"
    a, b = micrograd.Value(3.0), micrograd.Value(2.0)
    assert graph_data(micrograd.Value(1.0, (a, b), "-"))[-1]["op"] == "- (order not recorded)"


def test_a_deep_graph_is_refused_without_recursion() -> None:
    x = value(1.0)
    for _ in range(5000):
        x = value(1.0, "exp", (x,))
    with pytest.raises(InputError, match=f"more than {MAX_NODES} nodes"):
        graph_data(x)


def test_what_cannot_be_drawn_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="a float, expected a scalar value"):
        graph_data(1.5)
    with pytest.raises(InputError, match="not finite"):
        graph_data(value(float("nan")))


def test_this_course_s_engine_is_read_with_its_labels() -> None:
    x, y = autograd.Value(3.0, label="x"), autograd.Value(2.0)
    f = (x - y) ** 2 / y.exp()
    f.backward()
    nodes = graph_data(f, {"y": y})
    assert [(node["label"], node["op"]) for node in nodes] == [
        ("x", ""), ("y", ""), ("", "-"), ("", "**2"), ("", "exp"), ("", "/"),
    ]  # fmt: skip
    assert nodes[-1]["parents"] == ["n3", "n4"] and nodes[0]["grad"] == x.grad
