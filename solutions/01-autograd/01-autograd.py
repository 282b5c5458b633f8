# %% [markdown]
# # Lab 01 · Autograd: build the engine
#
# GPT-2 small has 124 million parameters, and training it needs the derivative of the loss with respect to every one of
# them. You could nudge one parameter at a time and run the model again: at 10 ms a run, one training step would take
# two weeks. Reverse-mode automatic differentiation gets all 124 million derivatives from *one* pass backward through
# the computation, for about twice the work of the forward pass. The price is memory. In this lab you write that engine,
# from a single multiplication to a trained classifier, and then bring its memory down.
#
# ```text
#   forward: compute, and record where         backward: each edge multiplies the gradient that
#   each result came from                      arrives by a derivative; gradients add up where they meet
#
#   a = 2 ──┐                                  a.grad = b + 1 ◄── g·b ──┐
#           ├── c = a·b ──┐                        ▲                    ├── g ◄──┐
#   b = -3 ─┘             ├── L = c + a        b.grad = a ◄───── g·a ──┘        ├── g = 1
#   a ────────────────────┘                        └── (the second use of a) g ◄─┘
# ```
#
# **You will build**
#
# - **Part 1, the engine** (about 150 minutes)
#   1. numbers that remember where they came from (`25 min`);
#   2. the backward pass, for graphs of any depth (`35 min`);
#   3. the backward pass through broadcasting (`25 min`);
#   4. tensors: elementwise operations and matrix products (`35 min`);
#   5. sums, shapes and indexing (`30 min`). Then your engine fits a curve.
# - **Part 2, training and memory** (about 120 minutes)
#
#   6. a cross-entropy that never overflows (`30 min`);
#   7. a classifier that reads handwritten digits with 95 % test accuracy (`45 min`);
#   8. activation checkpointing: the same gradients in a fraction of the memory (`45 min`).
#
# Each part is complete in itself, so the end of Part 1 is a good place to stop for the day.
#
# **At the end you can answer**
#
# - Why does one backward pass give *all* derivatives, and what does it cost?
# - Why do gradients add up where a value is used twice, and what has a bias to do with it?
# - Before anything has run: how many FLOPs will a training step take, and how many bytes will its graph hold?
#
# **Time:** about 270 minutes. **Points:** 100. **You need:** Python, arrays as in NumPy or PyTorch, the chain rule and
# matrix products. This is the first lab: nothing comes before it. Background:
# chapter 02, *Automatic differentiation*.
#
# **Readings:** *karpathy/micrograd* (`micrograd`), *CSC321 Lecture 10: Automatic Differentiation* (`grosse-autodiff`),
# *Computing Neural Network Gradients* (`clark-gradient-notes`), *Training Deep Nets with Sublinear Memory Cost*
# (`chen2016sublinear`), *Overview of PyTorch Autograd Engine* (`pytorch-autograd-overview`).
#
# **How it works.** Replace each line that raises `NotImplementedError` by your code and run the cell. Paste the
# example into a new cell to see whether your code does what the text says. Then run the `check` cell below: it says
# what was wrong, what came back, what was expected, and gives a hint. After a restart of the kernel, run all cells
# from the top (*Run → Run All Above Selected Cell*). Cells that start with `#| export` are what is graded, with the
# same checks on other numbers; cells that you add are yours. Names and signatures are those of the course's own
# engine, `mlsys_lab.autograd`, wherever it has the same function.

# %%
import torch

from mlsys_lab.checks import lab

torch.set_num_threads(1)  # matrix products this small are faster on one thread
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
# ## Part 1 · The engine
#
# ## Task 1 · A number that remembers
#
# *About 25 minutes.*
#
# **Goal.** A **computation graph** has a node for every number that was computed. Write operations that return not
# only their result, but also an **edge** to each operand, which knows what to do with a gradient on the way back.
#
# Say $z = f(a, b)$ is computed on the way to a final result $L$, and $g = \partial L/\partial z$ has arrived at $z$. By
# the chain rule, $g \cdot \partial f/\partial a$ is what this operation contributes to the gradient of its operand $a$.
# The edge to $a$ is the pair `(a, vjp)`, where `vjp(g)` returns this product. (VJP stands for vector-Jacobian product,
# which is what it becomes once values are arrays.) `__add__` below is written out: both derivatives are 1, so each vjp
# returns `g` itself.
#
# **Interface.** Each operation returns `Value(result, edges, op)`. `edges` is a tuple of pairs, one pair for each
# operand. With one operand that is `((self, vjp),)`: mind the comma.
#
# | operation | result |
# |---|---|
# | `a * b` | $ab$ |
# | `a ** exponent`, where the exponent is a plain number | $a^p$ |
# | `a.exp()` | $e^a$ |
# | `a.tanh()` | $\tanh a = (e^a - e^{-a})/(e^a + e^{-a})$ |
# | `a.relu()` | $\max(a, 0)$ |
#
# **Example**
#
# ```python
# a, b = Value(2.0), Value(-3.0)
# product = a * b
# product.data  # → -6.0
# [vjp(10.0) for operand, vjp in product.edges]  # → [-30.0, 20.0]
# power = a**3
# power.data, power.edges[0][1](10.0)  # → (8.0, 120.0)
# [Value(x).relu().data for x in (-2.0, 0.0, 2.0)]  # → [0.0, 0.0, 2.0]
# Value(0.0).tanh().edges[0][1](10.0)  # → 10.0
# ```
#
# **Requirements**
#
# - Find the derivatives yourself. That of tanh can be written with $\tanh a$ alone, which you have already computed.
# - The derivative of relu at 0 counts as 0, and so does that of $a^0$ everywhere, at $a = 0$ too.
# - An edge stays even where the derivative is 0.
# - `tanh(1000)` is 1: use functions of `math` that do not overflow on the way to a finite result.
# - A vjp uses plain numbers of the forward pass (`self.data`, the result), never the node that it belongs to.
#
# **Size:** about 2 lines each.
#
# <details><summary>Details</summary>
#
# - Derivative of tanh: with $u = e^a - e^{-a}$ and $v = e^a + e^{-a}$, the quotient rule gives
#   $(u'v - uv')/v^2 = (v^2 - u^2)/v^2$. What is $u^2/v^2$?
# - The slope of $a^{1/2}$ at 0 is infinite. Python's `ZeroDivisionError` is fine there.
# - Infinities are numbers too: `relu` of $-\infty$ is 0. A product with 0 will not do, because $-\infty \cdot 0$ is
#   NaN.
# - Why a vjp must not use its own node: node → edge → vjp → node is a reference cycle, and Python frees a cycle late.
#   With scalars you would not notice. With tensors it keeps memory that you want back (Task 8).
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-1-value"}
#| export
class Value:
    """One number in a computation graph.

    data    the number
    grad    derivative of the result with respect to this, summed by `backward`
    edges   a pair (operand, vjp) for each use of an operand; none for an input
    """

    def __init__(
        self, data: float, edges: tuple = (), op: str = "", label: str = ""
    ) -> None:
        self.data = float(data)
        self.grad = 0.0
        self.edges = edges
        self.op = op
        self.label = label

    def __repr__(self) -> str:
        name = f"{self.label}=" if self.label else ""
        return f"Value({name}{self.data:.6g}, grad={self.grad:.6g})"

    def accumulate(self, grad: float) -> None:
        """Add a gradient that has arrived."""
        self.grad += grad

    def backward(self) -> None:
        """Compute the gradient of every node that this number was made from."""
        backward(self, 1.0)

    def __add__(self, other: "Value | float") -> "Value":
        """self + other: both operands get the gradient as it is."""
        other = as_value(other)
        edges = ((self, lambda g: g), (other, lambda g: g))
        return Value(self.data + other.data, edges, "+")

    def __mul__(self, other: "Value | float") -> "Value":
        """self · other. About 2 lines."""
        other = as_value(other)
        ### BEGIN SOLUTION
        a, b = self.data, other.data
        return Value(a * b, ((self, lambda g: g * b), (other, lambda g: g * a)), "*")
        ### END SOLUTION

    def __pow__(self, exponent: float) -> "Value":
        """self to the power of a plain number. About 2 lines."""
        ### BEGIN SOLUTION
        slope = exponent * self.data ** (exponent - 1) if exponent else 0.0
        return Value(self.data**exponent, ((self, lambda g: g * slope),), "**")
        ### END SOLUTION

    def exp(self) -> "Value":
        """e to the power of self. About 2 lines."""
        ### BEGIN SOLUTION
        result = math.exp(self.data)
        return Value(result, ((self, lambda g: g * result),), "exp")
        ### END SOLUTION

    def tanh(self) -> "Value":
        """Hyperbolic tangent. About 2 lines."""
        ### BEGIN SOLUTION
        result = math.tanh(self.data)
        return Value(result, ((self, lambda g: g * (1 - result**2)),), "tanh")
        ### END SOLUTION

    def relu(self) -> "Value":
        """max(self, 0). About 2 lines."""
        ### BEGIN SOLUTION
        slope = 1.0 if self.data > 0 else 0.0
        return Value(max(self.data, 0.0), ((self, lambda g: g * slope),), "relu")
        ### END SOLUTION

    # The remaining operators are made of these.
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
    """Make a plain number an input of the graph; leave a Value as it is."""
    return x if isinstance(x, Value) else Value(x)


