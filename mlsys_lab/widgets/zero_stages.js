// Training states on one device: a bar for each ZeRO stage, and the device's memory.

const ZERO_STYLE = `
svg .weights { fill: var(--value); } svg .gradients { fill: var(--gradient); }
svg .master { fill: var(--muted); } svg .moments { fill: var(--muted); opacity: 0.55; }
svg .capacity { stroke: var(--ink); stroke-width: 1.6; stroke-dasharray: 6 4; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; color: var(--muted); font-size: 0.87em; margin: 6px 0 0; }
.legend span::before { content: ""; display: inline-block; width: 11px; height: 11px; margin-right: 6px; background: var(--swatch); }
.legend .faint::before { opacity: 0.55; }
`;

const MAX_RANKS_LOG = 13;
const STAGE_NAMES = ["stage 0", "stage 1", "stage 2", "stage 3"];
const STATE_KINDS = ["weights", "gradients", "master", "moments"];
const STATE_WORDS = { weights: "weights", gradients: "gradients", master: "master weights", moments: "moments" };

const sumStates = (held) => STATE_KINDS.reduce((sum, kind) => sum + held[kind], 0);

// The first stage whose states fit, or -1.
const firstFitting = (all, capacity) => all.findIndex((states) => sumStates(states) <= capacity);

function render({ model, el }) {
  const { box, stop } = stage(el, model.get("title") ?? "Training states on one device", AXES_STYLE + ZERO_STYLE);
  let width = 0;
  const named = (list, key) => model.get(list).find((one) => one.name === model.get(key));

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const names = (list) => model.get(list).map((one) => [one.name, one.name]);
  const preset = menu("Model", names("models"), (name) => change({ preset: name }));
  const recipe = menu("Precision recipe", names("recipes"), (name) => change({ recipe: name }));
  const gpu = menu("Device", names("gpus"), (name) => change({ gpu: name }));
  const ranks = slide("Data-parallel ranks", { min: 0, max: MAX_RANKS_LOG, step: 1 }, (log) => change({ ranks: 2 ** log }));
  const picture = make("div");
  const legend = make("p", { class: "legend", "aria-hidden": "true" }, ...STATE_KINDS.map((kind) => make("span", {
    class: kind === "moments" ? "faint" : "",
    style: `--swatch: var(--${{ weights: "value", gradients: "gradient" }[kind] ?? "muted"})`,
  }, STATE_WORDS[kind])));
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  box.append(picture, legend, make("div", { class: "fields" }, preset.label, recipe.label, gpu.label), ranks.row, verdict, detail);

  function show() {
    if (!width) return;
    const [chosen, kept, on, count] = [named("models", "preset"), named("recipes", "recipe"), named("gpus", "gpu"), model.get("ranks")];
    preset.input.value = chosen.name;
    recipe.input.value = kept.name;
    gpu.input.value = on.name;
    ranks.set(Math.log2(count), String(count));
    const all = STAGE_NAMES.map((_, zeroStage) => states(chosen.parameters, kept, count, zeroStage));
    const first = firstFitting(all, on.memory_bytes);
    picture.replaceChildren(drawing(all, on));
    verdict.textContent = first < 0
      ? `No stage fits a device: stage 3 needs ${si(sumStates(all[3]), "B")} of ${si(on.memory_bytes, "B")}`
      : `${first ? `Stage ${first} is the first that fits` : "Fits without ZeRO"}: ${si(sumStates(all[first]), "B")} of ${si(on.memory_bytes, "B")}`;
    detail.textContent = `${amount(chosen.parameters)} parameters at ${number(sumStates(states(1, kept, 1, 0)))} bytes. `
      + "Activations, and in stage 3 the gathered layer, are not included.";
  }

  function drawing(all, on) {
    const [edge, row, top] = [64, 44, 26];
    const height = top + all.length * row + 30;
    const maxBytes = Math.max(on.memory_bytes, sumStates(all[0])) * 1.02;
    const barWidth = Math.max(60, width - edge - 84);
    const x = (bytes) => edge + (bytes / maxBytes) * barWidth;
    const svg = draw("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": `Bytes of training states on one device: ${all.map((held, i) => `${STAGE_NAMES[i]} ${si(sumStates(held), "B")}`).join(", ")}; ${on.name} has ${si(on.memory_bytes, "B")}`,
    });
    all.forEach((held, i) => {
      const y = top + i * row;
      svg.append(draw("text", { x: edge - 8, y: y + 20, "text-anchor": "end" }, STAGE_NAMES[i]));
      let from = 0;
      for (const kind of STATE_KINDS) {
        svg.append(draw("rect", { class: kind, "data-stage": i, x: x(from), y, width: x(from + held[kind]) - x(from), height: 28 }));
        from += held[kind];
      }
      svg.append(draw("text", { class: "muted", x: x(from) + 7, y: y + 20 }, si(from, "B")));
    });
    const at = x(on.memory_bytes);
    const bottom = top + all.length * row - 8;
    svg.append(
      draw("line", { class: "capacity", x1: at, x2: at, y1: top - 6, y2: bottom }),
      draw("text", { class: "muted", x: Math.max(edge, Math.min(width - 4, at)), y: bottom + 18, "text-anchor": at > width / 2 ? "end" : "start" }, `${on.name}: ${si(on.memory_bytes, "B")}`));
    return svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["preset", "recipe", "gpu", "ranks"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-zero_stages", render);
export default { render };
