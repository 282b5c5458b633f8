"""Lend a learner's later functions right earlier ones, so that a mistake in one costs points once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

_lock = Lock()
_loans: dict[int, tuple[int, dict[str, Any]]] = {}
"""By namespace: number of open loans, and the learner's own definitions."""


@contextmanager
def lend(artifact: Any, **stand_ins: Any) -> Iterator[None]:
    """Replace the artifact's definitions of these names in the block. Ranks on threads share one loan.

    What is lent can be imported by a submission. So it is right where it is lent, but fails the check of its own name.
    """
    namespace = vars(artifact)
    with _lock:
        count, own = _loans.get(id(namespace), (0, {}))
        if count == 0:
            own = {name: namespace[name] for name in stand_ins if name in namespace}
            namespace.update(stand_ins)
        _loans[id(namespace)] = count + 1, own
    try:
        yield
    finally:
        with _lock:
            count, own = _loans.pop(id(namespace))
            if count > 1:
                _loans[id(namespace)] = count - 1, own
            else:
                for name in stand_ins:
                    namespace.pop(name, None)
                namespace.update(own)
