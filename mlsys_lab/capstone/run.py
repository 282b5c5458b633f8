"""A run of the capstone as a folder: what it is, what was predicted for it, how far it is, and what it measured.

settings.json, calibration.json, sheet.json   what `plan` wrote
layers.json                                   whose layers it trains on: a run is of one stack
checkpoints/, losses.json                     where it stands after each segment
model/, result.json                           the trained model, for `mlsys-lab serve`, and its bits per byte
measured.json, report.html, bundle.json       what `report` and `check` write
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mlsys_lab.capstone import checkpoints
from mlsys_lab.capstone.bundle import Bundle
from mlsys_lab.capstone.calibration import calibrate
from mlsys_lab.capstone.job import Calibration
from mlsys_lab.capstone.layers import LAYERS
from mlsys_lab.capstone.settings import TOKENIZER_FILE, Settings
from mlsys_lab.capstone.sheet import COSTS, Sheet, predict
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.capstone.training import train
from mlsys_lab.comm import RankError
from mlsys_lab.comm.launcher import Backend
from mlsys_lab.errors import InputError
from mlsys_lab.models.training import Tokens, one_thread
from mlsys_lab.parallel.train.checkpoint import MANIFEST, list_checkpoints, load_model, newest
from mlsys_lab.stack.workspace import Workspace, write_atomic

SEGMENT, KEPT = 10, 2
"""Steps between two checkpoints, and checkpoints that are kept."""
PLAN = "`mlsys-lab capstone plan`"


class Progress(NamedTuple):
    """Where a run stands: steps taken, their losses in nats per token, and the CPU seconds of all ranks."""

    step: int
    losses: list[float]
    cpu_s: float


@dataclass(frozen=True)
class Run:
    """The folder of a run. Every property that reads a file raises InputError where it is missing or damaged."""

    path: Path

    @cached_property
    def settings(self) -> Settings:
        """What the run is."""
        return Settings.from_json(self._read("settings.json"))

    @cached_property
    def calibration(self) -> Calibration:
        """Rates of the machine that the sheet was filled in for."""
        return Calibration.from_json(self._read("calibration.json"))

    @cached_property
    def sheet(self) -> Sheet:
        """What was predicted."""
        return Sheet.from_json(self._read("sheet.json"))

    @property
    def progress(self) -> Progress:
        """Where the newest complete checkpoint stands."""
        step = int(self._checkpoint[1]["steps_done"]) if self._checkpoint else 0
        record = self.read_record("losses.json") or {"losses": [], "cpu_s": 0.0}
        return Progress(step, record["losses"][:step], record["cpu_s"])

    @property
    def _checkpoint(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest complete checkpoint and its manifest, if there is one."""
        folder = self.path / "checkpoints"
        if not list_checkpoints(folder):
            return None
        path = newest(folder, lambda line: None)
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        model = {name: manifest["model"].get(name) for name in asdict(self.settings.model)}
        if model != json.loads(json.dumps(asdict(self.settings.model))):
            raise InputError("a checkpoint of another run", got=path, help="remove it, or name the run's own folder")
        return path, manifest

    @property
    def model(self) -> Path:
        """The folder of the trained model."""
        return self.path / "model"

    def weights(self) -> dict[str, torch.Tensor]:
        """Weights by name of the newest checkpoint, or initial ones."""
        if self._checkpoint is None:
            return self.settings.new_weights()
        return {name: one.detach() for name, one in load_model(self._checkpoint[0]).named_parameters()}

    def read_record(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the run, None where there is none; InputError for a damaged one."""
        if not (self.path / name).exists():
            return None
        try:
            record: dict[str, Any] = json.loads(self._read(name))
        except ValueError as error:
            raise InputError(f"{self.path / name} is damaged", got=error, help="remove it") from None
        return record

    def write_record(self, name: str, record: Mapping[str, Any]) -> None:
        """Write a JSON file of the run."""
        write_atomic(self.path / name, json.dumps(record, indent=1) + "\n")

    def _read(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            help_ = f"{PLAN} makes one, and --run names another folder"
            raise InputError("no plan of a run here", got=self.path / name, help=help_) from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {self.path / name}", got=error) from None


def plan(path: Path, stack: Stack, settings: Settings) -> Run:
    """Calibrate this machine, fill in the sheet, and write both with the settings into a folder.

    A run with the same settings gets another sheet and keeps its checkpoints. Raises InputError for a folder of
    something else, and for a run with other settings that has been trained already.
    """
    run = Run(path)
    if path.exists() and not (path / "settings.json").exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError("the folder is not a run's", got=path, help="name another one with --run")
    if (path / "checkpoints").exists() and run.settings != settings:
        raise InputError(
            "a run with other settings has been trained here", got=path, help="name another one with --run"
        )
    calibration = calibrate(stack, settings.model, settings.train, settings.ranks)
    sheet = fill_in(stack, settings, calibration)
    path.mkdir(parents=True, exist_ok=True)
    parts = {"settings": settings.to_json(), "calibration": calibration.to_json(), "sheet": sheet.to_json()}
    for name, text in parts.items():
        write_atomic(path / f"{name}.json", text + "\n")
    return Run(path)


def fill_in(stack: Stack, settings: Settings, calibration: Calibration) -> Sheet:
    """The sheet of a run's settings."""
    return predict(stack, settings.model, settings.train, settings.ranks, calibration, serving=settings.serving)


def check_sheet(run: Run, stack: Stack) -> None:
    """Raise InputError if the stack's functions no longer predict what the run's sheet says."""
    again = fill_in(stack, run.settings, run.calibration)
    for key in COSTS:
        if again[key] != run.sheet[key]:
            got, expected = f"{run.sheet[key]:,g}", f"{again[key]:,g}, as your functions predict now"
            raise InputError(f"the sheet is old: {COSTS[key].name}", got=got, expected=expected, help=f"run {PLAN}")


def train_run(
    run: Run, stack: Stack, workspace: Workspace | None, swaps: Mapping[str, str], ids: Tokens, *, backend: Backend
) -> Iterator[Progress]:
    """Train from the newest checkpoint to the last step; yield after each segment, whose checkpoint is then saved.

    A run that stops, even in the middle of writing, continues from its last checkpoint as if it had not. Where the
    data-parallel layer has no states to save, the run is one segment. Raises InputError for a run of another stack and
    for a checkpoint of another run; RankError, which names the last checkpoint, for a rank that fails.
    """
    settings, steps = run.settings, run.settings.train.steps
    check_layers(run, stack, workspace, swaps)
    done, losses, cpu_s = run.progress
    states = checkpoints.load_states(run._checkpoint[0]) if run._checkpoint else []
    segment = SEGMENT if hasattr(stack.data_parallel, "save_state") else steps
    weights, folder = settings.new_weights(), run.path / "checkpoints"
    while done < steps:
        until, start_s = min(done + segment, steps), _cpu_s()
        try:
            with one_thread():
                result = train(
                    stack,
                    settings.model,
                    weights,
                    ids,
                    settings.train,
                    settings.ranks,
                    states=states,
                    until=until,
                    backend=backend,
                )
        except RankError as error:
            where = folder / checkpoints.checkpoint_name(done) if done else "the initial weights"
            said = f"{error}; help: `mlsys-lab capstone train` continues from {where}"
            raise RankError(said, error.rank) from None
        losses, states, cpu_s = [*losses, *result.losses], result.states, cpu_s + _cpu_s() - start_s
        run.write_record("losses.json", {"losses": losses, "cpu_s": cpu_s})
        checkpoints.save(folder, settings.model, result.weights, until, states=states, assets=[TOKENIZER_FILE])
        for old in list_checkpoints(folder)[:-KEPT]:
            shutil.rmtree(old)
        done = until
        yield Progress(done, losses, cpu_s)


def make_bundle(run: Run, stack: Stack, workspace: Workspace | None) -> Bundle:
    """Bundle a trained run with the artifacts that it ran on.

    Raises InputError for a run that was not trained to its end, for one of another stack, and for an old sheet.
    """
    result = run.read_record("result.json")
    if result is None:
        raise InputError("the run is not trained to its last step", got=run.path, help="run `mlsys-lab capstone train`")
    check_layers(run, stack, workspace, {})
    check_sheet(run, stack)
    texts = artifacts(workspace, stack)
    versions = {spec.topic: stack.sources[spec.field].version for spec in LAYERS if spec.topic in texts}
    return Bundle(texts, versions, run.settings, run.calibration, run.sheet, result["bits_per_byte"])


def artifacts(workspace: Workspace | None, stack: Stack) -> dict[str, str]:
    """Text of the learner's accepted artifacts that a stack runs on, by topic."""
    found = {}
    for spec in LAYERS:
        artifact = workspace.artifact(spec.topic) if workspace and stack.sources[spec.field].kind == "yours" else None
        if artifact:
            found[spec.topic] = artifact.source
    return found


def check_layers(run: Run, stack: Stack, workspace: Workspace | None, swaps: Mapping[str, str]) -> None:
    """Record which stack a new run trains on; of a run that has been started, raise InputError for another stack."""
    own = {topic: hashlib.sha256(text.encode()).hexdigest()[:12] for topic, text in artifacts(workspace, stack).items()}
    layers = {"swaps": dict(swaps), "artifacts": own}
    before = run.read_record("layers.json") if run._checkpoint else None
    if before is None:
        run.write_record("layers.json", layers)
        return
    for kind, now in layers.items():
        was = before[kind]
        if differing := sorted(name for name in now | was if now.get(name) != was.get(name)):
            name = differing[0]
            got, expected = (one.get(name, "none") for one in (now, was))
            help_ = "plan another run with --run, or start this one again without its checkpoints"
            raise InputError(f"the run was started on other {kind}: {name}", got=got, expected=expected, help=help_)


def _cpu_s() -> float:
    """CPU seconds of this process and of those that it has ended."""
    return sum(os.times()[:4])
