"""What a proof tries: the variants of a lab, each as an artifact with what has to come of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlsys_checks.trusted.artifact import Artifact
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.proving.variants import Variant, VariantsOf, read_blank
from mlsys_lab.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Trial:
    """One artifact to be judged: `fails` are the checks that must not pass; none of them, and all must.

    A wrong artifact may fail more checks than it names: one mistake can show in many places. `unfinished`: whether the
    checks that it names must call the task unwritten (True), must find a mistake (False), or may do either (None).
    `seeds` are those of the inputs by the check's name; other checks draw secret ones.
    """

    kind: str
    name: str
    artifact: Artifact
    fails: frozenset[str] = frozenset()
    unfinished: bool | None = None
    seeds: Mapping[str, int] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether the code is right, so that it has to keep all points."""
        return not self.fails


def try_reference(variants: VariantsOf) -> Trial:
    """The course's own solutions, which pass everything."""
    return Trial("reference", "the course's solutions", Artifact.parse("reference", variants.reference))


def try_blank(artifact: Artifact, checks: Iterable[str]) -> Trial:
    """The exported cells of the notebook that learners get: each of the checks called `checks` finds work to do."""
    return Trial("blank", "the released notebook", artifact, frozenset(checks), unfinished=True)


def try_alternative(variants: VariantsOf, path: Path) -> Trial:
    """A right solution built otherwise, by the definitions in the file at `path`; it passes everything."""
    return Trial("alternative", path.stem, Artifact.parse(path.stem, variants.with_definitions(path)))


def try_mutant(variants: VariantsOf, variant: Variant) -> Trial:
    """A plausible mistake, which the checks that it names find."""
    artifact = Artifact.parse("mutant", variants.substituted(variant))
    return Trial("mutant", variant.name, artifact, frozenset(variant.fails), unfinished=False)


def try_mishap(variants: VariantsOf, variant: Variant) -> Trial:
    """Code that is unfinished, has the wrong form or never ends, which the checks that it names do not let pass."""
    artifact = Artifact.parse("mishap", variants.substituted(variant))
    return Trial("mishap", variant.name, artifact, frozenset(variant.fails))


def list_trials(lab: GradedLab, variants: VariantsOf) -> list[Trial]:
    """Reference, blank, alternatives, mutants and mishaps of a lab, in this order.

    Raises `InputError` for a mutant or a mishap that names a check which the lab does not have.
    """
    names = [check.name for check in lab.checks.checks]
    for variant in (*variants.mutants, *variants.mishaps):
        for name in variant.fails:
            if name not in names:
                what = f"{lab.name}: variant {variant.name!r} names no check"
                raise InputError(what, got=name, help=did_you_mean(name, names))
    return [
        try_reference(variants),
        try_blank(read_blank(lab.info), (check.name for check in lab.checks.checks)),
        *(try_alternative(variants, path) for path in variants.alternatives),
        *(try_mutant(variants, variant) for variant in variants.mutants),
        *(try_mishap(variants, variant) for variant in variants.mishaps),
    ]
