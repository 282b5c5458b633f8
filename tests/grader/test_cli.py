"""The instructor's command line: what each command writes, and one line for each mistake that a person can make."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

import mlsys_grader.cli
from mlsys_grader.cli import main
from mlsys_grader.gradebook.record import read_record

COMMANDS = tuple(mlsys_grader.cli.COMMANDS)
LAB = "01-tiny"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def call(capsys, monkeypatch, tiny_labs, tmp_path):
    """Run `mlsys-grader --course COURSE ARGUMENTS`: exit code, stdout, stderr. COURSE is `tmp_path/course`."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def run(*arguments, course=tmp_path / "course"):
        capsys.readouterr()
        code = main(["--course", str(course), "--labs", str(tiny_labs), *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def handed_in(call, hand_in, tmp_path):
    """ada and bob have handed in; nothing is graded."""
    for student in ("ada", "bob"):
        folder = tmp_path / "hand-ins" / student
        folder.mkdir(parents=True)
        (folder / f"{LAB}.ipynb").write_text(json.dumps(hand_in()))
    assert call("collect", tmp_path / "hand-ins", "--lab", "tiny") == (0, "2 new\n", "")
    return tmp_path / "course"


def files(folder):
    """Every file and folder below, with its content."""
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def told(result, said, code=1):
    """One line on stderr, nothing on stdout, that exit code."""
    assert (result[0], result[1]) == (code, ""), result
    assert result[2].startswith("mlsys-grader: ") and result[2].count("\n") == 1, result[2]
    assert said.replace("'", "") in result[2].replace("'", "")  # argparse of Python 3.12.8 and newer leaves out quotes


# --- help


def test_help_shows_every_command_on_a_line_of_its_own(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    for command in COMMANDS:
        assert re.search(rf"^    {command} +\S", said, re.MULTILINE), command
    for command in ("collect", "grade", "status", "export", "feedback", "regrade", "audit"):
        assert re.search(rf"^  mlsys-grader {command}\b", said, re.MULTILINE), command
    assert "bubblewrap" in said and "exit codes" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert re.search(rf"^  mlsys-grader (--course \w+ )?{command}\b", said, re.MULTILINE)
    assert not re.search(
        r"\S.*\bmlsys-grader \w+ (--|autograd)", said.split("examples:")[1].replace("  mlsys", "\nmlsys")
    )


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"mlsys-grader {version('mlsys-lab')}\n"


def test_no_arguments_shows_the_help(capsys):
    assert main([]) == 0
    assert "from its hand-ins to its marks" in capsys.readouterr().out


# --- a graded class

STUDENTS = ("ada", "bob", "cy", "dee")


@pytest.mark.sandbox
def test_status_says_where_each_submission_stands(graded, call):
    code, out, err = call("status")
    assert (code, err) == (0, "")
    for student, marks in (("ada", "6 of 6"), ("bob", "3 of 6"), ("cy", "0 of 6")):
        assert re.search(rf"^{student} +graded +{marks}", out, re.MULTILINE), out
    assert "    3 graded: " in out and out.endswith("next: mlsys-grader feedback tiny --to DIR\n")
    graded.submission("ada", LAB).write_text("{}")
    (graded.root / "submitted" / "dee" / LAB).mkdir(parents=True)
    (graded.root / "submitted" / "dee" / "essay").mkdir()
    (graded.root / "submitted" / "dee" / ".ipynb_checkpoints").mkdir()
    code, out, _ = call("status")
    assert code == 0
    order = [line.split()[:2] for line in out.splitlines() if line.split()[:1] and line.split()[0] in STUDENTS]
    assert order == [["dee", "waiting"], ["ada", "changed"], ["bob", "graded"], ["cy", "graded"]]
    assert "next: mlsys-grader grade tiny\n" in out
    assert "not labs of this course: essay, in" in out
    assert call("status", "tiny")[1].splitlines() == [line for line in out.splitlines() if "essay" not in line]


def test_status_of_a_lab_that_nobody_handed_in(handed_in, call):
    shutil.rmtree(handed_in / "submitted")
    (handed_in / "submitted").mkdir()
    assert call("status") == (0, "nothing has been handed in\n", "")


@pytest.mark.sandbox
def test_export_writes_files_that_say_the_same(graded, call, tmp_path):
    assert call("export", "tiny", "--csv", "out/marks.csv", "--json", "out/verdicts.json") == (0, "", "")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "marks.csv").read_text())))
    assert {row["student"]: (row["earned"], row["percent"], row["total"]) for row in rows} == {
        "ada": ("6", "100.0", "3"),
        "bob": ("3", "50.0", "0"),
        "cy": ("0", "0.0", "0"),
    }
    records = json.loads((tmp_path / "out" / "verdicts.json").read_text())
    for row, record in zip(rows, records, strict=True):
        assert row["student"] == record["student"] and row["lab"] == record["lab"] == LAB
        for verdict in record["verdicts"]:
            assert float(row[verdict["check"]]) == verdict["earned"]
    code, out, err = call("export", "tiny")
    assert (code, out, err) == (0, (tmp_path / "out" / "marks.csv").read_text(), "")


