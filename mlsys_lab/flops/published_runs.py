"""Training runs whose layout and speed were published: what `mlsys_lab.flops.planner` is held against.

A run's `given` are its means, which are not to be chosen: Megatron-LM of 2021 recomputed whole layers and knew neither
ZeRO nor sequence parallelism, BLOOM recomputed with ZeRO 1, Llama 3 kept all activations, DeepSeek-V3 had no tensor
parallelism, multiplied in 8 bits and recomputed no whole layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mlsys_lab.configs.presets import preset
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops import compute
from mlsys_lab.flops.bounds import Machine, machine
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import Recipe, recipe
from mlsys_lab.flops.planner import Given, Plan, plan
from mlsys_lab.hardware import device

_MIXED = recipe("mixed18")
_MEGATRON: Given = {"recomputation": "full", "zero_stage": 0, "sequence_parallel": False}
# DGX A100: eight cards of 200 Gb/s. Jean Zay: four of 100 Gb/s for eight GPUs. Llama 3: one of 400 Gb/s a GPU.
_SELENE = machine(device("A100 80GB"), "bf16", network_bytes_per_s=25e9)
_JEAN_ZAY = machine(device("A100 80GB"), "bf16", network_bytes_per_s=6.25e9)
_H100 = machine(device("H100"), "bf16")
# The H800 is an H100 with 400 GB/s of NVLink, both ways together, of which DeepSeek's kernels reach 160 one way.
_H800 = replace(machine(device("H100"), "fp8"), link_bytes_per_s=160e9)


@dataclass(frozen=True)
class PublishedRun:
    """A run as published: model, machine, batch, the degrees of its layout, and the share of the peak that it reached.

    `utilisation` is the model's FLOPs over the peak, or where `hardware` is true the executed ones, recomputed FLOPs
    included; both count attention over all pairs of tokens.
    """

    name: str
    config: TransformerConfig
    machine: Machine
    layout: Layout
    batch: int
    tokens: int
    given: Given
    utilisation: float
    hardware: bool
    source: str
    recipe: Recipe = _MIXED

    def rank(self) -> list[Plan]:
        """Plans for the run's model, machine and batch with its means, the fastest first."""
        return self._plan(self.machine, self.given)

    def compare(self) -> Comparison:
        """Hold the run's own layout against the best of those that fit, whether or not it fits by the planner's count.

        Its settings, as far as its means leave them open, are those with which it is fastest.
        """
        names = ("data", "tensor", "pipeline", "context", "expert")
        degrees = {name: getattr(self.layout, name) for name in names}
        best, *others = self.rank()
        for theirs in (best, *others):
            if not theirs.missing_bytes and all(getattr(theirs.layout, name) == degrees[name] for name in names):
                return Comparison(self, best, theirs)
        (theirs,) = self._plan(replace(self.machine, memory_bytes=math.inf), {**self.given, **degrees})
        return Comparison(self, best, replace(theirs, capacity_bytes=self.machine.memory_bytes))

    def _plan(self, on: Machine, given: Given) -> list[Plan]:
        sizes = {"devices": self.layout.devices, "batch": self.batch, "tokens": self.tokens}
        return plan(self.config, on, self.recipe, **sizes, causal=False, given=given)


@dataclass(frozen=True)
class Comparison:
    """A published run's layout beside the best one: `theirs` may have `missing_bytes`, `best` has none."""

    run: PublishedRun
    best: Plan
    theirs: Plan

    @property
    def ratio(self) -> float:
        """Planned time of the run's layout over that of the best one."""
        return self.theirs.time_s / self.best.time_s

    @property
    def utilisation(self) -> float:
        """What the run's `utilisation` would be, had its steps taken the planned time."""
        run = self.run
        recomputation = self.theirs.layout.recomputation
        flops = compute.training(run.config, run.tokens, run.batch, recomputation=recomputation)
        peak = run.machine.peak_flops_per_s * run.layout.devices
        return (flops.hardware if run.hardware else flops.model) / self.theirs.time_s / peak