# %% nbgrader={"grade": true, "grade_id": "value_arithmetic"}
check("value_arithmetic")

# %% nbgrader={"grade": true, "grade_id": "value_functions"}
check("value_functions")

# %% [markdown]
# ## Task 2 · The backward pass
#
# *About 35 minutes.*
#
# **Goal.** Start with the gradient at the end of the graph, apply the vjp of every edge, and give each node the sum
# of all gradients that arrive. In $L = ab + a$ the number $a$ is used twice, and both uses count:
# $\partial L/\partial a = b + 1$.
#
# A node may pass its gradient on only when *everything* that will ever arrive at it has arrived. An order in which
# every node comes after all of its operands (a **topological order**) makes this easy: go through it from its end.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `topological_order(root)` | list | all nodes that `root` depends on, once each, operands first and `root` last |
# | `backward(root, grad)` | – | calls `node.accumulate(…)` once per node, `root` included, with its whole gradient |
#
# `grad` is the gradient at `root`: 1.0 if you want derivatives of `root` itself. Use nothing of a node but its `edges`
# and `accumulate`. Then the same lines will run your tensors in Task 4, where gradients are arrays.
#
# **Example**
#
# ```python
# a, b = Value(2.0), Value(-3.0)
# result = a + b
# [node is result for node in topological_order(result)]  # → [False, False, True]
# len(topological_order(a + a))  # → 2
# loss = a * b + a
# backward(loss, 1.0)
# a.grad, b.grad, loss.grad  # → (-2.0, 2.0, 1.0)
# backward(loss, 10.0)
# a.grad  # → -22.0
# ```
#
# (The last line is $-2 + 10 \cdot (-2)$: a second pass adds its gradients to those of the first.)
#
# **Requirements**
#
# - No recursion: Python stops at a depth of about a thousand calls, and the graph of a network, which has several nodes
#   per layer, can be deeper. Use a list as your stack.
# - Each node is visited once. `x = x + x`, sixty times over, has $2^{60}$ paths back to the start but only 61 nodes.
# - Keep the gradients in flight in a dictionary that is local to this call, not in `node.grad`: otherwise a second
#   `backward` would pass the first one's gradients on again.
# - Add with `a = a + b`, never `a += b`. For arrays, `+=` changes the array in place, and another node may hold it.
# - `pop` a gradient from the dictionary once it is passed on, so that its memory can be freed.
#
# **Size:** about 10 lines and about 8 lines.
#
# <details><summary>Details</summary>
#
# - One way to a topological order: push the root on the stack. A node that comes off for the first time goes back
#   with a mark, and its operands go on top of it. When a marked node comes off, all of its operands are in the list.
# - A gradient of 0 is passed on and accumulated like any other.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-2-backward"}
#| export
def topological_order(root: Any) -> list:
    """List the nodes that root depends on, operands before results. About 10 lines."""
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


def backward(root: Any, grad: Any) -> None:
    """Accumulate in every node its gradient, given that of root. About 8 lines.

    grad is a float for a Value, and from Task 4 on a torch.Tensor of root's shape.
    """
    ### BEGIN SOLUTION
    grads = {root: grad}
    for node in reversed(topological_order(root)):
        grad = grads.pop(node)
        node.accumulate(grad)
        for operand, vjp in node.edges:
            arrived = vjp(grad)
            grads[operand] = grads[operand] + arrived if operand in grads else arrived
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "topological_order"}
check("topological_order")

# %% nbgrader={"grade": true, "grade_id": "backward_reuse"}
check("backward_reuse")

# %% nbgrader={"grade": true, "grade_id": "backward_deep"}
check("backward_deep")

# %% [markdown]
# **See it.** This is your graph, in your order. Step through it, and say at each step which number comes next.

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
# One pass has filled in the gradient of *every* node, and called the vjp of each edge once. This is why a backward pass
# costs a small multiple of the forward pass, and not one forward pass for each input.
#
# ## Task 3 · The backward pass through broadcasting
#
# *About 25 minutes.*
#
# **Goal.** From here on a node holds an array. Broadcasting is the one new thing that arrays bring to the chain rule:
# it uses an element many times, so the element gets the *sum* of many gradients.
#
# Take `logits + bias` with shapes (64, 10) and (10,). Each bias is used 64 times. The gradient that arrives has shape
# (64, 10), and the gradient of the bias is its sum over the 64 rows.
#
# **Predict first.** An array of shape (3, 1) is multiplied by an array of shape (2, 3, 4). How many numbers are added
# up for *each* element of the first one's gradient? Write your number here; you will measure it below.

# %%
guess = None  # numbers added up for each element

