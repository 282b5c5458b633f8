"""The least time of a training step, a prefill and a decoding step on a device: what binds it, and by how much.

Each device has FLOPs to do, bytes of memory to move, and bytes to send within its node and beyond it. If all four
perfectly overlapped, the step would take the longest of the four: no schedule of this kind is faster. Of this kind: a
pipeline of one forward, one backward, traffic in the patterns of `communication`. Left out, so that real steps are
longer: latency, kernels' launches, what does not overlap, matrix units that are not filled, uneven routing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import activations, cache, communication, step
from mlsys_lab.flops.layout import Layout, shard
from mlsys_lab.flops.memory import BYTES, Recipe, element_bytes
from mlsys_lab.flops.stage import stage_flops
from mlsys_lab.hardware import Device
from mlsys_lab.validation import require_positive

NETWORK_BYTES_PER_S = 50e9
"""Between nodes, for each device and direction: a 400 Gb/s card a GPU, as in NVIDIA's DGX H100."""
NODE_DEVICES = {"gpu": 8, "cpu": 1, "TPU v4": 4096, "TPU v5e": 256, "TPU v5p": 8960, "TPU v6e": 256}
"""Devices that the fast links connect: a board of eight GPUs; of TPUs the Pod of Google's pages."""


@dataclass(frozen=True)
class Machine:
    """One device's limits at a precision, in FLOP/s and bytes/s, and its links' rates within and beyond the node."""

    peak_flops_per_s: float
    memory_bytes: float
    memory_bytes_per_s: float
    link_bytes_per_s: float  # within a node, one direction
    network_bytes_per_s: float  # between nodes, one direction, for each device
    node: int  # devices in a node

    def __post_init__(self) -> None:
        require_positive(**asdict(self))


def machine(
    device: Device, precision: str, *, node: int | None = None, network_bytes_per_s: float = NETWORK_BYTES_PER_S
) -> Machine:
    """A row of the device table as a `Machine`: within a node, all of its fastest links are in use.

    Multiplication is at the peak of `precision`, or of 16 bits where the device has no unit for a narrow one (it is
    then unpacked first) or knows the other 16-bit format only. `InputError` where it has no unit for "fp32".
    """
    names = [precision] if element_bytes(precision) == 4 else [precision, "bf16", "fp16", "fp32"]
    unit = next((name for name in names if name in device.peaks), precision)
    link = max((link.per_direction_bytes_per_s for link in device.links), default=network_bytes_per_s)
    return Machine(
        peak_flops_per_s=device.peak(unit),
        memory_bytes=device.memory_bytes,
        memory_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        link_bytes_per_s=link,
        network_bytes_per_s=network_bytes_per_s,
        node=NODE_DEVICES.get(device.name, NODE_DEVICES.get(device.kind, 1)) if node is None else node,
    )


@dataclass(frozen=True)
class Work:
    """Work of one device: FLOPs to do, and bytes to move in memory, to send within the node, and to send beyond it."""

    flops: float
    memory_bytes: float
    link_bytes: float  # sent within the node
    network_bytes: float  # sent beyond it


@dataclass(frozen=True)
class TimeBound:
    """Seconds that each part of the work takes by itself; the longest is the bound."""

    compute_s: float
    memory_s: float
    link_s: float
    network_s: float

    @property
    def time_s(self) -> float:
        """The bound in seconds, the longest of the four parts: no schedule takes less."""
        return max(self.compute_s, self.memory_s, self.link_s, self.network_s)

    @property
    def in_turn_s(self) -> float:
        """Seconds if nothing overlaps: the four parts one after the other."""
        return self.compute_s + self.memory_s + self.link_s + self.network_s

    @property
    def binds(self) -> str:
        """The part that takes longest and so sets the bound: "compute", "memory", "link" or "network"."""
        return max(asdict(self).items(), key=lambda part: part[1])[0].removesuffix("_s")

    @property
    def margin(self) -> float | None:
        """How many times as long the longest part takes as the next one; None where there is no other work."""
        longest, second = sorted(asdict(self).values(), reverse=True)[:2]
        return longest / second if second else None


def least_time(work: Work, on: Machine) -> TimeBound:
    """Seconds that each part of the work takes by itself on a machine: each amount over its rate."""
    return TimeBound(
        compute_s=work.flops / on.peak_flops_per_s,
        memory_s=work.memory_bytes / on.memory_bytes_per_s,
        link_s=work.link_bytes / on.link_bytes_per_s,
        network_s=work.network_bytes / on.network_bytes_per_s,
    )


