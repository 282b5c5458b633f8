// Caches of keys and values, one step at a time, as they were recorded: a square is a slot, its number a token's position.

const FILL_STYLE = `
.figure { --text-A: #1759b8; --text-B: #b4410e; --text-C: #17794a; --text-D: #7a3ab0; }
@media screen {
  .figure[data-theme="dark"] { --text-A: #82b5ff; --text-B: #ffab70; --text-C: #6fd39b; --text-D: #cfa3f5; }
}
svg .free { fill: var(--raised); stroke: var(--line); stroke-width: 1.2; }
svg .fresh { fill: none; stroke: var(--ink); stroke-width: 3; }
svg .group { fill: none; stroke: var(--muted); stroke-width: 1; opacity: 0.55; }
svg text { font-size: 12.5px; font-weight: 600; text-anchor: middle; } svg .on { fill: var(--surface); }
.said { min-height: 3.2em; margin-top: 10px; padding: 8px 12px; background: var(--raised); border-left: 4px solid var(--value); border-radius: 4px; }
.said p, .count { margin: 0; }
.count { margin-top: 8px; font-weight: 600; }
.legend { color: var(--muted); font-size: 0.87em; margin: 6px 0 0; }
.tools label { display: flex; gap: 6px; align-items: center; }
@media (max-width: 560px) { .said { min-height: 6.2em; } }
`;

const COLUMNS = 16;

function render({ model, el }) {
  const layouts = model.get("layouts");
  const prompts = model.get("prompts");
  const layout = () => layouts.find((one) => one.name === model.get("arrangement")) ?? layouts[0];
  const { box, stop } = stage(el, model.get("title") ?? "A cache that fills, step by step", STEPPER_STYLE + FILL_STYLE);
  let width = 0;

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const last = () => layout().steps.length - 1;
  const now = () => Math.min(model.get("step"), last());
  const walk = stepper(box, { now, last, change: (step) => change({ step }) });
  const kind = make("select", { "aria-label": "Layout", change: () => change({ arrangement: kind.value }) },
    ...layouts.map((one) => make("option", { value: one.name }, one.name)));
  walk.row.append(make("label", {}, "Layout", kind));
  const picture = make("div");
  const counted = make("p", { class: "count" });
  const said = make("div", { class: "said", "aria-live": "polite" });
  const legend = make("p", { class: "legend" },
    "Full colour: a next query sees this token. Pale: held, but empty or behind the window. Two colours: shared. Thick frame: just written.");
  box.append(walk.row, picture, counted, said, legend);

  function words(step, at) {
    if (at === 0) return ["An empty cache of 48 slots. Four texts come; A and B begin with the same 8 tokens."];
    const lines = Object.entries(step.new).map(([name, [first, end]]) => {
      const found = step.shared[name];
      const begins = found === undefined ? "" : found ? `comes, finds ${found} tokens there and ` : "comes and ";
      const span = end - first > 1 ? `tokens ${first} to ${end - 1}` : `token ${first}`;
      return `${name} ${begins}${first < prompts[name] ? `reads ${span} of its prompt` : `writes ${span}`}`;
    });
    return [lines.length ? `${lines.join("; ")}.` : "All texts have gone."];
  }

  function show() {
    if (!width) return;
    const at = now();
    const step = layout().steps[at];
    kind.value = layout().name;
    picture.replaceChildren(drawing(step, at));
    said.replaceChildren(...words(step, at).map((line) => make("p", {}, line)));
    const share = step.held ? `: ${Math.round((100 * step.wasted) / step.held)} % wasted` : "";
    counted.textContent = `${step.held} of ${step.slots.length} slots held, ${step.held - step.wasted} with a token that a next query sees${share}`;
    walk.show(layout().name);
    box.dataset.step = at;
  }

  function drawing(step, at) {
    const together = layout().together;
    const cell = Math.max(18, Math.min(40, Math.floor((width - 2) / COLUMNS) - 2));
    const pitch = cell + 2;
    const rows = Math.ceil(step.slots.length / COLUMNS);
    const place = (slot) => [1 + (slot % COLUMNS) * pitch, 3 + Math.floor(slot / COLUMNS) * (pitch + 12)];
    const size = { x: COLUMNS * pitch + 2, y: rows * (pitch + 12) };
    const svg = draw("svg", {
      viewBox: `0 0 ${size.x} ${size.y}`, width: size.x, height: size.y, role: "img",
      "aria-label": `${layout().name} cache after step ${at}: ${step.held} of ${step.slots.length} slots held, ${step.wasted} of them wasted`,
    });
    step.slots.forEach(([position, holders, seen], slot) => {
      const [x, y] = place(slot);
      const fresh = [...holders].some((name) => position >= step.new[name]?.[0] && position < step.new[name]?.[1]);
      const group = draw("g", { "data-slot": slot, "data-position": position, "data-holders": holders, "data-seen": seen },
        draw("rect", { class: "free", x, y, width: cell, height: cell, rx: 2 }));
      [...holders].forEach((name, i) => group.append(draw("rect", {
        class: "held", x: x + (i * cell) / holders.length, y, width: cell / holders.length, height: cell,
        style: `fill: var(--text-${name}); opacity: ${seen ? 1 : 0.25}`,
      })));
      if (holders && position >= 0) group.append(draw("text", { class: seen ? "on" : "", x: x + cell / 2, y: y + cell / 2 + 4.5 }, position));
      if (fresh) group.append(draw("rect", { class: "fresh", x: x + 1, y: y + 1, width: cell - 2, height: cell - 2, rx: 2 }));
      svg.append(group);
    });
    for (let first = 0; first < step.slots.length; first += together) {
      const [x, y] = place(first);
      svg.append(draw("rect", { class: "group", x: x - 1, y: y - 2, width: together * pitch, height: cell + 4, rx: 4 }));
    }
    return svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["arrangement", "step"], show);
  return () => {
    walk.stop();
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-cache_fill", render);
export default { render };
