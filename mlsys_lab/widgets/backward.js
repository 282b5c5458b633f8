// A backward pass, node by node: values are computed forward, then each node propagates its gradient to its parents.

const BACKWARD_STYLE = `
.said { min-height: 6.2em; margin-top: 10px; padding: 8px 12px; background: var(--raised); border-left: 4px solid var(--line); border-radius: 4px; }
.said[data-phase="forward"] { border-color: var(--value); }
.said[data-phase="backward"] { border-color: var(--gradient); }
.said p { margin: 0; }
.inputs { margin-top: 10px; }
.inputs label { display: flex; gap: 6px; align-items: center; }
.inputs input { width: 6.2em; }
.inputs i { min-width: 1.4em; }
@media (max-width: 560px) {
  .inputs span { flex-basis: 100%; }
  .inputs label { flex: 1 1 38%; }
  .inputs input { width: 100%; min-width: 0; }
}
.legend { color: var(--muted); font-size: 0.87em; margin-left: auto; }
.v { color: var(--value); fill: var(--value); } .g { color: var(--gradient); fill: var(--gradient); }
svg .v { fill: var(--value); } svg .g { fill: var(--gradient); } svg .muted { fill: var(--muted); } svg .bad { fill: var(--bad); }
.node rect { fill: var(--raised); stroke: var(--line); stroke-width: 1.5; }
.node.leaf rect { stroke-dasharray: 5 3; }
.node.forward rect { fill: var(--soft-value); stroke: var(--value); stroke-width: 2.5; }
.node.backward rect { fill: var(--soft-gradient); stroke: var(--gradient); stroke-width: 2.5; }
.node.touched rect { stroke: var(--gradient); stroke-width: 2.5; }
.edge { fill: none; stroke: var(--line); stroke-width: 2; }
.edge.forward { stroke: var(--value); stroke-width: 3; }
.edge.backward { stroke: var(--gradient); stroke-width: 3; stroke-dasharray: 7 5; animation: flow 0.9s linear infinite; }
.tag rect { fill: var(--surface); stroke: var(--gradient); }
@keyframes flow { to { stroke-dashoffset: 24; } }
@media (prefers-reduced-motion: reduce) { .edge.backward { animation: none; } }
`;

// Operations without a name of their own are called v1, v2, … in the order in which they ran.
function named(graph) {
  let count = 0;
  return graph.map((node) => ({ ...node, label: node.label || (node.parents.length ? `v${++count}` : "") }));
}

// start, one step for each operation forward, the seed, one for each operation backward, end.
function plan(graph) {
  const operations = graph.filter((node) => node.parents.length);
  return [
    { phase: "start" },
    ...operations.map((node) => ({ phase: "forward", node })),
    { phase: "seed", node: graph.at(-1) },
    ...operations.toReversed().map((node) => ({ phase: "backward", node })),
    { phase: "end" },
  ];
}

