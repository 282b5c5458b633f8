"""Random kernels of branches and loops, and a warp that runs them in lockstep: an account of requests of its own.

A warp goes through a text once, with the set of lanes that are active: both sides of a branch one after the other, a
loop until no lane is left in it. Lanes that `continue` come back for the next turn, lanes that `break` or have ended
wait behind the loop, lanes that `return` behind the call. An expression is worked out for all active lanes at once.
"""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Iterator
from typing import Any

Lanes = tuple[int, ...]
Request = tuple[str, int, Lanes]
"""What is done ("load" or "store"), the element, which is another for each place in the text, and by which lanes."""

OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.Sub: operator.sub,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
}
RANGES = ("range(2)", "range(i % 3)", "range(i % 4, -1, -1)", "range(3 - i % 3)", "range(i, 6, 2)")


class Text:
    """The text of a random kernel and of one that it calls; `elements` of an array `x` are loaded, of `y` stored to."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.elements = self.variables = 0
        called = [
            *self.block(1, ["n"]),
            f"for d in range(n % 3):\n    {self.store()}\n    if d == i % 2:\n        return 1",
        ]
        body = [*self.block(3, ["i"], calls=True), self.store()]
        self.source = "\n".join(
            [
                f"def called(x, y, i, n):\n{indent(called)}\n    return 0",
                f"def kernel(x, y):\n    i = cuda.grid(1)\n{indent(body)}",
            ]
        )

    def element(self) -> int:
        self.elements += 1
        return self.elements - 1

    def store(self) -> str:
        return f"y[{self.element()}] = 1"

    def test(self, names: list[str]) -> str:
        terms = " + ".join(f"{self.random.randint(1, 3)} * {name}" for name in names)
        test = f"({terms} + {self.random.randint(0, 5)}) % {self.random.randint(2, 4)} > {self.random.randint(0, 1)}"
        return self.random.choice([test, test, f"not {test}", f"x[{self.element()}] == 0 and {test}"])

    def block(self, depth: int, names: list[str], *, calls: bool = False, loop: bool = False) -> list[str]:
        """One to three statements; `loop`: whether they stand in one."""
        kinds = [
            self.plain,
            *([self.branch, self.counted, self.waited] if depth else []),
            *([self.leave] if loop else []),
        ]
        return [
            self.random.choice(kinds)(depth - 1, names, calls=calls, loop=loop)
            for _ in range(self.random.randint(1, 3))
        ]

    def plain(self, depth: int, names: list[str], *, calls: bool, loop: bool) -> str:
        load = f"x[{self.element()}]"
        choice = f"{load} if {self.test(names)} else x[{self.element()}]"
        value = self.random.choice(["1", load, choice, f"called(x, y, i, {names[-1]})" if calls else "1"])
        return f"y[{self.element()}] = {value}"

    def branch(self, depth: int, names: list[str], *, calls: bool, loop: bool) -> str:
        text = f"if {self.test(names)}:\n{indent(self.block(depth, names, calls=calls, loop=loop))}"
        other = indent(self.block(depth, names, calls=calls, loop=loop))
        return f"{text}\nelse:\n{other}" if self.random.random() < 0.6 else text

    def counted(self, depth: int, names: list[str], *, calls: bool, loop: bool) -> str:
        self.variables += 1
        name = f"k{self.variables}"
        body = indent(self.block(depth, [*names, name], calls=calls, loop=True))
        return f"for {name} in {self.random.choice(RANGES)}:\n{body}{self.otherwise(depth, names, calls, loop)}"

    def waited(self, depth: int, names: list[str], *, calls: bool, loop: bool) -> str:
        self.variables += 1
        name = f"w{self.variables}"
        head = f"{name} = i % {self.random.randint(1, 3)}\nwhile {name} < 3 and ({self.test([*names, name])}):"
        body = indent([f"{name} += 1", *self.block(depth, [*names, name], calls=calls, loop=True)])
        return f"{head}\n{body}{self.otherwise(depth, names, calls, loop)}"

    def otherwise(self, depth: int, names: list[str], calls: bool, loop: bool) -> str:
        """The `else` of a loop, now and then; a `break` in it leaves the loop around."""
        if self.random.random() < 0.7:
            return ""
        return f"\nelse:\n{indent(self.block(depth, names, calls=calls, loop=loop))}"

    def leave(self, depth: int, names: list[str], *, calls: bool, loop: bool) -> str:
        word = self.random.choice(["break", "continue", "continue", "return 2"])
        return f"if {self.test(names)}:\n    {self.store()}\n    {word}"


def indent(statements: list[str]) -> str:
    return "\n".join(f"    {line}" for statement in statements for line in statement.splitlines())


class Warp:
    """Lanes that run a text in lockstep; `requests` is what they ask of memory, in order of time."""

    def __init__(self, source: str, x: list[int], lanes: int) -> None:
        self.functions = {one.name: one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)}
        self.x, self.requests = x, list[Request]()
        self.values: dict[int, dict[str, int]] = {lane: {} for lane in range(lanes)}
        self.run("kernel", tuple(range(lanes)))

    def run(self, name: str, active: Lanes) -> dict[int, int]:
        """Run a function; returns what it returns to each lane."""
        self.returned, around = dict[int, int](), getattr(self, "returned", {})
        self.block(self.functions[name].body, active, [], [])
        returned, self.returned = self.returned, around
        return returned

    def block(self, body: list[ast.stmt], active: Lanes, broken: list[int], continued: list[int]) -> Lanes:
        """Run statements; returns the lanes that come to their end."""
        for node in body:
            if active:
                active = self.statement(node, active, broken, continued)
        return active

    def statement(self, node: ast.stmt, active: Lanes, broken: list[int], continued: list[int]) -> Lanes:
        match node:
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=element))], value=value):
                self.evaluate(value, active)
                self.requests.append(("store", element, active))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                for lane, one in self.evaluate(value, active).items():
                    self.values[lane][name] = one
            case ast.AugAssign(target=ast.Name(id=name)):
                for lane in active:
                    self.values[lane][name] += 1
            case ast.If(test=test, body=body, orelse=orelse):
                true, false = self.split(test, active)
                sides = (self.block(body, true, broken, continued), self.block(orelse, false, broken, continued))
                return tuple(sorted(sum(sides, ())))
            case ast.For(body=body, orelse=orelse) | ast.While(body=body, orelse=orelse):
                ended: list[int] = []
                left: list[int] = []
                for turn in self.turns(node, active, ended, again := list[int]()):
                    stay: list[int] = []
                    again[:] = [*self.block(body, turn, left, stay), *stay]
                return tuple(sorted((*self.block(orelse, tuple(sorted(ended)), broken, continued), *left)))
            case ast.Break():
                broken += active
                return ()
            case ast.Continue():
                continued += active
                return ()
            case ast.Return(value=value):
                assert value
                self.returned |= self.evaluate(value, active)
                return ()
        return active

    def turns(self, node: ast.For | ast.While, active: Lanes, ended: list[int], again: list[int]) -> Iterator[Lanes]:
        """Yield the lanes of each turn of a loop; `again` are those that come to the next, `ended` gets the others."""
        ranges: dict[int, Iterator[int]] = {}
        if isinstance(node, ast.For):
            assert isinstance(node.iter, ast.Call)
            ends = [self.evaluate(one, active) for one in node.iter.args]
            ranges = {lane: iter(range(*(end[lane] for end in ends))) for lane in active}
        again[:] = active
        while again:
            come = tuple(sorted(again))
            if isinstance(node, ast.While):
                going, over = self.split(node.test, come)
            else:
                assert isinstance(node.target, ast.Name)
                following = {lane: next(ranges[lane], None) for lane in come}
                going = tuple(lane for lane in come if following[lane] is not None)
                over = tuple(lane for lane in come if following[lane] is None)
                for lane in going:
                    self.values[lane][node.target.id] = following[lane] or 0
            ended += over
            if not going:
                return
            yield going

    def split(self, test: ast.expr, active: Lanes) -> tuple[Lanes, Lanes]:
        """The lanes for which a test holds, and the others."""
        true = self.evaluate(test, active)
        return tuple(lane for lane in active if true[lane]), tuple(lane for lane in active if not true[lane])

    def evaluate(self, node: ast.expr, active: Lanes) -> dict[int, Any]:
        """An expression's value in each active lane."""
        if not active:
            return {}
        match node:
            case ast.Constant(value=value):
                return dict.fromkeys(active, value)
            case ast.Name(id=name):
                return {lane: self.values[lane][name] for lane in active}
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                one, other = self.evaluate(left, active), self.evaluate(right, active)
                return {lane: OPERATORS[type(op)](one[lane], other[lane]) for lane in active}
            case ast.UnaryOp(op=op, operand=operand):
                found = self.evaluate(operand, active)
                return {lane: not found[lane] if isinstance(op, ast.Not) else -found[lane] for lane in active}
            case ast.BoolOp(values=[left, right]):
                true, false = self.split(left, active)
                return self.evaluate(right, true) | dict.fromkeys(false, False)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                true, false = self.split(test, active)
                return self.evaluate(body, true) | self.evaluate(orelse, false)
            case ast.Subscript(slice=ast.Constant(value=element)):
                self.requests.append(("load", element, active))
                return dict.fromkeys(active, self.x[element])
            case ast.Call(func=ast.Attribute(attr="grid")):
                return {lane: lane for lane in active}
            case ast.Call(func=ast.Name(id=name), args=[*_, n]):
                for lane, value in self.evaluate(n, active).items():
                    self.values[lane]["n"] = value
                return self.run(name, active)
        raise AssertionError(ast.dump(node))
