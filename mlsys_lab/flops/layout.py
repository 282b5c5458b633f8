"""How a model and its batch are sharded among devices, and how many of the parameters one device then holds."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.compute import check_recomputation
from mlsys_lab.flops.memory import check_zero_stage
from mlsys_lab.flops.parameters import mlp_parameters, parameters, replicated_parameters
from mlsys_lab.validation import is_integer, require_integer


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism; `data` · `context` · `tensor` · `pipeline` devices in all.

    Neighbouring devices are of one tensor-parallel group, then of one context-parallel, one data-parallel and one
    pipeline group. `expert` ranks, taken from the data-parallel ones, hold different experts. ZeRO divides states among
    the data- and context-parallel ranks, which hold the same parameters. `micro_batch` sequences go through the model
    at a time on each data-parallel rank. Each pipeline stage has `interleave` model chunks, so that a
    micro-batch goes round the stages as often. Raises InputError for degrees that are no whole numbers of at least 1,
    or do not go together.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    context: int = 1
    zero_stage: int = 0
    sequence_parallel: bool = False
    recomputation: str = "none"
    micro_batch: int = 1
    interleave: int = 1

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline", "expert", "context", "micro_batch", "interleave"):
            require_integer(f"Layout.{name}", getattr(self, name))
        check_zero_stage(self.zero_stage)
        if self.data % self.expert:
            raise InputError("expert ranks are taken from the data ranks", got=f"{self.expert} of {self.data}")
        if self.interleave > 1 and self.pipeline == 1:
            raise InputError("a model of one stage has no chunks to interleave", got=f"{self.interleave} of them")
        check_recomputation(self.recomputation)

    @property
    def devices(self) -> int:
        """Number of devices, data · context · tensor · pipeline."""
        return self.data * self.context * self.tensor * self.pipeline

    @property
    def replicas(self) -> int:
        """Number of ranks that hold the same parameters (experts aside): data · context."""
        return self.data * self.context

    def check(self, config: TransformerConfig) -> None:
        """Raise InputError where the model does not divide by this layout's degrees; layers need not divide evenly."""
        wants = [
            ("query heads", config.n_heads, "tensor-parallel ranks", self.tensor),
            ("d_ff", config.d_ff, "tensor-parallel ranks", self.tensor),
        ]
        if config.experts is not None:
            wants.append(("experts", config.experts.count, "expert-parallel ranks", self.expert))
            wants.append(("an expert's d_ff", config.experts.d_ff, "tensor-parallel ranks", self.tensor))
        elif self.expert > 1:
            raise InputError(f"{config.name} has no experts to divide", got=f"{self.expert} expert-parallel ranks")
        for what, amount, who, ways in wants:
            if amount % ways:
                raise InputError(f"{what} do not divide evenly", got=f"{amount} among {ways} {who}")
        # An interleaved model's first chunk may hold the embedding alone, its last one the head (Llama 3, §3.3.2).
        ends = 2 if self.interleave > 1 else 0
        if config.n_layers + ends < (chunks := self.pipeline * self.interleave):
            got = f"{config.n_layers} layers for {chunks} model chunks"
            raise InputError("a model chunk without a layer", got=got)
        K = config.n_kv_heads
        if K % self.tensor and self.tensor % K:
            raise InputError(
                "key/value heads do not divide evenly", got=f"{K} among {self.tensor} tensor-parallel ranks"
            )

    def micro_batches(self, batch: int) -> int:
        """Micro-batches of each data-parallel rank in a step on `batch` sequences; InputError unless a whole number.

        Interleaved ones go round in groups of as many as there are stages: InputError unless they make whole groups.
        """
        once = self.data * self.micro_batch
        if not is_integer(batch, at_least=1) or batch % once:
            raise InputError(
                "the batch does not divide evenly",
                got=f"{batch} sequences",
                expected=f"a multiple of {once}: {self.data} data-parallel ranks, {self.micro_batch} sequences each",
            )
        if self.interleave > 1 and batch // once % self.pipeline:
            got = f"{batch // once} over {self.pipeline} stages"
            raise InputError("interleaved micro-batches are a multiple of the stages", got=got)
        return batch // once

    def stage_layers(self, config: TransformerConfig, *, first: bool = False, last: bool = False) -> int:
        """Layers of the fullest pipeline stage, or of the `first` or the `last` one.

        A stage has `interleave` model chunks, whose numbers of layers differ by at most one. Of the chunks with a layer
        less, the last stage has one, since it also has the head, and the first stage, which has most micro-batches in
        flight, has the next (Llama 3, arXiv:2407.21783, §3.3.2).

        >>> llama = TransformerConfig("405B", 126, 16_384, 128, 53_248, 128_256, 8192)
        >>> [Layout(pipeline=16).stage_layers(llama, **stage) for stage in ({"first": True}, {}, {"last": True})]
        [7, 8, 7]
        """
        chunks = self.pipeline * self.interleave
        full = math.ceil(config.n_layers / chunks) * self.interleave
        missing = full * self.pipeline - config.n_layers
        return full - (1 if (last and missing > 0) or (first and missing > 1) else 0)

    def in_flight(self, stage: int, micro_batches: int) -> float:
        """Micro-batches whose activations a pipeline stage, counted from 0, keeps at once, with all of its layers.

        One forward, one backward: p - stage. Interleaved, the first stage keeps p + (p - 1)/v (Korthikanti et al.,
        arXiv:2205.05198, §4.2.3).
        """
        p, v = self.pipeline, self.interleave
        ahead = p - 1 - stage if v == 1 else 2 * (p - 1 - stage) + (v - 1) * p
        return min(ahead + 1, v * micro_batches) / v

    def tokens_per_device(self, batch: int, tokens: int) -> float:
        """Tokens of a step for each device, of `batch` sequences of `tokens`; InputError unless they divide evenly.

        From `communication.critical_tokens` on, data parallelism's traffic hides behind compute.

        >>> Layout(data=128, pipeline=16).tokens_per_device(15_360, 4096)  # DeepSeek-V3
        30720.0
        """
        return self.micro_batches(batch) * self.data * self.micro_batch * tokens / self.devices

    def rounds(self, micro_batches: int) -> int:
        """How often per step a rank with ZeRO 2 or 3 goes through its layers, and gathers or reduce-scatters.

        A chunk of an interleaved stage has as many micro-batches in a row as there are stages, and adds up their
        gradients first (Llama 3, arXiv:2407.21783, §3.3.2).
        """
        return micro_batches // self.pipeline if self.interleave > 1 else micro_batches

    def rank_tokens(self, tokens: int) -> int:
        """Tokens of a sequence of `tokens` that each context-parallel rank has; InputError unless they divide."""
        if tokens % self.context:
            got = f"{tokens} tokens among {self.context} context-parallel ranks"
            raise InputError("the sequence does not divide evenly", got=got)
        return tokens // self.context

    def replace(self, **changes: int | bool | str) -> Layout:
        """A copy of this layout with the given fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Shard:
    """Numbers of parameters that one device holds, before ZeRO shards them."""

    dense: float  # of the fullest stage's layers, experts aside
    experts: float  # of the fullest stage's layers
    embedding: float  # with learned positions, on the first stage
    head: float  # on the last stage; of a tied model with several stages, its copy of the embedding

    def at(self, *, first: bool, last: bool) -> float:
        """Parameters without experts on a device of a stage that is the first, the last or both."""
        return self.dense + (self.embedding if first else 0.0) + (self.head if last else 0.0)


def shard(config: TransformerConfig, layout: Layout) -> Shard:
    """Parameters that one device holds: tensor parallelism shards matrices, pipeline parallelism the layers.

    Copied to all tensor-parallel ranks: norms, the router, learned positions, the matrices of latent attention that
    lead to its latent vectors, and a key/value head where there are more ranks than heads. Counted as divided although
    they are copied: biases of output matrices. Dense and expert layers are taken as spread evenly over the stages, and
    the stages at the ends as no less full than others; a vocabulary that does not divide is not rounded up. Raises
    InputError.
    """
    layout.check(config)
    whole, t, p = parameters(config), layout.tensor, layout.pipeline
    share = layout.stage_layers(config) / config.n_layers
    routed = 0
    if experts := config.experts:
        expert = mlp_parameters(config, experts.d_ff)
        routed = (config.n_layers - experts.dense_layers) * experts.count * expert
    copied = replicated_parameters(config)
    more_heads = 0.0
    if config.latent is None:
        key_value = config.n_layers * config.d_model * 2 * config.n_kv_heads * config.head_dim
        more_heads = key_value * (max(1.0, t / config.n_kv_heads) - 1)
    divided = whole.total - whole.embedding - whole.position - whole.head - routed - copied + more_heads
    return Shard(
        dense=(divided / t + copied) * share,
        experts=routed / (t * layout.expert) * share,
        embedding=whole.embedding / t + whole.position,
        head=(whole.embedding / t if p > 1 else 0.0) if config.tied else whole.head / t,
    )
