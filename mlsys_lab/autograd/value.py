"""Reverse-mode differentiation of scalars: the whole idea on one page.

A `Value` is a number that remembers what it was computed from. Every operation records, next to its result,
the partial derivative with respect to each operand *at that point*; `backward` then walks the graph once, from the
result to the operands, and adds up derivative × gradient along every edge.

The interface extends micrograd's (Karpathy, 2020): https://github.com/karpathy/micrograd
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real

from mlsys_lab.errors import InputError

Number = int | float


class Value:
    """A scalar in a computation graph.

    `data` is the number, `grad` the derivative of what `backward` was called on with respect to it (summed over calls),
    `op` the operation's symbol, `edges` the pairs (operand, ∂self/∂operand), and `label` a name for drawings.

    >>> x, y, z = Value(-2.0), Value(5.0), Value(-4.0)
    >>> f = (x + y) * z
    >>> f.backward()
    >>> f.data, x.grad, y.grad, z.grad
    (-12.0, -4.0, -4.0, 3.0)
    """

    __slots__ = ("data", "edges", "grad", "label", "op")

    def __init__(
        self, data: Number, edges: tuple[tuple[Value, float], ...] = (), op: str = "", label: str = ""
    ) -> None:
        self.data = data if type(data) is float else _number(data)
        self.grad = 0.0
        self.edges = edges
        self.op = op
        self.label = label

    # --- arithmetic: each line holds the result and, per operand, its partial derivative ------------------------------

    def __add__(self, other: Value | Number) -> Value:
        other = as_value(other)
        return Value(self.data + other.data, ((self, 1.0), (other, 1.0)), "+")

    def __sub__(self, other: Value | Number) -> Value:
        other = as_value(other)
        return Value(self.data - other.data, ((self, 1.0), (other, -1.0)), "-")

    def __mul__(self, other: Value | Number) -> Value:
        other = as_value(other)
        return Value(self.data * other.data, ((self, other.data), (other, self.data)), "*")

    def __truediv__(self, other: Value | Number) -> Value:
        other = as_value(other)
        if other.data == 0:
            raise InputError("division by zero", got=f"{self.data} / {other.data}", expected="a divisor other than 0")
        quotient = self.data / other.data
        return Value(quotient, ((self, 1.0 / other.data), (other, -quotient / other.data)), "/")

    def __pow__(self, exponent: Value | Number) -> Value:
        if isinstance(exponent, Value):
            x, n = self.data, exponent.data
            return Value(_power(x, n), ((self, _d_base(x, n)), (exponent, _d_exponent(x, n))), "**")
        n = _number(exponent)
        return Value(_power(self.data, n), ((self, _d_base(self.data, n)),), f"**{exponent}")

    def __neg__(self) -> Value:
        return Value(-self.data, ((self, -1.0),), "neg")

    def __radd__(self, other: Number) -> Value:
        return as_value(other) + self

    def __rsub__(self, other: Number) -> Value:
        return as_value(other) - self

    def __rmul__(self, other: Number) -> Value:
        return as_value(other) * self

    def __rtruediv__(self, other: Number) -> Value:
        return as_value(other) / self

    def __rpow__(self, other: Number) -> Value:
        return as_value(other) ** self

    # --- comparisons: of the numbers. float() is refused, as it would lose the gradient: v.data is the number ---------

    def __lt__(self, other: Value | Number) -> bool:
        return self.data < as_value(other).data

    def __le__(self, other: Value | Number) -> bool:
        return self.data <= as_value(other).data

    def __gt__(self, other: Value | Number) -> bool:
        return self.data > as_value(other).data

    def __ge__(self, other: Value | Number) -> bool:
        return self.data >= as_value(other).data

    def __eq__(self, other: object) -> bool:
        return self.data == as_value(other).data if isinstance(other, Value | Real) else NotImplemented

    def __bool__(self) -> bool:
        return self.data != 0

    __hash__ = object.__hash__  # a key in dictionaries is this very Value, not its number

    # --- functions ----------------------------------------------------------------------------------------------------

    def relu(self) -> Value:
        """Rectified linear unit max(0, x); the derivative at 0 is taken as 0."""
        return Value(0.0, ((self, 0.0),), "relu") if self.data <= 0 else Value(self.data, ((self, 1.0),), "relu")

    def tanh(self) -> Value:
        """Hyperbolic tangent of x; its derivative is 1 - tanh²(x)."""
        t = math.tanh(self.data)
        return Value(t, ((self, 1.0 - t * t),), "tanh")

    def exp(self) -> Value:
        """Exponential eˣ, its own derivative. Raises InputError on overflow (x > 709.78)."""
        e = _call_finite(math.exp, self.data)
        return Value(e, ((self, e),), "exp")

    def log(self) -> Value:
        """Natural logarithm of x, with derivative 1/x. Raises InputError unless x > 0."""
        return Value(_log(self.data), ((self, 1.0 / self.data),), "log")

    # --- the backward pass --------------------------------------------------------------------------------------------

    def backward(self) -> None:
        """Add ∂self/∂v to `grad` of every value v that self was computed from, self included.

        Each call starts from zero gradients and adds its result to those of earlier calls. If it started from the old
        gradients of intermediate values, a second call would send those to the leaves again.
        """
        order = topological_order(self)
        before = [value.grad for value in order]
        for value in order:
            value.grad = 0.0
        self.grad = 1.0
        for value in reversed(order):
            for operand, derivative in value.edges:
                operand.grad += derivative * value.grad
        for value, grad in zip(order, before, strict=True):
            value.grad += grad

    def __format__(self, form: str) -> str:
        return format(self.data, form) if form else str(self)

    def __repr__(self) -> str:
        return f"Value(data={self.data}, grad={self.grad})"


def topological_order(root: Value) -> list[Value]:
    """Every value that `root` depends on, each after all of its operands; `root` is last.

    Depth-first search with an explicit stack: recursion would exceed Python's limit after about 1,000 operations.
    """
    order: list[Value] = []
    seen = {root}
    stack = [(root, iter(root.edges))]
    while stack:
        value, operands = stack[-1]
        for operand, _ in operands:
            if operand not in seen:
                seen.add(operand)
                stack.append((operand, iter(operand.edges)))
                break
        else:
            order.append(value)
            stack.pop()
    return order


def _number(data: object) -> float:
    if isinstance(data, Real):
        try:
            return float(data)
        except OverflowError:
            raise InputError("the number is larger than a float can hold", expected="below 1.8e308") from None
    raise InputError("a Value holds one real number", got=type(data).__name__, expected="int or float")


def as_value(other: object) -> Value:
    """Return a Value unchanged; make one of a real number. Raises InputError for anything else."""
    return other if isinstance(other, Value) else Value(_number(other))


def _call_finite(function: Callable[..., float], *arguments: float) -> float:
    try:
        return function(*arguments)
    except OverflowError:
        call = f"{function.__name__}({', '.join(map(str, arguments))})"
        raise InputError("the result is larger than a float can hold", got=call, expected="below 1.8e308") from None


def _log(x: float) -> float:
    if x > 0:
        return math.log(x)
    raise InputError("log is defined for positive numbers only", got=x, expected="x > 0")


def _power(x: float, n: float) -> float:
    if x == 0 and n < 0:
        raise InputError("0 has no negative power", got=f"{x} ** {n}", expected="a base other than 0")
    if x < 0 and not n.is_integer():
        raise InputError("a negative number has no real fractional power", got=f"{x} ** {n}", expected="a base >= 0")
    return _call_finite(math.pow, x, n)


def _d_base(x: float, n: float) -> float:
    """∂xⁿ/∂x = n·xⁿ⁻¹; 0 for n = 0 (x⁰ is constant, at 0 too), infinite at x = 0 for n < 1."""
    if n == 0:
        return 0.0
    if x == 0 and n < 1:
        return math.inf
    try:
        return n * math.pow(x, n - 1)
    except OverflowError:  # as in IEEE arithmetic: the power itself may be small
        return math.copysign(math.inf, n) * (-1.0 if x < 0 and n % 2 == 0 else 1.0)


def _d_exponent(x: float, n: float) -> float:
    """∂xⁿ/∂n = xⁿ·log x; 0 at x = 0, and NaN for x < 0, where xⁿ is real only at integers n. As in torch."""
    if x <= 0:
        return 0.0 if x == 0 else math.nan
    return _power(x, n) * math.log(x)
