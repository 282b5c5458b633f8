"""`check("name")` where a learner works: in a notebook's kernel and in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from mlsys_checks import lab, render
from mlsys_checks.live import LiveChecks
from mlsys_checks.runner import CheckFailed, Report
from mlsys_checks.sandboxed.spec import Lab, Mismatch
from mlsys_lab.errors import InputError
from mlsys_lab.stack.workspace import Workspace


def test_plain_python_prints_and_raises(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    check = lab("fake", names)
    with pytest.raises(CheckFailed, match="still to do: Add one"):
        check("add_one")
    names["add_one"] = lambda x: x + 2
    with pytest.raises(CheckFailed, match="not right yet: Add one"):
        check("add_one")
    names["add_one"] = lambda x: x + 1
    capsys.readouterr()
    check("add_one")
    said = capsys.readouterr().out
    assert said.startswith("✓ passed: Add one (3 of 3 points · 2 cases")
    assert "1 of 2 checks passed in this session, 3 of 5 points" in said


def test_hints_go_a_step_further_with_each_failed_attempt(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    check = LiveChecks(Lab("fake", (replace(fakes.TWICE, first_hint="how many x?"),)), names)

    def said(twice: Any) -> str:
        names["twice"] = twice
        with pytest.raises(CheckFailed):
            check("twice")
        return capsys.readouterr().out

    of_other_form, wrong = (lambda x: x[:1]), (lambda x: 3 * x)
    assert "hint" not in said(of_other_form)
    assert "how many x?" in said(wrong)
    assert "hint" not in said(of_other_form)
    for _ in range(2):
        assert "x + x" in (told := said(wrong))
        assert "how many x?" not in told


def test_the_inputs_of_a_public_case_can_be_had_again(fakes: ModuleType) -> None:
    check = lab("fake", {})
    assert check.inputs("add_one", "many")["x"].shape == (7,)
    assert not [name for name in check.inputs("add_one", "many") if name.startswith("_")]
    with pytest.raises(InputError, match="one of single, many"):
        check.inputs("add_one", "empty")


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (None, "Prediction skipped: set `guess` in the cell above first. Measured: 7.5 empty slots."),
        (8, "Your prediction: 8. Measured: 7.5 empty slots. Right"),
        (15, "Your prediction: 15. Measured: 7.5 empty slots. Off by 100%: which step"),
    ],
)
def test_a_prediction_is_judged(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], guess: float | None, said: str
) -> None:
    lab("fake", {}).predict(guess, 7.5, "empty slots")
    assert capsys.readouterr().out.startswith(said)


def test_the_callers_own_names_are_the_default(fakes: ModuleType) -> None:
    scope: dict[str, Any] = {"lab": lab, "add_one": lambda x: x + 1}
    exec("check = lab('fake')\ncheck('add_one')", scope)


def test_outcomes_are_noted_in_the_workspace(
    fakes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = Workspace.create(tmp_path)
    monkeypatch.chdir(tmp_path)
    check = lab("fake", {"add_one": lambda x: x + 1})
    check("add_one")
    with pytest.raises(CheckFailed):
        check("twice")
    noted = workspace.progress()["fake"]["checks"]
    assert {name: entry["points"] for name, entry in noted.items()} == {"add_one": 3.0, "twice": 0.0}
    workspace.progress_path.write_text("{")
    capsys.readouterr()
    check("add_one")  # a damaged record does not take the verdict away
    assert "progress not noted" in capsys.readouterr().out


def test_a_misspelt_check_or_lab_is_one_line_that_helps(fakes: ModuleType) -> None:
    with pytest.raises(InputError, match=r"did you mean 'twice'\?"):
        lab("fake", {})("twise")
    for topic in ("artifact", "no-such", "../etc", "", "Fake"):
        with pytest.raises(InputError, match="no lab of this name"):
            lab(topic, {})


def test_the_bound_checks_list_themselves(fakes: ModuleType) -> None:
    assert "check('twice')  Twice (2 points)" in repr(lab("fake", {}))


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def _cell(shell: InteractiveShell, source: str) -> tuple[Any, list[Any]]:
    with capture_output(stdout=True, stderr=True, display=True) as captured:
        result = shell.run_cell(source, store_history=True)
    return result, captured.outputs


def test_a_notebook_shows_a_card_and_one_line(fakes: ModuleType, shell: InteractiveShell) -> None:
    _cell(shell, "from mlsys_lab.checks import lab\ncheck = lab('fake')")
    _cell(shell, "#| export\ndef add_one(x):\n    return 1 / 0")
    result, outputs = _cell(shell, "check('add_one')")
    assert isinstance(result.error_in_exec, CheckFailed)
    assert result.error_in_exec._render_traceback_() == [f"CheckFailed: {result.error_in_exec}"]
    (card,) = outputs
    assert "not right yet" in card.data["text/html"] and "ZeroDivisionError" in card.data["text/html"]
    assert "line 3" in card.data["text/html"]
    assert card.data["text/plain"].startswith("✗ not right yet: Add one")
    _cell(shell, "def add_one(x):\n    return x + 1")
    result, outputs = _cell(shell, "check('add_one')")
    assert result.success and "passed" in outputs[0].data["text/html"]


def test_kernels_are_checked_as_the_grader_loads_the_cells_that_ran(shell: InteractiveShell) -> None:
    """What was put right since does not count, and what is not exported does not either."""
    loop = "for i in range(cuda.grid(1), x.size, cuda.gridsize(1))"
    axpy = f"@cuda.jit\ndef axpy(a, x, y):\n    {loop}:\n        y[i] += {{}} * x[i]\n"
    _cell(
        shell,
        "from mlsys_lab.checks import lab\nfrom mlsys_lab.kernels.numba_language import cuda\ncheck = lab('cuda')",
    )
    for wrong in ("ONE = 1 / 0", axpy.format("print(a)"), "ONE = 1\nif (TWO := 2"):
        _cell(shell, "#| export\n" + wrong)

    def said() -> str:
        result, _ = _cell(shell, "check('axpy')")
        return "" if result.success else f"{result.error_in_exec}"

    ran = shell.execution_count - 2
    assert f"`print` is nothing that kernel `axpy` can use (cell In[{ran}] (begins `@cuda.jit`), line 5: " in said()
    _cell(shell, "#| export\nONE = 1\n" + axpy.format("ONE * a"))
    assert said() == ""
    _cell(shell, "#| export\nif (ONE := 1):\n    pass\nfor TWO in [1]:\n    pass\n" + axpy.format("TWO * a"))
    assert "`TWO` is nothing that kernel `axpy` can use" in said()
    _cell(shell, "#| export\n" + axpy.format("helper(a)"))
    _cell(shell, "@cuda.jit(device=True)\ndef helper(a):\n    return a")
    assert "`helper` is nothing that kernel `axpy` can use" in said()


def _report(fakes: ModuleType, mismatch: Mismatch | None, **changes: Any) -> Report:
    case = fakes.ADD_ONE.cases[0] if mismatch else None
    return Report(fakes.ADD_ONE, mismatch is None, case, mismatch, 0.0123, cases=1, **changes)


def test_nothing_from_the_learner_is_live_html(fakes: ModuleType) -> None:
    report = _report(fakes, Mismatch("`<script>` is wrong", "<img onerror=x>", "a & b"))
    page = render.html(report, "<footer>")
    assert "<script" not in page and "<img" not in page and "<footer" not in page
    assert "<code>&lt;script&gt;</code>" in page and "a &amp; b" in page
    assert "<b>does</b>" not in page  # the hint's text is text too


def test_the_card_keeps_the_themes_own_text_colour(fakes: ModuleType) -> None:
    for report in (_report(fakes, None), _report(fakes, Mismatch("w")), _report(fakes, Mismatch("w"), unfinished=True)):
        page = render.html(report)
        assert "color:var(--jp-ui-font-color1,inherit)" in page
        assert "<style" not in page and "class=" not in page


def test_the_hint_waits_for_a_first_try(fakes: ModuleType) -> None:
    assert "hint" in render.text(_report(fakes, Mismatch("w")))
    assert "hint" not in render.text(_report(fakes, Mismatch("w"), unfinished=True))


@pytest.mark.parametrize("ground", ["#ffffff", "#111111"])
def test_verdict_colours_stand_out_on_light_and_dark(ground: str) -> None:
    for colour in (render.PASSED, render.UNFINISHED, render.WRONG):
        lighter, darker = sorted((_luminance(colour), _luminance(ground)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 3  # WCAG 2.2, 1.4.11 and large text of 1.4.3


def _luminance(colour: str) -> float:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_plain_text_lines_up(fakes: ModuleType) -> None:
    said = render.text(_report(fakes, Mismatch("`y` is wrong", "[1,\n 2]", "[3]"))).splitlines()
    assert said[1:] == [
        "  what:     `y` is wrong",
        "  got:      [1,",
        "             2]",
        "  expected: [3]",
        "  hint:     `x + 1` <b>does</b> it",
        "  case:     single",
    ]


def test_the_inputs_of_a_public_case_stand_below_its_name(fakes: ModuleType) -> None:
    report = _report(fakes, Mismatch("w"), given="x = [1]\ny = '<b>'")
    assert render.text(report).splitlines()[3:] == [
        "  case:     single",
        "  given:    x = [1]",
        "            y = '<b>'",
    ]
    page = render.html(report)
    assert "x = [1]\ny = &#x27;&lt;b&gt;&#x27;" in page and "<details>" not in page
    assert "<details><summary>9 lines" in render.html(replace(report, given="x = 1\n" * 8))
    assert "given" not in render.text(_report(fakes, Mismatch("w"), given="x = [1]", unfinished=True))
