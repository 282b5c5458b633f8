// Memory, time and cost of a model on given devices, as in `mlsys_lab.flops.estimate`, with the same names.

function checkAmounts(c, tokens, price) {
  if (!Number.isInteger(tokens) || tokens < 1) {
    throwInputError("tokens of a sequence out of range", { got: Number.isNaN(tokens) ? "nothing" : tokens, expected: "a whole number, at least 1" });
  }
  if (c.position === "learned" && tokens > c.context) {
    throwInputError(`${c.name} has no positions for that many tokens`, { got: tokens, expected: `up to ${c.context}` });
  }
  if (price !== null && !(price >= 0 && price < Infinity)) throwInputError("a price cannot be so", { got: price, expected: "0 or more an hour and device" });
}

function sequencesOf(layout, batch) {
  if (!Number.isInteger(batch) || batch < 1 || batch % layout.data) {
    const wanted = `a multiple of ${layout.data} data-parallel ranks`;
    throwInputError("the batch does not divide evenly", { got: `${Number.isNaN(batch) ? "no" : batch} sequences`, expected: wanted });
  }
  return batch / layout.data;
}

function memoryUse(kinds) {
  const all = { weights: 0, gradients: 0, master: 0, moments: 0, gathered: 0, activations: 0, cache: 0, ...kinds };
  const total = Object.values(all).reduce((sum, bytes) => sum + bytes, 0);
  const largest = Object.keys(all).reduce((most, kind) => (all[kind] > all[most] ? kind : most));
  return { ...all, total, largest };
}

const TRAINING_EFFICIENCY = 0.65;
const SERVING_EFFICIENCY = 0.6;

// Bytes on the fullest of a pipeline's first, second and last stage.
function trainingMemory(c, layout, recipe, batch, tokens) {
  const [held, p, replicas] = [shard(c, layout), layout.pipeline, layout.data * layout.context];
  const [count, full] = [microBatches(layout, batch), stageLayers(c, layout)];
  const [kept, whole] = [layout.recomputation, "none"].map((kind) => keptLayer(c, layout, recipe, tokens, kind));
  const head = headActivations(c, Math.floor(tokens / layout.context), layout.micro_batch, layout.tensor, recipe.compute_bytes);
  const experts = states(held.experts, recipe, Math.floor(replicas / layout.expert), layout.zero_stage);
  // Experts that no other rank holds are whole already.
  const divided = (replicas > 1 ? held.dense : 0) + (replicas > layout.expert ? held.experts : 0);
  let gathered = layout.zero_stage === 3 ? (recipe.weights * divided) / full : 0;
  if (layout.interleave > 1 && layout.zero_stage >= 2) {
    gathered = ((recipe.gradients + (layout.zero_stage === 3 ? recipe.weights : 0)) * divided) / layout.interleave;
  }
  const stageMemory = (stage) => {
    const [first, last] = [stage === 0, stage === p - 1];
    const kinds = states(shardAt(held, first, last), recipe, replicas, layout.zero_stage);
    for (const kind of Object.keys(kinds)) kinds[kind] += experts[kind];
    const own = stageLayers(c, layout, { first: first && p > 1, last });
    const stack = inFlight(layout, stage, count) * own * kept + (whole - kept);
    return memoryUse({ ...kinds, gathered, activations: stack + (last ? head : 0) });
  };
  return [0, Math.min(1, p - 1), p - 1].map(stageMemory).reduce((most, one) => (one.total > most.total ? one : most));
}

// Bytes while `batch` sequences of `tokens` tokens are served.
function servingMemory(c, layout, batch, tokens, weightBytes, cacheBytes) {
  const [held, t, p] = [shard(c, layout), layout.tensor, layout.pipeline];
  const sequences = sequencesOf(layout, batch);
  const prompt = layout.micro_batch * tokens * (2 * c.d_model + mlpElements(c) / 2 / t) * 2;
  const cached = sequences * tokens * cacheBytesPerToken(c, cacheBytes) * cacheCopies(c, t);
  const ends = Math.max(shardAt(held, true, p === 1), shardAt(held, p === 1, true));
  return memoryUse({
    weights: weightBytes * (ends + held.experts), activations: prompt + ((sequences * c.vocab_size) / t) * 4,
    cache: ((cached / t) * stageLayers(c, layout)) / c.n_layers,
  });
}

function memoryOf(spec, layout) {
  const { config: c, batch, tokens } = spec;
  return spec.mode === "training"
    ? trainingMemory(c, layout, spec.recipe, batch, tokens)
    : servingMemory(c, layout, batch, tokens, spec.weight_bytes, spec.cache_bytes);
}

function trainingFigures({ config: c, machine, layout, recipe, batch, tokens, causal = true }) {
  const bound = leastTime(trainingWork(c, layout, recipe, { batch, tokens, node: machine.node, causal }), machine);
  const once = forwardFlops(c, tokens, { batch, causal });
  const model = 3 * once.total;
  const hardware = model + { none: 0, selective: once.attention, full: once.layers }[layout.recomputation];
  return {
    flops: { model, hardware },
    bounds: { step: bound },
    expected_s: { step: (bound.compute_s + bound.memory_s + bound.link_s + bound.network_s) / TRAINING_EFFICIENCY },
    tokens_per_s: { step: (batch * tokens) / bound.time_s },
    mfu: model / (bound.time_s * machine.peak_flops_per_s * deviceCount(layout)),
    expected_mfu: (TRAINING_EFFICIENCY * model)
      / ((bound.compute_s + bound.memory_s + bound.link_s + bound.network_s) * machine.peak_flops_per_s * deviceCount(layout)),
  };
}

