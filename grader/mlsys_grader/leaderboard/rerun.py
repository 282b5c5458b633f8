"""Run a bundle again: its code in a sandbox, and here everything that its rank depends on.

Only code enters. Here the trusted side trains the same settings on torch's autograd, evaluates the model with its own
forward pass, holds the weights that come out of the sandbox against it, counts what the sheet predicts, and measures
the machine and the time.
"""

from __future__ import annotations

import json
import math
import random
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Lab
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging.process import Process, read_problem
from mlsys_grader.judging.verdict import to_line
from mlsys_grader.leaderboard import calls
from mlsys_grader.sandbox.inside import wire
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.capstone import LAYERS, load_stack
from mlsys_lab.capstone.bundle import Bundle
from mlsys_lab.capstone.calibration import calibrate
from mlsys_lab.capstone.job import Calibration
from mlsys_lab.capstone.settings import VOCAB_SIZE, Settings, bits_per_byte
from mlsys_lab.capstone.sheet import COSTS, Sheet, predict
from mlsys_lab.capstone.weights import check_weights
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer, training
from mlsys_lab.models.training import one_thread
from mlsys_lab.parallel.train.data import Dataset
from mlsys_lab.stack.artifact import Artifact
from mlsys_lab.stack.labinfo import LabInfo, released_labs

TOLERANCE = 0.001
"""Largest relative difference between two runs' bits per byte that is put down to rounding: the solved labs and torch
differ by 3e-8 after 245 steps on one processor, and another processor sums in another order."""
DISTANCE = 0.01
"""Largest relative distance of trained weights from torch's. After 245 steps the solved labs' are 3e-4 away, those of
initial weights that differ by 1e-6 are 7e-4 away, and those of another seed 1.4."""
EXACT = 1e-9
"""Largest relative difference of a predicted number that is computed twice."""


@dataclass(frozen=True)
class Rules:
    """What all entries share: the budget of a training run, its ranks, and bounds of sizes and seconds.

    Training in the sandbox may take `slowest` times as long as on torch's autograd, and at least `least_limit_s`.
    """

    flops: float = 1e12
    ranks: int = 4
    max_parameters: int = 4_000_000
    max_step_tokens: int = 16_384
    slowest: float = 20.0
    least_limit_s: float = 60.0


@dataclass(frozen=True)
class Figures:
    """What an entry is ranked by: bits per byte and the prediction's relative error (least first), and the fraction."""

    bits_per_byte: float
    fraction_of_bound: float
    prediction_error: float


def _decided_by_rerun(*_: object) -> NoReturn:
    raise AssertionError("the leaderboard draws and compares in `rerun`")


def _check(name: str, title: str, run: Any, answer_bytes: int) -> Check:
    side = _decided_by_rerun
    return Check(
        name, title, 1, (Case("the bundle"),), side, run, side, side, "", time_limit_s=60.0, answer_bytes=answer_bytes
    )


SHEET = _check("sheet", "prediction", calls.fill_in_sheet, 1 << 16)
TRAINING = _check("training", "training", calls.train_model, 4 * Rules.max_parameters + (1 << 16))
LAB = Lab("leaderboard", (SHEET, TRAINING))
BOARD = GradedLab(
    LabInfo(
        Path("00-leaderboard"),
        title="Leaderboard",
        summary="",
        minutes=0,
        points=LAB.points,
        stack=tuple(spec.topic for spec in LAYERS),
        checks_module=__name__,
    )
)
"""The bundle's sandbox: what the solved labs and `calls` import, and no module that a lab of the stack withholds."""


