# %% [markdown]
# # Lab 01 · Autograd: build the engine
#
# Every framework that trains a neural network stands on one idea: remember what was computed, then walk back over it
# and multiply local derivatives. You will write that engine yourself, from a single multiplication to a classifier of
# handwritten digits, and then make it fit into a fraction of the memory.
#
# **You will build**
#
# 1. a scalar engine: numbers that remember where they came from, and a backward pass that no graph is too deep for;
# 2. a tensor engine: broadcasting, matrix products, reductions, indexing, a cross-entropy that never overflows;
# 3. a classifier that reads digits with at least 95 % test accuracy, trained by your engine alone;
# 4. activation checkpointing: the same gradients under a byte budget, for one extra forward pass.
#
# **At the end you can answer**
#
# - Why does one backward pass give *all* derivatives, and what does it cost beside the forward pass?
# - Why does a gradient add up where a value is used twice, and why must a bias's gradient be summed over the batch?
# - How many FLOPs does one training step take, and how many bytes does its graph hold, before anything has run?
# - Why is the square root of the depth the magic number of checkpointing?
#
# **Time:** about 270 minutes (each task says its share). **Points:** 100. **You need:** Python, NumPy-style arrays, the
# chain rule, matrix products. No lab comes before this one; chapter 02, *Automatic differentiation*, gives the
# background.
#
# **Readings it leans on:** *karpathy/micrograd* (`micrograd`), *CSC321 Lecture 10: Automatic Differentiation*
# (`grosse-autodiff`), *Computing Neural Network Gradients* (`clark-gradient-notes`), *Training Deep Nets with Sublinear
# Memory Cost* (`chen2016sublinear`), *Overview of PyTorch Autograd Engine* (`pytorch-autograd-overview`).
#
# **How it works.** Put your code in place of each line that raises `NotImplementedError`, run the cell, then run the
# `check` cell below it: it says at once what was wrong, what it got, what it expected, and gives a hint. Cells that
# begin with `#| export` make up your engine, the module that is graded and that later labs run on. Scratch cells
# anywhere else are yours. Grading runs the same checks with other numbers and a few more cases.

# %%
import torch

from mlsys_lab.checks import lab

torch.set_num_threads(1)  # products as small as these take longer to share out than to compute
check = lab("autograd")

# %%
#| export
import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

# %% [markdown]
# ## Task 1 · A number that remembers
#
# *About 25 minutes.*
#
# A **computation graph** has one node for each number that was ever computed. A node keeps its value, and one **edge**
# for each operand it was made from. Going back, the edge has a job: it takes the gradient that has arrived at the node
# and says how much of it belongs to the operand. For $z = f(x, y)$ and a final result $L$, the chain rule gives
#
# $$\frac{\partial L}{\partial x} \mathrel{+}= \frac{\partial L}{\partial z}\cdot\frac{\partial f}{\partial x}, \qquad
#   \frac{\partial L}{\partial y} \mathrel{+}= \frac{\partial L}{\partial z}\cdot\frac{\partial f}{\partial y}.$$
#
# So an edge is a pair `(operand, vjp)`, and `vjp(g)` returns $g \cdot \partial f/\partial x$. (The name stands for
# vector-Jacobian product, which is what it becomes once values are arrays.) Addition is written out for you: forward
# and backward stand side by side, in one line. Its edges are a tuple of pairs; with one operand that is
# `((self, vjp),)`, and the comma counts. Where a derivative is 0, the edge stays: its operand is to hear of it. Write
# the other five in the same way:
#
# | operation | value | derivative |
# |---|---|---|
# | `a * b` | $ab$ | $b$ and $a$ |
# | `a ** p`, $p$ a plain number | $a^p$ | $p\,a^{p-1}$; $0$ if $p = 0$, at $a = 0$ too |
# | `a.exp()` | $e^a$ | $e^a$ |
# | `a.tanh()` | $\tanh a$ | $1 - \tanh^2 a$ |
# | `a.relu()` | $\max(a, 0)$ | $1$ where $a > 0$, else $0$ |
#
# Two things to mind. Nothing may overflow where value and slope are finite: `tanh` of 1000 is 1. Infinities are numbers
# too: `relu` of $-\infty$ is 0, and a product will not do, since $0\cdot\infty$ is NaN. (Where there is no answer,
# Python says so, and that is right: `exp` of 1000 raises `OverflowError`, $0^{-1}$ `ZeroDivisionError`.) And a `vjp`
# should use plain numbers of the forward pass, never the node that it belongs to: node → edge → vjp → node would be a
# ring, and Python frees a ring late. With scalars nobody notices. With tensors it is the memory you have not got
# (Task 8).
#
# **Size:** about 2 lines each. **Cost:** each edge does a constant amount of work, so a backward pass over the whole
# graph costs a small constant times the forward pass, however many inputs there are.


