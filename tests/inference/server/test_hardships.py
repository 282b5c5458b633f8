"""Clients that send what is no request, read slowly, or go away: they are told so, and nobody else notices."""

from __future__ import annotations

import http.client
import json
import socket
from random import Random

import openai
import pytest

from mlsys_lab.inference.server.app import RequireHost
from mlsys_lab.inference.server.body import max_body_bytes
from mlsys_lab.inference.server.protocol import MODEL
from tests.inference.server.serving import LONG, post, read_all, serving
from tests.loops import run
from tests.sampling import sample

PLAIN = {"model": MODEL, "prompt": "A cache", "max_tokens": 3}


def error_of(body):
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"} and "\n" not in error["message"]
    return error


@pytest.mark.parametrize(
    "body, said",
    [
        (b"", "the body is not valid JSON"),
        (b"{", "the body is not valid JSON"),
        (b"\xff\xfe\x00", "the body is not valid JSON"),
        (b"[" * 60_000, "the body is not valid JSON"),
        (b"9" * 5000, "the body is not valid JSON"),
        (b"[]", "the body is not a JSON object"),
        (b'{"model": "mlsys-lab-target", "prompt": "\\ud800"}', "the body is not valid JSON"),
        (b'{"model": "mlsys-lab-target", "prompt": "A", "\\ud800": 1}', "the body is not valid JSON"),
        (b'{"model": "mlsys-lab-target", "prompt": "A", "temperature": NaN}', "the body is not valid JSON"),
        (b'{"model": "mlsys-lab-target", "prompt": "A", "max_tokens": ' + b"9" * 4000 + b"}", "max_tokens: got 999"),
        (b'{"model": "mlsys-lab-target", "prompt": [' + b"9" * 4000 + b"]}", "prompt: got [999"),
    ],
)
def test_what_is_no_request_is_told_so(served, body, said):
    status, answer, _ = served.complete(body)
    message = error_of(answer)["message"]
    assert status == 400 and message.startswith(said) and len(message) < 200


@pytest.mark.parametrize(
    "method, path, status", [("GET", "/v1/completions", 405), ("POST", "/v1/models", 405), ("GET", "/v1/", 404)]
)
def test_routes_that_there_are_not_answer_in_the_standard_form(served, method, path, status):
    got, answer, _ = served.ask(method, path)
    assert got == status and error_of(answer)["type"] == "invalid_request_error"


def test_a_page_of_another_site_cannot_ask(served):
    status, answer, headers = served.ask("POST", "/v1/completions", PLAIN, Content_Type="text/plain")
    assert status == 415 and error_of(answer)["message"].startswith("Content-Type: got 'text/plain'")
    assert "access-control-allow-origin" not in headers


def test_a_body_has_a_greatest_size_whether_it_says_its_own_or_not(served):
    most = max_body_bytes(served.ask("POST", "/tokenize", {"prompt": "A"})[1]["max_model_len"])
    status, answer, _ = served.complete(b" " * (most + 1))
    assert status == 413 and f"up to {most} bytes" in error_of(answer)["message"]
    assert served.complete(b" " * most)[0] == 400
    with served.connect() as client:
        client.sendall(post(b"", "Content-Length: 999999999999"))
        assert b" 413 " in client.recv(4096)
    with served.connect() as client:
        client.sendall(post(b"%x\r\n" % (most + 1) + b" " * (most + 1) + b"\r\n", "Transfer-Encoding: chunked"))
        assert b" 413 " in client.recv(4096)


def test_a_body_has_room_for_all_prompts_of_the_longest_context(served):
    length = served.ask("POST", "/tokenize", {"prompt": "A"})[1]["max_model_len"]
    status, answer, _ = served.complete(prompt=[[1000] * (length - 1)] * 64, max_tokens=0)
    assert status == 200 and answer["usage"]["prompt_tokens"] == 64 * (length - 1)
    assert [max_body_bytes(tokens) for tokens in (1, 2**30)] == [64 * 1024, 32 * 1024**2]


