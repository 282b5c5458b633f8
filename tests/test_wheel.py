"""What a learner installs: the wheel holds the package, its figures and the labs, and starts a lab by itself."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("dist"))


def _build(folder: Path, **options: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=ROOT, env=os.environ | options, check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_it_holds_the_figures_the_released_labs_and_the_grader_s_pages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    kinds = ("js", "cu", "cuh", "safetensors", "toml", "c", "ld")
    files = [path for kind in kinds for path in (ROOT / "mlsys_lab").rglob(f"*.{kind}")]
    package = {str(path.relative_to(ROOT)) for path in files}
    labs = {"mlsys_lab/_labs/" + str(path.relative_to(ROOT / "labs")) for path in (ROOT / "labs").glob("*/*")}
    assert package and labs and package | labs <= names
    grader = ROOT / "grader"
    templates = {
        str(path.relative_to(grader)) for path in (grader / "mlsys_grader").glob("*/templates/**/*") if path.is_file()
    }
    assert templates and templates <= names
    chapters = {f"mlsys_lab/_chapters/{path.name}" for path in (ROOT / "book" / "chapters").glob("*.md")}
    assert chapters and chapters <= names
    pretrained = {
        f"mlsys_lab/inference/pretrained/{name}" for name in ("tokenizer.json", "held-out.txt", "calibration.txt")
    }
    assert pretrained <= names
    solved = {f"mlsys_lab/_solved/{path.name}" for path in (ROOT / "solutions").glob("*/*.py")}
    assert solved and solved <= names
    assert not [name for name in names if name.startswith(("solutions/", "tests/"))]


def test_a_wheel_can_be_built_without_the_solved_labs(tmp_path: Path) -> None:
    names = zipfile.ZipFile(_build(tmp_path, HATCH_BUILD_NO_HOOKS="1")).namelist()
    assert not [name for name in names if "_solved/" in name]


def test_the_book_s_text_is_read_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import mlsys_lab.scaling as scaling; print(scaling.__file__, len(scaling.course_text()))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    file, length = ran.stdout.split()
    chapters = sorted((ROOT / "book" / "chapters").glob("*.md"))
    assert Path(file).is_relative_to(tmp_path / "site")
    assert int(length) == len("\n".join(path.read_text(encoding="utf-8") for path in chapters))


def test_a_solved_lab_is_loaded_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "from mlsys_lab import stack; print(stack.load('collectives').all_reduce.__code__.co_filename)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert Path(ran.stdout.split()[-1]) == tmp_path / "site" / "mlsys_lab" / "_solved" / "07-collectives.py"


def test_a_lab_starts_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    start = "import sys; from mlsys_lab.cli import main; sys.exit(main(['start', 'autograd']))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    (tmp_path / "home").mkdir()
    subprocess.run([sys.executable, "-c", start], cwd=tmp_path / "home", env=environment, check=True)
    started = tmp_path / "home" / "01-autograd" / "01-autograd.ipynb"
    assert started.read_bytes() == (ROOT / "labs" / "01-autograd" / "01-autograd.ipynb").read_bytes()
