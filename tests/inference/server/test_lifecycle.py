"""From the start to the last answer: keys, a full queue, time-outs, a crash of the engine, and signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess

import pytest

from mlsys_lab.cli import main
from tests.inference.server.serving import COMMAND, LONG, events, post, read_all, serving
from tests.labs.harness import labs

PRIVATE = {"model": "mlsys-lab-target", "prompt": "a secret of mine", "max_tokens": 2}


@pytest.fixture(scope="module")
def strict():
    """A server with a key and hardly any room, which the last test that asks for it ends."""
    options = ("--api-key", "sesame", "--sequences", "1", "--queue", "1", "--timeout", "2")
    with serving(*options, key="sesame") as running:
        yield running


@pytest.fixture(scope="module")
def hasty():
    """A server that waits for no client, which the last test that asks for it ends."""
    with serving("--client-timeout", "2") as running:
        yield running


def test_a_key_is_asked_for_where_there_is_one_and_no_prompt_is_logged(strict):
    for given in ("", "Bearer wrong", "sesame"):
        for method, path, body in (
            ("POST", "/v1/completions", PRIVATE),
            ("GET", "/v1/models", None),
            ("GET", "/watch", None),
            ("GET", "/health", None),
            ("GET", "/metrics", None),
        ):
            status, answer, _ = strict.ask(method, path, body, Authorization=given)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    with strict.client() as client:
        assert client.completions.create(**PRIVATE).usage.completion_tokens
    assert strict.ask("GET", "/", Authorization="")[0] == 200
    assert strict.ask("GET", "/health")[1] == {"status": "ready"}
    assert strict.log.read_text() == ""


def test_the_page_asks_for_the_key(strict, browser):
    page = browser.new_page()
    page.goto(strict.address)
    key = page.get_by_label("This server requires an API key")
    for given in ("wrong", "sesame"):
        key.fill(given)
        page.get_by_role("button", name="Use key").click()
        key.wait_for(state="hidden" if given == "sesame" else "visible")
    page.get_by_text("Connected", exact=True).wait_for()
    page.close()


def test_a_full_queue_refuses_and_what_takes_too_long_is_given_up(strict):
    first = strict.stream(LONG)
    with strict.engine_stopped():
        status, answer, headers = strict.complete()
        assert (status, answer["error"]["type"], answer["error"]["code"]) == (429, "rate_limit_error", "queue_full")
        assert headers["retry-after"] == "1"
        assert events(first)[-1]["error"]["code"] == "timeout"
    strict.wait_until_idle()
    with strict.engine_stopped():
        status, answer, _ = strict.complete()
        assert (status, answer["error"]["type"], answer["error"]["code"]) == (504, "timeout_error", "timeout")
    strict.wait_until_idle()


def test_a_second_signal_stops_at_once(strict):
    with strict.stream(LONG):
        strict.process.send_signal(signal.SIGINT)
        engine = strict.find_engine("draining")
        assert strict.end((signal.SIGINT,)) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(engine, 0)


def test_signals_up_to_the_last_moment_change_nothing():
    with serving() as served:
        client = served.stream(LONG | {"max_tokens": 20})
        while served.process.poll() is None:
            served.process.send_signal(signal.SIGTERM)
        client.close()
        assert served.process.wait() == 0 and served.log.read_text() == ""


def test_who_sends_half_of_something_or_nothing_is_not_waited_for(hasty):
    whole = post(json.dumps(PRIVATE).encode())
    slow, half, nothing = (hasty.connect() for _ in range(3))
    slow.sendall(whole[:-5])
    half.sendall(whole[:40])
    late = read_all(slow)
    assert b" 408 " in late and b"the body did not arrive within 2 s" in late
    assert read_all(half) == read_all(nothing) == b""
    for client in (slow, half, nothing):
        client.close()


def test_who_stops_to_read_is_cut_off_and_keeps_no_block(hasty):
    before = hasty.metrics()["mlsys_prompt_tokens_total"]
    with hasty.stream(LONG, receive_bytes=1024) as blocked:
        hasty.wait(lambda found: found["mlsys_prompt_tokens_total"] > before)  # running now, or cut off already
        assert [hasty.complete()[0] for _ in range(3)] == [200] * 3
        hasty.wait_until_idle()
        assert b"[DONE]" not in read_all(blocked)
    assert hasty.log.read_text() == ""


def test_sigterm_refuses_what_is_new_and_finishes_what_runs(hasty):
    few = LONG | {"max_tokens": 120}
    idle, stream, watch = hasty.connect(), hasty.stream(few), hasty.connect()
    watch.sendall(b"GET /watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert watch.recv(15) == b"HTTP/1.1 200 OK"
    hasty.process.send_signal(signal.SIGTERM)
    hasty.wait_until("draining")
    for status, answer, _ in (hasty.complete(), hasty.ask("GET", "/watch")):
        assert (status, answer["error"]["code"]) == (503, "draining")
    *chunks, last = events(stream)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert last == "[DONE]" and sum(reason is not None for reason in reasons) == few["n"]
    with watch:
        assert read_all(watch).endswith(b"0\r\n\r\n")  # the end of a body in chunks
    assert hasty.process.wait() == 0 and hasty.log.read_text() == ""
    idle.close()


def test_a_crash_of_the_engine_is_told_to_all_who_wait_and_mended(served):
    restarts = served.wait_until_idle()["mlsys_engine_restarts_total"]
    streams = [served.stream(LONG) for _ in range(3)]
    whole = served.connect()
    whole.sendall(post(json.dumps(LONG).encode(), *("Connection: close", f"Content-Length: {len(json.dumps(LONG))}")))
    served.wait(lambda found: found["mlsys_num_requests_open"] == 32)
    crashed = served.find_engine()
    os.kill(crashed, signal.SIGKILL)
    assert [events(stream)[-1]["error"]["code"] for stream in streams] == ["engine_crashed"] * 3
    with whole:
        answer = read_all(whole)
    assert b" 500 " in answer and b'"code":"engine_crashed"' in answer
    while (found := served.complete())[0] == 503:
        assert found[1]["error"]["code"] == "engine_starting" and found[2]["retry-after"] == "1"
    assert found[0] == 200 and served.find_engine() != crashed
    assert served.wait_until_idle()["mlsys_engine_restarts_total"] == restarts + 1


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
        (["--blocks", "0"], "num_blocks must be at least 1: got 0"),
        (["--queue", "-1"], "max_queued_seqs must not be negative: got -1"),
        (["--client-timeout", "0"], "client_timeout_s must be at least 1: got 0"),
        (["--timeout", "0"], "request_timeout_s out of range: got 0.0, expected seconds above 0"),
        (["--api-key", "ключ"], "the API key does not fit into a header"),
        (["--port", "70000"], "port out of range: got 70000, expected 0 to 65535"),
    ],
)
def test_options_that_cannot_be_are_said_in_one_line(options, said, capsys):
    assert main(["serve", *options]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"mlsys-lab: {said}") and error.count("\n") == 1


SERVING = next(lab for lab in labs() if lab.info.topic == "serving")
OWN = f"""{SERVING.reference}

