// The picture of one moment of a backward pass: boxes, edges, and what flows along them.

// graph, spread (from `layered`), run (from `evaluate`), state ({ valued, grads }: what is known by now), phase and active node,
// wrong (ids to mark), name (id -> text), width to fit into -> one <svg>.
function drawGraph({ graph, spread, run, state, phase, active, wrong, name, width }) {
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
    if (live === "backward") tags.push(flowTag(edge, points, across, w, h, twin));
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

// The gradient that this edge propagates, near its receiving end.
function flowTag(edge, points, across, w, h, twin) {
  const text = Number.isNaN(edge.flow) ? "?" : (edge.flow < 0 ? "" : "+") + number(edge.flow);
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

// What a box shows for its operation: "+", "x²", "tanh".
function symbol(node) {
  const found = node.parents.length ? operation(node.op, node.parents.length) : null;
  return (node.op.startsWith("**") && found && node.parents.length === 1 ? "x" : "") + (found?.sign ?? node.op.toLowerCase());
}

