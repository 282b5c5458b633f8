// Lower bounds of the time of a training step, a prefill and a decode step, as in `mlsys_lab.flops.bounds`.

// Seconds of each resource by itself; the longest is the bound.
function leastTime(work, machine) {
  const parts = {
    compute_s: work.flops / machine.peak_flops_per_s,
    memory_s: work.memoryBytes / machine.memory_bytes_per_s,
    link_s: work.linkBytes / machine.link_bytes_per_s,
    network_s: work.networkBytes / machine.network_bytes_per_s,
  };
  const [longest, second] = Object.entries(parts).sort((a, b) => b[1] - a[1]);
  return { ...parts, time_s: longest[1], binds: longest[0].replace("_s", ""), margin: second[1] ? longest[1] / second[1] : null };
}

// Bytes within a node of `node` devices and beyond it, of `sent` bytes among ranks that stand `stride` devices apart.
// Of an all-to-all to other nodes, `copies` are sent over those that each receiver alone would take.
function splitTraffic({ sent, ranks, stride, pattern = "ring", copies = 1 }, node) {
  if (ranks === 1) return [0, 0];
  const together = Math.min(ranks, Math.max(1, Math.floor(node / stride)));
  if (pattern === "neighbours") return together === ranks ? [sent, 0] : [0, sent];
  const whole = (sent * ranks) / (ranks - 1);
  if (pattern === "all-to-all") {
    return [(whole * (together - 1)) / (copies === 1 ? ranks : together), (copies * whole * (ranks - together)) / ranks];
  }
  return [(whole * (together - 1)) / together, (whole * (ranks - together)) / ranks / together];
}

function splitAll(traffic, node) {
  return traffic.map((one) => splitTraffic(one, node)).reduce(([a, b], [inside, beyond]) => [a + inside, b + beyond], [0, 0]);
}

// Node-limited routing sends a token once to each node.
function nodeCopies(c) {
  return c.experts && c.experts.max_groups ? Math.min(1, c.experts.max_groups / c.experts.active) : 1;
}

function trainingTraffic(c, layout, recipe, batch, tokens) {
  const { tensor: t, pipeline: p, context, expert: e, data: d } = layout;
  const count = microBatches(layout, batch);
  const rows = (count * layout.micro_batch * tokens) / context;
  const [layers, again] = [stageLayers(c, layout), layout.recomputation === "full" ? 1 : 0];
  const [elementBytes, held] = [Math.max(recipe.compute_bytes, 2), shard(c, layout)];
  const routedBytes = (recipe.compute_bytes + elementBytes) / 2;
  const routedShare = c.experts ? 1 - c.experts.dense_layers / c.n_layers : 0;
  const data = (parameters, ranks) =>
    dataParallelBytes(recipe.weights * parameters, Math.min(recipe.gradients, 4) * parameters, ranks, layout.zero_stage, roundsOf(layout, count));
  const tensor = tensorParallelBytes(c, rows, t, { layers, elementBytes, sequenceParallel: layout.sequence_parallel, recomputation: layout.recomputation });
  const ring = contextParallelBytes(c, rows * context, context, layers, elementBytes, t);
  const routed = expertParallelBytes(c, rows / t, e, layers * routedShare, routedBytes);
  const ends = p > 1 ? Math.max(held.embedding, held.head) : held.embedding + held.head;
  const [all, others] = [context * d, Math.floor((context * d) / e)];
  return [
    { sent: tensor, ranks: t, stride: 1 },
    { sent: (3 + again) * ring, ranks: context, stride: t },
    { sent: (2 + again) * routed, ranks: e, stride: t * context, pattern: "all-to-all", copies: nodeCopies(c) },
    { sent: data(held.dense + ends, all), ranks: all, stride: t },
    { sent: data(held.experts, others), ranks: others, stride: t * e },
    { sent: 2 * layout.interleave * pipelineBytes(c, rows, elementBytes, t), ranks: p, stride: t * context * d, pattern: "neighbours" },
  ];
}

// Saved activations of a layer and micro-batch on a device.
function keptLayer(c, layout, recipe, tokens, recomputation = layout.recomputation) {
  return layerActivations(c, Math.floor(tokens / layout.context), layout.micro_batch, {
    tensor: layout.tensor, sequenceParallel: layout.sequence_parallel, recomputation, elementBytes: recipe.compute_bytes,
  });
}

