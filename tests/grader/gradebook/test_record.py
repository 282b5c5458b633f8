import pytest

from mlsys_grader.gradebook.record import Record, read_record
from mlsys_grader.judging.verdict import Verdict


@pytest.fixture
def record():
    return Record(
        "ada", "01-tiny", "d" * 64, "v1", (Verdict("double", "double", 1, 1, seed=2**63 + 1),), notes=("a note",)
    )


def test_a_record_reads_back_as_it_was(record, tmp_path):
    record.write(tmp_path / "ada.json")
    assert read_record(tmp_path / "ada.json") == record


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"student": "ada"}', b'{"verdicts": [{"nonsense": 1}], "notes": []}']
)
def test_a_damaged_record_counts_as_none(tmp_path, content):
    (tmp_path / "ada.json").write_bytes(content)
    assert read_record(tmp_path / "ada.json") is None


def test_a_record_holds_for_its_content_and_version_only(record):
    assert record.holds_for("d" * 64, "v1")
    assert not record.holds_for("e" * 64, "v1")
    assert not record.holds_for("d" * 64, "v2")
