// The roofline model (Williams et al., 2009): no program runs faster than the lower of peak arithmetic and bandwidth × intensity.

const ROOFLINE_STYLE = `
.controls { margin-bottom: 8px; }
.controls label { display: flex; gap: 8px; align-items: center; }
@media (max-width: 560px) {
  .controls label { flex: 1 1 100%; justify-content: space-between; }
  .controls select { flex: 0 1 62%; }
}
.sliders { display: grid; grid-template-columns: auto minmax(0, 1fr) 4.4em; gap: 4px 12px; align-items: center; margin-top: 8px; }
.sliders output { text-align: right; }
.sliders input { min-height: 30px; width: 100%; margin: 0; }
.verdict { font-size: 1.12em; font-weight: 600; margin: 10px 0 2px; }
.verdict[data-bound="memory"] { color: var(--value); } .verdict[data-bound="compute"] { color: var(--gradient); }
.detail { color: var(--muted); margin: 0; }
svg .grid { stroke: var(--line); stroke-width: 1; opacity: 0.6; }
svg .axis { stroke: var(--muted); stroke-width: 1.2; }
svg .roof { fill: none; stroke: var(--ink); stroke-width: 3; stroke-linejoin: round; }
svg .other { fill: none; stroke: var(--muted); stroke-width: 1.2; opacity: 0.5; }
svg .memory { fill: var(--value); opacity: 0.12; } svg .compute { fill: var(--gradient); opacity: 0.12; }
svg .drop { stroke: var(--muted); stroke-width: 1.2; stroke-dasharray: 4 4; }
svg .dot { stroke: var(--surface); stroke-width: 2; } svg .dot.memory-point { fill: var(--value); } svg .dot.compute-point { fill: var(--gradient); }
svg .measured { fill: var(--raised); stroke: var(--ink); stroke-width: 2; }
svg .muted { fill: var(--muted); } svg .halo { paint-order: stroke; stroke: var(--surface); stroke-width: 6; stroke-linejoin: round; }
`;

// Sizes that the sliders stop at: 1, 2, 3, 4, 6, 8, 12, …, 16384.
const SIZES = [1, 2, ...Array.from({ length: 26 }, (_, i) => (i % 2 ? 4 : 3) * 2 ** Math.floor(i / 2))];

const FORMAT_BYTES = { fp64: 8, fp32: 4, tf32: 4, bf16: 2, fp16: 2, fp8: 1, int8: 1, fp4: 0.5, int4: 0.5 };

// What a model would be computed in on a device that lacks the precision asked for, the first that there is.
const USUAL = ["bf16", "fp16", "tf32", "fp32"];

// (m,k)·(k,n): 2mnk FLOPs; each matrix crosses the memory bus once, the least that any program can move.
function matmul(m, n, k, elementBytes) {
  return { flops: 2 * m * n * k, bytes: (m * k + k * n + m * n) * elementBytes };
}

// The least time for this work, what bounds it, and the share of peak that it can then reach.
function bound({ flops, bytes }, peak, bandwidth) {
  const time = Math.max(flops / peak, bytes / bandwidth);
  return {
    intensity: flops / bytes, ridge: peak / bandwidth, time, rate: flops / time, fraction: flops / time / peak,
    limit: flops / peak >= bytes / bandwidth ? "compute" : "memory",
  };
}

