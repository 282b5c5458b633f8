from __future__ import annotations

import json

import pytest

from mlsys_lab.cli import main


def test_the_table_of_nccl_tests(capsys):
    assert main(["bench-collectives", "--ranks", "3", "--algorithms", "ring,naive", "--max-bytes", "8192"]) == 0
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert title == "# all_reduce of float32 on 3 ranks, backend threads"
    assert head.split() == ["algorithm", "size", "(B)", "time", "(us)", "algbw", "(GB/s)", "busbw", "(GB/s)", "#wrong"]
    assert [row.split()[:2] for row in rows] == [
        ["ring", "1020"],
        ["ring", "8196"],
        ["naive", "1020"],
        ["naive", "8196"],
    ]
    assert {row.split()[-1] for row in rows} == {"0"}


def test_json(capsys):
    assert main(["bench-collectives", "--collective", "broadcast", "--max-bytes", "1024", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["algorithm"] for row in rows] == ["linear", "tree", "chain"]
    for row in rows:
        assert row["bus_bytes_per_s"] == pytest.approx(row["size_bytes"] / row["time_s"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--factor", "1"], "by --factor, at least 2: got 1024 to 1048576 by 1"),
        (["--min-bytes", "4", "--max-bytes", "2"], "got 4 to 2 by 8"),
        (["--backend", "glo"], "backend: got glo, expected threads or gloo or nccl; help: did you mean 'gloo'?"),
        (["--ranks", "1"], "needs two ranks"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, text):
    assert main(["bench-collectives", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and text in err


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_sizes_that_are_rounded_are_said(capsys, more):
    sizes = ["--min-bytes", "1000", "--max-bytes", "8000", "--algorithms", "ring"]
    assert main(["bench-collectives", "--ranks", "3", *sizes, *more]) == 0
    said = capsys.readouterr().err
    assert said == "sizes rounded to whole elements on each of 3 ranks, in bytes: 1000 -> 996, 8000 -> 8004\n"
    assert main(["bench-collectives", "--ranks", "2", *sizes, *more]) == 0
    assert capsys.readouterr().err == ""
