from mlsys_grader.release.placeholders import find_enclosing, make_placeholder


def test_a_stub_is_code_that_names_task_and_function():
    line = make_placeholder('Task 1 · The "engine"', "Value.__mul__")
    try:
        exec(line)
    except NotImplementedError as error:
        assert str(error) == 'Task 1 · The "engine", `Value.__mul__`'
    else:
        raise AssertionError("the stub does not raise")


def test_enclosing_finds_the_definitions_around_a_line():
    before = "class A:\n    def f(self):\n        pass\n\n    def g(self):\n        "
    assert find_enclosing(before) == "A.g"
    assert find_enclosing("def f():\n    pass\n\n") == ""
    assert find_enclosing("class A:\n    x = 1\n\n\ndef f(a,\n      b):\n    ") == "f"
