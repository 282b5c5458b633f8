"""Notebook commands in exported cells, and the mark that exports them."""

from __future__ import annotations

import ast

import pytest

from mlsys_lab.stack.commands import is_exported, strip_commands


@pytest.mark.parametrize(
    "mark",
    [
        "#| export",
        "#|export",
        "# | export",
        "#  |  export",
        "# |export",
        "  #| export  ",
        "#| Export",
        "#export",
        "# export",
        "#| export\r",
        "\ufeff#| export",
        "\n\n#| export",
        "# my solution\n#| export",
        "#| echo: false\n#| export",
        "%%time\n#| export",
        "%%capture out\n\n# | export",
        "#| export # task 2",
        "## | export",
        "#｜ export",
        "\u200b#| export",
        "import math\n#| export",
        "import math\n\nimport torch\n# | export",
        '"""My solution."""\n#| export',
        "!pip install x\n#| export",
        "%matplotlib inline\n#| export",
        "x = 1\n#| export",
        "#| exports",
        "#|exports",
        "# | exports",
        "#exports",
        "#| Exports mlsys",
        "x = 1\n#|exports",
        "#| exporti",
    ],
)
def test_the_mark_is_known_however_it_is_written(mark: str) -> None:
    assert is_exported(f"{mark}\nx = 1")


@pytest.mark.parametrize(
    "source",
    [
        "x = 1\n# export",
        "x = 1  #| export",
        "# export the results\nx = 1",
        "#| exported\n",
        "#| exports_nothing\n",
        "x = 1\n# exports",
        "# exports all\nx = 1",
        "",
        "#",
        "'#| export'",
    ],
)
def test_other_cells_are_not_exported(source: str) -> None:
    assert not is_exported(source)


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        ("%time x = f(3)", "x = f(3)"),
        ("y = %time f(3)", "y = f(3)"),
        ("%timeit f(3)", "pass"),
        ("%matplotlib inline", "pass"),
        ("!pip install it's", "pass"),
        ("!!ls", "pass"),
        ("pip install x", "pass"),
        ("files = !ls *.py", "files = None"),
        ("here = %pwd", "here = None"),
        ("np?", "pass"),
        ("np.sum??", "pass"),
        ("?np", "pass"),
        ("for i in range(3):\n    %time f(i)\n    !echo {i}", "for i in range(3):\n    f(i)\n    pass"),
        ("!pip install \\\n  a \\\n  b\nx = 1", "pass\n#\n#\nx = 1"),
        ("#| export\n%%time\nx = 1", "#| export\n#\nx = 1"),
        ("%%time\n#| export\nx = 1", "#\n#| export\nx = 1"),
        ("x = 1\n%%capture\ny = 2", "x = 1\npass\ny = 2"),
        ("    #| export\n    def f():\n        return 1\n", "#| export\ndef f():\n    return 1\n"),
        ("\t%time x = 1\n\ty = 2", "x = 1\ny = 2"),
        ("#| export\n>>> def f():\n...     return 1\n...\n>>> x = 1", "#| export\ndef f():\n    return 1\n\nx = 1"),
    ],
)
def test_commands_are_passed_over(source: str, plain: str) -> None:
    assert strip_commands(source) == plain
    ast.parse(plain)


@pytest.mark.parametrize(
    "source",
    [
        "text = '''\n%time is text\n!so is this\n'''",
        "y = (5\n  % 3)\nz = '%time'",
        "y = 7 \\\n  % 4",
        'def f():\n    r"""Add.\n\n    >>> f()\n    """',
        "class A:\n    x: int\n...\ny = 2",
        "def f(:\n    pass",
        "%%bash\nls",
        "%%writefile x.py\nx = 1",
        "x = f(  # why?",
        "x = 1\0",
    ],
)
def test_what_is_python_or_cannot_be_mended_stays(source: str) -> None:
    assert strip_commands(source) == source