function render({ model, el }) {
  const devices = model.get("devices");
  const { box, stop } = stage(el, model.get("title") ?? "Roofline", ROOFLINE_STYLE);
  let width = 0;
  const device = () => devices.find((one) => one.name === model.get("device")) ?? devices[0];
  const precision = () => [model.get("precision"), ...USUAL, ...Object.keys(device().peaks)].find((one) => one in device().peaks);

  const put = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const deviceMenu = make("select", { change: () => put("device", deviceMenu.value) });
  deviceMenu.append(...devices.map((one) => make("option", { value: one.name }, one.name)));
  const precisionMenu = make("select", { change: () => put("precision", precisionMenu.value) });
  const workMenu = make("select", { change: () => put("work", workMenu.value) });
  workMenu.append(make("option", { value: "matmul" }, "matrix multiply"), make("option", { value: "intensity" }, "any, by its intensity"));
  const sliders = make("div", { class: "sliders" });
  const picture = make("div");
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  box.append(
    make("div", { class: "row controls" },
      make("label", {}, "Device", deviceMenu), make("label", {}, "Precision", precisionMenu), make("label", {}, "Work", workMenu)),
    picture, verdict, detail, sliders,
  );

  const nearest = (value) => SIZES.reduce((best, size, i) => (Math.abs(size - value) < Math.abs(SIZES[best] - value) ? i : best), 0);

  function slider(name, label, range, text, act) {
    const shown = make("output", {}, text);
    const input = make("input", { type: "range", "aria-label": label, "aria-valuetext": text, ...range, input: () => act(Number(input.value)) });
    return { name, input, shown, row: [make("span", {}, label), input, shown] };
  }

  let rows = [];
  function layOutSliders() {
    rows = model.get("work") === "intensity"
      ? [slider("intensity", "FLOP per byte", { min: -4, max: 14, step: 0.125 }, "", (v) => put("intensity", 2 ** v))]
      : [["m", "rows m"], ["n", "columns n"], ["k", "inner k"]].map(([name, label]) =>
          slider(name, label, { min: 0, max: SIZES.length - 1, step: 1 }, "", (v) => put(name, SIZES[v])));
    sliders.replaceChildren(...rows.flatMap((one) => one.row));
  }

  function work() {
    if (model.get("work") === "intensity") return { flops: model.get("intensity"), bytes: 1 };
    return matmul(model.get("m"), model.get("n"), model.get("k"), FORMAT_BYTES[precision()]);
  }

  let laidOut = null;
  function show() {
    if (!width) return;
    if (laidOut !== model.get("work")) layOutSliders();
    laidOut = model.get("work");
    for (const { name, input, shown } of rows) {
      const value = model.get(name);
      input.value = name === "intensity" ? Math.log2(value) : nearest(value);
      shown.textContent = number(value);
      input.setAttribute("aria-valuetext", number(value));
    }
    precisionMenu.replaceChildren(...Object.keys(device().peaks).map((one) => make("option", { value: one }, one)));
    [deviceMenu.value, precisionMenu.value, workMenu.value] = [device().name, precision(), model.get("work")];
    const [peak, bandwidth] = [device().peaks[precision()], device().bandwidth];
    const task = work();
    const point = bound(task, peak, bandwidth);
    picture.replaceChildren(drawing(peak, bandwidth, point));
    verdict.dataset.bound = point.limit;
    verdict.textContent = `${point.limit}-bound: ${number(Number((100 * point.fraction).toPrecision(2)))} % of peak`;
    const balance = `${number(Number(point.intensity.toPrecision(3)))} FLOP/B against a ridge of ${number(Number(point.ridge.toPrecision(3)))}`;
    detail.textContent = model.get("work") === "intensity"
      ? `${balance}; at most ${si(point.rate, "FLOP/s")}.`
      : `${si(task.flops, "FLOP")} over ${si(task.bytes, "B")} is ${balance}; at least ${si(point.time, "s")}, at most ${si(point.rate, "FLOP/s")}.`;
  }

  function drawing(peak, bandwidth, point) {
    const height = Math.round(Math.max(290, Math.min(400, width * 0.56)));
    const edge = { left: 62, right: 14, top: 16, bottom: 46 };
    const marks = model.get("points") ?? [];
    const top = Math.max(...devices.flatMap((one) => Object.values(one.peaks))) * 2;
    // Axes are the same for every device, so that a change of device moves the roof and not the scale.
    const low = Math.min(...devices.map((one) => one.bandwidth)) / 16;
    const xs = [Math.log10(1 / 16), Math.log10(16384)];
    const ys = [Math.floor(Math.log10(low)), Math.log10(top)];
    const x = (value) => edge.left + ((Math.log10(value) - xs[0]) / (xs[1] - xs[0])) * (width - edge.left - edge.right);
    const y = (value) => height - edge.bottom - ((Math.log10(value) - ys[0]) / (ys[1] - ys[0])) * (height - edge.top - edge.bottom);
    const [x0, x1, y0] = [x(10 ** xs[0]), x(10 ** xs[1]), y(10 ** ys[0])];
    const ridge = peak / bandwidth;
    const floor = Math.max((10 ** ys[0]) / bandwidth, 10 ** xs[0]);
    const roof = (p) => {
      return `M${x(floor)} ${y(floor * bandwidth)} L${x(p / bandwidth)} ${y(p)} L${x1} ${y(p)}`;
    };
    const picture = draw("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": `Roofline of ${device().name}, ${precision()}: ${si(bandwidth, "B/s")} up to ${number(Number(ridge.toPrecision(3)))} FLOP/B, then ${si(peak, "FLOP/s")}`,
    });
    const text = (attributes, ...words) => draw("text", { "font-size": 13, ...attributes }, ...words);
    for (let e = Math.ceil(xs[0]); e <= xs[1]; e++) {
      picture.append(
        draw("line", { class: "grid", x1: x(10 ** e), x2: x(10 ** e), y1: edge.top, y2: y0 }),
        text({ x: x(10 ** e), y: y0 + 18, "text-anchor": "middle", class: "muted" }, number(10 ** e)));
    }
    for (let e = Math.ceil(ys[0]); e <= ys[1]; e++) {
      picture.append(
        draw("line", { class: "grid", x1: x0, x2: x1, y1: y(10 ** e), y2: y(10 ** e) }),
        text({ x: x0 - 7, y: y(10 ** e) + 4.5, "text-anchor": "end", class: "muted" }, si(10 ** e, "")));
    }
    picture.append(
      draw("path", { class: "memory", d: `M${x(floor)} ${y0} L${x(floor)} ${y(floor * bandwidth)} L${x(ridge)} ${y(peak)} L${x(ridge)} ${y0}Z` }),
      draw("path", { class: "compute", d: `M${x(ridge)} ${y0} L${x(ridge)} ${y(peak)} L${x1} ${y(peak)} L${x1} ${y0}Z` }),
      draw("line", { class: "axis", x1: x0, x2: x1, y1: y0, y2: y0 }),
      draw("line", { class: "axis", x1: x0, x2: x0, y1: edge.top, y2: y0 }),
      text({ x: (x0 + x1) / 2, y: height - 8, "text-anchor": "middle" }, "arithmetic intensity, FLOP/B"),
      text({ x: 13, y: (edge.top + y0) / 2, "text-anchor": "middle", transform: `rotate(-90 13 ${(edge.top + y0) / 2})` }, "FLOP/s"),
    );
    // The chosen peak is named first; others where there is room for a line of text above theirs.
    const named = [y(peak)];
    const otherNames = [];
    for (const other of new Set(Object.values(device().peaks))) {
      if (other === peak) continue;
      picture.append(draw("path", { class: "other", d: roof(other) }));
      if (named.some((place) => Math.abs(place - y(other)) < 17)) continue;
      named.push(y(other));
      const names = Object.keys(device().peaks).filter((name) => device().peaks[name] === other);
      otherNames.push(text({ x: x1 - 4, y: y(other) - 5, "text-anchor": "end", "font-size": 12, class: "muted halo" }, names.join(", ")));
    }
    const [px, py] = [Math.min(x1, Math.max(x0, x(point.intensity))), y(point.rate)];
    const seen = Math.min(y0, py);
    picture.append(
      draw("line", { class: "drop", x1: px, x2: px, y1: seen, y2: y0 }),
      draw("line", { class: "drop", x1: x0, x2: px, y1: seen, y2: seen }),
      ...otherNames,
      // High enough for a point on the roof, which would cover it.
      text({ x: x1 - 4, y: y(peak) - 14, "text-anchor": "end", class: "halo" }, `${precision()} ${si(peak, "FLOP/s")}`),
      draw("path", { class: "roof", d: roof(peak) }),
      text({ x: x(ridge), y: y0 - 8, "text-anchor": "middle", class: "halo" }, `ridge ${number(Number(ridge.toPrecision(3)))}`),
      ...marks.flatMap((mark) => [
        draw("circle", { class: "measured", cx: x(mark.intensity), cy: y(mark.flops_per_s), r: 5 }),
        text({ x: x(mark.intensity) + 9, y: y(mark.flops_per_s) + 14, class: "halo" }, mark.label),
      ]),
      draw("circle", { class: `dot ${point.limit}-point`, cx: px, cy: seen, r: 8 }),
    );
    return picture;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["device", "precision", "work", "m", "n", "k", "intensity", "points"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-roofline", render);
export default { render };