# %% nbgrader={"solution": true, "grade_id": "task-1-value"}
#| export
class Value:
    """One number in a computation graph.

    data    the number
    grad    d(result) / d(this number), added up by `backward`; 0.0 at first
    edges   one pair (operand, vjp) for each use of an operand; none for an input
    """

    def __init__(self, data: float, edges: tuple = (), op: str = "", label: str = "") -> None:
        self.data = float(data)
        self.grad = 0.0
        self.edges = edges
        self.op = op
        self.label = label

    def __repr__(self) -> str:
        return f"Value({self.label + '=' if self.label else ''}{self.data:.6g}, grad={self.grad:.6g})"

    def accumulate(self, grad: float) -> None:
        """Add a gradient that has arrived."""
        self.grad += grad

    def backward(self) -> None:
        """Task 2 gives this its meaning."""
        backward(self, 1.0)

    def __add__(self, other: "Value | float") -> "Value":
        """self + other: the gradient passes on to both, unchanged."""
        other = as_value(other)
        return Value(self.data + other.data, ((self, lambda g: g), (other, lambda g: g)), "+")

    def __mul__(self, other: "Value | float") -> "Value":
        """self · other. About 2 lines."""
        other = as_value(other)
        ### BEGIN SOLUTION
        a, b = self.data, other.data
        return Value(a * b, ((self, lambda g: g * b), (other, lambda g: g * a)), "*")
        ### END SOLUTION

    def __pow__(self, power: float) -> "Value":
        """self to a power that is a plain number. About 2 lines."""
        ### BEGIN SOLUTION
        slope = power * self.data ** (power - 1) if power else 0.0
        return Value(self.data**power, ((self, lambda g: g * slope),), f"**{power:g}")
        ### END SOLUTION

    def exp(self) -> "Value":
        """e to the power of self. About 2 lines."""
        ### BEGIN SOLUTION
        value = math.exp(self.data)
        return Value(value, ((self, lambda g: g * value),), "exp")
        ### END SOLUTION

    def tanh(self) -> "Value":
        """Hyperbolic tangent. About 2 lines."""
        ### BEGIN SOLUTION
        value = math.tanh(self.data)
        return Value(value, ((self, lambda g: g * (1 - value**2)),), "tanh")
        ### END SOLUTION

    def relu(self) -> "Value":
        """max(self, 0), with slope 0 at 0. About 2 lines."""
        ### BEGIN SOLUTION
        slope = 1.0 if self.data > 0 else 0.0
        return Value(max(self.data, 0.0), ((self, lambda g: g * slope),), "relu")
        ### END SOLUTION

    # Everything else is made of those.
    def __neg__(self) -> "Value":
        return self * -1.0

    def __sub__(self, other: "Value | float") -> "Value":
        return self + as_value(other) * -1.0

    def __truediv__(self, other: "Value | float") -> "Value":
        return self * as_value(other) ** -1

    def __radd__(self, other: float) -> "Value":
        return self + other

    def __rmul__(self, other: float) -> "Value":
        return self * other

    def __rsub__(self, other: float) -> "Value":
        return as_value(other) - self

    def __rtruediv__(self, other: float) -> "Value":
        return as_value(other) / self


def as_value(x: "Value | float") -> Value:
    """A plain number becomes an input of the graph."""
    return x if isinstance(x, Value) else Value(x)


# %% nbgrader={"grade": true, "grade_id": "value_arithmetic"}
check("value_arithmetic")

# %% nbgrader={"grade": true, "grade_id": "value_functions"}
check("value_functions")

# %% [markdown]
# ## Task 2 · Walk back
#
# *About 35 minutes.*
#
# The graph for $e = ab + a$ uses $a$ twice. Its gradient is the sum over both ways back:
# $\partial e/\partial a = b + 1$. A node may pass its gradient on only when *every* gradient it will ever get has
# arrived. An order in which each node stands after all of its operands (a **topological order**) makes that easy: walk
# it from the end.
#
# **2a.** `topological_order(root)`: a list of every node that `root` depends on, each once, operands before results,
# `root` last. Two traps, both seen in real engines: a recursive search dies at a depth of about a thousand, and a
# search that does not remember where it has been needs $2^n$ steps for $n$ doublings `x = x + x`. Use a stack of your
# own and a set.
#
# **2b.** `backward(root, seed)`: add $\partial\,\mathrm{root}/\partial\,\mathrm{node} \cdot \mathrm{seed}$ to every
# node, by calling `node.accumulate(...)`, with a 0 too. Keep the gradients that are still travelling in a dictionary of
# this call: a pass that ended in an error leaves nothing to the next one then, nor a pass within a pass (Task 8). If
# they travelled in `node.grad` itself, a second `backward` would pass the first one's gradients on again.
# Use only `edges` and `accumulate`, once for each node: the same lines will then run your tensors in Task 4. Two habits
# pay off there. Write `a = a + b`, not `a += b`, because `+=` changes an array in place, and somebody else may hold the
# same array. And take a gradient out (`pop`) once it is passed on: whatever you still hold counts in Task 8.
#
# **Size:** about 10 lines and about 8 lines. **Cost:** one visit per node and one `vjp` per edge.


# %% nbgrader={"solution": true, "grade_id": "task-2-backward"}
#| export
def topological_order(root: Any) -> list:
    """Every node that root depends on, each once, operands before results; root comes last. About 10 lines."""
    ### BEGIN SOLUTION
    order, seen, stack = [], set(), [(root, False)]
    while stack:
        node, operands_done = stack.pop()
        if operands_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((operand, False) for operand, _ in node.edges)
    return order
    ### END SOLUTION


def backward(root: Any, seed: Any) -> None:
    """Call node.accumulate(seed · d root / d node) once for root and every node that it depends on. About 8 lines.

    seed is what arrives at root: a number for a Value, from Task 4 on a torch.Tensor of root's shape.
    """
    ### BEGIN SOLUTION
    travelling = {root: seed}
    for node in reversed(topological_order(root)):
        grad = travelling.pop(node)
        node.accumulate(grad)
        for operand, vjp in node.edges:
            share = vjp(grad)
            travelling[operand] = travelling[operand] + share if operand in travelling else share
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "topological_order"}
check("topological_order")

# %% nbgrader={"grade": true, "grade_id": "backward_reuse"}
check("backward_reuse")

# %% nbgrader={"grade": true, "grade_id": "backward_deep"}
check("backward_deep")

# %% [markdown]
# **See it.** This is your graph, walked in your order. Step through it, and say at each step which number comes next.

# %%
from mlsys_lab.widgets import BackwardGraph, show


def picture(root: Value) -> list[dict]:
    """The nodes of a graph in the order that topological_order gives them."""
    order = topological_order(root)
    names = {node: f"n{i}" for i, node in enumerate(order)}
    return [
        {
            "id": names[node],
            "label": node.label,
            "op": node.op,
            "parents": [names[operand] for operand, _ in node.edges],
            "data": node.data,
            "grad": node.grad,
        }
        for node in order
    ]


a, b, c = Value(2.0, label="a"), Value(-3.0, label="b"), Value(10.0, label="c")
d = a * b + c
e = d * a
d.label, e.label = "d", "e"
e.backward()
BackwardGraph(graph=picture(e))

