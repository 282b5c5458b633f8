"""Submissions to be judged: the tiny lab's, with tasks as a test gives them."""

import json

import pytest

from mlsys_grader.intake.submission import read_submission
from mlsys_grader.judging.judge import judge


@pytest.fixture
def artifact(tmp_path, tiny, hand_in):
    """The artifact of a submission whose tasks are as given."""

    def of(**tasks):
        path = tmp_path / "01-tiny.ipynb"
        path.write_text(json.dumps(hand_in(**tasks)))
        return read_submission(path, tiny).artifact

    return of


@pytest.fixture
def verdicts(artifact, sandbox, oracles):
    """Judge a submission whose tasks are as given; verdicts by check."""

    def of(seeds=None, **tasks):
        return {v.check: v for v in judge(artifact(**tasks), sandbox, oracles, seeds=seeds)}

    return of
