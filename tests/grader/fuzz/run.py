"""Run the fuzzer: `python -m tests.grader.fuzz.run MINUTES`, or with few examples from the tests.

What broke something is kept below .hypothesis/fuzz and tried first the next time.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.release.build import release
from mlsys_lab.stack.labinfo import find_lab
from tests.grader.fuzz import corpus, strategies, targets

TARGETS: dict[str, Callable] = {
    "frames": lambda data, folder, lab: targets.frames(data),
    "submission": targets.submission,
    "archive": lambda data, folder, lab: targets.archive(data, folder),
    "record": lambda data, folder, lab: targets.record(data, folder),
}
KEPT = Path(".hypothesis") / "fuzz"
PROJECT = Path(__file__).parents[3]


def examples_of(name, lab):
    """The strategy of a target: its own, its seeds damaged, or its seeds as they are."""
    seeds = corpus.seeds(lab)[name]
    own = {
        "frames": strategies.frame_bytes(),
        "submission": strategies.replaced(corpus.notebook(lab)),
        "archive": strategies.zip_bytes(),
        "record": strategies.replaced(corpus.record()),
    }[name]
    return own | st.sampled_from(seeds).flatmap(strategies.mutated) | own


def fuzz(name, lab, scratch, *, examples, database):
    """Try a target; without a database for what breaks it, always on the same examples. Raises what broke it."""
    numbers = count()

    @settings(
        max_examples=examples,
        deadline=None,
        database=database,
        derandomize=database is None,
        phases=[phase for phase in Phase if phase is not Phase.explain],
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(data=examples_of(name, lab))
    def attempt(data):
        folder = scratch / f"{name}-{next(numbers)}"
        folder.mkdir()
        TARGETS[name](data, folder, lab)

    attempt()


def main() -> None:
    """One target after the other until the time is up; stops at the first that breaks."""
    end = time.monotonic() + 60 * float(sys.argv[1])
    sys.path.insert(0, str(PROJECT / "tests" / "grader" / "fixtures" / "checks"))
    database = DirectoryBasedExampleDatabase(KEPT)
    rounds = {name: 0 for name in TARGETS}
    with tempfile.TemporaryDirectory() as labs:
        release(PROJECT / "tests/grader/fixtures/solutions/01-tiny", PROJECT / "pyproject.toml").write(Path(labs))
        lab = GradedLab(find_lab("tiny", Path(labs)))
        for name in cycle(TARGETS):
            if time.monotonic() > end:
                break
            with tempfile.TemporaryDirectory() as scratch:
                fuzz(name, lab, Path(scratch), examples=500, database=database)
            rounds[name] += 1
            print(", ".join(f"{target}: {500 * done} examples" for target, done in rounds.items()), flush=True)


if __name__ == "__main__":
    main()
