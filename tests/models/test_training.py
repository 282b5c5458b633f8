"""Training step by step: the loss falls, a seed repeats it, every token is seen once an epoch."""

import json

import numpy as np
import pytest
import torch

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models import training

CONFIG = TransformerConfig("tiny", n_layers=1, d_model=8, n_heads=2, d_ff=16, vocab_size=7, context=8, tied=True)
IDS = np.arange(400) % 7


def losses(seed, steps=40):
    model = training.new_model(CONFIG, seed)
    run = training.train(model, IDS, batch_size=4, seq_len=8, steps=steps, lr=0.02, seed=seed)
    return [loss for _, loss in run], model


def test_a_text_that_repeats_is_learnt():
    curve, model = losses(0, steps=200)
    assert curve[0] > 1.5 and curve[-1] < 0.2
    with torch.no_grad():
        assert training.loss(model, training.windows(IDS, np.array([0, 50]), 8)).item() < 0.2


def test_a_seed_repeats_a_run_and_leaves_the_caller_s_random_state():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert losses(3)[0] == losses(3)[0] != losses(4)[0]
    assert torch.equal(torch.get_rng_state(), before)


def test_steps_are_numbered_from_one_to_the_last():
    model = training.new_model(CONFIG, 0)
    run = training.train(model, IDS, batch_size=1, seq_len=8, steps=3, lr=0.01, seed=0)
    assert [step for step, _ in run] == [1, 2, 3]


def test_a_learning_rate_rises_for_a_tenth_of_the_steps_and_falls_to_the_last():
    rates = [training.learning_rate(step, 20, 6.0) for step in range(1, 21)]
    assert rates[:3] == [3.0, 6.0, pytest.approx(6 * 18 / 19)] and rates[-1] == pytest.approx(6 / 19)
    np.testing.assert_allclose(np.diff(rates[1:]), -6 / 19)
    assert [training.learning_rate(step, 4, 1.0) for step in range(1, 5)] == [1, 0.75, 0.5, 0.25]


def test_steps_are_those_of_adamw_with_the_gradient_s_length_bounded():
    """AdamW's two moments at 0.9 and 0.98, decay of 0.1 times the rate, gradients no longer than 1, written out."""
    ours, theirs = training.new_model(CONFIG, 0).double(), training.new_model(CONFIG, 0).double()
    weights = list(theirs.parameters())
    moments = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]
    batches = training.Batches(len(IDS), 4, 8, seed=0)
    run = training.train(ours, IDS, batch_size=4, seq_len=8, steps=5, lr=0.05, seed=0)
    lengths = []
    for step, _ in run:
        given = torch.autograd.grad(training.loss(theirs, training.windows(IDS, next(batches), 8)), weights)
        length = torch.sqrt(sum(gradient.square().sum() for gradient in given)).item()
        rate = 0.05 * (6 - step) / 5
        lengths.append(length)
        with torch.no_grad():
            for weight, gradient, (first, second) in zip(weights, given, moments, strict=True):
                gradient = gradient / max(1.0, length + 1e-6)
                first += 0.1 * (gradient - first)
                second += 0.02 * (gradient**2 - second)
                weight *= 1 - rate * 0.1
                root = (second / (1 - 0.98**step)).sqrt() + 1e-8
                weight -= rate * first / (1 - 0.9**step) / root
    assert min(lengths) > 0.1 and max(lengths) > 1, "one gradient at least is longer than the bound"
    for mine, weight in zip(ours.parameters(), weights, strict=True):
        torch.testing.assert_close(mine, weight, rtol=1e-9, atol=1e-9)


def test_another_loss_takes_the_place_of_the_next_token_s():
    model = training.new_model(CONFIG, 0)

    def mean_square(model, windows):
        assert windows.shape == (4, 9)
        return model(windows[:, :-1]).square().mean()

    how = {"batch_size": 4, "seq_len": 8, "steps": 30, "lr": 0.02, "seed": 0}
    curve = [loss for _, loss in training.train(model, IDS, **how, loss_function=mean_square)]
    assert curve[-1] < 0.1 * curve[0]


def test_a_new_model_is_the_identity_but_for_its_embedding():
    model = training.new_model(CONFIG, 0)
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        embedded = model.embedding(tokens)
        torch.testing.assert_close(model(tokens), model.norm(embedded) @ model.embedding.weight.T)


def test_windows_are_the_tokens_and_the_one_after():
    got = training.windows(IDS, np.array([0, 5]), 3)
    assert got.tolist() == [[0, 1, 2, 3], [5, 6, 0, 1]]


def test_an_epoch_sees_each_stretch_once():
    batches = training.Batches(1 + 8 * 12, 4, 8, seed=0)
    epoch = np.concatenate([next(batches) for _ in range(2)])
    assert len(set(epoch // 8)) == len(epoch)


def test_batches_go_on_from_a_state_that_was_written_down():
    first, second = training.Batches(90, 5, 8, seed=0), training.Batches(90, 5, 8, seed=1)
    for _ in range(3):
        next(first)
    second.state = json.loads(json.dumps(first.state))
    for _ in range(5):
        assert (next(first) == next(second)).all()
    with pytest.raises(InputError, match="too little text: got 15 tokens, expected at least 16"):
        training.Batches(15, 1, 8, seed=0)


def test_torch_has_one_thread_within_and_as_many_as_before_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), training.one_thread():
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == before
