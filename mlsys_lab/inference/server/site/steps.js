// The last steps, a column each: above the tokens of the whole step, below a row for each text that runs or waits.

import { TONES } from "./blocks.js";

const [EDGE, COLUMN, ROW, BARS, MOST_ROWS] = [52, 22, 18, 56, 20];

export function drawSteps(box, steps, { running, waiting }) {
  const width = Math.max(box.clientWidth, 120);
  const shown = steps.slice(-Math.floor((width - EDGE) / COLUMN));
  const rows = [...running, ...waiting].slice(0, MOST_ROWS);
  const hidden = running.length + waiting.length - rows.length;
  const height = BARS + 12 + rows.length * ROW + (hidden ? ROW : 0);
  const last = shown.at(-1);
  const label = last
    ? `The last ${shown.length} steps, to step ${last.step}: ${running.length} texts run, ${waiting.length} wait`
    : "No step has been run since you watch";
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  svg.append(draw("line", { class: "axis", x1: EDGE, x2: width, y1: BARS + 2.5, y2: BARS + 2.5 }));
  drawBars(svg, shown);
  rows.forEach((text, i) => drawRow(svg, shown, text, BARS + 10 + i * ROW, !text.blocks));
  if (hidden) svg.append(draw("text", { class: "quiet", x: 2, y: BARS + 10 + rows.length * ROW + 13 }, `and ${hidden} more`));
  if (!last) svg.append(draw("text", { class: "quiet", x: EDGE, y: BARS / 2 }, "no steps yet"));
  box.replaceChildren(svg);
}

function drawBars(svg, shown) {
  const tokens = (step, writing) => step.fed.reduce((sum, [, count, decode]) => sum + (decode === writing ? count : 0), 0);
  const top = Math.max(16, ...shown.map((step) => tokens(step, true) + tokens(step, false)));
  const scale = (BARS - 14) / top;
  if (shown.length) {
    svg.append(draw("text", { class: "quiet", x: 2, y: 13 }, `${top} tok.`), draw("text", { class: "quiet", x: 2, y: BARS }, `#${shown[0].step}`));
  }
  shown.forEach((step, i) => {
    const [decode, prefill] = [tokens(step, true) * scale, tokens(step, false) * scale];
    const place = { x: EDGE + i * COLUMN + 2, width: COLUMN - 4 };
    svg.append(
      draw("rect", { class: "decode", y: BARS - decode, height: decode, ...place }),
      draw("rect", { class: "prefill", y: BARS - decode - prefill, height: prefill, ...place }));
  });
}

function drawRow(svg, shown, { name }, y, waits) {
  svg.append(
    draw("circle", { class: `tone-${name % TONES}`, cx: 7, cy: y + ROW / 2 - 1, r: 4.5 }),
    draw("text", { x: 16, y: y + 12 }, `${name}`));
  shown.forEach((step, i) => {
    const x = EDGE + i * COLUMN + 1;
    const place = { x, y, width: COLUMN - 2, height: ROW - 3, rx: 2 };
    const fed = step.fed.find(([fedName]) => fedName === name);
    if (fed) svg.append(draw("rect", { class: fed[2] ? "decode" : "prefill", "data-name": name, ...place }));
    if (fed && !fed[2]) svg.append(draw("text", { class: "count", x: x + COLUMN / 2 - 1, y: y + 11.5 }, fed[1]));
    if (!fed && waits && i === shown.length - 1) svg.append(draw("rect", { class: "wait", "data-name": name, ...place }));
  });
}

function draw(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
