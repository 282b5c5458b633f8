// A tensor as a view of a storage: element (i, j) is cell offset + i·stride₀ + j·stride₁ of a flat run of cells.

const STRIDES_STYLE = `
.presets { margin-bottom: 12px; gap: 8px; }
.presets button { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px; }
.presets button[aria-pressed="true"] { border-color: var(--value); background: var(--soft-value); }
.settings { margin-bottom: 6px; }
.settings label { display: flex; gap: 6px; align-items: center; }
.settings input { width: 4.2em; }
.board:focus-visible { outline-offset: 4px; border-radius: 6px; }
svg .cell { fill: var(--raised); stroke: var(--line); stroke-width: 1; }
svg .touched { fill: var(--soft-value); stroke: var(--value); }
svg .outside { fill: var(--raised); stroke: var(--bad); stroke-dasharray: 3 3; }
svg .here { fill: var(--value); stroke: var(--value); }
svg text.here-text { fill: var(--surface); font-weight: 700; }
svg .faint { fill: var(--muted); }
svg .hop { fill: none; stroke: var(--gradient); stroke-width: 1.6; opacity: 0.75; }
svg .caption { fill: var(--muted); }
svg g.pick { cursor: pointer; }
.verdict { font-weight: 600; margin: 10px 0 2px; }
.verdict[data-state="bad"] { color: var(--bad); }
.detail { color: var(--muted); margin: 0; }
.code { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px; margin: 6px 0 0; overflow-wrap: anywhere; }
`;

const MOST = 8; // rows or columns that the inputs allow

// Storage positions in reading order, the last dimension fastest.
function positions(shape, stride, offset) {
  return shape.reduce((starts, size, d) => starts.flatMap((p) => Array.from({ length: size }, (_, i) => p + i * stride[d])), [offset]);
}

// PyTorch's rule: walking from the last dimension, each stride is the product of the sizes after it; sizes of 1 do not matter.
function isContiguous(shape, stride) {
  let step = 1;
  for (let d = shape.length - 1; d >= 0; d--) {
    if (shape[d] !== 1 && stride[d] !== step) return false;
    step *= shape[d];
  }
  return true;
}

function tuple(values) {
  return `(${values.join(", ")}${values.length === 1 ? "," : ""})`;
}

