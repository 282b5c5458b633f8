"""Every operator on every kind of call, and on code of others: none breaks down, and what they make is Python."""

import ast
import inspect
import random
import sysconfig
from pathlib import Path

import pytest

from mlsys_grader.proving.mutation.code import Code, read_solved_code
from mlsys_grader.proving.mutation.cuda import change_cuda_text
from mlsys_grader.proving.mutation.expressions import EXPRESSIONS
from mlsys_grader.proving.mutation.mutants import mutate
from mlsys_grader.proving.mutation.shown import Shown
from mlsys_grader.proving.mutation.statements import STATEMENTS, know_only, remember_results
from tests.labs.harness import labs

SHOWN = know_only(Shown({("f", "x"): (1, None)}, {(3, 13, 3, 22): 3}, {"f": (1, 2)}))
OPERATORS = (*STATEMENTS, *EXPRESSIONS, change_cuda_text, remember_results, *SHOWN)
CALLS = (
    "*x",
    "*x, y",
    "y, *x",
    "*x, *y",
    "1, *x, 2",
    "**x",
    "*x, **y",
    "y, axis=1, **x",
    "*x, axis=1",
    "(i for i in x)",
    "y := 1",
    "lambda *a, **k: a",
    "x[*y, 1:2, ...]",
    "x if y else 1, *x",
    "",
    "1, 2, 3, 4",
)
CALLED = (
    "range",
    "np.range",
    "max",
    "np.maximum",
    "x.sum",
    "torch.where",
    "clip",
    "x[0]",
    "(lambda: x)",
    "f(*x)",
    "round",
)
STATEMENTS_OF_ALL_KINDS = (
    "x = x + f(*y)",
    "x, *y = range(*x)",
    "x[1:-1, ::2] += -y @ x",
    "for i in range(*x):\n        break\n    else:\n        pass",
    "while x < f(*y) and y:\n        continue",
    "with f(*x) as y, f(**x):\n        pass",
    "if not x < y < 1e400 - 1e300:\n        return",
    "try:\n        y = x // 2\n    except* ValueError:\n        raise",
    "match x:\n        case [-1, *rest] if y > 0:\n            y = 2\n        case {'a': 1.5, **r}:\n            y = 3",
    "x: int = 16; y = [*x, *range(3)]; x = {**y, 'a': 1}",
    "def g(a, *x, b=1, **y):\n        nonlocal_ = yield from x\n        return (yield)",
    "async def g():\n        async for i in f(*x):\n            await f(*i)",
    'y = f"{x + 1!r:>{y}}" + "a" "b"; print(*x, sep="\\n", end="")',
    "del x, y; assert f(*x), 'no'",
    "return x if y else -x[1:], *y",
    "x = (1\n         + 2 * f(*y)); y = x ** -1",
)


def code_of(text):
    return Code(text, frozenset(range(1, len(text.split("\n")) + 1)))


def refuse_broken(code, most=None):
    """Fail unless each mutant compiles and is another text than its source and than the others; their number."""
    kept = set()
    for number, mutant in enumerate(mutate(code, "it", SHOWN)):
        if number == most:
            break
        tree = ast.parse(mutant.text)
        compile(tree, mutant.name, "exec")
        kept.add(ast.dump(tree))
    assert ast.dump(code.tree) not in kept
    return len(kept)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("called", CALLED)
def test_a_call_with_any_arguments(called):
    for given in CALLS:
        assert refuse_broken(code_of(f"def f(x, y):\n    return {called}({given})")), given


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("statement", STATEMENTS_OF_ALL_KINDS)
def test_a_statement_of_any_kind(statement):
    assert refuse_broken(code_of(f"def f(x, y, *z, w=1, **v):\n    x = 1\n    {statement}"))


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_each_operator_has_something_to_do_here():
    texts = [f"def f(x, y):\n    return {called}({given})" for called in CALLED for given in CALLS]
    texts += [f"def f(x, y):\n    x = 1\n    {statement}" for statement in STATEMENTS_OF_ALL_KINDS]
    texts += ["def f():\n    return '__global__ void f() { x = 1; }'", "def f(x, y):\n    return x.float32, True"]
    texts += ["def f(x, y):\n    if x:\n        pass"]
    used = {mutant.operator for text in texts for mutant in mutate(code_of(text), "it", SHOWN)}
    assert used == {inspect.unwrap(operator).__name__ for operator in OPERATORS}


def test_a_range_whose_parts_are_not_told_runs_backwards_at_most():
    found = {mutant.text.split("\n")[1].strip() for mutant in mutate(code_of("def f(x):\n    return range(*x)"), "it")}
    assert "return (reversed(range(*x)))" in found
    assert not any("min(" in line for line in found)


def test_infinity_has_no_neighbours():
    found = {mutant.text.split("\n")[1] for mutant in mutate(code_of("def f(x):\n    return min(x, 1e400)"), "it")}
    assert not any("inf" in line for line in found)


def library(number, seed):
    """Some of the files of Python's own library."""
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    own = [file for file in files if not {"site-packages", "lib2to3", "test", "tests"}.intersection(file.parts)]
    return random.Random(seed).sample(own, number)


def refuse_broken_files(files, most):
    for path in files:
        assert refuse_broken(code_of(path.read_text(encoding="utf-8")), most) >= 0, path


@pytest.mark.filterwarnings("ignore")
def test_code_of_others():
    refuse_broken_files(library(3, seed=1), most=20)


@pytest.mark.weekly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(3600)
def test_much_code_of_others():
    refuse_broken_files(library(300, seed=2), most=400)


@pytest.mark.weekly
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("lab", labs(), ids=lambda lab: lab.info.topic)
def test_all_solutions(lab):
    assert refuse_broken(read_solved_code(lab.reference)) > 100
