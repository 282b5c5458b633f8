"""Digits drawn by the small model: a picture, a line on its cost that adds up, bad input in one line."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from mlsys_lab.diffusion import pretrained
from mlsys_lab.diffusion.digits import accuracy, encode_png, sheet
from mlsys_lab.diffusion.pretrained import STUDENTS, load_classifier, load_student, read_config
from mlsys_lab.diffusion.samplers import DDIM
from mlsys_lab.diffusion.sampling import Noise, Sampling
from mlsys_lab.flops import dit
from mlsys_lab.hardware import device

LINE = re.compile(
    r"(?P<file>.*): (?P<count>\d+) digits, (?P<steps>\d+) steps, (?P<each>\d+) evaluations each,"
    r" (?P<flops>[\d.]+) GFLOP in (?P<seconds>[\d.]+) s; at least (?P<least>[\d.]+) s"
    r" at the 100 GFLOP/s of this machine's matrix products:"
    r" (?P<share>[\d.]+)% of the bound\n"
)


@pytest.fixture(autouse=True)
def speed(monkeypatch):
    """Measuring how fast this machine multiplies takes seconds, and is tested where it is done."""
    cpu = replace(device("H100"), peaks={"fp32": 1e11})
    monkeypatch.setattr("mlsys_lab.hardware.measure_cpu", lambda: cpu)


@pytest.fixture
def draw(call, tmp_path):
    """Draw into a file: the line that is said, and the file's bytes."""

    def drawn(*arguments):
        path = tmp_path / "sevens.png"
        code, out, err = call("sample-digits", *arguments, "--out", str(path))
        found = LINE.fullmatch(out)
        assert code == 0 and err == "" and found and found["file"] == str(path), (out, err)
        return found, path.read_bytes()

    return drawn


def test_a_picture_and_what_it_cost(draw):
    found, picture = draw("7", "--steps", "6", "--count", "3")
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert (found["count"], found["steps"], found["each"]) == ("3", "6", "22")  # Heun: 11 of 6 steps, twice by guidance
    flops = 3 * 22 * dit.forward(read_config()).total
    assert float(found["flops"]) == pytest.approx(flops / 1e9, abs=0.005)
    assert float(found["least"]) == pytest.approx(flops / 1e11, abs=5e-4)


def test_no_guidance_is_half_of_the_work(draw):
    assert draw("7", "--steps", "6", "--count", "1", "--guidance", "1")[0]["each"] == "11"
    assert draw("7", "--steps", "6", "--count", "1", "--sampler", "dpm++")[0]["each"] == "12"


@pytest.mark.parametrize("steps", STUDENTS)
def test_a_student_draws_in_its_own_steps(draw, steps):
    found, picture = draw("7", "--student", str(steps), "--count", "20")
    assert (found["steps"], found["each"]) == (str(steps), str(steps))
    student = load_student(steps)
    noise, label = Noise((20, 1, 8, 8)), torch.full((20,), 7)
    images = Sampling(student.denoiser, student.grid, noise, label, DDIM()).run()
    assert picture == encode_png(sheet(images)) and accuracy(load_classifier(), images, label) > 0.8


def test_the_seed_decides_the_picture(draw):
    few = ("--steps", "3", "--count", "2", "--sampler", "ddpm")
    assert draw("7", *few)[1] == draw("7", *few)[1]
    assert draw("7", *few)[1] != draw("7", *few, "--seed", "1")[1] != draw("3", *few, "--seed", "1")[1]


def test_weights_that_are_not_numbers_are_one_line(call, tmp_path, monkeypatch):
    weights = load_file(pretrained.FOLDER / pretrained.MODEL)
    weights["blocks.2.up.weight"][5, 7] = torch.nan
    metadata = {"told": json.dumps(pretrained.read_metadata())}
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    save_file(weights, tmp_path / pretrained.MODEL, metadata)
    code, out, err = call("sample-digits", "7", "--out", str(tmp_path / "digits.png"))
    said = "weights are not numbers: got blocks.2.up.weight of digits.safetensors; help: install mlsys-lab again"
    assert (code, out, err) == (1, "", f"mlsys-lab: {said}\n") and not (tmp_path / "digits.png").exists()


@pytest.mark.parametrize(
    ("given", "said", "code"),
    [
        (["10"], "digit out of range: got 10, expected 0 to 9", 1),
        (["7", "--steps", "0"], "steps out of range: got 0, expected 1 to 1000", 1),
        (["7", "--steps", "1001"], "steps out of range: got 1001, expected 1 to 1000", 1),
        (["7", "--steps", "2.5"], "got '2.5', expected a whole number", 2),
        (["7", "--count", "0"], "count out of range: got 0", 1),
        (["7", "--seed", "-1"], "seed out of range: got -1", 1),
        (["7", "--guidance", "-1"], "guidance out of range: got -1.0", 1),
        (["7", "--guidance", "nan"], "guidance out of range: got nan", 1),
        (["7", "--guidance", "inf"], "guidance out of range: got inf", 1),
        (["7", "--student", "3"], "no student of that many steps: got 3, expected one of 1, 2, 4, 8", 1),
        (["7", "--student", "2", "--steps", "4"], "a student has its own steps, guidance and sampler: got --steps", 1),
        (["7", "--sampler", "huen"], "unknown sampler: got 'huen'", 1),
        (["7", "--steps", "1", "--out", "nowhere/a.png"], "cannot write the picture: got nowhere/a.png", 1),
        (["seven"], "got 'seven', expected a whole number", 2),
        ([], "missing argument 'digit'", 2),
    ],
)
def test_bad_input_is_one_line(call, given, said, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    got, out, err = call("sample-digits", *given)
    assert (got, out) == (code, "") and err.startswith("mlsys-lab: ") and said in err
    assert err.count("\n") == 1 and not list(tmp_path.iterdir())
