"""Killed outright at random points of a run over a class: no mark is lost, none is doubled.

Once a week it is a class of a hundred and twenty kills.
"""

import random
import time

import pytest

from mlsys_grader.gradebook.audit import read_audit
from mlsys_grader.grading.grade import Options, grade
from tests.grader.kills import KINDS, entered, hand_ins, kill, new_course, outcome, records, start, victims
from tests.sampling import sample

pytestmark = pytest.mark.sandbox
SEED = 20


@pytest.fixture(scope="module", params=sample([(24, 4), (100, 20)], 2), ids=lambda sizes: f"{sizes[0]} and {sizes[1]}")
def sizes(request):
    """Submissions, and how often somebody is killed."""
    return request.param


@pytest.fixture(scope="module")
def source(tmp_path_factory, hand_in, sizes):
    return hand_ins(tmp_path_factory.mktemp("class") / "hand-ins", hand_in, sizes[0])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, source, tiny, sizes):
    """What a run that nobody disturbs leaves, by one worker."""
    course = new_course(tmp_path_factory.mktemp("undisturbed") / "course", source)
    outcomes = list(grade(course, tiny, Options(workers=1, time_factor=5.0)))
    assert len(outcomes) == sizes[0] and not any(one.error for one in outcomes)
    return outcome(course)


def test_the_gradebook_of_a_pool_is_that_of_one_worker(undisturbed, source, tiny, tmp_path, sizes):
    course = new_course(tmp_path / "course", source)
    assert not any(one.error for one in grade(course, tiny, Options(workers=2, time_factor=5.0)))
    assert outcome(course) == undisturbed
    assert len(undisturbed["marks"]) == 3 * sizes[0]


def test_kills_lose_and_double_nothing(undisturbed, source, tiny_labs, tmp_path, sizes):
    chance, (number, kills) = random.Random(SEED), sizes
    # Due when so many are judged (child, launcher) or entered (gradebook, command): there is work left for all of them.
    plan = {kind: sorted(chance.sample(range(number - 15), kills // len(KINDS))) for kind in KINDS}
    course = new_course(tmp_path / "course", source)
    log = tmp_path / "course.log"
    told = f"plan {plan}"
    left = {kind: list(points) for kind, points in plan.items()}
    command = start(course, tiny_labs)
    on_record: dict[str, dict] = {}
    up_to_date, entered_at_last_kill = 0, -1
    try:
        while any(left.values()):
            assert command.poll() is None, f"ended by itself, still to do {left}: {told}\n{log.read_text()}"
            on_record = records(course) | on_record
            reached = {"child": len(on_record), "launcher": len(on_record)}
            now = entered(course)
            # Three deaths over one and the same entry count as the gradebook's own fault: let it get one done.
            reached |= {"gradebook": now if now > entered_at_last_kill else -1, "command": now}
            due = [kind for kind in KINDS if left[kind] and reached[kind] >= left[kind][0] and victims(command, kind)]
            if not due:
                time.sleep(0.02)
                continue
            time.sleep(chance.uniform(0, 0.15))
            kind = chance.choice(due)
            if not kill(chance.choice(victims(command, kind) or [0])):
                continue
            left[kind].pop(0)
            if kind == "gradebook":
                entered_at_last_kill = entered(course)
            if kind == "command":
                command.wait()
                up_to_date = len(records(course))
                command = start(course, tiny_labs)
        assert command.wait() == 0, f"{told}\n{log.read_text()}"
    finally:
        command.kill()
        command.wait()
    found = outcome(course)
    differing = {
        name: (found.get(name), undisturbed.get(name)) for name in found if found[name] != undisturbed.get(name)
    }
    assert not differing and found == undisturbed, f"{told}\n{differing}"
    final = records(course)
    twice = [student for student, record in on_record.items() if final[student] != record]
    assert not twice, f"judged twice although on record: {twice}; {told}"
    assert f"{number - up_to_date} judged, {up_to_date} were up to date, 0 not graded\n" in log.read_text(), told
    history = read_audit(course.audit)
    assert history.damaged == () and not history.torn
    assert {entry["student"] for entry in history.entries if entry.get("entered")} == set(final)
    assert not list(course.root.glob("**/.*.*.json.*")), "no half-written record is left"
