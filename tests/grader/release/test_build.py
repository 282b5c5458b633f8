import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from mlsys_grader.cli import main
from mlsys_grader.release.build import release
from mlsys_lab.errors import CourseError, InputError

PROJECT = Path(__file__).parents[3]
TINY = Path(__file__).parents[1] / "fixtures" / "solutions" / "01-tiny"
PYPROJECT = PROJECT / "pyproject.toml"


@pytest.fixture
def notebook(tiny_release):
    return json.loads(tiny_release.files["01-tiny.ipynb"])


def edit(checkout, old, new, name="01-tiny.py"):
    path = checkout / "solutions" / "01-tiny" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path.parent


def test_two_builds_give_the_same_bytes_also_in_another_process(tiny_release):
    code = (
        "import sys, hashlib; from pathlib import Path; from mlsys_grader.release.build import release\n"
        f"built = release(Path({str(TINY)!r}), Path({str(PYPROJECT)!r}))\n"
        "print(hashlib.sha256(built.files['01-tiny.ipynb']).hexdigest())"
    )
    path = f"{PROJECT}:{TINY.parents[1] / 'checks'}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path, "PYTHONHASHSEED": "7"}, capture_output=True, text=True
    )
    import hashlib

    assert done.stdout.strip() == hashlib.sha256(tiny_release.files["01-tiny.ipynb"]).hexdigest(), done.stderr


def test_the_notebook_is_valid_and_has_no_outputs(notebook):
    nbformat.validate(nbformat.from_dict(notebook))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_grade_cells_carry_the_points_of_their_checks(notebook, tiny):
    graded = {
        fields["grade_id"]: fields
        for cell in notebook["cells"]
        if (fields := cell["metadata"].get("nbgrader", {})).get("grade")
    }
    assert {name: fields["points"] for name, fields in graded.items()} == {c.name: c.points for c in tiny.checks.checks}
    assert all(
        f["locked"] and not f["solution"] and f["schema_version"] == 3 and f["checksum"] for f in graded.values()
    )


def test_cell_ids_come_from_grade_ids(notebook):
    ids = {
        cell["metadata"]["nbgrader"]["grade_id"]: cell["id"]
        for cell in notebook["cells"]
        if cell["metadata"].get("nbgrader")
    }
    assert ids and all(name == cell_id for name, cell_id in ids.items())


def test_stubs_name_the_task_and_no_solution_is_left(notebook):
    text = "\n".join("".join(cell["source"]) for cell in notebook["cells"])
    assert 'raise NotImplementedError("Task 1: double, `double`")' in text
    assert "SOLUTION" not in text
    assert "doubled" not in text
    assert "squares = " not in text


def test_the_install_cell_takes_the_address_from_pyproject(checkout):
    pyproject = checkout / "pyproject.toml"
    lines = pyproject.read_text().splitlines()
    lines = ['Repository = "https://example.org/a/b"' if line.startswith("Repository") else line for line in lines]
    pyproject.write_text("\n".join(lines))
    built = release(checkout / "solutions" / "01-tiny", pyproject)
    source = "".join(json.loads(built.files["01-tiny.ipynb"])["cells"][1]["source"])
    assert "[kernels] @ git+https://example.org/a/b" in source


def test_the_install_cell_does_nothing_here(notebook, monkeypatch):
    def refuse(*arguments, **named):
        raise AssertionError("it wants to install something")

    monkeypatch.setattr(subprocess, "run", refuse)
    exec("".join(notebook["cells"][1]["source"]), {})
    monkeypatch.setitem(sys.modules, "google.colab", object())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AssertionError, match="install"):
        exec("".join(notebook["cells"][1]["source"]), {})


def test_a_solution_repeated_in_the_text_is_refused(checkout):
    folder = edit(checkout, "# ## Task 2: mean", "# ## Task 2: mean\n# squares = x * x\n# return squares.sum()")
    with pytest.raises(CourseError, match="give a solution away"):
        release(folder, PYPROJECT)


