from collections.abc import Iterator

import pytest

from tests.inference.server.serving import Served, serving


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """One server for all tests that end none, which leaves no text, no block and no complaint behind."""
    with serving() as running:
        yield running
        running.wait_until_idle()
        assert running.end() == 0 and running.log.read_text() == ""