function servingFigures({ config: c, machine, layout, batch, tokens, weight_bytes: weightBytes, cache_bytes: cacheBytes }) {
  const [sequences, p] = [sequencesOf(layout, batch), layout.pipeline];
  const shapes = { prefill: [layout.micro_batch, tokens, 0], decode: [Math.max(1, sequences / p), 1, tokens - 1] };
  const [bounds, flops] = [{}, {}];
  for (const [phase, [rows, fresh, past]] of Object.entries(shapes)) {
    const work = servingWork(c, layout, { sequences: rows, tokens: fresh, past, weightBytes, cacheBytes, node: machine.node });
    bounds[phase] = leastTime(work, machine);
    flops[phase] = stepFlops(c, fresh, past) * (phase === "prefill" ? layout.data * layout.micro_batch : batch);
  }
  const prompts = layout.data * p * layout.micro_batch * tokens;
  const expected = Object.fromEntries(Object.entries(bounds).map(([phase, bound]) => [phase, bound.time_s / SERVING_EFFICIENCY]));
  return { flops, bounds, expected_s: expected, tokens_per_s: { prefill: prompts / bounds.prefill.time_s, decode: batch / bounds.decode.time_s }, mfu: null, expected_mfu: null };
}

// Everything for one specification: mode, config, machine, layout, batch, tokens, price_per_hour (or null); a recipe and
// `causal` for training, weight_bytes and cache_bytes for serving. Throws one line for what cannot be.
function estimate(given) {
  const spec = { ...given, config: completed(given.config) };
  const { mode, config: c, machine, layout, price_per_hour: price } = spec;
  checkLayout(layout);
  checkAmounts(c, spec.tokens, price);
  const figures = mode === "training" ? trainingFigures(spec) : servingFigures(spec);
  const [held, count, single] = [shard(c, layout), parameters(c), layout.pipeline === 1];
  const memory = memoryOf(spec, layout);
  if (![memory.total, ...Object.values(figures.bounds).map((bound) => bound.time_s)].every(Number.isFinite)) {
    throwInputError("sizes too large to compute with", { expected: "fewer than 10³⁰⁰ FLOPs and bytes" });
  }
  const perSecond = (price * deviceCount(layout)) / 3600;
  const costs = Object.entries(figures.tokens_per_s).map(([phase, speed]) => [phase, (perSecond / speed) * 1e6]);
  return {
    mode, model: c.name, devices: deviceCount(layout), parameters: count.total, active_parameters: count.active,
    parameters_per_device: Math.max(shardAt(held, true, single), shardAt(held, single, true)) + held.experts,
    ...figures, memory, capacity_bytes: machine.memory_bytes, fits: memory.total <= machine.memory_bytes,
    cost_per_million_tokens: price === null ? null : Object.fromEntries(costs),
  };
}

// Seconds of a training run over its tokens and its cost (null without a price): the least by the bound, or at an MFU.
function trainingRun(found, tokens, mfu, price) {
  if (!(tokens > 0 && tokens < Infinity)) throwInputError("tokens of a training run out of range", { got: tokens, expected: "more than 0" });
  if (mfu !== null && !(mfu > 0 && mfu <= found.mfu)) {
    throwInputError("the MFU cannot be so", { got: `${Number((100 * mfu).toPrecision(3))} %`, expected: `more than 0 and at most the bound's ${Number((100 * found.mfu).toPrecision(3))} %` });
  }
  const time = (tokens / found.tokens_per_s.step) * (mfu === null ? 1 : found.mfu / mfu);
  return { time_s: time, cost: price === null ? null : (time / 3600) * found.devices * price };
}

// Layouts one change away that may need less memory a device, the least costly change first, as [words, layout].
function smallerLayouts(c, layout, training) {
  const changes = [];
  if (training) {
    if (layout.tensor > 1 && !layout.sequence_parallel) changes.push(["sequence parallelism", { sequence_parallel: true }]);
    if (layout.data * layout.context > 1) {
      for (let stage = layout.zero_stage + 1; stage < 4; stage++) changes.push([`ZeRO stage ${stage}`, { zero_stage: stage }]);
    }
    if (layout.micro_batch > 1) changes.push(["a micro-batch of 1", { micro_batch: 1 }]);
    if (layout.recomputation !== "full") changes.push(["full recomputation", { recomputation: "full" }]);
  }
  for (const times of [2, 4, 8]) {
    for (const [name, word] of [["tensor", "tensor-parallel ranks"], ["pipeline", "pipeline stages"]]) {
      changes.push([`${layout[name] * times} ${word}`, { [name]: layout[name] * times }]);
    }
  }
  return changes.map(([words, change]) => [words, { ...layout, ...change }]).filter(([, smaller]) => {
    try {
      checkDivision(c, smaller);
      return true;
    } catch {
      return false;
    }
  });
}

const MAX_CHANGES = 3;

// The layout that fits by the fewest changes, each made once at most, as [words, layout]; undefined where three do not do.
function nearestLayout(c, layout, fits, training) {
  const key = (one) => JSON.stringify(Object.keys(layout).map((name) => one[name]));
  let ways = [["", layout]];
  const seen = new Set([key(layout)]);
  for (let changes = 1; changes <= MAX_CHANGES; changes++) {
    const further = [];
    for (const [words, one] of ways) {
      for (const [word, smaller] of smallerLayouts(c, one, training)) {
        const changed = Object.keys(layout).filter((name) => smaller[name] !== layout[name]).length;
        if (changed !== changes || seen.has(key(smaller))) continue;
        seen.add(key(smaller));
        further.push([words ? `${words}, ${word}` : word, smaller]);
      }
    }
    ways = further;
    const found = ways.find(([, one]) => {
      try {
        return fits(one);
      } catch {
        return false;
      }
    });
    if (found) return found;
  }
  return undefined;
}

