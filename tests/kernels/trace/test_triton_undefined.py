"""Undefined lanes of masked loads: where they take effect, and where they do no harm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mlsys_lab.kernels.trace.events import ADDRESS, BRANCH, MASK, STORED, Trace
from mlsys_lab.kernels.trace.findings import findings
from mlsys_lab.kernels.trace.report import report
from mlsys_lab.kernels.trace.triton_interpreter import record
from mlsys_lab.kernels.triton_language import tl, triton


@triton.jit
def softmax(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + at, mask=inside)
    largest = tl.max(x, axis=0)
    e = tl.where(inside, tl.exp(x - largest), 0.0)
    tl.store(y_ptr + at, e / tl.sum(e, axis=0), mask=inside)


@triton.jit
def harmful(x_ptr, y_ptr, n, BLOCK: tl.constexpr, HOW: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    pair = tl.join(x, x)
    if HOW == "store":
        tl.store(y_ptr + i, x + 1)
    elif HOW == "address":
        tl.store(y_ptr + x, i)
    elif HOW == "mask":
        tl.store(y_ptr + i, i, mask=x > 3)
    elif HOW == "branch":
        if tl.max(x, axis=0) > 3:
            tl.store(y_ptr, 1)
    elif HOW == "loop":
        for _ in range(tl.max(x, axis=0)):
            tl.store(y_ptr, 1)
    elif HOW == "scan":
        tl.store(y_ptr + i, tl.cumsum(x, axis=0, reverse=True), mask=i < n)
    elif HOW == "argmax":
        tl.store(y_ptr, tl.argmax(x, axis=0))
    elif HOW == "dot":
        wide = (x[:, None] + tl.zeros((BLOCK, BLOCK), tl.int32)).to(tl.float32)
        tl.store(y_ptr + i, tl.sum(tl.dot(tl.trans(wide), wide, input_precision="ieee"), axis=0).to(tl.int32))
    elif HOW == "gather":
        tl.store(y_ptr + i, tl.gather(x, BLOCK - 1 - i, axis=0), mask=i < n)
    elif HOW == "select":
        tl.store(y_ptr + i, tl.where(x > 3, 1, 0))
    elif HOW == "split":
        left, right = tl.split(pair)
        tl.store(y_ptr + i, tl.reshape(tl.join(left, right), [2 * BLOCK]).reshape([BLOCK, 2]).sum(axis=1))
    elif HOW == "atomic":
        tl.atomic_add(y_ptr + i, x)


@triton.jit
def harmless(x_ptr, y_ptr, n, BLOCK: tl.constexpr, HOW: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside)
    if HOW == "masked store":
        tl.store(y_ptr + i, x * x + 1, mask=inside)
    elif HOW == "where":
        tl.store(y_ptr + i, tl.where(inside, x, 0) + tl.sum(tl.where(inside, x, 0), axis=0))
    elif HOW == "and":
        tl.store(y_ptr + i, x, mask=(x > 1) & inside)
    elif HOW == "or":
        tl.store(y_ptr + i, tl.where((x > 1) | (i >= n), 1, 2))
    elif HOW == "times zero":
        tl.store(y_ptr, tl.sum(x * inside.to(tl.int32), axis=0))
    elif HOW == "other":
        tl.store(y_ptr, tl.max(tl.load(x_ptr + i, mask=inside, other=0), axis=0))
    elif HOW == "rows":
        rows = tl.load(x_ptr + i[:, None] + 0 * i[None, :], mask=inside[:, None] & (i >= 0)[None, :])
        tl.store(y_ptr + i, tl.sum(tl.trans(rows).T, axis=1), mask=inside)
    elif HOW == "flip":
        tl.store(y_ptr + i, tl.flip(x, 0), mask=tl.flip(inside.to(tl.int32), 0) == 1)
    elif HOW == "scan":
        tl.store(y_ptr + i, tl.cumsum(x, axis=0), mask=inside)
    elif HOW == "unused":
        tl.store(y_ptr, tl.where(n > 0, 1, tl.max(x, axis=0)))


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return 1 + lines.index(next(line for line in lines if line.strip() == text))


def traced(kernel: object, how: str) -> tuple[Trace, torch.Tensor]:
    y = torch.zeros(16, dtype=torch.int32)
    return record(kernel, 1, torch.arange(13, dtype=torch.int32), y, 13, BLOCK=16, HOW=how), y


def test_a_maximum_of_undefined_lanes_is_told_with_its_lines() -> None:
    x, y = torch.full((2, 6), -1e5), torch.empty(2, 6)
    trace = record(softmax, 2, x, y, 6, BLOCK=8, outputs=["y_ptr"])
    load, reduction, store = (
        "x = tl.load(x_ptr + at, mask=inside)",
        "largest = tl.max(x, axis=0)",
        ("tl.store(y_ptr + at, e / tl.sum(e, axis=0), mask=inside)"),
    )
    sentence = (
        f"line {line_of(load)} `{load}`: masked load without `other` reaches a reduction at line {line_of(reduction)} "
        f"`{reduction}`, and the result is stored at line {line_of(store)} `{store}` "
        "(first: program 0, element (0, 0) of (2, 6) of y_ptr)"
    )
    assert report(trace).problems == (sentence,)
    assert findings(trace)["wrong"] == sentence
    assert y.isnan().all(), "what is undefined is no right answer"
    full = torch.full((2, 8), -1e5)
    assert record(softmax, 2, full, torch.empty(2, 8), 8, BLOCK=8, outputs=["y_ptr"]).undefined == ()


@pytest.mark.parametrize(
    ("how", "effects"),
    [
        ("store", [(False, STORED)]),
        ("address", [(False, ADDRESS)]),
        ("mask", [(False, MASK)]),
        ("branch", [(True, BRANCH)]),
        ("loop", [(True, BRANCH)]),
        ("scan", [(True, STORED)]),
        ("argmax", [(True, STORED)]),
        ("dot", [(True, STORED)]),
        ("gather", [(False, STORED)]),
        ("select", [(False, STORED)]),
        ("split", [(True, STORED)]),
        ("atomic", [(False, STORED)]),
    ],
)
def test_undefined_integers_are_followed_to_where_they_take_effect(how: str, effects: list[tuple[bool, str]]) -> None:
    trace, _ = traced(harmful, how)
    assert sorted((one.reduction >= 0, one.effect) for one in trace.undefined) == sorted(effects)
    assert {trace.sites[one.load].text for one in trace.undefined} == {"x = tl.load(x_ptr + i, mask=i < n)"}
    assert len(report(trace).problems) >= len(effects)


@pytest.mark.parametrize(
    "how",
    ["masked store", "where", "and", "or", "times zero", "other", "rows", "flip", "scan", "unused"],
)
def test_lanes_that_take_no_effect_do_no_harm(how: str) -> None:
    trace, y = traced(harmless, how)
    assert report(trace).problems == ()
    if how in ("masked store", "where", "rows", "flip"):
        x = torch.arange(16) * (torch.arange(16) < 13)
        inside = torch.arange(16) < 13
        expected = {
            "masked store": (x * x + 1) * inside,
            "where": x + 78,
            "rows": 16 * x,
            "flip": x.flip(0),
        }
        assert y.tolist() == expected[how].tolist()
