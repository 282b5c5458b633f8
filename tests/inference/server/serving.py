"""Servers to test: the command in a process of its own, asked over HTTP or by raw sockets."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from mlsys_lab.inference.server.protocol import MODEL
from mlsys_lab.inference.server.watchers import PAUSE_S

COMMAND = str(Path(sys.executable).with_name("mlsys-lab"))
LONG = {"model": MODEL, "prompt": "A", "max_tokens": 480, "n": 8, "temperature": 2, "seed": 4, "stop": ["unwritten"]}
"""Request whose eight texts take about 3,000 tokens: whoever tests what happens meanwhile has time."""


@dataclass
class Served:
    """A server that runs, and what it printed on standard error so far."""

    process: subprocess.Popen[str]
    port: int
    log: Path
    key: str

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.address}/v1", api_key=self.key, max_retries=0)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Status, body (of JSON where it is that), and headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            kind = {"Content-Type": "application/json"} if data is not None else {}
            kind["Authorization"] = f"Bearer {self.key}"
            connection.request(method, path, data, kind | {name.replace("_", "-"): headers[name] for name in headers})
            response = connection.getresponse()
            text = response.read()
            read = json.loads(text) if response.getheader("content-type") == "application/json" else text.decode()
            return response.status, read, {name.lower(): value for name, value in response.getheaders()}
        finally:
            connection.close()

    def complete(self, body: object = None, **fields: object) -> tuple[int, Any, dict[str, str]]:
        plain = {"model": MODEL, "prompt": "A cache", "max_tokens": 3}
        return self.ask("POST", "/v1/completions", plain | fields if body is None else body)

    def stream(self, fields: dict[str, object], receive_bytes: int | None = None) -> socket.socket:
        """A socket on which a stream was asked for, and has begun unless `receive_bytes` makes its buffer small."""
        client = socket.socket()
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.connect(("127.0.0.1", self.port))
        body = json.dumps(fields | {"stream": True}).encode()
        client.sendall(post(body, "Connection: close", f"Content-Length: {len(body)}", key=self.key))
        if not receive_bytes:
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        return client

    def metrics(self) -> dict[str, float]:
        lines = [line for line in self.ask("GET", "/metrics")[1].splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def wait(self, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Metrics, once they are as wished."""
        while not condition(found := self.metrics()):
            pass
        return found

    def wait_until_idle(self) -> dict[str, float]:
        """Metrics, once no text is open, in the engine or in a block of its cache."""
        names = ("num_requests_open", "num_requests_waiting", "num_requests_running", "num_kv_cache_blocks_used")
        return self.wait(lambda found: not any(found[f"mlsys_{name}"] for name in names))

    def wait_until(self, status: str) -> None:
        """Return once /health says so."""
        while self.ask("GET", "/health")[1] != {"status": status}:
            pass

    def find_engine(self, status: str = "ready") -> int:
        """Process id of the engine, once the server has this status."""
        self.wait_until(status)
        command = ["pgrep", "-P", str(self.process.pid), "-f", "inference.server.worker"]
        (pid,) = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return int(pid)

    @contextmanager
    def engine_stopped(self) -> Iterator[None]:
        """An engine that does nothing for now: however fast the machine, or slow, what it is asked for must wait."""
        engine = self.find_engine()
        os.kill(engine, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(engine, signal.SIGCONT)

    @contextmanager
    def engine_in_slow_motion(self) -> Iterator[None]:
        """An engine that rests after every few steps, for as long as a server takes to tell those who watch of them."""
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(0.03):
                with self.engine_stopped():
                    time.sleep(2 * PAUSE_S)
                    self.metrics()

        pacing = threading.Thread(target=work)
        pacing.start()
        try:
            yield
        finally:
            ended.set()
            pacing.join()

    def end(self, signals: tuple[int, ...] = (signal.SIGTERM,)) -> int:
        for one in signals:
            self.process.send_signal(one)
        return self.process.wait()


def post(body: bytes, *headers: str, key: str = "none") -> bytes:
    """Bytes of a request for a completion, with its length unless headers say how it comes."""
    lines = headers or (f"Content-Length: {len(body)}",)
    known = ("Host: localhost", "Content-Type: application/json", f"Authorization: Bearer {key}")
    head = ("POST /v1/completions HTTP/1.1", *known, *lines)
    return "\r\n".join((*head, "", "")).encode() + body


def read_all(client: socket.socket) -> bytes:
    """What comes until the other side closes, in order or not."""
    parts = []
    with suppress(ConnectionResetError):
        while part := client.recv(65536):
            parts.append(part)
    return b"".join(parts)


def events(stream: socket.socket) -> list[Any]:
    """Objects of a stream's events, the last word as it is."""
    with stream:
        text = read_all(stream).decode()
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@contextmanager
def serving(*options: str, key: str = "none") -> Iterator[Served]:
    """A server with these options, on a port of its own; at the end it must have stopped, or stop in order."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("a") as errors:
            # A busy machine may keep client, server or engine from their work for minutes.
            patience = ("--timeout", "3600", "--client-timeout", "3600")
            command = [COMMAND, "serve", "--port", "0", *patience, *options]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            line = process.stdout.readline()
            assert line.startswith("Serving at http://127.0.0.1:"), log.read_text()
            served = Served(process, int(line.split()[2].rpartition(":")[2]), log, key)
            yield served
            if process.poll() is None:
                assert served.end() == 0
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
