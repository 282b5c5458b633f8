from __future__ import annotations

import random
import subprocess
import sys
import threading
import weakref

import torch
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.autograd import Tensor, cat, no_grad, nodes


def test_nodes_come_in_an_order_to_go_back_in():
    x = Tensor([1.0, 2.0], requires_grad=True)
    a = x * 2
    b = a.exp()
    c = (a + b).sum()
    assert [node.op for node in nodes(c.node)] == ["sum", "add", "exp", "mul"]
    assert nodes(x.node) == []


def test_backward_frees_saved_arrays_while_it_goes():
    """When the first operation's vjp runs, the arrays that later operations saved are gone already."""
    x = Tensor(torch.ones(4), requires_grad=True)
    alive: list[bool] = []
    first = x * 2
    target, vjp = first.node.edges[0]

    def watch(g):
        alive.append(saved() is not None)
        return vjp(g)

    first.node.edges = ((target, watch),)
    y = first.exp()
    saved = weakref.ref(y.data)
    y = y.sum()
    assert saved() is not None
    y.backward()
    assert alive == [False]


def test_results_that_no_vjp_needs_are_freed_at_once():
    x = Tensor(torch.ones(4), requires_grad=True)
    y = x + 1
    middle = weakref.ref(y.data)
    y = y + 1
    assert middle() is None


def test_a_graph_without_backward_is_freed_without_the_garbage_collector():
    x = Tensor(torch.ones(4), requires_grad=True)
    y = x.exp()
    saved = weakref.ref(y.data)
    y = (y * y).sum()
    assert saved() is not None
    del y
    assert saved() is None


def test_no_grad_holds_in_its_own_thread_only():
    x = Tensor([1.0], requires_grad=True)
    recorded = []
    with no_grad():
        thread = threading.Thread(target=lambda: recorded.append((x * 2).requires_grad))
        thread.start()
        thread.join()
        recorded.append((x * 2).requires_grad)
    assert recorded == [True, False]


CHAIN = """
from mlsys_lab.autograd import Tensor
for backward in (True, False):
    x = Tensor(0.0, requires_grad=True)
    y = x
    for _ in range(50_000):
        y = y + x
    if backward:
        y.backward()
        assert x.grad.item() == 50_001
    del y
print("freed")
"""


def test_a_chain_of_50_000_operations_differentiates_and_is_freed():
    run = subprocess.run([sys.executable, "-c", CHAIN], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "freed"), run.stderr


def _cat(a, b):
    joined = cat([a, b]) if isinstance(a, Tensor) else torch.cat([a, b])
    return joined[1:4]


OPERATIONS = [
    lambda a, b: a + b,
    lambda a, b: (a * b).tanh(),
    lambda a, b: a - b * 0.5,
    lambda a, b: a / (b * b + 1),
    lambda a, b: (a * a).mean() + b,
    _cat,
]


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 30))
def test_random_graphs_agree_with_torch(seed, size):
    rng = random.Random(seed)
    data = [torch.tensor([rng.uniform(-1, 1) for _ in range(3)], dtype=torch.float64) for _ in range(3)]
    ours, theirs = [Tensor(d, requires_grad=True) for d in data], [d.clone().requires_grad_() for d in data]
    for _ in range(size):
        operation, i, j = rng.choice(OPERATIONS), rng.randrange(len(ours)), rng.randrange(len(ours))
        ours.append(operation(ours[i], ours[j]))
        theirs.append(operation(theirs[i], theirs[j]))
    (ours[-1] * ours[-2]).sum().backward()
    (theirs[-1] * theirs[-2]).sum().backward()
    for tensor, leaf in zip(ours[:3], theirs[:3], strict=True):
        assert (tensor.grad is None) == (leaf.grad is None)
        if leaf.grad is not None:
            torch.testing.assert_close(tensor.grad, leaf.grad)