# %% [markdown]
# **Interface.** `unbroadcast(grad, shape)` takes a gradient and the shape of an operand, which broadcasts to the shape
# of `grad`. It returns the gradient of the operand: a tensor of shape `shape`.
#
# **Example**
#
# ```python
# grad = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
# unbroadcast(grad, (3,)).tolist()  # → [11.0, 22.0, 33.0]
# unbroadcast(grad, (2, 1)).tolist()  # → [[6.0], [60.0]]
# unbroadcast(grad, ()).item()  # → 66.0
# unbroadcast(grad, (2, 3)).tolist() == grad.tolist()  # → True
# ```
#
# **Requirements**
#
# - Sum over the axes that broadcasting has put in front, and over axes of size 1 that it has stretched.
# - Shapes may have any number of axes, none included; sizes may be 0.
#
# **Size:** about 6 lines.
#
# <details><summary>Details</summary>
#
# - Write both shapes below each other, aligned at the right: `(2, 3, 4)` above `(3, 1)`. Which axes are missing, and
#   which were stretched?
# - `grad.sum(axis, keepdim=True)` leaves an axis of size 1 in place. `grad.sum(dim=())` sums over *everything*.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-3-unbroadcast"}
#| export
def unbroadcast(grad: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Sum a gradient down to the shape that was broadcast. About 6 lines."""
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

# %%
added_up = unbroadcast(torch.ones(2, 3, 4), (3, 1))
check.predict(guess, added_up[0].item(), "numbers for each element", within=0)

# %% [markdown]
# With a gradient of ones, each sum is a count: every element of the array of shape (3, 1) is read at all positions
# along the two axes that were added or stretched, of sizes 2 and 4, so the count is 8. Broadcasting copies, and the
# backward pass of copying is summing.
#
# ## Task 4 · Tensors: elementwise operations and matrix products
#
# *About 35 minutes.*
#
# **Goal.** Turn the scalar engine into a tensor engine: the same edges, now with arrays on them. For a result $z$ and
# an operand $a$, entry $i$ of `vjp(g)` is now a sum over all entries $j$ of the result, $\sum_j g_j\, \partial
# z_j/\partial a_i$. This is the vector-Jacobian product that gives vjp its name; in code you never build the Jacobian.
#
# The class `Tensor` is given. It is notation only: `a * b` calls `mul(a, b)`, which you write. Its `data` is a
# `torch.Tensor` that serves as storage. The derivatives are yours: the checks switch torch's own autograd off.
# Look at two things in the cell below. `record` makes the result of an operation and drops the edges to operands that
# need no gradient, so that no work is done for them; inside `no_grad()` it keeps no edge at all. And `add`, `pow` and
# `permute` are complete operations to learn from.


# %%
#| export
class Tensor:
    """An array in a computation graph; `data` is a torch.Tensor of floats.

    grad           a torch.Tensor like data, added up by `backward`; None before that,
                   and in results of operations
    requires_grad  whether gradients flow to here
    edges          a pair (operand, vjp) for each use of an operand; vjp maps a gradient
                   of this tensor's shape to one of the operand's shape
    """

    recording = True

    def __init__(
        self, data: Any, requires_grad: bool = False, edges: tuple = (), op: str = ""
    ) -> None:
        data = torch.as_tensor(data)
        is_float = data.is_floating_point()
        self.data = data if is_float else data.to(torch.get_default_dtype())
        self.requires_grad = requires_grad
        self.grad: torch.Tensor | None = None
        self.edges = edges
        self.op = op

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, op={self.op or None})"

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
        return permute(self, *range(self.ndim - 2), -1, -2)

    def item(self) -> float:
        return self.data.item()

    def detach(self) -> "Tensor":
        return Tensor(self.data)

    def accumulate(self, grad: torch.Tensor) -> None:
        """Add a gradient that has arrived, if this is an input that requires one."""
        if self.requires_grad and not self.edges:
            self.grad = grad.clone() if self.grad is None else self.grad + grad

    def backward(self, grad: torch.Tensor | None = None) -> None:
        """Accumulate gradients in all inputs; only a single number needs no `grad`."""
        if grad is None and self.data.numel() != 1:
            raise ValueError(f"backward() of shape {self.shape}: sum it first")
        backward(self, torch.ones_like(self.data) if grad is None else grad)

    def __add__(self, other: Any) -> "Tensor":
        return add(self, as_tensor(other, self))

    def __mul__(self, other: Any) -> "Tensor":
        return mul(self, as_tensor(other, self))

    def __matmul__(self, other: "Tensor") -> "Tensor":
        return matmul(self, other)

    def __pow__(self, exponent: float) -> "Tensor":
        return pow(self, exponent)

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

    def __getitem__(self, index: Any) -> "Tensor":
        return getitem(self, index)

    def exp(self) -> "Tensor":
        return exp(self)

    def log(self) -> "Tensor":
        return log(self)

    def tanh(self) -> "Tensor":
        return tanh(self)

    def relu(self) -> "Tensor":
        return relu(self)

    def sum(
        self, axis: "int | tuple[int, ...] | None" = None, keepdims: bool = False
    ) -> "Tensor":
        return reduce_sum(self, axis, keepdims)

    def mean(
        self, axis: "int | tuple[int, ...] | None" = None, keepdims: bool = False
    ) -> "Tensor":
        total = reduce_sum(self, axis, keepdims)
        return total * (total.data.numel() / self.data.numel())

    def reshape(self, *shape: int) -> "Tensor":
        return reshape(self, *shape)

    def permute(self, *axes: int) -> "Tensor":
        return permute(self, *axes)


def as_tensor(x: Any, like: Tensor) -> Tensor:
    """Make a number or array a Tensor of the dtype of `like`, without a gradient."""
    if isinstance(x, Tensor):
        return x
    return Tensor(torch.as_tensor(x, dtype=like.dtype, device=like.device))


def record(data: torch.Tensor, *edges: tuple[Tensor, Callable], op: str = "") -> Tensor:
    """Make an operation's result, with edges to the operands that need a gradient."""
    live = tuple(edge for edge in edges if edge[0].requires_grad)
    live = live if Tensor.recording else ()
    return Tensor(data, requires_grad=bool(live), edges=live, op=op)


@contextlib.contextmanager
def set_grad_enabled(mode: bool) -> Iterator[None]:
    """Record operations inside a `with` block, or do not; afterwards as before."""
    before, Tensor.recording = Tensor.recording, mode
    try:
        yield
    finally:
        Tensor.recording = before


def no_grad() -> contextlib.AbstractContextManager[None]:
    """Compute without recording."""
    return set_grad_enabled(False)


def enable_grad() -> contextlib.AbstractContextManager[None]:
    """Record operations, inside `no_grad()` too."""
    return set_grad_enabled(True)


def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b, broadcast. An example of an operation with two operands."""
    return record(
        a.data + b.data,
        (a, lambda g: unbroadcast(g, a.shape)),
        (b, lambda g: unbroadcast(g, b.shape)),
        op="+",
    )


def pow(a: Tensor, b: float) -> Tensor:
    """a to the power of a plain number. An example of an operation with one operand."""
    lower = b - 1 if b else 0  # the slope of a⁰ is 0, at a = 0 too: 0 · 0⁻¹ is NaN
    return record(a.data**b, (a, lambda g: g * b * a.data**lower), op=f"**{b:g}")


def permute(a: Tensor, *axes: int) -> Tensor:
    """Reorder the axes; the vjp puts those of the gradient back."""
    axes = tuple(axis % a.ndim for axis in axes)
    inverse = tuple(axes.index(axis) for axis in range(a.ndim))
    return record(a.data.permute(axes), (a, lambda g: g.permute(inverse)), op="permute")


# %% [markdown]
# **Interface.** Each function returns `record(result, (operand, vjp), …, op=name)`. In a vjp, `g` is a `torch.Tensor`
# of the result's shape; compute with `a.data`, which is a `torch.Tensor` too.
#
# | | returns | shapes |
# |---|---|---|
# | `mul(a, b)` | $ab$, elementwise | any two that broadcast |
# | `exp(a)`, `log(a)`, `tanh(a)`, `relu(a)` | elementwise | any |
# | `matmul(a, b)` | matrix product | (…, m, k) @ (…, k, n) → (…, m, n); the axes in front broadcast |
#
# **Example**
#
# ```python
# a = Tensor([[1.0, -2.0], [3.0, 4.0]], requires_grad=True)
# b = Tensor([10.0, 100.0], requires_grad=True)
# product = a * b
# product.data.tolist()  # → [[10.0, -200.0], [30.0, 400.0]]
# ones = torch.ones(2, 2)
# [vjp(ones).tolist() for _, vjp in product.edges]  # → [[[10.0, 100.0], [10.0, 100.0]], [4.0, 2.0]]
# a.relu().edges[0][1](ones).tolist()  # → [[1.0, 0.0], [1.0, 1.0]]
# (a @ a).data.tolist()  # → [[-5.0, -10.0], [15.0, 10.0]]
# [vjp(ones).tolist() for _, vjp in (a @ a).edges]  # → [[[-1.0, 7.0], [-1.0, 7.0]], [[4.0, 4.0], [2.0, 2.0]]]
# ```
#
# **Requirements**
#
# - The gradient of an operand has the operand's shape. Where operands broadcast, `unbroadcast` sees to that.
# - For `matmul`, work out both gradients from shapes: $G = \partial L/\partial(AB)$ has shape (m, n), $A$ has (m, k)
#   and $B$ has (k, n). There is one way to multiply $G$ with $B$ or $B^{\mathsf T}$ that gives the shape of $A$. What
#   is left for $B$?
# - A weight of shape (k, n) may meet a batch of shape (b, m, k): its gradient is summed over the batch.
# - Results and gradients keep the dtype of their operands, half and double precision too.
# - As in Task 1, no vjp uses the node that it belongs to, and none changes `g` in place.
#
# **Size:** about 2 lines each; 5 for `mul` and `matmul`.
#
# <details><summary>Details</summary>
#
# - `X.mT` swaps the last two axes of a `torch.Tensor` and leaves a batch in front alone.
# - Arrays need not be contiguous: after a transpose, `view` fails where `reshape` works.
# - Infinities: `relu` of $-\infty$ is 0, which `torch.clamp` gets right and a product with a mask does not. `log` of 0
#   is $-\infty$, as in torch.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-4-tensor"}
#| export
def mul(a: Tensor, b: Tensor) -> Tensor:
    """a · b, elementwise, broadcast. About 5 lines."""
    ### BEGIN SOLUTION
    return record(
        a.data * b.data,
        (a, lambda g: unbroadcast(g * b.data, a.shape)),
        (b, lambda g: unbroadcast(g * a.data, b.shape)),
        op="*",
    )
    ### END SOLUTION


def exp(a: Tensor) -> Tensor:
    """e to the power of a, elementwise. About 2 lines."""
    ### BEGIN SOLUTION
    result = a.data.exp()
    return record(result, (a, lambda g: g * result), op="exp")
    ### END SOLUTION


def log(a: Tensor) -> Tensor:
    """Natural logarithm, elementwise. About 1 line."""
    ### BEGIN SOLUTION
    return record(a.data.log(), (a, lambda g: g / a.data), op="log")
    ### END SOLUTION


def tanh(a: Tensor) -> Tensor:
    """Hyperbolic tangent, elementwise. About 2 lines."""
    ### BEGIN SOLUTION
    result = a.data.tanh()
    return record(result, (a, lambda g: g * (1 - result * result)), op="tanh")
    ### END SOLUTION


def relu(a: Tensor) -> Tensor:
    """max(a, 0), elementwise. About 1 line."""
    ### BEGIN SOLUTION
    return record(a.data.clamp(min=0), (a, lambda g: g * (a.data > 0)), op="relu")
    ### END SOLUTION


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product (…, m, k) @ (…, k, n) → (…, m, n). About 5 lines."""
    ### BEGIN SOLUTION
    return record(
        a.data @ b.data,
        (a, lambda g: unbroadcast(g @ b.data.mT, a.shape)),
        (b, lambda g: unbroadcast(a.data.mT @ g, b.shape)),
        op="@",
    )
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "tensor_elementwise"}
check("tensor_elementwise")

