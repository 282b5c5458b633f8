// The planner: `mlsys-lab plan` as a form. Every way to divide a training step, and what each that loses loses by.

const PLANNER_STYLE = `
.figure {
  --model: #1759b8; --recomputation: #7b3fa0; --bubble: #9aa5b1; --memory: #8a6d00; --link: #26734d; --network: #b4410e;
}
@media screen {
  .figure[data-theme="dark"] {
    --model: #82b5ff; --recomputation: #cf9cf0; --bubble: #6b7786; --memory: #e3c14d; --link: #6fcf9f; --network: #ffab70;
  }
}
fieldset { border: 0; border-top: 1px solid var(--line); margin: 12px 0 0; padding: 4px 0 0; min-width: 0; }
fieldset:first-of-type { border-top: 0; margin-top: 0; padding-top: 0; }
legend { padding: 0 8px 0 0; font-weight: 600; }
.results { border-top: 1px solid var(--line); margin-top: 14px; }
.results p.verdict[data-fits="false"] { color: var(--bad); }
.kinds { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 10px 0 0; padding: 0; list-style: none; font-size: 13px; }
.kinds li { display: flex; gap: 6px; align-items: center; }
.kinds i { width: 12px; height: 12px; border-radius: 3px; }
.plans { margin: 6px 0 0; padding: 0; list-style: none; }
.plans li { display: grid; grid-template-columns: 19em minmax(0, 1fr) 15em; gap: 0 14px; align-items: center; padding: 6px 0; border-top: 1px solid var(--line); }
.plans .settings, .plans .loss { color: var(--muted); font-size: 13px; }
.plans .ways { font-weight: 600; }
.plans li[data-fits="false"] .loss { color: var(--bad); }
.bar { display: flex; height: 18px; min-width: 0; }
.bar i { flex: none; height: 100%; }
@media (max-width: 760px) { .plans li { grid-template-columns: minmax(0, 1fr); gap: 3px; } }
.command { display: block; margin-top: 12px; font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px; overflow-wrap: anywhere; }
.command span { white-space: nowrap; }
.command:empty { display: none; }
summary { cursor: pointer; color: var(--value); margin-top: 8px; }
`;

const PARTS = {
  model: "the model's FLOPs", recomputation: "recomputation", bubble: "bubble", memory: "memory bandwidth", link: "links in the node", network: "network",
};
const LOSSES = { ...PARTS, model: "uneven stages" };
const DEGREES = [
  ["data", "data ranks"], ["tensor", "tensor ranks"], ["pipeline", "pipeline stages"], ["expert", "expert ranks"], ["context", "context ranks"],
];
const SETTINGS = [["micro_batch", "micro-batch"], ["interleave", "chunks a stage"]];
const FIRST = 8;

