"""What is timed of lab 04: interpreted here it gives what torch gives, as launched on a GPU it compiles and fits."""

from __future__ import annotations

import pytest
import torch

from mlsys_checks.sandboxed.performance import Performance
from mlsys_checks.sandboxed.triton import timed
from mlsys_checks.trusted.compare import tolerance
from mlsys_checks.trusted.triton import LAB, speed
from tests.kernels.compiled import compiled
from tests.labs.harness import labs, module_of

SOURCE = next(lab for lab in labs() if lab.info.topic == "triton").reference
TIMED = {check.name: check.performance for check in LAB.checks if check.performance is not None}
SMALL = {"ROWS": 5, "COLUMNS": 37, "SIDE": 48, "HEADS": 2, "TOKENS": 70, "WIDTH": 16}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that an interpreter is quick enough for."""
    for name, size in SMALL.items():
        monkeypatch.setattr(timed, name, size)


def test_three_tasks_have_points_for_speed() -> None:
    assert {name: one.points for name, one in TIMED.items()} == {
        "softmax_traffic": 2,
        "matmul_traffic": 4,
        "flash_traffic": 4,
    }


@pytest.mark.parametrize("performance", TIMED.values(), ids=TIMED)
def test_the_reference_gives_what_the_library_gives(performance: Performance, small: None) -> None:
    inputs = performance.make(7, "cpu")
    got, want = performance.call(module_of(SOURCE, "triton"), *inputs), performance.library(*inputs)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    error = (got.double() - want.double()).norm() / want.double().norm()
    assert error < tolerance(str(want.dtype).removeprefix("torch."))


@pytest.mark.parametrize("performance", TIMED.values(), ids=TIMED)
def test_inputs_come_from_the_seed(performance: Performance, small: None) -> None:
    first, again, other = (performance.make(seed, "cpu") for seed in (7, 7, 8))
    for place, one in enumerate(first):
        assert torch.equal(one, again[place])
        assert not (one == other[place]).float().mean() > 0.1


def test_launches_at_full_size_compile_for_an_h100_and_fit_small_gpus() -> None:
    program = f"""
SOURCE = {SOURCE!r}
import torch
from mlsys_checks.sandboxed.triton import timed
from mlsys_lab.stack.artifact import Artifact
from mlsys_checks.sandboxed.kernels.loading import load_kernels

artifact = load_kernels(Artifact.parse("lab.ipynb", SOURCE))
half = dict(dtype=torch.float16, device="meta")
timed.softmax(artifact, torch.empty(timed.ROWS, timed.COLUMNS, device="meta"))
timed.matmul(artifact, *(torch.empty(timed.SIDE, timed.SIDE, **half) for _ in "ab"))
timed.flash(artifact, *(torch.empty(timed.HEADS, timed.TOKENS, timed.WIDTH, **half) for _ in "qkv"))
"""
    made = compiled(program)
    assert [one.kernel for one in made] == ["softmax_kernel"] * timed.TURNS + ["matmul_kernel", "flash_kernel"]
    assert [one.kernel for one in made if one.stack_bytes] == []
    assert all(one.shared_bytes <= 64 * 1024 for one in made)
    assert {one.kernel for one in made if "mma" in one.ptx} == {"matmul_kernel", "flash_kernel"}


def test_work_is_what_no_kernel_can_do_without() -> None:
    kinds = {name: one.work for name, one in TIMED.items()}
    assert all(work is not None for work in kinds.values())
    assert speed.SOFTMAX.work is not None and speed.SOFTMAX.work.size_bytes == 16 * 8192 * 4096 * 8
    assert speed.MATMUL.work is not None and speed.MATMUL.work.flops == 2 * 8192**3
    pairs = sum(query + 1 for query in range(timed.TOKENS))
    assert speed.FLASH.work is not None and speed.FLASH.work.flops == 4 * timed.WIDTH * pairs * timed.HEADS
