"""The table of devices: consistent in itself, and reproducing published figures (tests/oracles)."""

from __future__ import annotations

import dataclasses
from datetime import date

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.hardware import DEVICES, Device, Link, device
from mlsys_lab.hardware.devices import read_device

WITH_CLOCK = [d for d in DEVICES if d.clock_hz and d.fp32_lanes_per_unit]


def test_what_is_sold_as_gb_of_a_gpu_s_memory_is_gib() -> None:
    assert [one.name for one in DEVICES if one.kind == "gpu" and one.memory_bytes % 2**30] == []
    for name, reported_mib in (("B200", 183_359), ("B300", 275_040)):  # by nvidia-smi
        assert 0.99 < reported_mib * 2**20 / device(name).memory_bytes < 1


def test_table_has_the_devices_that_the_course_talks_about() -> None:
    wanted = "V100,A100 40GB,A100 80GB,H100,H200,B200,B300,RTX 3090,RTX 4090,T4,L4,TPU v4,TPU v5e,TPU v5p,TPU v6e"
    assert [d.name for d in DEVICES] == wanted.split(",")


@pytest.mark.parametrize("entry", WITH_CLOCK, ids=lambda d: d.name)
def test_fp32_peak_is_lanes_times_clock_times_two(entry: Device) -> None:
    assert entry.clock_hz
    expected = 2 * entry.fp32_lanes * entry.clock_hz
    assert entry.peak("fp32") == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("entry", DEVICES, ids=lambda d: d.name)
def test_halving_the_width_never_lowers_a_peak(entry: Device) -> None:
    chain = [entry.peaks[p] for p in ("tf32", "bf16", "fp8", "fp4") if p in entry.peaks]
    assert chain == sorted(chain)
    if "bf16" in entry.peaks and "fp16" in entry.peaks:
        assert entry.peak("bf16") == entry.peak("fp16")


@pytest.mark.parametrize(
    ("name", "kind", "total_gb"),
    [
        ("V100", "NVLink", 300),
        ("A100 80GB", "NVLink", 600),
        ("H100", "NVLink", 900),
        ("B200", "NVLink", 1800),
        ("B300", "NVLink", 1800),
        ("RTX 3090", "NVLink", 112.5),
        ("TPU v5e", "ICI", 400),
        ("TPU v5p", "ICI", 1200),
        ("TPU v6e", "ICI", 800),
    ],
)
def test_links_add_up_to_what_vendors_print(name: str, kind: str, total_gb: float) -> None:
    link = device(name).link(kind)
    assert link.total_bytes_per_s == pytest.approx(total_gb * 1e9)
    assert link.per_direction_bytes_per_s == link.total_bytes_per_s / 2


def test_no_dense_peak_is_a_sparse_figure() -> None:
    # The figures with 2:4 sparsity, as data sheets print them first.
    sparse = {"H100": 1978.9e12, "A100 80GB": 624e12, "L4": 242e12, "B200": 4500e12}
    for name, figure in sparse.items():
        assert device(name).peak("bf16") == pytest.approx(figure / 2, rel=0.001)


@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("h100", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("tpu V5E", "TPU v5e"),
        ("Tesla V100-SXM2-16GB", "V100"),
    ],
)
def test_lookup_takes_a_drivers_spelling(spelt: str, name: str) -> None:
    assert device(spelt).name == name


