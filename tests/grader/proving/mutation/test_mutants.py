"""Machine-made mistakes of small texts: which there are, what they are called, that they are Python and differ."""

import ast
import textwrap

from mlsys_grader.proving.mutation.code import Code, read_appended_code, read_solved_code
from mlsys_grader.proving.mutation.mutants import mutate
from mlsys_grader.proving.mutation.statements import know_only


def all_of(text, *more):
    text = textwrap.dedent(text).strip("\n")
    return list(mutate(Code(text, frozenset(range(1, len(text.split("\n")) + 1))), "reference", more))


def returned(text):
    """The last line of every mutant of a function, as Python writes it."""
    return {ast.unparse(ast.parse(mutant.text)).split("\n")[-1].strip() for mutant in all_of(text)}


def test_numbers_names_and_signs():
    found = returned("def f(a, b):\n    return a - 2 * b")
    assert {"return a - 3 * b", "return a - 1 * b", "return a + 2 * b", "return a - 2 / b", "return 2 * b - a"} <= found
    assert {"return b - 2 * b", "return a - 2 * a", "return a", "return 2 * b", "return a - b"} <= found
    assert "return x" in returned("def f(x):\n    return -x")


def test_comparisons_conditions_and_guards():
    names = {mutant.name for mutant in all_of("def f(x, n):\n    if x < n and x:\n        x = 0\n    return x")}
    for changed in ("x <= n and x", "x > n and x", "x < n or x", "x < n", "x", "True", "False"):
        assert f"reference f: if x < n and x: => if {changed}:" in names


def test_masks_limits_axes_and_types():
    names = " ".join(
        mutant.name for mutant in all_of("def f(x):\n    return min(load(x, mask=x.m), x.sum(axis=1), x.float32)")
    )
    for changed in ("min(load(x), x.sum", "=> return load(x, mask=x.m)", "axis=2", "x.sum()", "x.float16", "max(load("):
        assert changed in names


def test_loops_are_cut_and_statements_dropped():
    text = "def f(n):\n    total = 0\n    for i in range(n):\n        total += i\n    return total"
    names = {mutant.name for mutant in all_of(text)}
    told = "reference f: for i in range(n):"
    assert {f"{told} => for i in range(0, n - 1, 1):", f"{told} … break", f"{told} => pass"} <= names
    assert f"{told} => for i in reversed(range(n)):" in names
    assert "reference f: total += i => pass" in names
    assert "reference f: total = 0 => pass" not in names  # without it nothing runs at all


def test_results_in_the_input_and_kept_between_calls():
    mutants = all_of("def f(x, y):\n    x = x + y\n    return x * 2")
    lines = {line.strip() for mutant in mutants for line in mutant.text.split("\n")}
    assert {"x += y", "return (x.__imul__(2))"} <= lines
    kept = [mutant for mutant in mutants if mutant.operator == "remember_results"]
    assert len(kept) == 2
    names = {}
    exec(kept[0].text, names)
    assert [names["f"](1, 1), names["f"](5, 5)] == [4, 4]


def test_arguments_that_only_shown_cases_have():
    shown = know_only({("f", "block"): (16, 32)})
    names = {mutant.name for mutant in all_of("def f(x, block):\n    return x // block", shown)}
    assert "reference f: + block = 16" in names
    assert "reference f: + block = block if block in (16, 32) else 16" in names


def test_no_two_are_equal_and_every_name_is_used_once():
    mutants = all_of(
        "class A:\n    def f(self, a, b):\n        a = a + 1\n        a = a + 1\n        return max(a, b - 1)"
    )
    trees = [ast.dump(ast.parse(mutant.text)) for mutant in mutants]
    assert len(set(trees)) == len(trees) > 20
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    assert all(mutant.name.startswith("reference A.f: ") and mutant.top == "A" for mutant in mutants)
    assert any(mutant.name.endswith("#2") for mutant in mutants)


def test_names_outlive_edits_elsewhere():
    before = "def f(x):\n    y = x + 1\n    return y"
    after = (
        "import math\n\n\ndef g(x):\n    return x\n\n\ndef f(x):\n    # more\n    print(x)\n    y = x + 1\n    return y"
    )
    kept = {mutant.name for mutant in all_of(after)}
    assert {mutant.name for mutant in all_of(before)} <= kept


def test_long_statements_are_told_by_what_differs():
    terms = " + ".join(f"a[{i}]" for i in range(100, 140))
    names = [mutant.name for mutant in all_of(f"def f(a):\n    return {terms}")]
    assert "reference f: …+ a[119] + a[120] + a[121] + a[122]…" not in names
    assert min(map(len, names)) < 150 < len(terms)


def test_only_what_the_learner_writes_is_changed():
    own = "    ### BEGIN SOLUTION\n    return y + 2\n    ### END SOLUTION\n"
    text = f"def f(x):\n    y = x + 1\n{own}\n\ndef g(x):\n    return x + 3"
    mutants = list(mutate(read_solved_code(text), "reference"))
    assert mutants
    assert all("y = x + 1" in mutant.text and "return x + 3" in mutant.text for mutant in mutants)
    whole = f"{text}\n# %% cell 1000\ndef g(x):\n    return x + 4"
    changed = list(mutate(read_appended_code(whole, "def g(x):\n    return x + 4"), "other"))
    assert changed and all(mutant.text.startswith(text) for mutant in changed)


def test_patched_methods_are_reached_from_their_class():
    code = read_solved_code(
        "class A:\n    pass\n\n\ndef f(a):\n    return h(a)\n\n\ndef h(a):\n    return a\n\n\nA.f = f\n"
    )
    assert code.reached_from(["A"]) == {"A", "f", "h"}
    assert code.reached_from(["h"]) == {"h"}
