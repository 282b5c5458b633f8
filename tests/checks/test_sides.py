"""Which files of the two sides are a lab's, and what files import."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlsys_checks import sides
from mlsys_checks.sides import SANDBOXED, TRUSTED, add_imports, find_files, find_other_labs

CUDA = "mlsys_checks.trusted.cuda"


def test_a_side_has_what_serves_every_lab_and_a_labs_own_part() -> None:
    files = find_files(SANDBOXED, CUDA)
    assert {SANDBOXED / "spec.py", SANDBOXED / "cuda.py"} <= set(files)
    assert not [file for file in files if file.stem in ("scaling_laws", "triton")]
    assert find_other_labs(SANDBOXED, CUDA) >= {SANDBOXED / "scaling_laws.py", SANDBOXED / "triton.py"}
    assert SANDBOXED / "cuda.py" not in find_other_labs(SANDBOXED, CUDA)
    others = find_other_labs(TRUSTED, "an instructor's")
    assert find_files(TRUSTED, "an instructor's") == sorted(set(TRUSTED.glob("*.py")) - others)


def test_an_import_counts_wherever_it_stands_and_the_packages_above_it_do_not(tmp_path: Path) -> None:
    package = tmp_path / "p"
    (package / "q").mkdir(parents=True)
    sources = {
        "p/__init__.py": "import p.never",
        "p/never.py": "",
        "p/first.py": "import math\ndef f():\n    from p.q import second",
        "p/q/__init__.py": "from p.q.names import NAME",
        "p/q/names.py": "NAME = 1",
        "p/q/second.py": "if True:\n    import p.third as t, p.first",
        "p/third.py": "",
    }
    for name, source in sources.items():
        (tmp_path / name).write_text(source)
    found = [str(file.relative_to(tmp_path)) for file in add_imports([package / "first.py"], [tmp_path])]
    assert found == ["p/first.py", "p/q/__init__.py", "p/q/names.py", "p/q/second.py", "p/third.py"]


def test_a_library_installed_next_to_the_course_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sides, "HOMES", (tmp_path,))
    sources = {"mlsys_lab/a.py": "import torch\nfrom mlsys_lab import b", "mlsys_lab/b.py": "", "torch/__init__.py": ""}
    for name, source in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    found = add_imports([tmp_path / "mlsys_lab" / "a.py"])
    assert [str(file.relative_to(tmp_path)) for file in found] == ["mlsys_lab/a.py", "mlsys_lab/b.py"]


def test_names_of_modules_are_those_that_define_a_lab() -> None:
    assert {"autograd", "gpu_model"} <= set(sides.find_modules())
    assert not {"compare", "verdict", "answers"} & set(sides.find_modules())