@pytest.mark.parametrize(
    ("spelt", "said"),
    [
        ("A100", "did you mean 'A100 40GB' or 'A100 80GB'?"),
        ("H10", "did you mean 'H100'?"),
        ("", "one of V100"),
        ("NVIDIA H100 PCIe", "SXM module only"),
        ("quantum", "one of V100"),
        ("TPU", "'TPU v4' or 'TPU v5e'"),
    ],
)
def test_unknown_name_is_one_line_that_helps(spelt: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        device(spelt)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_missing_precision_and_link_are_named() -> None:
    with pytest.raises(InputError, match="V100 has no bf16 peak: expected one of fp64, fp32, fp16"):
        device("V100").peak("bf16")
    with pytest.raises(InputError, match="TPU v5e: lanes are not in the table"):
        _ = device("TPU v5e").fp32_lanes
    with pytest.raises(InputError, match=r"RTX 4090 has no NVLink: expected PCIe 4\.0 x16"):
        device("RTX 4090").link("NVLink")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peaks": {"bf17": 1.0}}, "unknown precision"),
        ({"peaks": {}}, "peaks must be positive"),
        ({"peaks": {"fp32": float("nan")}}, "peaks must be positive"),
        ({"memory_bandwidth_bytes_per_s": 0.0}, "memory_bandwidth_bytes_per_s must be positive"),
        ({"units": -1}, "units must be positive"),
        ({"source": "somewhere"}, "need a source"),
    ],
)
def test_a_wrong_row_is_refused(change: dict[str, object], said: str) -> None:
    good = {f.name: getattr(device("H100"), f.name) for f in dataclasses.fields(Device)}
    with pytest.raises(InputError, match=said):
        Device(**(good | change))


ROW = {
    "name": "Z1",
    "kind": "gpu",
    "year": 2026,
    "peaks_tflops": {"bf16": 2},
    "memory_gib": 1,
    "memory_bandwidth_gb_per_s": 3,
    "units": 4,
    "links": [{"kind": "PCIe", "count": 1, "gb_per_s": 5}],
    "source": "https://example.org",
}


def test_a_row_is_read_into_base_units() -> None:
    read = read_device(ROW | {"clock_mhz": 6, "l2_mib": 7, "shared_kib_per_unit": 8, "compute_capability": [9, 0]})
    assert (read.peaks, read.memory_bytes, read.memory_bandwidth_bytes_per_s) == ({"bf16": 2e12}, 2**30, 3e9)
    assert (read.clock_hz, read.l2_bytes, read.shared_bytes_per_unit) == (6e6, 7 * 2**20, 8 * 2**10)
    assert read.links == (Link("PCIe", 1, 5e9),) and read.compute_capability == (9, 0) and read.checked is None


@pytest.mark.parametrize("key", ["l3_mib", "clok_mhz", "memory_gbit"])
def test_a_row_with_an_unknown_key_is_refused(key: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        read_device(ROW | {key: 1})


def test_a_link_without_bandwidth_is_refused() -> None:
    with pytest.raises(InputError, match="positive"):
        Link("NVLink", 4, 0.0)


def test_peaks_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        device("H100").peaks["bf16"] = 1.0  # type: ignore[index]


def test_roofline_meets_at_the_ridge() -> None:
    h100 = device("H100")
    ridge = h100.ridge_point("bf16")
    assert h100.attainable("bf16", ridge) == pytest.approx(h100.peak("bf16"))
    assert h100.attainable("bf16", ridge / 4) == pytest.approx(h100.peak("bf16") / 4)
    assert h100.attainable("bf16", ridge * 4) == h100.peak("bf16")
    with pytest.raises(InputError, match="must not be negative"):
        h100.attainable("bf16", -1.0)


def test_gpus_hold_what_their_compute_capability_says() -> None:
    # Warps and blocks on a multiprocessor: Compute Capabilities, in the appendices of the CUDA Programming Guide.
    most = {(7, 0): (64, 32), (7, 5): (32, 16), (8, 0): (64, 32), (8, 6): (48, 16), (8, 9): (48, 24), (9, 0): (64, 32)}
    most[10, 0] = most[10, 3] = (64, 32)
    for entry in DEVICES:
        held = (entry.warps_per_unit, entry.blocks_per_unit)
        assert held == (most[entry.compute_capability] if entry.compute_capability else (None, None))
        assert (entry.compute_capability is not None) == (entry.kind == "gpu")
    assert device("H100").compute_capability == device("H200").compute_capability == (9, 0)
    assert device("A100 80GB").compute_capability == (8, 0) and device("RTX 3090").compute_capability == (8, 6)


def test_rows_were_checked_on_a_day_that_has_been_or_say_that_they_were_not() -> None:
    assert all(date(2026, 1, 1) <= entry.checked <= date.today() for entry in DEVICES if entry.kind == "tpu")
    assert all(entry.checked is None for entry in DEVICES if entry.kind == "gpu"), "their data sheets were not opened"