@pytest.mark.sandbox
def test_export_writes_through_pipes_and_links_and_replaces_neither(graded, call, tmp_path):
    (tmp_path / "marks.csv").write_text("of before")
    (tmp_path / "link.csv").symlink_to("marks.csv")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert call("export", "tiny", "--csv", "link.csv", "--json", "pipe") == (0, "", "")
        assert [record["student"] for record in json.loads(os.read(reader, 1 << 16))] == ["ada", "bob", "cy"]
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "marks.csv").read_text() == call("export", "tiny")[1]


@pytest.mark.sandbox
def test_who_has_no_verdict_gets_no_mark_and_is_named(graded, call):
    (graded.root / "submitted" / "dee" / LAB).mkdir(parents=True)
    path = graded.record("bob", LAB)
    record = json.loads(path.read_text())
    record["verdicts"][2]["fault"] = "check 'total' itself failed: ZeroDivisionError"
    path.write_text(json.dumps(record))
    for command in ("export", "feedback"):
        code, out, err = call(command, "tiny")
        assert (code, err) == (0, "mlsys-grader: left out, not graded: bob, dee\n")
        assert "bob" not in out and "dee" not in out
    assert re.search(r"^bob +fault ", call("status", "tiny")[1], re.MULTILINE)


@pytest.mark.sandbox
def test_feedback_is_written_anew_and_copied_out(graded, call, tmp_path):
    shutil.rmtree(graded.root / "feedback")
    code, out, err = call("feedback", "tiny", "--to", "new/pages")
    assert (code, out, err) == (0, "3 pages in new/pages\n", "")
    pages = {path.name: path.read_text() for path in (tmp_path / "new" / "pages").iterdir()}
    assert sorted(pages) == ["ada.html", "bob.html", "cy.html"]
    assert "3 of 6 points" in pages["bob.html"]
    assert pages == {f"{name}.html": graded.feedback(name, LAB).read_text() for name in ("ada", "bob", "cy")}


@pytest.mark.sandbox
def test_grading_again_what_is_graded_does_nothing(graded, call):
    before = files(graded.root)
    assert call("grade", "tiny") == (0, "0 judged, 3 were up to date, 0 not graded\n", "")
    assert files(graded.root) == before