# %% nbgrader={"grade": true, "grade_id": "tensor_matmul"}
check("tensor_matmul")

# %% [markdown]
# ## Task 5 · Sums, shapes and indexing
#
# *About 30 minutes.*
#
# **Goal.** These operations move numbers rather than compute; their backward pass sends each gradient back to where
# its number came from. One of them has a trap that has caught real frameworks: an element that is used twice.
#
# **Interface**
#
# | | returns | gradient |
# |---|---|---|
# | `reduce_sum(a, axis=None, keepdims=False)` | sum over an axis, several, or all | each element gets that of its sum |
# | `reshape(a, *shape)` | the same elements in another shape | gets the old shape |
# | `getitem(a, index)` | `a.data[index]` | goes to the elements that were picked; the others get 0 |
#
# (`Tensor` calls them as `a.sum(…)`, `a.reshape(…)` and `a[…]`. The first is not called `sum` here because that would
# hide Python's own.)
#
# **Example**
#
# ```python
# a = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)
# total = a.sum(axis=1)
# total.data.tolist()  # → [6.0, 15.0]
# total.edges[0][1](torch.tensor([10.0, 20.0])).tolist()  # → [[10.0, 10.0, 10.0], [20.0, 20.0, 20.0]]
# a.sum(axis=(0, -1), keepdims=True).data.tolist()  # → [[21.0]]
# a.reshape(3, -1).shape  # → (3, 2)
# picked = a[torch.tensor([1, 1]), 0]
# picked.data.tolist()  # → [4.0, 4.0]
# picked.edges[0][1](torch.tensor([10.0, 20.0])).tolist()  # → [[0.0, 0.0, 0.0], [30.0, 0.0, 0.0]]
# ```
#
# (Row 1 was picked twice, so its first element gets both gradients: 10 + 20.)
#
# **Requirements**
#
# - `axis` may be negative. With `keepdims=False` the axis is missing from the gradient that arrives: put it back as an
#   axis of size 1, then expand. A tuple may list its axes in any order, such as `(-2, -1)` or `(1, 0)`: the order in
#   which you put them back matters.
# - `index` is anything that a `torch.Tensor` takes between brackets: ints, slices, `None`, masks, lists, integer
#   tensors, and tuples of those.
# - An element that is picked more than once gets the sum of its gradients. `grad[index] += g` counts only one of them.
# - Gradients keep their dtype, and neither `a.data` nor `g` need be contiguous.
#
# **Size:** about 8, 2 and 6 lines.
#
# <details><summary>Details</summary>
#
# - One way for `getitem`: number the $n$ elements, `torch.arange(n).reshape(a.shape)[index]`. This says for each
#   picked element where it came from. `index_add_` adds at such positions and counts repeats.
# - A tuple of axes has at least one entry. A tensor without axes has a sum too.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-5-shapes"}
#| export
def reduce_sum(
    a: Tensor, axis: "int | tuple[int, ...] | None" = None, keepdims: bool = False
) -> Tensor:
    """Sum over axes, over all of them if axis is None. About 8 lines."""
    ### BEGIN SOLUTION
    if axis is None:
        axis = tuple(range(a.ndim))
    axes = {i % a.ndim for i in ((axis,) if isinstance(axis, int) else axis)}
    kept = tuple(1 if i in axes else size for i, size in enumerate(a.shape))
    gone = tuple(size for i, size in enumerate(a.shape) if i not in axes)
    total = a.data.sum(tuple(axes)) if axes else a.data
    total = total.reshape(kept if keepdims else gone)
    return record(total, (a, lambda g: g.reshape(kept).expand(a.shape)), op="sum")
    ### END SOLUTION


def reshape(a: Tensor, *shape: int) -> Tensor:
    """The same elements in another shape. About 2 lines."""
    ### BEGIN SOLUTION
    result = a.data.reshape(shape)
    return record(result, (a, lambda g: g.reshape(a.shape)), op="reshape")
    ### END SOLUTION


def getitem(a: Tensor, index: Any) -> Tensor:
    """a[index]; an element that is picked twice gets both gradients. About 6 lines."""
    ### BEGIN SOLUTION
    n = a.data.numel()

    def scatter(g: torch.Tensor) -> torch.Tensor:
        source = torch.arange(n, device=g.device).reshape(a.shape)[index]
        grad = torch.zeros(n, dtype=g.dtype, device=g.device)
        return grad.index_add_(0, source.reshape(-1), g.reshape(-1)).reshape(a.shape)

    return record(a.data[index], (a, scatter), op="getitem")
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "tensor_sum"}
check("tensor_sum")

