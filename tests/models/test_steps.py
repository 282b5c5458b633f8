"""A forward pass in steps: positions that go on, attention from outside, logits of some tokens, windows."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer, load
from tests.models.families import build
from tests.models.test_transformer import MIXTURE, SMALL

POSITIONS = ("learned", "rotary", "alibi")
LONG = dataclasses.replace(SMALL, context=24)
VIEWS = tuple(f"aten.{name}" for name in ("view", "slice", "unsqueeze", "select", "alias", "detach", "expand"))


def built(config, position, window=None, dtype=torch.float64):
    torch.manual_seed(0)
    return Transformer(dataclasses.replace(config, position=position), window=window).to(dtype)


def drawn(*shape):
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(1))


def forward_as_it_was(model, tokens):
    """Logits as `Transformer` worked them out before it knew of positions and caches."""
    config, T, weight = model.config, tokens.shape[1], model.embedding.weight
    x = model.embedding(tokens)
    if model.positions is not None:
        x = x + model.positions.weight[:T]
    fine = torch.promote_types(weight.dtype, torch.float32)
    angles = bias = None
    if config.position == "rotary":
        places = torch.arange(T, dtype=fine)
        turns = config.rope_theta ** (-torch.arange(0, config.head_dim, 2, dtype=fine) / config.head_dim)
        turned = places[:, None] * turns
        angles = torch.stack((turned.cos(), turned.sin())).to(weight.dtype)
    if config.position == "alibi":
        places = torch.arange(T, dtype=fine)
        ahead = places - places[:, None]
        slopes = 2.0 ** -torch.tensor([2.0, 4.0, 6.0, 8.0], dtype=fine)  # of 4 heads
        bias = (slopes[:, None, None] * ahead).masked_fill(ahead > 0, -torch.inf).to(weight.dtype)
    for block in model.blocks:
        x = block(x, angles, bias)
    return F.linear(model.norm(x), weight if model.head is None else model.head.weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_logits_are_to_the_bit_what_they_were(position, dtype):
    for config in (SMALL, MIXTURE):
        model, tokens = built(config, position, dtype=dtype), drawn(3, 8)
        assert torch.equal(model(tokens), forward_as_it_was(model, tokens))
        assert torch.equal(model(tokens, positions=torch.arange(8)), forward_as_it_was(model, tokens))


class Launched(TorchDispatchMode):
    """Names of the operations that a block of code asks of the device, in order."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names += [] if func is torch.ops.aten.promote_types.default else [str(func)]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("position", POSITIONS)
def test_no_kernel_is_launched_that_was_not(position):
    """Chapters count the kernels of a pass."""
    model, tokens = built(SMALL, position, dtype=torch.bfloat16), drawn(3, 8)
    passes = []
    for forward in (model, lambda tokens: forward_as_it_was(model, tokens)):
        with Launched() as launched:
            forward(tokens)
        passes.append([name for name in launched.names if not name.startswith(VIEWS)])
    assert Counter(passes[0]) == Counter(passes[1]) and len(passes[0]) > 50


@pytest.mark.parametrize("position", ["rotary", "alibi"])
@torch.no_grad()
def test_relative_positions_may_begin_anywhere(position):
    model, tokens = built(LONG, position), drawn(2, 8)
    apart = torch.arange(8) + torch.tensor([[3], [16]])
    torch.testing.assert_close(model(tokens, positions=apart), model(tokens), rtol=0, atol=1e-13)


@torch.no_grad()
def test_learned_positions_are_those_that_are_given():
    model, tokens = built(LONG, "learned"), drawn(2, 8)
    moved = built(LONG, "learned")
    moved.positions.weight[:8] = model.positions.weight[5:13]
    later = model(tokens, positions=torch.arange(5, 13))
    assert torch.equal(later, moved(tokens)) and not torch.allclose(later, model(tokens))


class Growing:
    """Keys and values of all calls so far, one list for each layer, and attention over them written out."""

    def __init__(self, model):
        self.model, self.keys, self.values = model, {}, {}

    def __call__(self, layer, q, k, v):
        self.keys[layer] = k = torch.cat([*([self.keys[layer]] if layer in self.keys else []), k], dim=2)
        self.values[layer] = v = torch.cat([*([self.values[layer]] if layer in self.values else []), v], dim=2)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        distance = torch.arange(k.shape[2]) - torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None]
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.model.config.position == "alibi":
            scores = scores + 0.25 ** torch.arange(1.0, 5.0).double()[:, None, None] * distance
        hidden = (distance > 0) | (distance <= -(self.model.window or 99))
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_steps_with_attention_from_outside_make_the_whole(position, window):
    model, tokens = built(LONG, position, window), drawn(2, 12)
    attend, logits = Growing(model), []
    for first, end in ((0, 4), (4, 5), (5, 12)):
        step = model(tokens[:, first:end], positions=torch.arange(first, end), attend=attend)
        logits.append(step)
    assert sorted(attend.keys) == [0, 1]
    torch.testing.assert_close(torch.cat(logits, 1), model(tokens), rtol=0, atol=1e-13)


@torch.no_grad()
def test_a_window_hides_what_came_before_it():
    """Two layers that see 3 tokens each see 5 together: a token changes logits up to 4 later, and none after."""
    for position in POSITIONS:
        model, tokens = built(LONG, position, 3), drawn(1, 12)
        changed = tokens.clone()
        changed[0, 2] = (changed[0, 2] + 1) % 11
        difference = (model(tokens) - model(changed)).abs().amax(-1)[0]
        assert (difference[2:7] > 1e-9).all() and (difference[7:] < 1e-14).all()


@torch.no_grad()
def test_a_window_is_that_of_transformers(tmp_path):
    model = build("mistral", sliding_window=10)
    model.save_pretrained(tmp_path)
    tokens = torch.randint(61, (2, 32), generator=torch.Generator().manual_seed(1))
    ours = load(tmp_path)
    assert ours.window == 10 and (ours(tokens) - model(tokens).logits).abs().max() < 2e-5


@torch.no_grad()
def test_logits_of_chosen_tokens():
    model, tokens = built(MIXTURE, "rotary"), drawn(3, 7)
    rows = torch.tensor([6, 20, 0, 6])
    torch.testing.assert_close(model(tokens, rows=rows), model(tokens).flatten(0, 1)[rows], rtol=0, atol=1e-14)
    assert model(tokens, rows=rows[:0]).shape == (0, 11)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"positions": torch.arange(4)}, r"positions of another shape: got \(4,\) of torch\.int64, expected integers"),
        ({"positions": torch.zeros(3)}, r"got \(3,\) of torch\.float32"),
        ({"positions": torch.arange(6, 9)}, "positions out of range: got 6 to 8, expected 0 to 7"),
        ({"positions": torch.arange(-1, 2)}, "positions out of range: got -1 to 1"),
        ({"rows": torch.tensor([6])}, "rows out of range: got 6 to 6, expected 0 to 5"),
        ({"rows": torch.tensor(1)}, r"rows of another shape: got \(\)"),
    ],
)
def test_arguments_that_do_not_fit(how, words):
    with pytest.raises(InputError, match=words):
        Transformer(SMALL)(drawn(2, 3), **how)


def test_a_window_that_sees_nothing():
    with pytest.raises(InputError, match="window of attention: got 0, expected 1 or more"):
        Transformer(SMALL, window=0)