function render({ model, el }) {
  const graph = named(model.get("graph"));
  const steps = plan(graph);
  const byId = Object.fromEntries(graph.map((node) => [node.id, node]));
  const leaves = graph.filter((node) => !node.parents.length);
  const spread = layered(graph);
  const inputs = {};
  let step = Math.min(model.get("step") ?? 0, steps.length - 1);
  let width = 0;
  let run = evaluate(graph, inputs);

  const { box, stop } = stage(el, model.get("title") ?? "Backward pass, step by step", STEPPER_STYLE + BACKWARD_STYLE);
  const picture = make("div");
  const said = make("div", { class: "said", "aria-live": "polite" });
  const controls = stepper(box, {
    now: () => step,
    last: () => steps.length - 1,
    change(next) {
      step = next;
      model.set("step", step);
      model.save_changes();
      show();
    },
  });
  const legend = make("span", { class: "legend" }, make("span", { class: "v" }, "value"), " · ", make("span", { class: "g" }, "gradient"));
  const fields = leaves.filter((node) => node.label).slice(0, 8).map((node) => {
    const field = make("input", {
      type: "number", step: "any", value: node.data,
      input: () => {
        if (!Number.isFinite(field.valueAsNumber)) return;
        inputs[node.id] = field.valueAsNumber;
        run = evaluate(graph, inputs);
        show();
      },
    });
    return make("label", {}, make("i", {}, node.label), field);
  });
  // Values after an unknown operation cannot be recomputed, so the inputs cannot be changed.
  const allKnown = graph.every((node) => !node.parents.length || operation(node.op, node.parents.length));
  controls.row.append(legend);
  box.append(
    controls.row,
    picture,
    said,
    allKnown ? make("div", { class: "row inputs" }, make("span", {}, "Try other inputs:"), ...fields) : "",
  );

  // Ids with a value, gradients summed so far, and edges whose gradient has been propagated.
  function known() {
    const past = steps.slice(0, step + 1);
    const valued = new Set([...leaves, ...past.filter((s) => s.phase === "forward").map((s) => s.node)].map((n) => n.id));
    const sent = new Set(past.filter((s) => s.phase === "backward").map((s) => s.node.id));
    const grads = {};
    if (past.some((s) => s.phase === "seed")) grads[graph.at(-1).id] = 1;
    for (const edge of run.edges) if (sent.has(edge.to)) grads[edge.from] = (grads[edge.from] ?? 0) + edge.flow;
    for (const node of graph) if (Number.isNaN(grads[node.id])) grads[node.id] = node.grad ?? NaN;
    return { valued, grads, ended: past.at(-1).phase === "end" };
  }

  const name = (id) => byId[id].label || number(run.values[id]);

  // The operation in words: "v3 = a × b".
  function formula(node) {
    const found = operation(node.op, node.parents.length);
    const args = node.parents.map(name);
    if (!found) return `${name(node.id)} = ${node.op}(${args.join(", ")})`;
    if (args.length === 1 && node.op.startsWith("**")) return `${name(node.id)} = ${args[0]}${found.sign}`;
    return `${name(node.id)} = ${args.length === 2 ? args.join(` ${found.sign} `) : `${found.sign ?? node.op.toLowerCase()}(${args})`}`;
  }

  function words() {
    const { phase, node } = steps[step];
    const line = (...parts) => make("p", {}, ...parts);
    const paint = (kind, text) => make("span", { class: kind }, text);
    if (phase === "start") {
      return [line("The graph as it was recorded. Only the inputs (dashed) have values."), line("Step with the buttons, the slider or the arrow keys.")];
    }
    if (phase === "forward") {
      const found = operation(node.op, node.parents.length);
      return [line(`Forward: ${formula(node)} = `, paint("v", number(run.values[node.id]))), found ? "" : line("The value is the recorded one.")];
    }
    if (phase === "seed") {
      return [line("Seed: the root's derivative by itself, ", paint("g", `∂${name(node.id)}/∂${name(node.id)} = 1`), ".")];
    }
    if (phase === "end") {
      const wrong = disagreeing();
      if (wrong.length) {
        return wrong.map((n) =>
          line(`${name(n.id)}: the recorded gradient is ${number(n.grad)}, the chain rule gives `, paint("g", number(run.grads[n.id])), "."));
      }
      const root = graph.at(-1);
      return [line(`Done: one backward pass gave ∂${name(root.id)}/∂ of every node, for ${run.edges.length} multiplications and as many additions.`)];
    }
    const found = operation(node.op, node.parents.length);
    if (!found) return [line(`Backward through ${formula(node)}: this figure does not know the rule; the recorded gradients stand.`)];
    const rule = found.rule(...node.parents.map(name), name(node.id));
    const upstream = number(run.grads[node.id]);
    return [
      line(`Backward through ${formula(node)}, whose gradient is ${upstream}:`),
      ...run.edges.filter((edge) => edge.to === node.id).map((edge) =>
        line(`∂${name(node.id)}/∂${name(edge.from)} = ${rule[edge.slot]}`,
          rule[edge.slot] === number(edge.partial) ? "" : ` = ${number(edge.partial)}`,
          `, so ${name(edge.from)} gets += ${upstream} × ${number(edge.partial)} = `, paint("g", number(edge.flow)))),
    ];
  }

  // Nodes whose recorded gradient differs from the chain rule's: a bug in the engine that recorded the graph.
  function disagreeing() {
    if (Object.keys(inputs).length || !allKnown) return [];
    return graph.filter((n) => n.grad != null && Math.abs(n.grad - run.grads[n.id]) > 1e-6 * (1 + Math.abs(run.grads[n.id])));
  }

  function show() {
    if (!width) return;
    const { phase, node } = steps[step];
    const state = known();
    const wrong = new Set(state.ended ? disagreeing().map((n) => n.id) : []);
    picture.replaceChildren(drawGraph({ graph, spread, run, state, phase, active: node, wrong, name, width }));
    said.dataset.phase = phase === "seed" ? "backward" : phase;
    said.replaceChildren(...words());
    controls.show(`${phase}${node ? ` ${name(node.id)}` : ""}`);
    box.dataset.step = step;
    box.dataset.phase = phase;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const follow = () => controls.go(model.get("step"));
  model.on("change:step", follow);
  return () => {
    controls.stop();
    stop();
    stopWidth();
    model.off("change:step", follow);
  };
}

register("mlsys-backward", render);
export default { render };
