// A ring all-reduce, one step at a time, as it was recorded: a stripe of a chunk is one rank's numbers in it.

const RING_STYLE = `
.figure {
  --rank-0: #1759b8; --rank-1: #b4410e; --rank-2: #17794a; --rank-3: #7a3ab0; --rank-4: #8a6d00; --rank-5: #0d7784;
}
@media screen {
  .figure[data-theme="dark"] {
    --rank-0: #82b5ff; --rank-1: #ffab70; --rank-2: #6fd39b; --rank-3: #cfa3f5; --rank-4: #e6cf5c; --rank-5: #6fd6e4;
  }
}
svg .cell { fill: var(--raised); stroke: var(--line); stroke-width: 1.5; }
svg .frame { fill: none; stroke: var(--line); stroke-width: 1.5; }
svg .frame.arrived { stroke: var(--ink); stroke-width: 3; }
svg .way { fill: none; stroke: var(--ink); stroke-width: 2; }
svg .head { fill: var(--ink); }
svg .whole circle { fill: var(--ink); } svg .whole path { fill: none; stroke: var(--surface); stroke-width: 2; }
svg text { font-size: 13px; } svg .quiet { fill: var(--muted); }
.said { min-height: 3.2em; margin-top: 10px; padding: 8px 12px; background: var(--raised); border-left: 4px solid var(--line); border-radius: 4px; }
.said[data-phase="add"] { border-color: var(--value); } .said[data-phase="copy"] { border-color: var(--gradient); }
.said p, .count { margin: 0; }
.count { margin-top: 8px; font-weight: 600; }
.legend { color: var(--muted); font-size: 0.87em; margin: 6px 0 0; }
.tools label { display: flex; gap: 6px; align-items: center; }
@media (max-width: 560px) { .said { min-height: 7.7em; } }
`;

const LABEL = 66; // of the column with the ranks' names
const ROW = 34;
const BETWEEN = 30; // rows, where the arrows are
const GAP = 6;

