"""Kill rate of a lab's machine-made mutants, and the mutants that survived."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from mlsys_checks.sandboxed.spec import Lab
from mlsys_grader.proving.mutation.mutants import find_mutants
from mlsys_grader.proving.mutation.run import DRAWS, Outcome, judge_mutants, sample_mutants
from mlsys_grader.proving.variants import VariantsOf


@dataclass(frozen=True)
class Tally:
    """Outcomes of mutants, and the seconds that judging took."""

    outcomes: tuple[Outcome, ...]
    time_s: float

    @property
    def killed(self) -> int:
        """Number of mutants that a check failed."""
        return sum(bool(one.killed_by) for one in self.outcomes)

    @property
    def kill_rate(self) -> float:
        """Fraction of all mutants that were killed. Mutants that are right after all count as survivors."""
        return self.killed / len(self.outcomes)

    @property
    def survived(self) -> tuple[Outcome, ...]:
        """Mutants that passed all checks."""
        return tuple(one for one in self.outcomes if one.survived_seed is not None)

    @property
    def errors(self) -> tuple[Outcome, ...]:
        """Mutants on which a check broke down itself."""
        return tuple(one for one in self.outcomes if one.error)

    @property
    def lines(self) -> list[str]:
        """A line for each survivor, and for each mutant that could not be judged."""
        lines = [f"survived with seed {one.survived_seed}: {one.mutant.name}" for one in self.survived]
        return lines + [f"NOT JUDGED, {one.error}: {one.mutant.name}" for one in self.errors]

    @property
    def summary(self) -> str:
        """The kill rate and the counts, in one line."""
        counts = {"killed": self.killed, "survived": len(self.survived), "not judged": len(self.errors)}
        counted = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number or what != "not judged")
        return f"kill rate {self.kill_rate:.1%}: {counted} of {len(self.outcomes):,} mutants in {self.time_s:.0f} s"


def tally_mutations(
    variants: VariantsOf,
    lab: Lab,
    *,
    sample: int | None,
    seed: int,
    draws: int = DRAWS,
    workers: int = 1,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Tally:
    """Judge a lab's mutants, or a sample of them; `report(done, total)` is called after each."""
    start, outcomes = time.monotonic(), list[Outcome]()
    chosen = sample_mutants(list(find_mutants(variants, lab)), sample, seed)
    for outcome in judge_mutants(lab, chosen, seed=seed, draws=draws, workers=workers):
        outcomes.append(outcome)
        report(len(outcomes), len(chosen))
    return Tally(tuple(outcomes), time.monotonic() - start)
