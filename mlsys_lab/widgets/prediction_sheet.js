// The capstone's prediction sheet: counts and seconds of a training step on ranks that take turns on one core.

const SHEET_STYLE = `
.numbers { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 2px 16px; margin: 12px 0 0; }
.numbers dt { color: var(--muted); } .numbers dd { margin: 0; text-align: right; white-space: nowrap; }
svg .bound { fill: var(--value); } svg .part { fill: var(--gradient); } svg .total { fill: var(--muted); }
svg text { font-size: 13px; }
`;

const HEAD_DIM = 32; // a model that is wider has more heads
const GATED_PER_WIDTH = 2.75; // of the MLP's inner size, the capstone's own
const SHEET_SLIDERS = [
  ["n_layers", "Layers", { min: 1, max: 12, step: 1 }, String],
  ["d_model", "Hidden size", { min: 64, max: 512, step: 32 }, String],
  ["seq_len", "Tokens per sequence", { min: 32, max: 512, step: 32 }, String],
  ["ranks", "Ranks", { min: 1, max: 16, step: 1 }, String],
  ["peak_fraction", "Products, fraction of peak", { min: 0.05, max: 1, step: 0.05 }, (x) => `${Math.round(100 * x)} %`],
  ["unit_ns", "Elementwise work", { min: 0, max: 10, step: 0.1 }, (x) => `${number(x)} ns a unit`],
];

function capstoneConfig(given) {
  const [heads, width] = [given.d_model / HEAD_DIM, given.d_model];
  return completed({ ...given.config, n_layers: given.n_layers, d_model: width, n_heads: heads, n_kv_heads: heads, head_dim: HEAD_DIM, d_ff: GATED_PER_WIDTH * width });
}

// Units of elementwise work in a training step of `batch` sequences, as lab 05 counts them.
function elementwiseUnits(c, tokens, batch, count) {
  const [norm, heads, scores] = [3 * c.d_model, c.n_heads * c.head_dim, c.n_heads * tokens];
  const layer = 2 * norm + 4 * heads + 5 * scores + c.d_ff + 2 * c.d_model;
  return batch * tokens * (c.n_layers * layer + norm + 3 * c.d_model + 4 * c.vocab_size) + count;
}

function ringSeconds(ranks, bytes, { latency_s: latency, bytes_per_s: bandwidth }) {
  return 2 * (ranks - 1) * latency + (2 * (ranks - 1) * bytes) / ranks / bandwidth;
}

// Numbers of the sheet by the keys of `capstone.sheet.COSTS`, with `bound_s` and `cache_token_bytes`.
function sheet(given) {
  const { seq_len: T, batch, ranks: p, peak_flops_per_s: peak } = given;
  const c = capstoneConfig(given);
  const count = parameters(c).total;
  const kept = states(count, { weights: 4, gradients: 4, master: 4, moments: 8 }, p, 1);
  const flops = 3 * forwardFlops(c, T, { batch }).total;
  const rest = batch % p;
  const units = rest * elementwiseUnits(c, T, Math.ceil(batch / p), count) + (p - rest) * elementwiseUnits(c, T, Math.floor(batch / p), count);
  const products = flops / (given.peak_fraction * peak);
  const communication = p * (ringSeconds(p, 4 * count, given) + 3 * ringSeconds(p, 4, given));
  return {
    training_flops: flops, parameters: count,
    weight_bytes: kept.weights, gradient_bytes: kept.gradients, master_bytes: kept.master, optimizer_bytes: kept.moments,
    gradient_bytes_sent: 4 * (p - 1) * count, weight_bytes_sent: 4 * (p - 1) * count, gradient_messages: p * (p - 1),
    cache_token_bytes: cacheBytesPerToken(c, 4),
    bound_s: flops / peak, products_s: products, elementwise_s: 1e-9 * given.unit_ns * units, communication_s: communication,
    training_step_s: products + 1e-9 * given.unit_ns * units + communication,
  };
}

// [name, from, to, class] of each bar of the waterfall.
function bars(got) {
  const computed = got.products_s + got.elementwise_s;
  return [
    ["products at peak", 0, got.bound_s, "bound"],
    ["products at their rate", got.bound_s, got.products_s, "part"],
    ["elementwise work", got.products_s, computed, "part"],
    ["communication", computed, got.training_step_s, "part"],
    ["a step, predicted", 0, got.training_step_s, "total"],
  ];
}

function render({ model, el }) {
  const { box, stop } = stage(el, model.get("title") ?? "Prediction sheet of a training step", AXES_STYLE + SHEET_STYLE);
  const names = SHEET_SLIDERS.map(([name]) => name);
  const fixed = ["config", "batch", "latency_s", "bytes_per_s", "peak_flops_per_s"];
  let width = 0;

  const sliders = SHEET_SLIDERS.map(([name, label, range]) => slide(label, range, (value) => {
    model.set(name, value);
    model.save_changes();
  }));
  const picture = make("div");
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const numbers = make("dl", { class: "numbers" });
  box.append(picture, ...sliders.map(({ row }) => row), verdict, numbers);

  function show() {
    if (!width) return;
    const given = Object.fromEntries([...names, ...fixed].map((name) => [name, model.get(name)]));
    SHEET_SLIDERS.forEach(([name, , , word], i) => sliders[i].set(given[name], word(given[name])));
    const got = sheet(given);
    picture.replaceChildren(drawing(got));
    verdict.textContent = `${duration(got.training_step_s)} a step, ${number(Number((got.training_step_s / got.bound_s).toPrecision(2)))} times the bound`;
    const rows = [
      ["Parameters", amount(got.parameters)],
      [`A step of ${given.batch} sequences`, si(got.training_flops, "FLOP")],
      ["Weights, gradients (rank 0)", si(got.weight_bytes + got.gradient_bytes, "B")],
      ["Optimizer (rank 0)", si(got.master_bytes + got.optimizer_bytes, "B")],
      ["Reduce-scatter, all ranks", si(got.gradient_bytes_sent, "B")],
      ["All-gather, all ranks", si(got.weight_bytes_sent, "B")],
      ["Messages of each", String(got.gradient_messages)],
      ["KV cache of a token", si(got.cache_token_bytes, "B")],
    ];
    numbers.replaceChildren(...rows.flatMap(([what, value]) => [make("dt", {}, what), make("dd", {}, value)]));
  }

  function drawing(got) {
    const [row, left, all] = [46, 4, bars(got)];
    const height = all.length * row;
    const scale = Math.max(60, width - left - 84) / Math.max(...all.map(([, , to]) => to));
    const svg = draw("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": `From the bound to a step: ${all.map(([name, from, to]) => `${name} ${duration(to - from)}`).join(", ")}`,
    });
    all.forEach(([name, from, to, kind], i) => {
      const y = i * row;
      const right = left + scale * to;
      svg.append(
        draw("text", { class: "muted", x: left, y: y + 13 }, name),
        draw("rect", { class: kind, x: left + scale * from, y: y + 19, width: Math.max(1, scale * (to - from)), height: 18 }),
        draw("text", { x: right + 6, y: y + 33 }, duration(to - from)));
    });
    return svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, names, show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-prediction_sheet", render);
export default { render };
