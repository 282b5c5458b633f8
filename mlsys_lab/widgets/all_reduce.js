// Which form of all-reduce is fastest, by the array's size: straight lines of latency and bytes, and where they cross.

const ALL_REDUCE_STYLE = `
.picture { touch-action: pan-y; cursor: ew-resize; }
svg .form { stroke: var(--muted); stroke-width: 1.2; opacity: 0.5; }
svg .fastest { stroke: var(--value); stroke-width: 4; }
svg .chosen { stroke: var(--gradient); stroke-width: 2.4; stroke-dasharray: 7 4; }
svg .at { stroke: var(--ink); stroke-width: 1.4; }
svg .dot { fill: var(--value); stroke: var(--surface); stroke-width: 2; }
svg .cross { fill: var(--surface); stroke: var(--ink); stroke-width: 2; }
.row label { display: flex; gap: 8px; align-items: center; }
.row select { max-width: 15em; }
`;

const SIZES = { low: 8, high: 33, step: 0.5 }; // powers of two

function timeOf(form, size) {
  return form.latency + form.byte * size;
}

// The fastest form for every size from a byte up: [{ form, from }], each from the size in bytes at which it takes over.
function fastestBySize(forms) {
  // At one byte, not at none: latencies that differ in their last digit alone are no reason to change.
  let form = forms.reduce((a, b) => (timeOf(b, 1) < timeOf(a, 1) ? b : a));
  const out = [{ form, from: 0 }];
  for (;;) {
    const next = forms
      .filter((other) => other.byte < form.byte * (1 - 1e-9))
      .map((other) => ({ form: other, from: (other.latency - form.latency) / (form.byte - other.byte) }))
      .sort((a, b) => a.from - b.from || a.form.byte - b.form.byte)[0];
    if (!next) return out;
    out.push(next);
    form = next.form;
  }
}

function title(form) {
  return form.name.replaceAll("_", "-");
}

function bytes(x) {
  const index = Math.min(3, Math.max(0, Math.floor(Math.log2(x) / 10)));
  return `${number(Number((x / 1024 ** index).toPrecision(3)))} ${["B", "KiB", "MiB", "GiB"][index]}`;
}

function render({ model, el }) {
  const { box, stop } = stage(el, model.get("title") ?? "Time of an all-reduce", AXES_STYLE + ALL_REDUCE_STYLE);
  const worlds = model.get("worlds");
  let width = 0;
  let area = null;

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const world = () => worlds.find((one) => one.name === model.get("world"));
  const sizes = () => world().sizes;
  const forms = () => (sizes().find((one) => one.ranks === model.get("ranks")) ?? sizes()[0]).forms;
  const resize = (exponent) => change({ size: 2 ** Math.min(SIZES.high, Math.max(SIZES.low, exponent)) });

  const worldMenu = menu("Topology", worlds.map((one) => [one.name, one.name]), (name) => {
    const counts = worlds.find((one) => one.name === name).sizes.map((one) => one.ranks);
    const near = counts.reduce((a, b) => (Math.abs(b - model.get("ranks")) < Math.abs(a - model.get("ranks")) ? b : a));
    change({ ranks: near, world: name });
  });
  const ranksMenu = menu("Ranks", [], (count) => change({ ranks: Number(count) }));
  const formMenu = menu("Compare", [], (name) => change({ algorithm: name }));
  const size = slide("Bytes of the array", { min: SIZES.low, max: SIZES.high, step: SIZES.step }, resize);
  const picture = make("div", { class: "picture" });
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  box.append(make("div", { class: "row" }, worldMenu.label, ranksMenu.label, formMenu.label), picture, size.row, verdict, detail);

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
    const [all, n] = [forms(), model.get("size")];
    const chosen = all.find((one) => one.name === model.get("algorithm")) ?? all.find((one) => one.name === "ring");
    worldMenu.input.value = model.get("world");
    options(ranksMenu.input, sizes().map((one) => [one.ranks, one.ranks]), model.get("ranks"));
    options(formMenu.input, all.map((one) => [one.name, title(one)]), chosen.name);
    size.set(Math.log2(n), bytes(n));
    const fastest = fastestBySize(all);
    const best = fastest.findLast((one) => one.from <= n).form;
    picture.replaceChildren(drawing(all, fastest, best, chosen, n));
    verdict.textContent = `${title(best)}: ${si(timeOf(best, n), "s")} in ${best.steps} steps`;
    const times = number(Number((timeOf(chosen, n) / timeOf(best, n)).toPrecision(3)));
    const changes = fastest.slice(1).map((one) => `${title(one.form)} from ${bytes(one.from)}`);
    detail.textContent = `${title(chosen)} takes ${si(timeOf(chosen, n), "s")}, ${times} times as long. `
      + (changes.length ? `Fastest: ${title(fastest[0].form)}, then ${changes.join(", ")}.` : `${title(best)} is fastest at every size.`);
  }

  function drawing(all, fastest, best, chosen, n) {
    const height = Math.round(Math.max(290, Math.min(400, width * 0.52)));
    const [low, high] = [2 ** SIZES.low, 2 ** SIZES.high];
    const times = [low, high].flatMap((v) => fastest.map((one) => timeOf(one.form, v)));
    const across = logAxis({ low, high, base: 2, title: "bytes of the array", word: (v) => bytes(v).replace(" ", "") });
    const up = logAxis({ low: Math.min(...times) / 2, high: Math.max(...times) * 3, title: "time", word: (v) => si(v, "s") });
    area = plot({
      width, height, x: across, y: up, edge: { left: 68 },
      label: `Time of each form of all-reduce against the array's bytes; at ${bytes(n)} the fastest is ${title(best)}`,
    });
    for (const form of all) area.inside.append(curve(area, across, (v) => timeOf(form, v), { class: "form" }));
    area.inside.append(
      curve(area, across, (v) => Math.min(...all.map((form) => timeOf(form, v))), { class: "fastest" }),
      curve(area, across, (v) => timeOf(chosen, v), { class: "chosen" }),
      draw("line", { class: "at", x1: area.x(n), x2: area.x(n), y1: area.y1, y2: area.y0 }));
    for (const { form, from } of fastest.slice(1)) {
      if (from > low && from < high) area.marks.append(draw("circle", { class: "cross", cx: area.x(from), cy: area.y(timeOf(form, from)), r: 5 }));
    }
    area.marks.append(draw("circle", { class: "dot", cx: area.x(n), cy: area.y(timeOf(best, n)), r: 8 }));
    return area.svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["world", "ranks", "size", "algorithm"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-all_reduce", render);
export default { render };
