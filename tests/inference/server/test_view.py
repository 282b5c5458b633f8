"""What watchers are told of a scheduler: every step, who was read and who wrote, who holds which block."""

from __future__ import annotations

import pytest

from mlsys_lab.inference.engine import BlockManager, Scheduler, SchedulerConfig
from mlsys_lab.inference.server import view
from mlsys_lab.inference.server.messages import Lines
from mlsys_lab.inference.server.view import Recorder


def run(scheduler, recorder):
    """One step, as an engine runs it, of a model that generates 7 again and again."""
    output = scheduler.schedule()
    scheduler.update_from_output(output, [[7]] * len(output.sampled))
    for seq in output.sampled:
        if seq.num_output_tokens == seq.max_tokens:
            scheduler.finish(seq)
    recorder.note(output)


def build(num_blocks=12, *limits):
    scheduler = Scheduler(BlockManager(num_blocks, 4), SchedulerConfig(*limits))
    return scheduler, Recorder(scheduler)


def test_steps_tell_prompts_that_are_read_from_texts_that_are_written():
    scheduler, recorder = build(12, 2, 8)
    for prompt, writes in (([1] * 3, 3), ([2] * 12, 1), ([3], 2)):
        scheduler.add(prompt, writes)
    for _ in range(4):
        run(scheduler, recorder)
    seen = recorder.show()
    assert [step["step"] for step in seen.steps] == [1, 2, 3, 4]
    assert [step["fed"] for step in seen.steps] == [
        [[0, 3, False], [1, 5, False]],
        [[0, 1, True], [1, 7, False]],
        [[0, 1, True], [2, 1, False]],
        [[2, 1, True]],
    ]
    assert [step["wrote"] for step in seen.steps] == [1, 2, 2, 1]
    assert scheduler.is_idle and (seen.running, seen.waiting) == ([], []) and recorder.show().steps == []


def test_sequences_keep_their_names_and_blocks_their_holders():
    scheduler, recorder = build(8, 2, 40)
    scheduler.add([1] * 9, 3)
    run(scheduler, recorder)
    scheduler.add([1] * 9 + [2], 9)
    scheduler.add([3], 1)
    run(scheduler, recorder)
    seen = recorder.show()
    first, second = seen.running
    assert (first["name"], first["prompt"], first["written"], first["read"]) == (0, 9, 2, 10)
    assert second["hits"] == 8 and first["blocks"][:2] == second["blocks"][:2]
    assert len({*first["blocks"], *second["blocks"]}) == 4
    assert seen.waiting == [{"name": 2, "prompt": 1, "written": 0, "hits": 0}]
    run(scheduler, recorder)
    assert [one["name"] for one in recorder.show().running] == [1]
    scheduler.finish(scheduler.running[0])
    assert set(recorder.show().kept) == set(second["blocks"][:2])  # the third is not full
    assert Lines.decode(Lines.encode(seen)) == seen and (seen.slots, seen.budget, seen.blocks) == (2, 40, 8)


def test_views_are_due_now_and_then_and_at_the_end(monkeypatch):
    scheduler, recorder = build()
    scheduler.add([1], 3)
    monkeypatch.setattr(view, "EVERY_S", float("inf"))
    assert not recorder.due
    recorder.show()
    run(scheduler, recorder)
    assert not recorder.due
    monkeypatch.setattr(view, "EVERY_S", 0)
    assert recorder.due
    monkeypatch.setattr(view, "EVERY_S", float("inf"))
    run(scheduler, recorder)
    run(scheduler, recorder)
    assert scheduler.is_idle and recorder.due
    recorder.show()
    assert not recorder.due


def test_who_leaves_without_another_step_is_gone_in_a_view():
    scheduler, recorder = build()
    sequence = scheduler.add([1], 3)
    run(scheduler, recorder)
    recorder.show()
    scheduler.finish(sequence)
    assert recorder.due and recorder.show().running == []


@pytest.mark.parametrize(
    ("watches", "steps"),
    [((False, True), 0), ((True,), 1)],
    ids=["a new watch begins with no steps", "whoever joins takes no steps from those who watch"],
)
def test_steps_are_kept_while_somebody_watches(watches, steps):
    scheduler, recorder = build()
    scheduler.add([1], 3)
    recorder.watch(True)
    run(scheduler, recorder)
    for on in watches:
        recorder.watch(on)
    assert recorder.watched and len(recorder.show().steps) == steps
