"""Prove that a lab's checks tell right from wrong.

examples:
  mlsys-grader prove autograd                    in a checkout: it needs solutions/ and tests/labs/
  mlsys-grader prove autograd --workers 4
  mlsys-grader prove autograd --mutations        mistakes made by a machine, all of them
  mlsys-grader prove autograd --mutations --sample 100 --seed 3
  mlsys-grader prove autograd --mutations --sample 50 --draws 100    is one of these noticed by luck alone?
  mlsys-grader prove autograd --draws 1000       do right solutions lose points, do mutants pass by luck?

Reference, blank, alternatives, mutants and mishaps go through the judge as submissions do, in the sandbox, with secret
inputs. A false pass is a check that passes a mistake made for it; a false fail is a check that fails a right solution;
a check misreads that takes a mistake for a task still to do, or a task still to do for a mistake. None of these may be,
or the exit code is 1.

With --mutations, small changes of reference and alternatives are judged instead, in forked processes without a sandbox.
A mutant is killed if a check fails it with each of three draws, or of --draws. Survivors are listed: some are right
after all, the others show what the checks miss. `make weekly` holds the kill rate of a sample to a floor for each lab.

With --draws alone, reference and alternatives are judged with inputs of that many seeds, in this process; a check that
takes long has a minute of processor time for each of them (--draw-time). One draw in a thousand may cost a point. Each
line ends with the largest share of a tolerance in use, where floats are compared: far from 100 %, no luck is needed.
Mutants are judged with up to a hundred inputs by the checks that have to fail them, and may pass with one of these.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlsys_grader.commands.common import JudgingOptions, find_chosen_lab, make_progress_bar, read_judging_options
from mlsys_grader.course.lab import GradedLab
from mlsys_lab.cli.app import flag, option
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import read_lab

if TYPE_CHECKING:
    from mlsys_grader.proving.proof import Proved
    from mlsys_grader.proving.trials import Trial
    from mlsys_grader.proving.variants import VariantsOf


@dataclass(kw_only=True)
class Arguments(JudgingOptions):
    """The lab, where its variants are, and what to judge."""

    project: Annotated[Path, option("the checkout", "DIR")] = Path()
    variants: Annotated[Path | None, option("variants.diff and alternatives/ (by default tests/labs/TOPIC)", "DIR")] = (
        None
    )
    mutations: Annotated[bool, flag("--mutations", "judge machine-made mutations instead of variants")] = False
    sample: Annotated[int | None, option("how many mutations (all by default)", "N")] = None
    draws: Annotated[int | None, option("judge with inputs of N seeds: right code and mutants", "N")] = None
    draw_time: Annotated[
        float, option("processor time that --draws gives each pair of variant and check", "SECONDS")
    ] = 60.0
    seed: Annotated[int, option("of the sample and of what is drawn")] = 20


def run(args: Arguments) -> int:
    """Judge variants, machine-made mistakes or many draws; 1 where anything came out as it should not."""
    if args.draws is not None and args.draws < 1:
        raise InputError("--draws must be at least 1", got=args.draws)
    if args.mutations:
        return _run_mutations(args)
    if args.sample is not None:
        raise InputError("--sample is of mutations", help="add --mutations")
    return _run_variants(args) if args.draws is None else _run_draws(args, args.draws)


def _run_mutations(args: Arguments) -> int:
    """Judge machine-made mutants; a line for each survivor, and the kill rate."""
    from mlsys_grader.proving.mutation.run import DRAWS
    from mlsys_grader.proving.mutation.tally import tally_mutations

    options, lab = read_judging_options(args), find_chosen_lab(args)
    console = Console(highlight=False, soft_wrap=True)
    with make_progress_bar(console) as progress:
        bar = progress.add_task(f"{lab.name}: mutants")
        tally = tally_mutations(
            _variants(args, lab),
            lab.checks,
            sample=args.sample,
            seed=args.seed,
            draws=args.draws or DRAWS,
            workers=options.threads,
            report=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    for line in tally.lines:
        console.print(Text(line))
    print(f"{lab.name}: {tally.summary}")
    return 1 if tally.errors else 0


def _run_draws(args: Arguments, draws: int) -> int:
    """Judge right solutions and mutants with many inputs; 1 where luck decides of more draws than may be."""
    from mlsys_grader.proving.trials import list_trials

    lab = find_chosen_lab(args)
    tried = list_trials(lab, _variants(args, lab))
    hold = [
        _draw_right(args, draws, lab, [trial for trial in tried if trial.right]),
        _draw_mutants(args, draws, lab, [trial for trial in tried if trial.kind == "mutant"]),
    ]
    return 0 if all(hold) else 1


def _draw_right(args: Arguments, draws: int, lab: GradedLab, right: list[Trial]) -> bool:
    """A line for each right solution and check, one for each loss, and the counts; whether they hold."""
    from mlsys_grader.proving.draws import try_draws

    found = []
    for one in try_draws(lab.checks.checks, right, draws, seed=args.seed, limit_s=args.draw_time):
        found.append(one)
        used = "" if one.tolerance_used is None else f", {one.tolerance_used:.2%} of a tolerance in use"
        print(f"{one.check:24} {one.solution:28} {len(one.lost):4} of {one.tried} draws cost a point{used}", flush=True)
        for line in one.lost[:3]:
            print(f"    {line}")
    tried, lost = sum(one.tried for one in found), sum(len(one.lost) for one in found)
    least, tolerance_used = min(one.tried for one in found), max(one.tolerance_used or 0.0 for one in found)
    print(f"{lab.name}: {len(right)} right solutions, {tried:,} draws, at least {least} each: {lost} cost a point")
    print(f"{lab.name}: at most {tolerance_used:.2%} of a tolerance in use", flush=True)
    return all(one.holds for one in found)


def _draw_mutants(args: Arguments, draws: int, lab: GradedLab, mutants: list[Trial]) -> bool:
    """A line for each mutant that passes draws of a check that has to fail it, and the counts; whether they hold."""
    from mlsys_grader.proving.draws import try_mutants

    found = []
    for one in try_mutants(lab.checks.checks, mutants, draws, seed=args.seed, limit_s=args.draw_time):
        found.append(one)
        if one.passed:
            passed = f"{len(one.passed)} of {one.tried} draws let it pass, first seed {one.passed[0]}"
            print(f"{one.check:24} {one.mutant}: {passed}", flush=True)
    tried, least = sum(one.tried for one in found), min((one.tried for one in found), default=0)
    lucky = sum(not one.holds for one in found)
    print(f"{lab.name}: {len(mutants)} mutants, {tried:,} draws, at least {least} each: {lucky} pass by luck")
    return not lucky


def _run_variants(args: Arguments) -> int:
    """Judge all variants; a row for each, a row for each check, and the two counts."""
    from mlsys_grader.engines.choice import open_engine
    from mlsys_grader.proving.proof import prove
    from mlsys_grader.proving.trials import list_trials

    options, lab = read_judging_options(args), find_chosen_lab(args)
    tried = list_trials(lab, _variants(args, lab))
    console = Console(highlight=False, soft_wrap=True)
    start, proved = time.monotonic(), []
    with make_progress_bar(console) as progress:
        bar = progress.add_task(f"{lab.name}: variants", total=len(tried))
        with open_engine(lab, options) as engine:
            for one in prove(engine, tried):
                proved.append(one)
                progress.advance(bar)
    elapsed_s = time.monotonic() - start
    proved.sort(key=lambda one: tried.index(one.trial))
    console.print(_table_of_variants(proved, lab))
    console.print(_table_of_checks(proved, lab))
    for one in (one for one in proved if one.false_fails):
        for verdict in (verdict for verdict in one.verdicts if not verdict.passed):
            console.print(Text(f"{one.trial.name}: {verdict.check} with seed {verdict.seed}: {verdict.reason}"))
    kinds = Counter(one.trial.kind for one in proved)
    tally = ", ".join(f"{number} {kind}{'s' * (number > 1)}" for kind, number in kinds.items())
    print(f"{tally}: {elapsed_s:.0f} s with {options.threads} at a time")
    false_passes = sum(len(one.false_passes) for one in proved)
    false_fails = sum(len(one.false_fails) for one in proved)
    errors = sum(bool(one.error) for one in proved)
    print(f"{false_passes} false passes, {false_fails} false fails" + (f", {errors} not judged" if errors else ""))
    return 0 if all(one.holds for one in proved) else 1


def _variants(args: Arguments, lab: GradedLab) -> VariantsOf:
    from mlsys_grader.proving.variants import VariantsOf

    project = args.project.absolute()
    folder = project / "solutions" / lab.name
    if not folder.is_dir():
        help = "run it in a checkout of the course, or name one with --project"
        raise InputError(f"no solutions of {lab.name} to prove", expected=folder, help=help)
    return VariantsOf(read_lab(folder), args.variants or project / "tests" / "labs" / lab.topic.replace("-", "_"))


def _table_of_variants(proved: list[Proved], lab: GradedLab) -> Table:
    table = Table("kind", "variant", "outcome", "caught by", box=None, pad_edge=False)
    table.add_column("s", justify="right")
    for one in proved:
        wrong = [f"NOT JUDGED: {one.error}"] if one.error else []
        wrong += [f"FALSE PASS of {', '.join(one.false_passes)}"] if one.false_passes else []
        wrong += [f"FALSE FAIL of {', '.join(one.false_fails)}"] if one.false_fails else []
        wrong += [f"MISREAD by {', '.join(one.misread)}"] if one.misread else []
        word = Text("; ".join(wrong), "red") if wrong else Text("passes all" if one.trial.right else "caught")
        named = [name for name in one.failed if name in one.trial.fails]
        more = len(one.failed) - len(named)
        by = ", ".join(named) + (f" (and {more} more)" if named and more else "")
        by = "all" if len(one.failed) == len(lab.checks.checks) else by
        table.add_row(one.trial.kind, Text(one.trial.name), word, by, f"{one.time_s:.1f}")
    return table


def _table_of_checks(proved: list[Proved], lab: GradedLab) -> Table:
    from mlsys_grader.proving.proof import count_caught

    table = Table("check", box=None, pad_edge=False)
    table.add_column("mutants caught", justify="right")
    for name, number in count_caught(lab, proved).items():
        table.add_row(name, str(number) if number else Text("none: nothing proves it", "red"))
    return table
