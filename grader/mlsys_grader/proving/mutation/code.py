"""The learner's part of a text: functions whose bodies are changed, and the kinds of the names in them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from mlsys_checks.sandboxed.kernels.definitions import is_kernel

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


@dataclass(frozen=True)
class Function:
    """A function or method: its name as in `Value.exp`, and its definition. What is nested in it belongs to it."""

    name: str
    node: ast.FunctionDef

    @property
    def is_kernel(self) -> bool:
        """Whether it is written in the language of Triton's or CUDA's kernels."""
        return is_kernel(self.node)

    @cached_property
    def parameters(self) -> tuple[ast.arg, ...]:
        """Names of the function's parameters, without `self`."""
        arguments = self.node.args
        return tuple(
            arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if arg.arg != "self"
        )

    @property
    def lines(self) -> range:
        """Numbers of its lines, from 1, decorators included."""
        assert self.node.end_lineno is not None
        return range(
            min([self.node.lineno, *(one.lineno for one in self.node.decorator_list)]), self.node.end_lineno + 1
        )

    @cached_property
    def bound(self) -> dict[str, int]:
        """The line in which each of its local names is bound first, in the order of the text."""
        names = [node for node in ast.walk(self.node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        names.sort(key=lambda node: (node.lineno, node.col_offset))
        return {node.id: node.lineno for node in reversed(names)}

    @cached_property
    def next_alike(self) -> dict[str, str]:
        """For a name the one it is most easily mistaken for: the next one of its kind, or the first for the last.

        Parameters are of a kind if they have one annotation, and are pointers or not; local names are another kind.
        """
        kinds: dict[str, list[str]] = {}
        for arg in self.parameters:
            annotation = ast.unparse(arg.annotation) if arg.annotation else ""
            kinds.setdefault(f"{annotation} {arg.arg.endswith('_ptr')}", []).append(arg.arg)
        parameters = {arg.arg for arg in self.parameters}
        kinds["local"] = sorted(self.bound.keys() - parameters, key=lambda name: (self.bound[name], name))
        return pair_alike(kinds.values())


@dataclass(frozen=True)
class Code:
    """A text of Python of which the lines in `own` are the learner's."""

    text: str
    own: frozenset[int] = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree of the text."""
        return ast.parse(self.text)

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """The functions and methods in which the learner wrote something."""
        found = []
        for node in self.tree.body:
            methods = node.body if isinstance(node, ast.ClassDef) else [node]
            prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            found += [Function(prefix + one.name, one) for one in methods if isinstance(one, ast.FunctionDef)]
        return tuple(one for one in found if any(self.is_own(statement) for statement in one.node.body))

    def is_own(self, node: ast.stmt | ast.expr) -> bool:
        """Whether a node begins in one of the learner's lines."""
        return node.lineno in self.own

    def reached_from(self, names: Iterable[str]) -> frozenset[str]:
        """Names of the text's definitions that `names` are, or use at whatever distance."""
        found, waiting = set[str](), list(names)
        while waiting:
            name = waiting.pop()
            if name in self._uses and name not in found:
                found.add(name)
                waiting += self._uses[name]
        return frozenset(found)

    @cached_property
    def _uses(self) -> dict[str, set[str]]:
        """For every name defined at the top, or patched there as in `Value.exp = exp`, the names that it uses."""
        uses: dict[str, set[str]] = {}
        for node in self.tree.body:
            names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                uses.setdefault(node.name, set()).update(names)
            elif isinstance(node, ast.Assign):
                for name in (
                    part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)
                ):
                    uses.setdefault(name, set()).update(names)
        return uses


Operator = Callable[[ast.AST, Function], Iterator[str]]
"""Texts that may take the place of a node of a function: mistakes, one at a time."""


def pair_alike(kinds: Iterable[Iterable[str]]) -> dict[str, str]:
    """For each name the next one of its kind, or the first for the last; none for one that is alone."""
    pairs = [pair for names in map(list, kinds) for pair in zip(names, [*names[1:], *names[:1]], strict=True)]
    return {name: other for name, other in pairs if name != other}


def read_solved_code(text: str) -> Code:
    """A notebook's artifact, of which what stands between the marks of a solution is the learner's."""
    own, inside = set[int](), False
    for number, line in enumerate(text.split("\n"), start=1):
        inside = line.strip() == BEGIN or (inside and line.strip() != END)
        if inside:
            own.add(number)
    return Code(text, frozenset(own))


def read_appended_code(text: str, definitions: str) -> Code:
    """An artifact that ends with definitions, all of which are the learner's."""
    last = len(text.split("\n"))
    return Code(text, frozenset(range(last - len(definitions.split("\n")) + 1, last + 1)))
