"""A short run of the fuzzer; `make fuzz` is the long one, once a week, with other examples each time."""

import pytest

from tests.grader.fuzz import corpus
from tests.grader.fuzz.run import TARGETS, fuzz

EXAMPLES = 40


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_that_comes_in_crashes_hangs_or_floods(name, tiny, tmp_path):
    fuzz(name, tiny, tmp_path, examples=EXAMPLES, database=None)


@pytest.mark.parametrize("name", TARGETS)
def test_the_seed_corpus(name, tiny, tmp_path):
    seeds = corpus.seeds(tiny)[name]
    assert len(seeds) >= 8
    for number, data in enumerate(seeds):
        folder = tmp_path / str(number)
        folder.mkdir()
        TARGETS[name](data, folder, tiny)
