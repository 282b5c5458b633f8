"""The workflow that grades a class: no secret, read-only, nothing of a fork on a machine of ours, only make targets."""

import re
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).parents[2]
TEXT = (PROJECT / ".github/workflows/grade.yml").read_text()
FLOW = yaml.safe_load(TEXT)
TRIGGERS = FLOW[True]  # YAML reads `on` as a truth value
JOBS = FLOW["jobs"]


def test_it_holds_no_secret_and_may_only_read():
    assert "secrets" not in re.sub(r"#.*", "", TEXT) and "github.token" not in TEXT and "GITHUB_TOKEN" not in TEXT
    assert FLOW["permissions"] == {"contents": "read"}
    assert all("permissions" not in job and "environment" not in job for job in JOBS.values())
    checkouts = [step for job in JOBS.values() for step in job["steps"] if "checkout" in step.get("uses", "")]
    assert len(checkouts) == 3 and all(step["with"] == {"persist-credentials": False} for step in checkouts)


def test_a_pull_request_runs_without_rights_and_goes_no_further_than_ordinary_runners():
    assert set(TRIGGERS) == {"workflow_dispatch", "push", "pull_request"}
    assert TRIGGERS["push"]["branches"] == ["main"]
    for name, job in JOBS.items():
        if name == "correctness":
            assert job["runs-on"] == "ubuntu-24.04" and "if" not in job
        else:
            assert "github.event_name != 'pull_request'" in job["if"], name
            assert "github.ref == 'refs/heads/main'" in job["if"] and "||" not in job["if"], name


def test_gpus_are_asked_for_by_label_and_their_container_has_no_network():
    assert JOBS["performance"]["runs-on"] == ["self-hosted", "gpu"]
    makefile = (PROJECT / "Makefile").read_text()
    container = next(line for line in makefile.splitlines() if line.startswith("CONTAINER"))
    assert "--network none" in container and "--gpus device=$(GPU)" in container and "--rm" in container
    ran = [step["run"] for step in JOBS["performance"]["steps"] if "run" in step]
    assert [run.split()[1] for run in ran] == ["gpu-doctor", "grade-speed"]
    assert all('IMAGE="$IMAGE"' in run for run in ran)
    assert JOBS["performance"]["env"] == {"IMAGE": "${{ vars.GPU_IMAGE }}"}


def test_only_the_merge_touches_a_gradebook_and_it_runs_no_submission():
    targets = {name: " ".join(step.get("run", "") for step in job["steps"]) for name, job in JOBS.items()}
    assert "grade-merge" in targets["merge"] and not re.search(r"grade-shard|grade-speed", targets["merge"])
    assert all("grade-merge" not in run for name, run in targets.items() if name != "merge")
    assert JOBS["merge"]["needs"] == ["correctness", "performance"]


@pytest.mark.parametrize("name", JOBS)
def test_steps_call_make_targets_and_take_no_text_from_outside_into_a_command(name):
    known = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    for step in JOBS[name]["steps"]:
        if "run" in step:
            found = re.fullmatch(r"make ([a-z-]+)( [A-Z]+=(\"[^\"]*\"|\w+))*", step["run"])
            assert found and found[1] in known, step["run"]
            assert "${{" not in step["run"]
        else:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])


def test_the_shards_that_are_judged_are_those_that_are_merged():
    shards = JOBS["correctness"]["strategy"]["matrix"]["shard"]
    listed = " ".join(f"shards/{shard}" for shard in shards)
    judged = next(step["run"] for step in JOBS["correctness"]["steps"] if "grade-shard" in step.get("run", ""))
    assert f'SHARD="$SHARD/{len(shards)}"' in judged and 'OUT="shards/$SHARD"' in judged
    assert JOBS["correctness"]["strategy"]["fail-fast"] is False
    assert TEXT.count(listed) == 2, "once where performance is measured, once where shards are merged"


def test_the_python_of_the_grader_is_set_in_one_place_for_the_workflow_and_for_each_image():
    assert FLOW["env"]["PYTHON_VERSION"] == "${{ inputs.python || vars.GRADE_PYTHON || '3.11' }}"
    assert "python" in TRIGGERS["workflow_dispatch"]["inputs"]
    steps = [step for job in JOBS.values() for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert [step["with"]["python-version"] for step in steps] == ["${{ env.PYTHON_VERSION }}"] * 2
    for name in ("Containerfile", "Containerfile.gpu"):
        lines = (PROJECT / "grader" / name).read_text().splitlines()
        assert lines[lines.index("ARG PYTHON_VERSION=3.11") + 1] == "FROM python:${PYTHON_VERSION}-slim"
    assert "--build-arg PYTHON_VERSION=$(PYTHON_VERSION)" in (PROJECT / "Makefile").read_text()
