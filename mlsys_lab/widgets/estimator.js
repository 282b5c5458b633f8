// The estimator: `mlsys-lab estimate` as a form. What a model needs on given devices, before anything is run.

const ESTIMATOR_STYLE = `
.figure {
  --weights: #1759b8; --gradients: #b4410e; --master: #26734d; --moments: #7b3fa0; --gathered: #0f7284; --activations: #8a6d00; --cache: #8c2f5c;
}
@media screen {
  .figure[data-theme="dark"] {
    --weights: #82b5ff; --gradients: #ffab70; --master: #6fcf9f; --moments: #cf9cf0; --gathered: #6fd0de; --activations: #e3c14d; --cache: #f29bc4;
  }
}
fieldset { border: 0; border-top: 1px solid var(--line); margin: 12px 0 0; padding: 4px 0 0; min-width: 0; }
fieldset:first-of-type { border-top: 0; margin-top: 0; padding-top: 0; }
legend { padding: 0 8px 0 0; font-weight: 600; }
.results { border-top: 1px solid var(--line); margin-top: 14px; }
.results p.verdict[data-fits="false"] { color: var(--bad); }
.kinds { display: grid; grid-template-columns: repeat(auto-fit, minmax(210px, 1fr)); gap: 2px 24px; margin: 6px 0 0; padding: 0; list-style: none; }
.kinds li { display: grid; grid-template-columns: 14px 1fr auto; gap: 8px; align-items: center; }
.kinds i { width: 14px; height: 14px; border-radius: 3px; }
svg .room { fill: var(--raised); stroke: var(--line); }
svg .ground { stroke: var(--surface); stroke-width: 6; }
svg .limit { stroke: var(--ink); stroke-width: 2; } svg .limit.over { stroke: var(--bad); }
svg .part { fill: var(--muted); opacity: 0.55; } svg .part.binds { fill: var(--value); opacity: 1; }
svg .muted { fill: var(--muted); }
.numbers { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 2px 16px; margin: 10px 0 0; }
.numbers dt { color: var(--muted); } .numbers dd { margin: 0; text-align: right; }
.command { display: block; margin-top: 12px; font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px; overflow-wrap: anywhere; }
.command span { white-space: nowrap; }
.command:empty { display: none; }
h2 { font-size: 1em; margin: 14px 0 4px; }
summary { cursor: pointer; color: var(--value); margin-top: 8px; }
`;

const LAYOUT_FIELDS = [
  ["data ranks", "data"], ["tensor ranks", "tensor"], ["pipeline stages", "pipeline"], ["context ranks", "context"],
  ["expert ranks", "expert"], ["micro-batch", "micro_batch"], ["chunks a stage", "interleave"],
];
const KINDS = {
  weights: "weights", gradients: "gradients", master: "master weights", moments: "Adam's moments", gathered: "a gathered layer",
  activations: "activations", cache: "KV cache",
};
const LIMITS = { compute: "compute", memory: "memory bandwidth", link: "links in the node", network: "network" };
const PHASES = { step: "A training step", prefill: "Prefill of a prompt", decode: "One more token each" };

