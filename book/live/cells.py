"""Which cells of a page can run in a browser, and which other cells each of them needs.

A cell needs the cell above it that last bound a name which it uses. It can run if its imports work in the browser, and
if all cells that it needs can run.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nbformat import NotebookNode

from book.live.alone import which_work

HIDDEN = {"remove-input", "remove-cell"}
"""Tags of cells whose code is not on the page."""
LONG = "long"
"""Tag of a cell that would take minutes in a browser."""


@dataclass(frozen=True)
class LiveCell:
    """A cell that can run in the browser.

    source: its code, without what puts values into the page's prose.
    needs: indices of the cells that must have run before, in this order.
    shows: indices of cells without visible code that follow this one and show what it computed.
    is_visible: whether its code is on the page.
    """

    source: str
    needs: tuple[int, ...]
    shows: tuple[int, ...]
    is_visible: bool


def find_live_cells(cells: Sequence[NotebookNode]) -> dict[int, LiveCell]:
    """The cells of a notebook that can run in the browser, by index in the notebook."""
    tags = {i: {*cell.metadata.get("tags", [])} for i, cell in enumerate(cells) if cell.cell_type == "code"}
    code = {i: _without_glue(cells[i].source) for i in tags}
    imports = sorted({one for source in code.values() for one in _imports(source)})
    works = dict(zip(imports, which_work(imports), strict=True))
    long = {i for i in tags if LONG in tags[i]}
    needs = dict(_follow_names(code, works, long))
    visible = [i for i in tags if not tags[i] & HIDDEN]
    return {
        i: LiveCell(
            source=code[i],
            needs=needs[i],
            shows=tuple(
                k
                for k in needs
                if i < k < min([j for j in visible if j > i], default=len(cells))
                and "remove-input" in tags[k]
                and i in needs[k]
            ),
            is_visible=i in visible,
        )
        for i in needs
    }


def _without_glue(source: str) -> str:
    """The source without calls of `glue`, which puts values into prose."""
    tree = ast.parse(source)
    kept = [
        node
        for node in tree.body
        if not (isinstance(node, ast.ImportFrom) and node.module == "myst_nb")
        and not (isinstance(node, ast.Expr) and ast.unparse(node).startswith("glue("))
    ]
    return source if len(kept) == len(tree.body) else "\n".join(map(ast.unparse, kept))


def _imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield ast.unparse(node)


def _follow_names(
    sources: dict[int, str], works: dict[str, bool], long: set[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each cell that can run, with all cells that it needs, directly or through others."""
    bound_by: dict[str, int] = {}
    needs: dict[int, tuple[int, ...]] = {}
    for i, source in sources.items():
        binds, uses = _names(source)
        outside = {name for name in uses if name in bound_by} | (uses - binds - {*dir(builtins)})
        direct = {bound_by.get(name, -1) for name in outside}
        if i not in long and direct <= {*needs} and all(works[one] for one in _imports(source)):
            needs[i] = tuple(sorted(direct.union(*(needs[k] for k in direct))))
            yield i, needs[i]
        bound_by |= dict.fromkeys(binds, i)


def _names(source: str) -> tuple[set[str], set[str]]:
    """Global names that a cell binds or changes by assignment to a part, and those that it uses."""
    table = symtable.symtable(source, "cell", "exec")
    symbols = table.get_symbols()
    binds = {one.get_name() for one in symbols if one.is_assigned() or one.is_imported() or one.is_namespace()}
    uses = {one.get_name() for one in symbols if one.is_referenced()}
    inner = [*table.get_children()]
    while inner:
        scope = inner.pop()
        uses |= {one.get_name() for one in scope.get_symbols() if one.is_global() and one.is_referenced()}
        inner += scope.get_children()
    for node in ast.walk(ast.parse(source)):
        target = node
        while isinstance(target, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            target = target.value
        if isinstance(target, ast.Name) and target is not node and target.id in uses:
            binds.add(target.id)
    return binds, uses