# %% [markdown]
# ## Task 3 · The backward pass through broadcasting
#
# *About 25 minutes.*
#
# From here on a node holds an array. Its `data` is a `torch.Tensor`, but only as storage: the derivatives are yours,
# and the checks run with torch's own autograd switched off.
#
# Broadcasting is the one thing that arrays add to the chain rule. In `logits + bias` with shapes (64, 10) and (10,),
# each bias is *used* 64 times. What is used many times gets the sum of many gradients. In general, broadcasting copies,
# and the adjoint of copying is summing: for every $x$ and every $g$ of the broadcast shape,
#
# $$\langle \mathrm{broadcast}(x),\, g\rangle = \langle x,\, \mathrm{unbroadcast}(g)\rangle .$$
#
# **Predict first.** Write your guess into the next cell before you write any code: an array of shape (3, 1) is
# multiplied by one of shape (2, 3, 4). How many numbers are added up for *each* entry of the first one's gradient?

# %%
guess = None  # your number

if guess is None:
    print("Write a number first, then go on.")
else:
    copies = torch.ones(3, 1).expand(2, 3, 4).numel() // 3
    hint = f"Not {guess}: count the positions of (2, 3, 4) that read the same entry of (3, 1)."
    print("Right." if guess == copies else hint)

# %% [markdown]
# **Write** `unbroadcast(grad, shape)`: sum away the axes that broadcasting put in front, and sum (keeping the axis)
# where an axis of size 1 was stretched. A shape that was not broadcast comes back as it is.
#
# **Size:** about 6 lines. **Cost:** one addition per element of `grad`.


