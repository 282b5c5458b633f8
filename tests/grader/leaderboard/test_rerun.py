"""A bundle is run again in a sandbox: an honest one gets its figures, any other is refused in one line."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mlsys_grader.cli import main
from mlsys_grader.leaderboard import rerun as module
from mlsys_grader.leaderboard.rerun import BOARD, compare_bits, compare_weights, predict_again, rerun, train_again
from mlsys_grader.sandbox.contents import bind_project
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.capstone import LAYERS, Stack, load_stack
from mlsys_lab.capstone.bundle import Bundle
from mlsys_lab.capstone.job import Serving
from mlsys_lab.capstone.settings import MODELS, Settings, bits_per_byte
from mlsys_lab.capstone.sheet import predict
from mlsys_lab.configs import TrainConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models import training
from mlsys_lab.parallel.train.data import Dataset
from mlsys_lab.parallel.train.sequences import Sequences
from mlsys_lab.stack.solved import export_solved, find_solved
from tests.capstone.calibrations import plain_calibration

pytestmark = pytest.mark.sandbox

MODEL, TRAIN = MODELS["tiny"], TrainConfig(4, 16, 5, 3e-2)
CALIBRATION = plain_calibration(MODEL, TRAIN, 4)
GLUE = "capstone"


@pytest.fixture(scope="module")
def data() -> Dataset:
    """Text that repeats itself: each step of training lowers its loss."""
    ids = np.tile(np.arange(40), 50)
    return Dataset(ids, Sequences.from_texts([ids[:170]], TRAIN.seq_len), 200)


@pytest.fixture(scope="module")
def solved() -> Stack:
    return load_stack(swaps={spec.field: "solved" for spec in LAYERS})


@pytest.fixture(scope="module")
def honest(solved, data) -> Bundle:
    """The solved labs' own run, as torch's autograd repeats it."""
    settings = Settings(MODEL, TRAIN, 4, Serving(7, 5), "another text")
    sheet = predict(solved, MODEL, TRAIN, 4, CALIBRATION, serving=settings.serving)
    model = training.new_model(MODEL, TRAIN.seed)
    for _ in training.train(model, data.train, **vars(TRAIN)):
        pass
    return Bundle({}, {}, settings, CALIBRATION, sheet, bits_per_byte(model, data))


@pytest.fixture(autouse=True)
def _fast(solved, monkeypatch):
    """The solved labs are loaded once, and no machine is calibrated; a version of lab 16 is released."""
    monkeypatch.setattr(module, "load_stack", lambda **_: solved)
    monkeypatch.setattr(module, "calibrate", lambda *_: CALIBRATION)
    monkeypatch.setattr(module, "released_labs", lambda: [SimpleNamespace(topic=GLUE, version="1")])


@pytest.fixture
def board():
    with Sandbox(BOARD) as running:
        yield running


def altered(bundle: Bundle, old: str, new: str) -> Bundle:
    """The bundle with lab 16's own code, one line of it replaced."""
    text = export_solved(find_solved(GLUE).read_text(encoding="utf-8"))
    assert old in text
    return replace(bundle, artifacts={GLUE: text.replace(old, new)}, versions={GLUE: "1"})


def test_an_honest_bundle_gets_its_figures(honest, data):
    own = altered(honest, "losses = []", "losses: list[float] = []")
    figures = rerun(own, data=data)
    assert figures.bits_per_byte == pytest.approx(honest.bits_per_byte, rel=1e-5)
    assert 0 < figures.fraction_of_bound < 1 and 0 < figures.prediction_error < 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"train": replace(TRAIN, steps=10**6)},
            "too many FLOPs of the run: got .* at most 1,000,000,000,000",
        ),
        ({"ranks": 2}, "fixed number of ranks: got 2, expected 4"),
        ({"model": replace(MODEL, vocab_size=1000)}, "fixed number of tokens in the vocabulary: got 1000"),
    ],
)
def test_settings_against_the_rules_are_refused(honest, data, changed, said):
    settings = replace(honest.settings, **changed)
    calibration = plain_calibration(settings.model, settings.train, settings.ranks)
    with pytest.raises(InputError, match=said):
        rerun(replace(honest, settings=settings, calibration=calibration), data=data)


def test_artifacts_of_another_version_or_of_no_layer_are_refused(honest, data):
    for topic, said in ((GLUE, "another version of its lab: got 0, expected 1"), ("cuda", "of no layer: got cuda")):
        with pytest.raises(InputError, match=said):
            rerun(replace(honest, artifacts={topic: ""}, versions={topic: "0"}), data=data)


