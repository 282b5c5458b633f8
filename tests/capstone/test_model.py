"""The decoder on the learner's engine, held against `models.Transformer` and torch's autograd."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from mlsys_lab.capstone import Stack
from mlsys_lab.capstone.weights import check_config, check_weights
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer


@pytest.mark.parametrize("tied", [False, True])
def test_every_gradient_is_that_of_torchs_autograd(stack: Stack, config: TransformerConfig, tied: bool) -> None:
    torch.manual_seed(3)
    model = Transformer(replace(config, tied=tied)).double()
    windows = torch.randint(config.vocab_size, (3, 12))
    loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    loss.backward()
    gpt = stack.capstone.GPT(stack.engine, model.config, dict(model.named_parameters()))
    ours = gpt.loss(windows)
    ours.backward()
    assert abs(ours.item() - loss.item()) < 1e-12
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gpt.parameters[name].grad, parameter.grad, rtol=1e-9, atol=1e-12)


def test_it_shares_the_memory_of_its_weights(
    stack: Stack, config: TransformerConfig, weights: dict[str, torch.Tensor]
) -> None:
    gpt = stack.capstone.GPT(stack.engine, config, weights)
    assert all(gpt.parameters[name].data.data_ptr() == weight.data_ptr() for name, weight in weights.items())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"position": "learned"}, "LLaMA-like: got position=learned, expected position=rotary"),
        ({"activation": "gelu", "mlp_bias": True}, "got activation=gelu, mlp_bias=True"),
        ({"norm": "layer"}, "got norm=layer, expected norm=rms"),
    ],
)
def test_another_architecture_is_refused(config: TransformerConfig, change: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_config(replace(config, **change))  # type: ignore[arg-type]


def test_weights_of_another_shape_are_refused_by_name(
    config: TransformerConfig, weights: dict[str, torch.Tensor]
) -> None:
    name = "blocks.1.mlp.up.weight"
    with pytest.raises(InputError, match=rf"another shape: {name}: got \(28, 19\), expected \(28, 20\)"):
        check_weights(config, weights | {name: weights[name][:, 1:]})
    with pytest.raises(InputError, match=r"head\.bias: got \(53,\), expected no such weight"):
        check_weights(config, weights | {"head.bias": torch.zeros(53)})
