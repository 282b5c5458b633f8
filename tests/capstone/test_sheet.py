"""The prediction sheet: its counts equal those of the run, its seconds follow the calibration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mlsys_lab import comm
from mlsys_lab.capstone import Stack, load_stack
from mlsys_lab.capstone.calibration import calibrate
from mlsys_lab.capstone.counting import count_products, count_rank
from mlsys_lab.capstone.job import Calibration, Serving, TrainJob
from mlsys_lab.capstone.measurement import Comparison, compare, measure
from mlsys_lab.capstone.sheet import COSTS, LOSS, Sheet, predict
from mlsys_lab.capstone.swaps import replace_names
from mlsys_lab.comm import Rank
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.hardware import cpu
from mlsys_lab.models import training
from mlsys_lab.stack.workspace import Workspace
from tests.capstone.calibrations import BANDWIDTH, LATENCY_S, MEMORY, PEAK, RATE, plain_calibration

IDS = np.random.default_rng(0).integers(0, 53, 900)
TRAIN = TrainConfig(batch_size=6, seq_len=11, steps=3, lr=1e-2)
SERVING = Serving(prompt_tokens=9, new_tokens=6)
TIED = TransformerConfig("tied", 1, d_model=16, n_heads=2, d_ff=24, vocab_size=61, context=32, tied=True)


def fill_in(stack: Stack, config: TransformerConfig, world_size: int, **options: Any) -> Sheet:
    """A sheet for plain numbers."""
    given = {"serving": SERVING, "calibration": plain_calibration(config, TRAIN, world_size)} | options
    return predict(stack, config, TRAIN, world_size, given.pop("calibration"), **given)


def run(stack: Stack, config: TransformerConfig, world_size: int) -> dict[str, float]:
    """What a run of a new float32 model counts and times."""
    weights = {name: one.detach() for name, one in training.new_model(config, 0).named_parameters()}
    return measure(stack, config, weights, IDS, TRAIN, world_size, serving=SERVING)


def differing(rows: list[Comparison]) -> list[str]:
    """Keys of the counts that are not equal."""
    return [row.key for row in rows if row.is_equal is False]


@pytest.mark.parametrize("is_tied", [False, True])
def test_every_count_equals_the_run_on_one_two_and_four_ranks(
    stack: Stack, config: TransformerConfig, is_tied: bool
) -> None:
    """Grouped heads and an untied head, or the contrary; four ranks have two sequences or one."""
    chosen = TIED if is_tied else config
    for world_size in (1, 2, 4):
        rows = compare(fill_in(stack, chosen, world_size), run(stack, chosen, world_size))
        assert differing(rows) == []
        assert sum(row.cost.kind == "count" for row in rows) == 18
        assert all(row.predicted > 0 or world_size == 1 for row in rows)
        assert all(row.measured > 0 for row in rows if row.cost.kind == "seconds")


def test_the_loss_is_counted_wherever_a_step_sums_it(stack: Stack, config: TransformerConfig) -> None:
    """Here before everything else, and by itself."""

    def sum_loss(rank: Rank, job: TrainJob) -> None:
        job.stack.collectives.all_reduce(rank, torch.ones(1))

    weights = dict(training.new_model(config, 0).named_parameters())
    job = TrainJob(replace_names(stack, "capstone", train_rank=sum_loss), config, weights, IDS, TRAIN, None, 1)
    counts, _ = comm.run(count_rank, [job] * 4)
    assert sum(array.elements for one in counts for array in one.sent if array.phase == LOSS) == 6


def test_products_are_counted_as_torchs_own_counter_counts_them(stack: Stack, config: TransformerConfig) -> None:
    weights = dict(training.new_model(config, 0).named_parameters())
    loss = stack.capstone.GPT(stack.engine, config, weights).loss
    x, y, windows = torch.ones(3, 4, 5), torch.ones(3, 5, 2), torch.zeros(3, 12, dtype=torch.int64)
    for call in (lambda: loss(windows).backward(), lambda: torch.einsum("bij,bjk->ik", x, y), lambda: x @ y):
        for context in (torch.no_grad, torch.inference_mode):
            with context(), FlopCounterMode(display=False) as theirs:
                call()
            with context(), count_products() as ours:
                call()
            assert ours.flops == theirs.get_total_flops() > 0


def test_seconds_are_those_of_plain_numbers_and_double_with_them(stack: Stack, config: TransformerConfig) -> None:
    plain = plain_calibration(config, TRAIN, 4)
    sheet, doubled = (fill_in(stack, config, 4, calibration=one) for one in (plain, plain.slow_down(2)))
    for key, cost in COSTS.items():
        factor = 2 if cost.kind == "seconds" else 1
        assert doubled[key] == pytest.approx(factor * sheet[key], rel=1e-12)
    products_s = sheet["training_flops"] / RATE
    assert sheet["products_s"] == pytest.approx(products_s, rel=1e-12)
    # Four ranks in turn: an all-reduce of all weights and three of a number, each 6 steps of a quarter of the array.
    sent = 6 / 4 * (4 * sheet["parameters"] + 3 * 4)
    communication_s = 4 * (4 * 6 * LATENCY_S + sent / BANDWIDTH)
    assert sheet["communication_s"] == pytest.approx(communication_s, rel=1e-12)
    moved = sum(sheet[key] for key, cost in COSTS.items() if cost.unit == "bytes" and key.startswith("decode"))
    decode_s = max(sheet["decode_flops"] / PEAK, moved / MEMORY)
    assert sheet["decode_s"] == pytest.approx(decode_s, rel=1e-12)


def test_a_calibration_of_this_machine_fills_in_a_sheet_and_survives_json(
    stack: Stack, config: TransformerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "MATMUL_N", 64)
    monkeypatch.setattr(cpu, "COPY_BYTES", 2**20)
    measured = calibrate(stack, config, TRAIN, 4)
    assert measured.rates.keys() == plain_calibration(config, TRAIN, 4).rates.keys()
    assert Calibration.from_json(measured.to_json()) == measured
    assert all(number > 0 for number in fill_in(stack, config, 4, calibration=measured).numbers.values())


WRONG: dict[str, tuple[str, str, Callable[[Any], Any], list[str]]] = {
    "no gate": (
        "arithmetic",
        "step_products",
        lambda right: lambda *args: [one for one in right(*args) if not one[0].startswith("gate")],
        ["training_flops"],
    ),
    "whole states": (
        "arithmetic",
        "states",
        lambda right: lambda n, **plan: right(n, **plan | {"data": 1}),
        ["master_bytes", "optimizer_bytes"],
    ),
    "no cache": (
        "cache",
        "step_cost",
        lambda right: lambda c, parts, **options: right(c, [(1, 0) for _ in parts], **options),
        ["decode_flops", "decode_cache_read_bytes"],
    ),
    "one pass": (
        "collectives",
        "ring_elements",
        lambda right: lambda n, p: [sent // 2 for sent in right(n, p)],
        [
            "gradient_elements_sent",
            "gradient_bytes_sent",
            "weight_elements_sent",
            "weight_bytes_sent",
            "loss_elements_sent",
        ],
    ),
}


def test_a_wrong_function_makes_its_rows_differ_and_no_other(stack: Stack, config: TransformerConfig) -> None:
    measured = run(stack, config, 4)
    for field, name, make, expected in WRONG.values():
        wrong = replace_names(stack, field, **{name: make(getattr(getattr(stack, field), name))})
        assert differing(compare(fill_in(wrong, config, 4), measured)) == expected


def raise_error(*args: Any, **options: Any) -> Any:
    """What an unfinished function does."""
    raise NotImplementedError("Task 3")


BAD = {
    "raises": ("arithmetic", {"flops_of": raise_error}, "predict_training failed: got NotImplementedError: Task 3"),
    "text of a number": (
        "arithmetic",
        {"count_parameters": lambda config: "7"},
        "predict_training failed: got TypeError",
    ),
    "nan": ("arithmetic", {"flops_of": lambda products: math.nan}, "the sheet's training_flops is no number: got nan"),
    "no field": ("cache", {"step_cost": lambda *args, **options: 7}, "predict_serving failed: got AttributeError"),
    "no list": ("collectives", {"ring_elements": lambda n, p: n}, "predict_messages failed: got TypeError"),
    "text": ("collectives", {"ring_elements": lambda n, p: ["1"]}, "predict_messages failed: got TypeError"),
}


@pytest.mark.every_case
@pytest.mark.parametrize(("field", "names", "message"), BAD.values(), ids=BAD)
def test_a_function_that_gives_no_number_is_named(
    stack: Stack, config: TransformerConfig, field: str, names: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        fill_in(replace_names(stack, field, **names), config, 2)
    assert "\n" not in str(error.value)


def test_bad_input_is_refused_in_one_line(stack: Stack, config: TransformerConfig, tmp_path: Path) -> None:
    sheet = fill_in(stack, config, 1)
    numbers = dict(sheet.numbers)
    plain = plain_calibration(config, TRAIN, 1)
    swapped = load_stack(Workspace.create(tmp_path), {"collectives": "reference"})
    weights = {name: one.double() for name, one in training.new_model(config, 0).named_parameters()}
    refused: dict[str, Callable[[], object]] = {
        "an incomplete sheet: got no 'training_flops'": lambda: Sheet({}),
        "a sheet with an unknown number: got 'params'": lambda: Sheet(numbers | {"params": 1}),
        "parameters is no number: got '7'": lambda: Sheet(numbers | {"parameters": "7"}),  # type: ignore[dict-item]
        "not a prediction sheet: got Expecting value": lambda: Sheet.from_json("rows"),
        r"of another shape: got no rate of a \(66, 20\) by a \(20, 24\) matrix": lambda: fill_in(
            stack, config, 1, calibration=plain_calibration(TIED, TRAIN, 1)
        ),
        "the collectives layer has no 'ring_elements'": lambda: fill_in(swapped, config, 1),
        "without sequences: got 6 for 7 ranks": lambda: fill_in(stack, config, 7, calibration=plain),
        "exceed the context: got 65, expected up to 64": lambda: fill_in(stack, config, 1, serving=Serving(60, 5)),
        "LLaMA-like: got activation=gelu": lambda: fill_in(stack, replace(config, activation="gelu"), 1),
        "unit_s must be positive: got 0": lambda: replace(plain, unit_s=0),
        "latency_s must not be negative": lambda: replace(plain, latency_s=-1.0),
        "must be finite": lambda: replace(plain, memory_bytes_per_s=math.inf),
        "not a calibration: got Expecting value": lambda: Calibration.from_json("rates"),
        "not a calibration: got 'rates'": lambda: Calibration.from_json("{}"),
        "of float32 weights: got torch.float64": lambda: measure(
            stack, config, weights, IDS, TRAIN, 1, serving=SERVING
        ),
    }
    for message, call in refused.items():
        with pytest.raises(InputError, match=message) as error:
            call()
        assert "\n" not in str(error.value)