def fuzz(served, seed, count):
    """Send so many requests, each wrong in one way; all are answered, none by a mistake of the server."""
    random = Random(seed)
    deep = json.loads("[" * 50 + "]" * 50)
    values = [None, True, -1, 0, 1, 2.5, 1e308, 2**63, 2**70, "", "x", "\ud800", "\0", "é" * 999, [], [[]], {}, deep]
    values += [[None], [-1], [2**65], {"role": 1}, [{"role": "user", "content": "\udfff"}], [{"role": "user"}]]
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "A"}], "max_tokens": 2}
    bases = {"/v1/completions": PLAIN, "/v1/chat/completions": chat | {"max_completion_tokens": 2}}
    fields = [*PLAIN, *chat, "n", "stop", "seed", "top_p", "temperature", "logprobs", "stream", "stream_options", "x"]
    connection = http.client.HTTPConnection("127.0.0.1", served.port)
    for _ in range(count):
        path, base = random.choice(list(bases.items()))
        name = random.choice(fields)
        body = json.dumps(base | {name: random.choice(values)}).encode()
        if random.random() < 0.3:
            place = random.randrange(len(body))
            body = body[:place] + random.randbytes(random.randrange(3)) + body[place + random.randrange(3) :]
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        assert response.status in (200, 400, 404), (body, text)
        if response.status != 200:
            error_of(json.loads(text))
    connection.close()


@pytest.mark.parametrize("seed", sample(range(34), 34))
def test_bad_requests_by_the_hundred_are_all_answered(served, seed):
    pid = served.find_engine()
    fuzz(served, seed, 300)
    served.wait_until_idle()
    assert served.find_engine() == pid


def test_what_is_no_http_is_refused_and_half_a_request_keeps_nobody_waiting(served):
    halves = [served.connect() for _ in range(20)]
    for number, client in enumerate(halves):
        client.sendall(post(json.dumps(PLAIN).encode())[: 15 * number])
    with served.connect() as client:
        client.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        assert b" 400 " in read_all(client)
    assert served.complete()[0] == 200
    for client in halves:
        client.close()
    served.log.write_text("")  # uvicorn's own line about what was no HTTP


