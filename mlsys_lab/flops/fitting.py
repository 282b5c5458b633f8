"""Layouts that need less memory: those one change away from a layout, and the nearest one that fits.

The estimator on the course's site repeats this search in JavaScript, and a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.layout import Layout

MOST_CHANGES = 3
"""How many changes `nearest_layout` combines."""


def smaller_layouts(config: TransformerConfig, layout: Layout, *, training: bool) -> Iterator[tuple[str, Layout]]:
    """Yield named layouts one change away that may need less memory a device, the least costly change first.

    Those that keep the number of devices come first; then twice, four and eight times the tensor- or pipeline-parallel
    ranks. Layouts into which the model does not divide are left out; the sequence and the batch are not looked at.
    """
    changes: list[tuple[str, dict[str, Any]]] = []
    if training:
        if layout.tensor > 1 and not layout.sequence_parallel:
            changes.append(("sequence parallelism", {"sequence_parallel": True}))
        if layout.replicas > 1:
            changes += [(f"ZeRO stage {stage}", {"zero_stage": stage}) for stage in range(layout.zero_stage + 1, 4)]
        if layout.micro_batch > 1:
            changes.append(("a micro-batch of 1", {"micro_batch": 1}))
        if layout.recomputation != "full":
            changes.append(("full recomputation", {"recomputation": "full"}))
    for times in (2, 4, 8):
        for name, word in (("tensor", "tensor-parallel ranks"), ("pipeline", "pipeline stages")):
            ways = getattr(layout, name) * times
            changes.append((f"{ways} {word}", {name: ways}))
    for words, change in changes:
        smaller = layout.replace(**change)
        try:
            smaller.check(config)
        except InputError:
            continue
        yield words, smaller


def nearest_layout(
    config: TransformerConfig, layout: Layout, fits: Callable[[Layout], bool], *, training: bool
) -> tuple[str, Layout] | None:
    """Find the layout that `fits` by the fewest changes, in words and as a layout; None where three do not do.

    Changes are those of `smaller_layouts`, each made once at most; of as many, the least costly come first. A layout
    for which `fits` raises InputError, because the sequence or the batch does not divide so, does not fit.
    """

    def does(one: Layout) -> bool:
        try:
            return fits(one)
        except InputError:
            return False

    ways, seen = [("", layout)], {layout}
    for changes in range(1, MOST_CHANGES + 1):
        further = []
        for words, one in ways:
            for word, smaller in smaller_layouts(config, one, training=training):
                changed = sum(getattr(smaller, each.name) != getattr(layout, each.name) for each in fields(Layout))
                if changed == changes and smaller not in seen:
                    seen.add(smaller)
                    further.append((f"{words}, {word}" if words else word, smaller))
        ways = further
        if found := next(((words, one) for words, one in ways if does(one)), None):
            return found
    return None
