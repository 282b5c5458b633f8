"""A device's peak rates and sizes as a validated record, with its roofline and ridge point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType
from typing import Literal

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_positive

PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")


@dataclass(frozen=True)
class Link:
    """An interconnect to other devices or the host: `count` links, each with this bandwidth in EACH direction.

    Vendors usually quote the sum of both directions over all links, which is `total_bytes_per_s`.
    """

    kind: str
    count: int
    bytes_per_s_each_way: float

    def __post_init__(self) -> None:
        if self.count < 1 or not self.bytes_per_s_each_way > 0:
            raise InputError(f"link {self.kind!r} needs a positive count and bandwidth")

    @property
    def per_direction_bytes_per_s(self) -> float:
        """Bandwidth of all links together, in one direction."""
        return self.count * self.bytes_per_s_each_way

    @property
    def total_bytes_per_s(self) -> float:
        """Bandwidth of all links together, both directions added."""
        return 2 * self.per_direction_bytes_per_s


@dataclass(frozen=True)
class Device:
    """Peak rates and sizes of one device. Peaks are DENSE operations per second (a multiply-add is two), by precision.

    A peak is that of the fastest unit with that precision, tensor cores included and accumulating in fp32;
    `fp32` is full single precision on the vector units, since tensor cores round it to `tf32`. A unit is a GPU's
    streaming multiprocessor, a TPU's TensorCore, a CPU's core; sizes that are not published or do not apply are None.
    `warps_per_unit` and `blocks_per_unit` are the resident maxima of one multiprocessor. `source` is where the vendor
    publishes the figures; `checked` is the day on which peaks and memory were last compared with it, or None.
    """

    name: str
    kind: Literal["gpu", "tpu", "cpu"]
    year: int
    peaks: Mapping[str, float]
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    units: int
    source: str
    checked: date | None
    links: tuple[Link, ...] = ()
    fp32_lanes_per_unit: int | None = None
    clock_hz: float | None = None
    l2_bytes: int | None = None
    shared_bytes_per_unit: int | None = None
    register_bytes_per_unit: int | None = None
    compute_capability: tuple[int, int] | None = None
    warps_per_unit: int | None = None
    blocks_per_unit: int | None = None
    note: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if unknown := [name for name in self.peaks if name not in PRECISIONS]:
            raise InputError(f"{self.name}: unknown precision", got=unknown[0], expected=f"of {', '.join(PRECISIONS)}")
        amounts = {
            "peaks": min(self.peaks.values(), default=0.0),
            "memory_bytes": self.memory_bytes,
            "memory_bandwidth_bytes_per_s": self.memory_bandwidth_bytes_per_s,
            "units": self.units,
            "clock_hz": 1 if self.clock_hz is None else self.clock_hz,
        }
        require_positive(**{f"{self.name}: {what}": amount for what, amount in amounts.items()})
        if self.kind != "cpu" and not self.source.startswith("https://"):
            raise InputError(f"{self.name}: figures need a source", got=repr(self.source), expected="an https address")
        object.__setattr__(self, "peaks", MappingProxyType(dict(self.peaks)))

    def peak(self, precision: str) -> float:
        """Dense operations per second at a precision; `InputError` if the device has no unit for it."""
        if precision not in self.peaks:
            raise InputError(f"{self.name} has no {precision} peak", expected=f"one of {', '.join(self.peaks)}")
        return self.peaks[precision]

    def ridge_point(self, precision: str) -> float:
        """Arithmetic intensity (FLOP/byte) above which a kernel is compute-bound rather than memory-bound.

        Williams, Waterman and Patterson, "Roofline" (2009).
        """
        return self.peak(precision) / self.memory_bandwidth_bytes_per_s

    @property
    def fp32_lanes(self) -> int:
        """Lanes of all units, each doing one fp32 multiply-add per clock; InputError if they are not published."""
        if self.fp32_lanes_per_unit is None:
            raise InputError(f"{self.name}: lanes are not in the table", help="the vendor does not publish them")
        return self.units * self.fp32_lanes_per_unit

    def attainable(self, precision: str, intensity: float) -> float:
        """The roofline: operations per second at an intensity in FLOP/byte, min(peak, intensity·bandwidth)."""
        if not intensity >= 0:
            raise InputError("arithmetic intensity must not be negative", got=intensity, expected="FLOP per byte")
        return min(self.peak(precision), intensity * self.memory_bandwidth_bytes_per_s)

    def link(self, kind: str) -> Link:
        """The first link whose kind starts with `kind` ("NVLink", "PCIe", "ICI"), ignoring case; InputError if none."""
        for link in self.links:
            if link.kind.lower().startswith(kind.lower()):
                return link
        has = ", ".join(link.kind for link in self.links) or "no link in the table"
        raise InputError(f"{self.name} has no {kind}", expected=has)
