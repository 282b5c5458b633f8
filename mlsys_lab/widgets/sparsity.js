// The most that leaving weights out can gain: speedup of a product over the dense one, by layout and density.

const SPARSITY_STYLE = `
svg .sparse { stroke-width: 2.5; }
svg .one { stroke: var(--ink); stroke-width: 1.4; }
svg .fixed { stroke: var(--surface); stroke-width: 2; }
svg .at { stroke: var(--muted); stroke-width: 1.2; stroke-dasharray: 4 4; }
.gains { display: grid; grid-template-columns: auto auto minmax(0, 1fr); gap: 2px 12px; align-items: center; margin: 10px 0 0; }
.gains dt, .gains dd { margin: 0; }
.gains i { display: block; width: 18px; height: 4px; border-radius: 2px; }
`;

const LEAST = { density: 0.01, speedup: 0.25 };
const TONES = ["--value", "--gradient", "--muted", "--bad", "--ink"];

// Least seconds of the product of `tokens` rows with a weight of `shape`, as in `mlsys_lab.efficiency.pruning.costs`.
function leastTime(device, layout, { shape: [outputs, inputs], density, tokens, precision, elementBytes }) {
  const kept = density * outputs * inputs;
  const blocks = kept / layout.block ** 2;
  const indices = (blocks * layout.index_bits + Math.floor(outputs / layout.block) * layout.row_bits + outputs * inputs * layout.mask_bits) / 8;
  const bytes = kept * elementBytes + indices + tokens * (outputs + inputs) * elementBytes;
  const flops = 2 * tokens * (layout.skips_zeros ? kept : outputs * inputs);
  return Math.max(flops / device.peaks[layout.vector ? "fp32" : precision], bytes / device.bandwidth);
}

function speedupOf(device, dense, layout, product) {
  return leastTime(device, dense, { ...product, density: 1 }) / leastTime(device, layout, product);
}

function render({ model, el }) {
  const devices = model.get("devices");
  const dense = model.get("layouts").find((one) => one.name === "dense");
  const layouts = model.get("layouts").filter((one) => one !== dense);
  const { box, stop } = stage(el, model.get("title") ?? "What sparsity can gain", AXES_STYLE + SPARSITY_STYLE);
  let [width, area, density] = [0, null, 0.5];
  const put = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const device = () => devices.find((one) => one.name === model.get("device")) ?? devices[0];
  const precisions = () => Object.keys(model.get("element_bytes")).filter((one) => one in device().peaks);
  const precision = () => (precisions().includes(model.get("precision")) ? model.get("precision") : precisions()[0]);
  const product = (at) => ({
    shape: model.get("shape"), density: at, tokens: model.get("tokens"), precision: precision(), elementBytes: model.get("element_bytes")[precision()],
  });
  const times = (x) => `${number(Number(x.toPrecision(3)))}×`;

  const deviceMenu = menu("Device", devices.map(({ name }) => [name, name]), (name) => put("device", name));
  const precisionMenu = menu("Precision", [], (name) => put("precision", name));
  const tokens = slide("Tokens", { min: 0, max: 13, step: 1 }, (value) => put("tokens", 2 ** value));
  const densitySlide = slide("Density", { min: LEAST.density, max: 1, step: 0.01 }, (value) => {
    density = value;
    show();
  });
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const picture = make("div", { class: "picture" });
  const gains = make("dl", { class: "gains" });
  box.append(make("div", { class: "fields" }, deviceMenu.label, precisionMenu.label), tokens.row, densitySlide.row, verdict, picture, gains);

  function show() {
    if (!width) return;
    deviceMenu.input.value = device().name;
    precisionMenu.input.replaceChildren(...precisions().map((name) => make("option", { value: name }, name)));
    precisionMenu.input.value = precision();
    tokens.set(Math.log2(model.get("tokens")), model.get("tokens").toLocaleString("en-US"));
    densitySlide.set(density, `${number(Math.round(100 * density))} % kept`);
    const gain = (layout) => speedupOf(device(), dense, layout, product(layout.density ?? density));
    const free = layouts.filter((one) => one.density === null);
    const faster = free.filter((one) => gain(one) > 1.005).map((one) => one.name);
    verdict.textContent = `With ${number(Math.round(100 * density))} % of the weights, ${faster.length ? `${faster.join(", ")} can be faster than dense` : "no layout without a fixed pattern can be faster than dense"}`;
    gains.replaceChildren(...layouts.flatMap((layout, i) => [
      make("dt", {}, make("i", { style: `background: var(${TONES[i]})` })), make("dd", {}, layout.name),
      make("dd", {}, `${times(gain(layout))}${layout.density ? `, always ${100 * layout.density} %` : ""}`),
    ]));
    picture.replaceChildren(drawing());
  }

  function drawing() {
    const height = Math.round(Math.max(250, Math.min(340, width * 0.48)));
    area = plot({
      width, height,
      label: `Greatest speedup over dense weights against density, tokens: ${model.get("tokens")}, on ${device().name} in ${precision()}`,
      x: linearAxis({ low: 0, high: 1, title: "density, fraction of weights kept", word: number }),
      y: logAxis({ low: LEAST.speedup, high: 20, base: 2, title: "speedup, at most", word: times }),
    });
    const [from, to] = [LEAST.density, 1];
    const along = { value: (share) => from + share * (to - from) };
    layouts.forEach((layout, i) => {
      const style = `stroke: var(${TONES[i]})`;
      const speedup = (at) => Math.max(LEAST.speedup / 4, speedupOf(device(), dense, layout, product(at)));
      if (layout.density === null) area.inside.append(curve(area, along, speedup, { class: "sparse", style }));
      else area.inside.append(draw("circle", { class: "fixed", style: `fill: var(${TONES[i]})`, cx: area.x(layout.density), cy: area.y(speedup(layout.density)), r: 8 }));
    });
    area.inside.append(
      draw("line", { class: "one", x1: area.x0, x2: area.x1, y1: area.y(1), y2: area.y(1) }),
      draw("line", { class: "at", x1: area.x(density), x2: area.x(density), y1: area.y0, y2: area.y1 }));
    area.marks.append(area.text({ x: area.x1 - 4, y: area.y(1) + 16, "text-anchor": "end", class: "muted halo" }, "dense"));
    return area.svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["device", "precision", "tokens"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-sparsity", render);
export default { render };
