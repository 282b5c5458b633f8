// A transformer's config, validated as in `mlsys_lab.configs.transformer`, with the same error messages.

function checkWhole(record, kind, names, least) {
  for (const name of names) {
    if (Number.isInteger(record[name]) && record[name] >= least) continue;
    throwInputError(`${kind}.${name} out of range`, { got: Number.isNaN(record[name]) ? "nothing" : record[name], expected: `a whole number, at least ${least}` });
  }
}

function checkEven(what, value) {
  if (value % 2) throwInputError(`${what} must be even: rotary positions rotate pairs`, { got: value });
}

// The config with head_dim and n_kv_heads filled in.
function completed(given) {
  const config = { ...given };
  if (config.experts) config.experts = { max_groups: 0, ...config.experts };
  const { experts, latent } = config;
  if (experts) {
    checkWhole(experts, "Experts", ["count", "active", "d_ff"], 1);
    checkWhole(experts, "Experts", ["shared", "dense_layers", "max_groups"], 0);
    if (experts.active > experts.count) throwInputError("a token uses more experts than there are", { got: experts.active, expected: `1 to ${experts.count}` });
  }
  checkWhole(config, "TransformerConfig", ["n_layers", "d_model", "n_heads", "d_ff", "vocab_size", "context"], 1);
  checkWhole(config, "TransformerConfig", ["n_kv_heads", "head_dim"], 0);
  config.n_kv_heads ||= config.n_heads;
  if (config.n_heads % config.n_kv_heads) {
    throwInputError("query heads must divide among key/value heads", { got: `${config.n_heads} query and ${config.n_kv_heads} key/value heads` });
  }
  if (latent) {
    checkLatent(config, latent);
  } else if (config.head_dim === 0) {
    if (config.d_model % config.n_heads) throwInputError("d_model must divide among heads", { got: `${config.d_model} wide, ${config.n_heads} heads` });
    config.head_dim = config.d_model / config.n_heads;
  }
  if (config.position === "rotary" && !latent) checkEven("head_dim with rotary positions", config.head_dim);
  if (config.norm === "rms" && config.norm_bias) throwInputError("an RMS norm has no bias", { got: "norm_bias", help: "norm='layer' can have one" });
  if (experts && experts.dense_layers >= config.n_layers) {
    throwInputError("no layer is left for the experts", { got: `${experts.dense_layers} dense of ${config.n_layers} layers`, expected: "fewer, or experts=None" });
  }
  return config;
}

function checkLatent(config, latent) {
  const width = latent.nope_dim + latent.rope_dim;
  if (config.head_dim !== 0 && config.head_dim !== width) throwInputError("head_dim is not that of latent attention", { got: config.head_dim, expected: width });
  config.head_dim = width;
  if (config.n_kv_heads !== config.n_heads) {
    throwInputError("latent attention has a key and a value for every query head", { got: `${config.n_kv_heads} key/value heads`, expected: config.n_heads });
  }
  if (config.position !== "rotary" || config.qkv_bias || config.qk_norm) {
    throwInputError("latent attention has rotary positions, no biases of queries, keys and values, and norms of its own", {
      got: `position='${config.position}', qkv_bias=${config.qkv_bias ? "True" : "False"}, qk_norm=${config.qk_norm ? "True" : "False"}`,
    });
  }
}

