"""Who is who: names from folders, files and archives, and what the table of names says of them."""

import unicodedata

import pytest

from mlsys_grader.intake.collect import collect
from mlsys_grader.intake.found import make_printable
from mlsys_lab.errors import InputError
from tests.grader.intake.submitted import LAB, archive, put, statuses, taken


def test_names_that_no_folder_may_have_are_made_plain_and_stay_apart(course, tmp_path):
    names = ["a b/x.ipynb", "a-b/x.ipynb", "-rf/x.ipynb", "名前/x.ipynb", "c" * 250 + "/x.ipynb"]
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
        ("ada", "ada (1)"),
        ("ada", "ada - Copy"),
        ("ada", "ada "),
        ("ada.", "ada"),
        ("a\u200bda", "ada"),
        ("jane doe", "janedoe"),
        ("OBrien", "O'Brien"),
        ("Doe, Jane", "Jane Doe"),
        ("Müller", "Mueller"),
        ("ada", "ada copy"),
        ("ada", "ada_LATE"),
        ("ada v2", "ada"),
        ("ada", "ada@uni.edu"),
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


@pytest.mark.parametrize(
    ("first", "later"), [("jane_doe", "jane_smith"), ("1-23", "12-3"), ("4711", "47110"), ("late", "copy")]
)
def test_names_that_share_a_part_are_two_students(course, tmp_path, first, later):
    for name in (first, later):
        put(tmp_path / name, f"{name}/01-tiny.ipynb", name)
        assert [one.status for one in collect(course, LAB, tmp_path / name)] == ["new"]


def test_letters_with_accents_are_the_same_however_a_system_writes_them(course, tmp_path):
    composed, apart = (unicodedata.normalize(form, "José Núñez") for form in ("NFC", "NFD"))
    put(tmp_path / "1", f"{apart}/01-tiny.ipynb", "one")
    put(tmp_path / "2", f"{composed}/01-tiny.ipynb", "two")
    put(tmp_path / "3", f"{apart}/01-tiny.ipynb", "three")
    put(tmp_path / "3", f"{composed}/other.ipynb", "four")
    assert statuses(course, tmp_path / "1") == {"Jose-Nunez": "new"}
    assert statuses(course, tmp_path / "2") == {"Jose-Nunez": "updated"}
    assert statuses(course, tmp_path / "3", settled={composed: "jn"}) == {"jn": "new"}
    course.roster.write_text(f"name,student\n{apart},mine\n", encoding="utf-8")
    assert statuses(course, tmp_path / "1") == {"mine": "new"}


def test_an_id_that_somebody_has_is_not_given_to_another_in_silence(course, source):
    put(source, "ada/01-tiny.ipynb")
    put(source, "ada2/01-tiny.ipynb")
    results = {result.detail[:6]: result.status for result in collect(course, LAB, source, settled={"ada2": "ada"})}
    assert results == {"01-tin": "new", "`ada` ": "unclear"} and list(taken(course)) == ["ada"]
    assert statuses(course, source, settled={"ada": "ada"}) == {"ada": "unchanged"}


def export(lab, **numbers):
    """A Moodle export: name -> numbers of the students of that name."""
    return {
        f"{name.replace('_', ' ')}_{number}_assignsubmission_file_/{lab}.ipynb": str(number)
        for name, given in numbers.items()
        for number in given
    }


def test_moodle_numbers_students_anew_in_each_lab_and_the_name_tells_who_it_is(course, tmp_path):
    first = archive(tmp_path / "1.zip", export("01-tiny", Ada_Lovelace=[1], Jan_Kim=[2, 3], Cy_Dee=[4]))
    later = archive(tmp_path / "2.zip", export("02-other", Ada_Lovelace=[11], Jan_Kim=[12], Bo_Ray=[13]))
    assert set(statuses(course, first)) == {"Ada-Lovelace-1", "Jan-Kim-2", "Jan-Kim-3", "Cy-Dee-4"}
    told = {result.student: result for result in collect(course, "02-other", later)}
    assert {student: result.status for student, result in told.items()} == {
        "Ada-Lovelace-1": "new", "Jan Kim-12": "unclear", "Bo-Ray-13": "new",
    }  # fmt: skip
    assert '--who "Jan Kim-12=Jan-Kim-' in told["Jan Kim-12"].detail
    again = {result.student: result.status for result in collect(course, "02-other", later)}
    assert again["Ada-Lovelace-1"] == "unchanged", "what was found out is remembered"
    third = archive(tmp_path / "3.zip", export("03-third", Cy_Dee=[21, 22]))
    assert set(result.status for result in collect(course, "03-third", third)) == {"unclear"}


def test_a_namesake_who_hands_in_later_is_another_student(course, tmp_path):
    first = archive(tmp_path / "1.zip", export("01-tiny", Jan_Kim=[2]))
    later = archive(tmp_path / "2.zip", export("01-tiny", Jan_Kim=[2, 3]))
    assert statuses(course, first) == {"Jan-Kim-2": "new"}
    assert statuses(course, later) == {"Jan-Kim-2": "unchanged", "Jan-Kim-3": "new"}


def test_who_is_called_a_participant_is_called_nothing(course, tmp_path):
    for lab, first in (("01-tiny", 10), ("02-other", 20)):
        class_ = archive(tmp_path / f"{lab}.zip", export(lab, Participant=range(first, first + 5)))
        assert {result.status for result in collect(course, lab, class_)} == {"new"}


@pytest.mark.parametrize("form", ["{}_4711_9_01-tiny.ipynb", "4711-9 - {} - Nov 20, 2026 345 PM/01-tiny.ipynb"])
def test_a_number_that_a_platform_gave_is_asked_about_under_another_name(course, tmp_path, form):
    for name, status in (("doejane", "new"), ("smithjane", "unclear")):
        (result,) = collect(course, LAB, archive(tmp_path / f"{name}.zip", {form.format(name): name}))
        assert result.status == status
    assert "`smithjane-4711` may be `doejane-4711`, who is doejane-4711" in result.detail


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