def test_a_count_that_is_another_is_refused_with_both_numbers(honest, data):
    count = honest.sheet["training_flops"]
    sheet = replace(honest.sheet, numbers={**honest.sheet.numbers, "training_flops": count + 2})
    with pytest.raises(InputError, match=f"training_flops: got {count + 2:,}, expected {count:,}"):
        rerun(replace(honest, sheet=sheet), data=data)


def test_seconds_that_the_code_does_not_predict_are_refused(board, honest):
    sheet = replace(honest.sheet, numbers={**honest.sheet.numbers, "training_step_s": 1.0})
    with pytest.raises(InputError, match=r"training_step_s: got 1, expected \d\.\d+, as computed again"):
        predict_again(board, replace(honest, sheet=sheet), CALIBRATION)


def test_seconds_that_do_not_follow_from_the_calibration_are_refused(board, honest):
    """It has the claimed numbers for the bundle's own calibration, and a clock's for any other."""
    line = '"decode_s": sum('
    clock = f"**({{}} if calibration.unit_s == {CALIBRATION.unit_s} else {{'products_s': __import__('time').time()}}),"
    slower = replace(CALIBRATION, unit_s=2 * CALIBRATION.unit_s)
    with pytest.raises(InputError, match="the sheet's products_s: got"):
        predict_again(board, altered(honest, line, f"{clock} {line}"), slower)


def test_an_artifact_that_does_not_define_its_layer_is_refused(board, honest):
    with pytest.raises(InputError, match="capstone is not its layer: got yours does not define GPT"):
        predict_again(board, altered(honest, "class GPT:", "class Other:"), CALIBRATION)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("{'embedding.weight': torch.zeros(3)}", r"another shape: embedding.weight: got \(3,\), expected \(1024, 16\)"),
        ("{name: one.data * torch.nan for name, one in model.parameters.items()}", "not finite: embedding.weight"),
    ],
)
def test_other_weights_are_refused(board, honest, data, returned, said):
    old = "{name: one.data for name, one in model.parameters.items()}"
    weights, _ = train_again(board, altered(honest, old, returned), data, 60)
    with pytest.raises(InputError, match=said):
        compare_weights(weights, training.new_model(MODEL, 0))


def test_a_loop_without_end_is_refused(board, honest, data):
    with pytest.raises(InputError, match="did not come to an end: got no answer after 3 s"):
        train_again(board, altered(honest, "losses = []", "while True: pass"), data, 3)


OWN_SEED = f"""\
    from dataclasses import replace
    from mlsys_lab.models.training import new_model
    initial = dict(new_model(job.config, {TRAIN.seed}).named_parameters())
    job = replace(job, weights=initial, train=replace(job.train, seed={TRAIN.seed}))
"""


def test_weights_that_were_not_trained_from_the_secret_seed_are_refused(honest, data):
    """The artifact trains from the bundle's own seed, as if it had brought weights that were trained elsewhere."""
    first = "    layer, train = job.stack.data_parallel, job.train\n"
    with pytest.raises(InputError, match=r"other weights than torch's .* distance of \d.*, expected at"):
        rerun(altered(honest, first, OWN_SEED + first), data=data)


def test_claimed_bits_per_byte_are_refused_with_both_numbers():
    compare_bits(2.001, 2.0)
    for claimed in (1.9, 2.1, float("inf")):
        with pytest.raises(InputError, match=rf"other bits per byte: got {claimed:.4f}, expected 2.0000"):
            compare_bits(claimed, 2.0)
    with pytest.raises(InputError, match="other bits per byte"):
        compare_bits(2.0, float("nan"))


def test_the_command_refuses_files_that_are_no_bundles_each_in_a_line(tmp_path, capsys):
    for name, text in {"a": "{", "b": '{"format": 2}', "c": " " * 600_000}.items():
        (tmp_path / f"{name}.json").write_text(text)
    assert main(["leaderboard", *(str(tmp_path / f"{name}.json") for name in "abcd")]) == 1
    lines = capsys.readouterr().err.splitlines()
    for line, said in zip(
        lines, ("not a bundle", "another format: got 2, expected 1", "too large", "No such file"), strict=True
    ):
        assert said in line


def test_the_sandbox_has_no_module_that_a_lab_of_the_stack_withholds():
    inside = {target for _, target in bind_project(BOARD)}
    assert {"/course/mlsys_lab/capstone/stack.py", "/course/mlsys_grader/leaderboard/calls.py"} <= inside
    for name in ("mlsys_lab/autograd", "mlsys_lab/comm/collectives", "mlsys_lab/parallel", "mlsys_checks/trusted"):
        assert not [path for path in inside if path.startswith(f"/course/{name}")]
    assert "/course/mlsys_grader/leaderboard/rerun.py" not in inside
