from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from book.project import BOOK, LABS
from mlsys_lab import hardware
from mlsys_lab.stack.labinfo import released_labs


@pytest.fixture(scope="module")
def front_page() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BOOK / "_ext"))
    import front_page

    yield front_page
    sys.path.remove(str(BOOK / "_ext"))


def test_decoding_alone_waits_for_memory_and_a_prompt_does_not(front_page: ModuleType) -> None:
    device = hardware.device("H100")
    one, busy, prompt = (front_page.decode(batch) for batch in (1, 32, 2048))
    # By hand: 16 GB of weights over the bandwidth, however many tokens share them; 2 FLOPs per parameter and token.
    assert one.time_s == busy.time_s == pytest.approx(16e9 / device.memory_bandwidth_bytes_per_s)
    assert prompt.time_s == pytest.approx(2 * 8e9 * 2048 / device.peak("bf16"))
    assert (one.limit, busy.limit, prompt.limit) == ("memory", "memory", "compute")
    assert busy.fraction == pytest.approx(32 * one.fraction)
    assert prompt.fraction == 1


@pytest.mark.parametrize(("fraction", "text"), [(0.0033857, "0.34 %"), (0.2167, "22 %"), (1.0, "100 %")])
def test_percentages_have_two_digits(front_page: ModuleType, fraction: float, text: str) -> None:
    assert front_page.percent(fraction) == text


def test_reading_time_counts_prose_only(front_page: ModuleType) -> None:
    prose = "word " * 600
    code = "```{code-cell}\n" + "code " * 1000 + "\n```"
    head = "meta: x\n" * 500
    assert front_page.prose_minutes(f"---\n{head}---\n{prose}\n{code}\n{prose}") == 6


def test_the_page_counts_what_is_there(front_page: ModuleType) -> None:
    context = front_page.context()
    assert len(context["chapters"]) == len(list((BOOK / "chapters").glob("*.md")))
    assert [lab.name for lab in context["labs"]] == [lab.name for lab in released_labs(LABS)]
    assert {layer.name for layer, released in context["stack"] if released} >= {"Engine"}
    assert context["figure"].count("<circle") == 3


def test_every_layer_names_parts_of_the_syllabus(front_page: ModuleType) -> None:
    parts = {part.title for part in front_page.readings.load_syllabus().parts}
    assert {part for layer in front_page.STACK for part in layer.parts} <= parts


def test_every_picture_is_of_a_lab_that_is_there(front_page: ModuleType) -> None:
    html = front_page.rendered("pictures")
    assert len(front_page.PICTURES) == html.count('class="drawing"') == 3
    labs = {f"labs/{lab.name}" for lab in released_labs(LABS)}
    assert {picture.page for picture in front_page.PICTURES} <= labs
    assert all(f'href="{picture.page}.html"' in html for picture in front_page.PICTURES)


@pytest.mark.parametrize(("minutes", "text"), [(45, "45 min"), (60, "1 h"), (150, "2 h 30 min")])
def test_durations_read_like_speech(front_page: ModuleType, minutes: int, text: str) -> None:
    assert front_page.duration(minutes) == text