function render({ model, el }) {
  const cells = model.get("cells");
  const presets = model.get("presets") ?? [];
  const { box, stop } = stage(el, model.get("title") ?? "Strides", STRIDES_STYLE);
  let width = 0;
  let cursor = [0, 0];

  const view = () => ({ shape: model.get("shape"), stride: model.get("stride"), offset: model.get("offset") });
  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }

  const presetButtons = presets.map((one) =>
    make("button", { type: "button", click: () => change({ shape: one.shape, stride: one.stride, offset: one.offset }) }, one.label));
  const transpose = make("button", {
    type: "button", click: () => change({ shape: [...view().shape].reverse(), stride: [...view().stride].reverse() }),
  }, "transpose");
  const inputs = [["rows", "shape", 0], ["columns", "shape", 1], ["stride 0", "stride", 0], ["stride 1", "stride", 1], ["offset", "offset", null]].map(
    ([label, name, d]) => {
      const input = make("input", { type: "number", min: name === "shape" ? 1 : 0, max: name === "shape" ? MOST : cells - 1, step: 1 });
      input.addEventListener("change", () => {
        const value = Math.min(Number(input.max), Math.max(Number(input.min), Math.round(Number(input.value) || 0)));
        const { [name]: old } = view();
        change({ [name]: d === null ? value : old.map((one, e) => (e === d ? value : one)) });
      });
      return { name, d, input, label: make("label", {}, label, input) };
    });
  const board = make("div", { class: "board", tabindex: 0, role: "application", "aria-label": "Elements of the view: move with the arrow keys", keydown: move });
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail", "aria-live": "polite" });
  const code = make("p", { class: "code" });
  box.append(
    make("div", { class: "row presets" }, ...presetButtons), make("div", { class: "row settings" }, ...inputs.map((one) => one.label), transpose),
    board, verdict, detail, code);

  function move(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    cursor = cursor.map((at, d) => at + step[d]);
    show();
  }

  function show() {
    if (!width) return;
    const { shape, stride, offset } = view();
    cursor = cursor.map((at, d) => Math.min(shape[d] - 1, Math.max(0, at)));
    presets.forEach((one, i) => {
      const chosen = String([one.shape, one.stride, one.offset]) === String([shape, stride, offset]);
      presetButtons[i].setAttribute("aria-pressed", String(chosen));
    });
    for (const { name, d, input } of inputs) input.value = d === null ? view()[name] : view()[name][d];

    const order = positions(shape, stride, offset);
    const here = offset + cursor[0] * stride[0] + cursor[1] * stride[1];
    board.replaceChildren(drawing(shape, order, here));

    const outside = order.find((p) => p >= cells);
    const distinct = new Set(order).size;
    verdict.dataset.state = outside === undefined ? "good" : "bad";
    if (outside !== undefined) {
      verdict.textContent = `Cell ${outside} is outside a storage of ${cells} cells: PyTorch refuses this view.`;
    } else {
      const kind = isContiguous(shape, stride) ? "contiguous" : "not contiguous";
      const shared = distinct < order.length ? `; ${order.length} elements share ${distinct} cells` : "";
      verdict.textContent = `${kind[0].toUpperCase()}${kind.slice(1)}${shared}`;
    }
    detail.textContent = `Element (${cursor.join(", ")}) is cell ${offset} + ${cursor[0]}·${stride[0]} + ${cursor[1]}·${stride[1]} = ${here}.`;
    code.textContent = `torch.as_strided(t, ${tuple(shape)}, ${tuple(stride)}, ${offset})`;
  }

  // Above: the tensor, each element showing its cell. Below: the storage, with the hops of a read in row order.
  function drawing(shape, order, here) {
    const side = Math.min(34, Math.floor((width - 2) / Math.max(cells, shape[1] + 1)));
    const [rows, columns] = shape;
    const tensorLeft = Math.floor((width - columns * side) / 2);
    const storageLeft = Math.floor((width - cells * side) / 2);
    const hops = order.slice(1).map((to, k) => [order[k], to]).filter(([from, to]) => from !== to && Math.max(from, to) < cells);
    const rise = ([from, to]) => 8 + (Math.abs(to - from) / cells) * side * 3;
    const hopHeight = Math.max(0, ...hops.map(rise));
    const tensorTop = 22;
    const storageTop = tensorTop + rows * side + 30 + hopHeight;
    const height = storageTop + side + 8;
    const picture = draw("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `A ${rows} by ${columns} view that reads storage cells ${order.join(", ")}`,
    });
    const text = (x, y, words, attributes = {}) => draw("text", { x, y, "font-size": side < 26 ? 11 : 13, "text-anchor": "middle", ...attributes }, words);
    picture.append(text(width / 2, 14, "tensor: each element shows its storage cell", { class: "caption", "font-size": 13 }));
    order.forEach((p, k) => {
      const at = [Math.floor(k / columns), k % columns];
      const picked = at[0] === cursor[0] && at[1] === cursor[1];
      const x = tensorLeft + at[1] * side;
      const y = tensorTop + at[0] * side;
      picture.append(draw("g", { class: "pick", click: () => { cursor = at; show(); } },
        draw("rect", { class: `cell ${p < cells ? "touched" : "outside"}${picked ? " here" : ""}`, x, y, width: side - 2, height: side - 2, rx: 4 }),
        text(x + side / 2 - 1, y + side / 2 + 4, p, { class: picked ? "here-text" : "" })));
    });
    for (const hop of hops) {
      const [x0, x1] = hop.map((p) => storageLeft + (p + 0.5) * side);
      const y = storageTop - 2;
      picture.append(draw("path", { class: "hop", d: `M${x0} ${y} Q${(x0 + x1) / 2} ${y - 2 * rise(hop)} ${x1} ${y}` }));
    }
    const touched = new Set(order);
    for (let p = 0; p < cells; p++) {
      const picked = p === here;
      picture.append(
        draw("rect", { class: `cell${touched.has(p) ? " touched" : ""}${picked ? " here" : ""}`, x: storageLeft + p * side, y: storageTop, width: side - 2, height: side - 2, rx: 4 }),
        text(storageLeft + (p + 0.5) * side - 1, storageTop + side / 2 + 4, p, { class: picked ? "here-text" : touched.has(p) ? "" : "faint" }));
    }
    picture.append(text(width / 2, tensorTop + rows * side + 18, "storage: arcs follow a read in row order", { class: "caption", "font-size": 13 }));
    return picture;
  }

  const stopWidth = watchWidth(board, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["shape", "stride", "offset"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-strides", render);
export default { render };
