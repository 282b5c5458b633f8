// Predicted time of all-reduce algorithms by array size: lines of latency plus bytes, and their crossovers.

const ALL_REDUCE_STYLE = `
.picture { touch-action: pan-y; cursor: ew-resize; }
svg .algorithm { stroke: var(--muted); stroke-width: 1.2; opacity: 0.5; }
svg .fastest { stroke: var(--value); stroke-width: 4; }
svg .chosen { stroke: var(--gradient); stroke-width: 2.4; stroke-dasharray: 7 4; }
svg .at { stroke: var(--ink); stroke-width: 1.4; }
svg .dot { fill: var(--value); stroke: var(--surface); stroke-width: 2; }
svg .cross { fill: var(--surface); stroke: var(--ink); stroke-width: 2; }
.legend { color: var(--muted); font-size: 0.87em; margin: 6px 0 0; display: flex; flex-wrap: wrap; gap: 4px 18px; }
.legend span { display: inline-flex; gap: 7px; align-items: center; }
.legend svg { margin: 0; }
.row label { display: flex; gap: 8px; align-items: center; }
.row select { max-width: 15em; }
`;

const SIZES = { low: 8, high: 33, step: 0.5 }; // powers of two

function timeOf(algorithm, size) {
  return algorithm.latency_s + algorithm.s_per_byte * size;
}

// The fastest algorithm for every size: [{ algorithm, from }], each from the size in bytes at which it becomes the fastest.
function fastestBySize(algorithms) {
  // Compared at one byte, because equal latencies may differ by rounding.
  let algorithm = algorithms.reduce((a, b) => (timeOf(b, 1) < timeOf(a, 1) ? b : a));
  const out = [{ algorithm, from: 0 }];
  for (;;) {
    const next = algorithms
      .filter((other) => other.s_per_byte < algorithm.s_per_byte * (1 - 1e-9))
      .map((other) => ({ algorithm: other, from: (other.latency_s - algorithm.latency_s) / (algorithm.s_per_byte - other.s_per_byte) }))
      .sort((a, b) => a.from - b.from || a.algorithm.s_per_byte - b.algorithm.s_per_byte)[0];
    if (!next) return out;
    out.push(next);
    algorithm = next.algorithm;
  }
}

function title(algorithm) {
  return algorithm.name.replaceAll("_", "-");
}

function bytes(x) {
  const index = Math.min(3, Math.max(0, Math.floor(Math.log2(x) / 10)));
  return `${number(Number((x / 1024 ** index).toPrecision(3)))} ${["B", "KiB", "MiB", "GiB"][index]}`;
}

