from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from book import serve
from book.serve import HOST, free_port, prepare_workspace, running, site_server, start_jupyterlab, stop
from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.stack.labinfo import released_labs
from tests.ports import held_port


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_port_in_use_is_refused_when_asked_for_and_passed_over_when_not(taken: int) -> None:
    with pytest.raises(InputError, match=f"port {taken} is in use"):
        free_port(taken, 8000)
    assert free_port(None, taken) != taken


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "_static").mkdir()
    (tmp_path / "index.html").write_text("front")
    (tmp_path / "_static" / "local.js").write_text("export const jupyterlab = null;")
    with running(site_server(tmp_path, 0, "http://127.0.0.1:1/lab/tree/{notebook}?token=t")) as url:
        yield url.removesuffix("/")


def get(url: str, host: str | None = None) -> str:
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def test_the_local_server_says_where_jupyterlab_is(address: str) -> None:
    assert get(f"{address}/") == "front"
    assert 'jupyterlab = "http://127.0.0.1:1/lab/tree/{notebook}?token=t"' in get(f"{address}/_static/local.js")


def test_the_token_is_for_this_machine_only(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        get(f"{address}/_static/local.js", host="evil.example:80")
    refused.value.close()


def test_no_site_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no site in .*make book"):
        site_server(tmp_path, 0)


def test_a_learners_work_is_never_overwritten(tmp_path: Path) -> None:
    lab = released_labs(serve.LABS)[0]
    assert lab.name in prepare_workspace(tmp_path)
    mine = tmp_path / lab.name / lab.notebook.name
    mine.write_text("my work")
    assert prepare_workspace(tmp_path) == []
    chapters = tmp_path / "site" / "chapters"
    chapters.mkdir(parents=True)
    for text in ("built", "built again"):
        (chapters / "12-inference.ipynb").write_text(text)
        prepare_workspace(tmp_path, tmp_path / "site")
        assert (tmp_path / "chapters" / "12-inference.ipynb").read_text() == "built"
    assert mine.read_text() == "my work"
    assert (tmp_path / ".mlsys-lab").is_dir()


def test_an_unwritable_workspace_is_one_line(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InputError, match="cannot make a workspace"):
        prepare_workspace(blocked / "workspace")


def test_jupyterlab_starts_in_the_workspace_and_ends(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("here")
    with held_port() as port:
        process = start_jupyterlab(tmp_path, port, "secret", tmp_path / "log")
        try:
            assert get(f"http://{HOST}:{port}/files/note.txt?token=secret") == "here"
            with pytest.raises(urllib.error.HTTPError, match="403") as refused:
                get(f"http://{HOST}:{port}/api/contents/note.txt")
            refused.value.close()
        finally:
            stop(process)
    assert process.returncode is not None


def test_a_jupyterlab_that_cannot_start_says_where_to_look(tmp_path: Path, taken: int) -> None:
    with pytest.raises(MissingToolError, match=r"JupyterLab did not start.*see .*log"):
        start_jupyterlab(tmp_path, taken, "secret", tmp_path / "log")


def test_a_mistake_on_the_command_line_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, serve.__file__, "--site", str(tmp_path), "--workspace", str(tmp_path / "w")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert result.returncode == 1
    assert result.stderr.startswith("error: no site in") and result.stderr.count("\n") == 1