// FLOPs of a training step on a device of the fullest stage, or with the head of the last: whichever has more to do.
function stageFlops(c, layout, { batch, tokens, causal = true }) {
  const once = forwardFlops(c, tokens, { batch, causal });
  const recomputed = { none: 0, selective: once.attention, full: once.layers }[layout.recomputation];
  const head = 3 * once.head;
  const layers = 3 * once.total + recomputed - head;
  const [full, last] = [false, true].map((end) => stageLayers(c, layout, { last: end }) / c.n_layers);
  const ranks = layout.data * layout.tensor * layout.context;
  const waits = bubble(layout.pipeline, microBatches(layout, batch), layout.interleave);
  const [share, ending] = last * layers + head > full * layers ? [last, head] : [full, 0];
  return {
    model: ((3 * once.total - head) * share + ending) / ranks, recomputed: (recomputed * share) / ranks, bubble: (layers * full * waits) / ranks,
  };
}

// Work of the busiest device in a training step.
function trainingWork(c, layout, recipe, { batch, tokens, node, causal = true }) {
  const [m, { data: d, tensor: t, context, pipeline: p }] = [microBatches(layout, batch), layout];
  if (tokens % context) throwInputError("the sequence does not divide evenly", { got: `${tokens} tokens among ${context} context-parallel ranks` });
  const { model, recomputed, bubble: idle } = stageFlops(c, layout, { batch, tokens, causal });
  const flops = model + recomputed + idle;
  const held = shard(c, layout);
  const ends = shardAt(held, p === 1, true);
  const count = ends + held.experts;
  const reads = layout.recomputation === "full" ? 3 : 2;
  const read = reads * (held.dense + held.experts) + (2 * c.vocab_size * c.d_model) / t;
  const kept = stageLayers(c, layout) * keptLayer(c, layout, recipe, tokens)
    + headActivations(c, Math.floor(tokens / context), layout.micro_batch, t, recipe.compute_bytes);
  const replicas = d * context;
  const optimised = ends / (layout.zero_stage ? replicas : 1) + held.experts / (layout.zero_stage ? replicas / layout.expert : 1);
  const memoryBytes = m * (recipe.weights * read + 2 * kept) + (2 * m - 1) * recipe.gradients * count
    + optimised * (2 * (recipe.master + recipe.moments) + recipe.gradients + recipe.weights);
  const [linkBytes, networkBytes] = splitAll(trainingTraffic(c, layout, recipe, batch, tokens), node);
  return { flops, memoryBytes, linkBytes, networkBytes };
}

// `sequences` of each data-parallel rank go once through all stages, `tokens` new tokens each after `past` cached ones.
function servingWork(c, layout, { sequences, tokens, past, weightBytes, cacheBytes, node }) {
  if (layout.context > 1) throwInputError("serving is bounded without context parallelism", { got: `${layout.context} ranks`, expected: "1" });
  for (const [name, bytes] of [["weight_bytes", weightBytes], ["cache_bytes", cacheBytes]]) {
    if (!(bytes > 0)) throwInputError(`${name} must be positive`, { got: bytes });
  }
  const { tensor: t, pipeline: p, expert: e } = layout;
  const [held, rows] = [shard(c, layout), sequences * tokens];
  const used = c.experts ? 1 - (1 - c.experts.active / c.experts.count) ** (rows * e) : 1;
  const stages = c.n_layers / stageLayers(c, layout);
  const weights = weightBytes * (stages * (held.dense + used * held.experts) + (c.vocab_size * c.d_model) / t);
  const cached = (sequences * (past + tokens) * cacheBytesPerToken(c, cacheBytes) * cacheCopies(c, t)) / t;
  const routedLayers = c.experts ? c.n_layers - c.experts.dense_layers : 0;
  const [linkBytes, networkBytes] = splitAll([
    { sent: tensorParallelBytes(c, rows, t, { layers: c.n_layers, elementBytes: 2, training: false }), ranks: t, stride: 1 },
    { sent: expertParallelBytes(c, rows / t, e, routedLayers, 2), ranks: e, stride: t, pattern: "all-to-all", copies: nodeCopies(c) },
    { sent: (p - 1) * pipelineBytes(c, rows, 2, t), ranks: p, stride: t * layout.data, pattern: "neighbours" },
  ], node);
  return { flops: (stepFlops(c, tokens, past) * sequences) / t, memoryBytes: weights + cached, linkBytes, networkBytes };
}

