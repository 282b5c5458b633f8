// What speculative decoding gains, by how often a draft is accepted: curves for several numbers of drafts.

const SPECULATION_STYLE = `
.picture { touch-action: pan-y; cursor: ew-resize; }
svg .other { stroke: var(--muted); stroke-width: 1.2; opacity: 0.7; }
svg .chosen { stroke: var(--value); stroke-width: 4; }
svg .best { stroke: var(--gradient); stroke-width: 2.2; stroke-dasharray: 7 4; }
svg .even { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 2 3; }
svg .at { stroke: var(--ink); stroke-width: 1.4; }
svg .dot { fill: var(--value); stroke: var(--surface); stroke-width: 2; }
`;

const MOST_DRAFTS = 16;
const OTHERS = [1, 2, 4, 8, 16];

// Tokens that a step of the model adds on average, the one after the drafts included.
function expectedTokens(acceptance, drafts) {
  let total = 0;
  for (let i = 0; i <= drafts; i++) total += acceptance ** i;
  return total;
}

function speedup(acceptance, drafts, cost) {
  return expectedTokens(acceptance, drafts) / (drafts * cost + 1);
}

// Operations over those of one token a step, where operations of a draft compare as its time does.
function operationsRatio(acceptance, drafts, cost) {
  return (drafts * cost + drafts + 1) / expectedTokens(acceptance, drafts);
}

// Number of drafts with the greatest gain, the fewest of those that are as good.
function bestDrafts(acceptance, cost) {
  let best = 0;
  for (let k = 1; k <= MOST_DRAFTS; k++) if (speedup(acceptance, k, cost) > speedup(acceptance, best, cost)) best = k;
  return best;
}

function render({ model, el }) {
  const { box, stop } = stage(el, model.get("title") ?? "What speculative decoding gains", AXES_STYLE + SPECULATION_STYLE);
  let width = 0;
  let area = null;

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const accept = (value) => change({ acceptance: Number(Math.min(1, Math.max(0, value)).toFixed(2)) });
  const acceptance = slide("Acceptance of a draft", { min: 0, max: 1, step: 0.01 }, accept);
  const drafts = slide("Drafts a step", { min: 1, max: MOST_DRAFTS, step: 1 }, (value) => change({ drafts: value }));
  const cost = slide("Cost of a draft", { min: 0, max: 0.5, step: 0.01 }, (value) => change({ cost: value }));
  const picture = make("div", { class: "picture" });
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  box.append(picture, acceptance.row, drafts.row, cost.row, verdict, detail);

  const drag = (event) => {
    if (area && event.buttons & 1) accept(area.xValue(event.clientX - area.svg.getBoundingClientRect().left));
  };
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    drag(event);
  });
  picture.addEventListener("pointermove", drag);

  const times = (x) => x.toFixed(2);

  function show() {
    if (!width) return;
    const [a, k, c] = ["acceptance", "drafts", "cost"].map((name) => model.get(name));
    acceptance.set(a, times(a));
    drafts.set(k, String(k));
    cost.set(c, c ? `${number(Number(c.toPrecision(3)))} of a step` : "nothing");
    const best = bestDrafts(a, c);
    picture.replaceChildren(drawing(a, k, c));
    verdict.textContent = `${times(speedup(a, k, c))} times as fast: ${times(expectedTokens(a, k))} tokens a step`;
    detail.textContent = `${times(operationsRatio(a, k, c))} times the operations. Best: `
      + (best ? `${best} draft${best > 1 ? "s" : ""}, ${times(speedup(a, best, c))} times.` : "no drafts at all.");
  }

  function drawing(a, k, c) {
    const height = Math.round(Math.max(290, Math.min(390, width * 0.52)));
    const across = linearAxis({ low: 0, high: 1, title: "probability that a draft is accepted", word: (v) => number(v), most: 5 });
    const up = linearAxis({ low: 0, high: 6, title: "times as fast", word: (v) => number(v), most: 6 });
    area = plot({
      width, height, x: across, y: up, edge: { left: 44, right: 40 },
      label: `Gain against acceptance with ${k} drafts of cost ${number(c)}: ${times(speedup(a, k, c))} at ${times(a)}`,
    });
    const line = (drafted, attributes) => curve(area, across, (v) => speedup(v, drafted, c), attributes);
    for (const other of OTHERS) {
      area.inside.append(line(other, { class: "other" }));
      const end = speedup(1, other, c);
      if (end <= 6) area.marks.append(area.text({ x: area.x1 + 5, y: area.y(end) + 4.5, class: "muted" }, `k=${other}`));
    }
    area.inside.append(
      draw("line", { class: "even", x1: area.x0, x2: area.x1, y1: area.y(1), y2: area.y(1) }),
      curve(area, across, (v) => speedup(v, bestDrafts(v, c), c), { class: "best" }),
      line(k, { class: "chosen" }),
      draw("line", { class: "at", x1: area.x(a), x2: area.x(a), y1: area.y1, y2: area.y0 }),
      draw("circle", { class: "dot", cx: area.x(a), cy: area.y(speedup(a, k, c)), r: 8 }));
    return area.svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["acceptance", "drafts", "cost"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-speculation", render);
export default { render };
