"""Who is who: names from folders, files and archives, and what the table of names says of them."""

import pytest

from mlsys_grader.intake.collect import collect
from mlsys_grader.intake.hand_in import make_printable
from mlsys_lab.errors import InputError
from tests.grader.intake.hand_ins import LAB, archive, put, statuses, taken


def test_names_that_no_folder_may_have_are_made_plain_and_stay_apart(course, tmp_path):
    names = ["a b/x.ipynb", "a-b/x.ipynb", "-rf/x.ipynb", "名前/x.ipynb", "c" * 300 + "/x.ipynb"]
    collect(course, LAB, archive(tmp_path / "n.zip", {name: name[:3] for name in names}))
    assert len(course.students(LAB)) == len(names)
    assert sorted(taken(course).values()) == sorted(name[:3] for name in names)


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ("jane doe", "jane-doe"),
        ("jane-doe", "jane doe"),
        ("Jane", "jane"),
        ("José", "Jose"),
        ("Jose\u0301", "José"),
        ("ada", "ada "),
        ("ada.", "ada"),
        ("a\u200bda", "ada"),
    ],
)
@pytest.mark.parametrize("archived", [False, True])
def test_a_name_that_reads_like_a_known_one_is_asked_about(course, tmp_path, first, later, archived):
    def hand_ins(name):
        entries = {f"{name}/01-tiny.ipynb": name}
        if archived:
            return archive(tmp_path / "in.zip", entries)
        for path, content in entries.items():
            put(tmp_path / ascii(name), path, content)
        return tmp_path / ascii(name)

    collect(course, LAB, hand_ins(first))
    (known,) = taken(course)
    (result,) = collect(course, LAB, hand_ins(later))
    assert result.status == "unclear" and taken(course) == {known: first}
    assert make_printable(first) in result.detail and f'--who "{make_printable(later)}={known}"' in result.detail
    assert statuses(course, hand_ins(later), settled={later: "another"}) == {"another": "new"}
    assert statuses(course, hand_ins(later)) == {"another": "unchanged"}, "what was settled is remembered"
    assert statuses(course, hand_ins(first)) == {known: "unchanged"}


def test_two_names_may_be_settled_as_one_student(course, source):
    put(source, "jane doe/01-tiny.ipynb", "one")
    collect(course, LAB, source)
    (source / "jane doe").rename(source / "Jane-Doe")
    put(source, "Jane-Doe/01-tiny.ipynb", "two")
    assert statuses(course, source, settled={"Jane-Doe": "jane-doe"}) == {"jane-doe": "updated"}
    course.roster.write_text("name,student,remark\nJane-Doe,jd,by hand\n")
    assert statuses(course, source) == {"jd": "new"}


def test_names_that_come_together_are_kept_apart_and_it_is_said(course, tmp_path):
    both = archive(tmp_path / "n.zip", {"jane-doe/x.ipynb": "a", "jane doe/x.ipynb": "b"})
    first, second = collect(course, LAB, both)
    assert (first.student, first.remark, second.status) == ("jane-doe", "", "new")
    assert "`jane doe` reads like `jane-doe`" in second.remark
    assert sorted(taken(course).values()) == ["a", "b"]
    assert [result.status for result in collect(course, LAB, both)] == ["unchanged", "unchanged"]


def test_a_course_from_before_there_was_a_table_of_names_goes_on(course, source):
    put(source, "Zoë.ipynb", "z")
    course.submission("Zoe", LAB).parent.mkdir(parents=True)
    assert statuses(course, source) == {"Zoe": "new"}


@pytest.mark.parametrize("text", ["", "name\nada\n", "name,student\nada,../x\n", "name,student\na,b\na,c\n", "\xff"])
def test_a_damaged_table_of_names_is_one_line(course, source, text):
    put(source, "ada.ipynb")
    course.roster.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"students\.csv"):
        collect(course, LAB, source)


def test_files_of_two_students_whose_ids_begin_alike_stay_apart(course, source):
    for name in ("jane_doe", "jane_smith", "jane_doe_01-tiny (1)", "kim_01-tiny"):
        put(source, f"{name}.ipynb", name)
    results = {result.student: result for result in collect(course, LAB, source)}
    assert taken(course) == {"jane_doe": "jane_doe_01-tiny (1)", "jane_smith": "jane_smith", "kim": "kim_01-tiny"}
    assert results["jane_doe"].remark == "took `jane_doe_01-tiny (1).ipynb`, not `jane_doe.ipynb`"


@pytest.mark.parametrize(
    "names",
    [
        ("ada/01-tiny.ipynb", "bob/01-tiny.ipynb", "cy/essay.pdf"),
        ("ada_01-tiny.ipynb", "bob_01-tiny.ipynb"),
        ("Ada_4711_assignsubmission_file_/01-tiny.ipynb", "Bob_4712_assignsubmission_file_/01-tiny.ipynb"),
        ("ada_4711_1_01-tiny.ipynb", "bob_4712_2_01-tiny.ipynb"),
    ],
)
def test_a_class_within_one_folder_is_not_taken_for_one_student(course, tmp_path, names):
    whole = archive(tmp_path / "w.zip", {f"hand-ins/{name}": name for name in names})
    with pytest.raises(InputError, match=r"everything lies in one folder: got hand-ins.*--who \"hand-ins=STUDENT"):
        collect(course, LAB, whole)
    assert course.students(LAB) == []
    assert statuses(course, whole, settled={"hand-ins": "kim"}) == {"kim": "new"}
    assert statuses(course, whole) == {"kim": "unchanged"}, "it is known whose it is"


def test_a_name_that_cannot_be_printed_is_settled_as_it_was_printed(course, tmp_path):
    put(tmp_path / "1", "ada/01-tiny.ipynb")
    put(tmp_path / "2", "\u200fada/01-tiny.ipynb")
    collect(course, LAB, tmp_path / "1")
    (result,) = collect(course, LAB, tmp_path / "2")
    assert result.status == "unclear" and '--who "?ada=ada"' in result.detail
    assert statuses(course, tmp_path / "2", settled={"?ada": "ada"}) == {"ada": "unchanged"}
    assert statuses(course, tmp_path / "2") == {"ada": "unchanged"}
