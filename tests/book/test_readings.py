"""The reading list holds what the five lists name and our additions, in our own words; its loader names every slip."""

from __future__ import annotations

import hashlib
import re
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from pybtex.database import parse_file

from mlsys_lab.errors import CourseError
from mlsys_lab.stack.labinfo import LabInfo

BOOK = Path(__file__).parents[2] / "book"
SEEDS = Path(__file__).parent / "seeds"
sys.path.insert(0, str(BOOK / "_ext"))

import readings  # noqa: E402  # a module of the book's extension folder

LIST = readings.load()
SYLLABUS = readings.load_syllabus()
BY_ID = {reading.id: reading for reading in LIST}
NAMED = [
    (seed, entry) for seed in readings.SEEDS for entry in yaml.safe_load((SEEDS / f"{seed}.yml").read_text("utf-8"))
]
SHINGLES = frozenset((SEEDS / "shingles.txt").read_text().split())
# UTF-8 read as Latin-1 or Windows-1252 shows as one of these before a second odd character; U+FFFD is a lost one.
MOJIBAKE = re.compile("[ÃÂâ][\u0080-\u00bf\u20ac\u201a-\u2122]|\ufffd")


def words(text: str) -> list[str]:
    """Lower-case words; a run of Chinese characters gives its pairs."""
    chinese = [run[i : i + 2] for run in re.findall("[\u4e00-\u9fff]+", text) for i in range(len(run) - 1)]
    return re.findall(r"[a-z0-9]+", text.lower()) + chinese


def copied(text: str) -> list[str]:
    """The runs of eight words that `text` shares with the five lists, which are kept as hashes only."""
    found = re.findall(r"[a-z0-9]+", text.lower())
    runs = [" ".join(found[i : i + 8]) for i in range(len(found) - 7)]
    return [run for run in runs if hashlib.sha256(run.encode()).hexdigest()[:10] in SHINGLES]


def entry_of(seed: str, index: int) -> dict[str, str]:
    return [entry for name, entry in NAMED if name == seed][index]


def test_the_five_lists_are_all_here() -> None:
    assert Counter(seed for seed, _ in NAMED) == {
        "models-in-depth": 13,
        "machine-learning-systems": 16,
        "course-topics": 18,
        "zh-mlsys": 51,
        "ml-systems-engineering": 54,
    }


@pytest.mark.parametrize(("seed", "entry"), NAMED, ids=[f"{seed}:{entry['id']}" for seed, entry in NAMED])
def test_every_link_and_title_of_the_lists_has_an_entry(seed: str, entry: dict[str, str]) -> None:
    reading = BY_ID[entry["id"]]
    assert seed in reading.seeds
    if "link" in entry:
        assert entry["link"].replace("\\", "").rstrip(".") in (reading.url, *reading.also)
    if "title" in entry:
        wanted = set(words(entry["title"]))
        here = set(words(" ".join((reading.title, *reading.authors, reading.note, reading.id))))
        assert len(wanted & here) >= len(wanted) / 2
    else:
        assert "title line is missing" in reading.note


def test_every_entry_comes_from_a_list_that_names_it_or_is_ours() -> None:
    named = {(seed, entry["id"]) for seed, entry in NAMED}
    assert {(seed, reading.id) for reading in LIST for seed in reading.seeds} == named
    assert {reading.id for reading in LIST if reading.is_ours} == set(BY_ID) - {entry["id"] for _, entry in NAMED}


def test_the_canon_is_among_our_additions() -> None:
    canon = (SEEDS / "canon.txt").read_text().split()
    assert set(canon) <= {reading.id for reading in LIST if reading.is_ours}


