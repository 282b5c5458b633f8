// Parameters and forward FLOPs of a transformer, as `mlsys_lab.flops.parameters` and `.compute` count them. Needs config.js.

function isGated(c) {
  return c.activation === "swiglu" || c.activation === "geglu";
}

function mlpParameters(c, dFf) {
  const inputs = isGated(c) ? 2 : 1;
  return (inputs + 1) * c.d_model * dFf + (c.mlp_bias ? inputs * dFf + c.d_model : 0);
}

function attentionParameters(c) {
  const bias = (c.out_bias ? c.d_model : 0) + (c.attention_sinks ? c.n_heads : 0);
  if (c.latent) {
    const { q_rank: qRank, kv_rank: kvRank, nope_dim: nope, rope_dim: rope, v_dim: vDim } = c.latent;
    const query = c.n_heads * (nope + rope);
    const queries = qRank ? qRank * (c.d_model + query) : c.d_model * query;
    return queries + c.d_model * (kvRank + rope) + kvRank * c.n_heads * (nope + vDim) + c.n_heads * vDim * c.d_model + bias;
  }
  const inputs = (c.n_heads + 2 * c.n_kv_heads) * c.head_dim;
  return c.d_model * (inputs + c.n_heads * c.head_dim) + (c.qkv_bias ? inputs : 0) + bias;
}

// Counts of learned numbers by kind; `idle` are those of experts that a token skips.
function parameters(c) {
  const inner = c.latent ? (c.latent.q_rank ?? 0) + c.latent.kv_rank : c.qk_norm ? (c.qk_norm_all_heads ? c.n_heads + c.n_kv_heads : 2) * c.head_dim : 0;
  const before = c.pre_norms ? (c.parallel_blocks ? 1 : 2) : 0;
  const norms = c.n_layers * (before + (c.post_norms ? 2 : 0)) + 1 + (c.embedding_norm ? 1 : 0);
  let [mlp, router, idle] = [c.n_layers * mlpParameters(c, c.d_ff), 0, 0];
  if (c.experts) {
    const { count, active, shared, d_ff: dFf, dense_layers: dense } = c.experts;
    const [expert, routed] = [mlpParameters(c, dFf), c.n_layers - dense];
    mlp = dense * mlpParameters(c, c.d_ff) + routed * (count + shared) * expert;
    idle = routed * (count - active) * expert;
    router = routed * count * (c.d_model + (c.router_bias ? 1 : 0));
  }
  const kinds = {
    embedding: c.vocab_size * c.d_model,
    position: c.position === "learned" ? c.context * c.d_model : 0,
    attention: c.n_layers * attentionParameters(c),
    mlp, router,
    norm: norms * c.d_model * (Number(c.norm_weight) + Number(c.norm_bias)) + c.n_layers * inner,
    head: c.tied ? 0 : c.vocab_size * (c.d_model + Number(c.head_bias)),
  };
  const total = Object.values(kinds).reduce((sum, count) => sum + count, 0);
  return { ...kinds, idle, total, active: total - idle };
}

// Pairs (query, key) that `tokens` new tokens after `past` cached ones multiply; with a window each sees at most that many.
function pairs(tokens, past, causal, window) {
  if (window) {
    const growing = Math.max(0, Math.min(tokens, window - past));
    return pairs(growing, past, true) + (tokens - growing) * window;
  }
  return tokens * past + (causal ? (tokens * (tokens + 1)) / 2 : tokens * tokens);
}

// FLOPs of a forward pass by matrix multiplication, all layers together; a multiply-add is two.
function forwardFlops(c, tokens, { batch = 1, causal = false, past = 0, headTokens = tokens } = {}) {
  const [D, N, K, H] = [c.d_model, c.n_heads, c.n_kv_heads, c.head_dim];
  let [query, keyValue, valueDim] = [D * N * H, D * 2 * K * H, H];
  if (c.latent) {
    const { q_rank: qRank, kv_rank: kvRank, nope_dim: nope, rope_dim: rope, v_dim: vDim } = c.latent;
    valueDim = vDim;
    if (qRank) query = qRank * (D + N * H);
    keyValue = D * (kvRank + rope) + kvRank * N * (nope + vDim);
  }
  const matrices = isGated(c) ? 3 : 2;
  let [denseLayers, expert, router] = [c.n_layers, 0, 0];
  if (c.experts) {
    denseLayers = c.experts.dense_layers;
    const routed = c.n_layers - denseLayers;
    expert = routed * (c.experts.active + c.experts.shared) * matrices * D * c.experts.d_ff;
    router = routed * D * c.experts.count;
  }
  let layerPairs = c.n_layers * pairs(tokens, past, causal);
  if (c.window) layerPairs -= c.window.layers * Math.max(0, pairs(tokens, past, causal) - pairs(tokens, past, causal, c.window.tokens));
  const [allTokens, allPairs] = [batch * tokens, batch * layerPairs];
  const flops = {
    query: 2 * allTokens * c.n_layers * query,
    keyValue: 2 * allTokens * c.n_layers * keyValue,
    output: 2 * allTokens * c.n_layers * N * valueDim * D,
    mlp: 2 * allTokens * (denseLayers * matrices * D * c.d_ff + expert),
    router: 2 * allTokens * router,
    scores: 2 * allPairs * N * H,
    values: 2 * allPairs * N * valueDim,
    head: 2 * batch * headTokens * D * c.vocab_size,
  };
  const total = Object.values(flops).reduce((sum, part) => sum + part, 0);
  const attention = flops.scores + flops.values;
  return { ...flops, total, attention, layers: total - flops.head, attentionShare: attention / total };
}

// FLOPs of `tokens` new tokens of a sequence after `past` cached ones, with logits of the last. Latent attention multiplies
// with the cached vectors or unpacks them first, whichever is cheaper.
function stepFlops(c, tokens, past) {
  const once = forwardFlops(c, tokens, { causal: true, past, headTokens: 1 }).total;
  if (!c.latent) return once;
  const { kv_rank: rank, nope_dim: nope, rope_dim: rope, v_dim: vDim } = c.latent;
  const unpacking = past * rank * (nope + vDim);
  const wider = pairs(tokens, past, true) * (2 * rank + rope - (nope + rope) - vDim);
  return once + 2 * c.n_layers * c.n_heads * Math.min(unpacking, wider);
}

// Tokens of a sequence from which scores and weighted sums cost more than everything else; Infinity where windows prevent it.
function attentionCrossover(c, causal) {
  const one = forwardFlops(c, 1);
  const ratio = (one.total - one.attention) / one.attention;
  const plain = causal ? 2 * ratio - 1 : ratio;
  if (!c.window || plain <= c.window.tokens) return plain;
  const isMost = (tokens) => forwardFlops(c, tokens, { causal }).attentionShare >= 0.5;
  if (c.window.layers === c.n_layers && !isMost(2 ** 30)) return Infinity;
  let [low, high] = [c.window.tokens, c.window.tokens];
  while (!isMost(high)) [low, high] = [high, 2 * high];
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (isMost(middle)) high = middle;
    else low = middle;
  }
  return high;
}

