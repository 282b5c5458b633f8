"""Training runs whose layout and speed were published, to compare `mlsys_lab.flops.planner` with.

The runs are in published_runs.toml, each group with its source.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from mlsys_lab.configs.presets import preset
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops import compute
from mlsys_lab.flops.bounds import Machine, machine
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import Recipe, recipe
from mlsys_lab.flops.planner import Given, Plan, plan
from mlsys_lab.hardware import device


@dataclass(frozen=True)
class PublishedRun:
    """A run as published: model, machine, batch, the degrees of its layout, and the fraction of peak that it reached.

    `given` are the settings that the planner may not choose. `utilisation` is the MFU, or where `hardware` is true the
    HFU, which counts recomputed FLOPs too; both count attention over all pairs of tokens.
    """

    name: str
    config: TransformerConfig
    machine: Machine
    layout: Layout
    batch: int
    tokens: int
    given: Given
    utilisation: float
    hardware: bool
    source: str
    recipe: Recipe

    def rank(self) -> list[Plan]:
        """Plans for the run's model, machine and batch with its given settings, the fastest first."""
        return self._plan(self.machine, self.given)

    def compare(self) -> Comparison:
        """Compare the run's own layout, whether or not the planner counts that it fits, with the best one that fits.

        Settings that the run does not give are those with which its layout is fastest.
        """
        names = ("data", "tensor", "pipeline", "context", "expert")
        degrees = {name: getattr(self.layout, name) for name in names}
        best, *others = self.rank()
        for theirs in (best, *others):
            if not theirs.missing_bytes and all(getattr(theirs.layout, name) == degrees[name] for name in names):
                return Comparison(self, best, theirs)
        (theirs,) = self._plan(replace(self.machine, memory_bytes=math.inf), {**self.given, **degrees})
        return Comparison(self, best, replace(theirs, capacity_bytes=self.machine.memory_bytes))

    def _plan(self, on: Machine, given: Given) -> list[Plan]:
        sizes = {"devices": self.layout.devices, "batch": self.batch, "tokens": self.tokens}
        return plan(self.config, on, self.recipe, **sizes, causal=False, given=given)


@dataclass(frozen=True)
class Comparison:
    """A published run's layout next to the best one: `theirs` may have `missing_bytes`, `best` has none."""

    run: PublishedRun
    best: Plan
    theirs: Plan

    @property
    def ratio(self) -> float:
        """Planned time of the run's layout over that of the best one."""
        return self.theirs.time_s / self.best.time_s

    @property
    def utilisation(self) -> float:
        """What the run's `utilisation` would be if its steps took the planned time."""
        run = self.run
        recomputation = self.theirs.layout.recomputation
        flops = compute.training(run.config, run.tokens, run.batch, recomputation=recomputation)
        peak = run.machine.peak_flops_per_s * run.layout.devices
        return (flops.hardware if run.hardware else flops.model) / self.theirs.time_s / peak


def _read_runs(tables: Mapping[str, Any]) -> Iterator[PublishedRun]:
    for group in tables["groups"]:
        for name, own in group["runs"].items():
            row = {"recipe": "mixed18"} | group.get("common", {}) | own
            yield _read_run(name, row, tables["machines"][row["machine"]], group["source"])


def _read_run(name: str, row: Mapping[str, Any], on: Mapping[str, Any], source: str) -> PublishedRun:
    one, model = device(on["device"]), row["model"]
    wires = {f"{wire}_bytes_per_s": gb_per_s * 1e9 for wire, gb_per_s in on.get("gb_per_s", {}).items()}
    known = replace(machine(one, on["precision"]), **wires)
    hardware = "tflops" in row
    peak = one.peak(row.get("mfu_precision", on["precision"]))
    return PublishedRun(
        name,
        preset(model) if isinstance(model, str) else TransformerConfig(**model, **row["sizes"]),
        known,
        Layout(**row["layout"]),
        row["batch"],
        row["tokens"],
        row["given"],
        (1e12 * row["tflops"] if hardware else row["mfu"] * peak) / known.peak_flops_per_s,
        hardware,
        source,
        recipe(row["recipe"]),
    )


PUBLISHED_RUNS = tuple(
    _read_runs(tomllib.loads((files(__package__) / "published_runs.toml").read_text(encoding="utf-8")))
)
"""Published runs: those of dense models in order of their size, then a mixture of experts."""