function render({ model, el }) {
  const rings = model.get("rings");
  const ring = () => rings.find((one) => one.ranks === model.get("ranks")) ?? rings[0];
  const { box, stop } = stage(el, model.get("title") ?? "Ring all-reduce, step by step", STEPPER_STYLE + RING_STYLE);
  let width = 0;

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const last = () => ring().steps.length - 1;
  const now = () => Math.min(model.get("step"), last());
  const controls = stepper(box, { now, last, change: (step) => change({ step }) });
  const count = make("select", { "aria-label": "Ranks", change: () => {
    controls.stop();
    change({ step: 0, ranks: Number(count.value) });
  } }, ...rings.map((one) => make("option", { value: one.ranks }, one.ranks)));
  controls.row.append(make("label", {}, "Ranks", count));
  const picture = make("div");
  const said = make("div", { class: "said", "aria-live": "polite" });
  const counted = make("p", { class: "count" });
  const legend = make("p", { class: "legend" },
    "A stripe is one rank's numbers, in its colour and at its place. A tick: numbers of all ranks. Thick frame: has just arrived.");
  box.append(controls.row, picture, counted, said, legend);

  function words(step, at) {
    const p = ring().ranks;
    if (at === 0) return ["Every rank has its own numbers in every chunk.", "Step with the buttons, the slider or the arrow keys."];
    const [source, to, chunk] = step.arrivals[0];
    const content = ring().steps[at - 1].held[source][chunk];
    const who = content.length === p ? "all ranks" : `rank${content.length > 1 ? "s" : ""} ${content.join(", ")}`;
    const got = `Rank ${to}, for one, gets chunk ${chunk} from rank ${source}, with the numbers of ${who}`;
    const turns = last() / 2;
    return step.adds
      ? [`Reduce-scatter, step ${at} of ${turns}: each rank sends a chunk to the next and adds what comes. ${got}, and adds its own.`,
        at === turns ? "Now each rank has the whole sum of one chunk." : ""]
      : [`All-gather, step ${at - turns} of ${turns}: each rank sends on a whole chunk. ${got}, and keeps it.`,
        at === last() ? "Now each rank has the whole sum of every chunk." : ""];
  }

  // Messages and bytes up to a step, and the most bytes that one rank has sent.
  function total(steps) {
    const sent = new Map();
    const arrivals = steps.flatMap((step) => step.arrivals);
    for (const [source, , , size] of arrivals) sent.set(source, (sent.get(source) ?? 0) + size);
    return { messages: arrivals.length, bytes: [...sent.values()].reduce((a, b) => a + b, 0), most: Math.max(0, ...sent.values()) };
  }

  function show() {
    if (!width) return;
    const at = now();
    const step = ring().steps[at];
    const phase = at === 0 ? "start" : step.adds ? "add" : "copy";
    const [done, all] = [total(ring().steps.slice(0, at + 1)), total(ring().steps)];
    const grouped = (x) => x.toLocaleString("en");
    count.value = ring().ranks;
    picture.replaceChildren(drawing(step, at));
    said.dataset.phase = phase;
    said.replaceChildren(...words(step, at).filter(Boolean).map((line) => make("p", {}, line)));
    counted.textContent = `${done.messages} of ${all.messages} messages, ${grouped(done.bytes)} of ${grouped(all.bytes)} bytes; `
      + `at most ${grouped(done.most)} from one rank`;
    controls.show(phase);
    box.dataset.step = at;
  }

  function drawing(step, at) {
    const p = ring().ranks;
    const cell = Math.min(96, Math.floor((width - LABEL) / p) - GAP);
    const left = (chunk) => LABEL + chunk * (cell + GAP);
    const top = (rank) => 24 + BETWEEN + rank * (ROW + BETWEEN);
    const size = { x: left(p), y: top(p) };
    const svg = draw("svg", {
      viewBox: `0 0 ${size.x} ${size.y}`, width: size.x, height: size.y, role: "img",
      "aria-label": `${p} ranks of ${p} chunks after step ${at}: `
        + step.held.map((row, rank) => `rank ${rank} has sums of ${row.map((content) => content.length).join(", ")} ranks`).join("; "),
    });
    svg.append(draw("text", { class: "quiet", x: 0, y: 15 }, "chunk"));
    for (let i = 0; i < p; i++) {
      const middle = top(i) + ROW / 2;
      svg.append(
        draw("text", { class: "quiet", x: left(i) + cell / 2, y: 15, "text-anchor": "middle" }, i),
        draw("rect", { x: 0, y: middle - 6, width: 11, height: 11, rx: 2, style: `fill: var(--rank-${i})` }),
        draw("text", { x: 16, y: middle + 4.5 }, `rank ${i}`));
    }
    step.held.forEach((row, rank) => row.forEach((content, chunk) => {
      const arrived = step.arrivals.some(([, to, which]) => to === rank && which === chunk);
      svg.append(chunkOf({ x: left(chunk), y: top(rank), cell, content, p, arrived, rank, chunk }));
    }));
    for (const [source, to, chunk] of step.arrivals) {
      const x = left(chunk) + cell / 2;
      // To the next row; the last rank's goes out below and comes in above.
      if (to > source) svg.append(way(x, top(source) + ROW, top(to), true));
      else svg.append(way(x, top(source) + ROW, top(source) + ROW + BETWEEN - 8, false), way(x, top(to) - BETWEEN + 2, top(to), true));
    }
    return svg;
  }

  function chunkOf({ x, y, cell, content, p, arrived, rank, chunk }) {
    const stripe = cell / p;
    const group = draw("g", { "data-rank": rank, "data-chunk": chunk, "data-content": content.join(" ") },
      draw("title", {}, `rank ${rank}, chunk ${chunk}: numbers of rank${content.length > 1 ? "s" : ""} ${content.join(", ")}`),
      draw("rect", { class: "cell", x, y, width: cell, height: ROW }),
      ...content.map((from) => draw("rect", { x: x + from * stripe, y, width: stripe, height: ROW, style: `fill: var(--rank-${from})` })),
      draw("rect", { class: `frame ${arrived ? "arrived" : ""}`, x, y, width: cell, height: ROW, rx: 2 }));
    if (content.length === p) {
      const [cx, cy] = [x + cell / 2, y + ROW / 2];
      group.append(draw("g", { class: "whole" },
        draw("circle", { cx, cy, r: 9 }), draw("path", { d: `M${cx - 4} ${cy}l3 4l5 -8` })));
    }
    return group;
  }

  // An arrow straight down, or only its stem.
  function way(x, from, to, pointed) {
    const end = pointed ? to - 9 : to;
    return draw("g", {}, draw("path", { class: "way", d: `M${x} ${from + 3}V${end}` }),
      pointed ? draw("path", { class: "head", d: `M${x} ${to - 3}l-5 -8h10z` }) : "");
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["ranks", "step"], show);
  return () => {
    controls.stop();
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-ring", render);
export default { render };