function render({ model, el }) {
  const [recipes, formats] = [model.get("recipes"), model.get("formats")];
  const { box, stop } = stage(el, model.get("title") ?? "Estimator", AXES_STYLE + ESTIMATOR_STYLE);
  let width = 0;

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const form = sizeForm(model, change, [["longest sequence", "context"]]);
  const hardware = deviceForm(model, change);
  const put = (name) => (value) => change({ [name]: value });
  const arrange = (name) => (value) => change({ degrees: { ...model.get("degrees"), [name]: value } });
  const names = (values) => values.map((value) => [value, value]);

  const mode = menu("Task", [["training", "training"], ["serving", "serving"]], put("mode"));
  const price = numberField("$ an hour each", { min: 0 }, (value) => put("price")(Number.isNaN(value) ? null : value));
  const batch = numberField("sequences", { min: 1, step: 1 }, put("batch"));
  const tokens = numberField("tokens of each", { min: 1, step: 1 }, put("tokens"));
  const total = numberField("tokens in all, 10⁹", { min: 0 }, (value) => put("total_tokens")(value > 0 ? 1e9 * value : null));
  const mfu = numberField("MFU reached, %", { min: 0, max: 100 }, (value) => put("mfu")(Number.isNaN(value) ? null : value / 100));
  const recipe = menu("precision recipe, bytes a parameter", recipes.map((one) => [one.name, `${one.name}: ${one.words}`]), put("recipe"));
  const weightFormat = menu("weights in", names(Object.keys(formats)), put("weight_format"));
  const cacheFormat = menu("KV cache in", names(Object.keys(formats)), put("cache_format"));
  const recomputation = menu("recomputation", names(RECOMPUTATIONS), arrange("recomputation"));
  const ranks = LAYOUT_FIELDS.map(([label, name]) => ({ name, ...numberField(label, { min: 1, step: 1 }, arrange(name)) }));
  const zero = menu("ZeRO stage", names(["0", "1", "2", "3"]), (value) => arrange("zero_stage")(Number(value)));
  const sequence = checkBox("sequence parallelism", arrange("sequence_parallel"));
  const allPairs = checkBox("attention without its causal mask", put("all_pairs"));
  const group = (legend, ...fields) => make("fieldset", {}, make("legend", {}, legend), make("div", { class: "fields" }, ...fields));
  for (const field of [recipe, form.preset]) field.label.classList.add("wide");
  const error = make("p", { class: "error", role: "alert" });
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const why = make("p", { class: "detail" });
  const applyFix = make("button", { type: "button", click: () => change({ degrees: fitting()[1] }) }, "Take that layout");
  const picture = make("div");
  const kinds = make("ul", { class: "kinds" });
  const times = make("div");
  const figures = make("dl", { class: "numbers" });
  const command = make("code", { class: "command" });
  const results = make("div", { class: "results" }, verdict, why, applyFix, picture, kinds, times, figures, command);
  box.append(
    group("Model", mode.label, form.preset.label),
    make("details", {}, make("summary", {}, "Sizes"), make("div", { class: "fields" }, ...form.nodes)),
    group("Devices", hardware.device.label, price.label, hardware.node.label, hardware.network.label),
    group("Load", batch.label, tokens.label, total.label, mfu.label, recipe.label, weightFormat.label, cacheFormat.label, recomputation.label),
    group("Layout", ...ranks.map((one) => one.label), zero.label),
    make("div", { class: "row" }, sequence.label, allPairs.label), error, results);

  function specification() {
    const training = model.get("mode") === "training";
    const way = recipes.find((one) => one.name === model.get("recipe")) ?? recipes[0];
    const machine = hardware.machine(training ? way.compute : model.get("weight_format"));
    return {
      mode: model.get("mode"), config: form.config(), machine, layout: model.get("degrees"), recipe: way, causal: !model.get("all_pairs"),
      batch: model.get("batch") ?? NaN, tokens: model.get("tokens") ?? NaN, price_per_hour: model.get("price"),
      weight_bytes: formats[model.get("weight_format")], cache_bytes: formats[model.get("cache_format")],
    };
  }

  function fillForm() {
    form.show();
    hardware.show();
    const [layout, training] = [model.get("degrees"), model.get("mode") === "training"];
    for (const [field, name] of [[mode, "mode"], [recipe, "recipe"], [weightFormat, "weight_format"], [cacheFormat, "cache_format"]]) {
      field.input.value = model.get(name);
    }
    for (const [field, name] of [[batch, "batch"], [tokens, "tokens"], [price, "price"]]) field.input.value = model.get(name) ?? "";
    total.input.value = model.get("total_tokens") === null ? "" : model.get("total_tokens") / 1e9;
    mfu.input.value = model.get("mfu") === null ? "" : Number((100 * model.get("mfu")).toPrecision(6));
    for (const { name, input, label } of ranks) {
      input.value = Number.isFinite(layout[name]) ? layout[name] : "";
      label.hidden = (name === "interleave" && !training) || (name === "expert" && !form.config().experts && layout.expert === 1) || (name === "context" && !training && layout.context === 1);
    }
    [zero.input.value, recomputation.input.value, sequence.input.checked] = [layout.zero_stage, layout.recomputation, layout.sequence_parallel];
    allPairs.input.checked = model.get("all_pairs");
    for (const field of [total, mfu, recipe, zero, sequence, recomputation, allPairs]) field.label.hidden = !training;
    for (const field of [weightFormat, cacheFormat]) field.label.hidden = training;
  }

  function show() {
    if (!width) return;
    fillForm();
    address.write();
    let figured;
    try {
      const found = estimate(specification());
      figured = [found, wholeRuns(found)];
      error.textContent = "";
    } catch (inputError) {
      error.textContent = inputError.message;
    }
    results.hidden = !figured;
    if (!figured) return;
    const [found, runs] = figured;
    const { memory, capacity_bytes: capacity, fits } = found;
    verdict.dataset.fits = fits;
    verdict.textContent = `${fits ? "Fits" : "Does not fit"}: ${si(memory.total, "B")} of ${si(capacity, "B")} on the fullest of ${several(found.devices)}`;
    why.textContent = `Most of it: ${KINDS[memory.largest]}, ${si(memory[memory.largest], "B")}. ${fits ? "" : remedy()}`;
    applyFix.hidden = fits || !fitting();
    const held = Object.keys(KINDS).filter((kind) => memory[kind] > 0);
    picture.replaceChildren(memoryBar(memory, capacity, held));
    kinds.replaceChildren(...held.map((kind) =>
      make("li", {}, make("i", { style: `background: var(--${kind})` }), make("span", {}, KINDS[kind]), make("span", {}, si(memory[kind], "B")))));
    times.replaceChildren(...Object.entries(found.bounds).flatMap(([phase, bound]) => [
      make("h2", {}, `${PHASES[phase]}: at least ${duration(bound.time_s)}`),
      make("p", { class: "detail" }, `Limited by ${LIMITS[bound.binds]}${bound.margin ? `, ${rounded(bound.margin)} times as long as the next` : ""}.`),
      timeBars(phase, bound),
    ]));
    // A line breaks between options, never within one.
    command.replaceChildren(...commandLine(specification()).flatMap((word, i) => [i ? " " : "", make("span", {}, word)]));
    figures.replaceChildren(...rows(found, runs).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  }

  // The same in a terminal, where a preset has it.
  function commandLine({ layout, batch, tokens, price_per_hour: cost }) {
    if (!model.get("preset")) return [];
    const training = model.get("mode") === "training";
    const degrees = LAYOUT_FIELDS.filter(([, name]) => layout[name] > 1 && (training || name !== "interleave")).map(([, name]) => `--${name.replace("_", "-")} ${layout[name]}`);
    const name = model.get("device");
    const words = [
      "mlsys-lab", "estimate", model.get("preset"), training ? "" : "--serve", `--device ${name.includes(" ") ? `"${name}"` : name}`,
      `--batch ${batch}`, `--sequence ${tokens}`, ...degrees, training && layout.zero_stage ? `--zero ${layout.zero_stage}` : "",
      layout.sequence_parallel ? "--sequence-parallel" : "", training && layout.recomputation !== "none" ? `--recompute ${layout.recomputation}` : "",
      ...(training ? [`--recipe ${model.get("recipe")}`] : [`--weights ${model.get("weight_format")}`, `--cache ${model.get("cache_format")}`]),
      training && model.get("all_pairs") ? "--all-pairs" : "", model.get("node") === null ? "" : `--node ${model.get("node")}`,
      `--network ${model.get("network")}`, cost === null ? "" : `--price ${cost}`,
    ];
    return words.filter(Boolean);
  }

  // The layout with the fewest changes by which it would fit, as [words, layout].
  function fitting() {
    const spec = specification();
    const config = completed(spec.config);
    const fits = (layout) => memoryOf({ ...spec, config }, layout).total <= spec.machine.memory_bytes;
    return nearestLayout(config, spec.layout, fits, spec.mode === "training");
  }

  function remedy() {
    const near = fitting();
    return near ? `It would fit with ${near[0]}, on ${several(deviceCount(near[1]))}.` : "No three changes of the layout make it fit.";
  }

  function rows(found, runs) {
    const training = found.mode === "training";
    const active = found.active_parameters < found.parameters ? [["used by a token", amount(found.active_parameters)]] : [];
    const words = { step: "", prefill: " in prefill", decode: " in decoding" };
    return [
      ["parameters", amount(found.parameters)], ...active, ["on the fullest device", amount(found.parameters_per_device)],
      ...(training ? [["FLOPs of a step", power(found.flops.hardware)], ["highest MFU that the bound allows", `${rounded(100 * found.mfu)} %`], ["MFU expected", `${rounded(100 * found.expected_mfu)} %`]] : []),
      ...Object.entries(found.expected_s).map(([phase, time]) => [`time expected${words[phase]}`, duration(time)]),
      ...Object.entries(found.tokens_per_s).map(([phase, speed]) => [`tokens per second at most${words[phase]}`, amount(speed)]),
      ...Object.entries(found.cost_per_million_tokens ?? {}).map(([phase, cost]) => [`a million tokens${words[phase]}, at least`, `$${rounded(cost)}`]),
      ...runs,
    ];
  }

  // A training run over all its tokens: by the bound, and at the MFU that the reader reaches.
  function wholeRuns(found) {
    const [tokens, reached] = [model.get("total_tokens"), model.get("mfu") ?? null];
    if (found.mode !== "training" || !tokens) return [];
    const describe = (words, fraction) => {
      const { time_s: time, cost } = trainingRun(found, tokens, fraction, model.get("price"));
      return [`${amount(tokens)} tokens, ${words}`, duration(time) + (cost === null ? "" : `, $${cost >= 1e3 ? amount(cost) : rounded(cost)}`)];
    };
    const words = `at an MFU of ${rounded(100 * reached)} %`;
    const beyond = [`${amount(tokens)} tokens, ${words}`, `out of reach: at most ${rounded(100 * found.mfu)} %`];
    return [describe("at least", null), ...(reached === null ? [] : [reached > found.mfu ? beyond : describe(words, reached)])];
  }

  function memoryBar(memory, capacity, held) {
    const [height, top, bar] = [64, 24, 30];
    const scale = (width - 2) / Math.max(memory.total, capacity);
    const svg = draw("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": `Memory: ${held.map((kind) => `${KINDS[kind]} ${si(memory[kind], "B")}`).join(", ")}; the device has ${si(capacity, "B")}`,
    });
    svg.append(draw("rect", { class: "room", x: 1, y: top, width: capacity * scale, height: bar, rx: 3 }));
    let x = 1;
    for (const kind of held) {
      svg.append(draw("rect", { class: kind, style: `fill: var(--${kind})`, x, y: top, width: Math.max(0.5, memory[kind] * scale), height: bar }));
      x += memory[kind] * scale;
    }
    const at = 1 + capacity * scale;
    svg.append(
      draw("line", { class: "ground", x1: at, x2: at, y1: top, y2: top + bar }),
      draw("line", { class: `limit${memory.total > capacity ? " over" : ""}`, x1: at, x2: at, y1: top - 6, y2: top + bar + 6 }),
      draw("text", { x: Math.max(60, Math.min(width - 2, at)), y: 13, "font-size": 13, "text-anchor": "end" }, `${si(capacity, "B")} on a device`));
    if (at < 130) {
      svg.lastChild.setAttribute("text-anchor", "start");
      svg.lastChild.setAttribute("x", at + 2);
    }
    return svg;
  }

  function timeBars(phase, bound) {
    const [line, left, right] = [24, 136, 76];
    const limits = Object.keys(LIMITS).filter((limit) => bound[`${limit}_s`] > 0);
    const height = limits.length * line;
    const svg = draw("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": `${PHASES[phase]}, by limit: ${limits.map((limit) => `${LIMITS[limit]} ${duration(bound[`${limit}_s`])}`).join(", ")}`,
    });
    limits.forEach((limit, i) => {
      const [time, y] = [bound[`${limit}_s`], i * line];
      const long = Math.max(1, (time / bound.time_s) * (width - left - right));
      svg.append(
        draw("text", { x: left - 8, y: y + 16, "font-size": 13, "text-anchor": "end", class: "muted" }, LIMITS[limit]),
        draw("rect", { class: `part${limit === bound.binds ? " binds" : ""}`, x: left, y: y + 4, width: long, height: line - 9, rx: 2 }),
        draw("text", { x: left + long + 6, y: y + 16, "font-size": 13 }, duration(time)));
    });
    return svg;
  }

  const layoutKinds = {
    ...Object.fromEntries([...LAYOUT_FIELDS.map(([, name]) => name), "zero_stage"].map((name) => [name, inAddress.number])),
    sequence_parallel: inAddress.mark, recomputation: inAddress.oneOf(RECOMPUTATIONS),
  };
  const kindsOf = {
    mode: inAddress.oneOf(["training", "serving"]), preset: inAddress.oneOf([...model.get("presets").map((one) => one.name), ""]),
    own: inAddress.like(model.get("own")), device: inAddress.oneOf(model.get("devices").map((one) => one.name)),
    recipe: inAddress.oneOf(recipes.map((one) => one.name)), all_pairs: inAddress.mark,
    weight_format: inAddress.oneOf(Object.keys(formats)), cache_format: inAddress.oneOf(Object.keys(formats)),
    ...Object.fromEntries(["batch", "tokens", "total_tokens", "mfu", "price", "node", "network"].map((name) => [name, inAddress.number])),
  };
  const settings = () => ({ ...Object.fromEntries(Object.keys(kindsOf).map((name) => [name, model.get(name)])), ...model.get("degrees") });
  const apply = (some) => change({
    ...Object.fromEntries(Object.keys(kindsOf).map((name) => [name, some[name]])),
    degrees: Object.fromEntries(Object.keys(layoutKinds).map((name) => [name, some[name]])),
  });
  // A notebook's address is not the figure's to change.
  const address = model.get("address") ? keepAddress({ ...kindsOf, ...layoutKinds }, settings, apply) : { write() {}, stop() {} };
  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const state = ["mode", "preset", "own", "device", "price", "total_tokens", "mfu", "node", "network", "batch", "tokens", "recipe", "weight_format", "cache_format", "degrees", "all_pairs"];
  const stopTraits = watchTraits(model, state, show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
    address.stop();
  };
}

register("mlsys-estimator", render);
export default { render };
