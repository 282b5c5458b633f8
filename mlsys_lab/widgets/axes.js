// Plots of curves: two axes with ticks, a grid and a clipped plot area. Needs common.js.

const AXES_STYLE = `
svg .grid { stroke: var(--line); stroke-width: 1; opacity: 0.6; }
svg .axis { stroke: var(--muted); stroke-width: 1.2; }
svg .muted { fill: var(--muted); }
svg .halo { paint-order: stroke; stroke: var(--surface); stroke-width: 6; stroke-linejoin: round; }
svg .drop { stroke: var(--muted); stroke-width: 1.2; stroke-dasharray: 4 4; }
.fields { display: grid; grid-template-columns: repeat(auto-fill, minmax(108px, 1fr)); gap: 8px 12px; margin-top: 8px; }
.fields label { display: grid; gap: 2px; align-content: end; color: var(--muted); font-size: 0.9em; }
.fields input, .fields select { color: var(--ink); font-size: 15px; width: 100%; min-width: 0; }
.fields .wide { grid-column: span 2; }
.check { display: flex; gap: 8px; align-items: center; min-height: 34px; }
.check input { flex: none; width: 16px; height: 16px; margin: 0; accent-color: var(--value); }
.slide { display: grid; grid-template-columns: auto minmax(0, 1fr) 8.5em; gap: 4px 12px; align-items: center; margin-top: 8px; }
.slide output { text-align: right; white-space: nowrap; }
.slide input { min-height: 30px; width: 100%; margin: 0; }
@media (max-width: 560px) {
  .slide { grid-template-columns: minmax(0, 1fr) auto; }
  .slide input { grid-column: 1 / -1; grid-row: 2; }
}
.verdict { font-size: 1.12em; font-weight: 600; margin: 10px 0 2px; }
.detail { color: var(--muted); margin: 0; } .fields + .detail { margin-top: 6px; }
.error { color: var(--bad); font-weight: 600; margin: 10px 0 2px; overflow-wrap: anywhere; }
.error:empty { display: none; }
[hidden] { display: none !important; }
`;

// Three significant digits with the words of money and models: amount(7.04e10) is "70.4 B".
function amount(x) {
  const steps = ["", " k", " M", " B", " T", " Q"];
  const rounded = Number(x.toPrecision(3));
  if (!Number.isFinite(x) || Math.abs(rounded) < 1 || Math.abs(rounded) >= 1e18) return Math.abs(x) >= 1e18 ? power(x) : number(rounded);
  const index = Math.floor(Math.log10(Math.abs(rounded)) / 3);
  return `${number(Number((rounded / 1000 ** index).toPrecision(3)))}${steps[index]}`;
}

const rounded = (x, digits = 3) => number(Number(x.toPrecision(digits)));

// Seconds in the unit that a person would use.
function duration(s) {
  if (s < 120) return si(s, "s");
  return s < 7200 ? `${rounded(s / 60)} min` : s < 172800 ? `${rounded(s / 3600)} h` : `${rounded(s / 86400)} days`;
}

const several = (n) => `${n} ${n === 1 ? "device" : "devices"}`;

