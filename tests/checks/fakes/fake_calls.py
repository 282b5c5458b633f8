"""How the fake lab's checks call the learner's code."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays


def add_one(artifact: Any, arrays: Arrays) -> Arrays:
    return {"y": np.asarray(artifact.add_one(arrays["x"]))}


def twice(artifact: Any, arrays: Arrays) -> Arrays:
    return {"y": np.asarray(artifact.twice(arrays["x"]))}


def all_of_it(artifact: Any, arrays: Arrays) -> Arrays:
    answer: Arrays = artifact.answer(arrays)
    return answer
