"""Right answers of earlier functions, handed to the learner's later ones: a slip costs the checks of its own task only.

They are inputs of a check, worked out by the trusted side, and hold for the check's own model and sizes. Asked for
anything else, a function answers for itself.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import decode_text, encode_text

GIVEN = "given"
Answers = Mapping[str, Mapping[tuple[Any, ...], Any]]
"""By a function's name and its arguments, defaults included and the configuration left out: what it returns."""


def write_answers(answers: Answers) -> np.ndarray:
    """Answers made of numbers, texts, tuples, lists and dictionaries as text that crosses; `read_answers` reads it."""
    listed = {name: [[asked, repr(answer)] for asked, answer in calls.items()] for name, calls in answers.items()}
    return encode_text(json.dumps(listed))


def read_answers(written: np.ndarray) -> dict[str, dict[tuple[Any, ...], str]]:
    """Answers out of the text that `write_answers` made, each as code: of many that may be asked for, few are."""
    listed = json.loads(decode_text(written))
    return {name: {_hashable(asked): answer for asked, answer in calls} for name, calls in listed.items()}


def call_with_given(call: Callable[[], Any], artifact: Any, arrays: Arrays, config: Any = None) -> Any:
    """What a call of the learner's code gives, with right answers handed to it as `hand_answers` does.

    Code may stop at them that runs on what the learner's own functions give, which may be more than was asked for: a
    named tuple, a Counter. So it is asked once more without them.
    """
    with hand_answers(artifact, arrays, config):
        try:
            return call()
        except Exception as error:
            stopped = error
    try:
        return call()
    except Exception:
        raise stopped from None


@contextmanager
def hand_answers(artifact: Any, arrays: Arrays, config: Any = None) -> Iterator[None]:
    """Let the artifact's functions that `arrays` holds answers of give these, where they are asked about `config`."""
    names, answers = vars(artifact), read_answers(arrays[GIVEN])
    own = {name: names[name] for name, given in answers.items() if given and name in names}
    names.update({name: _answering(function, answers[name], config) for name, function in own.items()})
    try:
        yield
    finally:
        names.update(own)


def _answering(own: Callable[..., Any], answers: Mapping[tuple[Any, ...], str], config: Any) -> Callable[..., Any]:
    length = len(next(iter(answers)))
    keys = {key: key for key in answers}
    signature = cache(partial(inspect.signature, own))

    def answer(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature().bind(*args, **kwargs)
            passed = len(bound.arguments)
            bound.apply_defaults()
            asked = tuple(_hashable(value) for value in bound.arguments.values())
            of_config = config is not None and asked[:1] == (config,)
            if of_config:
                asked = asked[1:]
            if passed - of_config <= length:  # a parameter of the learner's own, left as it is, asks for nothing else
                asked = asked[:length]
            if any(map(_is_float_of, asked, keys[asked])):
                raise KeyError(asked)
            return ast.literal_eval(answers[asked])
        except (KeyError, TypeError):  # asked about something else, or with other arguments than the lab's
            return own(*args, **kwargs)

    return answer


def _is_float_of(asked: Any, known: Any) -> bool:
    """Whether a whole number is asked for as a float, of which the learner's own function makes no whole number."""
    return isinstance(asked, float) and isinstance(known, int)


def _hashable(value: Any) -> Any:
    """Lists as tuples, at any depth: shapes may come as either."""
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value