# %% nbgrader={"grade": true, "grade_id": "tensor_index"}
check("tensor_index")

# %% [markdown]
# **See it.** Your engine is complete. It fits a sine with sixteen tanh units, in 600 steps of gradient descent; every
# derivative in this loop is yours.

# %%
import plotly.graph_objects as go

generator = torch.Generator().manual_seed(0)
x = torch.linspace(-3, 3, 64).reshape(-1, 1)
target = torch.sin(2 * x)
slopes = Tensor(torch.randn(1, 16, generator=generator), requires_grad=True)
shifts = Tensor(torch.randn(16, generator=generator), requires_grad=True)
heights = Tensor(torch.zeros(16, 1), requires_grad=True)
for step in range(600):
    fitted = (Tensor(x) @ slopes + shifts).tanh() @ heights
    loss = ((fitted - target) ** 2).mean()
    loss.backward()
    for parameter in (slopes, shifts, heights):
        parameter.data = parameter.data - 0.05 * parameter.grad
        parameter.grad = None
    if step % 150 == 0:
        print(f"step {step:3}: loss {loss.item():.4f}")
print(f"at the end: loss {loss.item():.4f}")
figure = go.Figure()
for name, y in (("target", target), ("your fit", fitted.data)):
    figure.add_scatter(x=x[:, 0], y=y[:, 0], mode="lines", name=name)
figure.update_layout(xaxis_title="x", yaxis_title="y", height=300)
show(figure, alt="A sine, and the curve that your engine has fitted to it")

# %% [markdown]
# **End of Part 1.** You have what micrograd has, and arrays. Part 2 trains a real classifier and asks what it costs.
#
# ## Part 2 · Training and memory
#
# ## Task 6 · A loss that never overflows
#
# *About 30 minutes.*
#
# **Goal.** A classifier returns scores, the **logits** $z \in \mathbb R^C$, and the loss is the negative logarithm of
# the probability that softmax gives to the true class $y$:
#
# $$\ell = -\log \frac{e^{z_y}}{\sum_c e^{z_c}} = \log\sum_c e^{z_c} - z_y .$$
#
# Write it as *one* operation. Composed of several (exp, sum, log, indexing, mean), it overflows: in float32, $e^{89}$
# is infinite, and nothing keeps a logit below 89. As one operation it has a gradient that is simple and always finite.
#
# **Interface.** `cross_entropy(logits, targets)` takes a `Tensor` of logits of shape (B, C) and a `torch.Tensor` of B
# true classes (int64, from 0 to C − 1). It returns the *mean* loss over the batch, a `Tensor` of shape ().
#
# **Example**
#
# ```python
# logits = Tensor(torch.zeros(2, 4), requires_grad=True)
# loss = cross_entropy(logits, torch.tensor([2, 0]))
# round(loss.item(), 4), round(math.log(4), 4)  # → (1.3863, 1.3863)
# grad = loss.edges[0][1](torch.tensor(1.0))
# [round(entry, 4) for entry in grad[0].tolist()]  # → [0.125, 0.125, -0.375, 0.125]
# [round(entry, 4) for entry in grad[1].tolist()]  # → [-0.375, 0.125, 0.125, 0.125]
# large = Tensor(torch.tensor([[10000.0, 0.0]]))
# cross_entropy(large, torch.tensor([1])).item()  # → 10000.0
# ```
#
# **Requirements**
#
# - Derive $\partial\ell/\partial z_c$ from the right-hand side above, once for $c = y$ and once for $c \ne y$, and
#   write both as one expression with $p = \mathrm{softmax}(z)$. The example shows whether you are right.
# - Adding a constant to all logits of a row changes nothing, so subtract the row's largest logit first. Then every
#   exponent is at most 0, and one of them is exactly 0.
# - Subtract it from $z_y$ as well. If you added it back to the logarithm instead, a large logit would swallow the
#   logarithm's digits: next to 10,000, float32 resolves only steps of about 0.001.
# - The vjp leaves what it has saved as it was: it may run more than once.
#
# **Size:** about 8 lines.
#
# <details><summary>Details</summary>
#
# - Check your derivation: the derivative of $\log\sum_j e^{z_j}$ with respect to $z_c$ is $e^{z_c}/\sum_j e^{z_j}$,
#   that is $p_c$; the term $-z_y$ adds $-1$ where $c = y$. Do not forget that the loss is a mean.
# - A logit of $-\infty$ rules a class out: its probability is 0, and nothing becomes NaN. (No target is ruled out.) So
#   pick the target's entry by its index; a product with a one-hot vector makes $0 \cdot \infty$.
# - Memory: the saved probabilities take $4BC$ bytes. With a vocabulary of 100,000 tokens this is often the largest
#   array of a whole training step.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-6-cross-entropy"}
#| export
def cross_entropy(logits: Tensor, targets: torch.Tensor) -> Tensor:
    """Mean of −log softmax(logits)[target]: logits (B, C), targets (B,) int64.

    About 8 lines.
    """
    ### BEGIN SOLUTION
    rows = torch.arange(len(targets), device=logits.device)
    shifted = logits.data - logits.data.amax(dim=1, keepdim=True)
    log_p = shifted - shifted.exp().sum(dim=1, keepdim=True).log()

    def vjp(g: torch.Tensor) -> torch.Tensor:
        grad = log_p.exp()
        grad[rows, targets] -= 1.0
        return grad * (g / len(targets))

    loss = -log_p[rows, targets].mean()
    return record(loss, (logits, vjp), op="cross_entropy")
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "cross_entropy"}
check("cross_entropy")

# %% [markdown]
# ## Task 7 · Train a classifier
#
# *About 45 minutes.*
#
# **Goal.** Put the engine to work: a multilayer perceptron, stochastic gradient descent, and a training run that
# reads handwritten digits. On the way you predict what one training step costs.
#
# `Linear` and the batch loop `fit` are given.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `mlp(x)` | `Tensor` (B, sizes[-1]) | applies `mlp.layers` in turn, with relu after each layer but the last |
# | `optimizer.step()` | – | updates every parameter that has a gradient |
# | `train_step(model, optimizer, x, y)` | float | one step on images `x` (B, n), classes `y` (B,); the loss before |
# | `train_classifier(x_train, y_train, x_test, progress)` | pair | predicted classes of `x_test`; every step's loss |
#
# `SGD` with momentum $\mu$ and learning rate $\eta$ keeps a velocity $v$ for each parameter $\theta$, 0 at first. A
# step does $v \leftarrow \mu v + \nabla$ and then $\theta \leftarrow \theta - \eta v$, where $\nabla$ is the gradient.
#
# **Example**
#
# ```python
# p = Tensor([1.0], requires_grad=True)
# optimizer = SGD([p], lr=0.5, momentum=0.5)
# p.grad = torch.tensor([1.0])
# optimizer.step()
# p.data.tolist()  # → [0.5]
# optimizer.step()
# p.data.tolist()  # → [-0.25]
# model = lambda x: x + p  # any function of a Tensor is a model
# x, y = torch.tensor([[0.0, 0.0]]), torch.tensor([0])
# round(train_step(model, optimizer, x, y), 4)  # → 0.6931
# ```
#
# (Second step: $v = 0.5 \cdot 1 + 1 = 1.5$. The loss of two equal logits is $\log 2$.)
#
# **Requirements**
#
# - `step` works on `p.data`, since an update is not part of the graph. It skips a parameter whose `grad` is `None` and
#   leaves gradients as they are.
# - `train_step` clears old gradients with `optimizer.zero_grad()`, because gradients add up. It then computes the loss
#   of `model(Tensor(x))`, runs the backward pass, and updates. The model runs once.
# - `train_classifier` chooses sizes, learning rate, batch size and epochs, and trains with `fit`. Two calls give the
#   same result, so draw random numbers from a `torch.Generator` with a fixed seed. A few seconds are enough.
# - Aim for 95 % on images that the training has not seen. The check allows for sampling error on a test set of 360
#   images, and asks for 91.6 %.
# - Only your engine may learn: no scikit-learn, no torch.nn. And `train_classifier` runs on everything that you have
#   written, so its check fails if an earlier function is wrong.
#
# **Size:** about 3, 4, 5 and 6 lines.
#
# <details><summary>Details</summary>
#
# - `optimizer.lr` may change between steps, as in a schedule; use its current value.
# - Predict with `argmax` over the classes, inside `no_grad()`.
# - If you normalise images, take the numbers for it from the training images, also for the test images.
# - `losses` has the loss of every step, as `fit` returns them. If you pass `progress` on to `fit`, it draws a
#   progress bar.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-7-train"}
#| export
class Linear:
    """x (…, inputs) → x @ weightᵀ + bias (…, outputs), with weight (outputs, inputs).

    Weights have variance 2 / inputs, so that relu layers keep the scale of their input.
    """

    def __init__(
        self, inputs: int, outputs: int, generator: torch.Generator | None = None
    ) -> None:
        weight = torch.randn(outputs, inputs, generator=generator)
        self.weight = Tensor(weight * math.sqrt(2 / inputs), requires_grad=True)
        self.bias = Tensor(torch.zeros(outputs), requires_grad=True)

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias

    def parameters(self) -> list[Tensor]:
        return [self.weight, self.bias]


