"""All machine-made mistakes of a lab, in a fixed order, each with a name that outlives other edits of the text.

A name tells source, function, and the statement before and after: "reference relu: slope = 1.0 if self.data > 0 else
0.0 => slope = 1.0 if self.data >= 0 else 0.0". Equal ones in a function are counted: "#2".
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mlsys_checks.sandboxed.spec import Lab
from mlsys_grader.proving.mutation.code import Code, Function, Operator, read_appended_code, read_solved_code
from mlsys_grader.proving.mutation.cuda import change_cuda_text
from mlsys_grader.proving.mutation.expressions import EXPRESSIONS
from mlsys_grader.proving.mutation.shown import find_shown
from mlsys_grader.proving.mutation.statements import STATEMENTS, know_only, remember_results
from mlsys_grader.proving.variants import VariantsOf

LONG, CONTEXT = 100, 25
"""Characters from which on a statement is shortened in a name, and what is left beside the difference."""
ARROW = " => "
"""Between a statement and what it was changed to."""


@dataclass(frozen=True)
class Mutant:
    """A text with one mistake. `top` is the definition at the top of the text that holds it.

    `change` is what `name` tells, without anything left out.
    """

    name: str
    change: str = field(repr=False)
    operator: str
    top: str
    text: str = field(repr=False)
    code: Code = field(repr=False)


def find_mutants(variants: VariantsOf, lab: Lab) -> Iterator[Mutant]:
    """Yield the mutants of the reference and of each alternative; no two of a source have the same syntax tree."""
    sources = {"reference": read_solved_code(variants.reference)}
    for path in variants.alternatives:
        sources[path.stem] = read_appended_code(variants.with_definitions(path), path.read_text(encoding="utf-8"))
    values = None
    for source, code in sources.items():
        shown = find_shown(code, lab, values)
        values = shown.values
        yield from mutate(code, source, know_only(shown))


def mutate(code: Code, source: str, more: Sequence[Operator] = ()) -> Iterator[Mutant]:
    """Yield the mutants of a text that compile, in the order of its lines; `more` are operators for this text alone."""
    operators = (*STATEMENTS, *EXPRESSIONS, change_cuda_text, remember_results, *more)
    lines = code.text.split("\n")
    for function in code.functions:
        top, first, end = function.name.partition(".")[0], function.lines.start - 1, function.lines.stop - 1
        times: Counter[str] = Counter()
        seen = {ast.dump(function.node)}
        for node, statement in _places(function.node, function.node):
            if node is not function.node and not code.is_own(node):
                continue
            for operator in operators:
                for new in operator(node, function):
                    text = _replace(lines, function, node, new)
                    changed = _parse(text)
                    if changed is None or (dumped := ast.dump(changed)) in seen:
                        continue
                    seen.add(dumped)
                    before, after = _tell(function, node, statement, new, changed)
                    change = f"{source} {function.name}: {before}{after}"
                    told = f"{source} {function.name}: {''.join(_shorten(before, after))}"
                    times[told] += 1
                    name = told if times[told] == 1 else f"{told} #{times[told]}"
                    whole = "\n".join([*lines[:first], text, *lines[end:]])
                    yield Mutant(name, change, operator.__name__, top, whole, code)


def _places(node: ast.AST, statement: ast.stmt) -> Iterator[tuple[ast.stmt | ast.expr, ast.stmt]]:
    """The nodes of a function that an operator may change, and of each the statement that it is part of."""
    statement = node if isinstance(node, ast.stmt) else statement
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return  # what is in a text is not told where it stands
    if isinstance(node, ast.stmt | ast.expr):
        yield node, statement
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "annotation", "returns", "args") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _places(child, statement)


def _replace(lines: Sequence[str], function: Function, node: ast.stmt | ast.expr, new: str) -> str:
    """The lines of a function with another text in the place of a node, indented as the node is."""
    if not isinstance(node, ast.stmt | ast.Slice):
        # In brackets, so that what stands beside it takes no part of it.
        new = new if isinstance(ast.parse(new, mode="eval").body, ast.Name | ast.Constant) else f"({new})"
    begin = function.lines.start if node is function.node else node.lineno
    assert node.end_lineno is not None and node.end_col_offset is not None
    before, after = (
        lines[begin - 1].encode()[: node.col_offset],
        lines[node.end_lineno - 1].encode()[node.end_col_offset :],
    )
    put = before.decode() + new.replace("\n", "\n" + " " * node.col_offset) + after.decode()
    return "\n".join(
        [*lines[function.lines.start - 1 : begin - 1], put, *lines[node.end_lineno : function.lines.stop - 1]]
    )


def _parse(text: str) -> ast.FunctionDef | None:
    """The definition in lines of a function, counted from 1 as these are; None where they are no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # a mistake may well look like one
            tree = ast.parse(f"if True:\n{text}" if text[0].isspace() else f"\n{text}")
            compile(tree, "mutant", "exec")
    except SyntaxError:
        return None
    return next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _tell(
    function: Function, node: ast.AST, statement: ast.stmt, new: str, changed: ast.FunctionDef
) -> tuple[str, str]:
    """What a change does to the statement that it is part of: a line before it, and after it with a sign between."""
    before = ast.unparse(statement).split("\n")
    if node is function.node:
        return "", "+ " + next((line.strip() for line in new.split("\n") if line not in before), "again")
    place = (statement.lineno - function.lines.start + 2, statement.col_offset)
    found = (one for one in ast.walk(changed) if isinstance(one, ast.stmt) and (one.lineno, one.col_offset) == place)
    after = ast.unparse(next(found)).split("\n")
    if before[0] != after[0]:
        return before[0], f"{ARROW}{after[0]}"
    return before[0], f" … {next((line.strip() for line in after if line not in before), 'less')}"


def _shorten(before: str, after: str) -> tuple[str, str]:
    """Two long lines without what they have in common, but for a few characters on both sides of the difference."""
    if not after.startswith(ARROW) or max(len(before), len(after) - len(ARROW)) <= LONG:
        return before, after
    after = after.removeprefix(ARROW)
    first = max(_agreeing(before, after) - CONTEXT, 0)
    last = max(_agreeing(before[:first:-1], after[:first:-1]) - CONTEXT, 0)
    cut = [f"{'…' * bool(first)}{line[first : len(line) - last]}{'…' * bool(last)}" for line in (before, after)]
    return cut[0], ARROW + cut[1]


def _agreeing(one: str, other: str) -> int:
    """Characters at the beginning of two texts that are equal."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))