class Eager(PreemptiveScheduler):
    def schedule(self):
        self.num_steps += 99
        return super().schedule()


def build(num_blocks, block_size, config):
    return Eager(PrefixBlockManager(num_blocks, block_size), config)
"""


def test_a_scheduler_from_a_file_decides(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    with serving("--scheduler", str(path)) as served:
        assert served.complete()[0] == 200
        assert served.wait_until_idle()["mlsys_engine_steps"] >= 100


def test_an_engine_that_cannot_start_again_is_tried_until_it_can(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    with serving("--scheduler", str(path)) as served:
        engine = served.find_engine()
        path.write_text("", encoding="utf-8")
        os.kill(engine, signal.SIGKILL)
        while not (said := served.log.read_text()).endswith("\n"):
            pass
        path.write_text(OWN, encoding="utf-8")
        served.wait_until("ready")
        assert served.complete()[0] == 200
    assert said.startswith(f"mlsys-lab: {path} defines no scheduler: expected a function build")


def test_a_file_without_a_scheduler_is_refused_in_one_line(tmp_path, capsys):
    assert main(["serve", "--scheduler", str(tmp_path / "none.py")]) == 1
    assert "no such scheduler" in capsys.readouterr().err
    path = tmp_path / "empty.py"
    path.write_text("", encoding="utf-8")
    done = subprocess.run(
        [COMMAND, "serve", "--port", "0", "--scheduler", str(path)], capture_output=True, text=True, check=False
    )
    said = f"mlsys-lab: {path} defines no scheduler: expected a function build(num_blocks, block_size, config)\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
