"""`mlsys-grader release`: what a checkout lacks that labs are released from."""

import shutil
import sys

import pytest

from mlsys_grader.cli import main
from tests.grader.conftest import FIXTURES, PROJECT


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
    shutil.copytree(FIXTURES / "solutions", tmp_path / "solutions")
    (tmp_path / "pyproject.toml").write_text(content)
    assert main(["release", "--project", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"mlsys-grader: {tmp_path}/pyproject.toml {said}") and err.count("\n") == 1
    assert not (tmp_path / "labs").exists()


def test_a_checkout_without_its_pyproject(capsys, tmp_path):
    shutil.copytree(FIXTURES / "solutions", tmp_path / "solutions")
    assert main(["release", "--project", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"mlsys-grader: cannot use {tmp_path}/pyproject.toml: No such file or directory\n"
    assert not (tmp_path / "labs").exists()


@pytest.mark.parametrize("package", ["jupytext", "nbgrader"])
def test_without_the_extra_the_package_to_install_is_named(monkeypatch, capsys, tmp_path, package):
    shutil.copytree(FIXTURES / "solutions", tmp_path / "solutions")
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["release", "--project", str(tmp_path)]) == 1
    said = f"mlsys-grader: {package} is not installed; help: pip install 'mlsys-lab[grader]'\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "labs").exists()
