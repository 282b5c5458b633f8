"""The digit model's students: few steps draw what many of the teacher's do, and files in 8 bits are read as meant."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mlsys_lab.benchmark import load
from mlsys_lab.diffusion import pretrained
from mlsys_lab.diffusion.digits import accuracy, diversity, load_digits
from mlsys_lab.diffusion.distillation import halve_grid
from mlsys_lab.diffusion.guidance import ClassifierFreeGuidance
from mlsys_lab.diffusion.pretrained import (
    FOLDER,
    STUDENTS,
    load_classifier,
    load_digits_model,
    load_student,
    read_metadata,
    save_student,
)
from mlsys_lab.diffusion.sampling import Noise, Sampling
from mlsys_lab.diffusion.schedules import edm_grid
from mlsys_lab.errors import InputError
from mlsys_lab.models.training import one_thread

FIGURES = load(Path(__file__).parents[3] / "book" / "data" / "measurements" / "distilled-digits.json").parameters[
    "figures"
]
LABEL = load_digits()[1].labels[:180]


@pytest.fixture(scope="module", autouse=True)
def quietly():
    with one_thread():
        yield


def draw(denoiser, grid):
    return Sampling(denoiser, grid, Noise((len(LABEL), 1, 8, 8), 0), LABEL).run()


@pytest.fixture(scope="module")
def converged():
    return draw(load_digits_model(), edm_grid(32, 0.02, 20))


@pytest.mark.parametrize("steps", STUDENTS)
def test_a_student_draws_what_its_teacher_of_many_steps_draws(steps, converged):
    """Beside the teacher in as few steps: nearer to where it goes, with variety, and read as often.

    180 digits know a share of 0.95 to 0.016.
    """
    student, grid = load_student(steps)
    drawn, teacher_s = draw(student, grid), draw(load_digits_model(), grid)
    off, teacher_off = (float((images - converged).square().mean().sqrt()) for images in (drawn, teacher_s))
    assert off < 0.4 * teacher_off
    assert diversity(drawn, LABEL) == pytest.approx(diversity(converged, LABEL), rel=0.05)
    assert accuracy(load_classifier(), drawn, LABEL) == pytest.approx(
        accuracy(load_classifier(), converged, LABEL), abs=0.03
    )
    assert off == pytest.approx(FIGURES[f"student, {steps} steps"]["off"], rel=0.1)


def test_a_student_can_be_guided(converged):
    student, grid = load_student(2)
    guided = draw(ClassifierFreeGuidance(student, 2.0, 10), grid)
    assert accuracy(load_classifier(), guided, LABEL) > 0.97
    assert diversity(guided, LABEL) < 0.9 * diversity(converged, LABEL)


def test_each_student_has_half_of_the_levels_of_the_one_before():
    grids = [load_student(steps).grid for steps in STUDENTS]
    assert [len(grid) - 1 for grid in grids] == list(STUDENTS)
    assert all(torch.equal(halve_grid(longer), shorter) for shorter, longer in pairwise(grids))


def test_the_record_says_that_few_steps_of_the_teacher_are_alike():
    for steps in STUDENTS:
        ddim, student = FIGURES[f"DDIM, {steps} steps"], FIGURES[f"student, {steps} steps"]
        assert ddim["evaluations"] == student["evaluations"] == steps
        assert FIGURES[f"Heun, {steps} steps"]["evaluations"] == 2 * steps - 1
        assert student["off"] < 0.4 * ddim["off"] and student["diversity"] > ddim["diversity"]


def test_matrices_in_8_bits_are_off_by_half_a_step_at_most(tmp_path, monkeypatch):
    model = load_digits_model()
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    save_student(model, edm_grid(4), {})
    student, grid = load_student(4)
    torch.testing.assert_close(grid, edm_grid(4))
    for name, weight in model.network.named_parameters():
        step = weight.abs().amax(1, keepdim=True) / 127 if weight.ndim == 2 else torch.zeros(1)
        off = (student.network.get_parameter(name) - weight).abs()
        assert bool((off <= 0.5001 * step).all()), name


def test_the_files_are_small_and_in_8_bits():
    files = [FOLDER / f"student-{steps}.safetensors" for steps in STUDENTS]
    assert sum(path.stat().st_size for path in files) < 1.5e6
    for path in files:
        weights = load_file(path)
        assert {value.dtype for key, value in weights.items() if key + ".scales" in weights} == {torch.int8}


def test_a_number_of_steps_without_a_student_is_one_line():
    with pytest.raises(InputError, match="no student of that many steps: got 3, expected one of 1, 2, 4, 8"):
        load_student(3)


def test_a_scale_that_is_not_a_number_is_one_line(tmp_path, monkeypatch):
    student, grid = load_student(1)
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    save_student(student, grid, {})
    path = tmp_path / "student-1.safetensors"
    weights = load_file(path)
    weights["last.weight.scales"][2] = torch.nan
    save_file(weights, path, {"told": json.dumps(read_metadata("student-1.safetensors"))})
    with pytest.raises(InputError, match=r"weights are not numbers: got last\.weight of student-1"):
        load_student(1)