def rerun(bundle: Bundle, rules: Rules | None = None, data: Dataset | None = None) -> Figures:
    """Run a bundle again, on the book's text unless there is other data, and return its figures: two CPU minutes.

    The sandbox trains from a secret seed, and its weights must be those of torch's autograd from that seed: so the
    code trains, and as torch does. What it reaches from the bundle's own seed is then what torch reaches from it.
    Raises InputError, in one line, for a bundle that breaks the rules, for claimed numbers that differ from those
    computed here, for code that fails or does not end, and for other weights.
    """
    rules, settings = rules or Rules(), bundle.settings
    stack = load_stack(swaps={spec.field: "solved" for spec in LAYERS})
    expected = predict(
        stack, settings.model, settings.train, settings.ranks, bundle.calibration, serving=settings.serving
    )
    _check_rules(bundle, expected, rules)
    _compare(bundle.sheet, expected, "count")
    data = data or settings.read_data()
    secret = replace(settings, train=replace(settings.train, seed=secrets.randbelow(2**32)))
    with one_thread(), Sandbox(BOARD) as sandbox:
        calibration = calibrate(stack, settings.model, settings.train, settings.ranks)
        sheet = predict_again(sandbox, bundle, calibration)
        start_s = time.process_time()
        reached = bits_per_byte(train_on_torch(settings, data), data)
        limit_s = max(rules.least_limit_s, rules.slowest * (time.process_time() - start_s))
        compare_bits(bundle.bits_per_byte, reached)
        weights, cpu_s = train_again(sandbox, replace(bundle, settings=secret), data, limit_s)
        compare_weights(weights, train_on_torch(secret, data))
    step_s = cpu_s / settings.train.steps
    least_s = expected["training_flops"] / calibration.peak_flops_per_s
    return Figures(reached, least_s / step_s, abs(sheet["training_step_s"] - step_s) / step_s)


def predict_again(sandbox: Sandbox, bundle: Bundle, calibration: Calibration) -> Sheet:
    """Evaluate the bundle's sheet for this machine; InputError for a sheet that is no function of the calibration.

    Each evaluation has a process of its own. Where the bundle's calibration does not give the bundle's numbers, or that
    of a machine which is slower by a secret factor does not give seconds that are longer by this factor, the sheet
    depends on something else, such as a clock.
    """
    _compare(bundle.sheet, _fill_in_sheet(sandbox, bundle, bundle.calibration), "count", "estimate", "seconds")
    factor = random.SystemRandom().uniform(1.5, 3.0)
    sheet = _fill_in_sheet(sandbox, bundle, calibration)
    slower = _fill_in_sheet(sandbox, bundle, calibration.slow_down(factor))
    scaled = {key: slower[key] / factor if cost.kind == "seconds" else slower[key] for key, cost in COSTS.items()}
    _compare(sheet, Sheet(scaled), "count", "estimate", "seconds")
    return sheet


def train_again(
    sandbox: Sandbox, bundle: Bundle, data: Dataset, limit_s: float
) -> tuple[dict[str, torch.Tensor], float]:
    """Weights that the bundle's stack trains, and the CPU seconds of its process, from the loading of the artifacts."""
    order = _order(bundle) | {"ids": np.asarray(data.train)}
    arrays, cpu_s = _ask(sandbox, replace(TRAINING, time_limit_s=limit_s), order)
    return {name: torch.from_numpy(one) for name, one in arrays.items()}, cpu_s


def compare_weights(weights: Mapping[str, torch.Tensor], reference: Transformer) -> None:
    """Raise InputError for weights of other names, shapes and types than a model's, and for weights far from them."""
    check_weights(reference.config, weights)
    difference = size = 0.0
    for name, expected in reference.named_parameters():
        if (found := weights[name]).dtype != expected.dtype:
            raise InputError(f"weights of another type: {name}", got=found.dtype, expected=expected.dtype)
        if not found.isfinite().all():
            raise InputError(f"weights that are not finite: {name}")
        difference += (found - expected).double().square().sum().item()
        size += expected.double().square().sum().item()
    if not (distance := math.sqrt(difference / size)) <= DISTANCE:
        got, most = f"a relative distance of {distance:.2g}", f"at most {DISTANCE:g}"
        raise InputError("other weights than torch's autograd trains from this seed", got=got, expected=most)


def compare_bits(claimed: float, reached: float) -> None:
    """Raise InputError for bits per byte that are claimed, and not reached."""
    if not abs(claimed - reached) <= TOLERANCE * reached:
        got, expected = f"{claimed:.4f}", f"{reached:.4f}, as run again"
        raise InputError("the bundle claims other bits per byte", got=got, expected=expected)


def train_on_torch(settings: Settings, data: Dataset) -> Transformer:
    """The model that the same training makes on torch's autograd in one process."""
    model = training.new_model(settings.model, settings.train.seed)
    for _ in training.train(model, np.asarray(data.train), **vars(settings.train)):
        pass
    return model


