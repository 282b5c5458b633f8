// Bytes that one device sends in a step, as `mlsys_lab.flops.communication` counts them: collectives as rings send them.

function gatherBytes(sizeBytes, devices) {
  return (sizeBytes * (devices - 1)) / devices;
}

function dataParallelBytes(weightBytes, gradientBytes, devices, zeroStage, microBatches) {
  const [weights, gradients] = [[0, 2], [1, 1], [1, microBatches], [2 * microBatches, microBatches]][zeroStage];
  return gatherBytes(weights * weightBytes + gradients * gradientBytes, devices);
}

function tensorParallelBytes(c, tokens, devices, { layers, elementBytes, sequenceParallel, recomputation, training = true }) {
  const ends = c.parallel_blocks ? 1 : 2;
  let [begins, kept] = [ends, c.experts ? 1 - c.experts.dense_layers / c.n_layers : 0];
  if (c.latent && !c.parallel_blocks) {
    const width = c.latent.kv_rank + c.latent.rope_dim + (c.latent.q_rank || c.d_model);
    [begins, kept] = [1 + width / c.d_model, kept + 1];
  }
  const forward = ends + (sequenceParallel ? begins : ends);
  let gathers = forward;
  if (training) {
    gathers = 2 * (ends + begins) + (recomputation === "full" ? forward : 0) + (sequenceParallel ? ends - kept : 0);
  }
  return gathers * layers * gatherBytes(tokens * c.d_model * elementBytes, devices);
}

function pipelineBytes(c, tokens, elementBytes, tensor) {
  return (tokens * c.d_model * elementBytes) / tensor;
}

function expertParallelBytes(c, tokens, devices, layers, elementBytes) {
  return c.experts ? 2 * layers * gatherBytes(tokens * c.experts.active * c.d_model * elementBytes, devices) : 0;
}

function contextParallelBytes(c, tokens, devices, layers, elementBytes, tensor) {
  const valueDim = c.latent ? c.latent.v_dim : c.head_dim;
  const heads = Math.max(1, c.n_kv_heads / tensor);
  return layers * gatherBytes(tokens * heads * (c.head_dim + valueDim) * elementBytes, devices);
}

function bubble(stages, microBatches, interleave) {
  return (stages - 1) / (interleave * microBatches);
}

