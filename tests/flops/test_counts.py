import pytest

from mlsys_lab.configs import preset
from mlsys_lab.errors import InputError
from mlsys_lab.flops import count_parameters, parameters, training_flops
from mlsys_lab.flops.compute import forward


def test_counts_by_the_names_of_the_lab():
    config = preset("gpt2")
    assert count_parameters(config) == parameters(config).total == 124_439_808
    assert training_flops(config, 3 * config.context) == 3 * 3 * forward(config, config.context).total


def test_tokens_beyond_the_last_whole_sequence_do_not_count():
    config = preset("gpt2")
    assert training_flops(config, 2 * config.context - 1) == training_flops(config, config.context)


def test_less_than_a_sequence_is_one_line():
    with pytest.raises(InputError, match="a whole sequence: got 5 tokens, expected 1024 or more"):
        training_flops(preset("gpt2"), 5)