def _check_rules(bundle: Bundle, expected: Sheet, rules: Rules) -> None:
    """Raise InputError for a bundle that no entry may be; for artifacts of other versions of the labs, too."""
    settings, topics = bundle.settings, [spec.topic for spec in LAYERS]
    if unknown := sorted(bundle.artifacts.keys() - topics):
        raise InputError("an artifact of no layer", got=unknown[0], expected=f"one of {', '.join(topics)}")
    versions = {lab.topic: lab.version for lab in released_labs()}
    for topic, version in bundle.versions.items():
        if version != versions.get(topic):
            what = f"the bundle's {topic} was accepted for another version of its lab"
            raise InputError(what, got=version, expected=versions.get(topic, "no released lab"))
    for what, got, wanted in (
        ("ranks", settings.ranks, rules.ranks),
        ("tokens in the vocabulary", settings.model.vocab_size, VOCAB_SIZE),
    ):
        if got != wanted:
            raise InputError(f"the leaderboard has a fixed number of {what}", got=got, expected=wanted)
    for what, used, most in (
        ("FLOPs of the run", settings.train.steps * expected["training_flops"], rules.flops),
        ("parameters", expected["parameters"], rules.max_parameters),
        ("tokens of a step", settings.train.batch_size * settings.train.seq_len, rules.max_step_tokens),
    ):
        if used > most:
            raise InputError(f"too many {what}", got=f"{used:,.0f}", expected=f"at most {most:,.0f}")


def _compare(claimed: Sheet, expected: Sheet, *kinds: str) -> None:
    """Raise InputError at the first number of these kinds that differs; counts must be equal."""
    for key, cost in COSTS.items():
        tolerance = 0.0 if cost.kind == "count" else EXACT
        if cost.kind in kinds and abs(claimed[key] - expected[key]) > tolerance * abs(expected[key]):
            got, again = (f"{sheet[key]:,.10g}" for sheet in (claimed, expected))
            raise InputError(f"the sheet's {key}", got=got, expected=f"{again}, as computed again")


def _fill_in_sheet(sandbox: Sandbox, bundle: Bundle, calibration: Calibration) -> Sheet:
    """The sheet that the bundle's stack fills in; InputError for anything but finite numbers."""
    arrays, _ = _ask(sandbox, SHEET, _order(bundle, calibration=calibration.to_json()))
    numbers = arrays.get("sheet", np.empty(0))
    if numbers.shape != (len(COSTS),):
        raise InputError("the bundle's sheet", got=f"an array of shape {numbers.shape}", expected=f"({len(COSTS)},)")
    return Sheet(dict(zip(COSTS, numbers.tolist(), strict=True)))


def _order(bundle: Bundle, **extra: str) -> Arrays:
    """What a call in the sandbox is asked to do."""
    settings = bundle.settings
    parts = {name: asdict(getattr(settings, name)) for name in ("model", "train", "serving")}
    order = {"artifacts": dict(bundle.artifacts), **parts, "ranks": settings.ranks, **extra}
    return {"order": np.frombuffer(json.dumps(order).encode(), np.uint8)}


def _ask(sandbox: Sandbox, check: Check, arrays: Arrays) -> tuple[Arrays, float]:
    """Answer of a call in a process of its own, and all CPU seconds of that process; InputError without an answer.

    Ranks take turns, so on a quiet machine these are the seconds of the clock; other load does not count.
    """
    with sandbox.job() as job:
        process = Process(job, traced=False, time_factor=1.0)
        try:
            process.send_artifact(Artifact("bundle", ()), check, [check], {}, ())
            process.receive()
            process.send_case(check, arrays, random_seed=0)
            reply = process.receive()
        except wire.WireError as error:
            problem, _ = process.explain(error, f"the bundle's {check.title}")
        else:
            problem, used = read_problem(reply), job.time_used()
            if reply.kind == "answer" and used is not None:
                return reply.arrays, used.cpu_s
    raise InputError(
        to_line(problem.what), got=to_line(problem.got) or None, expected=to_line(problem.expected) or None
    )
