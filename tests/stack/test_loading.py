"""Exported cells as a module: what runs, what a broken cell costs, and where in the notebook errors are."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import sys
import traceback
from functools import partial
from types import ModuleType

import pytest

from mlsys_lab.errors import UnfinishedError
from mlsys_lab.stack.artifact import Artifact, Cell
from mlsys_lab.stack.limits import OutOfTimeError, time_limit
from mlsys_lab.stack.loading import (
    ArtifactLoader,
    describe,
    find_cause,
    find_elsewhere,
    find_endless,
    find_lost,
    load,
    lost_cells,
    place_of,
)
from tests.loops import run

FAILS = "fails when the exported cells run by themselves"


def _artifact(*sources: str) -> Artifact:
    return Artifact("n.ipynb", tuple(Cell(10 + i, f"#| export\n{source}") for i, source in enumerate(sources)))


def test_cells_share_one_module() -> None:
    module = load(_artifact("x = 2", "def f():\n    return x + 1"))
    assert module.f() == 3


def test_source_is_that_of_the_text_loaded_last_under_a_name() -> None:
    for value in (1, 2):
        module = load(Artifact.parse("lab.ipynb", f"def f():\n    return {value}\n"))
        assert f"return {value}" in inspect.getsource(module.f)


def test_classes_have_source_and_can_be_pickled() -> None:
    module = load(_artifact("from dataclasses import dataclass\n@dataclass\nclass P:\n    a: 'int' = 1"))
    assert "class P" in inspect.getsource(module.P)
    assert dataclasses.asdict(pickle.loads(pickle.dumps(module.P(5)))) == {"a": 5}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def lost(:\n  pass", "n.ipynb: syntax error in cell 11, line 2: `def lost(:`: got invalid syntax"),
        ("await = 3\nlost = 1", "syntax error in cell 11"),
        ("lost = 1\nreturn lost", "line 3: `return lost`: got 'return' outside function"),
        ("%%bash\nlost=1", "got a command that makes the cell something else than Python"),
        ("lost = 1\0", "syntax error in cell 11"),
        ("lost = " + "(" * 500, "syntax error in cell 11"),
        ("lost = " + "-" * 100_000 + "1", "syntax error in cell 11"),
        ("y = 1\nlost = 1 / 0", f"cell 11 (begins `y = 1`), line 3: `lost = 1 / 0` {FAILS}: got ZeroDivisionError"),
        ("lost = [1, 2, 3][7]", f"`lost = [1, 2, 3][7]` {FAILS}: got IndexError"),
        ("raise ValueError('so far')\nlost = 1", f"`raise ValueError('so far')` {FAILS}"),
        ("exit()\nclass lost: pass", "got SystemExit"),
        ("def g():\n    return undefined\nlost = g()", "cell 11 (begins `def g():`), line 3: `return undefined`"),
        ("import asyncio\nlost = await asyncio.nothing()", "got AttributeError"),
        ("import no_such_module_here as n\nlost = n.f()", "got ModuleNotFoundError: No module named 'no_such_module"),
        ("import no_such_module_here as n\ndef lost(x=n.y): pass", "got ModuleNotFoundError"),
        ("from no_such_module_here import one\nlost = one()", "only packages that the course installs"),
        ("for lost in x: pass", f"line 2: `for lost in x: pass` {FAILS}: got TypeError"),
    ],
)
def test_a_cell_that_fails_costs_what_it_defines_and_is_told_by_cell_and_line(source: str, said: str) -> None:
    module = load(_artifact("x = 2", source, "def f():\n    return x + 1"))
    assert module.f() == 3
    assert not hasattr(module, "lost")
    error = find_lost(module, ["lost"])
    assert error is not None and said in str(error) and "\n" not in str(error)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python reads them")
@pytest.mark.parametrize(
    "line",
    [
        "type Lost = int",
        "type Lost[T] = T",
        "def lost[T](x): pass",
        "class lost[T]: pass",
        'lost = f"{\', \'.join(f"{1}")}"',
        'lost = f"{"a" "b"}"',
        "lost = f'{\n1\n}'",
        "y = 1; type Lost = int",
        "def lost[\n    T\n](x): pass",
    ],
)
def test_syntax_of_a_newer_python_is_told_as_that(line: str) -> None:
    error = find_lost(load(_artifact(f"x = 2\n{line}\nlost = 1")), ["lost"])
    expected = f"expected a cell that parses with Python 3.{sys.version_info.minor}, which runs the checks"
    assert expected in str(error) and "if it runs there, its Python is newer" in str(error)


@pytest.mark.parametrize(
    "line",
    [
        "assert f() == 5",
        "x = 1 / 0",
        "from google.colab import drive\ndrive.mount('/content/drive')",
        "import no_such_plots as plt\nplt.style.use('ggplot')",
        "name = input('Who are you? ')",
        "check('f')",
        "del never_defined",
        "open('/content/drive/MyDrive/data.csv')",
    ],
)
def test_a_line_that_fails_costs_nothing_that_stands_above_or_below_it(line: str) -> None:
    module = load(_artifact(f"def f():\n    return 4\n{line}\ng = 1"))
    assert module.f() == 4 and module.g == 1 and find_lost(module, ["f", "g"]) is None
    assert [str(lost.error).partition("\n")[2] for lost in lost_cells(module)] == [""], "it is told, in one line"


@pytest.mark.parametrize("line", ["raise ValueError('so far')", "exit()", "raise NotImplementedError"])
def test_a_cell_that_ends_itself_ends_there(line: str) -> None:
    module = load(_artifact(f"def f():\n    return 4\n{line}\ng = 1"))
    assert module.f() == 4 and find_lost(module, ["f"]) is None and find_lost(module, ["g"]) is not None


def test_a_cell_that_fails_for_want_of_another_names_that_one() -> None:
    module = load(_artifact("a = 1 / 0", "b = a + 1", "def f():\n    return a"))
    assert f"(n.ipynb: cell 10, line 2: `a = 1 / 0` {FAILS})" in str(find_lost(module, ["b"]))
    with pytest.raises(NameError) as caught:
        module.f()
    assert "cell 10, line 2" in str(find_cause(caught.value))


def test_a_typing_mistake_is_blamed_on_no_cell() -> None:
    module = load(_artifact("def broken(:", "def f():\n    return undefined"))
    with pytest.raises(NameError) as caught:
        module.f()
    assert find_cause(caught.value) is None and find_cause(ValueError("x")) is None


def test_what_a_cell_that_is_no_python_would_import_is_blamed_on_it() -> None:
    module = load(_artifact("import math, os as system\nfrom torch import nn\nx = = 3", "def f(name):\n    exec(name)"))
    for name in ("math", "system", "nn"):
        assert "syntax error in cell 10 (begins" in str(find_lost(module, [name]))
    assert not lost_cells(module)[0].names & {"os", "torch", "as"}


def test_a_name_that_a_cell_defines_which_does_not_count_is_told_with_that_cell() -> None:
    module = load(
        Artifact("n.ipynb", _artifact("def f():\n    return SIZE\ndef g():\n    return other").cells, (("SIZE", 3),))
    )
    assert find_elsewhere(module, ["SIZE", "other"]) == {"SIZE": 3}
    with pytest.raises(NameError) as caught:
        module.f()
    assert str(find_cause(caught.value)) == "cell 3 defines it and does not begin with `#| export`"
    with pytest.raises(NameError) as caught:
        module.g()
    assert find_cause(caught.value) is None


def test_a_missing_package_costs_only_what_uses_it() -> None:
    imports = "import no_such_module as n, math\nfrom no_such_module import draw\nimport no_such.deeper"
    functions = "def f():\n    return math.sqrt(4)\ndef g():\n    return n.plot\ndef h():\n    draw()"
    module = load(_artifact(f"{imports}\nfrom math import nope\n{functions}"))
    assert lost_cells(module) == [] and module.f() == 2
    for broken in (module.g, module.h):
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            broken()


def test_what_is_there_is_not_replaced_by_what_is_missing() -> None:
    assert load(_artifact("x = 2", "from no_such_module import x")).x == 2


def test_a_future_import_may_stand_in_any_cell() -> None:
    late = (
        "import math\nfrom __future__ import annotations, division\nclass V:\n    def f(self, other: V) -> Other: ..."
    )
    assert load(_artifact("y = 2", f"{late}\nx = 3")).x == 3


def test_what_is_defined_where_a_notebook_is_the_main_program_is_there() -> None:
    guarded = (
        'if __name__ == "__main__":\n    import math, os\n    def f():\n        return math.sqrt(4)\n    1 / 0\nx = 1'
    )
    module = load(_artifact(guarded))
    assert (module.f(), module.x, lost_cells(module)) == (2, 1, [])
    assert "return math.sqrt(4)" in inspect.getsource(module.f)


@pytest.mark.parametrize(
    "line",
    [
        "while True: pass",
        "try:\n    while True: pass\nexcept Exception:\n    y = 1",
    ],
)
def test_a_line_that_does_not_end_costs_what_it_defines(line: str) -> None:
    artifact = _artifact(f"{line}\n{line}\nlate = [0 for _ in range(10**9)]\nx = 1")
    module = load(artifact, loader_of=partial(ArtifactLoader, limit_s=0.4))
    assert module.x == 1 and len(lost_cells(module)) == 3
    error = find_lost(module, ["late"])
    assert error is not None and "TimeoutError: no answer after" in str(error) and "late = [0" in str(error)


def test_statements_that_did_not_end_can_be_skipped() -> None:
    artifact = _artifact("x = 1; y = [0 for _ in range(10**9)]\ndef f(z=[0 for _ in range(10**9)]):\n    pass", "z = 3")
    first = load(artifact, loader_of=partial(ArtifactLoader, limit_s=0.2))
    assert find_endless(first) == [1, 2]
    module = load(artifact, loader_of=partial(ArtifactLoader, endless=find_endless(first)))
    assert (module.x, module.z, len(lost_cells(module))) == (1, 3, 2)
    error = find_lost(module, ["y"])
    assert error is not None and "TimeoutError: it did not end" in str(error) and "y = [0" in str(error)


def test_an_alarm_from_outside_ends_it_all() -> None:
    with pytest.raises(OutOfTimeError), time_limit(0.2):
        load(_artifact("while True: pass", "x = 1"))


@pytest.mark.parametrize(
    "line", ["raise GeneratorExit", "import pytest\npytest.skip('no GPU', allow_module_level=True)"]
)
def test_what_is_no_exception_ends_its_cell_alone(line: str) -> None:
    module = load(_artifact(f"x = 1\n{line}\ny = 2", "z = 3"))
    assert (module.x, module.z, hasattr(module, "y"), len(lost_cells(module))) == (1, 3, False, 1)


def test_a_decorator_of_a_missing_package_is_left_out() -> None:
    decorated = "@no_such.checked(strict=True)\n@twice\ndef f():\n    return 1\n@no_such\nclass A:\n    x = 2"
    module = load(_artifact(f"import no_such\ndef twice(f):\n    return lambda: 2 * f()\n{decorated}"))
    assert (module.f(), module.A.x, lost_cells(module)) == (2, 2, [])


def test_annotations_are_there_as_in_a_notebook_and_need_not_be() -> None:
    checked = (
        "import dataclasses\n@dataclasses.dataclass\nclass Size:\n    n: int = 0\n    def __post_init__(self):\n"
        "        for field in dataclasses.fields(self):\n"
        "            assert isinstance(getattr(self, field.name), field.type)"
    )
    unknown = "def f(x: Unknown, y: np.ndarray) -> 'V':\n    return x\nz: Unknown = 3\nclass C:\n    n: Unknown = 4"
    module = load(_artifact(checked, unknown))
    assert module.Size(3).n == 3
    with pytest.raises(AssertionError):
        module.Size("three")
    assert (module.f(1, 2), module.z, module.C.n) == (1, 3, 4) and lost_cells(module) == []


def test_cells_may_await_as_in_a_notebook() -> None:
    functions = (
        "import asyncio\nasync def count():\n    for i in range(3):\n        yield i\nasync def two():\n    return 2"
    )
    awaiting = "a = await two()\nb = [i async for i in count()]\nasync with asyncio.Lock():\n    c = 5"
    module = load(_artifact(functions, awaiting))
    assert (module.a, module.b, module.c) == (2, [0, 1, 2], 5)


def test_cells_may_await_where_a_loop_runs_already() -> None:
    async def load_in_a_notebook() -> ModuleType:
        return load(_artifact("import asyncio\nlock = asyncio.Lock()\nawait lock.acquire()", "held = lock.locked()"))

    assert run(load_in_a_notebook()).held


def test_what_notebooks_define_themselves_is_there() -> None:
    commands = "display(1, metadata={})\nget_ipython().run_line_magic('matplotlib', 'inline')"
    assert load(_artifact(f"{commands}\nassert 'colab' not in str(get_ipython())\nx = 4")).x == 4


def test_an_unwritten_task_that_a_cell_calls_is_unfinished() -> None:
    module = load(_artifact("def f():\n    raise NotImplementedError\nx = f()"))
    error = find_lost(module, ["x"])
    assert isinstance(error, UnfinishedError) and "not written yet: cell 10" in str(error)


def test_exceptions_are_described_in_one_bounded_line() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert describe(ValueError("a\n  b")) == "ValueError: a b"
    assert describe(KeyError()) == "KeyError"
    assert describe(Broken()) == "Broken: (its text cannot be shown: ValueError)"
    assert len(describe(ValueError("x" * 10_000))) < 350


def test_errors_after_import_are_placed_too() -> None:
    module = load(_artifact("x = 2\n\n", "def f():\n    return 1 / 0"))
    with pytest.raises(ZeroDivisionError) as caught:
        module.f()
    *_, (frame, line) = traceback.walk_tb(caught.value.__traceback__)
    place = place_of(frame.f_code, frame.f_globals, line)
    assert place is not None and (place.cell.number, place.line) == (11, 3)


def test_code_of_others_has_no_place() -> None:
    assert place_of(test_code_of_others_has_no_place.__code__, globals(), 1) is None
