"""Measurement records as JSON: what was run, on which device, with which result; chapters and tests read them.

A record keeps its samples, so that every derived figure can be recomputed; loading checks them.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mlsys_lab.errors import InputError
from mlsys_lab.hardware.cpu import cpu_name

NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
PACKAGES = ("torch", "triton", "numpy", "numba", "transformers")


@dataclass(frozen=True)
class Bound:
    """The limit that a measurement is compared with, in the record's unit, and how that limit was obtained."""

    value: float
    how: str


@dataclass(frozen=True)
class Record:
    """One measurement: command, device, versions, seed, samples and, where there is one, the bound.

    `better` says whether higher or lower figures are better. `fraction_of_bound` is 1 at the bound and below 1 short of
    it. `power_limit_w` is None where it cannot be read.
    """

    name: str
    what: str
    command: str
    unit: str
    better: Literal["higher", "lower"]
    samples: tuple[float, ...]
    device: str
    power_limit_w: float | None
    versions: Mapping[str, str]
    seed: int
    taken: str
    bound: Bound | None = None
    notes: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InputError("a record is misnamed", got=repr(self.name), expected="words joined by hyphens")
        for what in ("what", "command", "unit", "device", "taken"):
            if not isinstance(getattr(self, what), str) or not getattr(self, what).strip():
                raise InputError(f"record {self.name}: {what!r} is empty")
        if not self.samples or not all(_is_number(value) for value in self.samples):
            raise InputError(f"record {self.name}: samples must be finite numbers, one or more")
        if self.better not in ("higher", "lower"):
            raise InputError(f"record {self.name}: 'better' is wrong", got=self.better, expected="higher or lower")
        if self.bound is not None and not (_is_number(self.bound.value) and self.bound.value > 0 and self.bound.how):
            raise InputError(f"record {self.name}: the bound needs a positive value and how it was obtained")

    @property
    def p20(self) -> float:
        """20th percentile of the samples, in the record's unit."""
        return float(np.percentile(self.samples, 20))

    @property
    def p50(self) -> float:
        """Median of the samples, in the record's unit: the figure to quote."""
        return float(np.percentile(self.samples, 50))

    @property
    def p80(self) -> float:
        """80th percentile of the samples, in the record's unit."""
        return float(np.percentile(self.samples, 80))

    @property
    def fraction_of_bound(self) -> float | None:
        """The median as a fraction of the bound, 1 at the bound; None without a bound."""
        if self.bound is None:
            return None
        return self.p50 / self.bound.value if self.better == "higher" else self.bound.value / self.p50

    def to_json(self) -> str:
        """The record as JSON: all fields and, for human readers, the percentiles of the samples."""
        derived = {name: getattr(self, name) for name in DERIVED}
        return json.dumps(asdict(self) | derived, indent=1, ensure_ascii=False) + "\n"

    def save(self, folder: Path) -> Path:
        """Write the record atomically to `folder/NAME.json` and return the path."""
        path = folder / f"{self.name}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_text(self.to_json(), encoding="utf-8")
            part.replace(path)
        except OSError as error:
            raise InputError(f"cannot write {path}", got=error.strerror) from None
        return path


DERIVED = ("p20", "p50", "p80", "fraction_of_bound")


def new_record(
    name: str,
    what: str,
    samples: Sequence[float],
    *,
    unit: str,
    better: Literal["higher", "lower"],
    command: str,
    seed: int,
    device: str = "cpu",
    bound: Bound | None = None,
    notes: str = "",
    parameters: Mapping[str, Any] | None = None,
) -> Record:
    """Make a record of samples just taken on "cpu" or "cuda"; fills in device, power limit, versions and time."""
    device_name, power_limit_w = _device(device)
    return Record(
        name=name,
        what=what,
        command=command,
        unit=unit,
        better=better,
        samples=tuple(float(value) for value in samples),
        device=device_name,
        power_limit_w=power_limit_w,
        versions=versions(),
        seed=seed,
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        bound=bound,
        notes=notes,
        parameters=dict(parameters or {}),
    )


def load(path: Path) -> Record:
    """Read and validate one record; `InputError` names the file and the problem."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such measurement record", got=path) from None
    except OSError as error:
        raise InputError(f"cannot read {path}", got=error.strerror) from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON", got=error) from None
    if not isinstance(document, dict):
        raise InputError(f"{path} is not a measurement record", got=type(document).__name__, expected="an object")
    known = {f.name for f in fields(Record)}
    wrong = sorted(set(document) ^ (known | set(DERIVED)))
    if wrong:
        state = "unknown" if wrong[0] in document else "missing"
        raise InputError(f"{path}: field {wrong[0]!r} is {state}")
    try:
        given = {name: document[name] for name in known}
        given["samples"] = tuple(document["samples"])
        given["bound"] = Bound(**document["bound"]) if document["bound"] is not None else None
        record = Record(**given)
    except TypeError as error:
        raise InputError(f"{path} is malformed", got=error) from None
    if record.name != path.stem:
        raise InputError(f"{path}: the record has another name", got=record.name, expected=path.stem)
    for name in DERIVED:
        stored, derived = document[name], getattr(record, name)
        if (stored is None) != (derived is None) or (
            derived is not None and not (_is_number(stored) and math.isclose(stored, derived, rel_tol=1e-9))
        ):
            raise InputError(f"{path}: {name!r} does not follow from the samples", got=stored, expected=derived)
    return record


def load_all(folder: Path) -> dict[str, Record]:
    """Read every record of a folder and return them by name."""
    return {path.stem: load(path) for path in sorted(folder.glob("*.json"))}


def versions() -> dict[str, str]:
    """Versions of Python, of the operating system, and of the installed packages that measurements depend on."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _device(device: str) -> tuple[str, float | None]:
    """Name and power limit in watts (None if it cannot be read) of "cpu" or "cuda"."""
    if device == "cpu":
        return f"{cpu_name()}, {os.cpu_count()} cores", None
    if device != "cuda":
        raise InputError("no record for this device", got=repr(device), expected="'cpu' or 'cuda'")
    import torch

    return torch.cuda.get_device_name(), _power_limit_w(torch.cuda.current_device())


@cache
def _power_limit_w(index: int) -> float | None:
    """Power limit in watts of GPU `index`, None if unknown; queried once per process, since that can take a second."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=power.limit", "--format=csv,noheader,nounits", f"--id={index}"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    try:
        return float(done.stdout.strip())
    except ValueError:  # "[N/A]" on devices that do not report it
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