def test_options_in_front_of_a_command_import_no_other_command(tmp_path):
    code = (
        "import sys; from mlsys_grader.cli import main\n"
        "code = main(['--course', 'nowhere', 'status'])\n"
        "print(code, *sorted(name for name in sys.modules if name.startswith('mlsys_grader.commands.')))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "grader")))}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "1 mlsys_grader.commands.status\n", done.stderr


def test_help_in_front_of_a_command_names_all(capsys):
    with pytest.raises(SystemExit):
        main(["--help", "status"])
    said = capsys.readouterr().out
    assert all(f"\n    {name}" in said for name in COMMANDS)


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("grad", "tiny"), f"unknown command: got grad, expected one of {', '.join(COMMANDS)}; help: did you "),
        (("zzz",), f"unknown command: got zzz, expected one of {', '.join(COMMANDS)}\n"),
        ((), "no command given: expected one of release, new-lab, collect"),
        (("grade",), "the following arguments are required: lab; help: see `mlsys-grader grade --help`"),
        (("collect", "x"), "the following arguments are required: --lab"),
        (("grade", "tiny", "--sandbox", "chroot"), "argument --sandbox: invalid choice: 'chroot' (choose from 'bub"),
        (("grade", "tiny", "--engine", "slurm"), "argument --engine: invalid choice: 'slurm' (choose from 'local', "),
        (("grade", "tiny", "--workers", "many"), "argument --workers: invalid int value: 'many'"),
        (("grade", "tiny", "--time-factor", "slow"), "argument --time-factor: invalid float value: 'slow'"),
        (("export", "tiny", "--xml", "x"), "unrecognized arguments: --xml x; help: see `mlsys-grader export --help`"),
        (("export", "tiny", "--csv"), "argument --csv: expected one argument"),
    ],
)  # fmt: skip
def test_a_mistyped_command_line_is_one_line_and_exit_code_2(call, tmp_path, arguments, said):
    told(call(*arguments), said, code=2)
    assert not (tmp_path / "course").exists()


@pytest.mark.parametrize(
    "command",
    [("collect", "hand-ins", "--lab"), *((name,) for name in ("grade", "feedback", "export", "status", "audit"))],
)
def test_a_misspelt_lab_gets_a_suggestion(handed_in, call, command):
    before = files(handed_in)
    told(call(*command, "tinny"), "unknown lab: got 'tinny', expected one of 01-tiny; help: did you mean 'tiny'?")
    assert files(handed_in) == before


def test_a_folder_of_labs_that_is_none(tmp_path, capsys):
    assert main(["--labs", str(tmp_path / "nowhere"), "export", "tiny"]) == 1
    assert capsys.readouterr().err.startswith("mlsys-grader: no released labs: expected notebooks in ")


@pytest.mark.parametrize("command", ["grade", "feedback", "export", "status"])
@pytest.mark.parametrize("there", ["nothing", "a file", "an empty folder"])
def test_a_course_folder_that_is_none(call, tmp_path, command, there):
    course = tmp_path / "course"
    if there == "a file":
        course.write_text("mine")
    elif there == "an empty folder":
        course.mkdir()
    before = files(tmp_path)
    told(call(command, "tiny"), f"no course folder: got {course}; help: mlsys-grader collect makes one")
    assert files(tmp_path) == before


@pytest.mark.parametrize(("blocked", "reason"), [("course", "File exists"), ("course/submitted", "File exists")])
def test_collecting_where_a_file_is_in_the_way(call, tmp_path, blocked, reason):
    (tmp_path / "hand-ins").mkdir()
    (tmp_path / "hand-ins" / "ada.ipynb").write_text("{}")
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("mine")
    before = files(tmp_path)
    result = call("collect", "hand-ins", "--lab", "tiny")
    told(result, f"cannot write to the course folder {tmp_path / 'course'}: got ")
    assert files(tmp_path) == before


