"""Train a small transformer on token ids, one step at a time, on one CPU core.

Dimension letters: D tokens of the data, B sequences of a batch, T tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models.transformer import Transformer

Tokens = NDArray[np.int64]
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]
"""Loss of a model on windows (B, T + 1) of token ids, to be minimised."""
WARMUP = 0.1
"""Fraction of steps in which the learning rate rises; afterwards it falls linearly to zero."""
BETAS, WEIGHT_DECAY, GRADIENT_NORM = (0.9, 0.98), 0.1, 1.0


def train(
    model: nn.Module,
    ids: Tokens,
    *,
    batch_size: int,
    seq_len: int,
    steps: int,
    lr: float,
    seed: int,
    loss_function: Loss | None = None,
) -> Iterator[tuple[int, float]]:
    """Train a model in place to predict each next token of ids (D,); yield each step's number, from 1, and loss.

    AdamW with a warm-up to the learning rate `lr` and a linear decay to zero. A step processes `batch_size` sequences
    of `seq_len` tokens; its loss, in nats per token unless there is a `loss_function`, is from before the update. The
    seed determines the order of sequences.
    """
    loss_function = loss_function or loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)
    batches = Batches(len(ids), batch_size, seq_len, seed)
    for step, starts in zip(range(1, steps + 1), batches, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, lr)
        optimizer.zero_grad()
        step_loss = loss_function(model, windows(ids, starts, seq_len))
        step_loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
        optimizer.step()
        yield step, step_loss.item()


def new_model(config: TransformerConfig, seed: int) -> Transformer:
    """Build a model with weights of standard deviation 1/√(fan-in), and 0 where a block adds to the residual stream.

    Every block starts as an identity, because a run of 100 steps cannot afford to unlearn random blocks: at hidden size
    32 and 48,000 tokens the loss is 4.57, with 1/√(fan-in) there too 5.05. The global random state is preserved.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = Transformer(config)
        for name, weight in model.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                weight.zero_()
            elif weight.ndim == 2:
                weight.normal_(std=weight.shape[1] ** -0.5)
    return model


def windows(ids: Tokens, starts: Tokens, sequence: int) -> torch.Tensor:
    """Sequences of T tokens and the next one: ids (D,) and start positions (B,) -> (B, T + 1)."""
    return torch.from_numpy(ids[starts[:, None] + np.arange(sequence + 1)])


def loss(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """Mean next-token cross-entropy of windows (B, T + 1), in nats per token."""
    logits = model(windows[:, :-1])  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def mean_loss(model: Transformer, ids: Tokens, sequence: int) -> float:
    """Mean loss over ids (D,), at least `sequence` + 1 of them, in nats per token; its exponential is the perplexity.

    The data is cut into sequences of `sequence` tokens without overlap, each without preceding context; the remainder
    at the end is ignored.
    """
    starts = np.arange((len(ids) - 1) // sequence) * sequence
    return loss(model, windows(ids, starts, sequence)).item()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread within a block: small matrix products gain nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Learning rate of step 1, 2, ... `steps`: linear rise to its peak, linear decay to zero."""
    warmup = max(1, round(WARMUP * steps))
    return peak * min(step / warmup, (steps - step + 1) / (steps - warmup + 1))


class Batches:
    """Endless iterator over the start positions (B,) of each step's sequences.

    Every epoch cuts the data of `tokens` tokens at another offset, in another order, both seeded. `state` is its
    position as plain numbers; assigning it resumes from there. InputError for data shorter than two sequences.
    """

    def __init__(self, tokens: int, batch: int, sequence: int, seed: int) -> None:
        if tokens < 2 * sequence:
            raise InputError("too little text", got=f"{tokens} tokens", expected=f"at least {2 * sequence}")
        self._tokens, self._batch, self._sequence = tokens, batch, sequence
        self._random = np.random.default_rng(seed)
        self._left: Tokens = np.empty(0, dtype=np.int64)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Tokens:
        while len(self._left) < self._batch:
            offset = int(self._random.integers(self._sequence))
            count = (self._tokens - 1 - offset) // self._sequence
            self._left = np.concatenate([self._left, offset + self._sequence * self._random.permutation(count)])
        starts, self._left = self._left[: self._batch], self._left[self._batch :]
        return starts

    @property
    def state(self) -> dict[str, Any]:
        """Where the iterator stands: the generator's state, and what is left of this epoch."""
        return {"random": self._random.bit_generator.state, "left": self._left.tolist()}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._random.bit_generator.state = state["random"]
        self._left = np.array(state["left"], dtype=np.int64)
