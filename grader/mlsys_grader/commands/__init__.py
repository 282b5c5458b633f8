"""The commands of `mlsys-grader`, a module each: docstring = help, `add_arguments` = grammar, `run` = work."""
