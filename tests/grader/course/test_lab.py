"""A lab's version changes with each file that a verdict depends on, and with no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlsys_checks import topics
from mlsys_checks.sides import CHECKS, PACKAGE, SANDBOXED, TRUSTED
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.paths import INSIDE
from mlsys_lab.stack.labinfo import LabInfo, find_lab

TOPICS = sorted(topics())


@pytest.fixture(params=TOPICS)
def info(request: pytest.FixtureRequest) -> LabInfo:
    return find_lab(request.param)


def version_with(changed: Path, lab: GradedLab, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of a lab in a checkout whose file `changed` has one line more: the files that decide are the same."""
    read = Path.read_bytes
    there = GradedLab(lab.info)
    vars(there)["verdict_files"] = lab.verdict_files
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", lambda path: read(path) + (b"\n# changed\n" if path == changed else b""))
        return there.version


def own_parts(info: LabInfo) -> set[Path]:
    """Every Python file of both sides that does not lie in the folder or module of another lab."""
    others = {topic.replace("-", "_") for topic in TOPICS} - {info.topic.replace("-", "_")}
    files = [(side, file) for side in (SANDBOXED, TRUSTED) for file in side.rglob("*.py")]
    return {file for side, file in files if file.relative_to(side).parts[0].removesuffix(".py") not in others}


def test_each_file_that_decides_changes_the_version(info: LabInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = GradedLab(info)
    decide = {*own_parts(info), *INSIDE.glob("*.py"), info.folder / "lab.toml", info.notebook}
    assert decide <= set(lab.verdict_files)
    assert {TRUSTED / "traced.py", TRUSTED / "answers.py", SANDBOXED / "attempt.py"} <= decide
    assert {PACKAGE / "stack" / "artifact.py", SANDBOXED / "kernels" / "loading.py"} <= set(lab.verdict_files)
    for file in lab.verdict_files:
        assert version_with(file, lab, monkeypatch) != lab.version, file


@pytest.mark.parametrize("topic", ["cuda", "gpu-model", "triton"])
def test_what_counts_for_a_traced_check_decides(topic: str) -> None:
    trace = PACKAGE / "kernels" / "trace"
    assert {trace / "events.py", trace / "requests.py", trace / "findings.py"} <= set(
        GradedLab(find_lab(topic)).verdict_files
    )


def test_what_only_shows_and_what_is_another_labs_leaves_the_version_alone(
    info: LabInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = GradedLab(info)
    other = next(topic.replace("-", "_") for topic in TOPICS if topic != info.topic)
    shown = [CHECKS / f"{name}.py" for name in ("live", "render", "fresh", "command")]
    elsewhere = [*(TRUSTED / other).glob("*.py"), *(PACKAGE / "widgets").glob("*.py"), PACKAGE / "stack" / "labinfo.py"]
    for file in [*shown, *elsewhere]:
        assert file.is_file() and version_with(file, lab, monkeypatch) == lab.version, file


def test_the_version_of_an_instructors_lab_changes_with_its_own_modules(
    tiny: GradedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {file.name for file in tiny.verdict_files}
    assert {"tiny_checks.py", "tiny_calls.py", "compare.py", "attempt.py", "lab.toml"} <= names
    for file in tiny.verdict_files:
        assert version_with(file, tiny, monkeypatch) != tiny.version, file