def test_a_file_in_the_way_of_a_students_folder(handed_in, call, tmp_path):
    shutil.rmtree(handed_in / "submitted" / "bob")
    (handed_in / "submitted" / "bob").write_text("mine")
    told(call("collect", "hand-ins", "--lab", "tiny"), f"cannot use {handed_in}/submitted/bob")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.zip", None, "nothing to collect: got missing.zip; help: give a folder or a zip"),
        ("broken.zip", b"PK\x03\x04 no zip", "broken.zip is not a zip archive that can be read: got File is not a zip"),
        ("empty.zip", b"PK\x05\x06" + bytes(18), "no notebook found: got empty.zip; help: mlsys-grader collect --help"),
        ("essay.txt", b"dear teacher", "essay.txt is not a zip archive that can be read"),
        ("folder", None, "no notebook found: got folder"),
    ],
)
def test_hand_ins_that_are_none_make_no_course(call, tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    elif name == "folder":
        (tmp_path / name).mkdir()
    told(call("collect", name, "--lab", "tiny"), said)
    assert not (tmp_path / "course").exists()


def test_a_name_out_of_an_archive_commands_no_terminal(call, tmp_path):
    (tmp_path / "hand-ins" / "\x1b[2J\x9b1m").mkdir(parents=True)
    (tmp_path / "hand-ins" / "\x1b[2J\x9b1m" / "a.ipynb").symlink_to("/etc/passwd")
    (tmp_path / "hand-ins" / os.fsdecode(b"\xff.ipynb")).symlink_to("/etc/passwd")
    code, out, err = call("collect", "hand-ins", "--lab", "tiny")
    assert (code, err) == (1, ""), "somebody has to look at what was skipped"
    assert "skipped: ?[2J?1m/a.ipynb: a link, not a file\n" in out and "skipped: ?.ipynb: a link" in out
    assert out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--student", "adda"),
            "nothing was handed in for 01-tiny by this student: got adda; help: did you mean 'ada'?",
        ),
        (
            ("--student", "ada", "--student", "zoe"),
            "by this student: got zoe; help: mlsys-grader status tiny lists all",
        ),
        (("--workers", "-1"), "--workers cannot be that: got -1, expected 1 or more"),
        (("--unsafe", "--sandbox", "podman"), "--unsafe is to do without a sandbox: got --sandbox podman as well"),
        (("--address", "10.0.0.1:6379"), "--address is the address of a Ray cluster; help: add --engine ray"),
        (("--time-factor", "0"), "--time-factor cannot be that: got 0.0, expected a positive number"),
        (("--time-factor", "nan"), "--time-factor cannot be that: got nan"),
        (("--time-factor", "inf"), "--time-factor cannot be that: got inf"),
    ],
)
def test_what_cannot_be_graded_is_told_before_anything_is_written(handed_in, call, arguments, said):
    before = files(handed_in)
    told(call("grade", "tiny", *arguments), said)
    assert files(handed_in) == before


def test_nothing_is_run_without_a_sandbox(handed_in, call, monkeypatch):
    monkeypatch.setenv("PATH", "")
    before = files(handed_in)
    told(
        call("grade", "tiny"),
        "bubblewrap is not installed; podman: it is not installed; docker: it is not installed; help: `apt",
    )
    assert files(handed_in) == before


def test_nothing_handed_in_for_the_lab(handed_in, call):
    shutil.rmtree(handed_in / "submitted")
    (handed_in / "submitted").mkdir()
    said = "nothing was handed in for 01-tiny; help: mlsys-grader collect SOURCE --lab tiny"
    told(call("grade", "tiny"), said)
    told(call("grade", "tiny", "--student", "ada"), said)


@pytest.mark.parametrize("command", ["export", "feedback"])
def test_nothing_graded_yet(handed_in, call, tmp_path, command):
    before = files(tmp_path)
    arguments = ("--csv", "marks.csv") if command == "export" else ("--to", "pages")
    told(call(command, "tiny", *arguments), "nothing of 01-tiny has been graded; help: mlsys-grader grade tiny")
    assert files(tmp_path) == before


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("export", "tiny", "--csv", "mine/marks.csv"), "cannot write mine/marks.csv: got "),
        (("export", "tiny", "--json", "folder"), "cannot write folder: got Is a directory"),
        (("feedback", "tiny", "--to", "mine"), "cannot use mine: File exists"),
        (("feedback", "tiny", "--to", "mine/pages"), "cannot use mine/pages: Not a directory"),
    ],
)
def test_a_place_that_cannot_be_written_to(graded, call, tmp_path, arguments, said):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "folder").mkdir()
    before = files(tmp_path)
    told(call(*arguments), said)
    assert files(tmp_path) == before


