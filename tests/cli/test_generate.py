"""Text from the small model: as it comes, repeated by its seed, with a line on its speed; bad input in one line."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys

import pytest

from mlsys_lab.cli import main
from tests.cli.test_shell import ROOT, command, environment
from tests.cli.test_shell import run as run_in_shell

LINE = re.compile(
    r"(\d+) tokens(?:; (\d\.\d\d) tokens a step, acceptance rate (\d+)%)?; first token after \d+ ms"
    r"(?:, then (?P<speed>[\d.]+) tokens/s)?; a token moves (?P<moved>[\d.]+) MB, at least (?P<least>[\d.]+) ms"
    r" at the 10.0 GB/s that this machine copies at(?:: (?P<share>[\d.]+)% of the bound)?\n"
)


@pytest.fixture(autouse=True)
def bandwidth(monkeypatch):
    """Measuring how fast this machine copies takes seconds, and is tested where it is done."""
    monkeypatch.setattr("mlsys_lab.hardware.measure_copy_bandwidth", lambda: 1e10)


def test_text_goes_to_standard_output_and_its_speed_to_standard_error(call):
    code, out, err = call("generate", "--prompt", "The memory", "--max-tokens", "12", "--seed", "1")
    assert code == 0 and out.startswith("The memory") and out.endswith("\n") and len(out) > 15
    found = LINE.fullmatch(err)
    assert found and found[1] == "12" and found[2] is None
    assert 3.6 < float(found["moved"]) < 3.8
    assert call("generate", "--prompt", "The memory", "--max-tokens", "12", "--seed", "1")[1] == out
    assert call("generate", "--prompt", "The memory", "--max-tokens", "12", "--seed", "2")[1] != out


def test_the_share_is_the_least_time_over_the_time_taken(call):
    found = LINE.fullmatch(call("generate", "--prompt", "The memory", "--max-tokens", "40", "--seed", "1")[2])
    assert found
    speed, moved, least, share = (float(found[name]) for name in ("speed", "moved", "least", "share"))
    assert least == pytest.approx(moved * 1e6 / 1e10 * 1e3, abs=1e-3)
    assert share == pytest.approx(100 * least / 1e3 * speed, rel=0.02, abs=0.06)


def test_drafts_change_nothing_of_a_greedy_text(call):
    greedy = ("generate", "--prompt", "A kernel", "--temperature", "0", "--max-tokens", "20")
    plain, drafted = call(*greedy), call(*greedy, "--speculative")
    assert plain[1] == drafted[1] == call(*greedy, "--seed", "1")[1]
    found = LINE.fullmatch(drafted[2])
    assert found and float(found[2]) >= 1 and float(found["moved"]) < 3.8 + 4 * 0.5


def test_four_bits_move_fewer_bytes(call):
    ask = ("generate", "--prompt", "A kernel", "--max-tokens", "5", "--top-p", "0.9")
    plain, packed = (LINE.fullmatch(call(*ask, *more)[2]) for more in ((), ("--int4",)))
    assert plain and packed and float(packed["moved"]) < 0.35 * float(plain["moved"])


def test_an_answer_comes_without_its_question(call):
    code, out, err = call("generate", "--prompt", "What is bandwidth?", "--chat", "--temperature", "0")
    assert code == 0 and "What is bandwidth?" not in out and len(out) > 10 and LINE.fullmatch(err)


def test_one_token_has_no_speed(call):
    err = call("generate", "--prompt", "A", "--max-tokens", "1")[2]
    assert LINE.fullmatch(err) and "tokens/s" not in err and "of the bound" not in err


def test_text_comes_piece_by_piece(monkeypatch):
    class Output(io.StringIO):
        def flush(self):
            lengths.append(len(self.getvalue()))

    lengths: list[int] = []
    written = Output()
    monkeypatch.setattr(sys, "stdout", written)
    assert main(["generate", "--prompt", "A kernel", "--max-tokens", "8", "--seed", "3"]) == 0
    assert lengths[0] == len("A kernel") and len(set(lengths)) > 6
    assert written.getvalue().endswith("\n")


@pytest.mark.parametrize(
    ("given", "said", "code"),
    [
        (["--prompt", ""], "the prompt is empty: expected text to continue", 1),
        (["--prompt", "", "--chat"], "the prompt is empty: expected text to continue", 1),
        (["--prompt", "one two " * 600], "the prompt leaves no room in the context: got", 1),
        (["--prompt", "a", "--max-tokens", "600"], "prompt and max_tokens outgrow the context: got 2 + 600 tokens", 1),
        (["--prompt", "a", "--max-tokens", "0"], "max_tokens out of range: got 0", 1),
        (["--prompt", "a", "--temperature", "0", "--top-p", "0.5"], "temperature 0 always takes the likeliest", 1),
        (["--prompt", "a", "--temperature", "-1"], "temperature out of range: got -1.0", 1),
        (["--prompt", "a", "--top-p", "2"], "top_p out of range: got 2.0", 1),
        (["--prompt", "a\udcff"], "the text holds half a character: got '\\udcff'", 1),
        (["--prompt", "a", "--max-tokens", "many"], "got 'many', expected a whole number", 2),
        ([], "missing option '--prompt'", 2),
    ],
)
def test_bad_input_is_one_line(call, given, said, code):
    got, out, err = call("generate", *given)
    assert (got, out) == (code, "") and err.startswith("mlsys-lab: ") and said in err
    assert err.count("\n") == 1


def test_a_reader_that_has_seen_enough():
    assert run_in_shell(command("mlsys-lab"), "generate --prompt A --max-tokens 30", "| true") == (141, "", "")


def test_an_interrupt_is_one_line_after_the_text():
    started = subprocess.Popen(
        [sys.executable, "-c", command("mlsys-lab"), "generate", "--prompt", "The memory", "--max-tokens", "500"],
        cwd=ROOT,
        env=environment() | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    first = started.stdout.read(10)
    os.kill(started.pid, signal.SIGINT)
    out, err = started.communicate()
    assert first == "The memory" and out.endswith("\n")
    assert (started.returncode, err) == (130, "mlsys-lab: stopped\n")
