// Ways to divide a training step among devices, ranked as `mlsys_lab.flops.planner` ranks them, under the same names.

const LEAST_CONTEXT_TOKENS = 4096;
const MOST_MICRO_BATCH = 4;
const INTERLEAVES = [1, 2, 4, 8];
const PLAIN_LAYOUT = {
  data: 1, tensor: 1, pipeline: 1, expert: 1, context: 1, zero_stage: 0, sequence_parallel: false, recomputation: "none", micro_batch: 1, interleave: 1,
};

const upTo = (most) => Array.from({ length: Math.max(0, Math.floor(most)) }, (_, i) => i + 1);

// Every division of the devices that model and batch allow, with all other settings plain.
function layoutGrids(c, node, { devices, batch, tokens, given }) {
  const ways = (name, size, most) => (name in given ? [given[name]] : upTo(Math.min(size, most))).filter((k) => size % k === 0);
  const grids = [];
  for (const tensor of ways("tensor", devices, node)) {
    for (const pipeline of ways("pipeline", devices / tensor, c.n_layers)) {
      for (const context of ways("context", devices / (tensor * pipeline), Math.max(1, Math.floor(tokens / LEAST_CONTEXT_TOKENS)))) {
        const data = devices / (tensor * pipeline * context);
        if ((given.data ?? data) !== data || batch % data || tokens % context) continue;
        for (const expert of ways("expert", data, c.experts ? c.experts.count : 1)) {
          const grid = { ...PLAIN_LAYOUT, data, tensor, pipeline, context, expert };
          try {
            checkDivision(c, grid);
          } catch {
            continue;
          }
          grids.push(grid);
        }
      }
    }
  }
  return grids;
}

// Settings of a grid, as lists of layouts that differ in the ZeRO stage only, the lowest first.
function layoutSettings(grid, c, { batch, tokens, given }) {
  const options = (name, values) => (name in given ? [given[name]] : values);
  const [sequences, p, own] = [batch / grid.data, grid.pipeline, tokens / grid.context];
  const stages = options("zero_stage", grid.data * grid.context > 1 ? [1, 2, 3] : [0]);
  const settings = [];
  for (const micro of options("micro_batch", upTo(MOST_MICRO_BATCH))) {
    if (sequences % micro) continue;
    for (const interleave of options("interleave", INTERLEAVES)) {
      const whole = p > 1 && (sequences / micro) % p === 0 && p * interleave <= c.n_layers + 2;
      if (interleave > 1 && !whole) continue;
      for (const recomputation of options("recomputation", ["none", "full"])) {
        for (const divided of options("sequence_parallel", grid.tensor > 1 ? [false, true] : [false])) {
          if (divided && own % grid.tensor) continue;
          const one = { ...grid, micro_batch: micro, interleave, recomputation, sequence_parallel: divided };
          settings.push(stages.map((zero) => ({ ...one, zero_stage: zero })));
        }
      }
    }
  }
  return settings;
}

// Plans for one specification: config, machine, recipe, devices, batch, tokens, causal, and `given` fields of the layout.
// The fastest that fit come first, misfits last. Throws one line for what cannot be.
function plan(spec) {
  const c = completed(spec.config);
  const { machine, recipe, devices, batch, tokens, given, causal = true } = spec;
  checkLayout({ ...PLAIN_LAYOUT, data: given.expert ?? 1, pipeline: given.interleave ?? 1, ...given });
  for (const [name, count] of [["devices", devices], ["batch", batch]]) {
    if (!Number.isInteger(count) || count < 1) throwInputError(`${name} out of range`, { got: Number.isNaN(count) ? "nothing" : count, expected: "a whole number, at least 1" });
  }
  checkAmounts(c, tokens, null);
  const model = 3 * forwardFlops(c, tokens, { batch, causal }).total;

  function evaluate(layout, memory) {
    const bound = leastTime(trainingWork(c, layout, recipe, { batch, tokens, node: machine.node, causal }), machine);
    const flops = stageFlops(c, layout, { batch, tokens, causal });
    const peak = machine.peak_flops_per_s;
    const time = bound.compute_s + bound.memory_s + bound.link_s + bound.network_s;
    const [recomputation, waits] = [flops.recomputed / peak, flops.bubble / peak];
    return {
      layout, memory, time_s: time, least_s: bound.time_s, expected_s: time / TRAINING_EFFICIENCY,
      mfu: model / (time * peak * devices), best_mfu: model / (bound.time_s * peak * devices),
      expected_mfu: (TRAINING_EFFICIENCY * model) / (time * peak * devices),
      missing_bytes: Math.max(0, memory.total - machine.memory_bytes),
      parts_s: {
        model: bound.compute_s - recomputation - waits, recomputation, bubble: waits, memory: bound.memory_s, link: bound.link_s, network: bound.network_s,
      },
    };
  }

  // The fastest settings that fit; else those that need least memory.
  function settle(grid) {
    let [fastest, least] = [];
    for (const stages of layoutSettings(grid, c, spec)) {
      for (const layout of stages) {
        const memory = trainingMemory(c, layout, recipe, batch, tokens);
        if (!least || memory.total < least[1].total) least = [layout, memory];
        if (memory.total > machine.memory_bytes) continue;
        const one = evaluate(layout, memory);
        if (!fastest || one.time_s < fastest.time_s) fastest = one;
        break; // a higher stage sends no less
      }
    }
    return fastest ?? (least && evaluate(...least));
  }

  const plans = layoutGrids(c, machine.node, spec).map(settle).filter(Boolean);
  if (!plans.length) {
    const so = Object.entries(given).map(([name, value]) => `, ${name} ${value}`).join("");
    throwInputError(`no layout divides ${c.name} so`, {
      got: `${devices} devices, ${batch} sequences of ${tokens} tokens${so}`, help: "try a batch or devices in powers of two",
    });
  }
  return plans.sort((a, b) => a.missing_bytes - b.missing_bytes || a.time_s - b.time_s);
}

// The part in which a plan takes most longer than the best one, and the seconds of that part alone.
function lossOf(one, best) {
  const extra = Object.keys(one.parts_s).map((part) => [part, one.parts_s[part] - best.parts_s[part]]);
  return extra.reduce((most, next) => (next[1] > most[1] ? next : most));
}

