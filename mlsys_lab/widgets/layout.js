// How a model is sharded over devices, as in `mlsys_lab.flops.layout`, with the same error messages.

const RECOMPUTATIONS = ["none", "selective", "full"];

// Throws for degrees that cannot be, or that the model or the batch does not divide by.
function checkLayout(layout) {
  checkWhole(layout, "Layout", ["data", "tensor", "pipeline", "expert", "context", "micro_batch", "interleave"], 1);
  if (layout.data % layout.expert) throwInputError("expert ranks are taken from the data ranks", { got: `${layout.expert} of ${layout.data}` });
  if (layout.interleave > 1 && layout.pipeline === 1) throwInputError("a model of one stage has no chunks to interleave", { got: `${layout.interleave} of them` });
}

function checkDivision(c, layout) {
  const wants = [
    ["query heads", c.n_heads, "tensor-parallel ranks", layout.tensor], ["d_ff", c.d_ff, "tensor-parallel ranks", layout.tensor],
  ];
  if (c.experts) {
    wants.push(["experts", c.experts.count, "expert-parallel ranks", layout.expert], ["an expert's d_ff", c.experts.d_ff, "tensor-parallel ranks", layout.tensor]);
  } else if (layout.expert > 1) {
    throwInputError(`${c.name} has no experts to divide`, { got: `${layout.expert} expert-parallel ranks` });
  }
  for (const [what, count, who, ways] of wants) {
    if (count % ways) throwInputError(`${what} do not divide evenly`, { got: `${count} among ${ways} ${who}` });
  }
  const chunks = layout.pipeline * layout.interleave;
  // An interleaved model's first chunk may hold the embedding alone, its last one the head.
  if (c.n_layers + (layout.interleave > 1 ? 2 : 0) < chunks) throwInputError("a model chunk without a layer", { got: `${c.n_layers} layers for ${chunks} model chunks` });
  const K = c.n_kv_heads;
  if (K % layout.tensor && layout.tensor % K) throwInputError("key/value heads do not divide evenly", { got: `${K} among ${layout.tensor} tensor-parallel ranks` });
}

// Micro-batches of each data-parallel rank in a step on `batch` sequences.
function microBatches(layout, batch) {
  const once = layout.data * layout.micro_batch;
  if (!Number.isInteger(batch) || batch < 1 || batch % once) {
    throwInputError("the batch does not divide evenly", {
      got: `${Number.isNaN(batch) ? "no" : batch} sequences`,
      expected: `a multiple of ${once}: ${layout.data} data-parallel ranks, ${layout.micro_batch} sequences each`,
    });
  }
  const count = batch / once;
  if (layout.interleave > 1 && count % layout.pipeline) {
    throwInputError("interleaved micro-batches are a multiple of the stages", { got: `${count} over ${layout.pipeline} stages` });
  }
  return count;
}

// Layers of the fullest stage, or of the first or the last one, which have a layer less where some have.
function stageLayers(c, layout, { first = false, last = false } = {}) {
  const full = Math.ceil(c.n_layers / (layout.pipeline * layout.interleave)) * layout.interleave;
  const lacking = full * layout.pipeline - c.n_layers;
  return full - ((last && lacking > 0) || (first && lacking > 1) ? 1 : 0);
}

// How often a rank with ZeRO 2 or 3 runs its layers in a step.
function roundsOf(layout, count) {
  return layout.interleave > 1 ? Math.floor(count / layout.pipeline) : count;
}

// Micro-batches in flight on a stage, each with all of its layers.
function inFlight(layout, stage, count) {
  const [p, v] = [layout.pipeline, layout.interleave];
  const ahead = v === 1 ? p - 1 - stage : 2 * (p - 1 - stage) + (v - 1) * p;
  return Math.min(ahead + 1, v * count) / v;
}

function deviceCount(layout) {
  return layout.data * layout.context * layout.tensor * layout.pipeline;
}

// Parameters on one device before ZeRO: of its stage's layers, its experts, and the embedding and head of the end stages.
function shard(c, layout) {
  checkDivision(c, layout);
  const [whole, t, p] = [parameters(c), layout.tensor, layout.pipeline];
  const share = stageLayers(c, layout) / c.n_layers;
  const routed = c.experts ? (c.n_layers - c.experts.dense_layers) * c.experts.count * mlpParameters(c, c.experts.d_ff) : 0;
  let [copied, moreHeads] = [whole.norm + whole.router, 0];
  if (c.latent) {
    copied += c.n_layers * c.d_model * ((c.latent.q_rank ?? 0) + c.latent.kv_rank + c.latent.rope_dim);
  } else {
    moreHeads = c.n_layers * c.d_model * 2 * c.n_kv_heads * c.head_dim * (Math.max(1, t / c.n_kv_heads) - 1);
  }
  const divided = whole.total - whole.embedding - whole.position - whole.head - routed - copied + moreHeads;
  return {
    dense: (divided / t + copied) * share,
    experts: (routed / (t * layout.expert)) * share,
    embedding: whole.embedding / t + whole.position,
    head: c.tied ? (p > 1 ? whole.embedding / t : 0) : whole.head / t,
  };
}

function shardAt(held, first, last) {
  return held.dense + (first ? held.embedding : 0) + (last ? held.head : 0);
}

