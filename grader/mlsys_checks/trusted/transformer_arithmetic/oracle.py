"""The model behind lab 05's oracles: a decoder transformer in torch that is asked what it has, runs and keeps.

Parameters are counted by listing them, on torch's "meta" device, where arrays have shapes and no bytes. Small models
run: matrix products are recorded as torch dispatches them, backward pass included, and activations are what torch's
own autograd saves. None of it knows a closed form.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

F: Any = nn.functional  # some of its functions have no types
META, CPU = torch.device("meta"), torch.device("cpu")  # to run on meta would import torch's compiler, a second
DTYPES = {META: torch.bfloat16, CPU: torch.float32}
"""Element type of a model's weights: CPUs are slow in bf16, so what runs is twice as wide throughout."""
FLAGS = ("qkv_bias", "out_bias", "mlp_bias", "norm_bias", "tied")
Config = dict[str, Any]
"""Fields of a `TransformerConfig`."""
Product = tuple[str, int, int, int, int]
"""(name, times, m, k, n)."""


def fill_config(**fields: Any) -> Config:
    """Fill in the fields of a configuration as `TransformerConfig` does: flags that are not given are off."""
    config = {"name": "a model", **dict.fromkeys(FLAGS, False), "n_kv_heads": fields["n_heads"], **fields}
    return {"head_dim": fields["d_model"] // fields["n_heads"], **config}


model_array = fill_config
"""The name by which lab 10's checks call it."""


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
    """The oracle's transformer. `note` is called with the name of each matrix product before it runs."""

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

    def forward(self, tokens: int, batch: int, *, past: int = 0, grouped: bool = False) -> torch.Tensor:
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
        self.note("weighted_sum")
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


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records matrix products as torch runs them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.name = ""
        self.rows: list[Product] = []

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


def _remember(function: Callable[..., Any]) -> Callable[..., Any]:
    """Remember what a function returned for a configuration and sizes."""

    @lru_cache(maxsize=256)
    def of_fields(fields: tuple[tuple[str, Any], ...], *sizes: int) -> Any:
        return function(dict(fields), *sizes)

    return lambda config, *sizes: of_fields(tuple(config.items()), *sizes)


@_remember
def weights_of(config: Config) -> Decoder:
    """A model's transformer without storage: its weights have shapes only."""
    return Decoder(SimpleNamespace(**config), META)


@_remember
def run_products(config: Config, tokens: int, batch: int, past: int = 0, backward: bool = False) -> list[Product]:
    """Every product of a forward pass, or of a whole training step, as torch runs it."""
    decoder, products = Decoder(SimpleNamespace(**config), CPU), _Products()
    decoder.note = partial(setattr, products, "name")
    with torch.set_grad_enabled(backward), products:
        logits = decoder(tokens, batch, past=past)
        if backward:
            logits.sum().backward()
    return products.rows


def forward_products(config: Config, tokens: int, batch: int = 1) -> list[Product]:
    """The products of a forward pass of any size, from runs of one and two sequences and tokens.

    Each further sequence adds to a product's numbers what the second one does, and so does each further token.
    """
    few = [_sum_products(run_products(config, *size)) for size in itertools.product((1, 2), repeat=2)]
    listed = []
    for (name, *one), *more in zip(*few, strict=True):
        times, m, k, n = (
            a + (batch - 1) * (b - a) + (tokens - 1) * (c - a) + (batch - 1) * (tokens - 1) * (d - b - c + a)
            for a, b, c, d in zip(one, *(row[1:] for row in more), strict=True)
        )
        listed.append((name, times, m, k, n))
    return listed


def _sum_products(rows: list[Product]) -> list[Product]:
    """Products with those of one name and shape added up."""
    times: dict[tuple[str, int, int, int], int] = {}
    for name, count, m, k, n in rows:
        times[name, m, k, n] = times.get((name, m, k, n), 0) + count
    return [(name, count, m, k, n) for (name, m, k, n), count in times.items()]


def kept_bytes(config: Config, tokens: int, batch: int, recomputation: str) -> int:
    """Bytes of activations in bf16, and of the loss in fp32, from what autograd saves of a sequence of 2 and 4 tokens.

    Sequences keep alike, and each of them a·T + b·T² bytes.
    """
    near, far = (_kept_of_one(config, few)[recomputation] for few in (2, 4))
    b = (far - 2 * near) // 8
    return batch * ((near - 4 * b) // 2 * tokens + b * tokens**2)


def _kept_of_one(config: Config, tokens: int) -> dict[str, int]:
    whole, others = _saved_bytes(config, tokens), config["n_layers"] - 1
    of_a_layer = _saved_bytes({**config, "n_layers": config["n_layers"] + 1}, tokens) - whole
    scores, inputs = (
        torch.empty(shape, dtype=torch.bfloat16, device=META).nbytes
        for shape in ((config["n_heads"], tokens, tokens), (tokens, config["d_model"]))
    )
    return {"none": whole, "selective": whole - others * scores, "full": whole - others * (of_a_layer - inputs)}


@_remember
def _saved_bytes(config: Config, tokens: int) -> int:
    """Bytes that torch's autograd saves in a forward pass up to the loss; weights, ids and one number a row aside.

    What runs is in float32, and its loss in float64: bf16 and a loss in fp32 would be half of either.
    """
    decoder = Decoder(SimpleNamespace(**config), CPU)
    weights = {parameter.untyped_storage()._cdata for parameter in decoder.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()._cdata
        if storage not in weights and saved.is_floating_point() and saved.ndim and saved.shape[-1] > 1:
            kept.setdefault(storage, saved.detach())
        return saved.detach()  # a result that its own graph held would never be freed

    unpack: Callable[[torch.Tensor], torch.Tensor] = lambda saved: saved  # noqa: E731
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, unpack):
        logits = decoder(tokens, 1, grouped=True).double().flatten(0, 1)
        F.cross_entropy(logits, torch.zeros(tokens, dtype=torch.int64))
    return sum(saved.nbytes for saved in kept.values()) // 2
