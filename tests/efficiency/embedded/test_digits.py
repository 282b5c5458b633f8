"""Digits on the emulated Cortex-M4: the whole held-out part, within the budget, and the command that says so."""

import numpy as np
import pytest
import torch

from mlsys_lab.efficiency.embedded import BoardRun, generate_c, plan_arena, quantize_network, run_on_board, simulate
from mlsys_lab.efficiency.embedded import __main__ as command
from mlsys_lab.efficiency.embedded.digits import load_digits, train_classifier
from tests.efficiency.embedded.tools import needs_board


@pytest.fixture(scope="module")
def classifier() -> torch.nn.Sequential:
    return train_classifier(load_digits()[0])


@pytest.fixture(scope="module")
def board_run(classifier) -> BoardRun:
    training, held_out = load_digits()
    network = quantize_network(classifier, training.images)
    return run_on_board(generate_c(network, network.encode(held_out.images.numpy())))


@needs_board
def test_all_held_out_digits_on_the_board_equal_the_simulation_within_the_budget(classifier, board_run):
    training, held_out = load_digits()
    network = quantize_network(classifier, training.images)
    logits = simulate(network, network.encode(held_out.images.numpy()))
    np.testing.assert_array_equal(board_run.logits, logits)
    assert board_run.logits.shape == (360, 10)
    assert (board_run.logits.argmax(1) == held_out.labels.numpy()).mean() >= 0.95
    assert plan_arena(network).size_bytes <= board_run.ram_bytes <= 64 * 1024 and board_run.flash_bytes <= 128 * 1024
    assert board_run.instructions > network.macs


def test_no_digit_is_in_both_parts():
    training, held_out = (part.images.flatten(1) for part in load_digits())
    assert (len(training), len(held_out)) == (1437, 360)
    assert not set(map(tuple, training.tolist())) & set(map(tuple, held_out.tolist()))


@needs_board
def test_the_command_writes_the_file_and_prints_its_figures(classifier, board_run, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "train_classifier", lambda digits: classifier)
    monkeypatch.setattr(command, "run_on_board", lambda source: board_run)
    assert command.main([str(tmp_path / "digits.c")]) == 0
    printed = capsys.readouterr()
    heads = [line.split()[0] for line in printed.out.splitlines() if line[0] != " "]
    assert heads == ["accuracy", "network", "arena", "compile", "emulate", "Cortex-M4", "flash", "RAM", "executed"]
    assert "3,600 logits equal" in printed.out and not printed.err
    assert "int main(void)" in (tmp_path / "digits.c").read_text()


def test_without_a_compiler_the_command_writes_the_file_and_says_what_is_missing(
    classifier, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(command, "train_classifier", lambda digits: classifier)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main([str(tmp_path / "digits.c")]) == 1
    printed = capsys.readouterr()
    assert "arena" in printed.out and (tmp_path / "digits.c").exists()
    expected = "embedded: arm-none-eabi-gcc is not on this machine; help: apt install gcc-arm-none-eabi\n"
    assert printed.err == expected


@pytest.mark.parametrize(("name", "message"), [("digits.txt", "ends in .c"), ("missing/digits.c", "cannot write")])
def test_a_file_that_cannot_be_written_is_one_line(classifier, name, message, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "train_classifier", lambda digits: classifier)
    assert command.main([str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