class MLP:
    """Linear layers, relu between. MLP(64, 128, 10): (B, 64) → (B, 128) → (B, 10)."""

    def __init__(self, *sizes: int, generator: torch.Generator | None = None) -> None:
        self.layers = [Linear(n, m, generator) for n, m in itertools.pairwise(sizes)]

    def __call__(self, x: Tensor) -> Tensor:
        """x (B, sizes[0]) → logits (B, sizes[-1]). About 3 lines."""
        ### BEGIN SOLUTION
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)
        ### END SOLUTION

    def parameters(self) -> list[Tensor]:
        return [p for layer in self.layers for p in layer.parameters()]


class SGD:
    """Stochastic gradient descent with momentum."""

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.0
    ) -> None:
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


def train_step(
    model: Callable[[Tensor], Tensor],
    optimizer: SGD,
    x: torch.Tensor,
    y: torch.Tensor,
) -> float:
    """One step on images x (B, n) with classes y (B,). About 5 lines."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    loss = cross_entropy(model(Tensor(x)), y)
    loss.backward()
    optimizer.step()
    return loss.item()
    ### END SOLUTION


def fit(
    model: MLP,
    optimizer: SGD,
    x: torch.Tensor,
    y: torch.Tensor,
    epochs: int,
    batch_size: int,
    generator: torch.Generator,
    progress: Callable[[Iterable], Iterable] = iter,
) -> list[float]:
    """Train for some epochs in shuffled batches; return the loss of every step."""
    losses = []
    for _ in progress(range(epochs)):
        for batch in torch.randperm(len(x), generator=generator).split(batch_size):
            losses.append(train_step(model, optimizer, x[batch], y[batch]))
    return losses


def train_classifier(
    x_train: torch.Tensor,
    y_train: torch.Tensor,
    x_test: torch.Tensor,
    progress: Callable[[Iterable], Iterable] = iter,
) -> tuple[torch.Tensor, list[float]]:
    """Train on images x_train (N, 64), values about 0 to 1, with classes y_train (N,).

    Returns the predicted classes of x_test (M, 64), integers (M,), and the loss of
    every step. About 6 lines.
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(0)
    model = MLP(64, 128, 10, generator=generator)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = fit(model, optimizer, x_train, y_train, 20, 64, generator, progress)
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
# **Predict, then measure.** A matrix product (m, k) @ (k, n) takes $2mkn$ FLOPs: a multiplication and an addition for
# each of $mkn$ pairs. Count only matrix products. How many times as many FLOPs does a whole `train_step` of
# `MLP(64, 128, 128, 10)` take as its forward pass alone? Write a number with one decimal. torch counts the products
# that really run.

# %%
guess = None  # FLOPs of a training step / FLOPs of the forward pass

# %%
from torch.utils.flop_counter import FlopCounterMode

sizes, batch = (64, 128, 128, 10), 64
model = MLP(*sizes)
optimizer = SGD(model.parameters(), lr=0.1)
x, y = torch.rand(batch, sizes[0]), torch.randint(0, sizes[-1], (batch,))
with FlopCounterMode(display=False) as forward:
    model(Tensor(x))
with FlopCounterMode(display=False) as whole:
    train_step(model, optimizer, x, y)
ratio = whole.get_total_flops() / forward.get_total_flops()
check.predict(guess, ratio, "times the FLOPs of the forward pass", within=0.03)

# %% [markdown]
# In the backward pass, a layer needs a product with as many FLOPs for the gradient of its weight, and another for the
# gradient of its input: "backward costs twice the forward". But the input of the *first* layer is the data. Nothing
# asks for the gradient of an image, so `record` has dropped that edge, and the step costs less than three times the
# forward pass.
#
# Now **write** `predict_step_flops(batch, sizes)`: the FLOPs, an int, of all matrix products in one `train_step` of
# `MLP(*sizes)`.
#
# ```python
# predict_step_flops(1, (3, 2))  # → 24
# predict_step_flops(10, (3, 2, 5))  # → 840
# ```
#
# **Size:** about 3 lines.


# %% nbgrader={"solution": true, "grade_id": "task-7-flops"}
#| export
def predict_step_flops(batch: int, sizes: Sequence[int]) -> int:
    """FLOPs of all matrix products in a train_step of MLP(*sizes). About 3 lines."""
    ### BEGIN SOLUTION
    forward = [2 * batch * n * m for n, m in itertools.pairwise(sizes)]
    return 3 * sum(forward) - forward[0]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "step_flops"}
check("step_flops")

# %% [markdown]
# **See it.** And train. The progress bar and the curve come from your own `train_classifier`.

# %%
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from mlsys_lab.widgets.progress import track

print(f"predicted {predict_step_flops(batch, sizes):,} FLOPs a step,", end=" ")
print(f"measured {whole.get_total_flops():,}")
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
parts = train_test_split(images, labels, test_size=0.2, random_state=0)
x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in parts)
predicted, losses = train_classifier(x_train, y_train, x_test, progress=track)
accuracy = (predicted == y_test).float().mean()
print(f"test accuracy {accuracy:.1%} on {len(y_test)} images")
curve = go.Figure(go.Scatter(y=losses, name="loss"))
curve.update_layout(xaxis_title="step", yaxis_title="loss", yaxis_type="log")
show(curve, alt="Loss of each training step, falling", height=320)

# %% nbgrader={"grade": true, "grade_id": "train_digits"}
check("train_digits")

# %% [markdown]
# **Where does the time go?** If this machine did nothing but matrix products, at the speed of a large one, a step would
# take its predicted FLOPs divided by that speed in FLOP/s. That is a lower bound on its time. Before you run the cell:
# at which batch size will your step come near the bound, and what fills the time when it does not?

# %%
from mlsys_lab.benchmark import compare