# %% nbgrader={"solution": true, "grade_id": "task-3-unbroadcast"}
#| export
def unbroadcast(grad: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Sum grad, whose shape `shape` broadcasts to, back down to `shape`. About 6 lines."""
    ### BEGIN SOLUTION
    while grad.ndim > len(shape):
        grad = grad.sum(0)
    for axis, size in enumerate(shape):
        if size == 1 and grad.shape[axis] != 1:
            grad = grad.sum(axis, keepdim=True)
    return grad
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "unbroadcast"}
check("unbroadcast")

# %% [markdown]
# ## Task 4 · Tensors: elementwise and matrix products
#
# *About 35 minutes.*
#
# The class below is only notation: it turns `x * y` into `mul(x, y)`. The mathematics stands in functions outside of
# it, and you write them. Read `node`: it drops the edges to operands that want no gradient, so no work is ever done for
# them, and inside `no_grad()` it keeps none at all. Only inputs (tensors without edges) keep a `.grad`.


# %%
#| export
class Tensor:
    """An array in a computation graph; `data` is a torch.Tensor of floats, used as storage only.

    grad           a torch.Tensor like data, added up by `backward`; None before. Only inputs that require one keep it.
    requires_grad  whether anything is to flow back to here
    edges          one pair (operand, vjp) for each use of an operand; vjp maps this tensor's gradient (a torch.Tensor
                   of this shape) to that use's share of the operand's gradient (of the operand's shape)
    """

    recording = True

    def __init__(self, data: Any, requires_grad: bool = False, edges: tuple = (), op: str = "") -> None:
        data = torch.as_tensor(data)
        self.data = data if data.is_floating_point() else data.to(torch.get_default_dtype())
        self.requires_grad = requires_grad
        self.grad: torch.Tensor | None = None
        self.edges = edges
        self.op = op

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, op={self.op or 'input'})"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def T(self) -> "Tensor":
        return permute(self, (*range(self.ndim - 2), -1, -2))

    def item(self) -> float:
        return self.data.item()

    def detach(self) -> "Tensor":
        return Tensor(self.data)

    def accumulate(self, grad: torch.Tensor) -> None:
        """Add a gradient that has arrived, if this is an input that wants one."""
        if self.requires_grad and not self.edges:
            self.grad = grad.clone() if self.grad is None else self.grad + grad

    def backward(self, grad: torch.Tensor | None = None) -> None:
        """Gradients with respect to every input that requires one; `grad` is needed unless this is a single number."""
        if grad is None and self.data.numel() != 1:
            raise ValueError(f"backward starts from a single number: got shape {self.shape}; help: sum first")
        backward(self, torch.ones_like(self.data) if grad is None else grad)

    def __add__(self, other: Any) -> "Tensor":
        return add(self, as_tensor(other, self))

    def __mul__(self, other: Any) -> "Tensor":
        return mul(self, as_tensor(other, self))

    def __matmul__(self, other: "Tensor") -> "Tensor":
        return matmul(self, other)

    def __pow__(self, power: float) -> "Tensor":
        return power_of(self, power)

    def __neg__(self) -> "Tensor":
        return self * -1.0

    def __sub__(self, other: Any) -> "Tensor":
        return self + as_tensor(other, self) * -1.0

    def __truediv__(self, other: Any) -> "Tensor":
        return self * as_tensor(other, self) ** -1.0

    def __radd__(self, other: Any) -> "Tensor":
        return self + other

    def __rmul__(self, other: Any) -> "Tensor":
        return self * other

    def __rsub__(self, other: Any) -> "Tensor":
        return as_tensor(other, self) - self

    def __rtruediv__(self, other: Any) -> "Tensor":
        return as_tensor(other, self) / self

    def __getitem__(self, key: Any) -> "Tensor":
        return index(self, key)

    def exp(self) -> "Tensor":
        return exp(self)

    def log(self) -> "Tensor":
        return log(self)

    def tanh(self) -> "Tensor":
        return tanh(self)

    def relu(self) -> "Tensor":
        return relu(self)

    def sum(self, axis: "int | tuple[int, ...] | None" = None, keepdims: bool = False) -> "Tensor":
        return reduce_sum(self, axis, keepdims)

    def mean(self, axis: "int | tuple[int, ...] | None" = None, keepdims: bool = False) -> "Tensor":
        total = reduce_sum(self, axis, keepdims)
        return total * (total.data.numel() / self.data.numel())

    def reshape(self, *shape: int) -> "Tensor":
        return reshape(self, shape)

    def permute(self, *axes: int) -> "Tensor":
        return permute(self, axes)


def as_tensor(x: Any, like: Tensor) -> Tensor:
    """A plain number or array becomes an input that wants no gradient, of the dtype and on the device of `like`."""
    return x if isinstance(x, Tensor) else Tensor(torch.as_tensor(x, dtype=like.dtype, device=like.device))


def node(data: torch.Tensor, op: str, *edges: tuple[Tensor, Callable]) -> Tensor:
    """The result of an operation, with those edges that lead to operands which want a gradient."""
    live = tuple(edge for edge in edges if edge[0].requires_grad) if Tensor.recording else ()
    return Tensor(data, requires_grad=bool(live), edges=live, op=op)


@contextlib.contextmanager
def set_grad_enabled(mode: bool) -> Iterator[None]:
    """Remember what is computed, or do not; afterwards as before."""
    before, Tensor.recording = Tensor.recording, mode
    try:
        yield
    finally:
        Tensor.recording = before


def no_grad() -> contextlib.AbstractContextManager[None]:
    """Compute without remembering."""
    return set_grad_enabled(False)


def enable_grad() -> contextlib.AbstractContextManager[None]:
    """Remember what is computed, inside `no_grad()` too."""
    return set_grad_enabled(True)


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y, broadcast. An example of an operation of two operands."""
    return node(x.data + y.data, "+", (x, lambda g: unbroadcast(g, x.shape)), (y, lambda g: unbroadcast(g, y.shape)))


def power_of(x: Tensor, power: float) -> Tensor:
    """x ** power, elementwise, for a plain number. An example of an operation of one operand."""
    lower = power - 1 if power else 0  # the slope of x⁰ is 0, at x = 0 too: 0 · 0⁻¹ would be NaN
    return node(x.data**power, f"**{power:g}", (x, lambda g: g * power * x.data**lower))


def permute(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Reorder the axes; in the backward pass, put them in their old order."""
    axes = tuple(axis % x.ndim for axis in axes)
    back = tuple(axes.index(axis) for axis in range(x.ndim))
    return node(x.data.permute(axes), "permute", (x, lambda g: g.permute(back)))


# %% [markdown]
# **Write** `mul`, `exp`, `log`, `tanh`, `relu` and `matmul`. Each returns `node(result, name, (operand, vjp), …)` like
# the examples above: one pair after the other, and no tuple around them. `x.data` and `g` are `torch.Tensor`s, and
# again no vjp may use the node that it belongs to. Results and gradients keep the dtype of what they are made from,
# half and double precision too. Values are those of mathematics at infinities too: `relu` of $-\infty$ is 0, as for a
# `Value`, `log` of 0 is $-\infty$ and of a negative number NaN, as torch has them. And an array need not lie in one
# piece of memory: it may be a transpose.
#
# For `matmul`, with $Z = XY$ and
# $G = \partial L/\partial Z$,
#
# $$\frac{\partial L}{\partial X} = G\,Y^{\mathsf T}, \qquad \frac{\partial L}{\partial Y} = X^{\mathsf T} G .$$
#
# You need not remember that: the shapes leave no other choice. Both operands have at least two axes; axes in front of
# the last two are a batch and broadcast, so a weight of shape (k, n) may meet a batch of shape (b, m, k).
#
# **Size:** about 2 lines each, 5 for `mul` and `matmul`. **Cost:** for (m, k) @ (k, n), $2mkn$ FLOPs forward and twice
# that back: one product of the same size for each operand, in the vjp of its own edge. This is where "backward costs
# twice the forward" comes from.


# %% nbgrader={"solution": true, "grade_id": "task-4-tensor"}
#| export
def mul(x: Tensor, y: Tensor) -> Tensor:
    """x · y elementwise, broadcast. About 5 lines."""
    ### BEGIN SOLUTION
    return node(
        x.data * y.data,
        "*",
        (x, lambda g: unbroadcast(g * y.data, x.shape)),
        (y, lambda g: unbroadcast(g * x.data, y.shape)),
    )
    ### END SOLUTION


def exp(x: Tensor) -> Tensor:
    """Elementwise e to the power of x. About 2 lines."""
    ### BEGIN SOLUTION
    value = x.data.exp()
    return node(value, "exp", (x, lambda g: g * value))
    ### END SOLUTION


def log(x: Tensor) -> Tensor:
    """Elementwise natural logarithm. About 2 lines."""
    ### BEGIN SOLUTION
    return node(x.data.log(), "log", (x, lambda g: g / x.data))
    ### END SOLUTION


def tanh(x: Tensor) -> Tensor:
    """Elementwise hyperbolic tangent. About 2 lines."""
    ### BEGIN SOLUTION
    value = x.data.tanh()
    return node(value, "tanh", (x, lambda g: g * (1 - value * value)))
    ### END SOLUTION


def relu(x: Tensor) -> Tensor:
    """Elementwise max(x, 0), with slope 0 at 0. About 2 lines."""
    ### BEGIN SOLUTION
    return node(x.data.clamp(min=0), "relu", (x, lambda g: g * (x.data > 0)))
    ### END SOLUTION


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """x (…, m, k) @ y (…, k, n) → (…, m, n); batch axes in front broadcast. About 5 lines."""
    ### BEGIN SOLUTION
    return node(
        x.data @ y.data,
        "@",
        (x, lambda g: unbroadcast(g @ y.data.mT, x.shape)),
        (y, lambda g: unbroadcast(x.data.mT @ g, y.shape)),
    )
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "tensor_elementwise"}
check("tensor_elementwise")

# %% nbgrader={"grade": true, "grade_id": "tensor_matmul"}
check("tensor_matmul")

# %% [markdown]
# ## Task 5 · Sums, shapes and picking out
#
# *About 30 minutes.*
#
# These three do no arithmetic to speak of; they move numbers about, and the backward pass moves the gradients home.
#
# - `reduce_sum(x, axis, keepdims)`: each summed element gets a copy of the sum's gradient. `axis` is an int (negative
#   counts from the end), a tuple of ints (one at least), or `None` for all. With `keepdims=False` the axis is gone from
#   the gradient: put it back before you expand.
# - `reshape(x, shape)`: the gradient takes the old shape. One entry of `shape` may be −1.
# - `index(x, key)`: `key` is whatever `x.data[key]` takes: ints, slices, masks, integer tensors, lists of ints, `None`,
#   tuples of those. In the backward pass the picked positions get their gradient and all others 0. An element that was
#   picked twice gets *both* gradients, and that is the trap: `out[key] += g` counts it once. A neat way round: index an
#   array of positions, `torch.arange(n).reshape(x.shape)[key]` for $n$ elements, and add with `index_add_`, which does
#   count repeats.
#
# **Size:** about 7, 1 and 6 lines. **Cost:** bytes, not FLOPs: the backward pass of `index` writes as many zeros as `x`
# has elements.


# %% nbgrader={"solution": true, "grade_id": "task-5-shapes"}
#| export
def reduce_sum(x: Tensor, axis: "int | tuple[int, ...] | None" = None, keepdims: bool = False) -> Tensor:
    """Sum over the given axes (all when None); keepdims leaves them with size 1. About 7 lines."""
    ### BEGIN SOLUTION
    if axis is None:
        axis = tuple(range(x.ndim))
    axes = {a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis)}
    kept = tuple(1 if a in axes else size for a, size in enumerate(x.shape))
    gone = tuple(size for a, size in enumerate(x.shape) if a not in axes)
    total = x.data.sum(tuple(axes), keepdim=True) if axes else x.data
    return node(total.reshape(kept if keepdims else gone), "sum", (x, lambda g: g.reshape(kept).expand(x.shape)))
    ### END SOLUTION


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in another shape. About 1 line."""
    ### BEGIN SOLUTION
    return node(x.data.reshape(tuple(shape)), "reshape", (x, lambda g: g.reshape(x.shape)))
    ### END SOLUTION


def index(x: Tensor, key: Any) -> Tensor:
    """x[key]; in the backward pass, gradients of an element that was picked more than once add up. About 6 lines."""
    ### BEGIN SOLUTION
    n = x.data.numel()

    def scatter(g: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(n, device=g.device).reshape(x.shape)[key]
        grad = torch.zeros(n, dtype=g.dtype, device=g.device)
        return grad.index_add_(0, positions.reshape(-1), g.reshape(-1)).reshape(x.shape)

    return node(x.data[key], "index", (x, scatter))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "tensor_sum"}
check("tensor_sum")

# %% nbgrader={"grade": true, "grade_id": "tensor_index"}
check("tensor_index")

# %% [markdown]
# ## Task 6 · A loss that never overflows
#
# *About 30 minutes.*
#
# For one example with logits $z \in \mathbb R^C$ and the true class $y$, the loss is the negative log-probability
#
# $$\ell = -\log \frac{e^{z_y}}{\sum_c e^{z_c}} = \log\sum_c e^{z_c} - z_y .$$
#
# In float32, $e^{89}$ is infinite, and nothing keeps a logit below 89. Adding a constant to all logits of an example
# changes nothing in exact arithmetic, so subtract the largest: every exponent is then at most 0 and at least one is
# exactly 0. Subtract it from $z_y$ as well: added to a million, the logarithm would lose its digits in float32.
#
# The gradient is the reason why this loss is one operation and not five:
#
# $$\frac{\partial \ell}{\partial z_c} = p_c - [c = y], \qquad p = \mathrm{softmax}(z).$$
#
# It is bounded, and it needs no logarithm and no division by a probability that may have become 0.
#
# **Write** `cross_entropy(logits, labels)`: the *mean* loss over a batch, as one `node`. Its vjp runs once for each
# backward pass, so it must leave what it reads as it was. A logit of $-\infty$ rules a class out, which is then no
# example's label: $p$ is 0, and nothing is NaN.
#
# **Size:** about 8 lines. **Cost:** a few FLOPs per logit, and $4BC$ bytes of float32 probabilities kept for the
# backward pass. With a vocabulary of 100,000 that is often the largest array of a whole training step.


# %% nbgrader={"solution": true, "grade_id": "task-6-cross-entropy"}
#| export
def cross_entropy(logits: Tensor, labels: torch.Tensor) -> Tensor:
    """Mean of −log softmax(logits)[label] over the batch.

    logits (B, C) floats of any size, −∞ too; labels (B,) int64 in 0..C−1. Returns a single number. About 8 lines.
    """
    ### BEGIN SOLUTION
    rows = torch.arange(len(labels), device=logits.device)
    shifted = logits.data - logits.data.amax(dim=1, keepdim=True)
    log_p = shifted - shifted.exp().sum(dim=1, keepdim=True).log()

    def vjp(g: torch.Tensor) -> torch.Tensor:
        grad = log_p.exp()
        grad[rows, labels] -= 1.0
        return grad * (g / len(labels))

    return node(-log_p[rows, labels].mean(), "cross_entropy", (logits, vjp))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "cross_entropy"}
check("cross_entropy")

# %% [markdown]
# ## Task 7 · Train it
#
# *About 45 minutes.*
#
# The engine is complete. A layer and a batch loop are given; the four ideas that make it learn are yours.
#
# - `MLP.__call__`: apply the layers in turn, with `relu` after each but the last (its outputs are logits). A layer may
#   stand in the list twice, and the list stays as it is, also where a layer raises.
# - `SGD.step`: with momentum $\mu$ and learning rate $\eta$, for each parameter, $v \leftarrow \mu v + \nabla$ and
#   $\theta \leftarrow \theta - \eta v$, with $v = 0$ at first. Between steps, $\mu$ and $\eta$ may change, and $v$ is
#   kept where $\mu = 0$ too (PyTorch's own forgets it then). Work on `p.data`: an update is no part of the graph. A
#   parameter whose `grad` is `None` stays as it is.
# - `train_step`: clear the old gradients (they add up!) by `optimiser.zero_grad()`, loss, backward, step. The model may
#   be any function of a `Tensor`, and runs once. Images and labels come as plain `torch.Tensor`s; the model wants
#   `Tensor(x)`. Return the loss as a plain number.
# - `train_classifier`: choose widths, learning rate, batch size and epochs; `fit`, with a `torch.Generator` of fixed
#   seed, from which the first weights come too (torch's own is everybody's: leave it alone), and the given `progress`;
#   return the most likely class for each test image, whatever others come with it, and the losses. Leave the images as
#   they are. Not every class need be among the training images. Aim: at least 95 % on images that the training has not
#   seen. One test of 360 images may be unlucky: the check asks for 91.6 % of them, three standard errors less. A few
#   seconds of training are enough.
#
# **Size:** about 4, 4, 5 and 6 lines.


# %% nbgrader={"solution": true, "grade_id": "task-7-train"}
#| export
class Linear:
    """x (…, n_in) → x @ weight + bias (…, n_out).

    Weights are drawn with variance 2 / n_in, so that relu layers neither shrink nor blow up what passes through them.
    """

    def __init__(self, n_in: int, n_out: int, generator: torch.Generator | None = None) -> None:
        self.weight = Tensor(torch.randn(n_in, n_out, generator=generator) * math.sqrt(2 / n_in), requires_grad=True)
        self.bias = Tensor(torch.zeros(n_out), requires_grad=True)

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias

    def parameters(self) -> list[Tensor]:
        return [self.weight, self.bias]


class MLP:
    """Linear layers with relu in between. MLP(64, 128, 10): (B, 64) → (B, 128) → (B, 10)."""

    def __init__(self, *widths: int, generator: torch.Generator | None = None) -> None:
        self.layers = [Linear(n_in, n_out, generator) for n_in, n_out in itertools.pairwise(widths)]

    def __call__(self, x: Tensor) -> Tensor:
        """x (B, widths[0]) → logits (B, widths[-1]). About 4 lines."""
        ### BEGIN SOLUTION
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)
        ### END SOLUTION

    def parameters(self) -> list[Tensor]:
        return [p for layer in self.layers for p in layer.parameters()]