// power(5.76e23) is "5.76·10²³".
function power(x, digits = 3) {
  const [factor, exponent] = x.toExponential(digits - 1).split("e");
  const raised = String(Number(exponent)).replace(/[-\d]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
  return `${Number(factor) === 1 ? "" : `${Number(factor)}·`}10${raised}`.replace("-", "−");
}

// An axis has a title, `at` (a value to 0 … 1 along it), `value` (back), ticks, and `word` (what a tick says).
function logAxis({ low, high, base = 10, title, word }) {
  const scale = Math.log(base);
  const [first, last] = [Math.log(low) / scale, Math.log(high) / scale];
  // Short of three powers of ten, 2 and 5 are ticks too.
  const within = base === 10 && last - first < 3 ? [1, 2, 5] : [1];
  const powers = Array.from({ length: Math.floor(last) - Math.floor(first - 1e-9) + 2 }, (_, i) => base ** (Math.floor(first - 1e-9) + i));
  const ticks = powers.flatMap((one) => within.map((k) => k * one)).filter((v) => v >= low * (1 - 1e-9) && v <= high * (1 + 1e-9));
  return {
    title, word, ticks, at: (v) => (Math.log(v) / scale - first) / (last - first), value: (share) => base ** (first + share * (last - first)),
  };
}

function linearAxis({ low, high, title, word, most = 6 }) {
  const rough = (high - low) / most;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((one) => one * unit >= rough * (1 - 1e-9));
  const from = Math.ceil(low / step - 1e-9);
  const ticks = Array.from({ length: Math.floor(high / step + 1e-9) - from + 1 }, (_, i) => Number(((from + i) * step).toPrecision(12)));
  return { title, word, ticks, at: (v) => (v - low) / (high - low), value: (share) => low + share * (high - low) };
}

// An <svg> with both axes. `inside` is clipped to the plot's square; `x` and `y` turn values into pixels, `xValue` back.
function plot({ width, height, label, x: across, y: up, edge }) {
  const { left, right, top, bottom } = { left: 58, right: 14, top: 14, bottom: 46, ...edge };
  const [x0, x1, y0, y1] = [left, width - right, height - bottom, top];
  const x = (v) => x0 + across.at(v) * (x1 - x0);
  const y = (v) => y0 - up.at(v) * (y0 - y1);
  const text = (attributes, ...words) => draw("text", { "font-size": 13, ...attributes }, ...words);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  const inside = draw("g", { "clip-path": "url(#inside)" });
  const marks = draw("g");
  svg.append(draw("clipPath", { id: "inside" }, draw("rect", { x: x0, y: y1, width: x1 - x0, height: y0 - y1 })));
  // Every second, third, … tick has a word where all would run together.
  const spacing = across.ticks.length > 1 ? x(across.ticks[1]) - x(across.ticks[0]) : width;
  const every = Math.ceil(46 / spacing);
  across.ticks.forEach((tick, i) => {
    svg.append(draw("line", { class: "grid", x1: x(tick), x2: x(tick), y1, y2: y0 }));
    if (i % every === 0) svg.append(text({ x: x(tick), y: y0 + 18, "text-anchor": "middle", class: "muted" }, across.word(tick)));
  });
  for (const tick of up.ticks) {
    svg.append(
      draw("line", { class: "grid", x1: x0, x2: x1, y1: y(tick), y2: y(tick) }),
      text({ x: x0 - 7, y: y(tick) + 4.5, "text-anchor": "end", class: "muted" }, up.word(tick)));
  }
  svg.append(
    inside,
    draw("line", { class: "axis", x1: x0, x2: x1, y1: y0, y2: y0 }), draw("line", { class: "axis", x1: x0, x2: x0, y1, y2: y0 }),
    text({ x: (x0 + x1) / 2, y: height - 8, "text-anchor": "middle" }, across.title),
    text({ x: 13, y: (y1 + y0) / 2, "text-anchor": "middle", transform: `rotate(-90 13 ${(y1 + y0) / 2})` }, up.title),
    marks);
  const xValue = (pixel) => across.value(Math.min(1, Math.max(0, (pixel - x0) / (x1 - x0))));
  return { svg, inside, marks, text, x, y, xValue, x0, x1, y0, y1 };
}

// A curve through f's values at equal steps along the axis.
function curve(area, across, f, attributes, steps = 120) {
  const values = Array.from({ length: steps + 1 }, (_, i) => across.value(i / steps));
  return draw("path", { fill: "none", ...attributes, d: values.map((v, i) => `${i ? "L" : "M"}${area.x(v).toFixed(2)} ${area.y(f(v)).toFixed(2)}`).join(" ") });
}

// A slider with its label and its value in words. `set(value, words)` moves it from outside.
function slide(label, range, act) {
  const shown = make("output");
  const input = make("input", { type: "range", "aria-label": label, ...range, input: () => act(Number(input.value)) });
  const set = (value, words) => {
    input.value = value;
    shown.textContent = words;
    input.setAttribute("aria-valuetext", words);
  };
  return { row: make("div", { class: "slide" }, make("span", {}, label), input, shown), input, set };
}

// A labelled number. What is typed goes to `act` as a number, NaN where it is none.
function numberField(label, attributes, act) {
  const input = make("input", { type: "number", step: "any", ...attributes, change: () => act(input.value === "" ? NaN : Number(input.value)) });
  return { label: make("label", {}, label, input), input };
}

function menu(label, options, act) {
  const input = make("select", { change: () => act(input.value) }, ...options.map(([value, words]) => make("option", { value }, words)));
  return { label: make("label", {}, label, input), input };
}

function checkBox(label, act) {
  const input = make("input", { type: "checkbox", change: () => act(input.checked) });
  return { label: make("label", { class: "check" }, input, label), input };
}