def _megatron(
    billions: str, layers: int, width: int, heads: int, tensor: int, pipeline: int, gpus: int, batch: int, tflops: float
) -> PublishedRun:
    """A row of table 1 of Narayanan et al. (arXiv:2104.04473); its speed counts recomputed FLOPs."""
    return PublishedRun(
        f"Megatron-LM {billions}B",
        TransformerConfig(f"megatron-{billions}b", layers, width, heads, 4 * width, 51_200, 2048, activation="gelu"),
        _SELENE,
        Layout(data=gpus // (tensor * pipeline), tensor=tensor, pipeline=pipeline),
        batch,
        2048,
        _MEGATRON,
        1e12 * tflops / _SELENE.peak_flops_per_s,
        True,
        "arXiv:2104.04473, table 1",
    )


def _llama(gpus: int, tokens: int, layout: Layout, mfu: float) -> PublishedRun:
    """A row of table 4 of the Llama 3 herd (arXiv:2407.21783): 16 million tokens a batch, nothing recomputed.

    Optimizer states and gradients are divided, weights are not gathered again (§3.3.2): ZeRO 2.
    """
    return PublishedRun(
        f"Llama 3 405B, {gpus:,} GPUs, {tokens:,} tokens",
        preset("llama3-405b"),
        _H100,
        layout,
        2**24 // tokens,
        tokens,
        {"recomputation": "none", "zero_stage": 2, "sequence_parallel": True, "micro_batch": 1},
        mfu,
        False,
        "arXiv:2407.21783, table 4",
    )


PUBLISHED_RUNS = (
    _megatron("1.7", 24, 2304, 24, 1, 1, 32, 512, 137),
    _megatron("3.6", 30, 3072, 32, 2, 1, 64, 512, 138),
    _megatron("7.5", 36, 4096, 32, 4, 1, 128, 512, 142),
    _megatron("18.4", 40, 6144, 48, 8, 1, 256, 1024, 135),
    _megatron("39.1", 48, 8192, 64, 8, 2, 512, 1536, 138),
    _megatron("76.1", 60, 10_240, 80, 8, 4, 1024, 1792, 140),
    _megatron("145.6", 80, 12_288, 96, 8, 8, 1536, 2304, 148),
    _megatron("310.1", 96, 16_384, 128, 8, 16, 1920, 2160, 155),
    _megatron("529.6", 105, 20_480, 128, 8, 35, 2520, 2520, 163),
    _megatron("1008", 128, 25_600, 160, 8, 64, 3072, 3072, 163),
    PublishedRun(
        "BLOOM 176B",
        preset("bloom-176b"),
        _JEAN_ZAY,
        Layout(data=8, tensor=4, pipeline=12),
        2048,
        2048,
        {"recomputation": "full", "zero_stage": 1, "sequence_parallel": False},
        150e12 / _JEAN_ZAY.peak_flops_per_s,
        True,
        "arXiv:2211.05100, §3.4, and the chronicle of the training (github.com/bigscience-workshop/bigscience)",
    ),
    _llama(8192, 8192, Layout(data=64, tensor=8, pipeline=16), 0.43),
    _llama(16_384, 8192, Layout(data=128, tensor=8, pipeline=16), 0.41),
    _llama(16_384, 131_072, Layout(data=8, tensor=8, pipeline=16, context=16), 0.38),
    PublishedRun(
        "DeepSeek-V3",
        preset("deepseek-v3"),
        _H800,
        Layout(data=128, pipeline=16, expert=64),
        15_360,
        4096,
        {"zero_stage": 1, "tensor": 1, "recomputation": "none"},
        0.437 * _H100.peak_flops_per_s / _H800.peak_flops_per_s,  # the MFU is printed as of the peak in bf16
        False,
        "arXiv:2412.19437, §3.2, and arXiv:2505.09343, table 4",
        recipe("fp8"),
    ),
)
"""Published runs: those of dense models in order of their size, then a mixture of experts."""