@dataclass(frozen=True)
class Traffic:
    """Bytes that one device sends in a group of devices, with the group's size, spacing and pattern.

    `copies` are those that an all-to-all sends to other nodes over those that it would send to each receiver alone,
    below 1 where the receivers of a node share one copy.
    """

    sent_bytes: float
    ranks: int
    stride: int
    pattern: str = "ring"  # or "all-to-all", or "neighbours" of a pipeline
    copies: float = 1.0

    def split(self, node: int) -> tuple[float, float]:
        """Bytes within the node and beyond it.

        Of a gather of S bytes over n ranks, g in each node, a device sends (g - 1)/g · S within the node, and with its
        g - 1 neighbours fetches the other nodes' (n - g)/n · S, each a g-th part. In an all-to-all nothing is shared:
        g - 1 of n - 1 parts stay. With shared `copies` a device of the other node gets the one copy and passes it on,
        so that (g - 1)/g · S go over the node's links (DeepSeek-V3, arXiv:2412.19437, §3.2.2). Between stages
        everything goes the way of the slowest hop.
        """
        if self.ranks == 1:
            return 0.0, 0.0
        together = min(self.ranks, max(1, node // self.stride))
        if self.pattern == "neighbours":
            return (self.sent_bytes, 0.0) if together == self.ranks else (0.0, self.sent_bytes)
        whole = self.sent_bytes * self.ranks / (self.ranks - 1)
        if self.pattern == "all-to-all":
            beyond = self.copies * whole * (self.ranks - together) / self.ranks
            return whole * (together - 1) / (self.ranks if self.copies == 1 else together), beyond
        return whole * (together - 1) / together, whole * (self.ranks - together) / self.ranks / together


def training_traffic(
    config: TransformerConfig, layout: Layout, recipe: Recipe, *, batch: int, tokens: int
) -> dict[str, Traffic]:
    """Bytes that a device sends in one training step, by parallel strategy; gradients are 32 bits wide at most."""
    t, p, c, e = layout.tensor, layout.pipeline, layout.context, layout.expert
    micro_batches = layout.micro_batches(batch)
    rows = micro_batches * layout.micro_batch * tokens / c
    layers, again = layout.stage_layers(config), 1 if layout.recomputation == "full" else 0
    eb, held = recipe.sent_bytes, shard(config, layout)
    # To experts in the format in which they multiply, back in 16 bits at least (DeepSeek-V3, §3.3.3).
    routed_eb = (BYTES[recipe.compute] + eb) / 2
    routed_share = 1 - config.experts.dense_layers / config.n_layers if config.experts else 0

    def data(parameters: float, ranks: int) -> float:
        weights, gradients = recipe.weights * parameters, min(recipe.gradients, 4) * parameters
        return communication.data_parallel_bytes(
            weights, gradients, ranks, zero_stage=layout.zero_stage, micro_batches=layout.rounds(micro_batches)
        )

    tensor = communication.tensor_parallel_bytes(
        config,
        rows,
        t,
        layers=layers,
        element_bytes=eb,
        sequence_parallel=layout.sequence_parallel,
        recomputation=layout.recomputation,
    )
    ring = communication.context_parallel_bytes(config, rows * c, c, layers=layers, element_bytes=eb, tensor=t)
    routed = communication.expert_parallel_bytes(
        config, rows / t, e, layers=layers * routed_share, element_bytes=routed_eb
    )
    ends = max(held.embedding, held.head) if p > 1 else held.embedding + held.head
    return {
        "tensor": Traffic(tensor, t, 1),
        "context": Traffic((3 + again) * ring, c, t),
        "expert": Traffic((2 + again) * routed, e, t * c, "all-to-all", node_copies(config)),
        "data": Traffic(data(held.dense + ends, c * layout.data), c * layout.data, t),
        "experts' data": Traffic(data(held.experts, c * layout.data // e), c * layout.data // e, t * e),
        "pipeline": Traffic(
            2 * layout.interleave * communication.pipeline_bytes(config, rows, element_bytes=eb, tensor=t),
            p,
            t * c * layout.data,
            "neighbours",
        ),
    }


def node_copies(config: TransformerConfig) -> float:
    """Copies of a token sent to experts in other nodes, as a fraction of one copy per expert.

    Node-limited routing sends a token once to each of at most `Experts.max_groups` nodes.
    """
    experts = config.experts
    return min(1.0, experts.max_groups / experts.active) if experts and experts.max_groups else 1.0


def training_work(
    config: TransformerConfig,
    layout: Layout,
    recipe: Recipe,
    *,
    batch: int,
    tokens: int,
    node: int,
    causal: bool = True,
) -> Work:
    """Work of a training step on `batch` sequences of `tokens`, on the busiest device; fused attention.

    FLOPs: those of `stage_flops`, with what could be done while a pipeline fills and drains. Memory:
    weights are read forward and backward, and the layers' once more when recomputing, for each micro-batch; gradients
    are written and added to, kept activations written and read, the optimizer's states read and written once. Of an
    embedding rows are read, which is not counted; the head's matrix is read whole.
    """
    m, t, p = layout.micro_batches(batch), layout.tensor, layout.pipeline
    own = layout.rank_tokens(tokens)
    flops = stage_flops(config, layout, batch=batch, tokens=tokens, causal=causal).total
    held, eb = shard(config, layout), BYTES[recipe.compute]
    parameters = held.at(first=p == 1, last=True) + held.experts
    reads = 3 if layout.recomputation == "full" else 2
    read = reads * (held.dense + held.experts) + 2 * config.vocab_size * config.d_model / t
    kept = layout.stage_layers(config) * layer_activations(config, layout, recipe, tokens=tokens).total
    kept += activations.head_bytes(config, own, layout.micro_batch, tensor=t, element_bytes=eb)
    optimised = held.at(first=p == 1, last=True) / (layout.replicas if layout.zero_stage else 1)
    optimised += held.experts / (layout.replicas / layout.expert if layout.zero_stage else 1)
    memory = m * (recipe.weights * read + 2 * kept) + (2 * m - 1) * recipe.gradients * parameters
    memory += optimised * (2 * (recipe.master + recipe.moments) + recipe.gradients + recipe.weights)

    traffic = training_traffic(config, layout, recipe, batch=batch, tokens=tokens)
    inside, beyond = zip(*(one.split(node) for one in traffic.values()), strict=True)
    return Work(flops, memory, sum(inside), sum(beyond))


def layer_activations(
    config: TransformerConfig, layout: Layout, recipe: Recipe, *, tokens: int, recomputation: str | None = None
) -> activations.LayerActivations:
    """Activations that a layer of a micro-batch keeps: fused attention and gated activation, no dropout."""
    return activations.layer(
        config,
        layout.rank_tokens(tokens),
        layout.micro_batch,
        tensor=layout.tensor,
        sequence_parallel=layout.sequence_parallel,
        recomputation=layout.recomputation if recomputation is None else recomputation,
        element_bytes=BYTES[recipe.compute],
        fused_attention=True,
        fused_activation=True,
    )


def serving_work(
    config: TransformerConfig,
    layout: Layout,
    *,
    sequences: float,
    tokens: int,
    past: int,
    weight_bytes: float,
    cache_bytes: float,
    node: int,
) -> Work:
    """`sequences` sequences of each data-parallel rank go once through all stages, `tokens` new tokens each.

    The work of a tensor-parallel rank on all stages, which take turns; so the time is that until the token is out.
    Logits are for the last token. Memory: weights once, of the experts those that are used when each token picks its
    own at random, E·(1 - (1 - active/E)^tokens); the cache read, and written for the new tokens.
    """
    if layout.context > 1:
        raise InputError("serving is bounded without context parallelism", got=f"{layout.context} ranks", expected="1")
    require_positive(weight_bytes=weight_bytes, cache_bytes=cache_bytes)
    t, p, e = layout.tensor, layout.pipeline, layout.expert
    once = step.forward(config, tokens, past, head_tokens=1)
    held, rows = shard(config, layout), sequences * tokens
    used = step.experts_used(config, rows * e)
    head = config.vocab_size * config.d_model / t
    stages = config.n_layers / layout.stage_layers(config)
    weights = weight_bytes * (stages * (held.dense + used * held.experts) + head)
    cached = sequences * (past + tokens) * cache.bytes_per_token(config, cache_bytes) * cache.copies(config, t) / t
    routed_layers = config.n_layers - config.experts.dense_layers if config.experts else 0
    traffic = [
        Traffic(communication.tensor_parallel_bytes(config, rows, t, layers=config.n_layers, training=False), t, 1),
        Traffic(
            communication.expert_parallel_bytes(config, rows / t, e, layers=routed_layers),
            e,
            t,
            "all-to-all",
            node_copies(config),
        ),
        Traffic((p - 1) * communication.pipeline_bytes(config, rows, tensor=t), p, t * layout.data, "neighbours"),
    ]
    inside, beyond = zip(*(one.split(node) for one in traffic), strict=True)
    return Work(once.total * sequences / t, weights + cached, sum(inside), sum(beyond))
