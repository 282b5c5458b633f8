"""A course that nobody handed in to yet, and an empty folder of hand-ins."""

import pytest

from mlsys_grader.course.folder import Course


@pytest.fixture
def course(tmp_path):
    return Course.open(tmp_path / "course", create=True)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "hand-ins"
    folder.mkdir()
    return folder
