"""What a check is: one specification that runs both in a notebook and in the judge.

The sandboxed side calls `run`; the trusted side calls `inputs`, `expect` and `compare`. In a notebook both sides share
one process. In grading, `run` happens in a sandbox and only arrays cross between the sides. The sides are separate
modules, and only the first is in the sandbox, so that no submission can call the oracle:

    mlsys_checks/sandboxed/<topic>    every `run`: a plain function of a module, decorated or not
    mlsys_checks/trusted/<topic>      `inputs`, `expect`, `compare`, and LAB; these may import the sandboxed side
    a lab outside the package         LAB in one module, every `run` in another next to it (tiny_checks, tiny_calls)

A module of calls imports NumPy, torch, the standard library, `mlsys_lab.errors`, the shared modules of the sandboxed
side and modules of calls of its own lab, nothing else of the checks. It computes no expected value: it builds the
learner's objects from arrays, calls them, and turns what they return into arrays (`InputError` if that fails). What
only the submission's process can observe, such as the number of calls of a function, can be forged there: let the
arrays depend on it. Grading time is feedback time: a lab's checks, oracles included, take a second or two in total
(`expect` imports nothing slow at its first call), and hidden cases come last.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mlsys_checks.sandboxed.performance import Performance
from mlsys_lab.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import numpy as np  # listing the labs does not wait for it

Arrays = dict[str, "np.ndarray"]
"""Named arrays. One whose name begins with an underscore stays on the trusted side."""


@dataclass(frozen=True)
class Range:
    """Whole numbers from `low` to `high`, of which each seed draws one: in one draw of four an end, or one of `edges`.

    A case has ranges among its params where its sizes are to differ from seed to seed.
    """

    low: int
    high: int
    edges: tuple[int, ...] = ()

    def draw(self, rng: np.random.Generator) -> int:
        """Draw a number."""
        if rng.random() < 1 / 4:
            return int(rng.choice([self.low, self.high, *self.edges]))
        return int(rng.integers(self.low, self.high + 1))


@dataclass(frozen=True)
class Case:
    """One situation to try a learner's code in: its kind in words, and the sizes that make it up.

    A size is a number, or a `Range` of which each seed draws one before the check's `inputs` see the case.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    hidden: bool = False

    def draw(self, rng: np.random.Generator) -> Case:
        """The case with a number drawn for each of its ranges; itself, and nothing drawn, where it has none."""
        drawn = {name: size.draw(rng) for name, size in self.params.items() if isinstance(size, Range)}
        return replace(self, params={**self.params, **drawn}) if drawn else self


def draw_cases(params: Mapping[str, Any], *, public: int, hidden: int, **larger: Any) -> tuple[Case, ...]:
    """Cases of one generator that differ by what their seeds draw: public ones, then hidden ones.

    params: sizes of both, most of them ranges. larger: what hidden cases have in place of some of these.
    """
    shown = [Case(f"sizes drawn, {number}", params) for number in range(1, public + 1)]
    graded = [Case(f"larger sizes, {number}", {**params, **larger}, hidden=True) for number in range(1, hidden + 1)]
    return (*shown, *graded)


@dataclass(frozen=True)
class Mismatch:
    """Why an answer is rejected: what was wrong, got, expected. Holds no value of a hidden case's inputs.

    `is_form`: the answer's shape or type is wrong, and no hint is needed.
    """

    what: str
    got: str = ""
    expected: str = ""
    is_form: bool = field(default=False, kw_only=True)


Run = Callable[..., Arrays]
"""run(artifact, arrays) -> arrays, by calling the learner's code; `artifact` is the module of exported cells.

With several ranks: run(artifact, rank, arrays) on each rank, with a `mlsys_lab.comm.Rank`; with deferred inputs
run(artifact, rank, reveal, arrays). With a partner: run(artifact, query, arrays).
"""
Reveal = Callable[[int], float]
"""reveal(i) -> element i of a rank's deferred inputs."""
Query = Callable[[str, int], float]
"""query(what, value) -> the partner's reply; raises `InputError` if the partner refuses."""


@dataclass(frozen=True)
class Call:
    """What the sandboxed side knows of a check."""

    run: Run
    uses: tuple[str, ...] = ()
    time_limit_s: float = 10.0
    memory_bytes: int | None = None
    ranks: bool = False


def bind_partner(call: Call | Check, query: Query) -> Call:
    """Bind a check's partner, reached by `query`, so that the call takes an artifact and arrays."""
    return Call(
        lambda artifact, arrays: call.run(artifact, query, arrays), call.uses, call.time_limit_s, call.memory_bytes
    )


def call_name(run: Callable[..., Any]) -> str:
    """Name of a `run` for another process: "module:function"."""
    return f"{run.__module__}:{run.__name__}"


def find_call(name: str) -> Run:
    """Import the function that `call_name` named."""
    module, _, function = name.partition(":")
    run: Run = getattr(importlib.import_module(module), function)
    return run