def test_every_entry_has_a_year_or_says_why_not() -> None:
    dated = [reading.year for reading in LIST if isinstance(reading.year, int)]
    assert all(1960 < year < 2100 for year in dated)
    assert sum(reading.year == "unknown" for reading in LIST) == 6
    for reading in LIST:
        if told := re.search(r"arxiv\.org/abs/(\d\d)\d\d\.", reading.url):
            posted = 2000 + int(told[1])
            assert isinstance(reading.year, int) and posted <= reading.year <= posted + 2, reading.id
        if told := re.search(r"/(20[12]\d)[/-]", reading.url):
            assert reading.year == int(told[1]), reading.id


def test_repeats_are_merged() -> None:
    for repeated in ("cmu-15442", "scaling-book", "ultrascale-playbook", "micrograd"):
        assert {"models-in-depth", "machine-learning-systems"} <= set(BY_ID[repeated].seeds)
    assert len({reading.title.casefold() for reading in LIST}) == len(LIST)
    assert sum(not reading.is_ours for reading in LIST) == 131


def test_every_entry_belongs_to_chapters_of_the_syllabus() -> None:
    topics = {chapter.topic for chapter in SYLLABUS.chapters}
    assert {topic for reading in LIST for topic in reading.chapters} == topics


def test_every_chapter_has_readings_of_its_own_and_in_order() -> None:
    for chapter in SYLLABUS.chapters:
        listed = readings.for_chapter(LIST, chapter.topic)
        own = [reading for reading in listed if reading.home == chapter.topic]
        assert own and list(listed[: len(own)]) == own
    homes = [reading.home for reading in LIST]
    assert list(dict.fromkeys(homes)) == [chapter.topic for chapter in SYLLABUS.chapters], "homes follow the course"
    assert sum(a != b for a, b in pairwise(homes)) == len(SYLLABUS.chapters) - 1, "homes stay together"


@pytest.mark.parametrize("chapter", SYLLABUS.chapters, ids=[chapter.topic for chapter in SYLLABUS.chapters])
def test_a_chapter_sends_its_reader_to_three_to_six_works_on_its_subject(chapter: readings.Chapter) -> None:
    chosen = readings.choose_next(LIST, chapter)
    assert 3 <= len(chosen) <= 6
    for reading in chosen:
        assert chapter.topic in reading.chapters and set(chapter.subjects) & set(reading.topics), reading.id
        assert reading.url and reading.minutes < readings.LONG_MINUTES, reading.id
    assert sum(reading.home == chapter.topic for reading in chosen) >= len(chosen) / 3
    assert len(set(chapter.subjects) & {topic for reading in LIST for topic in reading.topics}) == len(chapter.subjects)


def test_chapter_8_sends_nobody_to_benchmarks_of_agents() -> None:
    chapter = SYLLABUS.chapter("08")
    assert chapter
    chosen = [reading.id for reading in readings.choose_next(LIST, chapter)]
    assert chosen[:2] == ["kaplan2020scaling", "hoffmann2022chinchilla"]
    assert not [id for id in chosen if "capability" in BY_ID[id].topics]


def test_a_reading_without_address_long_or_on_another_subject_is_not_next(tmp_path: Path) -> None:
    (plain,) = readings.load(written(tmp_path, GOOD))
    chapter = SYLLABUS.chapter("cuda")
    assert chapter
    many = [replace(plain, id=str(i)) for i in range(8)]
    assert readings.choose_next(many, chapter) == tuple(many[:6])
    assert readings.choose_next([replace(plain, url="")], chapter) == ()
    assert readings.choose_next([replace(plain, minutes=600)], chapter) == ()
    assert readings.choose_next([replace(plain, topics=("triton",))], chapter) == ()
    assert readings.choose_next([replace(plain, chapters=("triton",))], chapter) == ()
    elsewhere = replace(plain, id="elsewhere", chapters=("triton", "cuda"))
    assert readings.choose_next([elsewhere, plain], chapter) == (plain, elsewhere)


