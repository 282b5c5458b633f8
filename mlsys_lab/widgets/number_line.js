// The numbers of formats on one line each, scaled to the same range, and where each rounds a number.

const NUMBER_LINE_STYLE = `
.picture { touch-action: pan-y; cursor: ew-resize; margin-top: 8px; }
.formats { gap: 0 16px; }
svg .tick { stroke: var(--muted); stroke-width: 1.4; }
svg .rounded { stroke: var(--gradient); stroke-width: 4; }
svg .number { stroke: var(--value); stroke-width: 1.6; }
svg .name { font-weight: 600; }
`;

const LINE_HEIGHT = 58;
const NARROWEST = 1 / 256; // largest magnitude shown at full zoom

// The value nearest to x; of two equally near ones that at the even place, counted from 0 for each sign.
function roundTo(values, x) {
  const above = values.findIndex((value) => value >= x);
  if (above === 0) return values[0];
  if (above < 0) return values.at(-1);
  const [low, high] = [values[above - 1], values[above]];
  const difference = (x - low) - (high - x);
  if (Math.abs(difference) > 1e-12) return difference < 0 ? low : high;
  const isEven = (index) => Math.abs(index - values.indexOf(0)) % 2 === 0;
  return isEven(above) ? high : low;
}

function render({ model, el }) {
  const formats = model.get("formats");
  const { box, stop } = stage(el, model.get("title") ?? "Numbers of formats", AXES_STYLE + NUMBER_LINE_STYLE);
  let [width, area] = [0, null];
  const put = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const clamp = (x) => Math.min(1, Math.max(-1, x));

  const boxes = formats.map(({ name }) => ({
    name,
    ...checkBox(name, (on) => put("shown", formats.map((one) => one.name).filter((one) => (one === name ? on : model.get("shown").includes(one))))),
  }));
  const at = slide("Number", { min: -1, max: 1, step: 0.001 }, (value) => put("number", value));
  const zoom = slide("Zoom", { min: 0, max: -Math.log2(NARROWEST), step: 0.25 }, (value) => put("zoom", 2 ** -value));
  const picture = make("div", { class: "picture" });
  const detail = make("p", { class: "detail" }, "Each format is scaled so that its largest number is 1.");
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  box.append(make("div", { class: "row formats" }, ...boxes.map((one) => one.label)), at.row, zoom.row, verdict, picture, detail);

  const drag = (event) => {
    if (!area || !(event.buttons & 1)) return;
    put("number", clamp(area.value(event.clientX - area.svg.getBoundingClientRect().left)));
  };
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    drag(event);
  });
  picture.addEventListener("pointermove", drag);

  function show() {
    if (!width) return;
    const [x, reach] = [model.get("number"), model.get("zoom")];
    const lines = formats.filter((one) => model.get("shown").includes(one.name));
    for (const { name, input } of boxes) input.checked = model.get("shown").includes(name);
    at.set(x, number(Number(x.toPrecision(3))));
    zoom.set(-Math.log2(reach), `±${number(Number(reach.toPrecision(2)))}`);
    verdict.textContent = lines.length
      ? `${number(Number(x.toPrecision(3)))} is rounded to ${lines.map((one) => `${number(Number(roundTo(one.values, x).toPrecision(3)))} in ${one.name}`).join(", ")}`
      : "No format is shown.";
    area = drawing(lines, x, reach);
    picture.replaceChildren(area.svg);
  }

  function drawing(lines, x, reach) {
    const [left, right] = [10, width - 10];
    const height = Math.max(1, lines.length) * LINE_HEIGHT + 28;
    const axis = linearAxis({ low: -reach, high: reach, word: number });
    const pixel = (value) => left + axis.at(value) * (right - left);
    const svg = draw("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": `Numbers from ${number(-reach)} to ${number(reach)} of ${lines.map((one) => one.name).join(", ")}; ${number(x)} marked`,
    });
    const text = (attributes, ...words) => draw("text", { "font-size": 13, ...attributes }, ...words);
    if (Math.abs(x) <= reach) svg.append(draw("line", { class: "number", x1: pixel(x), x2: pixel(x), y1: 24, y2: height - 24 }));
    lines.forEach(({ name, values }, row) => {
      const y = row * LINE_HEIGHT + 40;
      const inside = values.filter((value) => Math.abs(value) <= reach * (1 + 1e-9));
      svg.append(
        text({ x: left, y: y - 22, class: "name halo" }, name),
        text({ x: right, y: y - 22, "text-anchor": "end", class: "muted halo" }, `${inside.length} of ${values.length} numbers`),
        draw("line", { class: "axis", x1: left, x2: right, y1: y, y2: y }),
        ...inside.map((value) => draw("line", { class: "tick", x1: pixel(value), x2: pixel(value), y1: y - 9, y2: y + 9 })));
      const nearest = roundTo(values, x);
      if (Math.abs(nearest) <= reach) svg.append(draw("line", { class: "rounded", x1: pixel(nearest), x2: pixel(nearest), y1: y - 13, y2: y + 13 }));
    });
    axis.ticks.forEach((tick, i) => {
      if (i % Math.ceil((axis.ticks.length * 56) / width) === 0) {
        const anchor = pixel(tick) < 24 ? "start" : pixel(tick) > width - 24 ? "end" : "middle";
        svg.append(text({ x: pixel(tick), y: height - 6, "text-anchor": anchor, class: "muted" }, axis.word(tick)));
      }
    });
    return { svg, value: (at) => axis.value((at - left) / (right - left)) };
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["formats", "shown", "number", "zoom"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-number_line", render);
export default { render };
