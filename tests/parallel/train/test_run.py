"""The command: one loss curve in every layout, bytes reported, checkpoints resumed, mistakes in one line."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mlsys_lab import comm
from mlsys_lab.errors import InputError
from mlsys_lab.inference.pretrained import read_text as read_pretrained
from mlsys_lab.parallel.train import __main__ as command
from mlsys_lab.parallel.train import run as running
from mlsys_lab.parallel.train.options import add_arguments
from tests.ports import held_port

SMALL = ["--layers", "2", "--hidden-size", "32", "--batch", "4", "--seq-len", "16", "--steps", "4", "--lr", "0.01"]


@pytest.fixture(autouse=True)
def short_text_and_known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that is quickly encoded, and a peak that need not be measured."""
    monkeypatch.setattr(running, "course_text", lambda: read_pretrained("calibration")[:3000])
    monkeypatch.setattr(running, "measure_peak_flops_per_s", lambda group: 1e9)


def losses(layout: str, *more: str) -> list[float]:
    """Losses of a run on threads."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([*SMALL, "--layout", layout, *more])
    results, _ = comm.run(running.run, [args] * command.parse_layout(layout).devices)
    assert all(one == results[0] for one in results)
    return results[0]


def validation(out: str) -> tuple[float, float]:
    """Validation loss and bits per byte, in the last line of a run."""
    found = re.match(
        r"validation loss ([\d.]+), ([\d.]+) bits per byte, on [\d,]+ tokens held out", out.splitlines()[-1]
    )
    assert found
    return float(found[1]), float(found[2])


def test_the_loss_curve_is_one_process_s_and_bytes_are_the_closed_form_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = losses("data=1")
    assert alone[0] > min(alone)
    held_out = validation(capsys.readouterr().out)
    whole = losses("data=2,tensor=2,zero=1,sequence-parallel", "--checkpoints", str(tmp_path), "--save-interval", "2")
    assert whole == pytest.approx(alone, rel=1e-4)
    said = capsys.readouterr().out.splitlines()
    assert re.match(r"[\d,]+ parameters, [\d,]+ tokens of text, data=2,tensor=2,zero=1,.* on 4 ranks", said[0])
    steps = [re.match(r"step +(\d+)  loss ([\d.]+) +[\d,]+ tokens/s  MFU +[\d.]+%", line) for line in said[1:5]]
    assert [(int(one[1]), float(one[2])) for one in steps if one] == [
        (number, pytest.approx(loss, abs=1e-4)) for number, loss in enumerate(whole, start=1)
    ]
    assert validation(said.pop()) == pytest.approx(held_out, rel=1e-3)
    rows = [line.split() for line in said[6:]]
    assert {"activations", "gradients", "weights", "loss"} <= {row[0] for row in rows}
    assert all(row[-2] == row[-1] for row in rows)
    (tmp_path / "step-00000004").rename(tmp_path / "step-00000004.part")
    assert losses("tensor=2,pipeline=2,micro-batch=2", "--checkpoints", str(tmp_path)) == pytest.approx(
        alone[2:], rel=1e-4
    )
    assert f"resuming from {tmp_path}/step-00000002" in capsys.readouterr().out


def test_a_damaged_newest_checkpoint_is_skipped_with_a_line_and_written_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("data=2", "--checkpoints", str(tmp_path), "--save-interval", "2")
    whole = losses(*options)
    newest = tmp_path / "step-00000004" / "rank-1.safetensors"
    content = newest.read_bytes()
    newest.write_bytes(content[:-1])
    capsys.readouterr()
    assert losses(*options) == whole[2:]
    said = capsys.readouterr().out.splitlines()
    assert re.match(rf"skipping {tmp_path}/step-00000004: incomplete checkpoint: got \d+ bytes of {newest}", said[0])
    assert said[1] == f"resuming from {tmp_path}/step-00000002"
    assert newest.read_bytes() == content
    for path in tmp_path.glob("step-*/manifest.json"):
        path.unlink()
    with pytest.raises((comm.RankError, InputError), match=r"incomplete checkpoint: got .*step-00000004 without a"):
        losses(*options)


def test_a_finished_run_can_be_extended_and_no_other_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("data=2", "--checkpoints", str(tmp_path), "--save-interval", "2")
    assert len(losses(*options)) == 4
    assert losses(*options) == []
    assert "this run has taken its 4 steps; a larger --steps extends it" in capsys.readouterr().out
    assert len(losses(*options, "--steps", "6")) == 2
    said = capsys.readouterr().out
    assert "extending the finished run of 4 steps to 6: the learning rate goes on at 0.0033" in said
    assert len(losses("tensor=2", *options[1:], "--steps", "8")) == 2
    with pytest.raises((comm.RankError, InputError), match="of another run: got steps=8, expected steps=4"):
        losses(*options)
    with pytest.raises((comm.RankError, InputError), match=r"got batch_size=4, expected batch_size=2 \(on rank \d\)$"):
        losses(*options, "--steps", "9", "--batch", "2")


def test_an_unfinished_run_keeps_its_number_of_steps(tmp_path: Path) -> None:
    options = ("data=2", "--checkpoints", str(tmp_path), "--save-interval", "3")
    losses(*options)
    shutil.rmtree(tmp_path / "step-00000004")
    with pytest.raises((comm.RankError, InputError), match="of another run: got steps=4, expected steps=6"):
        losses(*options, "--steps", "6")


def test_checkpoints_do_not_count_as_training_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = [0.0]

    def pass_time(function: Callable[..., object], seconds: float) -> Callable[..., object]:
        def timed(*given: object) -> object:
            now_s[0] += seconds
            return function(*given)

        return timed

    monkeypatch.setattr(running.time, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(running.Trainer, "step", pass_time(running.Trainer.step, 1.0))
    monkeypatch.setattr(running, "save", pass_time(running.save, 100.0))
    losses("data=1", "--checkpoints", str(tmp_path), "--save-interval", "1")
    assert re.findall(r"([\d,]+) tokens/s", capsys.readouterr().out) == ["64"] * 4


@pytest.mark.parametrize("steps", [1, 19, 20, 39, 59, 100, 10_000])
def test_the_number_of_progress_lines_is_limited(steps: int) -> None:
    lines = [step for step in range(1, steps + 1) if running.is_progress_step(step, 1, steps)]
    assert {1, steps} <= set(lines) and len(lines) <= running.PROGRESS_LINES + 2


def launch(rank: int, size: int, port: int, layout: str, out: Path) -> None:
    """What torchrun does for a rank, in a process that exists already."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    descriptor = os.open(out / f"{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os._exit(command.main([*SMALL, "--layout", layout]))


def launch_all(size: int, layout: str, out: Path) -> tuple[list[int | None], list[str]]:
    """Exit codes of all ranks, and what each has written."""
    context = multiprocessing.get_context("fork")
    with held_port() as port:
        processes = [context.Process(target=launch, args=(rank, size, port, layout, out)) for rank in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return [process.exitcode for process in processes], [(out / f"{rank}").read_text() for rank in range(size)]


def test_ranks_that_were_launched_train_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled():
        codes, said = launch_all(2, "data=2", tmp_path)
    assert codes == [0, 0], said
    printed = [float(loss) for loss in re.findall(r"  loss ([\d.]+)", said[0])]
    assert printed == pytest.approx(losses("data=1"), abs=2e-4)
    assert said[1] == ""


def test_launched_ranks_tell_a_mistake_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled():
        codes, said = launch_all(2, "data=2,tensor=2", tmp_path)
    assert codes == [1, 1]
    assert said == ["train: the layout has another number of ranks: got 4, expected 2\n", ""]


def test_simulated_steps_of_8_64_and_512_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--layout", "tensor=2,pipeline=2,data=2,micro-batch=2", "--simulate", "gpt2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[1:]] == ["8", "64", "512"]
    step_ms = [float(re.search(r"step +([\d.]+) ms", line)[1]) for line in said[1:]]  # type: ignore[index]
    assert step_ms == sorted(step_ms)  # each rank has as much to do, and more to send
    assert all(re.search(r" [\d.]+ GB, step .* MFU +[\d.]+% at best", line) for line in said[1:])


def test_a_simulated_pipeline_may_be_uneven_and_interleaved(capsys: pytest.CaptureFixture[str]) -> None:
    mfu = []
    for layout in ("tensor=8,pipeline=4", "tensor=8,pipeline=4,interleave=5"):
        assert command.main(["--batch", "16", "--layout", layout, "--simulate", "llama3-70b"]) == 0
        said = capsys.readouterr().out
        mfu.append(float(re.findall(r"MFU +([\d.]+)%", said)[-1]))
    assert mfu[1] > mfu[0] + 2


def test_numbers_of_ranks_on_which_a_model_does_not_fit_are_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--layout", "tensor=8,data=1,zero=3,recompute=full", "--simulate", "llama3-70b"]) == 0
    said = capsys.readouterr().out.splitlines()[1:]
    assert said[0].endswith("GB on a device: does not fit in 85.9") and "MFU" not in said[0]
    assert "at best" in said[-1]


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--layout", "dat=2"], 1, "unknown part of a layout: got 'dat=2', expected data=2,tensor=2,…; help: did you"),
        (["--layout", "data"], 1, "unknown part of a layout: got 'data'"),
        (["--layout", "data=0"], 1, "Layout.data out of range: got 0"),
        (["--layout", "zero=4"], 1, "unknown ZeRO stage: got 4"),
        (["--layout", "recompute=some"], 1, "unknown recomputation: got 'some'"),
        (["--hidden-size", "40"], 1, "the hidden size does not divide into heads: got 40, expected a multiple of 16"),
        (["--steps", "0"], 1, "--steps out of range: got 0, expected at least 1"),
        (["--batch", "3", "--layout", "data=2"], 1, "the batch does not divide evenly: got 3 sequences"),
        (["--layout", "pipeline=3"], 1, "a model chunk without a layer: got 2 layers for 3 model chunks"),
        (["--layout", "tensor=16", "--simulate", "llama3-8"], 1, "help: did you mean"),
        (["--layout", "data=2", "--simulate", "llama3-70b"], 1, "llama3-70b does not fit: got 1,"),
        (["--layout", "tensor=3", "--simulate"], 1, "no number of simulated ranks is a multiple of the layout's"),
        (["--experts", "1"], 1, "a token uses more experts than there are: got 2, expected 1 to 1"),
        (["--layout", "data=2,expert=2"], 1, "has no experts to divide: got 2 expert-parallel ranks"),
        (["--see"], 2, "expected one argument"),
        (["--text", "a.txt", "--chat", "b.jsonl"], 1, "--text and --chat are different kinds of data"),
        (["--text", "missing.txt", "--layout", "data=2"], 1, "cannot read missing.txt: got No such file"),
        (["--init", "missing"], 1, "--init has sizes of its own: got --layers 2 --hidden-size 32; help: leave out"),
    ],
)
def test_a_mistake_is_one_line(argv: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*SMALL, *argv]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("train: ") and said in line and " failed: " not in line
