"""What became of a lab's machine-made mistakes: how many were killed, are right after all, or survived."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from mlsys_checks.sandboxed.spec import Lab
from mlsys_grader.proving.mutation.equivalent import FEWEST, Reasons, read_equivalent
from mlsys_grader.proving.mutation.mutants import find_mutants
from mlsys_grader.proving.mutation.run import DRAWS, Outcome, judge_mutants, sample_mutants
from mlsys_grader.proving.variants import VariantsOf


@dataclass(frozen=True)
class Tally:
    """Outcomes of mutants, the reasons of those that are right after all, and the seconds that judging took."""

    outcomes: tuple[Outcome, ...]
    reasons: Reasons
    time_s: float

    @property
    def killed(self) -> tuple[Outcome, ...]:
        """Mutants that a check failed."""
        return tuple(one for one in self.outcomes if one.killed_by)

    @property
    def errors(self) -> tuple[Outcome, ...]:
        """Mutants on which a check broke down itself."""
        return tuple(one for one in self.outcomes if one.error)

    @property
    def survived(self) -> tuple[Outcome, ...]:
        """Mutants that passed all checks and have no reason."""
        passed = (one for one in self.outcomes if one.survived_seed is not None)
        return tuple(one for one in passed if not self.reasons.excuse(one.mutant))

    @property
    def refuted(self) -> tuple[Outcome, ...]:
        """Mutants that are said to be right, and were killed."""
        return tuple(one for one in self.killed if one.mutant.name in self.reasons.mutants)

    @property
    def loose(self) -> tuple[str, ...]:
        """Families half of which were killed, of those of which enough was judged: no one reason holds for them."""
        judged: dict[str | None, list[Outcome]] = {}
        for one in self.outcomes:
            judged.setdefault(self.reasons.family_of(one.mutant), []).append(one)
        enough = {family: found for family, found in judged.items() if family and len(found) >= FEWEST}
        return tuple(
            family for family, found in enough.items() if 2 * sum(one.killed_by > "" for one in found) >= len(found)
        )

    @property
    def holds(self) -> bool:
        """Whether every mutant was killed or has a reason, and not both."""
        return not (self.survived or self.refuted or self.loose or self.errors)

    @property
    def lines(self) -> list[str]:
        """A line for each mutant that came out as it should not."""
        told = [f"SURVIVED with seed {one.survived_seed}: {one.mutant.name}" for one in self.survived]
        told += [f"NOT EQUIVALENT, {one.killed_by} fails it: {one.mutant.name}" for one in self.refuted]
        told += [f"NO FAMILY, half of it is killed: {family}" for family in self.loose]
        return told + [f"NOT JUDGED, {one.error}: {one.mutant.name}" for one in self.errors]

    @property
    def summary(self) -> str:
        """How many mutants were killed, are equivalent, survived and were not judged, in one line."""
        counts = {
            "killed": len(self.killed),
            "equivalent": sum(self.reasons.excuse(one.mutant) and not one.killed_by for one in self.outcomes),
            "survived": len(self.survived),
            "not judged": len(self.errors),
        }
        told = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number or what != "not judged")
        return f"{told} of {len(self.outcomes):,} mutants: {self.time_s:.0f} s"


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
    """Judge a lab's mutants, or a sample of them; `report(done, total)` is called after each.

    Raises `InputError` where equivalent.toml names a mutant that there is no more.
    """
    start = time.monotonic()
    mutants = list(find_mutants(variants, lab))
    reasons = read_equivalent(variants.folder)
    reasons.refuse_stale(mutants)
    chosen, outcomes = sample_mutants(mutants, sample, seed), list[Outcome]()
    for outcome in judge_mutants(lab, chosen, seed=seed, draws=draws, workers=workers):
        outcomes.append(outcome)
        report(len(outcomes), len(chosen))
    return Tally(tuple(outcomes), reasons, time.monotonic() - start)
