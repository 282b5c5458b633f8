"""Batched LoRA: one forward pass in which each token has its own adapter.

Dimension letters: n adapters, r largest rank, I inputs and O outputs of a layer, Q tokens of a pass, S adapters in use,
T largest number of tokens of an adapter, P tokens with an adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.inference.adapters.adapter import Adapter, change_outputs, find_layers
from mlsys_lab.models import Transformer


class AdapterBank:
    """Stacked adapters of one model, from which a pass gathers those of its tokens (Punica, arXiv:2310.18547, §4).

    Lower ranks and layers without an adapter are padded with zeros; α/r is multiplied into B. All adapters stay in
    memory: `size_bytes`. InputError for an adapter that does not fit the model.
    """

    def __init__(self, model: Transformer, adapters: Mapping[str, Adapter]) -> None:
        self.model, self.names = model, list(adapters)
        for name, adapter in adapters.items():
            try:
                adapter.check(model)
            except InputError as error:
                raise InputError(f"adapter {name}: {error}") from None
        rank = max((adapter.lora_rank for adapter in adapters.values()), default=0)
        adapted = {layer for adapter in adapters.values() for layer in adapter.matrices}
        self.down: dict[str, torch.Tensor] = {}  # by layer: (n, r, I)
        self.up: dict[str, torch.Tensor] = {}  # by layer: (n, O, r)
        for layer, linear in find_layers(model).items():
            if layer in adapted:
                outputs, inputs = linear.weight.shape
                down = self.down[layer] = linear.weight.new_zeros(len(adapters), rank, inputs, requires_grad=False)
                up = self.up[layer] = linear.weight.new_zeros(len(adapters), outputs, rank, requires_grad=False)
                for index, adapter in enumerate(adapters.values()):
                    if layer in adapter.matrices:
                        a, b = adapter.matrices[layer]
                        down[index, : adapter.lora_rank] = a
                        up[index, :, : adapter.lora_rank] = adapter.scale * b

    @property
    def size_bytes(self) -> int:
        """Bytes of all adapters, padding included."""
        return sum(stack.nbytes for stacks in (self.down, self.up) for stack in stacks.values())

    def require(self, name: str) -> None:
        """Raise InputError for a name that no adapter has."""
        if name not in self.names:
            expected = f"one of {', '.join(self.names)}" if self.names else "none: the engine has no adapters"
            raise InputError("unknown adapter", got=name, expected=expected, help=did_you_mean(name, self.names))

    @contextmanager
    def apply(self, names: Sequence[str | None]) -> Iterator[None]:
        """Within this block, compute each token of a pass over (1, Q) tokens under the adapter of its name.

        None is the model itself: the outputs of such tokens are not changed. Tokens are arranged in rows by adapter,
        (S, T), for one batched product that gathers the matrices of an adapter once, rather than once per token.
        """
        rows: dict[str, list[int]] = {}
        for token, name in enumerate(names):
            if name is not None:
                rows.setdefault(name, []).append(token)
        if not rows:
            yield
            return
        device = self.model.embedding.weight.device
        longest = max(map(len, rows.values()))
        padded = [row + [0] * (longest - len(row)) for row in rows.values()]
        grid = torch.tensor(padded, device=device)  # (S, T)
        tokens = torch.tensor([token for row in rows.values() for token in row], device=device)  # (P,)
        used = [number * longest + column for number, row in enumerate(rows.values()) for column in range(len(row))]
        cells = torch.tensor(used, device=device)  # (P,)
        index = torch.tensor([self.names.index(name) for name in rows], device=device)  # (S,)

        def change(layer: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            gathered = x.flatten(0, -2)[grid]  # (S, T, I)
            added = gathered @ self.down[layer][index].mT @ self.up[layer][index].mT  # (S, T, O)
            return y.flatten(0, -2).index_add(0, tokens, added.flatten(0, 1)[cells]).view_as(y)

        with change_outputs(self.model, self.down, change):
            yield