class SGD:
    """Stochastic gradient descent with momentum."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.0) -> None:
        self.parameters = list(parameters)
        self.lr, self.momentum = lr, momentum
        self.velocity = [torch.zeros_like(p.data) for p in self.parameters]

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient. About 4 lines."""
        ### BEGIN SOLUTION
        for p, v in zip(self.parameters, self.velocity, strict=True):
            if p.grad is not None:
                v.mul_(self.momentum).add_(p.grad)
                p.data -= self.lr * v
        ### END SOLUTION


def train_step(model: Callable[[Tensor], Tensor], optimiser: SGD, x: torch.Tensor, y: torch.Tensor) -> float:
    """One step on images x (B, n) with labels y (B,); the loss before the step. About 5 lines."""
    ### BEGIN SOLUTION
    optimiser.zero_grad()
    loss = cross_entropy(model(Tensor(x)), y)
    loss.backward()
    optimiser.step()
    return loss.item()
    ### END SOLUTION


def fit(
    model: MLP,
    optimiser: SGD,
    x: torch.Tensor,
    y: torch.Tensor,
    epochs: int,
    batch_size: int,
    generator: torch.Generator,
    progress: Callable[[Iterable], Iterable] = iter,
) -> list[float]:
    """Pass over the data `epochs` times in shuffled batches; the loss of every step."""
    losses = []
    for _ in progress(range(epochs)):
        for batch in torch.randperm(len(x), generator=generator).split(batch_size):
            losses.append(train_step(model, optimiser, x[batch], y[batch]))
    return losses


