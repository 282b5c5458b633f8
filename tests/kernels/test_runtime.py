"""Where kernels run, and the one line for each reason why they cannot."""

from __future__ import annotations

import importlib
import os
import platform
from importlib import metadata

import pytest

from mlsys_lab.errors import MissingToolError
from mlsys_lab.kernels import runtime


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(runtime, "on_gpu", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")  # so that what a test sets is put back
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "0")
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM")


def test_without_a_gpu_triton_interprets_and_numba_simulates(without_gpu):
    _, language = runtime.load_triton()
    cuda = runtime.load_numba()
    assert language.__name__ == "triton.language" and cuda.__name__ == "numba.cuda"
    assert os.environ["TRITON_INTERPRET"] == os.environ["NUMBA_ENABLE_CUDASIM"] == "1"
    assert runtime.triton_interprets() and runtime.numba_simulates()


def test_what_the_caller_has_set_stays(without_gpu, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "0")
    runtime.load_triton()
    runtime.load_numba()
    assert not runtime.triton_interprets() and not runtime.numba_simulates()


def test_with_a_gpu_nothing_is_set(without_gpu, monkeypatch):
    monkeypatch.setattr(runtime, "on_gpu", lambda: True)
    runtime.load_triton()
    runtime.load_numba()
    assert not runtime.triton_interprets() and not runtime.numba_simulates()
    runtime.require_gpu("CUDA C++")


def test_no_gpu_where_one_is_asked_for(without_gpu):
    with pytest.raises(MissingToolError, match=r"^CUDA C\+\+ needs a GPU: got no CUDA device"):
        runtime.require_gpu("CUDA C++")


def test_triton_elsewhere_than_on_linux(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(MissingToolError, match=r"^Triton is published for Linux only: got Darwin"):
        runtime.load_triton()


@pytest.mark.parametrize("load, library", [(runtime.load_triton, "triton"), (runtime.load_numba, "numba")])
def test_a_library_that_is_too_old_or_missing(monkeypatch, load, library):
    monkeypatch.setattr(metadata, "version", lambda name: "0.3.9rc1")
    with pytest.raises(MissingToolError, match=rf"^this {library} is too old for the kernels: got 0.3.9rc1, expected"):
        load()

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(MissingToolError, match=rf"^{library} is not installed; help: pip install"):
        load()


def test_a_minor_release_of_two_digits_is_newer(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "3.10.0+git")
    runtime.load_triton()


@pytest.mark.parametrize("broken", [ImportError("no module"), AttributeError("has no attribute 'NPDatetime'")])
def test_two_packages_that_do_not_fit_one_another(monkeypatch, broken):
    def refuse(module: str) -> None:
        raise broken

    monkeypatch.setattr(importlib, "import_module", refuse)
    numba, cuda = metadata.version("numba"), metadata.version("numba-cuda")
    with pytest.raises(MissingToolError) as error:
        runtime.load_numba()
    assert f"numba.cuda cannot be imported ({broken}): got numba {numba}, numba-cuda {cuda}" in str(error.value)
