// A backward pass, one node at a time: values run forward, then each node hands its gradient on to its parents.

const BACKWARD_STYLE = `
.tools { margin-bottom: 10px; }
.tools input[type="range"] { flex: 1 1 120px; }
@media (max-width: 560px) { .tools input[type="range"] { flex-basis: 100%; order: 1; } }
.said { min-height: 6.2em; margin-top: 10px; padding: 8px 12px; background: var(--raised); border-left: 4px solid var(--line); border-radius: 4px; }
.said[data-phase="forward"] { border-color: var(--value); }
.said[data-phase="backward"] { border-color: var(--gradient); }
.said p { margin: 0; }
.inputs { margin-top: 10px; }
.inputs label { display: flex; gap: 6px; align-items: center; }
.inputs input { width: 6.2em; }
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

const ICONS = {
  first: "M2 2h2v12H2zM14 2v12L5 8z",
  previous: "M12 2v12L3 8z",
  next: "M4 2v12l9-6z",
  play: "M3 2v12l6-6zM9 2v12l6-6z",
  pause: "M4 2h3v12H4zM10 2h3v12h-3z",
};

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
  const graph = model.get("graph");
  const steps = plan(graph);
  const byId = Object.fromEntries(graph.map((node) => [node.id, node]));
  const leaves = graph.filter((node) => !node.parents.length);
  const spread = layered(graph);
  const inputs = {};
  let step = Math.min(model.get("step") ?? 0, steps.length - 1);
  let width = 0;
  let timer = null;
  let run = evaluate(graph, inputs);

  const { box, stop } = stage(el, model.get("title") ?? "Backward pass, step by step", BACKWARD_STYLE);
  box.tabIndex = 0;
  const picture = make("div");
  const said = make("div", { class: "said", "aria-live": "polite" });
  const button = (name, label, act) =>
    make("button", { type: "button", "aria-label": label, title: label, click: act }, icon(name));
  const buttons = {
    first: button("first", "First step", () => go(0)),
    previous: button("previous", "Previous step", () => go(step - 1)),
    play: button("play", "Play", () => play(!timer)),
    next: button("next", "Next step", () => go(step + 1)),
  };
  const scrub = make("input", {
    type: "range", min: 0, max: steps.length - 1, "aria-label": "Step", input: () => go(Number(scrub.value)),
  });
  const speed = make("select", { "aria-label": "Speed", change: () => timer && play(true) });
  for (const times of [0.5, 1, 2, 4]) {
    speed.append(make("option", { value: times, selected: times === 1 }, `${times}×`));
  }
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
  // Values behind an operation that this figure does not know cannot be worked out again, so the inputs stay as they are.
  const allKnown = graph.every((node) => !node.parents.length || operation(node.op, node.parents.length));
  box.append(
    make("div", { class: "row tools" }, buttons.first, buttons.previous, buttons.play, buttons.next, scrub, speed, legend),
    picture,
    said,
    allKnown ? make("div", { class: "row inputs" }, make("span", {}, "Try other inputs:"), ...fields) : "",
  );

  function icon(name) {
    return draw("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, draw("path", { d: ICONS[name] }));
  }

  function go(next) {
    const wanted = Math.max(0, Math.min(steps.length - 1, next));
    if (wanted === steps.length - 1) play(false);
    if (wanted === step) return;
    step = wanted;
    model.set("step", step);
    model.save_changes();
    show();
  }

  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(() => go(step + 1), 1400 / Number(speed.value)) : null;
    if (on && step === steps.length - 1) go(0);
    buttons.play.replaceChildren(icon(on ? "pause" : "play"));
    buttons.play.setAttribute("aria-label", on ? "Pause" : "Play");
    buttons.play.title = on ? "Pause" : "Play";
  }

  box.addEventListener("keydown", (event) => {
    const target = event.composedPath()[0];
    if (target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      ArrowRight: () => go(step + 1), ArrowLeft: () => go(step - 1), Home: () => go(0), End: () => go(steps.length - 1),
      " ": target === box ? () => play(!timer) : null,
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  // What is known by now: ids with a value, gradients as summed so far, edges whose flow has been handed on.
  function known() {
    const past = steps.slice(0, step + 1);
    const valued = new Set([...leaves, ...past.filter((s) => s.phase === "forward").map((s) => s.node)].map((n) => n.id));
    const sent = new Set(past.filter((s) => s.phase === "backward").map((s) => s.node.id));
    const grads = {};
    if (past.some((s) => s.phase === "seed")) grads[graph.at(-1).id] = 1;
    for (const edge of run.edges) if (sent.has(edge.to)) grads[edge.from] = (grads[edge.from] ?? 0) + edge.flow;
    const ended = past.at(-1).phase === "end";
    if (ended) for (const node of graph) if (!Number.isFinite(grads[node.id]) && node.grad != null) grads[node.id] = node.grad;
    return { valued, grads, ended };
  }

  function symbol(node) {
    const found = node.parents.length ? operation(node.op, node.parents.length) : null;
    return (node.op.startsWith("**") && found && node.parents.length === 1 ? "x" : "") + (found?.sign ?? node.op.toLowerCase());
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

  // Nodes whose recorded gradient is not the chain rule's: a slip in the engine that recorded the graph.
  function disagreeing() {
    if (Object.keys(inputs).length || !allKnown) return [];
    return graph.filter((n) => n.grad != null && Math.abs(n.grad - run.grads[n.id]) > 1e-6 * (1 + Math.abs(run.grads[n.id])));
  }

  function show() {
    if (!width) return;
    const { phase, node } = steps[step];
    const state = known();
    const wrong = new Set(state.ended ? disagreeing().map((n) => n.id) : []);
    picture.replaceChildren(drawing(state, phase, node, wrong));
    said.dataset.phase = phase === "seed" ? "backward" : phase;
    said.replaceChildren(...words());
    scrub.value = step;
    scrub.setAttribute("aria-valuetext", `step ${step} of ${steps.length - 1}: ${phase}${node ? " " + name(node.id) : ""}`);
    buttons.first.disabled = buttons.previous.disabled = step === 0;
    buttons.next.disabled = step === steps.length - 1;
    box.dataset.step = step;
    box.dataset.phase = phase;
  }

  function drawing(state, phase, active, wrong) {
    // Left to right where that fits, else top to bottom; boxes without words where even that is too wide.
    const across = spread.columns * 140 <= width;
    const roomy = across || spread.places * 118 <= width;
    const w = roomy ? 104 : 78;
    const h = 66;
    const gap = across ? { depth: w + 36, place: h + 16 } : { depth: h + 34, place: w + (roomy ? 14 : 8) };
    const long = gap.depth * (spread.columns - 1);
    const wide = gap.place * (spread.places - 1);
    const size = { x: (across ? long : wide) + w + 8, y: (across ? wide : long) + h + 8 };
    const centre = (id) => {
      const { depth, place } = spread.spots[id];
      const [along, beside] = [depth * gap.depth, place * gap.place];
      return across ? { x: along + w / 2 + 4, y: beside + h / 2 + 4 } : { x: beside + w / 2 + 4, y: along + h / 2 + 4 };
    };
    const picture = draw("svg", {
      viewBox: `0 0 ${size.x} ${size.y}`, width: size.x, height: size.y, role: "img",
      "aria-label": `Computation graph of ${graph.length} nodes; ${name(graph.at(-1).id)} is the result`,
    });
    const tags = [];
    for (const edge of run.edges) {
      const twin = run.edges.filter((e) => e.from === edge.from && e.to === edge.to).length > 1 ? (edge.slot ? 8 : -8) : 0;
      const points = [edge.from, ...spread.routes[`${edge.from}>${edge.to}`], edge.to].map(centre);
      const live = active?.id === edge.to && (phase === "forward" || phase === "backward") ? phase : "";
      picture.append(draw("path", { class: `edge ${live}`, d: curve(points, across, w, h, twin) }));
      if (live === "backward") tags.push(tag(edge, points, across, w, h, twin));
    }
    for (const node of graph) {
      const { x, y } = centre(node.id);
      const live = node === active && phase !== "end" ? (phase === "seed" ? "backward" : phase) : "";
      const touched = phase === "backward" && active.parents.includes(node.id) ? "touched" : "";
      const left = x - w / 2;
      const row = (kind, word, text, below) => [
        roomy ? draw("text", { x: left + 9, y: y + below, class: "muted", "font-size": 12 }, word) : "",
        draw("text", { x: left + w - 9, y: y + below, class: kind, "font-size": 14, "text-anchor": "end" }, text),
      ];
      const grad = state.grads[node.id];
      picture.append(
        draw("g", { class: `node ${node.parents.length ? "" : "leaf"} ${live} ${touched}`, "data-node": node.id },
          draw("rect", { x: left, y: y - h / 2, width: w, height: h, rx: 8 }),
          draw("text", { x: left + 9, y: y - 14, "font-size": 14, "font-weight": 600 }, node.label || "constant"),
          draw("text", { x: left + w - 9, y: y - 14, "font-size": 14, "text-anchor": "end", class: "muted" }, symbol(node)),
          ...row("v", "value", state.valued.has(node.id) ? number(run.values[node.id]) : "·", 6),
          ...row(wrong.has(node.id) ? "bad" : "g", "grad", grad === undefined ? "·" : number(grad), 25)),
      );
    }
    picture.append(...tags);
    return picture;
  }

  // What this edge hands back, on the edge, nearer to the receiving end.
  function tag(edge, points, across, w, h, twin) {
    const text = (edge.flow < 0 ? "" : "+") + number(edge.flow);
    const wide = text.length * 7.6 + 10;
    const [a, b] = [points[0], points[1]];
    const x = across ? a.x + w / 2 + 18 : a.x * 0.6 + b.x * 0.4 + twin * 3;
    const y = across ? a.y * 0.6 + b.y * 0.4 + twin * 1.6 : a.y + h / 2 + 15;
    return draw("g", { class: "tag" },
      draw("rect", { x: x - wide / 2, y: y - 10, width: wide, height: 20, rx: 10 }),
      draw("text", { x, y: y + 4.5, "font-size": 13, "text-anchor": "middle", class: "g" }, text));
  }

  // From the side of the first box to the side of the last, through the stand-ins between them.
  function curve(points, across, w, h, twin) {
    const ends = points.map((p, i) => {
      const side = i === 0 ? 1 : i === points.length - 1 ? -1 : 0;
      return across ? { x: p.x + (side * w) / 2, y: p.y + twin } : { x: p.x + twin, y: p.y + (side * h) / 2 };
    });
    return ends.reduce((path, p, i) => {
      if (i === 0) return `M${p.x} ${p.y}`;
      const from = ends[i - 1];
      const [mx, my] = [(from.x + p.x) / 2, (from.y + p.y) / 2];
      return path + (across ? ` C${mx} ${from.y} ${mx} ${p.y} ${p.x} ${p.y}` : ` C${from.x} ${my} ${p.x} ${my} ${p.x} ${p.y}`);
    }, "");
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const follow = () => go(model.get("step"));
  model.on("change:step", follow);
  return () => {
    play(false);
    stop();
    stopWidth();
    model.off("change:step", follow);
  };
}

register("mlsys-backward", render);
export default { render };