def train_classifier(
    x_train: torch.Tensor,
    y_train: torch.Tensor,
    x_test: torch.Tensor,
    progress: Callable[[Iterable], Iterable] = iter,
) -> tuple[torch.Tensor, list[float]]:
    """Learn from x_train (N, 64), floats of about 0 to 1, with labels y_train (N,), int64 in 0..9.

    Returns the predicted labels of x_test (M, 64), one image or many: integers of shape (M,), and the loss of every
    step. About 6 lines.
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(0)
    model = MLP(64, 128, 10, generator=generator)
    optimiser = SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = fit(model, optimiser, x_train, y_train, 20, 64, generator, progress)
    with no_grad():
        return model(Tensor(x_test)).data.argmax(dim=1), losses
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "mlp_forward"}
check("mlp_forward")

# %% nbgrader={"grade": true, "grade_id": "sgd"}
check("sgd")

# %% nbgrader={"grade": true, "grade_id": "train_step"}
check("train_step")

# %% [markdown]
# **Predict, then measure.** Count only matrix products, 2 FLOPs per multiply-add. A layer from $n$ to $m$ units with a
# batch of $B$ costs $2Bnm$ forward. Back, its weight's gradient costs the same, and so does the gradient of its input.
# But who asks for the gradient of the *images*? Nobody, so `node` has dropped that edge. **Write** the FLOPs of one
# `train_step`.
#
# **Size:** about 3 lines.


# %% nbgrader={"solution": true, "grade_id": "task-7-flops"}
#| export
def predict_step_flops(batch: int, widths: Sequence[int]) -> int:
    """FLOPs of all matrix products in one train_step of MLP(*widths) on a batch. About 3 lines."""
    ### BEGIN SOLUTION
    forward = [2 * batch * n * m for n, m in itertools.pairwise(widths)]
    return 3 * sum(forward) - forward[0]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "step_flops"}
check("step_flops")

# %% [markdown]
# Now measure: torch can count the FLOPs of the products that really ran.

# %%
from torch.utils.flop_counter import FlopCounterMode

widths, batch = (64, 128, 128, 10), 64
model = MLP(*widths)
optimiser = SGD(model.parameters(), lr=0.1)
x, y = torch.rand(batch, widths[0]), torch.randint(0, widths[-1], (batch,))
with FlopCounterMode(display=False) as counter:
    train_step(model, optimiser, x, y)
print(f"predicted {predict_step_flops(batch, widths):,} FLOPs, measured {counter.get_total_flops():,}")

# %% [markdown]
# And train. The bar and the curve come from your own `train_classifier`.

# %%
import plotly.graph_objects as go
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from mlsys_lab.widgets.progress import track

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
parts = train_test_split(images, labels, test_size=0.2, random_state=0)
x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in parts)
predicted, losses = train_classifier(x_train, y_train, x_test, progress=track)
print(f"test accuracy {(predicted == y_test).float().mean():.1%} on {len(y_test)} images")
curve = go.Figure(go.Scatter(y=losses, name="loss"))
curve.update_layout(xaxis_title="step", yaxis_title="loss", yaxis_type="log")
show(curve, alt="Loss of each training step, falling", height=320)

# %% nbgrader={"grade": true, "grade_id": "train_digits"}
check("train_digits")

# %% [markdown]
# **Where did the time go?** A bound first. If this machine did nothing but matrix products, at the speed of a large
# one, your predicted FLOPs would take $\mathrm{FLOPs} / (\mathrm{FLOP/s})$ seconds. Both are measured here in the same
# run. Say before you run it: at which batch size will a step come near the bound, and what fills the time when it does
# not?

# %%
from mlsys_lab.benchmark import compare


def one_step(batch: int) -> Callable[[], float]:
    """A training step on random images, ready to be timed."""
    model = MLP(*widths)
    optimiser = SGD(model.parameters(), lr=0.1)
    x, y = torch.rand(batch, widths[0]), torch.randint(0, widths[-1], (batch,))
    return lambda: train_step(model, optimiser, x, y)


widths, batches = (64, 256, 256, 10), (1, 8, 64, 512, 4096)
square = torch.rand(1024, 1024)
calls = {"product": lambda: square @ square} | {f"batch {batch}": one_step(batch) for batch in batches}
timings = compare(calls, samples=9).timings  # warmed up, and in turns: a slow moment strikes all alike
flops_per_s = 2 * 1024**3 / timings["product"].p50_s
steps = [timings[f"batch {batch}"].p50_s for batch in batches]
bounds = [predict_step_flops(batch, widths) / flops_per_s for batch in batches]
print(f"a large matrix product: {flops_per_s / 1e9:.0f} GFLOP/s")
for batch, step_s, bound_s in zip(batches, steps, bounds, strict=True):
    share = f"{bound_s / step_s:6.1%} of the bound"
    print(f"batch {batch:5d}: {step_s * 1e3:8.2f} ms a step, bound {bound_s * 1e3:8.3f} ms, {share}")
figure = go.Figure([go.Scatter(x=batches, y=steps, name="your step"), go.Scatter(x=batches, y=bounds, name="bound")])
figure.update_layout(xaxis_title="batch", yaxis_title="seconds", xaxis_type="log", yaxis_type="log")
show(figure, alt="Time of a training step and its bound against the batch size", height=320)

# %% [markdown]
# A small batch pays for Python, for starting one operation after the other, and for updating every weight however few
# images there were. None of that grows with the batch, and the products do: the share of the bound rises. Then it
# levels off, because biases, relu and their gradients grow with the batch as well. They do a FLOP or less for each
# number that they move, so memory sets their pace, and once the results of a large batch no longer fit into the caches
# the share may even fall. Where does it turn on your machine?

# %% [markdown]
# ## Task 8 · Fewer bytes, one more forward
#
# *About 45 minutes.*
#
# The backward pass needs what the forward pass computed, so the graph holds it all until the end. Below is a stack of
# $n$ layers $h \leftarrow \tanh(hW + b)$. Each layer makes three results of $B \times D$ numbers (product, sum, tanh),
# and in your engine each is held by the edges that lead to it.
#
# **8a. Predict the bytes.** `predict_graph_bytes`: what the graph of a float32 stack holds when the forward pass is
# done (the results only, not the input and not the weights).
#
# **8b. Checkpoint.** Forget the inside of a segment in the forward pass, and run the segment once more when the
# gradient arrives: `checkpoint(fn, x)` returns `fn(x)`, computed without a graph, with a single edge to `x`. Its vjp
# runs `fn` again *with* a graph, on an input of its own, sends `g` backward through it, and hands on the gradient of
# that input, or zeros where `fn` stops it (by `detach`). Weights that `fn` uses get their gradients on the way, as
# always. Inside `no_grad()` it keeps no edge, as every other operation: a checkpoint within a checkpoint is to forget
# too. `backward` may be called in there as well: the second run records all the same, with `enable_grad()`. And where
# `fn` raises, in either run, the engine is to record afterwards if it did before. One trap, known from real frameworks:
# if `x` is the data and wants no gradient, `node` would drop the only edge and the weights would learn nothing.
#
# **8c. How many segments?** With $k$ segments of at most $\lceil n/k\rceil$ layers, the worst moment holds $k$ segment
# outputs and the graph of one whole segment. Write `predict_checkpointed_bytes` (gradients in flight not counted), and
# `choose_segments`, the $k$ that makes it least; the smaller $k$ if two are equal. For $k + 3n/k$ the minimum lies at
# $k = \sqrt{3n}$: memory grows with the square root of the depth.
#
# **8d.** `checkpoint_sequential`: cut the layers into at most $k$ pieces of at most $\lceil n/k\rceil$ layers and
# checkpoint each, the last one too (PyTorch's own runs that one plainly: whatever is computed afterwards finds its
# graph still held). The list of layers is the caller's: leave it as it is, and do not count on it later, since the
# caller may empty it before the backward pass.
#
# **Size:** about 1, 10, 2, 1 and 5 lines. **Cost:** one extra forward pass: 4 instead of 3 units of work, so about a
# third more time.


# %% nbgrader={"solution": true, "grade_id": "task-8-checkpoint"}
#| export
def predict_graph_bytes(batch: int, width: int, layers: int) -> int:
    """Bytes of results that the float32 graph of a stack of tanh(h @ W + b) layers holds. About 1 line."""
    ### BEGIN SOLUTION
    return 3 * layers * batch * width * 4
    ### END SOLUTION


def run_layers(layers: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
    """Apply the layers in turn."""
    for layer in layers:
        x = layer(x)
    return x


def checkpoint(fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """fn(x) that forgets its inside and computes it again in the backward pass. About 10 lines.

    Gradients of x, and of every input that fn uses, are as without it. fn runs once forward and once per backward.
    """
    ### BEGIN SOLUTION
    with no_grad():
        value = fn(x.detach()).data
    anchor = x if x.requires_grad else Tensor(x.data, requires_grad=True)

    def vjp(g: torch.Tensor) -> torch.Tensor:
        again = Tensor(x.data, requires_grad=True)
        with enable_grad():
            result = fn(again)
        backward(result, g)
        return torch.zeros_like(x.data) if again.grad is None else again.grad

    return node(value, "checkpoint", (anchor, vjp))
    ### END SOLUTION


def predict_checkpointed_bytes(batch: int, width: int, layers: int, segments: int) -> int:
    """Bytes of results held at the worst moment, gradients in flight not counted. About 2 lines."""
    ### BEGIN SOLUTION
    return (segments + 3 * math.ceil(layers / segments)) * batch * width * 4
    ### END SOLUTION


def choose_segments(layers: int) -> int:
    """The number of segments that holds least; the smaller of two that are equal. About 1 line."""
    ### BEGIN SOLUTION
    return min(range(1, layers + 1), key=lambda segments: predict_checkpointed_bytes(1, 1, layers, segments))
    ### END SOLUTION


def checkpoint_sequential(layers: Sequence[Callable[[Tensor], Tensor]], x: Tensor, segments: int) -> Tensor:
    """run_layers in `segments` checkpointed pieces of at most ceil(len(layers) / segments) layers. About 5 lines."""
    ### BEGIN SOLUTION
    size = math.ceil(len(layers) / segments)
    for start in range(0, len(layers), size):
        part = layers[start : start + size]
        x = checkpoint(lambda h, part=part: run_layers(part, h), x)
    return x
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "graph_bytes"}
check("graph_bytes")

# %% nbgrader={"grade": true, "grade_id": "checkpoint"}
check("checkpoint")

# %% nbgrader={"grade": true, "grade_id": "checkpointed_bytes"}
check("checkpointed_bytes")

# %% nbgrader={"grade": true, "grade_id": "checkpoint_memory"}
check("checkpoint_memory")

# %% [markdown]
# **See it.** Bytes held at each layer, in the forward and in the backward pass, by your engine. `watch` hands a tensor
# on and notes how much the graph holds at that moment.

# %%
from mlsys_lab.benchmark.memory import track_memory


def watch(h: Tensor, memory: track_memory, trace: list[int]) -> Tensor:
    """The same numbers; notes the bytes held when they pass, and again when their gradient passes."""

    def note(g: torch.Tensor) -> torch.Tensor:
        trace.append(memory.current_bytes)
        return g

    return node(note(h.data), "watch", (h, note))


def run_stack(segments: int | None, layers: int = 64, batch: int = 1024, width: int = 64) -> tuple[list[int], int]:
    """Forward and back through a deep stack: the bytes held from layer to layer, and the most at any moment."""
    weights = [Tensor(torch.randn(width, width) / math.sqrt(width), requires_grad=True) for _ in range(layers)]
    biases = [Tensor(torch.zeros(width), requires_grad=True) for _ in range(layers)]
    x, seed, trace = Tensor(torch.randn(batch, width)), torch.ones(batch, width), []
    with track_memory() as memory:
        stack = [
            lambda h, w=w, b=b: watch((h @ w + b).tanh(), memory, trace) for w, b in zip(weights, biases, strict=True)
        ]
        result = run_layers(stack, x) if segments is None else checkpoint_sequential(stack, x, segments)
        backward(result, seed)
    return trace, memory.peak_bytes


best = choose_segments(64)
traces = {"plain": run_stack(None)[0], f"{best} segments": run_stack(best)[0]}
figure = go.Figure([go.Scatter(y=trace, name=name) for name, trace in traces.items()])
figure.add_hline(y=predict_graph_bytes(1024, 64, 64), line_dash="dot", annotation_text="predicted: plain")
figure.add_hline(
    y=predict_checkpointed_bytes(1024, 64, 64, best), line_dash="dot", annotation_text="predicted: checkpointed"
)
figure.update_layout(xaxis_title="layers passed, forward and back", yaxis_title="bytes held", yaxis_rangemode="tozero")
show(figure, alt="Bytes held over a forward and backward pass, plain and checkpointed")

# %% [markdown]
# The plain curve climbs to your prediction and stays there until the end: your engine lets go of a graph as a whole.
# The checkpointed one is a saw, one tooth a segment. Now the worst moment against the number of segments.

# %%
best = choose_segments(64)
counts = sorted({1, 2, 4, 8, best, 16, 24, 32, 64})
measured = [run_stack(segments)[1] for segments in counts]
predicted = [predict_checkpointed_bytes(1024, 64, 64, segments) for segments in counts]
figure = go.Figure(
    [
        go.Scatter(x=counts, y=predicted, name="predicted"),
        go.Scatter(x=counts, y=measured, name="measured", mode="markers"),
    ]
)
figure.update_layout(xaxis_title="segments", yaxis_title="most bytes held", xaxis_type="log", yaxis_rangemode="tozero")
show(figure, alt="Most bytes held against the number of segments, predicted and measured")
print(f"least predicted at {best} segments; √(3n) = {math.sqrt(3 * 64):.1f}")

# %% [markdown]
# What lies between the points and the line is what your formula left out: gradients in flight, a few arrays of
# $B \times D$, and the gradients of the weights.
#
# ## Answer for yourself
#
# - Your engine holds the product and the sum of each layer as well as the tanh. Which of the three do the vjps really
#   read? A graph node that held only those (torch's do) would keep a third. What would you change in `Tensor` to get
#   there?
# - A checkpoint inside of a checkpoint takes the exponent further down: what would the memory be with $\log n$ levels,
#   and how often would a layer run?
# - A dropout layer inside of a checkpointed segment must drop the same units in both runs. What would `checkpoint` have
#   to remember?
# - Your graph keeps one edge per operand. In forward mode there would be none at all: for which shapes of function is
#   that better?
#
# When all checks pass, save the notebook and run `mlsys-lab check autograd` in a terminal: your engine is then what the
# later labs run on.
