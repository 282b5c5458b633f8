"""JavaScript of the figures: text for notebooks, files for the site."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from mlsys_lab.errors import InputError

_FOLDER = files("mlsys_lab.widgets")
_DEPENDENCIES = {
    "all_reduce": ("common", "axes"),
    "attention_share": ("common", "axes", "config", "counts", "sizes"),
    "backward": ("common", "stepper", "graph", "picture"),
    "cache_fill": ("common", "stepper"),
    "clipping": ("common", "axes"),
    "decode_step": ("common", "axes", "config", "counts", "memory", "traffic", "layout", "bounds"),
    "denoising": ("common", "axes", "stepper"),
    "estimator": (
        *("common", "axes", "config", "counts"),
        *("memory", "traffic", "layout", "bounds", "estimate"),
        *("sizes", "devices", "address"),
    ),
    "isoflop": ("common", "axes"),
    "load": (),
    "number_line": ("common", "axes"),
    "occupancy": ("common", "axes"),
    "pipeline": ("common", "axes"),
    "planner": (
        *("common", "axes", "config", "counts"),
        *("memory", "traffic", "layout", "bounds", "estimate", "plan"),
        *("sizes", "devices"),
    ),
    "prediction_sheet": ("common", "axes", "config", "counts", "memory"),
    "ring": ("common", "stepper"),
    "scheduler": ("common", "axes", "stepper"),
    "sparsity": ("common", "axes"),
    "speculation": ("common", "axes"),
    "zero_stages": ("common", "axes", "memory"),
}
_SHARED = {part for parts in _DEPENDENCIES.values() for part in parts}
_SITE_ONLY = {"load"}
_NAMES = {Path(part.name).stem for part in _FOLDER.iterdir() if part.name.endswith(".js")} - _SHARED
FIGURES = tuple(sorted(_NAMES - _SITE_ONLY))
"""Names of the figures: each file `<name>.js` ends by registering `<mlsys-name>` and exporting `{ render }`."""


def esm(name: str) -> str:
    """Source of the ES module `name`, with its dependencies included."""
    if name not in _NAMES:
        raise InputError("no such figure module", got=repr(name), expected="one of " + ", ".join(sorted(_NAMES)))
    parts = (*_DEPENDENCIES.get(name, ("common",)), name)
    return "".join((_FOLDER / f"{part}.js").read_text(encoding="utf-8") for part in parts)


def write_modules(folder: Path) -> list[Path]:
    """Write every module to `folder` (the site's `_static/widgets`); pages load `load.js`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in sorted(_NAMES):
        path = folder / f"{name}.js"
        path.write_text(esm(name), encoding="utf-8")
        paths.append(path)
    return paths
