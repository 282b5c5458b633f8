// Speed-up of speculative decoding by acceptance rate: a curve for each of several numbers of draft tokens.

const SPECULATION_STYLE = `
.picture { touch-action: pan-y; cursor: ew-resize; }
svg .other { stroke: var(--muted); stroke-width: 1.2; opacity: 0.7; }
svg .chosen { stroke: var(--value); stroke-width: 4; }
svg .best { stroke: var(--gradient); stroke-width: 2.2; stroke-dasharray: 7 4; }
svg .even { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 2 3; }
svg .at { stroke: var(--ink); stroke-width: 1.4; }
svg .dot { fill: var(--value); stroke: var(--surface); stroke-width: 2; }
`;

const MAX_SPECULATIVE_TOKENS = 16;
const SHOWN = [1, 2, 4, 8, 16];

// Mean number of tokens per step of the target model, including the one after the draft tokens.
function expectedTokens(rate, k) {
  let total = 0;
  for (let i = 0; i <= k; i++) total += rate ** i;
  return total;
}

function speedup(rate, k, cost) {
  return expectedTokens(rate, k) / (k * cost + 1);
}

// FLOPs per token over those of plain decoding, if a draft token costs the same fraction of FLOPs as of time.
function flopsRatio(rate, k, cost) {
  return (k * cost + k + 1) / expectedTokens(rate, k);
}

// Number of draft tokens with the largest speed-up; the smallest if several have it.
function bestNumSpeculativeTokens(rate, cost) {
  let best = 0;
  for (let k = 1; k <= MAX_SPECULATIVE_TOKENS; k++) if (speedup(rate, k, cost) > speedup(rate, best, cost)) best = k;
  return best;
}

function render({ model, el }) {
  const { box, stop } = stage(el, model.get("title") ?? "Speed-up of speculative decoding", AXES_STYLE + SPECULATION_STYLE);
  let width = 0;
  let area = null;

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const setRate = (value) => change({ acceptance_rate: Number(Math.min(1, Math.max(0, value)).toFixed(2)) });
  const rate = slide("Acceptance rate", { min: 0, max: 1, step: 0.01 }, setRate);
  const numTokens = slide("Draft tokens per step", { min: 1, max: MAX_SPECULATIVE_TOKENS, step: 1 }, (value) => change({ num_speculative_tokens: value }));
  const cost = slide("Cost of a draft token", { min: 0, max: 0.5, step: 0.01 }, (value) => change({ draft_cost: value }));
  const picture = make("div", { class: "picture" });
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  box.append(picture, rate.row, numTokens.row, cost.row, verdict, detail);

  const drag = (event) => {
    if (area && event.buttons & 1) setRate(area.xValue(event.clientX - area.svg.getBoundingClientRect().left));
  };
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    drag(event);
  });
  picture.addEventListener("pointermove", drag);

  const times = (x) => x.toFixed(2);

  function show() {
    if (!width) return;
    const [a, k, c] = ["acceptance_rate", "num_speculative_tokens", "draft_cost"].map((name) => model.get(name));
    rate.set(a, times(a));
    numTokens.set(k, String(k));
    cost.set(c, c ? `${number(Number(c.toPrecision(3)))} of a step` : "nothing");
    const best = bestNumSpeculativeTokens(a, c);
    picture.replaceChildren(drawing(a, k, c));
    verdict.textContent = `${times(speedup(a, k, c))} times as fast: ${times(expectedTokens(a, k))} tokens per step`;
    detail.textContent = `${times(flopsRatio(a, k, c))} times the FLOPs per token. Best: `
      + (best ? `${best} draft token${best > 1 ? "s" : ""}, ${times(speedup(a, best, c))} times.` : "no draft tokens.");
  }

  function drawing(a, k, c) {
    const height = Math.round(Math.max(290, Math.min(390, width * 0.52)));
    const across = linearAxis({ low: 0, high: 1, title: "acceptance rate", word: (v) => number(v), most: 5 });
    const up = linearAxis({ low: 0, high: 6, title: "speed-up", word: (v) => number(v), most: 6 });
    area = plot({
      width, height, x: across, y: up, edge: { left: 44, right: 40 },
      label: `Speed-up by acceptance rate with ${k} draft tokens of cost ${number(c)}: ${times(speedup(a, k, c))} at ${times(a)}`,
    });
    const line = (count, attributes) => curve(area, across, (v) => speedup(v, count, c), attributes);
    for (const other of SHOWN) {
      area.inside.append(line(other, { class: "other" }));
      const end = speedup(1, other, c);
      if (end <= 6) area.marks.append(area.text({ x: area.x1 + 5, y: area.y(end) + 4.5, class: "muted" }, `k=${other}`));
    }
    area.inside.append(
      draw("line", { class: "even", x1: area.x0, x2: area.x1, y1: area.y(1), y2: area.y(1) }),
      curve(area, across, (v) => speedup(v, bestNumSpeculativeTokens(v, c), c), { class: "best" }),
      line(k, { class: "chosen" }),
      draw("line", { class: "at", x1: area.x(a), x2: area.x(a), y1: area.y1, y2: area.y0 }),
      draw("circle", { class: "dot", cx: area.x(a), cy: area.y(speedup(a, k, c)), r: 8 }));
    return area.svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["acceptance_rate", "num_speculative_tokens", "draft_cost"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-speculation", render);
export default { render };