function render({ model, el }) {
  const { box, stop } = stage(el, model.get("title") ?? "Time of an all-reduce", AXES_STYLE + ALL_REDUCE_STYLE);
  const topologies = model.get("topologies");
  let width = 0;
  let area = null;

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const topology = () => topologies.find((one) => one.name === model.get("topology"));
  const sizes = () => topology().sizes;
  const algorithms = () => (sizes().find((one) => one.ranks === model.get("ranks")) ?? sizes()[0]).algorithms;
  const resize = (exponent) => change({ size_bytes: 2 ** Math.min(SIZES.high, Math.max(SIZES.low, exponent)) });

  const topologyMenu = menu("Topology", topologies.map((one) => [one.name, one.name]), (name) => {
    const counts = topologies.find((one) => one.name === name).sizes.map((one) => one.ranks);
    const near = counts.reduce((a, b) => (Math.abs(b - model.get("ranks")) < Math.abs(a - model.get("ranks")) ? b : a));
    change({ ranks: near, topology: name });
  });
  const ranksMenu = menu("Ranks", [], (count) => change({ ranks: Number(count) }));
  const algorithmMenu = menu("Compare", [], (name) => change({ algorithm: name }));
  const size = slide("Array size in bytes", { min: SIZES.low, max: SIZES.high, step: SIZES.step }, resize);
  const picture = make("div", { class: "picture" });
  const sample = (kind, words) =>
    make("span", {}, draw("svg", { width: 30, height: 8, "aria-hidden": "true" }, draw("path", { class: kind, d: "M0 4h30" })), words);
  const legend = make("p", { class: "legend" },
    sample("fastest", "fastest at each size"), sample("chosen", "algorithm compared"), sample("algorithm", "all others"));
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  box.append(make("div", { class: "row" }, topologyMenu.label, ranksMenu.label, algorithmMenu.label), picture, legend, size.row, verdict, detail);

  const drag = (event) => {
    if (area && event.buttons & 1) resize(Math.log2(area.xValue(event.clientX - area.svg.getBoundingClientRect().left)));
  };
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    drag(event);
  });
  picture.addEventListener("pointermove", drag);

  function options(input, values, chosen) {
    input.replaceChildren(...values.map(([value, words]) => make("option", { value, selected: value === chosen }, String(words))));
  }

  function show() {
    if (!width) return;
    const [all, n] = [algorithms(), model.get("size_bytes")];
    const chosen = all.find((one) => one.name === model.get("algorithm")) ?? all.find((one) => one.name === "ring");
    topologyMenu.input.value = model.get("topology");
    options(ranksMenu.input, sizes().map((one) => [one.ranks, one.ranks]), model.get("ranks"));
    options(algorithmMenu.input, all.map((one) => [one.name, title(one)]), chosen.name);
    size.set(Math.log2(n), bytes(n));
    const fastest = fastestBySize(all);
    const best = fastest.findLast((one) => one.from <= n).algorithm;
    picture.replaceChildren(drawing(all, fastest, best, chosen, n));
    verdict.textContent = `${title(best)}: ${si(timeOf(best, n), "s")} in ${best.steps} steps`;
    const times = number(Number((timeOf(chosen, n) / timeOf(best, n)).toPrecision(3)));
    const changes = fastest.slice(1).map((one) => `${title(one.algorithm)} from ${bytes(one.from)}`);
    detail.textContent = `${title(chosen)} takes ${si(timeOf(chosen, n), "s")}, ${times} times as long. `
      + (changes.length ? `Fastest: ${title(fastest[0].algorithm)}, then ${changes.join(", ")}.` : `${title(best)} is fastest at every size.`);
  }

  function drawing(all, fastest, best, chosen, n) {
    const height = Math.round(Math.max(290, Math.min(400, width * 0.52)));
    const [low, high] = [2 ** SIZES.low, 2 ** SIZES.high];
    const times = [low, high].flatMap((v) => fastest.map((one) => timeOf(one.algorithm, v)));
    const across = logAxis({ low, high, base: 2, title: "array size, bytes", word: (v) => bytes(v).replace(" ", "") });
    const up = logAxis({ low: Math.min(...times) / 2, high: Math.max(...times) * 3, title: "time", word: (v) => si(v, "s") });
    area = plot({
      width, height, x: across, y: up, edge: { left: 68 },
      label: `Time of each all-reduce algorithm against the array's bytes; at ${bytes(n)} the fastest is ${title(best)}`,
    });
    for (const algorithm of all) area.inside.append(curve(area, across, (v) => timeOf(algorithm, v), { class: "algorithm" }));
    area.inside.append(
      curve(area, across, (v) => Math.min(...all.map((algorithm) => timeOf(algorithm, v))), { class: "fastest" }),
      curve(area, across, (v) => timeOf(chosen, v), { class: "chosen" }),
      draw("line", { class: "at", x1: area.x(n), x2: area.x(n), y1: area.y1, y2: area.y0 }));
    for (const { algorithm, from } of fastest.slice(1)) {
      if (from > low && from < high) area.marks.append(draw("circle", { class: "cross", cx: area.x(from), cy: area.y(timeOf(algorithm, from)), r: 5 }));
    }
    area.marks.append(draw("circle", { class: "dot", cx: area.x(n), cy: area.y(timeOf(best, n)), r: 8 }));
    return area.svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["topology", "ranks", "size_bytes", "algorithm"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-all_reduce", render);
export default { render };
