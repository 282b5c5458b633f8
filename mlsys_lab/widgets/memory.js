// Bytes of training states, activations and KV caches, as `mlsys_lab.flops.memory`, `.activations` and `.cache` count them.

// States on a device that holds `count` parameters together with the `data` ranks that hold the same ones.
function states(count, recipe, data, zeroStage) {
  const optimiser = count / (zeroStage >= 1 ? data : 1);
  return {
    weights: (recipe.weights * count) / (zeroStage >= 3 ? data : 1),
    gradients: (recipe.gradients * count) / (zeroStage >= 2 ? data : 1),
    master: recipe.master * optimiser,
    moments: recipe.moments * optimiser,
  };
}

// Saved activations of the MLP per token, without its input, in elements, over the experts in use.
function mlpElements(c, fused = false) {
  const perWidth = isGated(c) ? (fused ? 3 : 4) : 2;
  if (!c.experts) return perWidth * c.d_ff;
  const { active, shared, d_ff: dFf, dense_layers: denseLayers } = c.experts;
  return (perWidth * (denseLayers * c.d_ff + (c.n_layers - denseLayers) * (active + shared) * dFf)) / c.n_layers;
}

// Saved activations per routed token and expert: the expert's input and output, in elements.
function sentElements(c) {
  return c.experts ? (2 * c.experts.active * c.d_model * (c.n_layers - c.experts.dense_layers)) / c.n_layers : 0;
}

// Bytes of a layer's saved activations on each device for `batch` sequences of `tokens` tokens; fused attention and gated activation, no dropout.
function layerActivations(c, tokens, batch, { tensor, sequenceParallel, recomputation, elementBytes }) {
  const [rows, D, N] = [batch * tokens, c.d_model, c.n_heads];
  if (sequenceParallel && tokens % tensor) {
    throwInputError("sequence parallelism does not divide evenly", { got: `${tokens} tokens among ${tensor} tensor-parallel ranks` });
  }
  const shared = sequenceParallel ? tensor : 1;
  if (recomputation === "full") return (rows * D * elementBytes) / shared;
  const valueDim = c.latent ? c.latent.v_dim : c.head_dim;
  const keyValue = c.n_kv_heads * (c.head_dim + valueDim) * Math.max(1, tensor / c.n_kv_heads);
  const normed = (c.pre_norms ? 2 : 1) * (c.parallel_blocks ? 1 : 2) + (c.post_norms ? 2 : 0);
  const replicated = (rows * (normed * D + sentElements(c)) * elementBytes) / shared;
  const attention = (rows * (N * c.head_dim + keyValue + N * valueDim) * elementBytes) / tensor;
  const scores = recomputation === "selective" ? 0 : (rows * N * 4) / tensor;
  return replicated + attention + scores + (rows * mlpElements(c, true) * elementBytes) / tensor;
}

// Behind the last layer: input and output of the last norm, and the loss's probabilities in fp32.
function headActivations(c, tokens, batch, tensor, elementBytes) {
  return batch * tokens * (2 * c.d_model * elementBytes + (4 * c.vocab_size) / tensor);
}

// Bytes that one token keeps in the KV cache, all layers together.
function cacheBytesPerToken(c, elementBytes) {
  const elements = c.latent ? c.latent.kv_rank + c.latent.rope_dim : 2 * c.n_kv_heads * c.head_dim;
  return c.n_layers * elements * elementBytes;
}

// Number of copies of the KV cache on a tensor-parallel group.
function cacheCopies(c, tensor) {
  return c.latent ? tensor : Math.max(1, tensor / c.n_kv_heads);
}

