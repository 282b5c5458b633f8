"""One file of weights gives the same logits on the course's autograd engine, in `Transformer` and in transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from mlsys_lab.autograd import cross_entropy
from mlsys_lab.autograd.gpt import GPT, GPTConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer, load
from mlsys_lab.models.autograd_gpt import gpt_to_transformer, transformer_to_gpt
from mlsys_lab.models.saving import save

IDS = torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def make_gpt() -> GPT:
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(vocabulary=31, context=12, layers=3, heads=2, channels=20))
    for name, parameter in gpt.named_parameters():
        parameter.data += torch.randn_like(parameter.data) * 0.1 * ("norm" in name)
    gpt.to(torch.float64)
    return gpt


def test_a_gpt_saved_once_has_the_same_logits_everywhere(tmp_path):
    gpt = make_gpt()
    model = gpt_to_transformer(gpt)
    expected = gpt(IDS).data
    close(model(IDS).detach(), expected)
    save(model, tmp_path, dtype=torch.float64)
    close(GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.float64).eval()(IDS).logits.detach(), expected)
    again = transformer_to_gpt(load(tmp_path))
    assert all(torch.equal(weight, gpt.state_dict()[name]) for name, weight in again.state_dict().items())


@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_of_transformers_has_its_logits_and_gradients_on_the_engine(tied, tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 31, "n_positions": 12, "n_layer": 2, "n_embd": 20, "n_head": 4, "bos_token_id": 0}
    options = {"activation_function": "gelu", "tie_word_embeddings": tied, "eos_token_id": 0}
    theirs = GPT2LMHeadModel(GPT2Config(**sizes, **options)).double().eval()
    theirs.save_pretrained(tmp_path)
    gpt = transformer_to_gpt(load(tmp_path))
    close(gpt(IDS).data, theirs(IDS).logits.detach())
    loss = cross_entropy(gpt(IDS[:, :-1]), IDS[:, 1:])
    loss.backward()
    expected = F.cross_entropy(theirs(IDS[:, :-1]).logits.flatten(0, 1), IDS[:, 1:].flatten())
    expected.backward()
    close(loss.data, expected.detach())
    gradients = {name: parameter.grad for name, parameter in gpt.named_parameters()}
    close(gradients["blocks.1.feed_forward.0.weight"], theirs.transformer.h[1].mlp.c_fc.weight.grad.mT)
    embedding = gradients["tokens.weight"] + (gradients["head.weight"] if tied else 0)
    close(embedding, theirs.transformer.wte.weight.grad)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"activation": "gelu_tanh"}, "got activation=gelu_tanh, expected activation=gelu"),
        ({"d_ff": 40, "out_bias": False}, "got d_ff=40, out_bias=False, expected d_ff=80, out_bias=True"),
        ({"n_kv_heads": 1}, "got n_kv_heads=1, expected n_kv_heads=2"),
    ],
)
def test_a_model_that_the_gpt_does_not_compute_is_one_line(changes, said):
    config = replace(gpt_to_transformer(make_gpt()).config, **changes)
    with pytest.raises(InputError, match=f"autograd's GPT does not compute this model: {said}"):
        transformer_to_gpt(Transformer(config))
    with pytest.raises(InputError, match="got window=3, expected window=None"):
        transformer_to_gpt(Transformer(gpt_to_transformer(make_gpt()).config, window=3))
