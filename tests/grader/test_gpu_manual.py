"""grader/GPU.md: what it tells an instructor to type exists, and what it says of the workflow is so."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from mlsys_grader.cli import main
from mlsys_grader.speed.rounds import MeasurementConfig

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "grader" / "GPU.md").read_text(encoding="utf-8")
COMMANDS = "\n".join(re.findall(r"^```sh\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE))
JOBS = yaml.safe_load((ROOT / ".github/workflows/grade.yml").read_text())["jobs"]
MAKEFILE = (ROOT / "Makefile").read_text()


def test_its_make_targets_and_variables_are_the_makefiles():
    found = re.findall(r"^make (\S+)((?: [A-Z]+=(?:\"[^\"]*\"|\S+))*)", COMMANDS, re.MULTILINE)
    assert {target for target, _ in found} >= {"gpu-image", "gpu-doctor", "grade-shard", "grade-speed", "grade-merge"}
    for target, variables in found:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
        for name in re.findall(r"([A-Z]+)=", variables):
            assert f"$({name})" in MAKEFILE or f"$(if $({name})" in MAKEFILE, name


def test_its_commands_of_the_grader_are_understood(capsys):
    for command, options in re.findall(r"mlsys-grader (\w+)([^`#\n]*)", TEXT):
        assert main([command, "--help"]) == 0
        said = capsys.readouterr().out
        assert all(option in said for option in re.findall(r"--[\w-]+", options)), (command, options)


def test_label_variables_and_limits_are_the_workflows():
    speed = JOBS["performance"]
    assert "--labels gpu" in TEXT and "gpu" in speed["runs-on"]
    assert "vars.GPU_IMAGE" in speed["env"]["IMAGE"] and "`GPU_IMAGE` is" in TEXT
    assert f"timeout-minutes: {speed['timeout-minutes']}" in TEXT
    assert f"{MeasurementConfig().max_total_s / 60:.0f} minutes for each check" in TEXT
    assert "--ephemeral" in COMMANDS and "mlsys-lab-gpu:COMMIT" in TEXT


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        file, _, title = target.partition("#")
        linked = (ROOT / "grader" / file).read_text(encoding="utf-8")
        titles = [line.lstrip("# ").lower().replace(" ", "-") for line in linked.splitlines() if line.startswith("#")]
        assert not title or title in titles, target


def test_the_image_is_this_project_pinned_and_without_root():
    recipe = (ROOT / "grader" / "Containerfile.gpu").read_text()
    steps = [line for line in recipe.splitlines() if line and not line.startswith(("#", " "))]
    assert "--constraint /tmp/mlsys-lab/constraints.txt '/tmp/mlsys-lab[grader,kernels]'" in recipe
    assert steps.index("USER grader") > max(at for at, line in enumerate(steps) if line.startswith("RUN"))
    assert all(name in recipe for name in ("bubblewrap", "gcc", "libc6-dev", "nvidia-nvvm"))
    assert re.search(r"^\tgit archive HEAD \|", MAKEFILE, re.MULTILINE), "the commit, not what lies about"


BUILDER = """#!/bin/sh
echo "$@" >> {log}
test "$1" != build || ls "$8"/grader >> {log}
"""


def test_the_image_is_built_from_the_commit_and_tagged_with_it(tmp_path):
    (tmp_path / "builder").write_text(BUILDER.format(log=tmp_path / "log"))
    (tmp_path / "builder").chmod(0o755)
    done = make("gpu-image", f"BUILDER={tmp_path / 'builder'}")
    assert done.returncode == 0, done.stderr
    commit = re.search(r"--tag mlsys-lab-gpu:([0-9a-f]{12}) ", (tmp_path / "log").read_text())
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    assert commit and head.startswith(commit[1]) and "Containerfile.gpu" in (tmp_path / "log").read_text().split()


@pytest.mark.parametrize(("builder", "said"), [("", "neither docker nor podman"), ("false", "false does not answer")])
def test_without_a_program_that_builds_a_line_says_so(builder, said):
    done = make("gpu-image", f"BUILDER={builder}")
    assert done.returncode != 0 and not done.stdout
    line, *rest = done.stderr.splitlines()
    assert said in line and "help: " in line and len(rest) == 1, "make's own line follows"


PROGRAM = """#!/bin/sh
case "$1" in
  info) exit {answers};;
  image) test "$3" = here:1 || {{ echo "No such image: $3" >&2; exit 1; }};;
  run) echo "ran: $@";;
esac
"""


@pytest.mark.parametrize("program", ["docker", "podman"])
@pytest.mark.parametrize("target", ["gpu-doctor", "grade-speed"])
def test_the_image_is_looked_for_before_a_container_is_started(tmp_path, program, target):
    fake = tmp_path / program
    fake.write_text(PROGRAM.format(answers=0))
    fake.chmod(0o755)
    if program == "docker":
        chosen = make(target, "IMAGE=nope:1", path=tmp_path)
    else:
        chosen = make(target, "IMAGE=nope:1", f"DOCKER={fake}")
    line, *rest = chosen.stderr.splitlines()
    assert chosen.returncode != 0 and not chosen.stdout and len(rest) == 1, "no line of the program's own"
    assert f"{program} has no image nope:1 here" in line and "help: `make gpu-image`" in line
    assert f"{program} pull nope:1`" in line
    done = make(target, "IMAGE=here:1", f"DOCKER={fake}")
    gpu = "--gpus device=0" if program == "docker" else "--device nvidia.com/gpu=0"
    assert done.returncode == 0 and "ran: run --rm" in done.stdout and f" {gpu} " in done.stdout


def test_a_program_that_does_not_answer_is_not_told_to_pull(tmp_path):
    (tmp_path / "docker").write_text(PROGRAM.format(answers=1))
    (tmp_path / "docker").chmod(0o755)
    for words in (["IMAGE=here:1"], ["IMAGE=here:1", "DOCKER="]):
        done = make("gpu-doctor", *words, path=tmp_path)
        line, *rest = done.stderr.splitlines()
        assert done.returncode != 0 and len(rest) == 1 and "pull" not in line
        assert ("docker does not answer" if len(words) == 1 else "neither docker nor podman") in line


def make(*words, path=""):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE")
    }  # a make above this
    environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}" if path else environment["PATH"]
    return subprocess.run(["make", *words], cwd=ROOT, env=environment, capture_output=True, text=True)