def test_a_grade_cell_without_a_check_is_refused(checkout):
    with pytest.raises(InputError, match="no such check"):
        release(edit(checkout, '"grade_id": "mean"}', '"grade_id": "maen"}'), PYPROJECT)


def test_a_check_without_a_grade_cell_is_refused(checkout):
    folder = edit(checkout, '# %% nbgrader={"grade": true, "grade_id": "total"}', "# %%")
    with pytest.raises(InputError, match=r"do not pair up: got total"):
        release(folder, PYPROJECT)


def test_a_misspelt_call_of_a_check_is_refused_by_line_and_name(checkout):
    folder = edit(checkout, 'check("mean")', 'check("maen")')
    line = (folder / "01-tiny.py").read_text().splitlines().index('check("maen")') + 1
    with pytest.raises(InputError) as refused:
        release(folder, PYPROJECT)
    assert str(refused.value) == (
        f"01-tiny.py, line {line}: the lab has no such check: "
        "got 'maen', expected one of double, mean, total; help: did you mean 'mean'?"
    )
    edit(checkout, 'check("maen")', 'check("mean")  # not check("maen")')
    release(folder, PYPROJECT)


def test_a_misspelt_call_behind_another_one_is_refused(checkout):
    with pytest.raises(InputError, match="no such check: got 'maen'"):
        release(edit(checkout, 'check("mean")', 'check("mean"); check.inputs("maen", "few")'), PYPROJECT)


@pytest.mark.parametrize(("called", "got"), [('check("double")', "double"), ("check", "no call of a check")])
def test_a_grade_cell_that_does_not_call_its_check_is_refused(checkout, called, got):
    with pytest.raises(InputError) as refused:
        release(edit(checkout, 'check("mean")', called), PYPROJECT)
    assert str(refused.value) == (
        f"01-tiny: the grade cell 'mean' does not call its check: got {got}, expected check('mean')"
    )


def test_points_that_do_not_add_up_are_refused(checkout):
    with pytest.raises(InputError, match="wrong points: got 7, expected 6"):
        release(edit(checkout, "points = 6", "points = 7", "lab.toml"), PYPROJECT)


def test_check_fails_until_released(checkout, capsys):
    arguments = ["release", "--project", str(checkout)]
    assert main([*arguments, "--check"]) == 1
    assert not (checkout / "labs").exists()
    assert main(arguments) == 0
    assert main([*arguments, "--check"]) == 0
    (checkout / "labs" / "01-tiny" / "left-over.txt").write_text("x")
    capsys.readouterr()
    assert main([*arguments, "--check"]) == 1
    told = capsys.readouterr()
    assert "01-tiny: stale: left-over.txt" in told.out
    assert told.err == "mlsys-grader: labs/ is not what solutions/ gives; help: mlsys-grader release\n"


def test_a_folder_that_is_no_checkout_is_told(tmp_path, capsys):
    assert main(["release", "--project", str(tmp_path)]) == 1
    assert "no solutions to release" in capsys.readouterr().err


ESSAY = '\n# %% [markdown] nbgrader={"solution": true, "grade": true, "grade_id": "essay"POINTS}\n# A model answer.\n'


@pytest.mark.parametrize("points", ["", ', "points": 0', ', "points": true', ', "points": "4"'])
def test_a_cell_graded_by_hand_needs_points(checkout, points):
    source = checkout / "solutions" / "01-tiny" / "01-tiny.py"
    source.write_text(source.read_text() + ESSAY.replace("POINTS", points))
    with pytest.raises(InputError, match="'essay' is graded by hand and needs points"):
        release(source.parent, PYPROJECT)


def test_a_cell_graded_by_hand_may_not_be_called_like_a_check(checkout):
    source = checkout / "solutions" / "01-tiny" / "01-tiny.py"
    source.write_text(source.read_text() + ESSAY.replace("POINTS", ', "points": 4').replace("essay", "total"))
    with pytest.raises(InputError, match="has a check's name: got total"):
        release(source.parent, PYPROJECT)
