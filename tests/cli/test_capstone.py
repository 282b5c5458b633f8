"""`mlsys-lab capstone`: plan, train, report and check in one folder; a run that is killed; what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mlsys_lab.capstone.bundle import Bundle
from mlsys_lab.capstone.run import Run
from mlsys_lab.capstone.settings import make_settings
from mlsys_lab.cli import main, serve
from mlsys_lab.cli.capstone import COMMANDS
from mlsys_lab.cli.capstone.plan import Arguments
from mlsys_lab.scaling.text import course_text
from mlsys_lab.stack.workspace import Workspace
from tests.capstone.test_stack import accept

Call = Callable[..., tuple[int, str, str]]
PLAN = ("capstone", "plan", "--model", "tiny", "--steps", "13")
TEXT = course_text()[:30_000]
COMMAND = (
    sys.executable,
    "-c",
    "import sys; import mlsys_lab.capstone.settings as s; from mlsys_lab.cli import main; whole = s.course_text;"
    f"s.course_text = lambda: whole()[:{len(TEXT)}]; sys.exit(main())",
)
"""The command on less text, which is read in no time."""


@pytest.fixture(autouse=True, scope="module")
def _less_text() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlsys_lab.capstone.settings.course_text", lambda: TEXT)
        yield


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a planned run."""
    folder = tmp_path_factory.mktemp("planned")
    with contextlib.chdir(folder):
        assert main(PLAN) == 0
    return folder


@pytest.fixture(scope="module")
def trained(planned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after `train`."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    shutil.copytree(planned, folder)
    with contextlib.chdir(folder):
        assert main(("capstone", "train")) == 0
    return folder


@pytest.fixture
def here(planned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the planned run's folder, as the current one."""
    folder = tmp_path / "here"
    shutil.copytree(planned, folder)
    monkeypatch.chdir(folder)
    return folder


def stop_after_step_10(process: subprocess.Popen[str]) -> None:
    """Wait for the first of two segments."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 10"):
            return


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "capstone-run" / "model" / "model.safetensors")


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("name", COMMANDS["Commands"])
def test_every_command_has_one_line_of_help_and_an_example(name: str, call: Call) -> None:
    code, said, _ = call("capstone", "--help")
    assert code == 0 and re.search(rf"^│ {name} +[A-Z][^│]+\. +│$", said, re.MULTILINE)
    code, said, _ = call("capstone", name, "--help")
    assert code == 0 and re.search(rf"^ +mlsys-lab capstone {name}\b", said, re.MULTILINE)


def test_the_sheet_says_what_each_cost_is_predicted_by(planned: Path, call: Call) -> None:
    sheet, settings = Run(planned / "capstone-run").sheet, Run(planned / "capstone-run").settings
    assert sheet["parameters"] == 1024 * 16 + 4 * 16 * 16 + 3 * 16 * 32 + 3 * 16
    assert settings.train.steps == 13 and settings.ranks == 4


def test_options_left_out_are_those_of_a_run_of_the_package() -> None:
    options = Arguments()
    assert (options.model, options.steps, options.seed, options.ranks) == make_settings.__defaults__


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--steps", "0", "steps out of range: got 0, expected a whole number, at least 1"),
        ("--seed", "-1", "seed out of range: got -1"),
        ("--ranks", "33", "a rank without sequences: got 32 for 33 ranks"),
    ],
)
def test_a_plan_out_of_range_is_one_line(
    option: str, value: str, said: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call("capstone", "plan", "--model", "tiny", option, value)
    assert code == 1 and not out and said in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_settings_of_ones_own_are_planned(planned: Path, tmp_path: Path, call: Call) -> None:
    """On the text as it is here: the file's digest may be that of another edition."""
    own = json.loads((planned / "capstone-run" / "settings.json").read_text())
    wide, other = tmp_path / "wide.json", tmp_path / "other.json"
    wide.write_text(json.dumps(own | {"model": own["model"] | {"d_ff": 48}, "data": "old"}))
    other.write_text(json.dumps(own | {"model": own["model"] | {"vocab_size": 99}}))
    run = tmp_path / "run"
    code, said, _ = call("capstone", "plan", "--run", str(run), "--settings", str(wide))
    assert code == 0 and "predicted for 13 steps on 4 ranks" in said
    assert json.loads((run / "settings.json").read_text())["data"] == own["data"]
    assert Run(run).sheet["parameters"] == 1024 * 16 + 4 * 16 * 16 + 3 * 16 * 48 + 3 * 16
    for path, message in (
        (other, "not for the book's tokenizer: got vocab_size 99, expected 1024"),
        (tmp_path / "none.json", "cannot read"),
    ):
        code, out, err = call("capstone", "plan", "--run", str(run), "--settings", str(path))
        assert code == 1 and not out and message in err and err.count("\n") == 1


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.weekly)])
def test_a_killed_run_continues_exactly(signal_number: signal.Signals, here: Path, trained: Path, call: Call) -> None:
    """Killed after the first of its two segments; next to its checkpoint lies what a second one had begun to write."""
    with subprocess.Popen([*COMMAND, "capstone", "train"], cwd=here, stdout=subprocess.PIPE, text=True) as process:
        stop_after_step_10(process)
        process.send_signal(signal_number)
        assert process.wait() in (-signal.SIGKILL, 130)
    run = here / "capstone-run"
    assert not (run / "model").exists()
    (run / "checkpoints" / "step-00000013.part").mkdir(exist_ok=True)
    change(run / "losses.json", losses=[*json.loads((run / "losses.json").read_text())["losses"][:10], 0.5, 0.5, 0.5])
    code, out, _ = call("capstone", "train")
    assert code == 0 and "10 of 13 steps are taken: continuing from capstone-run/checkpoints" in out
    got, expected = final_weights(here), final_weights(trained)
    assert got.keys() == expected.keys() and all(torch.equal(got[name], one) for name, one in expected.items())
    assert Run(here / "capstone-run").progress.losses == Run(trained / "capstone-run").progress.losses


