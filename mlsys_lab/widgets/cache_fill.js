// KV caches step by step, as recorded: a square is a slot, its number the token's position.

const FILL_STYLE = `
.figure { --seq-A: #1759b8; --seq-B: #b4410e; --seq-C: #17794a; --seq-D: #7a3ab0; }
@media screen {
  .figure[data-theme="dark"] { --seq-A: #82b5ff; --seq-B: #ffab70; --seq-C: #6fd39b; --seq-D: #cfa3f5; }
}
svg .free { fill: var(--raised); stroke: var(--line); stroke-width: 1.2; }
svg .new { fill: none; stroke: var(--ink); stroke-width: 3; }
svg .group { fill: none; stroke: var(--muted); stroke-width: 1; opacity: 0.55; }
svg text { font-size: 12.5px; font-weight: 600; text-anchor: middle; } svg .on { fill: var(--surface); }
.description { min-height: 3.2em; margin-top: 10px; padding: 8px 12px; background: var(--raised); border-left: 4px solid var(--value); border-radius: 4px; }
.description p, .count { margin: 0; }
.count { margin-top: 8px; font-weight: 600; }
.legend { color: var(--muted); font-size: 0.87em; margin: 6px 0 0; }
.tools label { display: flex; gap: 6px; align-items: center; }
@media (max-width: 560px) { .description { min-height: 6.2em; } }
`;

const COLUMNS = 16;

function render({ model, el }) {
  const layouts = model.get("layouts");
  const numPromptTokens = model.get("num_prompt_tokens");
  const layout = () => layouts.find((one) => one.name === model.get("layout")) ?? layouts[0];
  const { box, stop } = stage(el, model.get("title") ?? "A KV cache, step by step", STEPPER_STYLE + FILL_STYLE);
  let width = 0;

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const last = () => layout().steps.length - 1;
  const now = () => Math.min(model.get("step"), last());
  const controls = stepper(box, { now, last, change: (step) => change({ step }) });
  const kind = make("select", { "aria-label": "Layout", change: () => change({ layout: kind.value }) },
    ...layouts.map((one) => make("option", { value: one.name }, one.name)));
  controls.row.append(make("label", {}, "Layout", kind));
  const picture = make("div");
  const counts = make("p", { class: "count" });
  const description = make("div", { class: "description", "aria-live": "polite" });
  const legend = make("p", { class: "legend" },
    "Full colour: read by the next query. Pale: allocated, but empty or outside the window. Two colours: shared. Thick frame: new.");
  box.append(controls.row, picture, counts, description, legend);

  function describe(step, at) {
    if (at === 0) return ["An empty cache of 48 slots. Four sequences will arrive; A and B share a prefix of 8 tokens."];
    const lines = Object.entries(step.new_tokens).map(([name, [first, end]]) => {
      const cached = step.num_cached_tokens[name];
      const arrival = cached === undefined ? "" : cached ? `arrives, has ${cached} cached tokens and ` : "arrives and ";
      const span = end - first > 1 ? `tokens ${first} to ${end - 1}` : `token ${first}`;
      return `${name} ${arrival}${first < numPromptTokens[name] ? "prefills" : "decodes"} ${span}`;
    });
    return [lines.length ? `${lines.join("; ")}.` : "All sequences have finished."];
  }

  function show() {
    if (!width) return;
    const at = now();
    const step = layout().steps[at];
    kind.value = layout().name;
    picture.replaceChildren(drawing(step, at));
    description.replaceChildren(...describe(step, at).map((line) => make("p", {}, line)));
    const { num_allocated, num_wasted } = step;
    const wasted = num_allocated ? `: ${Math.round((100 * num_wasted) / num_allocated)} % wasted` : "";
    counts.textContent = `${num_allocated} of ${step.slots.length} slots allocated, ${num_allocated - num_wasted} read by the next query${wasted}`;
    controls.show(layout().name);
    box.dataset.step = at;
  }

  function drawing(step, at) {
    const groupSize = layout().group_size;
    const cell = Math.max(18, Math.min(40, Math.floor((width - 2) / COLUMNS) - 2));
    const pitch = cell + 2;
    const rows = Math.ceil(step.slots.length / COLUMNS);
    const corner = (slot) => [1 + (slot % COLUMNS) * pitch, 3 + Math.floor(slot / COLUMNS) * (pitch + 12)];
    const size = { x: COLUMNS * pitch + 2, y: rows * (pitch + 12) };
    const svg = draw("svg", {
      viewBox: `0 0 ${size.x} ${size.y}`, width: size.x, height: size.y, role: "img",
      "aria-label": `${layout().name} cache after step ${at}: ${step.num_allocated} of ${step.slots.length} slots allocated, ${step.num_wasted} of them wasted`,
    });
    step.slots.forEach(([position, owners, isVisible], slot) => {
      const [x, y] = corner(slot);
      const isNew = [...owners].some((name) => position >= step.new_tokens[name]?.[0] && position < step.new_tokens[name]?.[1]);
      const group = draw("g", { "data-slot": slot, "data-position": position, "data-owners": owners, "data-seen": isVisible },
        draw("rect", { class: "free", x, y, width: cell, height: cell, rx: 2 }));
      [...owners].forEach((name, i) => group.append(draw("rect", {
        class: "held", x: x + (i * cell) / owners.length, y, width: cell / owners.length, height: cell,
        style: `fill: var(--seq-${name}); opacity: ${isVisible ? 1 : 0.25}`,
      })));
      if (owners && position >= 0) group.append(draw("text", { class: isVisible ? "on" : "", x: x + cell / 2, y: y + cell / 2 + 4.5 }, position));
      if (isNew) group.append(draw("rect", { class: "new", x: x + 1, y: y + 1, width: cell - 2, height: cell - 2, rx: 2 }));
      svg.append(group);
    });
    for (let first = 0; first < step.slots.length; first += groupSize) {
      const [x, y] = corner(first);
      svg.append(draw("rect", { class: "group", x: x - 1, y: y - 2, width: groupSize * pitch, height: cell + 4, rx: 4 }));
    }
    return svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["layout", "step"], show);
  return () => {
    controls.stop();
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-cache_fill", render);
export default { render };