def test_our_reasons_are_our_own() -> None:
    known = "How continuous batching enables 23x throughput in LLM inference while reducing p50 latency"
    assert copied(known), "the hashes are of the same words that this test reads"
    for reading in LIST:
        assert not copied(reading.why), reading.id
        assert not copied(reading.note), reading.id
        assert 1 <= len(re.findall(r"[.!?](?= |$)", reading.why)) <= 3, reading.id
    assert len({reading.why for reading in LIST}) == len(LIST)


def test_what_the_lists_got_wrong_is_repaired_and_said() -> None:
    text = readings.READINGS.read_text("utf-8")
    assert not MOJIBAKE.search(text)
    assert MOJIBAKE.search(entry_of("models-in-depth", 10)["title"]), "the list itself has it"
    assert "’s" not in BY_ID["trip-to-kernels"].title and "PyTorch's" in BY_ID["trip-to-kernels"].title
    assert not [reading.id for reading in LIST if "\\" in reading.url]
    for repaired in (
        "he-brrrr",
        "lacroix-inference-cost",
        "trip-to-kernels",
        "cmu-15442",
        "pytorch-cifar10",
        "uw-cse599m",
    ):
        assert BY_ID[repaired].note
    assert BY_ID["cmu-15442"].authors == ("Carnegie Mellon University",)
    without = {reading.id for reading in LIST if not reading.url}
    assert without == {"cuan-nccl-notes", "medium-nccl-article"} == {reading.id for reading in LIST if reading.look}


def test_stars_are_what_the_lists_single_out() -> None:
    assert {reading.id for reading in LIST if reading.star} == {
        "ultrascale-playbook",
        "jones-how-gpu-computing-works",
        "stanford-cs329s",
    }


def test_chapters_and_labs_are_called_the_same_everywhere() -> None:
    for chapter in SYLLABUS.chapters:
        page = BOOK / f"{chapter.page}.md"
        if chapter.page and page.exists():
            heading = re.search("^# (.+)$", page.read_text("utf-8"), re.MULTILINE)
            assert heading and heading[1] == chapter.title
        for lab in chapter.labs:
            source = BOOK.parent / "solutions" / lab.page.removeprefix("labs/") / "lab.toml"
            if lab.number and source.exists():
                described = tomllib.loads(source.read_text("utf-8"))
                assert described["title"] == lab.title
                assert set(described["readings"]) <= set(BY_ID)


def test_what_the_bibliography_lists_too_is_described_alike() -> None:
    keys = parse_file(str(BOOK / "data" / "references.bib")).entries
    shared = set(keys) & set(BY_ID)
    assert len(shared) > 40
    for id in shared:
        fields, reading = keys[id].fields, BY_ID[id]
        assert bare(fields["title"]) in (bare(reading.title), bare(reading.title.split(" (")[0])), id
        assert (fields["year"], fields.get("url")) == (str(reading.year), reading.url), id
        assert bare(keys[id].persons["author"][0].last_names[-1]) in bare(reading.authors[0]), id


def test_a_work_stands_once_in_the_list_and_in_the_bibliography() -> None:
    keys = parse_file(str(BOOK / "data" / "references.bib")).entries
    for names in (
        {id: bare(entry.fields["title"]) for id, entry in keys.items()}
        | {reading.id: bare(reading.title) for reading in LIST if reading.kind == "paper"},
        {id: entry.fields["url"] for id, entry in keys.items() if "url" in entry.fields}
        | {reading.id: reading.url for reading in LIST if reading.url},
    ):
        twice = [name for name, times in Counter(names.values()).items() if times > 1]
        assert twice == []


def test_the_bibliography_holds_what_pages_cite() -> None:
    pages = [path.read_text("utf-8") for path in (*BOOK.glob("*.md"), *BOOK.glob("chapters/*.md"))]
    cited = {
        key.strip()
        for text in pages
        for keys in re.findall(r"\{cite(?::\w)?\}`([^`]+)`", text)
        for key in keys.split(",")
    }
    assert set(parse_file(str(BOOK / "data" / "references.bib")).entries) == cited