def one_step(batch: int) -> Callable[[], float]:
    """A training step on random images, ready to be timed."""
    model = MLP(*sizes)
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = torch.rand(batch, sizes[0]), torch.randint(0, sizes[-1], (batch,))
    return lambda: train_step(model, optimizer, x, y)


sizes, batches = (64, 256, 256, 10), (1, 8, 64, 512, 4096)
square = torch.rand(1024, 1024)
calls = {"product": lambda: square @ square}
calls |= {f"batch {batch}": one_step(batch) for batch in batches}
timings = compare(calls, samples=9).timings  # a slow moment hits all
flops_per_s = 2 * 1024**3 / timings["product"].p50_s
steps_s = [timings[f"batch {batch}"].p50_s for batch in batches]
bounds_s = [predict_step_flops(batch, sizes) / flops_per_s for batch in batches]
print(f"a large matrix product: {flops_per_s / 1e9:.0f} GFLOP/s")
for batch, step_s, bound_s in zip(batches, steps_s, bounds_s, strict=True):
    print(f"batch {batch:5}: {step_s * 1e3:8.2f} ms a step,", end=" ")
    print(f"bound {bound_s * 1e3:8.3f} ms, {bound_s / step_s:6.1%} of the step")
figure = go.Figure()
for name, seconds in (("your step", steps_s), ("bound", bounds_s)):
    figure.add_scatter(x=batches, y=seconds, name=name)
figure.update_layout(xaxis_title="batch", yaxis_title="seconds", height=320)
figure.update_layout(xaxis_type="log", yaxis_type="log")
show(figure, alt="Time of a training step and its bound against the batch size")

# %% [markdown]
# A small batch is overhead-bound: the time goes into Python, into starting operations, and into updating every weight
# however few images there were. None of this grows with the batch, so larger batches come closer to the bound. Then the
# percentage levels off: biases, relu and their gradients do about one FLOP for each number that they move, so memory
# bandwidth sets their pace, and they grow with the batch as well.
#
# ## Task 8 · Activation checkpointing
#
# *About 45 minutes.*
#
# **Goal.** The backward pass reads what the forward pass has computed, so the graph keeps all of it. Checkpointing
# (Chen et al. 2016) trades time for memory: it forgets the inside of a segment of the network, and computes it again
# when the gradient arrives. You write it, predict its memory, and choose the best number of segments.
#
# The network of this task is a stack of layers $h \leftarrow \tanh(hW + b)$ in float32, with $h$ of shape
# (batch, width). In your engine every operation's result stays alive as long as an edge leads to it.
#
# **Predict first.** A stack has 64 such layers. Into how many segments of equal length would you cut it, so that the
# peak memory, the most that is held at any moment, is as small as possible? Write your number; you will measure it at
# the end.

# %%
guess = None  # number of segments for 64 layers

# %% [markdown]
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `predict_graph_bytes(batch, width, layers)` | int | bytes that the graph of a stack holds after the forward pass |
# | `checkpoint(function, x)` | `Tensor` | `function(x)` without its graph; the backward pass runs `function` again |
# | `predict_checkpointed_bytes(batch, width, layers, segments)` | int | with checkpoints: bytes at the worst moment |
# | `best_segments(layers)` | int | the number of segments for which that is smallest |
# | `checkpoint_sequential(functions, x, segments)` | `Tensor` | the functions in turn, in checkpointed segments |
#
# Count results only: not the input `x`, not weights, not gradients in flight. At the worst moment of a checkpointed
# stack of $n$ layers in $k$ segments, the output of every segment is held (a checkpoint keeps its input, which is the
# output of the segment before, and your engine frees nothing until the backward pass is over), and the graph of one
# whole segment of $\lceil n/k\rceil$ layers, which is being recomputed. Count $k$ outputs, even where cutting into
# segments of this length gives fewer than $k$ of them.
#
# **Example**
#
# ```python
# predict_graph_bytes(batch=10, width=100, layers=12)  # → 144000
# predict_checkpointed_bytes(batch=10, width=100, layers=12, segments=4)  # → 52000
# best_segments(12)  # → 6
# runs = []
# square = lambda h: runs.append(Tensor.recording) or h * h
# x = Tensor([3.0], requires_grad=True)
# y = checkpoint(square, x)
# runs, y.data.tolist(), len(y.edges)  # → ([False], [9.0], 1)
# y.backward()
# runs, x.grad.tolist()  # → ([False, True], [6.0])
# stack = checkpoint_sequential([square] * 5, Tensor([1.0], requires_grad=True), segments=2)
# stack.edges[0][0].op == stack.op  # → True
# ```
#
# (The first run of `square` is not recorded, the second is. Five layers in two segments: 3 and 2.)
#
# **Requirements**
#
# - `checkpoint` runs `function` under `no_grad()` on the way forward. Its result is made by `record`, with one edge.
# - The vjp of this edge runs `function` again, recorded, on a new input with the same data; it sends `g` backward
#   through that graph, and returns the gradient of the new input. Weights that `function` uses get their gradients on
#   the way. So `function` runs once in the forward pass, and once more in each backward pass.
# - The weights must get their gradients even if `x` requires none. `record` would drop an edge to such an `x`, so let
#   the edge lead to another tensor, one that requires a gradient. Leave `x` itself as it is.
# - `checkpoint_sequential` makes at most `segments` segments, of at most $\lceil n/k\rceil$ layers each, and
#   checkpoints every one, the last one too. It leaves the list `functions` as it is.
# - Of two numbers of segments that are equally good, `best_segments` returns the smaller one.
#
# **Size:** about 1, 10, 2, 2 and 5 lines.
#
# <details><summary>Details</summary>
#
# - How large is each result of $\tanh(hW + b)$, and how many are there per layer? (Your engine's operations: `@`, `+`,
#   `tanh`.)
# - A checkpoint inside a checkpoint forgets its inside too: inside `no_grad()`, `record` keeps no edge. A backward
#   pass may start inside `no_grad()`; the second run needs `enable_grad()` then.
# - If `function` lets no gradient through to its input (it may call `detach`), the gradient of the input is zeros.
# - A function made in a loop needs its own part of the list: `lambda h, part=part: …`.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-8-checkpoint"}
#| export
def predict_graph_bytes(batch: int, width: int, layers: int) -> int:
    """Bytes of results that the graph of a stack of layers holds. About 1 line."""
    ### BEGIN SOLUTION
    return 3 * layers * batch * width * 4
    ### END SOLUTION