function render({ model, el }) {
  const recipes = model.get("recipes");
  const { box, stop } = stage(el, model.get("title") ?? "Planner", AXES_STYLE + PLANNER_STYLE);
  let most = FIRST;

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const form = sizeForm(model, change, [["longest sequence", "context"]]);
  const hardware = deviceForm(model, change);
  const put = (name) => (value) => change({ [name]: value });
  // What is left empty is for the planner to choose.
  const give = (name, value) => {
    const given = Object.entries({ ...model.get("given"), [name]: value }).filter(([, one]) => one !== undefined);
    change({ given: Object.fromEntries(given) });
  };
  const devices = numberField("devices", { min: 1, step: 1 }, put("count"));
  const reserve = numberField("GB kept free", { min: 0 }, put("reserve"));
  const batch = numberField("sequences", { min: 1, step: 1 }, put("batch"));
  const tokens = numberField("tokens of each", { min: 1, step: 1 }, put("tokens"));
  const recipe = menu("precision recipe, bytes a parameter", recipes.map((one) => [one.name, `${one.name}: ${one.words}`]), put("recipe"));
  const numbers = [...DEGREES, ...SETTINGS].map(([name, label]) => ({
    name, ...numberField(label, { min: 1, step: 1, placeholder: "any" }, (value) => give(name, Number.isNaN(value) ? undefined : value)),
  }));
  const chosen = (name, label, values) => ({
    name, ...menu(label, [["", "any"], ...values.map((value) => [String(value), String(value)])], (text) => give(name, text ? values.find((value) => String(value) === text) : undefined)),
  });
  const menus = [chosen("zero_stage", "ZeRO stage", [0, 1, 2, 3]), chosen("recomputation", "recomputation", RECOMPUTATIONS), chosen("sequence_parallel", "sequence parallel", [true, false])];
  const allPairs = checkBox("attention without its causal mask", put("all_pairs"));
  const group = (legend, ...fields) => make("fieldset", {}, make("legend", {}, legend), make("div", { class: "fields" }, ...fields));
  for (const field of [recipe, form.preset]) field.label.classList.add("wide");
  const error = make("p", { class: "error", role: "alert" });
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const why = make("p", { class: "detail" });
  const kinds = make("ul", { class: "kinds" }, ...Object.entries(PARTS).map(([part, words]) => make("li", {}, make("i", { style: `background: var(--${part})` }), words)));
  const list = make("ol", { class: "plans" });
  const more = make("button", { type: "button", click: () => {
    most = Infinity;
    show();
  } });
  const command = make("code", { class: "command" });
  const results = make("div", { class: "results" }, verdict, why, kinds, list, more, command);
  box.append(
    group("Model", form.preset.label),
    make("details", {}, make("summary", {}, "Sizes"), make("div", { class: "fields" }, ...form.nodes)),
    group("Devices", hardware.device.label, devices.label, hardware.node.label, hardware.network.label, reserve.label),
    group("Load", batch.label, tokens.label, recipe.label),
    make("details", { open: Object.keys(model.get("given")).length > 0 }, make("summary", {}, "What of the layout is given"),
      make("div", { class: "fields" }, ...[...numbers, ...menus].map((one) => one.label))),
    make("div", { class: "row" }, allPairs.label), error, results);

  function specification() {
    const way = recipes.find((one) => one.name === model.get("recipe")) ?? recipes[0];
    const machine = hardware.machine(way.compute);
    const kept = (model.get("reserve") ?? NaN) * 1e9;
    if (!(kept >= 0 && kept < machine.memory_bytes)) {
      throwInputError("memory kept free out of range", { got: `${kept / 1e9} GB`, expected: `0 to ${rounded(machine.memory_bytes / 1e9)} GB` });
    }
    return {
      config: form.config(), machine: { ...machine, memory_bytes: machine.memory_bytes - kept }, recipe: way, causal: !model.get("all_pairs"),
      devices: model.get("count") ?? NaN, batch: model.get("batch") ?? NaN, tokens: model.get("tokens") ?? NaN, given: model.get("given"),
    };
  }

  function fillForm() {
    form.show();
    hardware.show();
    for (const [field, name] of [[devices, "count"], [reserve, "reserve"], [batch, "batch"], [tokens, "tokens"], [recipe, "recipe"]]) {
      field.input.value = model.get(name) ?? "";
    }
    const given = model.get("given");
    for (const { name, input, label } of [...numbers, ...menus]) {
      input.value = String(given[name] ?? "");
      label.hidden = name === "expert" && !form.config().experts && !(name in given);
    }
    allPairs.input.checked = model.get("all_pairs");
  }

  function show() {
    fillForm();
    let [spec, plans] = [];
    try {
      spec = specification();
      plans = plan(spec);
      error.textContent = "";
    } catch (inputError) {
      error.textContent = inputError.message;
    }
    results.hidden = !plans;
    if (!plans) return;
    const best = plans[0];
    const fits = best.missing_bytes === 0;
    verdict.dataset.fits = fits;
    verdict.textContent = fits
      ? `Best: ${wayWords(best.layout)}, ${duration(best.expected_s)} a step and ${rounded(100 * best.expected_mfu)} % MFU expected, ${duration(best.least_s)} and ${rounded(100 * best.best_mfu)} % at best`
      : `Nothing fits: ${si(best.missing_bytes, "B")} too much on a device, at least`;
    const fitting = plans.filter((one) => one.missing_bytes === 0).length;
    why.textContent = `${plans.length} layout${plans.length === 1 ? "" : "s"} of ${several(spec.devices)}, of which ${fitting} fit${fitting === 1 ? "s" : ""}. Times below are those of a step in which nothing overlaps; published runs reach 0.65 of that speed, which is what is expected.`;
    const longest = Math.max(...plans.slice(0, most).map((one) => one.time_s));
    list.replaceChildren(...plans.slice(0, most).map((one) => row(one, best, longest)));
    more.hidden = plans.length <= most;
    more.textContent = `Show all ${plans.length}`;
    // A line breaks between options, never within one.
    command.replaceChildren(...commandLine(spec).flatMap((word, i) => [i ? " " : "", make("span", {}, word)]));
  }

  function row(one, best, longest) {
    const parts = Object.keys(PARTS).filter((part) => one.parts_s[part] > 0);
    const label = parts.map((part) => `${PARTS[part]} ${duration(one.parts_s[part])}`).join(", ");
    const bar = make("div", { class: "bar", role: "img", "aria-label": label, title: label }, ...parts.map((part) =>
      make("i", { style: `background: var(--${part}); width: ${(100 * one.parts_s[part]) / longest}%` })));
    const held = `${duration(one.time_s)}, ${si(one.memory.total, "B")}`;
    return make("li", { "data-fits": String(one.missing_bytes === 0) },
      make("div", {}, make("div", { class: "ways" }, wayWords(one.layout)), make("div", { class: "settings" }, settingWords(one.layout))),
      bar,
      make("div", {}, make("div", {}, held), make("div", { class: "loss" }, reason(one, best))));
  }

  function reason(one, best) {
    if (one.missing_bytes > 0) return `does not fit: ${si(one.missing_bytes, "B")} too much`;
    if (one === best) return "the fastest that fits";
    const [part, lost] = lossOf(one, best);
    return `loses by ${LOSSES[part]}, ${duration(lost)} more`;
  }

  // The same in a terminal, where a preset has it.
  function commandLine({ devices: count, batch: sequences, tokens: length, given }) {
    if (!model.get("preset")) return [];
    const flags = { zero_stage: "--zero", recomputation: "--recompute" };
    const name = model.get("device");
    const words = [
      "mlsys-lab", "plan", model.get("preset"), `--device ${name.includes(" ") ? `"${name}"` : name}`, `--devices ${count}`,
      `--batch ${sequences}`, `--sequence ${length}`, model.get("node") === null ? "" : `--node ${model.get("node")}`, `--network ${model.get("network")}`,
      model.get("reserve") ? `--reserve ${model.get("reserve")}` : "", `--recipe ${model.get("recipe")}`, model.get("all_pairs") ? "--all-pairs" : "",
      ...Object.entries(given).map(([field, value]) => {
        if (typeof value === "boolean") return `--${value ? "" : "no-"}${field.replace("_", "-")}`;
        return `${flags[field] ?? `--${field.replace("_", "-")}`} ${value}`;
      }),
    ];
    return words.filter(Boolean);
  }

  const state = ["preset", "own", "device", "node", "network", "count", "reserve", "batch", "tokens", "recipe", "given", "all_pairs"];
  const anew = () => {
    most = FIRST;
    show();
  };
  const stopTraits = watchTraits(model, state, anew);
  show();
  return () => {
    stop();
    stopTraits();
  };
}

// Degrees above 1 in words: "4 data × 8 tensor".
function wayWords(layout) {
  const ways = DEGREES.filter(([name]) => layout[name] > 1 && name !== "expert").map(([name]) => `${layout[name]} ${name}`);
  const experts = layout.expert > 1 ? `, experts ${layout.expert} ways` : "";
  return (ways.join(" × ") || "one device") + experts;
}

function settingWords(layout) {
  return [
    `micro-batch ${layout.micro_batch}`, layout.interleave > 1 ? `${layout.interleave} chunks a stage` : "",
    layout.zero_stage ? `ZeRO ${layout.zero_stage}` : "", layout.sequence_parallel ? "sequence parallel" : "",
    layout.recomputation === "none" ? "" : `${layout.recomputation} recomputation`,
  ].filter(Boolean).join(", ");
}

register("mlsys-planner", render);
export default { render };
