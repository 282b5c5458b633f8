"""Capstone: one model, trained and served on the stack of layers that the learner built in the labs.

layers       LAYERS: what the stack asks of each lab's artifact, and where the package has the same
stack        load_stack(workspace, swaps) -> Stack: its layers; Stack.report() says whose each is, and of what version
job          what lab 16's functions are given: TrainJob, Serving, Calibration
settings     Settings: the model, its training on the book's text, and the sequence that is served, as `plan` fixes them
bundle       Bundle: artifacts, settings, calibration and sheet, from which a run can be repeated
weights      which configurations and weights are the capstone's
logits       logit_errors(stack, folder, tokens): one safetensors file, three ways to the same logits
training     train(stack, config, weights, ids, train_config, world_size) -> TrainResult: ranks on the stack's layers
checkpoints  save, load_states: the weights as a checkpoint of `parallel.train`, for `mlsys-lab export`, and the states
calibration  calibrate(stack, config, train_config, world_size) -> Calibration: this machine's rates, as plain numbers
sheet        predict(stack, config, ..., calibration, serving=) -> Sheet: costs, by lab 16 from labs 05, 07 and 10
measurement  measure(stack, ...), compare(sheet, measured): counts, which must be equal, and the clock next to a sheet
counting     count_rank, CountingTransformer: what `measure` counts in a training step and in decode steps
functions    call(stack, field, name, ...): calls that name the layer's function where it fails
report       render(stack, rows, calibration, trained): one HTML page with losses, and waterfalls of seconds
swaps        load_swapped(workspace, swaps) -> Stack: other layers in place of some, replicated optimizers among them
gains        Gain: what a swap changes, as predicted and as measured
integration  check_points(stack): where the layers meet, each held against an independent result
run          Run(folder), plan, train_run, make_bundle: a run on disk, which continues where it was stopped
serving      build_engine(stack, model): the engine on the scheduler, blocks, attention and masks of labs 10 and 11
milestones   MILESTONES, reproduce(milestone, stack) -> Result: eight published numbers, with the stack's own code

What connects the layers is the learner's too: lab 16's decoder, training loop, sheet and cache are the layer
`capstone`. This package runs it, counts what it does, and keeps its results.

Data flow. Weights have the names and shapes of `models.Transformer` everywhere, so no step renames anything:

    models.new_model ─ weights ─▶ training.train ─ shards ─▶ checkpoints.save ─▶ `mlsys-lab export` ─▶ model.safetensors
                                                                                                            │
    GPT (on lab 01)         ◀── weights ── models.load ◀────────────────────────────────────────────────────┤
    cache.extend (learner's) ◀── Transformer ── models.load ◀───────────────────────────────────────────────┘

The model is LLaMA-like (rotary positions, RMS norm, SwiGLU, no biases) because this is what the labs' own functions
cover: lab 04's kernels are RMS norm and SwiGLU, and lab 10's `step_cost` counts three MLP matrices and no bias. The
layers of a stack run on one another: `load_stack` loads lab 08 so that its `stack.load("collectives")` is the stack's
own layer, whether that is the learner's, the solved lab's, or the package's.
"""

from mlsys_lab.capstone.layers import LAYERS, LayerSpec
from mlsys_lab.capstone.stack import Source, Stack, load_stack

__all__ = ["LAYERS", "LayerSpec", "Source", "Stack", "load_stack"]
