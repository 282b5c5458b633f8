"""Figures that others published, worked out from the table alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mlsys_lab.hardware import device

ORACLES = yaml.safe_load((Path(__file__).parents[1] / "oracles" / "hardware.yml").read_text(encoding="utf-8"))


def _computed(oracle: str) -> list[float]:
    h100, b200, v5e = device("H100"), device("B200"), device("TPU v5e")
    if oracle == "RL07":
        return [device("V100").ridge_point("fp16")]
    if oracle == "RL08":
        a100 = device("A100 40GB")
        return [a100.peak("tf32") / 1e12, a100.peak("fp16") / 1e12]
    if oracle == "RL09":
        return [v5e.ridge_point("bf16")]  # 2BDF operations for 2DF bytes of bf16 weights: B = ridge point
    if oracle == "RL11":
        return [v5e.ridge_point("bf16") / 2]  # half the bytes
    if oracle == "RL16":
        return [d.ridge_point(p) for p in ("fp16", "fp8") for d in (h100, b200)]
    if oracle == "GP01":
        return [d.units * (d.fp32_lanes_per_unit or 0) for d in (h100, b200, device("TPU v5p"))]
    if oracle == "GP02":
        return [h100.units * (h100.fp32_lanes_per_unit or 0) * (h100.clock_hz or 0) / 1e12]
    if oracle == "GP05":
        moved_bytes = 3 * 4  # two operands read, one sum written
        time_s = [n * moved_bytes / h100.memory_bandwidth_bytes_per_s for n in (2**16, 2**30)]
        return [1 / moved_bytes, time_s[0] * 1e6, time_s[1] * 1e3]
    if oracle == "GP06":
        warp_bytes = 32 * 256 * 4
        return [(h100.register_bytes_per_unit or 0) / warp_bytes]
    raise AssertionError(f"no computation for {oracle}")


@pytest.mark.parametrize("oracle", ORACLES["reproduced"], ids=lambda o: o["id"])
def test_published_figure(oracle: dict[str, object]) -> None:
    assert _computed(str(oracle["id"])) == pytest.approx(oracle["expected"], rel=oracle["rel_tol"])


def test_every_oracle_left_out_has_a_reason() -> None:
    assert all(reason.strip() for reason in ORACLES["not_from_the_table"].values())
