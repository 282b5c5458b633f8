"""The oracle of lab 05: a decoder transformer in torch, asked what it has, what it runs and what it keeps.

Parameters are counted by listing them, on torch's "meta" device, where arrays have shapes and no bytes. Small models
run: matrix products are recorded as torch dispatches them, backward pass included, and activations are what torch's
own autograd saves. None of it knows a closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mlsys_checks.sandboxed.spec import Arrays, Case
from mlsys_checks.sandboxed.transformer_arithmetic.models import CHOICES, FIELDS, FLAGS, SIZES, fields_of

F: Any = nn.functional  # some of its functions have no types
META, CPU = torch.device("meta"), torch.device("cpu")  # to run on meta would import torch's compiler, a second

DTYPES = {META: torch.bfloat16, CPU: torch.float32}
"""Element type of a model's weights: CPUs are slow in bf16, so what runs is twice as wide throughout."""


def sizes_of(model: np.ndarray) -> SimpleNamespace:
    """A model's array as named fields."""
    return SimpleNamespace(**fields_of(model))


def model_array(**fields: Any) -> np.ndarray:
    """A model's array: flags not given are off, choices the first ones, heads as `TransformerConfig` fills them in."""
    values = dict.fromkeys((*FLAGS, *CHOICES), 0) | {"n_kv_heads": fields["n_heads"], **fields}
    values.setdefault("head_dim", fields["d_model"] // fields["n_heads"])
    for name, kinds in CHOICES.items():
        if name in fields:
            values[name] = kinds.index(fields[name])
    return np.array([int(values[name]) for name in FIELDS], dtype=np.int64)


def draw_model(rng: np.random.Generator, *, even: int = 1, **fixed: Any) -> np.ndarray:
    """A small random model; `fixed` fields are as given. Heads and widths are multiples of `even`."""
    groups, kv_heads = int(rng.integers(1, 4)), even * int(rng.integers(1, 3))
    drawn = {
        "n_layers": int(rng.integers(2, 4)),
        "d_model": even * int(rng.integers(3, 40)),
        "n_heads": groups * kv_heads,
        "n_kv_heads": kv_heads,
        "head_dim": int(rng.integers(2, 17)),
        "d_ff": even * int(rng.integers(5, 60)),
        "vocab_size": even * int(rng.integers(7, 200)),
        "context": int(rng.integers(5, 30)),
        **{name: bool(rng.integers(2)) for name in FLAGS},
        **{name: kinds[rng.integers(len(kinds))] for name, kinds in CHOICES.items()},
    }
    drawn |= fixed
    if drawn["norm"] == "rms":
        drawn["norm_bias"] = False
    assert set(SIZES) <= set(drawn)
    return model_array(**drawn)


def draw_batch(rng: np.random.Generator, case: Case, least: int = 1) -> np.ndarray:
    """A number of sequences, `least` to 4 in public cases; what hidden ones have, no public one has."""
    return np.asarray(rng.integers(5, 9) if case.hidden else rng.integers(least, 5))


def draw_sequences(rng: np.random.Generator, case: Case) -> Arrays:
    """A batch and the tokens of its sequences: as the case has them, or drawn."""
    batch, tokens = draw_batch(rng, case, least=2), rng.integers(2, 20, ())
    return {"batch": np.array(case.params.get("batch", batch)), "tokens": np.array(case.params.get("tokens", tokens))}


class Weights(nn.Module):
    """A weight, and a bias if there is one: of a linear map, a table or a norm. Their values do not matter."""

    def __init__(self, *shape: int, bias: bool, device: torch.device) -> None:
        super().__init__()
        empty = partial(torch.empty, device=device, dtype=DTYPES[device])
        self.weight = nn.Parameter(empty(shape))
        self.bias = nn.Parameter(empty(shape[0])) if bias else None


class Block(nn.Module):
    """The weights of one block, by kind; a linear map from n to m has a weight of shape (m, n)."""

    def __init__(self, s: SimpleNamespace, device: torch.device) -> None:
        super().__init__()
        queries, keys, weights = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim, partial(Weights, device=device)
        self.attention = nn.ModuleDict(
            {
                "query": weights(queries, s.d_model, bias=s.qkv_bias),
                "key": weights(keys, s.d_model, bias=s.qkv_bias),
                "value": weights(keys, s.d_model, bias=s.qkv_bias),
                "output": weights(s.d_model, queries, bias=s.out_bias),
            }
        )
        self.mlp = nn.ModuleDict({"down": weights(s.d_model, s.d_ff, bias=s.mlp_bias)})
        for name in ("up", "gate") if s.activation == "swiglu" else ("up",):
            self.mlp[name] = weights(s.d_ff, s.d_model, bias=s.mlp_bias)
        self.norm = nn.ModuleList([weights(s.d_model, bias=s.norm_bias) for _ in range(2)])


class Decoder(nn.Module):
    """The oracle's transformer. `note` is told the name of each matrix product before it runs."""

    def __init__(self, s: SimpleNamespace, device: torch.device) -> None:
        super().__init__()
        weights = partial(Weights, bias=False, device=device)
        self.sizes, self.device = s, device
        self.note: Callable[[str], object] = len  # which changes nothing
        self.embedding = weights(s.vocab_size, s.d_model)
        self.position = weights(s.context, s.d_model) if s.position == "learned" else None
        self.blocks = nn.ModuleList([Block(s, device) for _ in range(s.n_layers)])
        self.norm = Weights(s.d_model, bias=s.norm_bias, device=device)
        self.head = weights(s.vocab_size, s.d_model)
        if s.tied:
            self.head.weight = self.embedding.weight

    def by_kind(self) -> dict[str, int]:
        """How many parameters each part of the model has, each counted once."""
        counted = dict.fromkeys(("embedding", "position", "attention", "mlp", "norm", "head"), 0)
        for name, parameter in self.named_parameters():
            kind = next(part for part in name.split(".") if part in counted)
            counted[kind] += parameter.numel()
        return counted

    def forward(self, batch: int, tokens: int, *, past: int = 0, grouped: bool = False) -> torch.Tensor:
        """Logits of `batch` sequences of `tokens` tokens, which follow `past` cached ones.

        `grouped` shares keys and values among the query heads of a group; otherwise each head runs by itself.
        """
        ids = torch.zeros(batch, tokens, dtype=torch.int64, device=self.device)
        x = F.embedding(ids, self.embedding.weight)
        if self.position is not None:
            x = x + F.embedding(ids, self.position.weight)
        for block in self.blocks:
            x = x + self._attention(block, _normed(x), past, grouped)
            x = x + self._mlp(block, _normed(x))
        return self._linear("head", self.head, _normed(x))

    def _linear(self, name: str, weights: Any, x: torch.Tensor) -> torch.Tensor:
        self.note(name)
        result: torch.Tensor = F.linear(x, weights.weight, weights.bias)
        return result

    def _attention(self, block: Any, x: torch.Tensor, past: int, grouped: bool) -> torch.Tensor:
        s, (batch, tokens, _) = self.sizes, x.shape

        def heads(name: str, count: int) -> torch.Tensor:
            split = self._linear(name, block.attention[name], x).reshape(batch, tokens, count, s.head_dim)
            return split.transpose(1, 2)

        query, key, value = heads("query", s.n_heads), heads("key", s.n_kv_heads), heads("value", s.n_kv_heads)
        if past:
            cached = key.new_empty(batch, s.n_kv_heads, past, s.head_dim)
            key, value = torch.cat([cached, key], 2), torch.cat([cached, value], 2)
        if grouped:
            query = query.reshape(batch, s.n_kv_heads, -1, s.head_dim)
        else:
            key, value = (y.repeat_interleave(s.n_heads // s.n_kv_heads, 1) for y in (key, value))
        self.note("scores")
        weights = ((query @ key.transpose(-1, -2)) * s.head_dim**-0.5).softmax(-1)
        self.note("mixed")
        mixed = (weights @ value).reshape(batch, s.n_heads, tokens, s.head_dim)
        return self._linear("output", block.attention["output"], mixed.transpose(1, 2).reshape(batch, tokens, -1))

    def _mlp(self, block: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = self._linear("up", block.mlp["up"], x)
        if self.sizes.activation == "swiglu":
            hidden = F.silu(self._linear("gate", block.mlp["gate"], x)) * hidden
        else:
            hidden = {"gelu": F.gelu, "relu": F.relu}[self.sizes.activation](hidden)
        return self._linear("down", block.mlp["down"], hidden)


def _normed(x: torch.Tensor) -> torch.Tensor:
    """A norm as one operation of torch, which keeps its input and a few numbers a row; weights do not matter here."""
    result: torch.Tensor = F.layer_norm(x, x.shape[-1:])
    return result


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records matrix products as torch runs them: (name, times, m, k, n)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.name = ""
        self.rows: list[tuple[str, int, int, int, int]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not wrapped for torch's compiler, whose import takes a second; torch asks its subclasses for this."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the product, and run it."""
        aten = torch.ops.aten
        factors = {aten.mm.default: args[:2], aten.bmm.default: args[:2], aten.addmm.default: args[1:3]}.get(func)
        if factors:
            (*times, m, k), n = factors[0].shape, factors[1].shape[-1]
            self.rows.append((self.name, times[0] if times else 1, m, k, n))
        return func(*args, **(kwargs or {}))


@contextmanager
def record_products(decoder: Decoder) -> Iterator[Products]:
    """Products that run inside, with the names that the decoder gives them."""
    with Products() as products:
        decoder.note = partial(setattr, products, "name")
        yield products


def weights_of(model: np.ndarray) -> Decoder:
    """A model's transformer without storage: its weights have shapes only."""
    return _weights_of(model.tobytes())


@lru_cache(maxsize=8)
def _weights_of(model: bytes) -> Decoder:
    return Decoder(sizes_of(np.frombuffer(model, np.int64)), META)


def products_of(
    model: np.ndarray, batch: int, tokens: int, *, past: int = 0, backward: bool = False
) -> list[tuple[str, int, int, int, int]]:
    """Every product of a forward pass, or of a whole training step."""
    return list(_products_of(model.tobytes(), batch, tokens, past, backward))


@lru_cache(maxsize=64)
def _products_of(
    model: bytes, batch: int, tokens: int, past: int, backward: bool
) -> list[tuple[str, int, int, int, int]]:
    decoder = Decoder(sizes_of(np.frombuffer(model, np.int64)), CPU)
    with torch.set_grad_enabled(backward), record_products(decoder) as products:
        logits = decoder(batch, tokens, past=past)
        if backward:
            logits.sum().backward()
    return products.rows


def saved_bytes(model: np.ndarray, batch: int, tokens: int) -> int:
    """Bytes that torch's autograd saves in a forward pass up to the loss; weights, ids and one number a row aside.

    What runs is in float32, and its loss in float64: bf16 and a loss in fp32 would be half of either.
    """
    return _saved_bytes(model.tobytes(), batch, tokens)


@lru_cache(maxsize=64)
def _saved_bytes(model: bytes, batch: int, tokens: int) -> int:
    decoder = Decoder(sizes_of(np.frombuffer(model, np.int64)), CPU)
    weights = {parameter.untyped_storage()._cdata for parameter in decoder.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()._cdata
        if storage not in weights and saved.is_floating_point() and saved.ndim and saved.shape[-1] > 1:
            kept.setdefault(storage, saved.detach())
        return saved.detach()  # a result that its own graph held would never be freed

    unpack: Callable[[torch.Tensor], torch.Tensor] = lambda saved: saved  # noqa: E731
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, unpack):
        logits = decoder(batch, tokens, grouped=True).double().flatten(0, 1)
        F.cross_entropy(logits, torch.zeros(batch * tokens, dtype=torch.int64))
    return sum(saved.nbytes for saved in kept.values()) // 2
