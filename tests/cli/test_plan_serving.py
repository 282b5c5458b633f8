"""`mlsys-lab plan-serving`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from mlsys_lab.inference.simulator import LineClock
from mlsys_lab.inference.simulator.clock import save_clock

Call = Callable[..., tuple[int, str, str]]
ASKED = ("llama3-8b", "--rate", "4", "--prompt", "300", "--answer", "20", "--node", "2", "--slo-ttft", "0.5")


def test_the_table_says_what_is_needed_and_what_binds(call: Call) -> None:
    code, out, err = call("plan-serving", *ASKED, "--price", "2.5")
    assert (code, err) == (0, "")
    plans = json.loads(call("plan-serving", *ASKED, "--price", "2.5", "--json")[1])["plans"]
    assert [one["tensor"] for one in plans] == [1, 2] and [one["devices"] for one in plans] == [1, 2]
    rows = out.splitlines()[4:6]
    for row, one in zip(rows, plans, strict=True):
        assert row.split()[:3] == [str(one[name]) for name in ("tensor", "replicas", "devices")]
        assert (
            f"{one['replica']['ttft_s']['95'] * 1e3:.3g} ms" in row and f"{one['replica']['slo_attainment']:.1%}" in row
        )
        assert f"{one['cost_per_million_tokens']:.3g}" in row
        share = max(one["utilisation"].values())
        assert 0.005 < share <= 1 and f" {share:.0%}" in row
    assert "1 device as 1: steps are bound by memory bandwidth" in out.splitlines()[-1]
    assert "cost" not in call("plan-serving", *ASKED)[1]


def test_a_measured_clock_takes_the_place_of_devices(call: Call, tmp_path: Path) -> None:
    clock = tmp_path / "clock.json"
    save_clock(LineClock(4e-3, 1e-4, 4e-8, 3e-4), clock)
    asked = (*ASKED, "--clock", str(clock), "--blocks", "150", "512", "--sequences", "4")
    code, out, err = call("plan-serving", *asked)
    assert (code, err) == (0, "")
    plans = json.loads(call("plan-serving", *asked, "--json")[1])["plans"]
    assert len(plans) == 6 and {one["cache_blocks"] for one in plans} == {150, 512}
    for row, one in zip(out.splitlines()[4:10], plans, strict=True):
        assert row.split()[:3] == [str(one[name]) for name in ("cache_blocks", "replicas", "max_num_seqs")]
    best = plans[0]
    words = f"{best['replicas']} replica{'s' * (best['replicas'] > 1)} with --blocks {best['cache_blocks']} --sequences"
    assert f"{words} {best['max_num_seqs']}" in out.splitlines()[-1]
    for options, words in (
        (("--clock", str(clock)), "--clock and --blocks go together"),
        (("--clock", str(clock), "--blocks", "0"), "blocks must be at least 1: got 0"),
        (("--clock", str(clock), "--blocks", "2"), "the longest request does not fit into the cache"),
        (("--clock", str(clock), "--blocks", "99", "--expert", "2"), "a clock is of replicas without expert"),
        (("--clock", str(tmp_path), "--blocks", "99"), "cannot be read"),
    ):
        code, out, err = call("plan-serving", *ASKED, *options)
        assert (code, out) == (1, "") and words in err and len(err.splitlines()) == 1


def test_an_objective_out_of_reach(call: Call) -> None:
    code, out, err = call("plan-serving", *ASKED, "--slo-tpot", "0.0001", "--node", "1")
    assert (code, err) == (0, "") and "–" in out
    assert "no number of replicas keeps the objective: time per token is missed" in out.splitlines()[-1]


def test_mistakes_are_one_line(call: Call) -> None:
    for options, words in (
        (("llama3-8b", "--rate", "0"), "rate must be positive: got 0.0"),
        (("llama3-8b", "--rate", "inf"), "rate must be finite: got inf"),
        (("llama3-8b", "--rate", "1e12"), "the load is too large: got 1e+12 requests/s, expected at most 1,"),
        (("llama3-8b", "--rate", "1", "--prompt", "1e9"), "longer than the context: got 1e+09 + 120 tokens"),
        (("llama3-8b", "--rate", "1", "--prompt", "8100"), "got 8100 + 120 tokens, expected up to 8192 (llama3-8b)"),
        (("llama3-8b", "--rate", "1", "--slo-ttft", "-1"), "ttft_s must be positive: got -1.0"),
        (("llama3-8b", "--rate", "1", "--prompt", "0"), "prompt must be at least 1: got 0.0"),
        (("llama3-8b", "--rate", "1", "--price", "-1"), "a price cannot be so: got -1.0"),
        (("llama3-8b", "--rate", "1", "--step-tokens", "9"), "max_num_batched_tokens: got 9, expected at least 256"),
        (("llama3-405b", "--rate", "1"), "llama3-405b and the longest request fit on no replica"),
    ):
        code, out, err = call("plan-serving", *options)
        assert (code, out) == (1, "") and words in err and len(err.splitlines()) == 1
