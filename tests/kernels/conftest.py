"""Where the kernels of a test run: in the host's memory on every machine, and on the GPU where there is one."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """A device of torch."""
    return str(request.param)
