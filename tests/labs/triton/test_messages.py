"""What lab 04's checks say is wrong, beyond the numbers."""

from __future__ import annotations

import pytest

from mlsys_checks.live import LiveChecks
from mlsys_checks.runner import run_check
from mlsys_checks.sandboxed.spec import Mismatch
from mlsys_lab.errors import CourseError
from tests.labs.harness import kernels_of, labs, live_names, module_of

LAB = next(lab for lab in labs() if lab.info.topic == "triton")
WHY = "; slots and pages that no token has filled hold NaN, and 0 · NaN is NaN too"


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("v = tl.load(v_ptr + k_at, mask=there[:, None], other=0.0)", "v = tl.load(v_ptr + k_at)", True),
        ("tl.load(table_ptr + sequence * most_pages + page)", "sequence * most_pages + page", True),
        ("range(0, tl.cdiv(length, PAGE))", "range(0, length // PAGE)", False),
        ("there = page * PAGE + slots < length", "there = page * PAGE + slots <= length", True),
        ('scores = tl.where(there[None, :], scores, -float("inf"))', "scores += 0.0", False),
    ],
)
def test_unfilled_slots_are_named_where_they_were_read(right: str, wrong: str, said: bool) -> None:
    assert LAB.reference.count(right) == 1
    mistake = kernels_of(module_of(LAB.reference.replace(right, wrong), "mistake.ipynb"))
    mismatch = run_check(LAB.checks["decode"], mistake).mismatch
    assert mismatch is not None and mismatch.what.endswith(WHY) == said


def both_ways(check: str, source: str) -> list[Mismatch | None]:
    """What the notebook's own check and the grader's say of a text of exported cells."""
    names = live_names(source)
    try:
        LiveChecks(LAB.checks, names)(check)
        live = None
    except CourseError as error:
        live = Mismatch(str(error))
    return [live, run_check(LAB.checks[check], kernels_of(module_of(source, "mistake.ipynb")), hidden=True).mismatch]


HEAD = "@triton.jit\ndef silu_mul_kernel"
SUMS = "sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)"


@pytest.mark.parametrize(
    "written",
    ["import triton as tr\n@tr.jit\ndef silu_mul_kernel", "from triton import jit as j\n@j\ndef silu_mul_kernel"],
)
def test_a_kernel_under_an_alias_counts_in_the_notebook_and_for_the_grader(written: str) -> None:
    assert both_ways("silu_mul", LAB.reference.replace(HEAD, written)) == [None, None]


PARAMETERS = "(gate_ptr, up_ptr, y_ptr, size, BLOCK: tl.constexpr):"


@pytest.mark.parametrize(
    "written",
    [
        "(gate_ptr, up_ptr, y_ptr, size: int, BLOCK: tl.constexpr):",
        "(gate_ptr: torch.Tensor, up_ptr: torch.Tensor, y_ptr: 'out', size: tl.int64, BLOCK: tl.constexpr) -> None:",
    ],
)
def test_annotations_cost_nothing_in_the_notebook_and_for_the_grader(written: str) -> None:
    assert LAB.reference.count(PARAMETERS) == 1
    source = LAB.reference.replace(PARAMETERS, written).replace(HEAD, f"import torch\n{HEAD}")
    assert both_ways("silu_mul", source) == [None, None]


@pytest.mark.parametrize(
    ("check", "right", "wrong", "said"),
    [
        ("silu_mul", "tl.sigmoid(gate)", "TABLE[0]", "`TABLE` is nothing that kernel"),
        ("silu_mul", HEAD, "def silu_mul_kernel", "is a plain function, no kernel"),
        ("silu_mul", "tl.sigmoid(gate)", "torch.sigmoid(gate)", "`torch.sigmoid` is nothing that kernel"),
        ("silu_mul", "size, BLOCK", "size: tl.int8, BLOCK", "annotation that a kernel's parameter cannot have"),
        ("silu_mul", "(gate_ptr,", "(gate_ptr: int,", "annotated with a type that its argument does not have"),
    ],
)
def test_what_loses_for_the_grader_loses_in_the_notebook_for_the_same_cause(
    check: str, right: str, wrong: str, said: str
) -> None:
    source = LAB.reference.replace(right, wrong, 1)
    found = both_ways(check, source.replace(HEAD, f"import torch\nTABLE = [1.0, 2.0]\n{HEAD}"))
    assert all(one is not None and said in one.what for one in found), found


@pytest.mark.parametrize(
    ("check", "right", "wrong", "got", "expected"),
    [
        ("matmul", SUMS, SUMS.replace("float32", "float16"), "a sum that `tl.dot` cannot add to", "float32"),
        ("matmul", "sums = tl.dot(a, b, sums)", "sums += a @ b", "for @", "tl.dot(a, b)"),
        ("softmax", "tl.max(x, axis=0)", "max(x)", "used as a list", "tl.max(x, axis=0)"),
        ("silu_mul", "tl.load(gate_ptr + at, mask=inside)", "gate_ptr[at]", "used as a list", "tl.load"),
        ("silu_mul", "size, BLOCK: tl.constexpr", "size, BLOCK", "must be of type tl.constexpr", ": tl.constexpr`"),
        ("silu_mul", "mask=inside)", "mask=inside and at >= 0)", "as one: blocks take &", ""),
        ("silu_mul", "mask=inside)", "mask=not (at >= size))", "as one: blocks take &", ""),
        (
            "silu_mul",
            "y_ptr, size, BLOCK",
            "y_ptr, BLOCK",
            "silu_mul_kernel(gate_ptr, up_ptr, y_ptr, BLOCK)",
            "4 param",
        ),
    ],
)
def test_what_stops_a_kernel_is_told_with_its_cause_and_what_to_write(
    check: str, right: str, wrong: str, got: str, expected: str
) -> None:
    source = LAB.reference.replace(right, wrong, 1).replace(
        "at < size", "at < 37" if "4 param" in expected else "at < size"
    )
    mismatch = run_check(LAB.checks[check], kernels_of(module_of(source, "mistake.ipynb"))).mismatch
    assert mismatch is not None and got in mismatch.got and expected in mismatch.expected, mismatch
