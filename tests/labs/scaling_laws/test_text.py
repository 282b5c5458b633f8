"""Claims in the text of lab 06."""

from __future__ import annotations

from mlsys_lab.scaling.runs import PLAN, tokens_for
from mlsys_lab.scaling.text import read_corpus


def test_the_longer_runs_read_the_text_several_times() -> None:
    corpus = read_corpus()
    longest = max(tokens_for(size, flops, corpus) for flops, sizes in PLAN.items() for size in sizes)
    assert longest > 2 * len(corpus.train)
