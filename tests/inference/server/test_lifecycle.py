"""From the start to the last answer: keys, a full queue, time-outs, a crash of the engine, and signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess

import pytest

from mlsys_lab.cli import main
from tests.inference.server.serving import COMMAND, LONG, post, read_all, serving

PRIVATE = {"model": "mlsys-lab-target", "prompt": "a secret of mine", "max_tokens": 2}


def events(stream):
    """Objects of a stream's events, the last word as it is."""
    with stream:
        text = read_all(stream).decode()
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_key_is_asked_for_where_there_is_one_and_no_prompt_is_logged():
    with serving("--api-key", "sesame") as served:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"}):
            for method, path, body in (("POST", "/v1/completions", PRIVATE), ("GET", "/v1/models", None)):
                status, answer, _ = served.ask(method, path, body, **given)
                assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        with served.client("sesame") as client:
            assert client.completions.create(**PRIVATE).usage.completion_tokens
        assert served.ask("GET", "/health")[0] == served.ask("GET", "/metrics")[0] == 200
        assert served.end((signal.SIGINT,)) == 0 and served.log.read_text() == ""


def test_a_full_queue_refuses_and_what_takes_too_long_is_given_up():
    with serving("--sequences", "1", "--queue", "1", "--timeout", "2") as served:
        first = served.stream(LONG)
        status, answer, headers = served.complete()
        assert (status, answer["error"]["type"], answer["error"]["code"]) == (429, "rate_limit_error", "queue_full")
        assert headers["retry-after"] == "1"
        assert events(first)[-1]["error"]["code"] == "timeout"
        served.wait_until_idle()
        status, answer, _ = served.complete(LONG)
        assert (status, answer["error"]["type"], answer["error"]["code"]) == (504, "timeout_error", "timeout")
        served.wait_until_idle()


def test_a_crash_of_the_engine_is_told_to_all_who_wait_and_mended():
    with serving() as served:
        streams = [served.stream(LONG) for _ in range(3)]
        whole = socket.create_connection(("127.0.0.1", served.port))
        whole.sendall(
            post(json.dumps(LONG).encode(), *("Connection: close", f"Content-Length: {len(json.dumps(LONG))}"))
        )
        served.wait(lambda found: found["mlsys_open_texts"] == 32)
        crashed = served.wait_until("ready")["engine_pid"]
        os.kill(crashed, signal.SIGKILL)
        assert [events(stream)[-1]["error"]["code"] for stream in streams] == ["engine_crashed"] * 3
        with whole:
            answer = read_all(whole)
        assert b" 500 " in answer and b'"code":"engine_crashed"' in answer
        while (found := served.complete())[0] == 503:
            assert found[1]["error"]["code"] == "engine_starting" and found[2]["retry-after"] == "1"
        assert found[0] == 200 and served.wait_until("ready")["engine_pid"] != crashed
        assert served.wait_until_idle()["mlsys_engine_restarts_total"] == 1


def test_sigterm_refuses_what_is_new_and_finishes_what_runs():
    with serving() as served:
        idle, stream = socket.create_connection(("127.0.0.1", served.port)), served.stream(LONG)
        served.process.send_signal(signal.SIGTERM)
        served.wait_until("draining")
        status, answer, _ = served.complete()
        assert (status, answer["error"]["code"]) == (503, "draining")
        *chunks, last = events(stream)
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert last == "[DONE]" and sum(reason is not None for reason in reasons) == LONG["n"]
        assert served.process.wait() == 0 and served.log.read_text() == ""
        idle.close()


def test_a_second_signal_stops_at_once():
    with serving() as served, served.stream(LONG):
        served.process.send_signal(signal.SIGINT)
        engine = served.wait_until("draining")["engine_pid"]
        assert served.end((signal.SIGINT,)) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(engine, 0)


def test_a_port_that_is_taken_is_said_in_one_line():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        done = subprocess.run([COMMAND, "serve", "--port", port], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"mlsys-lab: cannot listen at 127.0.0.1, port {port}: got ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "options, said",
    [
        (["--blocks", "0"], "blocks must be at least 1: got 0"),
        (["--queue", "-1"], "queue must not be negative: got -1"),
        (["--timeout", "0"], "answer_s out of range: got 0.0, expected seconds above 0"),
        (["--api-key", "ключ"], "the key is not one that a header can hold"),
        (["--port", "70000"], "port out of range: got 70000, expected 0 to 65535"),
    ],
)
def test_options_that_cannot_be_are_said_in_one_line(options, said, capsys):
    assert main(["serve", *options]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"mlsys-lab: {said}") and error.count("\n") == 1
