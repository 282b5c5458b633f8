// The form that chooses a transformer: one of the presets, or sizes of the reader's own. Needs axes.js.

const SIZE_FIELDS = [
  ["layers L", "n_layers"], ["width D", "d_model"], ["query heads N", "n_heads"], ["key/value heads K", "n_kv_heads"],
  ["head width H", "head_dim"], ["MLP width F", "d_ff"], ["vocabulary V", "vocab_size"],
];
const EXPERT_FIELDS = [["experts E", "count"], ["experts used", "active"], ["expert width", "d_ff"], ["shared experts", "shared"], ["dense layers", "dense_layers"]];
const MLP_KINDS = [["swiglu", "SwiGLU"], ["geglu", "GEGLU"], ["gelu", "GELU"], ["gelu_tanh", "GELU, tanh"], ["relu", "ReLU"]];

// Reads `presets`, `preset` and `own` of the model; a size that is changed makes a config of one's own from the one shown.
// `extra` are further fields, as those above.
function sizeForm(model, change, extra = []) {
  const presets = model.get("presets");
  const config = () => presets.find((one) => one.name === model.get("preset")) ?? model.get("own");
  // A text is as long as the preset has positions, at most.
  const chosen = (name) => {
    const { position, context } = presets.find((one) => one.name === name);
    return { preset: name, ...(position === "learned" && model.get("tokens") > context ? { tokens: context } : {}) };
  };
  const alter = (next) => change({ own: { ...config(), ...next, name: "own sizes" }, preset: "" });
  const preset = menu("Model", [...presets.map((one) => [one.name, one.name]), ["", "own sizes"]], (name) => (name ? change(chosen(name)) : alter({})));
  const sizes = [...SIZE_FIELDS, ...extra].map(([label, name]) => ({
    name,
    ...numberField(label, { min: 1, step: 1 }, (value) => {
      const { n_heads: heads, n_kv_heads: groups } = config();
      // With a key for each query head, it stays so.
      alter(name === "n_heads" && heads === groups ? { n_heads: value, n_kv_heads: value } : { [name]: value });
    }),
  }));
  const experts = EXPERT_FIELDS.map(([label, name]) => ({
    name, ...numberField(label, { min: 0, step: 1 }, (value) => alter({ experts: { ...config().experts, [name]: value } })),
  }));
  const kind = menu("MLP", MLP_KINDS, (value) => alter({ activation: value }));
  const nodes = [...sizes, kind, ...experts].map((one) => one.label);
  const shown = (value) => (Number.isFinite(value) ? value : "");

  function show() {
    const now = config();
    preset.input.value = presets.includes(now) ? now.name : "";
    for (const { name, input, label } of sizes) {
      input.value = shown(now[name]);
      label.hidden = Boolean(now.latent) && (name === "n_kv_heads" || name === "head_dim");
      if (name === "context") label.hidden = now.position !== "learned";
    }
    for (const { name, input, label } of experts) {
      label.hidden = !now.experts;
      if (now.experts) input.value = shown(now.experts[name]);
    }
    kind.input.value = now.activation;
  }
  return { config, preset, nodes, show };
}

