"""Arguments out of range: one line that names the argument."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_at_least_one, require_non_negative, require_positive


def test_amounts_may_be_zero_only_where_that_is_said() -> None:
    require_positive(flops=1e-300, devices=1)
    require_non_negative(flops=0.0)
    for amount in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="time_s must be positive"):
            require_positive(devices=1, time_s=amount)
    for amount in (0.999, -1.0, float("nan")):
        with pytest.raises(InputError, match="ranks must be at least 1"):
            require_at_least_one(devices=1, ranks=amount)
    for amount in (-1e-9, float("nan")):
        with pytest.raises(InputError, match="flops must not be negative"):
            require_non_negative(flops=amount)
