"""The learner's stack: `load("autograd")` gives their accepted code, and the course's where there is none yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from mlsys_lab.stack.loading import load as load_artifact
from mlsys_lab.stack.loading import lost_cells
from mlsys_lab.stack.reference import load_reference
from mlsys_lab.stack.workspace import Workspace

__all__ = ["Layer", "load"]

YOURS, COURSE = "yours", "the course's"


class Layer:
    """One topic of the stack: its names as attributes; `sources` says whether each is yours or the course's."""

    def __init__(self, topic: str, names: Mapping[str, Any], sources: Mapping[str, str]) -> None:
        self.topic, self.sources = topic, dict(sources)
        self._names = dict(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._names:
            raise AttributeError(f"the {self.topic} layer has no {name!r}; it has {', '.join(sorted(self._names))}")
        return self._names[name]

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._names]

    def __repr__(self) -> str:
        told = []
        for source in (YOURS, COURSE):
            if names := sorted(name for name, whose in self.sources.items() if whose == source):
                told.append(f"{source}: {', '.join(names)}")
        return f"{self.topic}: {'; '.join(told)}"


def load(topic: str, workspace: Workspace | None = None) -> Layer:
    """Load a topic: the names of the learner's accepted artifact first, the reference's for the rest.

    Prints one line that says which is whose. `workspace` is the nearest around the current folder if None. Raises
    `InputError` for a topic that the course does not have. Accepted code that no longer runs gives way to the course's,
    and a line says why. A name that the learner defined never replaces the one that the reference's own classes use
    inside.
    """
    reference = load_reference(topic)
    names = {name: getattr(reference, name) for name in _public(reference)}
    sources = dict.fromkeys(names, COURSE)
    workspace = workspace or Workspace.find()
    artifact = workspace.artifact(topic) if workspace else None
    if artifact is not None:
        built = load_artifact(artifact, f"mlsys_stack_{topic.replace('-', '_')}")
        own = {name: getattr(built, name) for name in _public(built) if _is_defined_by(built, getattr(built, name))}
        names.update(own)
        sources.update(dict.fromkeys(own, YOURS))
    layer = Layer(topic, names, sources)
    print(layer if artifact is not None else f"{topic}: {COURSE} (no accepted artifact of yours)")
    for lost in lost_cells(built) if artifact is not None else []:
        print(f"{topic}: no longer runs: {lost.error}")
    return layer


def _public(module: ModuleType) -> list[str]:
    return [str(name) for name in getattr(module, "__all__", vars(module)) if not name.startswith("_")]


def _is_defined_by(module: ModuleType, value: Any) -> bool:
    """Whether `module` defined `value` itself, rather than importing it."""
    return not isinstance(value, ModuleType) and getattr(value, "__module__", module.__name__) == module.__name__