@pytest.mark.sandbox
def test_a_page_that_cannot_be_written_stops_no_other(graded, call):
    for student in ("ada", "cy"):
        path = graded.record(student, LAB)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"entered": False}))
    shutil.rmtree(graded.root / "feedback" / "ada")
    (graded.root / "feedback" / "ada").write_text("in the way")
    code, out, err = call("grade", "tiny")
    assert (code, err) == (1, "")
    assert "ada: not graded: " in out and "0 judged, 2 were up to date, 1 not graded" in out
    assert read_record(graded.record("cy", LAB)).entered and not read_record(graded.record("ada", LAB)).entered


@pytest.mark.sandbox
def test_the_course_may_be_named_before_the_command_or_after_it(graded, tiny_labs, capsys):
    places = ["--course", str(graded.root), "--labs", str(tiny_labs)]
    assert main([*places, "export", "tiny"]) == 0
    before = capsys.readouterr().out
    assert main(["export", "tiny", *places]) == 0
    assert capsys.readouterr().out == before
    assert main(["--course", "elsewhere", "export", *places, "tiny"]) == 0, "the last one counts"


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("reader", "code", "said"), [("true", 141, ""), (">/dev/full", 1, "cannot write all of it: No sp")]
)
def test_output_that_nobody_takes(graded, tiny_labs, reader, code, said):
    path = os.pathsep.join([str(ROOT), str(ROOT / "grader"), str(Path(__file__).parent / "fixtures" / "checks")])
    start = "import sys; from mlsys_grader.cli import main; sys.exit(main())"
    mine = f"{sys.executable} -c '{start}' --course {graded.root} --labs {tiny_labs} export tiny"
    line = f"{mine} {reader}" if reader.startswith(">") else f"{mine} | {reader}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == code
    assert said in done.stderr and done.stderr.count("\n") == bool(said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            '[project]\nname = "x"\n',
            "does not say where the course lives: got no 'urls', expected name under [project] and",
        ),
        ("[project", "is not TOML: got "),
    ],
)
def test_a_checkout_whose_pyproject_lacks_the_address(capsys, tmp_path, content, said):
    shutil.copytree(Path(__file__).parent / "fixtures" / "solutions", tmp_path / "solutions")
    (tmp_path / "pyproject.toml").write_text(content)
    assert main(["release", "--project", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"mlsys-grader: {tmp_path}/pyproject.toml {said}") and err.count("\n") == 1
    assert not (tmp_path / "labs").exists()


@pytest.mark.parametrize("package", ["jupytext", "nbgrader"])
def test_without_the_extra_the_package_to_install_is_named(monkeypatch, capsys, tmp_path, package):
    shutil.copytree(Path(__file__).parent / "fixtures" / "solutions", tmp_path / "solutions")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["release", "--project", str(tmp_path)]) == 1
    said = f"mlsys-grader: {package} is not installed; help: pip install 'mlsys-lab[grader]'\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "labs").exists()


def test_a_checkout_without_its_pyproject(capsys, tmp_path):
    shutil.copytree(Path(__file__).parent / "fixtures" / "solutions", tmp_path / "solutions")
    assert main(["release", "--project", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"mlsys-grader: cannot use {tmp_path}/pyproject.toml: No such file or directory\n"
    assert not (tmp_path / "labs").exists()


@pytest.mark.sandbox
def test_an_interrupt_is_one_line(handed_in, tiny_labs):
    code = "import sys; from mlsys_grader.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--course", str(handed_in), "--labs", str(tiny_labs), "grade", "tiny"]
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent / "fixtures" / "checks")])
    with subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 240
        while not (handed_in / "records").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does: everything that runs under the command gets it
        _, err = process.communicate(timeout=240)
    assert err == "mlsys-grader: stopped; run the same command again to go on\n"
    assert process.returncode == 130
