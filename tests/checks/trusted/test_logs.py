"""A log is held against a form: what has it passes, and all else is refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from mlsys_checks.trusted.logs import BrokenRuleError, require_form

FORM = {"steps": [(range(3), [range(10)])], "answer": {bool, None}, "name": str}
LOG = {"steps": [[0, [1, 9]], [2, []]], "answer": None, "name": "x"}


def test_a_log_that_has_its_form_passes() -> None:
    require_form(LOG, FORM)
    require_form({**LOG, "steps": [], "answer": True}, FORM)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": [[3, []]]},
        {"steps": [[-1, []]]},
        {"steps": [[True, []]]},
        {"steps": [[0.0, []]]},
        {"steps": [[0]]},
        {"steps": [[0, [10]]]},
        {"steps": [[0, 1]]},
        {"steps": {}},
        {"answer": 1},
        {"name": None},
        {"more": 1},
    ],
)
def test_a_log_that_has_not_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BrokenRuleError, match="has the wrong form"):
        require_form(LOG | change, FORM)
