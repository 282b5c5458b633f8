"""The arena: no two activations that are needed at once overlap, and none smaller would do."""

from itertools import pairwise
from math import prod

import pytest
from torch import nn

from mlsys_lab.efficiency.embedded import plan_arena
from tests.efficiency.embedded.models import NAMES, make_example


@pytest.mark.every_case
@pytest.mark.parametrize("name", NAMES)
def test_the_input_and_output_of_a_layer_lie_apart_in_the_smallest_arena(name):
    layers = make_example(name).network.layers
    size_bytes, offsets = plan_arena(make_example(name).network)
    shapes = [layers[0].input_shape, *(layer.output_shape for layer in layers)]
    places = [set(range(offset, offset + prod(shape))) for offset, shape in zip(offsets, shapes, strict=True)]
    assert all(not first & second for first, second in pairwise(places))
    assert set().union(*places) <= set(range(size_bytes))
    assert size_bytes == max(len(first | second) for first, second in pairwise(places))


def test_counts_of_a_convolution_by_hand():
    network = make_example("strides").network  # 3 × 9 × 7 -> 5 × 6 × 5 -> 2 × 2 × 2
    assert network.macs == 5 * 6 * 5 * 3 * 3 * 3 + 2 * 2 * 2 * 5 * 2 * 2
    assert network.constant_bytes == 5 * 3 * 3 * 3 + 5 * 9 + 2 * 5 * 2 * 2 + 2 * 9
    assert plan_arena(network).size_bytes == 3 * 9 * 7 + 5 * 6 * 5
    assert not any(isinstance(module, nn.ReLU) for module in network.layers)
