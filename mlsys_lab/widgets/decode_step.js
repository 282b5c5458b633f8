// A decode step on a device's roofline: intensity of weights and attention, and how many sequences fit.

const DECODE_STYLE = `
svg .roof { fill: none; stroke: var(--ink); stroke-width: 2.4; }
svg .fitting { fill: none; stroke: var(--value); stroke-width: 9; opacity: 0.35; stroke-linecap: round; }
svg .step { fill: var(--value); stroke: var(--surface); stroke-width: 2; }
svg .part { fill: var(--surface); stroke: var(--gradient); stroke-width: 2.4; }
.row label { display: flex; gap: 8px; align-items: center; }
.verdict[data-bound="memory"] { color: var(--value); } .verdict[data-bound="compute"] { color: var(--gradient); }
`;

const BATCHES = [1, 2, ...Array.from({ length: 18 }, (_, i) => (i % 2 ? 4 : 3) * 2 ** Math.floor(i / 2))]; // to 1024
const CONTEXTS = { low: 7, high: 17, step: 0.25 }; // powers of two
const WIDTHS = [[2, "16 bits"], [1, "8 bits"], [0.5, "4 bits"]];

// One token for each of `batch` sequences of `context` tokens: time bound, arithmetic intensities, and bytes in memory.
function decodeStep(c, layout, machine, { batch, context, weightBytes, cacheBytes }) {
  const options = { sequences: batch, tokens: 1, past: context - 1, weightBytes, cacheBytes, node: machine.node };
  const work = servingWork(c, layout, options);
  const cached = batch * context * cacheBytesPerToken(c, cacheBytes);
  const attention = batch * forwardFlops(c, 1, { past: context - 1 }).attention;
  const weights = weightBytes * parameters(c).total;
  const oneCache = cached / batch;
  return {
    ...leastTime(work, machine),
    intensity: work.flops / work.memoryBytes,
    weightIntensity: (work.flops - attention) / (work.memoryBytes - cached),
    attentionIntensity: attention / cached,
    weights, cached, fitting: Math.max(0, Math.floor((machine.memory_bytes - weights) / oneCache)),
  };
}

function divisors(n) {
  return Array.from({ length: n }, (_, i) => i + 1).filter((one) => n % one === 0);
}

