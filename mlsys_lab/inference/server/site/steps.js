// Recent steps, a column each: the tokens of the step on top, and a row for each running or waiting sequence below.

import { NUM_COLOURS } from "./blocks.js";

const [LABEL_WIDTH, COLUMN, ROW, BAR_HEIGHT, MAX_ROWS] = [52, 22, 18, 56, 20];

export function drawSteps(box, steps, { running, waiting }) {
  const width = Math.max(box.clientWidth, 120);
  const shown = steps.slice(-Math.floor((width - LABEL_WIDTH) / COLUMN));
  const rows = [...running, ...waiting].slice(0, MAX_ROWS);
  const numHidden = running.length + waiting.length - rows.length;
  const height = BAR_HEIGHT + 12 + rows.length * ROW + (numHidden ? ROW : 0);
  const last = shown.at(-1);
  const label = last
    ? `The last ${shown.length} steps, up to step ${last.step}: ${running.length} sequences running, ${waiting.length} waiting`
    : "No steps since this page was opened";
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  svg.append(draw("line", { class: "axis", x1: LABEL_WIDTH, x2: width, y1: BAR_HEIGHT + 2.5, y2: BAR_HEIGHT + 2.5 }));
  drawBars(svg, shown);
  rows.forEach((seq, i) => drawRow(svg, shown, seq.seq_id, BAR_HEIGHT + 10 + i * ROW, waiting.includes(seq)));
  if (numHidden) svg.append(draw("text", { class: "label", x: 2, y: BAR_HEIGHT + 10 + rows.length * ROW + 13 }, `and ${numHidden} more`));
  if (!last) svg.append(draw("text", { class: "label", x: LABEL_WIDTH, y: BAR_HEIGHT / 2 }, "no steps yet"));
  box.replaceChildren(svg);
}

function drawBars(svg, shown) {
  const tokens = (step, ofDecode) => step.scheduled.reduce((sum, [, count, isDecode]) => sum + (isDecode === ofDecode ? count : 0), 0);
  const top = Math.max(16, ...shown.map((step) => tokens(step, true) + tokens(step, false)));
  const scale = (BAR_HEIGHT - 14) / top;
  if (shown.length) {
    svg.append(draw("text", { class: "label", x: 2, y: 13 }, `${top} tok.`), draw("text", { class: "label", x: 2, y: BAR_HEIGHT }, `#${shown[0].step}`));
  }
  shown.forEach((step, i) => {
    const [decode, prefill] = [tokens(step, true) * scale, tokens(step, false) * scale];
    const column = { x: LABEL_WIDTH + i * COLUMN + 2, width: COLUMN - 4 };
    svg.append(
      draw("rect", { class: "decode", y: BAR_HEIGHT - decode, height: decode, ...column }),
      draw("rect", { class: "prefill", y: BAR_HEIGHT - decode - prefill, height: prefill, ...column }));
  });
}

function drawRow(svg, shown, seqId, y, isWaiting) {
  svg.append(
    draw("circle", { class: `colour-${seqId % NUM_COLOURS}`, cx: 7, cy: y + ROW / 2 - 1, r: 4.5 }),
    draw("text", { x: 16, y: y + 12 }, `${seqId}`));
  shown.forEach((step, i) => {
    const x = LABEL_WIDTH + i * COLUMN + 1;
    const cell = { x, y, width: COLUMN - 2, height: ROW - 3, rx: 2, "data-seq-id": seqId };
    const scheduled = step.scheduled.find(([id]) => id === seqId);
    if (scheduled) {
      const [, count, isDecode] = scheduled;
      svg.append(draw("rect", { class: isDecode ? "decode" : "prefill", ...cell }));
      if (!isDecode) svg.append(draw("text", { class: "count", x: x + COLUMN / 2 - 1, y: y + 11.5 }, count));
    } else if (isWaiting && i === shown.length - 1) {
      svg.append(draw("rect", { class: "waiting", ...cell }));
    }
  });
}

function draw(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
