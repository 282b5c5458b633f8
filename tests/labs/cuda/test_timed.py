"""What is timed of lab 03: emulated here it gives what torch gives, and for a GPU it compiles and fits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from mlsys_checks.sandboxed.cuda import timed
from mlsys_checks.sandboxed.performance import Performance
from mlsys_checks.trusted.compare import tolerance
from mlsys_checks.trusted.cuda import LAB
from mlsys_lab.errors import InputError
from mlsys_lab.kernels.cuda_cpp import compile_cuda
from mlsys_lab.kernels.cuda_cpp.emulator import Emulator
from tests.kernels.cuda_cpp.tools import needs_gxx
from tests.labs.harness import PROJECT, artifact_of, labs, module_of, released_notebook

LAB_03 = next(lab for lab in labs() if lab.info.topic == "cuda")
TIMED = {check.name: check.performance for check in LAB.checks if check.performance is not None}
MUTANTS = {
    "no barrier after the tile is written": ("transpose", "    __syncthreads();\n", ""),
    "rows and columns of the tile are not exchanged": ("transpose", "tile[tx][ty + k];", "tile[ty + k][tx];"),
    "y is guarded by the sides of x": (
        "transpose",
        "(row < columns && column < rows)",
        "(row < rows && column < columns)",
    ),
    "no barrier between filling and multiplying": ("matmul", "        __syncthreads();\n        for", "        for"),
    "no barrier before the tiles are filled anew": ("matmul", "        __syncthreads();\n    }", "    }"),
    "b is read by columns": ("matmul", "b[(size_t)(start + ty) * n + column]", "b[(size_t)column * k + start + ty]"),
    "what lies outside is not zero": ("matmul", "row < m && start + tx < k ? ", "row < m ? "),
}


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return module_of(LAB_03.reference, "reference.ipynb")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulated")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that emulated threads are quick enough for."""
    for name, size in {"TURNED": (33, 65), "TURNS": 3, "EDGE": 48}.items():
        monkeypatch.setattr(timed, name, size)


def right(kernel: str, artifact: Any, sizes: tuple[int, ...], launch: Emulator) -> bool:
    """Whether a kernel gives what torch gives, of integers, whose sums are exact."""
    if kernel == "transpose":
        (x,) = numbers(sizes)
        return torch.equal(timed.transpose(artifact, x, launch=launch), x.T.contiguous().view(sizes))
    m, k, n = sizes
    a, b = numbers((m, k), (k, n))
    return torch.equal(timed.matmul(artifact, a, b, launch=launch), a @ b)


def fails(kernel: str, artifact: Any, sizes: tuple[int, ...], launch: Emulator) -> bool:
    """Whether a kernel gives something else, or the emulator reports a race, or an access to what is not there."""
    try:
        return not right(kernel, artifact, sizes, launch)
    except InputError:
        return True


def numbers(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(-8, 9, shape, generator=generator).float() for shape in shapes]


def mutant_of(artifact: Any, kernel: str, old: str, new: str) -> SimpleNamespace:
    text = getattr(artifact, f"{kernel}_cpp")()
    assert text.count(old) == 1
    changed = text.replace(old, new)
    return SimpleNamespace(**{f"{kernel}_cpp": lambda: changed, "CPP_TILE": artifact.CPP_TILE})


def test_two_checks_have_points_for_speed() -> None:
    assert {name: one.points for name, one in TIMED.items()} == {"transpose_cpp": 2, "matmul_cpp": 4}


def test_the_task_says_from_where_to_where_points_rise() -> None:
    transpose, matmul = TIMED.values()
    text = " ".join(LAB_03.source.read_text(encoding="utf-8").replace("\n# ", " ").split())
    assert f"{transpose.points:g} points for a transpose at {transpose.target:g} of its speed" in text
    assert f"{matmul.points:g} for a matrix product at {matmul.target:g} of cuBLAS" in text
    assert f"from {transpose.start:g} and {matmul.start:g} on" in text


@needs_gxx
@pytest.mark.parametrize("last_first", (False, True), ids=("first-to-last", "last-to-first"))
@pytest.mark.parametrize(
    ("kernel", "sizes"),
    (
        ("transpose", (33, 65)),
        ("transpose", (1, 1)),
        ("transpose", (32, 64)),
        ("matmul", (70, 37, 50)),
        ("matmul", (1, 1, 1)),
        ("matmul", (64, 16, 128)),
    ),
    ids=str,
)
def test_the_reference_is_right_at_any_size(
    kernel: str,
    sizes: tuple[int, ...],
    last_first: bool,
    reference: ModuleType,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timed, "TURNS", 1)
    assert right(kernel, reference, sizes, Emulator(reversed=last_first))


