"""`mlsys-lab simulate-serving`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mlsys_lab.inference.simulator import Arrival, write_trace

Call = Callable[..., tuple[int, str, str]]
ASKED = ("simulate-serving", "llama3-8b", "--requests", "60", "--prompt", "200", "--answer", "8")


def test_both_arrangements_are_shown_at_each_rate(call: Call, tmp_path: Path) -> None:
    pools = ("--rate", "5", "50", "--replicas", "2", "--readers", "1")
    code, out, err = call(*ASKED, *pools, "--plot", str(tmp_path / "page.html"))
    assert (code, err) == (0, "")
    runs = json.loads(call(*ASKED, *pools, "--json")[1])["runs"]
    assert [(one["load"], one["arrangement"]) for one in runs] == [
        (5, "mixed"), (5, "1 + 1"), (50, "mixed"), (50, "1 + 1"),
    ]  # fmt: skip
    for row, one in zip(out.splitlines()[5:], runs, strict=True):
        assert row.lstrip().startswith(f"{one['load']:g}/s") and one["arrangement"] in row
        for name in ("ttft_s", "tpot_s", "itl_s"):
            assert "/".join(f"{1e3 * one[name][percent]:.3g}" for percent in ("50", "95", "99")) in row
    page = (tmp_path / "page.html").read_text()
    assert "TTFT, 1 + 1" in page and '<script src="http' not in page


def test_eighty_columns_show_the_load_and_every_figure(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = call(*ASKED, "--rate", "5", "50")[1].splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in "".join(lines)
    assert lines[0].endswith("1 replica, 1 × H100") and lines[5].lstrip().startswith("5/s")
    assert "…" not in call(*ASKED, "--rate", "5", "--replicas", "2", "--readers", "1")[1]


def test_a_trace_and_bursts_are_served(call: Call, tmp_path: Path) -> None:
    write_trace(tmp_path / "two.jsonl", [Arrival(0.0, (1, 2), 1), Arrival(1.0, (3,), 1)])
    (one,) = json.loads(call(*ASKED, "--trace", str(tmp_path / "two.jsonl"), "--json")[1])["runs"]
    assert (one["load"], one["requests"], one["tpot_s"]) == ("two.jsonl", 2, {})
    spread, together = (
        json.loads(call(*ASKED, "--rate", "5", "--burst", size, "--json")[1])["runs"][0] for size in ("1", "12")
    )
    assert together["ttft_s"]["95"] > 2 * spread["ttft_s"]["95"]


def test_mistakes_are_one_line(call: Call) -> None:
    for options, words in (
        (
            ("--rate", "5", "--readers", "1"),
            "--readers out of range: got 1, expected at least 1, fewer than the 1 replicas",
        ),
        (("--trace", "t", "--plot", "p"), "a trace has no rates to plot"),
        (("--rate", "inf"), "rate must be finite: got inf"),
        (("--rate", "nan"), "rate must be positive: got nan"),
        (("--rate", "5", "--prompt", "1e9"), "requests longer than the context: got 1e+09 + 8 tokens"),
        (("--rate", "5", "--requests", "1000000000"), "length of the run out of range: got 1000000000 requests"),
        (
            ("--rate", "5", "--burst", "1000000000"),
            "length of the run out of range: got 60 requests, 1000000000 at once",
        ),
        (("--rate", "5", "--weights", "fp32", "--device", "T4"), "llama3-8b fits on no replica: got 1 devices of"),
        (("--rate", "5", "--replicas", "0"), "--replicas out of range: got 0, expected 1 to 4096"),
        (("--rate", "5", "--replicas", "1000000000"), "--replicas out of range: got 1000000000"),
    ):
        code, out, err = call(*ASKED, *options)
        assert (code, out) == (1, "") and words in err and len(err.splitlines()) == 1


def test_goodput_is_that_of_the_steady_state(call: Call) -> None:
    """About 210 requests a second are what compute allows: 150 are served as they come, of 400 sooner or later none."""
    code, out, err = call(*ASKED, "--rate", "150", "400")
    assert (code, err) == (0, "") and "overloaded at 400/s, mixed: the queue grows" in out
    served, lost = json.loads(call(*ASKED, "--rate", "150", "400", "--json")[1])["runs"]
    assert not served["overloaded"] and served["slo_attainment"] > 0.95 and 0.5 < served["utilisation"] < 1
    assert served["goodput"] == pytest.approx(150 * served["slo_attainment"])
    assert lost["overloaded"] and lost["slo_attainment"] == lost["goodput"] == 0 and lost["utilisation"] > 1
