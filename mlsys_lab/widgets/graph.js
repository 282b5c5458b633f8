// A computation graph: what each operation computes, its local derivatives, and where its nodes stand on the page.
// A graph is [{id, label, op, parents: [ids], data, grad}], parents before children; the last node is the root. `label` may be "".

// value: the operation; partials: its derivative by each parent; rule: the same in words. `v` is the operation's own value or name.
const OPERATIONS = {
  "+": { sign: "+", value: (a, b) => a + b, partials: () => [1, 1], rule: () => ["1", "1"] },
  "-": { sign: "−", value: (a, b) => a - b, partials: () => [1, -1], rule: () => ["1", "−1"] },
  "*": { sign: "×", value: (a, b) => a * b, partials: (a, b) => [b, a], rule: (a, b) => [b, a] },
  "/": {
    sign: "÷",
    value: (a, b) => a / b,
    partials: (a, b) => [1 / b, -a / b ** 2],
    rule: (a, b) => [`1/${b}`, `−${a}/${b}²`],
  },
  "**": {
    sign: "^",
    value: (a, b) => a ** b,
    partials: (a, b, v) => [b === 0 ? 0 : b * a ** (b - 1), a === 0 && b > 0 ? 0 : v * Math.log(a)],
    rule: (a, b, v) => [`${b}·${a}^(${b} − 1)`, `${v}·log ${a}`],
  },
  neg: { value: (a) => -a, partials: () => [-1], rule: () => ["−1"] },
  relu: { value: (a) => Math.max(0, a), partials: (a) => [a > 0 ? 1 : 0], rule: (a) => [`1 if ${a} > 0, else 0`] },
  tanh: { value: Math.tanh, partials: (a, v) => [1 - v * v], rule: (a, v) => [`1 − ${v}²`] },
  exp: { value: Math.exp, partials: (a, v) => [v], rule: (a, v) => [v] },
  log: { value: Math.log, partials: (a) => [1 / a], rule: (a) => [`1/${a}`] },
  sigmoid: {
    sign: "σ",
    value: (a) => 1 / (1 + Math.exp(-a)),
    partials: (a, v) => [v * (1 - v)],
    rule: (a, v) => [`${v}(1 − ${v})`],
  },
};

// An exponent as it is written: x², x⁻¹, x^0.5.
function raised(n) {
  if (!Number.isInteger(n)) return `^${number(n)}`;
  return [...String(n)].map((digit) => (digit === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit])).join("");
}

// null for an operation that is not listed above: the figure then falls back on recorded values.
function operation(op, arity) {
  const power = /^\*\*(.+)$/.exec(op);
  if (power && Number.isFinite(Number(power[1]))) {
    const n = Number(power[1]);
    return {
      sign: raised(n),
      value: (a) => a ** n,
      partials: (a) => [n === 0 ? 0 : n * a ** (n - 1)],
      rule: (a) => [n === 2 ? `2·${a}` : `${number(n)}·${a}${raised(n - 1)}`],
    };
  }
  const found = OPERATIONS[op.toLowerCase()];
  return found?.value.length === arity ? found : null;
}

// Values and gradients of every node, and what each edge adds to its parent's gradient, for these input values.
// Where an operation is unknown, the values, and the gradients behind it, are the recorded ones.
function evaluate(graph, inputs) {
  const values = {};
  const grads = {};
  const edges = [];
  for (const node of graph) {
    const known = node.parents.length ? operation(node.op, node.parents.length) : null;
    const args = node.parents.map((id) => values[id]);
    values[node.id] = known ? known.value(...args) : (inputs[node.id] ?? node.data);
    grads[node.id] = 0;
  }
  grads[graph.at(-1).id] = 1;
  for (const node of [...graph].reverse()) {
    const known = node.parents.length ? operation(node.op, node.parents.length) : null;
    const partials = known?.partials(...node.parents.map((id) => values[id]), values[node.id]);
    node.parents.forEach((parent, slot) => {
      const partial = partials ? partials[slot] : NaN;
      edges.push({ from: parent, to: node.id, slot, partial, flow: partial * grads[node.id] });
      grads[parent] += partial * grads[node.id];
    });
  }
  return { values, grads, edges };
}

// Layered layout (Sugiyama): depth by the longest path to the root, one column for each depth, stand-ins where an edge crosses a
// column, then sweeps that put each node at the mean of its neighbours. Returns {id: {depth, place}}, `place` in node widths,
// and the stand-ins of each edge by "from>to".
function layered(graph) {
  const depth = {};
  for (const node of [...graph].reverse()) {
    depth[node.id] ??= 0;
    for (const id of node.parents) depth[id] = Math.max(depth[id] ?? 0, depth[node.id] + 1);
  }
  const deepest = Math.max(...Object.values(depth));
  const columns = Array.from({ length: deepest + 1 }, () => []);
  const near = {};
  const join = (a, b) => {
    near[a] ??= { before: [], after: [] };
    near[b] ??= { before: [], after: [] };
    near[a].after.push(b);
    near[b].before.push(a);
  };
  const routes = {};
  for (const node of graph) {
    near[node.id] ??= { before: [], after: [] };
    columns[deepest - depth[node.id]].push(node.id);
    for (const id of new Set(node.parents)) {
      const route = [];
      for (let d = depth[id] - 1; d > depth[node.id]; d--) {
        const standIn = `${id}>${node.id}@${d}`;
        columns[deepest - d].push(standIn);
        route.push(standIn);
      }
      routes[`${id}>${node.id}`] = route;
      const stops = [id, ...route, node.id];
      for (let i = 1; i < stops.length; i++) join(stops[i - 1], stops[i]);
    }
  }
  const place = {};
  for (const column of columns) for (const [i, id] of column.entries()) place[id] = i - (column.length - 1) / 2;
  for (let sweep = 0; sweep < 24; sweep++) {
    const side = sweep % 2 ? "before" : "after";
    for (const column of sweep % 2 ? columns : [...columns].reverse()) {
      const wish = {};
      for (const id of column) {
        const around = sweep > 15 ? [...near[id].before, ...near[id].after] : near[id][side];
        wish[id] = around.length ? around.reduce((sum, n) => sum + place[n], 0) / around.length : place[id];
      }
      column.sort((a, b) => wish[a] - wish[b]);
      settle(column, wish, place);
    }
  }
  const least = Math.min(...Object.values(place));
  const spots = {};
  for (const [c, column] of columns.entries()) for (const id of column) spots[id] = { depth: c, place: place[id] - least };
  return { spots, routes, columns: columns.length, places: Math.max(...Object.values(spots).map((s) => s.place)) + 1 };
}

// Places as near as possible to the wishes (least squares), at least one apart: neighbours that would overlap merge into a block.
function settle(column, wish, place) {
  const blocks = [];
  column.forEach((id, i) => {
    let block = { first: i, count: 1, sum: wish[id] - i };
    while (blocks.length && blocks.at(-1).sum / blocks.at(-1).count > block.sum / block.count) {
      const left = blocks.pop();
      block = { first: left.first, count: left.count + block.count, sum: left.sum + block.sum };
    }
    blocks.push(block);
  });
  for (const { first, count, sum } of blocks) {
    for (let i = first; i < first + count; i++) place[column[i]] = i + sum / count;
  }
}

