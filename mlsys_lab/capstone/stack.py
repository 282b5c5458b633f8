"""`Stack`: the learner's accepted artifacts as ten layers that run on one another, and whose each of them is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mlsys_lab.capstone.layers import LAYERS, LayerSpec
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.stack import Layer, defined_names, using
from mlsys_lab.stack.artifact import Artifact
from mlsys_lab.stack.labinfo import released_labs
from mlsys_lab.stack.loading import find_lost
from mlsys_lab.stack.loading import load as load_artifact
from mlsys_lab.stack.solved import export_solved, find_solved
from mlsys_lab.stack.workspace import Workspace

Kind = Literal["yours", "solved", "reference"]
SWAPS: tuple[Kind, ...] = ("solved", "reference")
OWNERS = {"yours": "yours", "solved": "the solved lab's", "reference": "the reference package's"}


@dataclass(frozen=True)
class Source:
    """Whose a layer is, the version of the lab whose checks it has passed, and why it is not the learner's."""

    kind: Kind
    version: str
    reason: str = ""

    def __str__(self) -> str:
        version = f", version {self.version}" if self.version else ""
        return f"{OWNERS[self.kind]}{version}{f' ({self.reason})' if self.reason else ''}"


@dataclass(frozen=True)
class Stack:
    """The layers of the capstone, each with the names of its lab as attributes, and the source of each by field."""

    engine: Layer
    kernels: Layer
    collectives: Layer
    data_parallel: Layer
    model_parallel: Layer
    cache: Layer
    scheduler: Layer
    arithmetic: Layer
    scaling: Layer
    diffusion: Layer
    capstone: Layer
    sources: Mapping[str, Source]

    def report(self) -> str:
        """One line for each layer: whose it is, and of what version."""
        return "\n".join(f"{spec.field:<14}  {spec.topic:<22}  {self.sources[spec.field]}" for spec in LAYERS)


def load_stack(
    workspace: Workspace | None = None,
    swaps: Mapping[str, str] | None = None,
    *,
    notebook: Mapping[str, Any] | None = None,
) -> Stack:
    """Load every layer: the learner's accepted artifact, else the solved lab; `swaps` chooses "solved" or "reference".

    A layer is the learner's as a whole, or not at all: its functions call one another. Where an artifact no longer
    defines a name that the stack asks for, the solved lab takes its place, and the report says why. `workspace` is the
    nearest around the current folder if None. `notebook`, the globals of lab 16's notebook, is the layer `capstone` if
    given, and changes as cells run. Raises InputError for an unknown layer or swap, a layer for which there is nothing
    to load, one without a name that it must have, and an artifact that was accepted for another version of its lab.
    """
    swaps = _check_swaps(swaps or {})
    workspace = workspace or Workspace.find()
    progress = workspace.progress() if workspace else {}
    versions = {lab.topic: lab.version for lab in released_labs()}
    given: dict[str, Layer] = {}
    sources: dict[str, Source] = {}
    for spec in LAYERS:
        if spec.field == "capstone" and notebook is not None:
            given[spec.topic] = Layer(spec.topic, notebook, {})
            sources[spec.field] = Source("yours", "", "this notebook")
            continue
        accepted = progress.get(spec.topic, {}).get("accepted", {})
        artifact = workspace.artifact(spec.topic) if workspace and spec.field not in swaps else None
        with using(given):
            names, source = _load(spec, artifact, swaps.get(spec.field), accepted, versions.get(spec.topic, ""))
        given[spec.topic] = Layer(spec.topic, names, dict.fromkeys(names, OWNERS[source.kind]))
        sources[spec.field] = source
    return Stack(**{spec.field: given[spec.topic] for spec in LAYERS}, sources=sources)


def _check_swaps(swaps: Mapping[str, str]) -> Mapping[str, str]:
    fields = [spec.field for spec in LAYERS]
    for field, kind in swaps.items():
        if field not in fields:
            near = did_you_mean(field, fields)
            raise InputError("unknown layer", got=repr(field), expected=f"one of {', '.join(fields)}", help=near)
        if kind not in SWAPS:
            raise InputError(f"the {field} layer cannot be swapped for {kind!r}", expected=" or ".join(SWAPS))
    return swaps


def _load(
    spec: LayerSpec, artifact: Artifact | None, swap: str | None, accepted: Mapping[str, Any], version: str
) -> tuple[dict[str, Any], Source]:
    if swap == "reference":
        return _load_reference(spec), Source("reference", "", "swapped")
    if artifact is None:
        return _load_solved(spec), Source("solved", version, "swapped" if swap else "no accepted artifact of yours")
    passed = accepted.get("version", "")
    if passed and passed != version:
        raise InputError(
            f"your {spec.topic} was accepted for another version of its lab",
            got=passed,
            expected=version,
            help=f"`mlsys-lab check {spec.topic}` accepts it again, if it still passes",
        )
    module = load_artifact(artifact, f"mlsys_capstone_{spec.field}")
    names = defined_names(module)
    if missing := [name for name in spec.required if name not in names]:
        why = find_lost(module, missing)
        reason = f"yours no longer runs: {why}" if why else f"yours does not define {', '.join(missing)}"
        return _load_solved(spec), Source("solved", version, reason)
    return names, Source("yours", passed or "not recorded")


def _load_solved(spec: LayerSpec) -> dict[str, Any]:
    """Names of the solved lab, run afresh: it runs on this stack's layers, another stack's on its own."""
    path = find_solved(spec.topic)
    if path is None:
        help_ = f"`mlsys-lab check {spec.topic}` accepts yours once it passes every check"
        raise InputError(f"nothing to load for the {spec.field} layer", got=f"no {spec.topic}", help=help_)
    artifact = Artifact.parse(path.name, export_solved(path.read_text(encoding="utf-8")))
    module = load_artifact(artifact, f"mlsys_capstone_{spec.field}")
    names = defined_names(module)
    _require(spec, names, lambda missing: str(find_lost(module, missing) or f"{path.name} does not define it"))
    return names


def _load_reference(spec: LayerSpec) -> dict[str, Any]:
    if not spec.reference:
        help_ = f"swap it for {SWAPS[0]!r}"
        raise InputError(f"the reference package has no {spec.field} layer with the lab's arguments", help=help_)
    modules = [importlib.import_module(name) for name in spec.reference]
    public = {name: value for module in modules[::-1] for name, value in vars(module).items() if name[0] != "_"}
    _require(spec, public, lambda missing: f"{', '.join(spec.reference)} define it nowhere")
    return public


def _require(spec: LayerSpec, names: Mapping[str, Any], why: Callable[[list[str]], str]) -> None:
    if missing := [name for name in spec.required if name not in names]:
        raise InputError(f"the {spec.field} layer has no {missing[0]}", got=why(missing))
