"""Templates of the pages: all escape, all ask for what they need, all state the policy."""

import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from mlsys_grader.reports import webpage

FOLDER = Path(webpage.__file__).parent / "templates"
NAMES = sorted(path.name for path in FOLDER.iterdir())


def test_the_templates_are_found():
    assert webpage.TEMPLATES.list_templates() == NAMES and "page.html" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_template_escapes_and_has_no_way_round_it(name):
    template, source = webpage.TEMPLATES.get_template(name), (FOLDER / name).read_text()
    assert template.environment.autoescape is True
    assert not re.search(r"\|\s*safe\b|autoescape|<script|<link|src=|href=", source)
    assert name == "page.html" or source.startswith('{% extends "page.html" %}\n')


def test_the_policy_forbids_script_and_loading():
    source = (FOLDER / "page.html").read_text()
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in source
    assert source.index("Content-Security-Policy") < source.index("<title>"), "before anything that it is to govern"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "page.html"])
def test_a_value_that_is_missing_is_an_error(name):
    with pytest.raises(UndefinedError):
        webpage.render_webpage(name)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("plain", ["plain"]),
        ("`a` and `b`", ["", "a", " and ", "b", ""]),
        ("`", ["`"]),
        ("`a` and `b", ["`a` and `b"]),
        ("", [""]),
    ],
)
def test_every_second_piece_is_code_unless_a_backtick_is_alone(text, pieces):
    assert webpage.split_code(text) == pieces