def run_layers(functions: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
    """Apply the functions in turn."""
    for function in functions:
        x = function(x)
    return x


def checkpoint(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x), whose graph is recomputed in the backward pass. About 10 lines."""
    ### BEGIN SOLUTION
    with no_grad():
        result = function(x.detach()).data
    anchor = x if x.requires_grad else Tensor(x.data, requires_grad=True)

    def vjp(g: torch.Tensor) -> torch.Tensor:
        again = Tensor(x.data, requires_grad=True)
        with enable_grad():
            recomputed = function(again)
        backward(recomputed, g)
        return torch.zeros_like(x.data) if again.grad is None else again.grad

    return record(result, (anchor, vjp), op="checkpoint")
    ### END SOLUTION


def predict_checkpointed_bytes(
    batch: int, width: int, layers: int, segments: int
) -> int:
    """Bytes of results held at the worst moment. About 2 lines."""
    ### BEGIN SOLUTION
    results = segments + 3 * math.ceil(layers / segments)
    return results * batch * width * 4
    ### END SOLUTION


def best_segments(layers: int) -> int:
    """Number of segments that holds least; the smaller of two equals. About 2 lines."""
    ### BEGIN SOLUTION
    candidates = range(1, layers + 1)
    return min(candidates, key=lambda k: predict_checkpointed_bytes(1, 1, layers, k))
    ### END SOLUTION


def checkpoint_sequential(
    functions: Sequence[Callable[[Tensor], Tensor]], x: Tensor, segments: int
) -> Tensor:
    """run_layers, in at most `segments` checkpointed segments. About 5 lines."""
    ### BEGIN SOLUTION
    length = math.ceil(len(functions) / segments)
    for start in range(0, len(functions), length):
        part = functions[start : start + length]
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
# **See it.** Bytes held at each layer of a stack, forward and back, by your engine. `watch` passes a tensor on and
# notes how much the graph holds at that moment.

# %%
from functools import partial

from mlsys_lab.benchmark.memory import track_memory

LAYERS, BATCH, WIDTH = 64, 1024, 64


def watch(h: Tensor, memory: track_memory, trace: list[int]) -> Tensor:
    """Pass h on; note the bytes held now, and when its gradient comes back."""

    def note(g: torch.Tensor) -> torch.Tensor:
        trace.append(memory.current_bytes)
        return g

    return record(note(h.data), (h, note), op="watch")


def run_stack(segments: int | None) -> tuple[list[int], int]:
    """Run a stack forward and back: bytes held from layer to layer, and the most."""
    weights = torch.randn(LAYERS, WIDTH, WIDTH) / math.sqrt(WIDTH)
    weights = [Tensor(weight, requires_grad=True) for weight in weights]
    biases = [Tensor(torch.zeros(WIDTH), requires_grad=True) for _ in weights]
    x, grad, trace = Tensor(torch.randn(BATCH, WIDTH)), torch.ones(BATCH, WIDTH), []
    with track_memory() as memory:
        stack = [
            lambda h, w=w, b=b: watch((h @ w + b).tanh(), memory, trace)
            for w, b in zip(weights, biases, strict=True)
        ]
        plain = partial(run_layers, stack, x)
        cut = partial(checkpoint_sequential, stack, x, segments)
        backward(cut() if segments else plain(), grad)
    return trace, memory.peak_bytes


best = best_segments(LAYERS)
traces = {"plain": run_stack(None)[0], "checkpointed": run_stack(best)[0]}
bounds = {
    "predicted: plain": predict_graph_bytes(BATCH, WIDTH, LAYERS),
    "predicted: checkpointed": predict_checkpointed_bytes(BATCH, WIDTH, LAYERS, best),
}
figure = go.Figure([go.Scatter(y=trace, name=name) for name, trace in traces.items()])
for name, held in bounds.items():
    figure.add_hline(y=held, line_dash="dot", annotation_text=name)
figure.update_layout(xaxis_title="layers passed, forward and back", height=380)
figure.update_layout(yaxis_title="bytes held", yaxis_rangemode="tozero")
show(figure, alt="Bytes held forward and back, plain and checkpointed")

# %% [markdown]
# The plain curve climbs to your prediction and stays there: your engine frees a graph as a whole. The checkpointed
# curve is a sawtooth with one tooth per segment. Now the worst moment against the number of segments.

# %%
best = best_segments(LAYERS)
counts = sorted({1, 2, 4, 8, best, 16, 24, 32, LAYERS})
measured = [run_stack(segments)[1] for segments in counts]
predicted = [
    predict_checkpointed_bytes(BATCH, WIDTH, LAYERS, segments) for segments in counts
]
least = counts[measured.index(min(measured))]
check.predict(guess, least, "segments", within=0.25)
print(f"by your formula: {best} segments")
print(f"memory of the plain graph: {run_stack(None)[1] / min(measured):.1f} times that")
figure = go.Figure()
figure.add_scatter(x=counts, y=predicted, name="predicted")
figure.add_scatter(x=counts, y=measured, name="measured", mode="markers")
figure.update_layout(xaxis_title="segments", xaxis_type="log", height=320)
figure.update_layout(yaxis_title="most bytes held", yaxis_rangemode="tozero")
show(figure, alt="Most bytes held against the number of segments")

# %% [markdown]
# For real $k$ the minimum of $k + 3n/k$ lies at $k = \sqrt{3n}$: for 64 layers that is about 14. If you said 8, you
# knew that memory grows with the square root of the depth, and forgot that a layer holds three results and a segment's
# output is one. The distance between points and line is what your formula leaves out: gradients in flight, and the
# gradients of the weights. The price is one more forward pass, 4 units of work in place of 3.
#
# ## Stretch: no points
#
# - **Save less.** Which of the three results of a layer do your vjps really read? Change `Tensor` so that an edge
#   leads to a small node that holds edges only, as torch's `grad_fn` does, and measure the plain stack again.
# - **Free as you go.** Let `backward` drop a node's edges once its gradient is passed on. What does the plain curve
#   look like now, and what can you no longer do?
# - **Gradients of gradients.** Write the vjps with `Tensor` operations in place of `torch.Tensor` ones, so that the
#   backward pass is recorded too. Test it on the second derivative of tanh.
#
# ## What you can read now
#
# - micrograd, `micrograd/engine.py`: `Value`, with the backward pass as closures; about 100 lines.
# - PyTorch, `tools/autograd/derivatives.yaml`: the vjps of torch's primitive operations in one file (operations
#   composed of these need none). Look up `tanh`, `mm` and `index.Tensor`.
# - PyTorch, `torch/csrc/autograd/engine.cpp`: `Engine::execute` and `Engine::compute_dependencies`, which counts what
#   still has to arrive at each node in place of sorting.
# - PyTorch, `torch/utils/checkpoint.py`: `checkpoint`, and `CheckpointFunction.backward`, which is your vjp.
# - The course's own `mlsys_lab/autograd/graph.py`: a tape with version counters, freed node by node.
#
# ## Test yourself
#
# <details><summary>Which of the three results of a layer do the vjps read? How little could a layer hold?</summary>
#
# `matmul` reads its operands, that is the layer's input and the weight; `+` reads nothing but shapes; `tanh` reads its
# own result. So one array per layer is enough: the output of tanh, which is the next layer's input. Your engine holds
# three because an edge leads to the whole operand, data included.
#
# </details>
#
# <details><summary>Why does forward mode need no graph, and for which functions is it the better choice?</summary>
#
# It carries derivatives along with the values, in the order in which they are computed, so nothing is stored. One pass
# gives the derivatives of *all outputs with respect to one input*. It is better for few inputs and many outputs; a loss
# has one output and millions of inputs, which is the opposite.
#
# </details>
#
# <details><summary>A checkpointed segment contains dropout. What must `checkpoint` remember?</summary>
#
# The state of the random number generator before the first run. The second run must drop the same units, or the
# gradients belong to another function than the one that was computed. PyTorch calls this `preserve_rng_state`.
#
# </details>
#
# <details><summary>What would memory and time be if checkpoints were nested, with segments of segments?</summary>
#
# With one level, memory grows as $\sqrt n$ and each layer runs twice. With $d$ levels it grows as $n^{1/(d+1)}$, and
# each layer runs up to $d + 1$ times. (The constant grows with $d$: about $d + 1$ levels hold $n^{1/(d+1)}$ results
# each.) At $d = \log_2 n$ memory grows only with $\log n$, and a layer runs up to about $\log_2 n$ times.
#
# </details>
#
# <details><summary>Two losses share most of one network. Is it cheaper to add them and go backward once?</summary>
#
# Yes: gradients are linear, so the sum of both losses has the sum of both gradients, and the shared part is traversed
# once. Two calls of `backward` traverse it twice and add up to the same result.
#
# </details>
#
# When all checks pass, save the notebook and run `mlsys-lab check autograd` in a terminal. Later labs then run on your
# engine.
