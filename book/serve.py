"""`make start`: serve the built site and a JupyterLab with the released labs, on this machine only, until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from book.project import BOOK, BUILD, LABS, ROOT
from mlsys_lab.cli.start import copy_lab
from mlsys_lab.errors import CourseError, InputError, MissingToolError
from mlsys_lab.stack.labinfo import released_labs
from mlsys_lab.stack.workspace import Workspace

HOST = "127.0.0.1"
LOCAL = "/_static/local.js"


def free_port(wanted: int | None, preferred: int) -> int:
    """Find a port: the one asked for, else the preferred one if it is free, else any free one.

    Raises:
        InputError: the port asked for is in use.
    """
    for port in (wanted,) if wanted else (preferred, 0):
        with socket.socket() as probe:
            # As the servers do it: a port whose last connections are still timing out counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise InputError(f"port {wanted} is in use", help="choose another, or leave the option out")


def prepare_workspace(workspace: Path, html: Path | None = None) -> list[str]:
    """Make the learner's folder and copy into it the released labs that are not there yet; returns those copied.

    The chapters' notebooks of the site at `html` come along, in a folder `chapters`. What a learner has is never
    touched: a lab whose folder exists and a chapter whose notebook exists are left as they are.

    Raises:
        InputError: the folder cannot be written.
    """
    Workspace.create(workspace)
    for notebook in sorted(html.glob("chapters/*.ipynb")) if html else ():
        copied = workspace / "chapters" / notebook.name
        copied.parent.mkdir(exist_ok=True)
        if not copied.exists():
            shutil.copyfile(notebook, copied)
    new = [lab for lab in released_labs(LABS) if not (workspace / lab.name).exists()]
    return [copy_lab(lab, workspace).name for lab in new]


class SiteHandler(SimpleHTTPRequestHandler):
    """HTTP handler that serves the site's files; at LOCAL it tells the site where JupyterLab is."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: object, jupyterlab: str | None, **options: object) -> None:
        self.jupyterlab = jupyterlab
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer a GET request whose Host header names this machine; refuse others."""
        # LOCAL holds JupyterLab's token: other sites cannot read a module, and foreign names for us are refused.
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in (HOST, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path.split("?")[0] == LOCAL and self.jupyterlab:
            body = f'export const jupyterlab = "{self.jupyterlab}";\n'.encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/javascript")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            super().do_GET()

    def end_headers(self) -> None:
        """Forbid caching, so that a rebuilt page shows at the next visit, and end the headers."""
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing: requests are not logged."""


def site_server(html: Path, port: int, jupyterlab: str | None = None) -> ThreadingHTTPServer:
    """Make an HTTP server for the built site, which is not yet running.

    Raises:
        InputError: the site has not been built.
    """
    if not (html / "index.html").is_file():
        raise InputError(f"no site in {html}", help="make book")
    return ThreadingHTTPServer((HOST, port), partial(SiteHandler, directory=str(html), jupyterlab=jupyterlab))


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[str]:
    """Run a server for the body of a `with`; yields its address, which ends in a slash."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def start_jupyterlab(workspace: Path, port: int, token: str, log: Path) -> subprocess.Popen[bytes]:
    """Start JupyterLab in the workspace and wait until it answers.

    Raises:
        MissingToolError: it ended, or did not answer in two minutes; `log` has what it said.
    """
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--ServerApp.root_dir={workspace}"]
    command += [f"--ServerApp.ip={HOST}", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    # Without these JupyterLab asks other hosts for its news and its catalogue of extensions.
    command += ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    # The learner's JupyterLab asks about no news and shows none of nbgrader's panels, which are the instructor's.
    command += ["--LabApp.extension_manager=readonly", f"--LabApp.app_settings_dir={BOOK / 'jupyterlab'}"]
    return run_jupyter(command, port, token, log)


def run_jupyter(
    command: list[str], port: int, token: str, log: Path, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a Jupyter server by its command and wait until it answers on `port`.

    Raises:
        MissingToolError: it ended, or did not answer in two minutes; `log` has what it said.
    """
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command = [*command, "--ServerApp.allow_root=True"]  # containers run as root
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        # The token goes by the environment, since other users can read a command line; the session of its own keeps
        # Ctrl-C for us, who then stop it in order.
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            env={**os.environ, "JUPYTER_TOKEN": token},
            start_new_session=True,
        )
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                urllib.request.urlopen(f"http://{HOST}:{port}/api?token={token}", timeout=5).close()
                return process
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.2)
    except BaseException:
        stop(process)
        raise
    stop(process)
    said = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    raise MissingToolError("JupyterLab did not start", got=said[-1] if said else "no output", help=f"see {log}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a Jupyter server and its kernels, by force if it does not end by itself."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def serve(html: Path, workspace: Path, port: int | None, jupyter_port: int | None) -> None:
    """Serve the site and a JupyterLab until interrupted; MissingToolError if JupyterLab ends before."""
    copied = prepare_workspace(workspace, html)
    lab_port, token = free_port(jupyter_port, 8888), secrets.token_urlsafe(24)
    base = f"http://{HOST}:{lab_port}/lab"
    server = site_server(html, free_port(port, 8000), f"{base}/tree/{{notebook}}?token={token}")
    jupyter = None
    try:
        jupyter = start_jupyterlab(workspace, lab_port, token, BUILD / "jupyterlab.log")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"Site        http://{HOST}:{server.server_port}/")
        print(f"JupyterLab  {base}?token={token}")
        print(f"Your labs   {workspace}" + (f"  (new: {', '.join(copied)})" if copied else ""))
        print("Ctrl-C stops both.", flush=True)
        jupyter.wait()
        raise MissingToolError("JupyterLab ended", help=f"see {BUILD / 'jupyterlab.log'}")
    except KeyboardInterrupt:
        print("\nStopping.")
    finally:
        if jupyter:
            stop(jupyter)
            server.shutdown()
        server.server_close()


def interrupt(signum: int, frame: object) -> None:
    """Treat a signal that asks the process to end like Ctrl-C: raise KeyboardInterrupt."""
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Serve the site and JupyterLab as the command line says, until Ctrl-C; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="book/serve.py", description="Serve the built site and JupyterLab on this machine."
    )
    parser.add_argument(
        "--site", type=Path, default=BOOK / "_build" / "html", help="the built site (default: book/_build/html)"
    )
    parser.add_argument("--workspace", type=Path, default=ROOT / "workspace", help="your labs (default: workspace)")
    parser.add_argument("--port", type=int, help="the site's port (default: 8000, or a free one)")
    parser.add_argument("--jupyter-port", type=int, help="JupyterLab's port (default: 8888, or a free one)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        serve(options.site.resolve(), options.workspace.resolve(), options.port, options.jupyter_port)
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