GARBAGE = [b"no HTTP", b"\xff", b"WITHOUTANYENDORSPACE", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nno HTTP"]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_connection_that_sends_garbage_is_closed_before_the_garbage_ends(served, garbage):
    with served.connect() as client:
        client.sendall(garbage)
        assert b" 400 " in read_all(client)


ENDLESS = ["Transfer-Encoding: chunked\r\n\r\nffffffff", f"Content-Length: {2**40}\r\n"]


@pytest.mark.parametrize("head", ENDLESS)
@pytest.mark.parametrize(
    "line, status", [("POST /v1/completions", 415), ("POST /v1/models", 405), ("PUT /nothing", 404)]
)
def test_a_body_that_is_not_read_is_not_received_for_ever(served, head, line, status):
    with served.connect() as client:
        client.sendall(f"{line} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
        assert f" {status} ".encode() in client.recv(4096)
        with pytest.raises(OSError):
            for _ in range(1000):
                client.sendall(bytes(65536))


def test_a_request_that_was_refused_may_be_followed_by_another(served):
    with served.connect() as client:
        for _ in range(3):
            client.sendall(f"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {40_000}\r\n\r\n".encode())
            answer = b""
            while b"}}" not in answer:
                answer += client.recv(4096)
            assert b" 405 " in answer
            client.sendall(bytes(40_000))


@pytest.fixture(scope="module")
def named():
    with serving("--allow-host", "Lab.example") as running:
        yield running


@pytest.mark.parametrize("host", ["localhost:1", "LOCALHOST", "127.0.0.1:8000", "[::1]:8000", "lab.example:8000"])
def test_a_server_answers_to_the_names_of_loopback_and_to_those_it_was_given(named, host):
    assert named.ask("GET", "/v1/models", Host=host)[0] == 200


STRANGE = ["evil.example", "localhost.evil.example:8000", "evil.example#@localhost", "10.0.0.1", "[::1", "lab.example."]


@pytest.mark.parametrize("host", STRANGE)
@pytest.mark.parametrize("path", ["/v1/models", "/", "/health", "/metrics", "/nothing"])
def test_a_name_that_leads_here_and_is_none_of_this_server_is_refused(named, host, path):
    status, answer, _ = named.ask("GET", path, Host=host)
    expected = f"Host: got {host!r}, which is not a name of this server; help: --allow-host NAME adds one"
    assert status == 421 and error_of(answer)["message"] == expected


@pytest.mark.parametrize(
    "local, host, passes",
    [
        ("192.0.2.7", "192.0.2.7:8000", True),
        ("::ffff:192.0.2.7", "192.0.2.7", True),
        ("2001:db8::7", "[2001:db8::7]:8000", True),
        ("192.0.2.7", "192.0.2.8", False),
        ("192.0.2.7", "", False),
    ],
)
def test_the_address_that_a_connection_came_in_at_is_a_name_of_a_server_that_listens_at_all(local, host, passes):
    sent = []

    async def app(scope, receive, send):
        sent.append(200)

    async def send(message):
        sent.append(message.get("status"))

    scope = {"type": "http", "server": (local, 8000), "headers": [(b"host", host.encode())]}
    run(RequireHost(app, ["localhost", "0.0.0.0"])(scope, None, send))
    assert sent[0] == (200 if passes else 421)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("half_first", [False, True])
def test_a_client_that_goes_away_leaves_nothing_behind(served, stream, half_first):
    before = served.wait_until_idle()["mlsys_generation_tokens_total"]
    if stream:
        client = served.stream(LONG)
    else:
        client = served.connect()
        client.sendall(post(json.dumps(LONG).encode()))
    served.wait(lambda found: found["mlsys_num_kv_cache_blocks_used"] >= 8)
    if half_first:
        client.shutdown(socket.SHUT_WR)
    client.close()
    after = served.wait_until_idle()["mlsys_generation_tokens_total"]
    assert after - before < LONG["n"] * LONG["max_tokens"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_client_that_closes_its_sending_side_gets_its_answer(served, stream, version):
    asked = PLAIN | {"max_tokens": 40, "temperature": 0}
    text = served.complete(**asked)[1]["choices"][0]["text"]
    with served.engine_stopped():
        client = served.connect()
        request = post(json.dumps(asked | {"stream": stream}).encode())
        client.sendall(request.replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        client.shutdown(socket.SHUT_WR)
        served.wait(lambda found: found["mlsys_num_requests_open"] == 1)
    with client:
        answer = http.client.HTTPResponse(client)
        answer.begin()
        body = answer.read().decode()
    assert answer.status == 200
    found = [line[6:] for line in body.splitlines() if line.startswith("data: {")] if stream else [body]
    parts = [json.loads(one) for one in found]
    assert "".join(part["choices"][0]["text"] for part in parts) == text


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHo", post(b"{}", "Content-Length: 99")])
def test_a_client_that_closes_its_sending_side_within_a_request_is_let_go(served, sent):
    with served.connect() as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b""


def test_a_client_that_waits_no_longer_ends_its_request(served):
    asked = {"model": MODEL, "timeout": 0.2}
    with served.client() as client, served.engine_stopped():  # so nothing but the disconnect can end a request
        with pytest.raises(openai.APITimeoutError):
            client.completions.create(prompt="A", **asked)
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(messages=[{"role": "user", "content": "A"}], **asked)
        served.wait(lambda found: found["mlsys_num_requests_open"] == 0)
    served.wait_until_idle()


def test_who_goes_away_while_waiting_leaves_the_queue(served):
    with served.stream(LONG), served.stream(LONG):
        served.wait(lambda found: found["mlsys_num_requests_running"] == 16)
        waiting = served.connect()
        waiting.sendall(post(json.dumps(PLAIN).encode()))
        served.wait(lambda found: found["mlsys_num_requests_waiting"] == 1)
        waiting.close()
        served.wait(lambda found: found["mlsys_num_requests_waiting"] == 0)
    served.wait_until_idle()


def test_metrics_tell_what_was_done(served):
    before = served.wait_until_idle()
    assert served.complete(max_tokens=5, temperature=0)[0] == 200
    after = served.wait_until_idle()
    gain = {name: after[name] - before.get(name, 0) for name in after}
    assert gain["mlsys_generation_tokens_total"] == gain["mlsys_engine_steps"] == 5
    assert gain['mlsys_http_requests_total{handler="/v1/completions",status="200"}'] == 1
    assert gain["mlsys_time_to_first_token_seconds_count"] == 1
    assert gain['mlsys_inter_token_latency_seconds_bucket{le="+Inf"}'] == 4
    assert after["mlsys_num_kv_cache_blocks"] == 256 and gain["mlsys_engine_restarts_total"] == 0