def test_a_killed_rank_is_one_line_that_names_the_last_checkpoint(here: Path) -> None:
    command = [*COMMAND, "capstone", "train", "--backend", "gloo"]
    with subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        stop_after_step_10(process)
        children: list[str] = []
        while not children and process.poll() is None:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        assert process.wait() == 1
        said = process.stderr.read()
    assert re.fullmatch(
        r"mlsys-lab: rank \d died: killed by SIGKILL; help: `mlsys-lab capstone train` continues from "
        r"capstone-run/checkpoints/step-00000010\n",
        said,
    ), said


def test_report_and_check(trained: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    code, out, err = call("capstone", "report", "--swap", "data_parallel=replicated-ring")
    assert code == 0 and not err
    assert "18 of 18 counts are as predicted; the page is capstone-run/report.html" in out
    assert re.search(r"reduce-scatter of gradients: messages +12 -> +24 +12 -> +24 messages", out)
    page = (trained / "capstone-run" / "report.html").read_text(encoding="utf-8")
    bits = Run(trained / "capstone-run").read_record("result.json")
    assert bits and f"{bits['bits_per_byte']:.3f}" in page and "<h2>Swapped</h2>" in page
    code, out, err = call("capstone", "check")
    assert code == 0 and not err
    assert [line.split()[1] for line in out.splitlines() if line.startswith("ok ")] == [
        "logits:",
        "ranks:",
        "resume:",
        "serving:",
        "sheet:",
    ]
    bundle = Bundle.read(trained / "capstone-run" / "bundle.json")
    assert bundle.bits_per_byte == bits["bits_per_byte"] and bundle.settings == Run(trained / "capstone-run").settings


def test_serve_serves_the_trained_model_on_the_stack(
    trained: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[serve.Arguments] = []

    def run(arguments: serve.Arguments) -> int:
        served.append(arguments)
        return 0

    monkeypatch.setattr(serve, "run", run)
    monkeypatch.chdir(trained)
    assert call("capstone", "serve", "--port", "0", "--swap", "scheduler=reference")[0] == 0
    (arguments,) = served
    assert (arguments.model, arguments.port) == ("capstone-run/model", 0)
    assert arguments.scheduler is not None
    names = runpy.run_path(arguments.scheduler)
    assert names["stack"].sources["scheduler"].kind == "reference" and callable(names["build"])


def test_a_layer_that_fails_is_a_point_that_does_not_hold(here: Path, call: Call) -> None:
    accept(here, "autograd", "cross_entropy = lambda logits, targets: 1 / 0")
    code, out, _ = call("capstone", "check")
    assert code == 1
    assert re.search(r"^FAILS  ranks: rank \d failed: ZeroDivisionError", out, re.MULTILINE)
    assert "ok     serving: 32 of 32" in out and "no bundle" not in out


def test_what_is_not_there_is_one_line(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train", "report"):
        code, out, err = call("capstone", name)
        assert code == 1 and not out
        assert err.startswith("mlsys-lab: no plan of a run here: got capstone-run/settings.json; help: `mlsys-lab cap")
    code, out, err = call("capstone", "serve")
    assert (code, out) == (1, "") and err.startswith("mlsys-lab: no trained model here: got capstone-run/model; help: ")
    (tmp_path / "capstone-run").mkdir()
    (tmp_path / "capstone-run" / "notes").touch()
    code, _, err = call(*PLAN)
    assert code == 1 and err.startswith("mlsys-lab: the folder is not a run's: got capstone-run; help: ")
    code, _, err = call("capstone", "tran")
    assert code == 2 and "unknown command: got tran, expected one of plan, train, serve, report, check" in err


def test_a_run_that_does_not_fit_is_one_line(
    trained: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: str) -> str:
        code, _, err = call("capstone", *arguments)
        assert code == 1 and err.count("\n") == 1
        return err

    folder = tmp_path / "here"
    shutil.copytree(trained, folder)
    monkeypatch.chdir(folder)
    run = folder / "capstone-run"
    assert "a run with other settings has been trained here: got capstone-run" in refused(*PLAN[1:-1], "14")
    before = (run / "sheet.json").read_text()
    change(run / "sheet.json", parameters=7)
    assert "the sheet is old: parameters: got 7, expected 18,992, as your functions predict now" in refused("train")
    (run / "sheet.json").write_text("{}")
    assert "an incomplete sheet: got no 'training_flops'" in refused("report")
    (run / "sheet.json").write_text(before)
    said = refused("train", "--swap", "collectives=reference")
    assert "the run was started on other swaps: collectives: got reference, expected none" in said
    accept(folder, "collectives")
    assert "the run was started on other artifacts: collectives: got " in refused("train")
    accept(folder, "collectives", version="0" * 12)
    assert "your collectives was accepted for another version of its lab" in refused("train")
    Workspace.create(folder).artifact_path("collectives").unlink()
    manifest = run / "checkpoints" / "step-00000013" / "manifest.json"
    change(manifest, model=json.loads(manifest.read_text())["model"] | {"d_ff": 48})
    assert "a checkpoint of another run: got capstone-run/checkpoints/step-00000013" in refused("train")
    change(run / "settings.json", data="0" * 16)
    assert "the book's text has changed since the run was planned" in refused("train")