@needs_gxx
@pytest.mark.parametrize(("kernel", "old", "new"), MUTANTS.values(), ids=MUTANTS)
def test_a_mistake_gives_another_result_or_is_seen_in_its_accesses(
    kernel: str, old: str, new: str, reference: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed, "TURNS", 1)
    mutant, sizes = mutant_of(reference, kernel, old, new), (33, 65) if kernel == "transpose" else (20, 37, 50)
    assert any(fails(kernel, mutant, sizes, Emulator(reversed=last_first)) for last_first in (False, True))


@needs_gxx
@pytest.mark.parametrize("performance", TIMED.values(), ids=TIMED)
def test_what_is_timed_gives_what_the_library_gives(
    performance: Performance, reference: ModuleType, folder: Path, small: None
) -> None:
    inputs = performance.make(7, "cpu")
    got = performance.call(reference, *inputs, launch=Emulator())
    want = performance.library(*inputs)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert (got - want).norm() < tolerance("float32") * want.norm()


@pytest.mark.parametrize("kernel", ("transpose", "matmul"))
def test_the_reference_compiles_for_an_h100_and_fits(kernel: str, reference: ModuleType) -> None:
    text = getattr(reference, f"{kernel}_cpp")()
    used = compile_cuda(text, (kernel,), name=f"{kernel}.cu", arch="sm_90").resources[kernel]
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert used.shared_bytes <= 48 * 1024
    assert used.registers * 256 * 2 <= 65536, "two blocks of 256 threads on a multiprocessor"


@pytest.mark.parametrize("performance", TIMED.values(), ids=TIMED)
def test_inputs_come_from_the_seed(performance: Performance, small: None) -> None:
    first, again, other = (performance.make(seed, "cpu") for seed in (7, 7, 8))
    for place, one in enumerate(first):
        assert torch.equal(one, again[place])
        assert (one != other[place]).float().mean() > 0.9


def test_the_launcher_needs_no_module_that_the_lab_withholds() -> None:
    program = "import sys, mlsys_lab.kernels.cuda_cpp; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert set(LAB_03.info.withheld) & set(ran.stdout.split()) == set()


def test_transposes_in_a_row_are_not_one() -> None:
    """One takes element i to i · rows modulo (elements - 1), `TURNS` of them to i · rows^TURNS."""
    rows, columns = timed.TURNED
    elements = rows * columns
    in_a_row = pow(rows, timed.TURNS, elements - 1)
    assert elements % in_a_row != 0, "as many rows would do it at once"


def test_the_blank_release_says_what_is_still_to_do() -> None:
    module = module_of(artifact_of(released_notebook(LAB_03), "blank.ipynb").source, "blank.ipynb")
    assert module.CPP_TILE == 64
    for kernel, inputs in (("transpose", numbers((4, 4))), ("matmul", numbers((4, 4), (4, 4)))):
        with pytest.raises(NotImplementedError, match=f"still to do: Task 8 · .*`{kernel}_cpp`"):
            getattr(timed, kernel)(module, *inputs)


@pytest.mark.parametrize(
    ("written", "told"),
    (
        ({"matmul_cpp": lambda: None}, r"matmul_cpp\(\) gives no text: got None, as from .*, expected str"),
        ({"CPP_TILE": 0}, "CPP_TILE is no side of a tile: got 0, expected a whole number from 1 on"),
        ({"CPP_TILE": 64.0}, r"CPP_TILE is not a whole number: got float 64\.0, expected int"),
        ({"matmul_cpp": lambda: "__global__ void product() {}"}, "matmul.cu has no such kernel: got 'matmul'"),
    ),
)
def test_what_cannot_be_launched_is_told(written: dict[str, Any], told: str, folder: Path) -> None:
    artifact = SimpleNamespace(**{"CPP_TILE": 64, "matmul_cpp": str, **written})
    with pytest.raises(InputError, match=told):
        timed.matmul(artifact, *numbers((4, 4), (4, 4)), launch=Emulator())