def bare(text: str) -> str:
    """Words of a title or a name in lower case, without TeX's braces and accents."""
    return " ".join(words(re.sub(r"[{}\\\"']", "", text)))


def test_topics_are_a_shared_vocabulary() -> None:
    used = Counter(topic for reading in LIST for topic in reading.topics)
    assert {topic for topic, count in used.items() if count == 1} <= {"triton"}


def test_chinese_titles_are_marked() -> None:
    for reading in LIST:
        if re.search("[\u4e00-\u9fff]", reading.title):
            assert reading.language == "zh", reading.id


GOOD = """\
- id: one
  title: One
  authors: [Somebody]
  year: 2020
  url: https://example.org/
  kind: blog
  language: en
  level: beginner
  minutes: 10
  topics: [cuda]
  chapters: [cuda]
  seeds: [zh-mlsys]
  why: It is short.
"""


def test_a_minimal_entry_loads(tmp_path: Path) -> None:
    (reading,) = readings.load(written(tmp_path, GOOD))
    assert (reading.id, reading.minutes, reading.star, reading.also, reading.note) == ("one", 10, False, (), "")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "kind: blog",
            "kind: blag",
            "readings.yml line 1, entry 'one', field 'kind': got 'blag', expected one of course",
        ),
        (
            "level: beginner",
            "level: easy",
            "field 'level': got 'easy', expected one of beginner, intermediate, advanced",
        ),
        ("minutes: 10", "minutes: ten", "field 'minutes': got 'ten', expected a whole number above 0"),
        ("minutes: 10", "minutes: 0", "field 'minutes': got 0, expected a whole number above 0"),
        ("minutes: 10", "minutes: yes", "field 'minutes': got True, expected a whole number above 0"),
        ("title: One", "title:", "field 'title': got nothing, expected some text"),
        ("  title: One\n", "", "field 'title': got nothing, expected some text"),
        ("title: One", "title: 7", "field 'title': got 7, expected some text"),
        ("authors: [Somebody]", "authors: Somebody", "field 'authors': got 'Somebody', expected a list of texts"),
        ("topics: [cuda]", "topics: [cuda, cuda]", "field 'topics': got ['cuda', 'cuda'], expected no item twice"),
        ("topics: [cuda]", "topics: [GPU model]", "field 'topics': got 'GPU model', expected lower-case words"),
        ("why: It", "wyh: It", "entry 'one': unknown field: got 'wyh', expected one of id, title"),
        ("year: 2020", "year: soon", "field 'year': got 'soon', expected one of current, unknown"),
        ("  year: 2020\n", "", "field 'year': got nothing, expected a whole number above 0"),
        ("seeds: [zh-mlsys]", "seeds: [mine]", "field 'seeds': got 'mine', expected one of models-in-depth"),
        ("https://example.org/", "https://x.org/a\\_b", "expected http:// or https://, without spaces or backslashes"),
        ("  url: https://example.org/\n", "", "field 'url': got nothing, expected an address, or a note"),
        ("minutes: 10", "minutes: 10\n  star: maybe", "field 'star': got 'maybe', expected true or false"),
        ("title: One", "title: One\n  title: Two", "readings.yml line 3: got field 'title' twice in one entry"),
        ("title: One", "title: One: two", "readings.yml line 2: got mapping values are not allowed"),
        ("[Somebody]", "[Somebody", "readings.yml line "),
        ("- id: one", "id: one", "readings.yml: got no list, expected a list of entries"),
    ],
)
def test_a_slip_is_one_line_that_says_where(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = GOOD.replace(old, new)
    if new == "id: one":
        text = re.sub("^  ", "", text, flags=re.MULTILINE)
    assert text != GOOD
    with pytest.raises(CourseError) as caught:
        readings.load(written(tmp_path, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_id_or_address_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match=r"line 14, entry 'one', field 'id': .*line 1, entry 'one' has it already"):
        readings.load(written(tmp_path, GOOD + GOOD))
    with pytest.raises(CourseError, match=r"entry 'two', field 'url': got 'https://example.org/'"):
        readings.load(written(tmp_path, GOOD + GOOD.replace("id: one", "id: two")))


def test_a_bare_entry_and_a_missing_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match=r"readings.yml line 1: got 'just text', expected an entry with fields"):
        readings.load(written(tmp_path, "- just text\n"))
    with pytest.raises(CourseError, match=r"cannot read absent.yml: got No such file"):
        readings.load(tmp_path / "absent.yml")


def test_the_syllabus_is_the_course() -> None:
    assert [part.title for part in SYLLABUS.parts] == [
        "Why", "Foundations", "Hardware", "Arithmetic", "Scale out", "Inference", "Diffusion", "Capstone",
    ]  # fmt: skip
    numbers = [chapter.number for chapter in SYLLABUS.chapters if chapter.number]
    assert numbers == [*range(1, 9), 15, *range(9, 15), 18]
    labs = [lab.number for chapter in SYLLABUS.chapters for lab in chapter.labs if lab.number]
    assert labs == [*range(1, 7), 13, *range(7, 13), 16]
    later = [chapter.topic for chapter in SYLLABUS.chapters if not chapter.number]
    assert later == ["tpu", "compiler", "infrastructure"]
    assert SYLLABUS.chapter("02") is SYLLABUS.chapter("automatic-differentiation")
    assert SYLLABUS.chapter("2") is None and SYLLABUS.chapter("99") is None
    found = SYLLABUS.chapter("02")
    assert (
        found
        and found.labs
        and (found.page, found.labs[0].page) == ("chapters/02-automatic-differentiation", "labs/01-autograd")
    )
    assert not any(copied(chapter.about) for chapter in SYLLABUS.chapters)


def described(folder: Path, topic: str, chapter: str) -> LabInfo:
    return LabInfo(folder / f"07-{topic}", "As written", "S", 60, 10, prerequisite_chapters=(chapter,))


def test_a_lab_that_is_written_takes_the_place_of_its_plan(tmp_path: Path) -> None:
    (planned,) = readings.load_syllabus(labs=()).chapter("collectives").labs
    assert (planned.title, planned.number) == ("Collectives from send and receive", 7)
    syllabus = readings.load_syllabus(labs=[described(tmp_path, "collectives", "10-data-parallel")])
    assert syllabus.chapter("collectives").labs == ()
    titles = [(lab.title, lab.page) for lab in syllabus.chapter("data-parallel").labs]
    assert titles == [("As written", "labs/07-collectives"), ("From DDP to FSDP", "labs/08-data-parallel")]


@pytest.mark.parametrize(
    ("chapter", "said"),
    [
        ("08-scaling-law", "got 08-scaling-law, expected a chapter NN-topic.*did you mean '08-scaling-laws'"),
        ("", "not in the syllabus: got none"),
    ],
)
def test_a_lab_without_a_place_is_told_in_one_line(tmp_path: Path, chapter: str, said: str) -> None:
    with pytest.raises(CourseError, match=f"07-odd.lab.toml.*{said}"):
        readings.load_syllabus(labs=[described(tmp_path, "odd", chapter)])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("number: 2", "number: two", "field 'number': got 'two', expected a whole number above 0"),
        ("number: 2", "numbr: 2", "chapter 'automatic-differentiation': unknown field: got 'numbr'"),
        (
            "topic: inside-pytorch",
            "topic: introduction",
            "field 'topic': got 'introduction', expected each topic and number once",
        ),
        ("- part: Why", "- part: ", "entry 'None', field 'part': got nothing, expected some text"),
    ],
)
def test_a_slip_in_the_syllabus_is_told_alike(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = readings.SYLLABUS.read_text("utf-8").replace(old, new, 1)
    with pytest.raises(CourseError) as caught:
        readings.load_syllabus(written(tmp_path, text, "syllabus.yml"))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def written(folder: Path, text: str, name: str = "readings.yml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