function render({ model, el }) {
  const { box, stop } = stage(el, model.get("title") ?? "A decoding step on the roofline", AXES_STYLE + DECODE_STYLE);
  const [presets, machines] = [model.get("presets"), model.get("machines")];
  let width = 0;

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const base = () => presets.find((one) => one.name === model.get("preset")) ?? presets[0];
  const machine = () => machines.find((one) => one.name === model.get("gpu")) ?? machines[0];
  const named = (list) => list.map((one) => [one.name, one.name]);
  const modelMenu = menu("Model", named(presets), (name) => change({ kv_heads: presets.find((one) => one.name === name).n_kv_heads, preset: name }));
  const gpuMenu = menu("GPU", named(machines), (name) => change({ gpu: name }));
  const headsMenu = menu("KV heads", [], (count) => change({ kv_heads: Number(count) }));
  const weightMenu = menu("Weights", WIDTHS, (bytes) => change({ weight_bytes: Number(bytes) }));
  const cacheMenu = menu("Cache", WIDTHS.slice(0, 2), (bytes) => change({ cache_bytes: Number(bytes) }));
  const batch = slide("Sequences", { min: 0, max: BATCHES.length - 1, step: 1 }, (i) => change({ batch: BATCHES[i] }));
  const context = slide("Context, tokens", { min: CONTEXTS.low, max: CONTEXTS.high, step: CONTEXTS.step },
    (exponent) => change({ context: Math.round(2 ** exponent) }));
  const picture = make("div");
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  box.append(
    make("div", { class: "row" }, ...[modelMenu, gpuMenu, headsMenu, weightMenu, cacheMenu].map((one) => one.label)),
    picture, batch.row, context.row, verdict, detail);

  const grouped = (x) => x.toLocaleString("en-US", { maximumFractionDigits: 0 });
  const short = (x) => number(Number(x.toPrecision(3)));

  function show() {
    if (!width) return;
    const [own, on] = [base(), machine()];
    const config = { ...own, n_kv_heads: model.get("kv_heads") };
    const sizes = {
      batch: model.get("batch"), context: model.get("context"),
      weightBytes: model.get("weight_bytes"), cacheBytes: model.get("cache_bytes"),
    };
    const now = decodeStep(config, model.get("degrees"), on, sizes);
    headsMenu.input.replaceChildren(...divisors(own.n_heads).map((count) =>
      make("option", { value: count, selected: count === config.n_kv_heads }, `${count}${count === own.n_kv_heads ? ", its own" : ""}`)));
    [modelMenu.input.value, gpuMenu.input.value] = [own.name, on.name];
    [weightMenu.input.value, cacheMenu.input.value] = [sizes.weightBytes, sizes.cacheBytes];
    batch.set(BATCHES.findLastIndex((one) => one <= sizes.batch), grouped(sizes.batch));
    context.set(Math.log2(sizes.context), grouped(sizes.context));
    const most = Math.min(now.fitting, BATCHES.at(-1));
    const reach = [1, most].filter(() => most).map((count) => decodeStep(config, model.get("degrees"), on, { ...sizes, batch: count }).intensity);
    picture.replaceChildren(drawing(on, now, reach));
    verdict.dataset.bound = now.binds;
    verdict.textContent = `At least ${si(now.time_s, "s")} per step: ${grouped(1 / now.time_s)} tokens/s per sequence, ${grouped(sizes.batch / now.time_s)} in total`;
    const fits = now.fitting >= sizes.batch ? `${grouped(now.fitting)} such sequences fit.` : now.fitting ? `Does not fit: ${grouped(now.fitting)} such sequences would.` : "Does not fit.";
    detail.textContent = `${now.binds}-bound by a factor of ${short(now.margin)}. Weights ${si(now.weights, "B")}, caches ${si(now.cached, "B")} of ${si(on.memory_bytes, "B")}: ${fits}`;
  }

  // `reach`: intensities of a step with one sequence and with as many as fit, or neither.
  function drawing(on, now, reach) {
    const height = Math.round(Math.max(290, Math.min(380, width * 0.5)));
    const [peak, bandwidth] = [on.peak_flops_per_s, on.memory_bytes_per_s];
    const across = logAxis({ low: 0.25, high: 8192, title: "FLOP for each byte read", word: (v) => number(v) });
    const up = logAxis({ low: 5e10, high: 5e15, title: "FLOP/s", word: (v) => si(v, "") });
    const area = plot({
      width, height, x: across, y: up,
      label: `Roofline of ${on.name}: the step at ${short(now.intensity)} FLOP/B, its weights at ${short(now.weightIntensity)}, attention at ${short(now.attentionIntensity)}; `
        + `the ridge is at ${short(peak / bandwidth)}`,
    });
    const rate = (intensity) => Math.min(peak, bandwidth * intensity);
    area.inside.append(curve(area, across, rate, { class: "roof" }, 400));
    if (reach.length) {
      const points = Array.from({ length: 41 }, (_, i) => reach[0] * (reach[1] / reach[0]) ** (i / 40));
      const path = points.map((v, i) => `${i ? "L" : "M"}${area.x(v).toFixed(1)} ${area.y(rate(v)).toFixed(1)}`);
      area.inside.prepend(draw("path", { class: "fitting", d: path.join(" ") }));
    }
    area.marks.append(area.text({ x: area.x(peak / bandwidth), y: area.y(peak) - 8, "text-anchor": "middle", class: "muted halo" }, `ridge ${short(peak / bandwidth)}`));
    const mark = (intensity, words, below) => {
      const [x, y] = [area.x(intensity), area.y(rate(intensity))];
      const atEnd = x > (area.x0 + area.x1) / 2;
      area.marks.append(
        draw("circle", { class: "part", cx: x, cy: y, r: 6 }),
        area.text({ x: x + (atEnd ? -4 : 10), y: y + below, "text-anchor": atEnd ? "end" : "start", class: "halo" }, words));
    };
    mark(now.weightIntensity, "weights", now.weightIntensity > now.attentionIntensity ? -14 : 24);
    mark(now.attentionIntensity, "attention", now.weightIntensity > now.attentionIntensity ? 24 : -14);
    area.marks.append(draw("circle", { class: "step", cx: area.x(now.intensity), cy: area.y(rate(now.intensity)), r: 8 }));
    return area.svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["preset", "gpu", "kv_heads", "batch", "context", "weight_bytes", "cache_bytes"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-decode_step", render);
export default { render };
