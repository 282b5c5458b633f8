from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from mlsys_lab.autograd import Tensor, cross_entropy, no_grad, optim, saved_bytes
from mlsys_lab.autograd.gpt import GPT, GPTConfig
from mlsys_lab.errors import InputError

SMALL = GPTConfig(vocabulary=11, context=8, layers=3, heads=2, channels=12)


def torch_logits(model: GPT, parameters: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """The same model written against torch, with torch's own attention."""
    p, heads = parameters, model.config.heads
    x = p["tokens.weight"][tokens] + p["positions.weight"][: tokens.shape[1]]
    for i in range(model.config.layers):
        b = f"blocks.{i}."
        h = F.layer_norm(x, x.shape[-1:], p[b + "norm1.weight"], p[b + "norm1.bias"])
        q, k, v = (
            F.linear(h, p[f"{b}attention.{n}.weight"], p[f"{b}attention.{n}.bias"])
            .unflatten(-1, (heads, -1))
            .transpose(1, 2)
            for n in ("query", "key", "value")
        )
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.linear(h, p[b + "attention.out.weight"], p[b + "attention.out.bias"])
        h = F.layer_norm(x, x.shape[-1:], p[b + "norm2.weight"], p[b + "norm2.bias"])
        h = F.gelu(F.linear(h, p[b + "feed_forward.0.weight"], p[b + "feed_forward.0.bias"]))
        x = x + F.linear(h, p[b + "feed_forward.2.weight"], p[b + "feed_forward.2.bias"])
    x = F.layer_norm(x, x.shape[-1:], p["norm.weight"], p["norm.bias"])
    return F.linear(x, p["head.weight"])


@pytest.fixture
def tokens():
    return torch.randint(11, (3, 8), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("segments", "fused"), [(None, False), (None, True), (1, False), (2, True), (3, False)])
def test_training_steps_equal_those_of_torch(dtype, tokens, segments, fused):
    torch.manual_seed(0)
    model = GPT(replace(SMALL, segments=segments, fused=fused)).to(dtype)
    parameters = {name: value.requires_grad_() for name, value in model.state_dict().items()}
    # Not AdamW: the gradient of a key's bias is zero but for rounding, and AdamW steps by its sign.
    ours = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(parameters.values(), lr=0.1, momentum=0.9)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-12}
    for _ in range(5):
        loss = cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        expected = F.cross_entropy(
            torch_logits(model, parameters, tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )
        torch.testing.assert_close(loss.data, expected.detach(), **tolerance)
        ours.zero_grad()
        theirs.zero_grad()
        loss.backward()
        expected.backward()
        ours.step()
        theirs.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, parameters[name].detach(), **tolerance)


def test_a_batch_is_overfitted(tokens):
    torch.manual_seed(0)
    model = GPT(SMALL)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimizer.step()
    with no_grad():
        predicted = model(tokens[:, :-1]).data.argmax(-1)
    assert loss.item() < 0.1 < math.log(11)
    assert torch.equal(predicted[:, 1:], tokens[:, 2:])


def test_no_token_sees_a_later_one(tokens):
    torch.manual_seed(0)
    model = GPT(SMALL)
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    before, after = model(tokens).data, model(changed).data
    assert torch.equal(before[:, :5], after[:, :5]) and not torch.equal(before[:, 5:], after[:, 5:])


def test_checkpointing_with_dropout_gives_the_same_step_and_holds_less(tokens):
    steps = []
    for segments in (None, 3):
        torch.manual_seed(0)
        model = GPT(GPTConfig(**(vars(SMALL) | {"dropout": 0.2, "segments": segments})))
        torch.manual_seed(1)
        loss = cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        held = saved_bytes(loss)
        loss.backward()
        steps.append((held, loss.item(), [p.grad for p in model.parameters()]))
    (plain, loss, grads), (checkpointed, loss_again, grads_again) = steps
    assert loss == loss_again
    assert all(torch.equal(a, b) for a, b in zip(grads, grads_again, strict=True))
    assert checkpointed < 0.5 * plain


def test_one_token(tokens):
    assert GPT(SMALL)(tokens[:1, :1]).shape == (1, 1, 11)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 5}, "divide among heads"),
        ({"layers": 0}, "GPTConfig.layers"),
        ({"channels": -4}, "GPTConfig.channels"),
    ],
)
def test_sizes_that_do_not_fit(change, words):
    with pytest.raises(InputError, match=words):
        GPTConfig(**(vars(SMALL) | change))


def test_tokens_that_do_not_fit(tokens):
    model = GPT(SMALL)
    with pytest.raises(InputError, match=r"got \(1, 9\)"):
        model(torch.zeros(1, 9, dtype=torch.int64))
    with pytest.raises(InputError, match=r"got \(8,\)"):
        model(tokens[0])
    with pytest.raises(InputError, match="expected 0 to 10"):
        model([[11]])


@pytest.mark.gpu
def test_logits_on_the_gpu_are_those_of_the_cpu(tokens):
    model = GPT(SMALL).to(torch.float64)
    on_cpu = model(tokens).data
    assert isinstance(model.to("cuda")(tokens), Tensor)
    torch.testing.assert_close(model(tokens).data.cpu(), on_cpu)
