"""Live cells: which cells of a page can run in a browser, what each needs, and a session that runs them."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from book.live import runtime
from book.live.alone import list_modules, run_alone
from book.live.cells import LiveCell, find_live_cells
from book.live.session import Session


def cells_of(*sources: str | tuple[str, str]) -> dict[int, LiveCell]:
    """Live cells of a notebook of these cells; a pair is a tag and the source."""
    pairs = [source if isinstance(source, tuple) else ("any", source) for source in sources]
    return find_live_cells([new_code_cell(source, metadata={"tags": [tag]}) for tag, source in pairs])


def run(session: Session, cells: dict[int, Any], index: int) -> list[tuple[str, int, str]]:
    """What a session emits when a cell is run; printed text in one piece."""
    emitted: list[tuple[str, int, str]] = []

    def emit(kind: str, cell: int, content: str) -> None:
        if emitted and kind == "text" and emitted[-1][:2] == (kind, cell):
            content = emitted.pop()[2] + content
        emitted.append((kind, cell, content))

    session.run(json.dumps(cells), index, emit)
    return emitted


def cell(source: str, needs: tuple[int, ...] = (), shows: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"source": source, "needs": needs, "shows": shows}


def test_a_cell_needs_those_that_bound_its_names_last() -> None:
    live = cells_of("a = 1", "b = 2", "a = b", "def f():\n    return a + len('x')", "print(f())")
    assert [one.needs for one in live.values()] == [(), (), (1,), (1, 2), (1, 2, 3)]


def test_assigning_to_a_part_changes_a_name() -> None:
    live = cells_of("a = {}", "a['x'] = 1", "print(a)")
    assert live[2].needs == (0, 1)


def test_cells_that_no_browser_can_run_are_left_out_with_those_that_need_them() -> None:
    live = cells_of("import torch", "from mlsys_lab import hardware", "x = torch.ones(2)", "x", "missing", "1 + 1")
    assert set(live) == {1, 5}


def test_a_long_cell_is_left_out() -> None:
    assert set(cells_of("a = 1", ("long", "b = a"), "a")) == {0, 2}


def test_a_hidden_cell_shows_what_the_cell_before_it_computed() -> None:
    live = cells_of(
        "a = 1", ("remove-input", "a"), ("remove-cell", "from myst_nb import glue\nc = a\nglue('c', c)"), "c"
    )
    assert live[0].shows == (1,) and live[0].is_visible and not live[1].is_visible
    assert live[2].source == "c = a" and live[3].needs == (0, 2)


def test_prose_is_no_cell() -> None:
    assert set(find_live_cells([new_markdown_cell("a"), new_code_cell("1")])) == {1}


def test_output_is_text_html_and_the_value_of_the_last_line() -> None:
    table = "from mlsys_lab.widgets import Table\nTable(('a',), [(1,)])"
    session = Session()
    assert run(session, {0: cell("print('x', end='')\nprint('y')\n1 + 1")}, 0) == [
        ("start", 0, ""),
        ("text", 0, "xy\n2\n"),
    ]
    (_, (kind, _, content)) = run(session, {0: cell(table)}, 0)
    assert kind == "html" and content.startswith("<table>")


def test_what_a_cell_needs_runs_before_it_and_again_when_its_code_has_changed() -> None:
    session, cells = Session(), {0: cell("a = 1"), 1: cell("b = a + 1", (0,)), 2: cell("b", (0, 1))}
    assert run(session, cells, 2)[-1] == ("text", 2, "2\n")
    cells[0] = cell("a = 5")
    assert run(session, cells, 2)[-1] == ("text", 2, "6\n")


def test_a_name_that_two_cells_bind_has_the_value_of_the_one_that_is_needed() -> None:
    session, cells = Session(), {0: cell("a = 1"), 1: cell("a = 2"), 2: cell("a", (0,))}
    run(session, cells, 1)
    assert run(session, cells, 2)[-1] == ("text", 2, "1\n")


def test_a_cell_that_shows_results_runs_too() -> None:
    cells = {0: cell("a = 3", (), (2,)), 1: cell("b = 4"), 2: cell("a * b", (0, 1))}
    assert run(Session(), cells, 0) == [("start", 0, ""), ("start", 2, ""), ("text", 2, "12\n")]


def test_an_error_is_one_line_and_names_the_line() -> None:
    session = Session()
    assert run(session, {0: cell("a = 1\n1 / 0")}, 0)[-1] == (
        "error",
        0,
        "ZeroDivisionError: division by zero (line 2)",
    )
    assert run(session, {0: cell("a = = 1")}, 0)[-1] == ("error", 0, "SyntaxError: invalid syntax (line 1)")
    _, _, above = run(session, {0: cell("oops"), 1: cell("1", (0,))}, 1)[-1]
    assert above == "In a cell that this one needs: NameError: name 'oops' is not defined (line 1)"


def test_the_package_has_the_modules_that_the_chapters_import_and_no_others() -> None:
    modules = list_modules()
    assert {"mlsys_lab.flops.estimate", "mlsys_lab.inference.engine.scheduler", "mlsys_lab.widgets.page"} <= {*modules}
    assert "mlsys_lab.autograd" not in modules
    assert run_alone("json.dump(given, answer)", [1, "a"]) == [1, "a"]


def test_without_npm_nothing_is_staged_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runtime, "BUILD", tmp_path / "build")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert runtime.stage(tmp_path / "static") == [] and runtime.download_bytes(tmp_path / "static") == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("the site's cells will have no Run button: npm failed: ") and "npm" in line[55:]


def test_the_package_is_the_same_archive_each_time() -> None:
    packed = runtime.pack_package()
    assert packed == runtime.pack_package()
    names = zipfile.ZipFile(io.BytesIO(packed)).namelist()
    assert {"live_session.py", "mlsys_lab/flops/estimate.py"} <= {*names} and any(
        one.endswith(".toml") for one in names
    )
