"""What a learner reads when their code, or a check's use of it, stops with an exception: typical slips, one by one."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest

from mlsys_checks.sandboxed.attempt import attempt
from mlsys_checks.sandboxed.spec import Call, Mismatch
from mlsys_lab.stack.artifact import Artifact, Cell
from mlsys_lab.stack.loading import load


def run(artifact: Any, arrays: Any) -> Any:
    total, parts = artifact.split(arrays["x"], 2)
    return {"total": np.array(total), "parts": np.array(parts)}


def problem(source: str, call: Any = run) -> Mismatch:
    """What stands in the way of the answer of a notebook with one exported cell."""
    module = load(Artifact("n.ipynb", (Cell(5, f"#| export\n{textwrap.dedent(source).strip()}"),)))
    outcome = attempt(Call(call), module, {"x": np.arange(4)})
    assert outcome.problem is not None
    return outcome.problem


@pytest.mark.parametrize(
    ("signature", "says"),
    [
        ("x", "split() takes 1 positional argument but 2 were given"),
        ("x, parts, dim", "split() missing 1 required positional argument: 'dim'"),
        ("x, *, parts", "split() takes 1 positional argument but 2"),
    ],
)
def test_other_parameters_than_the_tasks_are_told_with_the_definition_and_the_call(signature: str, says: str) -> None:
    found = problem(f"def split({signature}):\n    return x.sum(), []")
    assert found.what == "`split` does not take the arguments of the task"
    assert says in found.got and f"cell 5, line 2: `def split({signature}):`" in found.got.replace("5 (begins", "5,")
    assert found.expected == "parameters for `split(arrays['x'], 2)`" and found.is_form


def test_the_parameters_of_a_class_are_those_of_its_beginning() -> None:
    def run(artifact: Any, arrays: Any) -> Any:
        return artifact.Pool(4, block_size=2)

    found = problem("class Pool:\n    def __init__(self, blocks):\n        pass", run)
    assert found.what == "`Pool.__init__` does not take the arguments of the task"
    assert "unexpected keyword argument 'block_size'" in found.got and "line 3" in found.got
    assert found.expected == "parameters for `Pool(4, block_size=2)`"


def test_a_method_is_found_at_the_object_that_has_it() -> None:
    def run(artifact: Any, arrays: Any) -> Any:
        pool = artifact.Pool()
        return pool.take(1)

    found = problem("class Pool:\n    def take(self):\n        return 1", run)
    assert (found.what, found.expected) == (
        "`Pool.take` does not take the arguments of the task",
        "parameters for `pool.take(1)`",
    )


@pytest.mark.parametrize("answer", ["None", "x.sum()", "(1, 2, 3)"])
def test_an_answer_that_cannot_be_taken_apart_is_told_with_the_exception(answer: str) -> None:
    found = problem(f"def split(x, parts): return {answer}")
    assert found.what == "the check could not go on with what your code defines or gives back"
    assert "unpack" in found.got


def test_what_the_check_wanted_of_an_object_is_shown() -> None:
    def run(artifact: Any, arrays: Any) -> Any:
        return {"free": np.array(artifact.make().free)}

    found = problem("def make(): pass", run)
    assert found.got == "AttributeError: 'NoneType' object has no attribute 'free', in the check's `make().free`"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("return x[len(x) / 2]", "IndexError: only integers"),
        ("return reslut", "NameError: name 'reslut' is not defined"),
        ("a, b = None", "TypeError: cannot unpack non-iterable NoneType object"),
        ("return x @ np.ones((3, 3))", "NameError: name 'np' is not defined"),
        ("return x.reshape(3)", "ValueError: cannot reshape array"),
        ("return [1, 2].shape", "AttributeError: 'list' object has no attribute 'shape'"),
        ("return split(x)", "TypeError: split() missing 1 required positional argument: 'parts'"),
    ],
)
def test_a_line_that_stops_is_shown_with_the_call_that_led_to_it(line: str, says: str) -> None:
    found = problem(f"def split(x, parts):\n    {line}")
    assert found.what == "your code stopped with an exception"
    assert found.got.startswith(says) and found.got.endswith(f", line 3: `{line}`")
    assert found.expected == "an answer to `split(arrays['x'], 2)`" and not found.is_form


def test_nothing_of_the_learners_runs_while_an_exception_is_put_into_words() -> None:
    asked: list[int] = []

    def run(artifact: Any, arrays: Any) -> Any:
        artifact.Trap.asked = asked
        return artifact.Trap().door(1, 2)

    source = """
    class Trap:
        @property
        def door(self):
            self.asked.append(1)
            return lambda x: x
    """
    assert problem(source, run).got.endswith(", in the check's `Trap().door(1, 2)`")
    assert asked == [1]


def test_a_function_that_the_check_asks_for_by_name_is_shown_by_it() -> None:
    def run(artifact: Any, arrays: Any) -> Any:
        name = "split"
        return getattr(artifact, name)(arrays["x"])

    found = problem("def split(x, parts): pass", run)
    assert found.what == "`split` does not take the arguments of the task"
    assert found.expected == "parameters for `split(arrays['x'])`"


def test_the_checks_own_dealings_with_the_artifact_are_not_shown() -> None:
    def run(artifact: Any, arrays: Any) -> Any:
        return vars(artifact)["split"](1)

    assert problem("def split(x):\n    return 1 / 0", run).expected == "an answer"
    assert problem("def split(): pass", run).got == "TypeError: split() takes 0 positional arguments but 1 was given"


def test_a_long_call_is_told_by_its_beginning() -> None:
    def run(artifact: Any, arrays: Any) -> Any:
        return artifact.split(
            "a word of a check's", "a word of a check's", "a word of a check's", *["and many more of them"] * 30
        )

    said = problem("def split(): pass", run).expected
    assert said.startswith('parameters for `split("a word') and said.endswith(" …`") and len(said) < 150
