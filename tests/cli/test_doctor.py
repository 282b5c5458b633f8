"""`mlsys-lab doctor`."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlsys_lab.cli import doctor
from mlsys_lab.stack import labinfo

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def findings(call: Call) -> dict[str, dict[str, Any]]:
    code, out, err = call("doctor", "--json")
    assert (code, err) == (0, "")
    return {finding["name"]: finding for finding in json.loads(out)}


def test_it_tells_what_is_here(findings: dict[str, dict[str, Any]]) -> None:
    import torch

    version = findings["torch"]["found"]  # as it is installed; torch itself may add its build: "+cu130"
    assert findings["Python"]["ok"] and torch.__version__.split("+")[0] == version.split("+")[0]
    assert findings["GPU (CUDA)"]["ok"] == torch.cuda.is_available()
    assert findings["ranks (gloo)"]["ok"]


def test_everything_that_is_missing_comes_with_a_fix(findings: dict[str, dict[str, Any]]) -> None:
    assert all(finding["ok"] or finding["fix"] for finding in findings.values())
    assert all(finding["needed_for"] and finding["found"] for finding in findings.values())


def test_the_table_says_the_same(call: Call) -> None:
    code, out, _ = call("doctor")
    assert code == 0
    for probe in doctor.PROBES:
        assert probe().name in out


def test_without_torch_the_fix_is_named_and_the_exit_code_is_1(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: "")
    code, out, _ = call("doctor")
    assert code == 1 and "torch: pip install torch" in out
    assert 'pip install "mlsys-lab[lab]"' in out  # square brackets are not taken for markup


@pytest.mark.parametrize(
    ("package", "name"), [("greenlet", "Numba CUDA"), ("numba-cuda", "Numba CUDA"), ("triton", "Triton")]
)
def test_what_kernels_lack_is_an_extra_that_there_is(
    package: str, name: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda asked: "" if asked == package else there(asked))
    found = {finding["name"]: finding for finding in json.loads(call("doctor", "--json")[1])}[name]
    extra = re.search(r"mlsys-lab\[(.+)\]", found["fix"])
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not found["ok"] and "not installed" in found["found"]
    assert extra and any(one.startswith(package) for one in project["optional-dependencies"][extra[1]])


def test_an_old_python_is_told(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "version_info", (3, 10, 0))
    code, out, _ = call("doctor")
    assert code == 1 and "Python: install Python 3.11 or later" in out


def test_labs_that_have_not_been_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(labinfo, "labs_root", lambda: tmp_path)
    finding = doctor._labs()
    assert not finding.ok and "make labs" in finding.fix


@pytest.mark.parametrize(
    ("cuda", "said"), [(None, "this torch is built without CUDA"), ("13.0", "check the driver with `nvidia-smi`")]
)
def test_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, cuda: str | None, said: str) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    finding = doctor.find_gpu()
    assert not finding.ok and said in finding.found + finding.fix


def test_gloo_that_cannot_start_comes_with_the_usual_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    def unresolved(*args: object, **options: object) -> None:
        raise RuntimeError("unable to resolve hostname\nException raised from …")

    monkeypatch.setattr(dist, "init_process_group", unresolved)
    finding = doctor._ranks()
    assert (finding.ok, finding.found) == (False, "unable to resolve hostname")
    assert finding.fix == "export GLOO_SOCKET_IFNAME=lo"
