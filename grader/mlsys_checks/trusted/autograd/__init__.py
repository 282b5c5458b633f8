"""Checks of lab 01: names, points, hints, and the sizes from which cases are drawn.

engine      Tasks 1 to 6: operations as expressions, graphs
training    Tasks 7 and 8: networks, steps, the classifier, checkpoints
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from mlsys_checks.sandboxed import autograd as calls
from mlsys_checks.sandboxed.spec import Case, Check, Lab, Range, draw_cases
from mlsys_checks.trusted.autograd import engine, training
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.repeats import repeat_first_case

DOUBLE, HALF = {"dtype": "float64"}, {"dtype": "float16"}


def _sides(inputs: Any, run: Any, expect: Any, compare: Any = close) -> dict[str, Any]:
    return {"inputs": inputs, "run": run, "expect": expect, "compare": compare}


def _check_operation(inputs: Any, **parts: Any) -> Check:
    """Return a check of operations, each a case of its own."""
    sides = _sides(inputs, calls.operation, engine.expect_operation, engine.compare_operation)
    return Check(**sides, describe=engine.render_operation, **parts)


POWER = {"code": "a ** {p}"}
POWERS = {**POWER, "range": (0.1, 4.0), "positive": True, "exponents": (-2, -1, -0.5, 0.25, 0.5, 1.5, 3)}
WHOLE_POWERS = {**POWER, "range": (0.3, 2.0), "exponents": (1, 2, 3)}
FUNCTIONS = ("a.exp()", "a.tanh()", "a.relu()")
GRAPH = {"nodes": Range(2, 12), "roots": Range(1, 3), "array": Range(0, 1)}
ELEMENTWISE = {"axes": Range(0, 3), "transposed": Range(0, 1)}
MATMUL = {"batch axes": Range(0, 2), "transposed": Range(0, 1)}
MATMUL |= {"m": Range(1, 6, edges=(0,)), "k": Range(1, 6), "n": Range(1, 6)}
SUM = {"axes": Range(0, 4), "transposed": Range(0, 1)}
INDEX = {"count": Range(0, 9), "transposed": Range(0, 1)}
LOSS = {"batch": Range(1, 9), "classes": Range(1, 12), "transposed": Range(0, 1)}
MLP = {"layers": Range(1, 4), "width": Range(2, 9), "batch": Range(1, 5)}
SGD = {"steps": Range(1, 5), "momentum": Range(0, 9), "decay": Range(0, 50), "rests": Range(0, 2), "kept": Range(0, 1)}
STEP = {"steps": Range(2, 5), "batch": Range(1, 8), "classes": Range(2, 6)}
STACK = {"batch": Range(1, 64), "width": Range(1, 64), "layers": Range(1, 40)}
LARGE = {"batch": Range(2 * 10**5, 10**6), "width": Range(10**4, 10**5)}
STAGES = {"batch": Range(1, 5), "width": Range(1, 6), "backwards": Range(1, 2), "data": Range(0, 1)}
STAGES |= {"nested": Range(0, 1), "stops": Range(0, 1), "quiet": Range(0, 1)}
PLAIN = {"batch": 3, "width": 2}
LADDER = [(i, i - back) for i in range(2, 60) for back in (1, 2)]

CHECKS = (
    _check_operation(
        engine.draw_value,
        name="value_arithmetic",
        title="Products and powers, forward and back",
        points=5,
        cases=(
            Case("a product", {"code": "a * b"}),
            Case("a number times itself", {"code": "a * a"}),
            Case("a plain number in front", {"code": "3 * a"}),
            Case("a power", {**POWER, "exponents": (3,)}),
            Case("one over a number", {**POWER, "exponents": (-1,)}),
            *(Case(f"zero to the power of {p}", {**POWER, "range": (0, 0), "exponents": (p,)}) for p in (0, 1, 2)),
            *draw_cases(POWERS, public=2, hidden=2),
            Case("whole powers of either sign", WHOLE_POWERS, hidden=True),
            Case("a tiny base", {**POWERS, "range": (1e-220, 1e-217), "exponents": (1.5,)}, hidden=True),
        ),
        first_hint="Look at one edge at a time: how fast does the result grow with this operand?",
        hint="Each edge is a pair (operand, vjp), one for each use, and vjp(g) returns g times the derivative: b for a "
        "in a · b, p · a^(p−1) in a^p. For p = 0 the derivative is 0, also at a = 0.",
        uses=("Value",),
    ),
    _check_operation(
        engine.draw_value,
        name="value_functions",
        title="exp, tanh and relu, forward and back",
        points=5,
        cases=(
            *(Case(f"{code}, a of size 1", {"code": code}) for code in FUNCTIONS),
            Case("a.relu() at zero", {"code": "a.relu()", "range": (0.0, 0.0)}),
            Case("a.relu() of −∞", {"code": "a.relu()", "range": (-math.inf, -math.inf)}),
            Case("a.tanh() far out", {"code": "a.tanh()", "range": (400.0, 1000.0), "positive": True}),
            Case("a.exp() far below zero", {"code": "a.exp()", "range": (-600.0, -600.0)}),
            Case("a.tanh() among the largest numbers", {"code": "a.tanh()", "range": (1e308, 1.7e308)}, hidden=True),
            *(Case(f"{code}, larger", {"code": code, "range": (0.0, 4.0)}, hidden=True) for code in FUNCTIONS),
        ),
        first_hint="Compare each derivative with the one on paper, also at 0 and for large numbers.",
        hint="math.tanh does not overflow. Derivatives: e^a, 1 − tanh²(a), and 1 for a > 0, else 0. Use max for relu, "
        "since −∞ · 0 is NaN. Edges are a tuple of pairs, with one operand too: ((self, vjp),).",
        uses=("Value",),
    ),
    Check(
        name="topological_order",
        title="Operands before results, each node once",
        points=7,
        cases=(
            Case("an input alone", {"nodes": 1}),
            Case("x + x", {"nodes": 2, "edges": ((1, 0), (1, 0))}),
            Case("a long way and a short cut", {"nodes": 4, "edges": ((1, 0), (2, 1), (3, 0), (3, 2))}),
            Case("a short cut and a long way", {"nodes": 4, "edges": ((1, 0), (2, 1), (3, 2), (3, 0))}),
            Case("a node that the root does not need", {"nodes": 4, "edges": ((1, 0), (2, 1), (3, 1))}),
            Case("sixty nodes, each uses the two before it", {"nodes": 60, "edges": LADDER}),
            *draw_cases({"nodes": Range(2, 40)}, public=2, hidden=2, nodes=Range(40, 300)),
        ),
        **_sides(engine.draw_graph, calls.order, engine.expect_order, engine.compare_order),
        snippet=engine.ORDER,
        first_hint="Which nodes must be in the list before this one may be, and how do you know that they are?",
        hint="With a stack: a node that comes off for the first time goes back with a mark, and its operands go on top "
        "of it; it enters the list when the mark comes off. Remember in a set which nodes you have seen.",
        uses=("Value", "topological_order"),
        time_limit_s=4.0,
    ),
    Check(
        name="backward_reuse",
        title="Gradients add up where a value is used again",
        points=7,
        cases=(
            Case("x + x", {"nodes": 2, "edges": ((1, 0), (1, 0))}),
            Case("a long way and a short cut", {"nodes": 4, "edges": ((1, 0), (2, 1), (3, 0), (3, 2))}),
            Case("a second backward pass", {"nodes": 5, "roots": 2}),
            Case("a gradient of 0 at the root", {"nodes": 4, "grad": 0.0}),
            Case("gradients that are arrays", {"nodes": 8, "array": 1}),
            *draw_cases(GRAPH, public=3, hidden=3, nodes=Range(12, 30)),
        ),
        **_sides(engine.draw_graph, calls.reuse, engine.expect_reuse),
        describe=engine.render_reuse,
        first_hint="Draw a graph in which a node is used twice: how many gradients reach it, and when may it pass on "
        "its own?",
        hint="Keep gradients that arrive in a dictionary of this call, which starts with the root's; add, do not "
        "overwrite, and go through the order from its end. `accumulate` is called once for each node. For arrays, "
        "a = a + b makes a new one, where += changes one that another node may hold.",
        uses=("Value", "topological_order", "backward"),
    ),
    Check(
        name="backward_deep",
        title="A chain of 10,000 operations, and sixty doublings",
        points=4,
        cases=(
            Case("a chain of 10,000", {"depth": 10_000, "doublings": 0}),
            Case("sixty doublings", {"depth": 1, "doublings": 60}),
            Case("a chain of 3,000, then forty doublings", {"depth": 3_000, "doublings": 40}, hidden=True),
            Case("a chain of 50,000", {"depth": 50_000, "doublings": 0}, hidden=True),
        ),
        **_sides(engine.draw_deep, calls.deep, engine.expect_deep),
        snippet=engine.DEEP,
        first_hint="Does topological_order pass? Then what grows with the depth, and how often is a node visited?",
        hint="Python allows about a thousand nested calls: use a list as your stack. And visit a node once, not once "
        "for each path that leads to it: sixty doublings have 2^60 paths.",
        uses=("Value", "topological_order", "backward"),
    ),
    Check(
        name="unbroadcast",
        title="The backward pass through broadcasting",
        points=6,
        cases=(
            Case("nothing was broadcast", {"from": (3, 4), "to": (3, 4)}),
            Case("a bias", {"from": (64, 10), "to": (10,)}),
            Case("an axis that was stretched", {"from": (5, 7), "to": (5, 1)}),
            Case("an axis in front, another stretched", {"from": (2, 3, 4), "to": (3, 1)}),
            Case("a single number", {"from": (2, 1, 3), "to": (), "dtype": "float64"}),
            Case("in front an axis as long as one that stays", {"from": (3, 3, 4), "to": (3, 1)}),
            Case("no elements, an axis stretched to 0", {"from": (2, 0, 0), "to": (1, 0)}),
            *draw_cases({"axes": Range(1, 4)}, public=4, hidden=5, axes=Range(2, 6)),
        ),
        **_sides(engine.draw_unbroadcast, calls.unbroadcast, engine.expect_unbroadcast),
        snippet="unbroadcast(grad, tuple(shape.tolist()))",
        first_hint="Write both shapes below each other, aligned at the right: which axes were added, which stretched?",
        hint="First sum over axes in front until both have the same number; then, where the shape has a 1, sum over "
        "that axis and keep it. Mind that torch's sum(dim=()) sums over everything.",
        uses=("unbroadcast",),
    ),
    _check_operation(
        engine.draw_elementwise,
        name="tensor_elementwise",
        title="Elementwise operations with broadcasting",
        points=7,
        cases=(
            Case("a * b, equal shapes", {"code": "a * b", "shapes": ((2, 3), (2, 3))}),
            Case("a * b, broadcast", {"code": "a * b", "shapes": ((3, 1), (2, 3, 4))}),
            Case("a * b, broadcast both ways", {"code": "a * b", "shapes": ((4, 1, 3), (1, 5, 1))}),
            Case("a tensor times itself", {"code": "a * a", "shapes": ((2, 3),) * 2}),
            *(Case(code, {"code": code, "shapes": ((2, 3),) * 2, **HALF}) for code in engine.UNARY),
            *(Case(f"{code}, double precision", {"code": code, **DOUBLE}) for code in engine.UNARY),
            Case("a.relu() with zeros", {"code": "a.relu()", "zeros": True, "shapes": ((3, 4),) * 2}),
            *(Case(f"{code} far out", {"code": code, "extreme": xs}) for code, xs in engine.EXTREMES.items()),
            Case("a.relu() of −∞", {"code": "a.relu()", "extreme": (-math.inf,)}),
            Case("a.log() of 0", {"code": "a.log()", "extreme": (0.0,)}),
            *draw_cases({**ELEMENTWISE, **DOUBLE}, public=3, hidden=3),
            *(Case(f"{f} further out", {"code": f, "extreme": x}, hidden=True) for f, x in engine.EXTREMES.items()),
            Case("half precision", {**ELEMENTWISE, **HALF}, hidden=True),
        ),
        first_hint="Does the gradient of each operand have the operand's shape, and is it g times the derivative?",
        hint="Return record(result, (operand, vjp), …). Where an operand was broadcast, unbroadcast its gradient. Use "
        "clamp for relu, since −∞ · 0 is NaN. A vjp reads arrays of the forward pass and g, and changes neither.",
        uses=("Tensor", "mul", "exp", "log", "tanh", "relu"),
    ),
    _check_operation(
        engine.draw_matmul,
        name="tensor_matmul",
        title="Matrix products, batched ones too",
        points=7,
        cases=(
            Case("two matrices", {"shapes": ((2, 3), (3, 4))}),
            Case("square matrices", {"shapes": ((3, 3), (3, 3)), **DOUBLE}),
            Case("a batch meets one weight", {"shapes": ((4, 2, 3), (3, 2)), **HALF}),
            Case("two axes of a batch meet one weight", {"shapes": ((2, 3, 2, 3), (3, 2))}),
            Case("a batch and a weight, transposed", {"shapes": ((3, 4, 7), (7, 2)), "transposed": 1}),
            *draw_cases(MATMUL, public=2, hidden=4),
            Case("double precision", {**MATMUL, **DOUBLE}, hidden=True),
        ),
        first_hint="Write the three shapes down: only one order of factors gives the gradient its operand's shape.",
        hint="G · Bᵀ for the left operand, Aᵀ · G for the right one. Transpose the last two axes only (`.mT`), and "
        "unbroadcast what comes out. A vjp computes with torch.Tensors: g and a.data, not a.",
        uses=("Tensor", "matmul"),
    ),
    _check_operation(
        engine.draw_sum,
        name="tensor_sum",
        title="Sums over axes, and reshape",
        points=5,
        cases=(
            Case("all axes", {"code": "a.sum(axis=None, keepdims=False)", "shape": (2, 3)}),
            Case("the first axis", {"code": "a.sum(axis=0, keepdims=False)", "shape": (2, 3)}),
            Case("the last axis, kept", {"code": "a.sum(axis=-1, keepdims=True)", "shape": (2, 3)}),
            Case("the middle axis", {"code": "a.sum(axis=1, keepdims=False)", "shape": (2, 2, 2)}),
            Case("two axes", {"code": "a.sum(axis=(1, 0), keepdims=False)", "shape": (2, 3, 2), **HALF}),
            Case("two negative axes", {"code": "a.sum(axis=(-2, -1), keepdims=False)", "shape": (2, 2, 2)}),
            Case("the first axis, kept", {"code": "a.sum(axis=0, keepdims=True)", "shape": (2, 3)}),
            Case("reshape", {"code": "a.reshape(3, -1)", "shape": (2, 3)}),
            Case("reshape of a transpose", {"code": "a.reshape(3, 2)", "shape": (2, 3), "transposed": 1, **DOUBLE}),
            *draw_cases(SUM, public=4, hidden=6),
        ),
        first_hint="Each element is part of one sum: whose gradient does it get, and in which shape does that arrive?",
        hint="Reshape the gradient so that the summed axes have size 1, then expand it to the shape of a. For reshape, "
        "`view` needs a contiguous array, where `reshape` takes any.",
        uses=("Tensor", "mul", "reduce_sum", "reshape"),
    ),
    _check_operation(
        engine.draw_index,
        name="tensor_index",
        title="Picking out, and scattering back",
        points=6,
        cases=(
            Case("one row", {"code": "a[2]", "count": 0}),
            Case("a column", {"code": "a[:, -1]", "count": 0, **HALF}),
            Case("rows, picked more than once", {"code": "a[rows]", "count": 5, "from": 2, **DOUBLE}),
            Case("elements, picked more than once", {"code": "a[rows, 0]", "count": 5, "from": 2, "transposed": 1}),
            Case("a list of rows", {"code": "a[{rows}]", "count": 5, "from": 2}),
            *(Case(f"the index of {code}", {"code": code, "count": 4}) for code in engine.INDICES if "torch" in code),
            *draw_cases(INDEX, public=4, hidden=6, count=Range(0, 40)),
            Case("a list between None and −1", {**INDEX, "code": "a[None, {rows}, -1]"}, hidden=True),
        ),
        first_hint="What should an element get that was picked twice, and what does your assignment give it?",
        hint="Start from zeros of a's shape and dtype, and add: an element that was picked twice gets both gradients. "
        "`grad[index] += g` counts only one of them. `index_add_` counts both.",
        uses=("Tensor", "getitem"),
    ),
    _check_operation(
        engine.draw_loss,
        name="cross_entropy",
        title="Softmax cross-entropy, at any size of logits",
        points=7,
        cases=(
            Case("a batch", {"batch": 3, "classes": 4}),
            Case("one example, two classes", {"batch": 1, "classes": 2}),
            Case("huge logits", {"size": 1e4}),
            Case("all logits far below zero", {"shift": -1e6}),
            Case("one row far from the others", {"size": 300.0, **DOUBLE}),
            Case("classes that are ruled out", {"batch": 6, "ruled out": True}),
            Case("half precision", {"batch": 48, "size": 30.0, **HALF}),
            *draw_cases(LOSS, public=2, hidden=2),
            Case("nearly certain", {"size": 0.1, "shift": -15.5, "certain": True, **DOUBLE}, hidden=True),
            Case("many logits, large", {**LOSS, "batch": 257, "size": 30.0}, hidden=True),
        ),
        first_hint="Is it the loss that is wrong, or the gradient? For logits of 1 already, or only for large ones?",
        hint="Subtract each row's largest logit first, from the target's logit too. The gradient is (p − one-hot) / B "
        "times the gradient that arrives. Change in place only what the vjp has made itself.",
        uses=("Tensor", "cross_entropy"),
    ),
    Check(
        name="mlp_forward",
        title="A network of your own layers",
        points=3,
        cases=(
            Case("two layers", {"layers": 2, "width": 4, "batch": 2}),
            Case("one layer: no relu after it", {"layers": 1, "width": 4, "batch": 2}),
            *draw_cases(MLP, public=2, hidden=2),
            Case("four layers", {**MLP, "layers": 4}, hidden=True),
        ),
        **_sides(training.draw_mlp, calls.mlp_forward, training.expect_mlp, partial(close, scale=20)),
        snippet=training.MLP,
        first_hint="After which layers does relu stand, and may a logit be negative?",
        hint="relu stands after each layer but the last, whose outputs are logits and may be negative. Leave the list "
        "of layers as it is: the network is called again.",
        uses=("Tensor", "MLP"),
    ),
    Check(
        name="sgd",
        title="Gradient descent with momentum",
        points=3,
        cases=(
            Case("one step", {"steps": 1, "momentum": 0}),
            Case("three steps with momentum", {"steps": 3, "momentum": 9}),
            Case("a learning rate that falls", {"steps": 4, "momentum": 9, "decay": 50}),
            Case("a parameter that rests for two steps", {"steps": 5, "momentum": 9, "rests": 2}),
            Case("the same gradient in every step", {"steps": 4, "momentum": 9, "kept": 1}),
            *draw_cases(SGD, public=1, hidden=2, steps=Range(5, 20)),
        ),
        **_sides(training.draw_sgd, calls.sgd, training.expect_sgd),
        snippet=training.SGD,
        first_hint="Follow one parameter through two steps on paper: what is left of the first gradient in the second?",
        hint="Each parameter has its own v: v ← μ v + gradient, then p ← p − η v. Leave p.grad as it is, and skip a "
        "parameter whose grad is None.",
        uses=("Tensor", "SGD"),
    ),
    Check(
        name="train_step",
        title="One step of training",
        points=3,
        cases=(
            Case("two steps", {"steps": 2, "batch": 2, "classes": 3}),
            Case("three steps, a parameter in the first only", {**STEP, "steps": 3, "with offset": 1}),
            Case("double precision", {**STEP, **DOUBLE}),
            *draw_cases(STEP, public=1, hidden=1, steps=Range(5, 10)),
        ),
        **_sides(training.draw_step, calls.train_step, training.expect_step, partial(close, scale=5)),
        snippet=training.TRAIN_STEP,
        first_hint="What do the gradients hold when the backward pass begins?",
        hint="In this order: zero_grad of the optimizer, loss, backward, step. The model may be any function, without "
        "a list of parameters, and runs once. It takes Tensor(x), which requires no gradient. Return loss.item().",
        uses=("Tensor", "MLP", "SGD", "add", "cross_entropy", "train_step"),
    ),
    Check(
        name="step_flops",
        title="FLOPs of a training step, predicted",
        points=3,
        cases=(
            Case("two layers", {"layers": 2, "batch": 10, "width": 9}),
            Case("one layer", {"layers": 1, "batch": Range(1, 100), "width": 300}),
            Case("four layers of one size", {"layers": 4, "batch": Range(1, 100), "width": 300, "equal": True}),
            Case("a large batch and wide layers", {"layers": 3, "batch": 10**7, "width": 60_000}),
            Case("five layers", {"layers": 5, "batch": Range(1, 100), "width": 300}, hidden=True),
        ),
        **_sides(training.draw_flops, calls.step_flops, training.expect_flops),
        snippet="predict_step_flops(batch, tuple(sizes.tolist()))",
        first_hint="List the products of one layer, forward and back. Does the first layer need all of them?",
        hint="2 · B · n · m for each product. Each layer has three (forward, weight, input), but the first has none "
        "for its input. Return an int.",
        uses=("predict_step_flops",),
    ),
    Check(
        name="train_digits",
        title="Read unseen digits: at least 95 %",
        points=6,
        cases=(Case("a random split, pixels and classes in another order, one image far too bright"),),
        **_sides(training.draw_digits, calls.digits, training.expect_digits, training.compare_digits),
        snippet="train_classifier(x_train, y_train, x_test)[0]",
        first_hint="Plot the losses that you return: do they fall at all, and do they stop falling too early?",
        hint="If the loss does not fall, try other learning rates, in factors of 3. If it falls and the test is still "
        "poor, train for more epochs or widen the hidden layer. Predict with argmax over the classes.",
        uses=("Tensor", "MLP", "SGD", "train_step", "train_classifier"),
        time_limit_s=60,
    ),
    Check(
        name="graph_bytes",
        title="Bytes that a graph holds, predicted",
        points=3,
        cases=(
            Case("one layer", {**STACK, "layers": 1}),
            Case("a few layers", {**STACK, "layers": 12}),
            Case("many layers, large and wide", {**STACK, **LARGE, "layers": Range(100, 300)}),
            *draw_cases(STACK, public=1, hidden=1, layers=Range(100, 300)),
        ),
        **_sides(training.draw_sizes, calls.graph_bytes, training.expect_graph_bytes),
        snippet="predict_graph_bytes(batch, width, layers)",
        first_hint="Which results of one layer does the graph hold, and how many bytes has each?",
        hint="Three results per layer (product, sum, tanh), each of batch × width numbers of 4 bytes. Return an int.",
        uses=("predict_graph_bytes",),
    ),
    Check(
        name="checkpoint",
        title="The same gradients from a second forward pass",
        points=5,
        cases=(
            Case("two segments", PLAIN),
            Case("an input that requires no gradient", {**PLAIN, "data": True}),
            Case("two backward passes", {**PLAIN, "backwards": 2}),
            Case("a checkpoint inside a checkpoint", {**PLAIN, "nested": True}),
            Case("a function that lets no gradient through", {**PLAIN, "stops": True}),
            Case("a backward pass inside no_grad()", {**PLAIN, "quiet": True}),
            *draw_cases(STAGES, public=1, hidden=3),
        ),
        **_sides(training.draw_checkpoint, calls.checkpoint, training.expect_checkpoint),
        snippet=training.CHECKPOINT,
        first_hint="When should the function run for the second time, and on which input?",
        hint="In the vjp: a new input on x.data that requires a gradient, function on it inside enable_grad(), "
        "backward(…, g), and return that input's gradient. If weights get none when x is data, `record` has dropped "
        "the only edge: let it lead to a tensor that requires one.",
        uses=("Tensor", "backward", "no_grad", "checkpoint"),
    ),
    Check(
        name="checkpointed_bytes",
        title="Bytes under checkpointing, and the best number of segments",
        points=3,
        cases=(
            Case("a few layers", {**STACK, "layers": 12}),
            Case("one layer", {**STACK, "layers": 1}),
            Case("two layers", {**STACK, "layers": 2}),
            Case("two numbers of segments are equally good", {**STACK, "layers": Range(6, 50), "tied": True}),
            Case("thousands of layers, large and wide", {**STACK, **LARGE, "layers": Range(2000, 4000)}),
            *draw_cases(STACK, public=1, hidden=1, layers=Range(20_000, 60_000)),
        ),
        **_sides(training.draw_sizes, calls.checkpointed_bytes, training.expect_checkpointed_bytes),
        snippet="predict_checkpointed_bytes(batch, width, layers, segments), best_segments(layers)",
        first_hint="What is held between segments, and what inside the one whose backward pass runs?",
        hint="The output of each segment, and three results for each layer of one segment, rounded up. best_segments "
        "tries every number from 1 to n; the square root of 3n is only near the best.",
        uses=("predict_checkpointed_bytes", "best_segments"),
    ),
    Check(
        name="checkpoint_memory",
        title="Thirty-six layers in a third of the bytes",
        points=5,
        cases=(
            Case("12 segments", {"segments": 12, "batch": training.BATCH}),
            Case("8 segments, the last one short; a small batch", {"segments": 8, "batch": training.BATCH // 8}),
            Case("a segment for each layer; a small batch", {"segments": 36, "batch": training.BATCH // 8}),
            *draw_cases({"segments": Range(1, 36), "batch": training.BATCH // 64}, public=1, hidden=2),
            Case("more segments than layers; a tiny batch", {"segments": 50, "batch": 256}, hidden=True),
        ),
        **_sides(training.draw_stack, calls.deep_stack, training.expect_stack, training.compare_stack),
        snippet=training.STACK,
        first_hint="How often does a layer run, and what still holds the results of its first run?",
        hint="Each layer runs twice, no more: first under no_grad(), where nothing is kept. A function made in a loop "
        "must keep its own part of the layers, as the value of a default argument.",
        uses=("Tensor", "backward", "no_grad", "run_layers", "checkpoint", "checkpoint_sequential"),
        time_limit_s=60,
        memory_bytes=training.BUDGET_BYTES,
    ),
)
LAB = Lab("autograd", repeat_first_case(CHECKS))
