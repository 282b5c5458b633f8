// A histogram of weights, a range that clips them, and the two errors: of clipping and of rounding.

const CLIPPING_STYLE = `
.picture { touch-action: pan-y; cursor: ew-resize; margin-top: 8px; }
svg .bar { fill: var(--muted); opacity: 0.7; }
svg .clipped { fill: var(--gradient); opacity: 1; }
svg .level { stroke: var(--value); stroke-width: 1; opacity: 0.55; }
svg .limit { stroke: var(--value); stroke-width: 2.5; }
.errors { display: grid; grid-template-columns: auto minmax(0, 1fr) 5.5em; gap: 4px 12px; align-items: center; margin: 10px 0 0; }
.errors dt, .errors dd { margin: 0; }
.errors b { display: block; height: 12px; border-radius: 3px; background: var(--value); min-width: 1px; }
.errors b.clipping { background: var(--gradient); }
.errors output { text-align: right; }
`;

const BITS = { low: 2, high: 8 };
const LIMITS = Array.from({ length: 96 }, (_, i) => 0.05 + (0.95 * i) / 95);

// Mean squared errors, as in `mlsys_lab.widgets.clipping.clipping_error`.
function clippingError(centres, counts, limit, bits) {
  const step = limit / (2 ** (bits - 1) - 1);
  let [clipping, rounding, total] = [0, 0, 0];
  centres.forEach((x, i) => {
    total += counts[i];
    if (Math.abs(x) <= limit) rounding += counts[i] * (Math.floor(x / step + 0.5) * step - x) ** 2;
    else clipping += counts[i] * (Math.abs(x) - limit) ** 2;
  });
  return { clipping: clipping / total, rounding: rounding / total };
}

function bestLimit(centres, counts, bits) {
  const errors = LIMITS.map((limit) => {
    const { clipping, rounding } = clippingError(centres, counts, limit, bits);
    return clipping + rounding;
  });
  return LIMITS[errors.indexOf(Math.min(...errors))];
}

function render({ model, el }) {
  const { box, stop } = stage(el, model.get("title") ?? "Clipping weights", AXES_STYLE + CLIPPING_STYLE);
  let [width, area] = [0, null];
  const put = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const within = (x) => Math.min(1, Math.max(LIMITS[0], x));
  const root = (error) => number(Number((100 * Math.sqrt(error)).toPrecision(3)));

  const limit = slide("Range", { min: LIMITS[0], max: 1, step: 0.01 }, (value) => put("limit", value));
  const bits = slide("Bits", { min: BITS.low, max: BITS.high, step: 1 }, (value) => put("bits", value));
  const best = make("button", { type: "button", click: () => put("limit", bestLimit(model.get("centres"), model.get("counts"), model.get("bits"))) }, "least error");
  const picture = make("div", { class: "picture" });
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const errors = make("dl", { class: "errors" });
  const detail = make("p", { class: "detail" }, "Root mean square errors, in % of the largest weight; the bars are fractions of the squared error. Blue lines are the numbers that can be stored.");
  box.append(limit.row, bits.row, make("div", { class: "row" }, best), verdict, picture, errors, detail);

  const drag = (event) => {
    if (!area || !(event.buttons & 1)) return;
    put("limit", within(Math.abs(area.xValue(event.clientX - area.svg.getBoundingClientRect().left))));
  };
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    drag(event);
  });
  picture.addEventListener("pointermove", drag);

  function show() {
    if (!width) return;
    const [centres, counts] = [model.get("centres"), model.get("counts")];
    const [reach, width_] = [model.get("limit"), model.get("bits")];
    const { clipping, rounding } = clippingError(centres, counts, reach, width_);
    const total = clipping + rounding;
    limit.set(reach, `±${number(Number(reach.toPrecision(2)))}`);
    bits.set(width_, `${width_} bits`);
    verdict.textContent = `Error ${root(total)} %, with the whole range ${root(clippingError(centres, counts, 1, width_).rounding)} %`;
    errors.replaceChildren(...[["clipping", clipping], ["rounding", rounding]].flatMap(([name, error]) => [
      make("dt", {}, name),
      make("dd", {}, make("b", { class: name, style: `width: ${total ? (100 * error) / total : 0}%` })),
      make("output", {}, `${root(error)} %`),
    ]));
    picture.replaceChildren(drawing(centres, counts, reach, width_));
  }

  function drawing(centres, counts, reach, width_) {
    const height = Math.round(Math.max(200, Math.min(280, width * 0.36)));
    const highest = Math.max(...counts);
    area = plot({
      width, height, label: `Histogram of weights, clipped at ±${number(Number(reach.toPrecision(2)))}, with ${2 ** width_ - 1} levels`,
      x: linearAxis({ low: -1, high: 1, title: "weight, largest = 1", word: number }),
      y: linearAxis({ low: 0, high: highest * 1.05, title: "weights", word: number, most: 4 }),
    });
    const step = reach / (2 ** (width_ - 1) - 1);
    for (let level = -(2 ** (width_ - 1) - 1); level < 2 ** (width_ - 1); level++) {
      area.inside.append(draw("line", { class: "level", x1: area.x(level * step), x2: area.x(level * step), y1: area.y0, y2: area.y1 }));
    }
    const bar = Math.max(1, (area.x1 - area.x0) / 400 - 0.3);
    centres.forEach((x, i) => {
      const top = area.y(counts[i]);
      area.inside.append(draw("rect", { class: Math.abs(x) > reach ? "bar clipped" : "bar", x: area.x(x) - bar / 2, y: top, width: bar, height: area.y0 - top }));
    });
    for (const side of [-reach, reach]) {
      area.inside.append(draw("line", { class: "limit", x1: area.x(side), x2: area.x(side), y1: area.y0, y2: area.y1 }));
    }
    return area.svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["centres", "counts", "bits", "limit"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-clipping", render);
export default { render };