@dataclass(frozen=True)
class Check:
    """Four small functions and a few numbers.

    inputs(rng, case)     -> arrays to feed (dtype and shape are part of the specification); `case` has no ranges left
    run(artifact, arrays) -> arrays, by calling the learner's code; `artifact` is the module of exported cells
    expect(arrays)        -> arrays, from an oracle that is independent of the course's own solution
    compare(got, expected) -> None when accepted, else the first `Mismatch`

    `snippet` is code for the same calls as `run`: inputs are its variables, or entries of `given` for other names;
    `mlsys_checks.trusted.snippet` writes them out. Learners see it when a public case fails, never for a hidden one.
    `describe(arrays)` writes all of the code if the inputs cannot be variables. `first_hint` says where to look, `hint`
    names the step; neither is the answer. A notebook shows `hint` from the second failed attempt on, grading shows
    `first_hint`; a check without one shows `hint` at once.

    `uses` names what the artifact must define. `memory_bytes` limits what `run` may allocate, on each rank by itself.
    `answer_bytes` limits the answer in grading: `compare` must handle that much in less than a second.
    `performance` adds points for speed, measured separately.

    If `traced`, the artifact is a module of the submission's kernels alone, in a process in which nothing else of it
    has run (`sandboxed.kernels.loading`), so that what `run` counts cannot be forged. `kernel_sources` names functions
    without arguments, each of which returns the source of a kernel in another language. For a traced check a separate
    process calls them, and the artifact's functions return those sources.

    If `ranks`, `run(artifact, rank, arrays)` is called on several ranks at once. Inputs of all ranks are joined by
    `mlsys_checks.sandboxed.ranks.join_ranks`; so are answers, with a log of what each rank posted, which
    `mlsys_checks.trusted.ledger` reads. A rank's input array `deferred` is withheld: the rank gets each element from
    `reveal(i)` alone, and the log says how many messages it had posted by then. A result that depends on the element
    can be sent only afterwards, whatever the rank claims about the order of its work.

    `partner(arrays)` makes, from all inputs of a case, a function that `run(artifact, query, arrays)` can query: a
    clock, for example, on which no submission may look ahead. In grading it stays with the judge.

    Raises `InputError` if `run` could not be called without its oracle at hand.
    """

    name: str
    title: str
    points: float
    cases: tuple[Case, ...]
    inputs: Callable[[np.random.Generator, Case], Arrays]
    run: Run
    expect: Callable[[Arrays], Arrays]
    compare: Callable[[Arrays, Arrays], Mismatch | None]
    hint: str
    uses: tuple[str, ...] = ()
    time_limit_s: float = 10.0
    memory_bytes: int | None = None
    answer_bytes: int = 4 << 20
    performance: Performance | None = None
    traced: bool = False
    kernel_sources: tuple[str, ...] = ()
    ranks: bool = False
    partner: Callable[[Arrays], Query] | None = None
    describe: Callable[[Arrays], str] | None = None
    snippet: str = ""
    first_hint: str = ""

    def __post_init__(self) -> None:
        if not any(not case.hidden for case in self.cases):
            raise InputError(f"check {self.name!r} has no public case", help="give it one that learners can see")
        if len({case.name for case in self.cases}) != len(self.cases):
            raise InputError(f"check {self.name!r} names a case twice")
        if self.points <= 0 or self.time_limit_s <= 0:
            raise InputError(f"check {self.name!r} needs positive points and time limit")
        if any(one.hidden and not following.hidden for one, following in pairwise(self.cases)):
            # Messages of public cases are shown, so no hidden case may run before one.
            raise InputError(
                f"check {self.name!r} has a public case after a hidden one", help="put the hidden ones last"
            )
        self._refuse_mixed_sides()

    @property
    def hints(self) -> tuple[str, ...]:
        """Hints, one step further after each failed attempt."""
        return (self.first_hint, self.hint) if self.first_hint else (self.hint,)

    @property
    def call(self) -> Call:
        """The sandboxed side of the check."""
        return Call(self.run, self.uses, self.time_limit_s, self.memory_bytes, self.ranks)

    def _refuse_mixed_sides(self) -> None:
        name = getattr(self.run, "__qualname__", repr(self.run))
        module = sys.modules.get(getattr(self.run, "__module__", None) or "")
        if module is None or getattr(module, name, None) is not self.run:
            expected = "a function at the top level of a module of calls"
            raise InputError(f"check {self.name!r}: `run` cannot be found by its name", got=name, expected=expected)
        for side in ("inputs", "expect", "compare"):
            decides = getattr(self, side)
            if decides.__module__ == module.__name__ or any(value is decides for value in vars(module).values()):
                raise InputError(
                    f"check {self.name!r}: `run` and `{side}` are in one module",
                    got=module.__name__,
                    help="move `run` to a module of calls, the only one that goes into the sandbox",
                )


@dataclass(frozen=True)
class Lab:
    """The checks of one lab, in the order of its tasks. `topic` is the name without the folder's number."""

    topic: str
    checks: tuple[Check, ...]

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        names = [check.name for check in self.checks]
        raise InputError(
            f"lab {self.topic!r} has no such check",
            got=repr(name),
            expected=f"one of {', '.join(names)}",
            help=did_you_mean(name, names),
        )

    @property
    def call_modules(self) -> tuple[str, ...]:
        """Modules that hold the checks' `run`s: what a sandbox needs of the lab, besides their imports."""
        timed = [check.performance for check in self.checks if check.performance is not None]
        sides = [*(check.run for check in self.checks), *(side for speed in timed for side in (speed.make, speed.call))]
        return tuple(sorted({side.__module__ for side in sides}))

    @property
    def points(self) -> float:
        return sum(check.points for check in self.checks)
