"""The C program on this machine, with undefined behaviour caught, against the simulation."""

import re

import numpy as np
import pytest

from mlsys_lab.efficiency.embedded import generate_c, plan_arena, run_here, simulate
from mlsys_lab.errors import InputError
from tests.efficiency.embedded.models import NAMES, make_example
from tests.efficiency.embedded.tools import needs_gcc


@needs_gcc
@pytest.mark.every_case
@pytest.mark.parametrize("name", NAMES)
def test_the_program_prints_the_simulation_s_logits(name):
    example = make_example(name, seed=1)
    logits = run_here(generate_c(example.network, example.codes))
    np.testing.assert_array_equal(logits, simulate(example.network, example.codes))


def test_it_has_no_floating_point_allocates_nothing_and_includes_only_integers():
    example = make_example("convolutions")
    source = generate_c(example.network, example.codes)
    code = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    assert not re.search(r"\b(float|double|malloc|calloc|realloc|free)\b|\d\.\d", code)
    assert re.findall(r"#include (.*)", code) == ["<stdint.h>"]
    assert f"static int8_t arena[{plan_arena(example.network).size_bytes}];" in code
    assert max(map(len, source.splitlines())) <= 120


@pytest.mark.parametrize(
    "images", [np.zeros((0, 1, 7, 8), np.int8), np.zeros((1, 7, 8), np.int8), np.zeros((1, 1, 7, 8))]
)
def test_images_that_do_not_fit_are_refused(images):
    with pytest.raises(InputError, match=r"images do not fit the network.*at least one"):
        generate_c(make_example("convolutions").network, images)
