"""The learner's stack: `load("autograd")` gives their accepted code, and the solved lab's where there is none yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from mlsys_lab.errors import InputError
from mlsys_lab.stack.loading import load as load_artifact
from mlsys_lab.stack.loading import lost_cells
from mlsys_lab.stack.solved import load_solved
from mlsys_lab.stack.workspace import Workspace

__all__ = ["Layer", "defined_names", "load", "using"]

YOURS, SOLVED = "yours", "the solved lab's"
_given: ContextVar[Mapping[str, Layer] | None] = ContextVar("given", default=None)


class Layer:
    """One topic of the stack: its names as attributes; `sources` says whether each is yours or the solved lab's."""

    def __init__(self, topic: str, names: Mapping[str, Any], sources: Mapping[str, str]) -> None:
        self.topic, self.sources = topic, dict(sources)
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._names:
            raise AttributeError(f"the {self.topic} layer has no {name!r}; it has {', '.join(sorted(self._names))}")
        return self._names[name]

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._names]

    def __repr__(self) -> str:
        names: dict[str, list[str]] = {}
        for name, source in sorted(self.sources.items()):
            names.setdefault(source, []).append(name)
        first = YOURS if YOURS in names else next(iter(names), YOURS)
        rest = (f"; {source}: {', '.join(own)}" for source, own in names.items() if source != first)
        return f"{self.topic}: {first}{''.join(rest)}"


def load(topic: str, workspace: Workspace | None = None) -> Layer:
    """Load a topic: the names that the learner's accepted artifact defines, and the solved lab's for the remaining.

    Prints one line that says which is whose. `workspace` is the nearest around the current folder if None. Raises
    `InputError` where there is neither an accepted artifact nor a solved lab. Where accepted code no longer runs, the
    solved lab's takes its place, and a line says why. Inside the solved lab's own functions and classes, its own names
    are used, not the learner's. Within `using`, a layer that was given there is returned, and nothing printed.
    """
    if workspace is None and (given := (_given.get() or {}).get(topic)):
        return given
    workspace = workspace or Workspace.find()
    artifact = workspace.artifact(topic) if workspace else None
    solved = load_solved(topic)
    if artifact is None and solved is None:
        help_ = f"`mlsys-lab check {topic}` accepts yours once it passes every check"
        raise InputError("no such layer", got=repr(topic), expected="an accepted or a solved lab", help=help_)
    names = defined_names(solved) if solved else {}
    sources = dict.fromkeys(names, SOLVED)
    if artifact is None:
        print(f"{topic}: {SOLVED} (no accepted artifact of yours)")
        return Layer(topic, names, sources)
    built = load_artifact(artifact, f"mlsys_stack_{topic.replace('-', '_')}")
    own = defined_names(built)
    layer = Layer(topic, names | own, sources | dict.fromkeys(own, YOURS))
    print(layer)
    for lost in lost_cells(built):
        print(f"{topic}: no longer runs: {lost.error}")
    return layer


@contextmanager
def using(layers: Mapping[str, Layer]) -> Iterator[None]:
    """Within the block, `load` returns these layers, by topic: an artifact that is loaded there runs on them."""
    token = _given.set(layers)
    try:
        yield
    finally:
        _given.reset(token)


def defined_names(module: ModuleType) -> dict[str, Any]:
    """The public names that `module` defines itself, rather than importing them."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and _home(value, module.__name__) == module.__name__
    }


def _home(value: Any, default: str) -> str:
    """The module that defines a value: of a kernel, that of its function, since the kernel's class is Triton's."""
    function = vars(value).get("fn", value) if hasattr(value, "__dict__") else value
    return str(getattr(function, "__module__", default))
