"""The deciding side of a lab's checks: secret inputs, what is expected for them, and the comparison.

All of it is the course's own code and none of it has ever seen a submission, so it may run beside the sandbox at work.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from types import TracebackType
from typing import TypeVar

from mlsys_lab.checks.deciding.verdict import draw_inputs
from mlsys_lab.checks.learner.spec import Arrays, Case, Check, Lab, Mismatch

T = TypeVar("T")


class Fault(Exception):
    """A check's own code raised while it drew inputs, computed what is expected, or compared."""


def draw_seed(check: Check, public_seed: int) -> int:
    """Draw a seed that nobody can foresee: 128 bits from the operating system, hashed with the public seed."""
    drawn = secrets.token_bytes(16)
    return int.from_bytes(hashlib.sha256(f"{check.name}/{public_seed}/".encode() + drawn).digest()[:8], "little")


class Oracle:
    """Draws inputs and computes what is expected in a thread, so that it costs no time while the sandbox works.

    It answers for every check with the seed given for it; what is wrong with a check itself comes out as `Fault`.
    """

    def __init__(self, seeds: Mapping[str, int]) -> None:
        self.seeds = seeds
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="oracle")
        self._drawn: dict[tuple[str, str], Future[Arrays]] = {}

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def draw_ahead(self, check: Check, case: Case) -> None:
        """Begin to draw the inputs of a case that will probably be next."""
        if (check.name, case.name) not in self._drawn:
            future = self._pool.submit(draw_inputs, check, case, self.seeds[check.name])
            self._drawn[check.name, case.name] = future

    def inputs(self, check: Check, case: Case) -> Arrays:
        """Inputs of a case, those that never leave the judge included."""
        self.draw_ahead(check, case)
        return _guarded(check, self._drawn.pop((check.name, case.name)).result)

    def expect_ahead(self, check: Check, inputs: Arrays) -> Future[Arrays]:
        """Begin to compute what is expected; `inputs` must not be read by anybody else from now on."""
        return self._pool.submit(check.expect, inputs)

    def compare(self, check: Check, got: Arrays, expected: Future[Arrays]) -> Mismatch | None:
        """Compare an answer with what was expected: None when it is accepted, else what is wrong with it."""
        return compare(check, got, _guarded(check, expected.result))

    def random_seed(self, check: Check, case: Case) -> int:
        """What the submission's own random numbers start from: the same in a replay, no way back to the secret seed."""
        text = f"{check.name}/{case.name}/{self.seeds[check.name]}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def compare(check: Check, got: Arrays, expected: Arrays) -> Mismatch | None:
    """Compare an answer; arrays over which the comparison stumbles come from no honest `run`: not accepted."""
    try:
        return check.compare(got, expected)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return Mismatch("the answer cannot be compared", said, "the arrays that the check asks for")


def warm_up(lab: Lab, *, stop: Event) -> None:
    """Draw and answer the first case of each check, because oracles import much at their first use; until `stop`.

    Checks with a memory budget are left out: their arrays are large. A check that fails here will tell when it is
    asked.
    """
    import torch

    torch.set_num_threads(1)  # oracles of several submissions run at a time
    for check in lab.checks:
        if check.memory_bytes is None and not stop.is_set():
            with contextlib.suppress(Exception):
                check.expect(draw_inputs(check, check.cases[0], seed=0))


def _guarded(check: Check, call: Callable[..., T], *arguments: object) -> T:
    try:
        return call(*arguments)
    except Exception as error:
        raise Fault(f"check {check.name!r} itself failed: {type(error).__name__}: {error}") from error
