// A kernel's accesses, one request of a warp at a time: which thread touches which element, and what memory moves for it.

const GAP = 26; // between arrays side by side, in pixels
const NUMBERED = 13; // pixels of a cell that has room for a lane's number

const ACCESSES_STYLE = `
.top { justify-content: space-between; margin-bottom: 6px; }
.top input[type="range"] { flex: 1 1 140px; }
.top output { color: var(--muted); white-space: nowrap; }
.listing { margin: 0 0 10px; padding: 6px 0; background: var(--raised); border: 1px solid var(--line); border-radius: 6px;
  font: 13px/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-x: auto; max-height: 16.5em; }
.listing div { padding: 0 10px; white-space: pre; min-width: max-content; }
.listing .number { display: inline-block; width: 2.6em; color: var(--muted); user-select: none; }
.listing .now { background: var(--soft-value); box-shadow: inset 3px 0 var(--value); }
.listing .now.writes, .listing .now.updates { background: var(--soft-gradient); box-shadow: inset 3px 0 var(--gradient); }
/* On a page of the book it stays below the header, under which its own padding may lie. */
.held { position: sticky; top: var(--pst-header-article-height, 0px); z-index: 1; background: var(--surface); margin-top: -14px;
  padding: 14px 0 8px; }
.said { margin: 0; }
.said strong { font-weight: 600; }
.said .more { color: var(--bad); font-weight: 600; }
.arrays { display: flex; flex-wrap: wrap; gap: 12px ${GAP}px; align-items: flex-start; }
.array .name { margin: 0 0 4px; font-size: 14px; font-weight: 600; }
.array .name span { color: var(--muted); font-weight: 400; }
.array svg { margin: 0; }
.banks { display: flex; justify-content: space-between; color: var(--muted); font-size: 13px; }
button[aria-disabled="true"] { color: var(--muted); border-style: dashed; cursor: default; }
svg .cell { fill: var(--raised); stroke: var(--line); stroke-width: 0.75; }
svg .seen { fill: var(--line); stroke: var(--raised); }
svg .moved { fill: var(--soft-value); }
svg .moved.writes, svg .moved.updates { fill: var(--soft-gradient); }
svg .reads.lane { fill: var(--value); }
svg .writes.lane, svg .updates.lane { fill: var(--gradient); }
svg text { fill: var(--surface); font-weight: 600; pointer-events: none; }
.legend { color: var(--muted); font-size: 13px; margin: 10px 0 0; }
`;

const SECTOR = 32;
const WARP = 32;
const BANKS = 32;
const WORD = 4; // bytes

// Sectors of 32 bytes (global memory) or nothing (shared memory) that hold a request's elements, as a set of cells.
function movedCells(buffer, elements) {
  const moved = new Set();
  if (buffer.space !== "global") return moved;
  const sectors = new Set();
  for (const element of elements.filter((e) => e >= 0)) {
    const first = buffer.start + element * buffer.itemsize;
    for (let sector = Math.floor(first / SECTOR); sector <= Math.floor((first + buffer.itemsize - 1) / SECTOR); sector++) sectors.add(sector);
  }
  for (let element = 0; element < buffer.elements; element++) {
    if (sectors.has(Math.floor((buffer.start + element * buffer.itemsize) / SECTOR))) moved.add(element);
  }
  return moved;
}

// A line above the columns of an array in shared memory where each column is one bank: rows of 32 words from bank 0 on.
function bankHeads(buffer, width) {
  const whole = buffer.columns === BANKS && buffer.itemsize === WORD && buffer.start % (BANKS * WORD) === 0;
  if (buffer.space !== "shared" || !whole) return [];
  return [make("div", { class: "banks", style: `width: ${width}px` }, make("span", {}, "bank 0"), make("span", {}, `bank ${BANKS - 1}`))];
}

// Threads as a person says them: [0, 1, 2, 5] is "0–2, 5".
function ranges(numbers) {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  const runs = [];
  for (const n of sorted) {
    if (runs.length && runs.at(-1)[1] === n - 1) runs.at(-1)[1] = n;
    else runs.push([n, n]);
  }
  const shown = runs.slice(0, 4).map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
  return runs.length > 4 ? `${shown}, …` : shown;
}

function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : word.endsWith("s") ? "es" : "s"}`;
}

function render({ model, el }) {
  const buffers = model.get("buffers");
  const steps = model.get("steps");
  const [block, thread] = model.get("words");
  const { box, stop } = stage(el, `Accesses of ${model.get("kernel")}`, ACCESSES_STYLE);
  let width = 0;

  const slider = make("input", { type: "range", min: 0, max: steps.length - 1, step: 1, "aria-label": "Request" });
  const count = make("output", {});
  const now = () => model.get("step") ?? 0;
  const go = (by) => set(Math.min(steps.length - 1, Math.max(0, now() + by)));
  const back = make("button", { type: "button", "aria-label": "Previous request", click: () => go(-1) }, "←");
  const on = make("button", { type: "button", "aria-label": "Next request", click: () => go(1) }, "→");
  slider.addEventListener("input", () => set(Number(slider.value)));
  function set(step) {
    model.set("step", step);
    model.save_changes();
  }

  const lines = model.get("source").map(([n, text]) => ({ n, row: make("div", {}, make("span", { class: "number" }, n), text || " ") }));
  const listing = make("div", { class: "listing", tabindex: 0, "aria-label": "The kernel's source" }, ...lines.map((one) => one.row));
  const said = make("p", { class: "said", "aria-live": "polite" });
  const arrays = make("div", { class: "arrays" });
  const legend = make("p", { class: "legend" },
    "Filled: what the warp's lanes ask for, with their numbers where there is room; ×32 is one element for 32 lanes. " +
    "Tinted: the rest of the 32-byte sectors that move. Grey: touched before.");
  // The cost of a request stays visible next to the last of tall arrays.
  const held = make("div", { class: "held" }, make("div", { class: "row top" }, back, slider, on, count), said);
  box.append(held, listing, arrays, legend);
  box.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.target === slider) return;
    event.preventDefault();
    go(by);
  });

  function show() {
    if (!width) return;
    const at = now();
    const step = steps[at];
    slider.value = at;
    count.textContent = `${at + 1} of ${steps.length}`;
    // Not `disabled`: a disabled button loses the focus, and the arrow keys with it.
    back.setAttribute("aria-disabled", String(at === 0));
    on.setAttribute("aria-disabled", String(at === steps.length - 1));
    for (const { n, row } of lines) {
      row.className = n === step.line ? `now ${step.kind}` : "";
      if (n === step.line) listing.scrollTop = row.offsetTop - listing.offsetTop - listing.clientHeight / 2 + row.clientHeight / 2;
    }
    const buffer = buffers[step.buffer];
    const unit = buffer.space === "global" ? "sector" : "pass";
    const outside = step.elements.filter((e) => e < 0).length;
    said.replaceChildren(
      make("strong", {}, `${block[0].toUpperCase()}${block.slice(1)} ${step.block}, ${thread}${step.threads.length === 1 ? "" : "s"} ${ranges(step.threads)}`),
      ` ${step.threads.length === 1 ? step.kind : step.kind.slice(0, -1)} ${buffer.name}: `,
      make("span", { class: step.taken > step.least ? "more" : "" }, plural(step.taken, unit)),
      step.taken > step.least ? `, where ${step.least} would do` : ", the least that would do",
      outside ? make("span", { class: "more" }, `; ${outside} outside of the array`) : "");
    const seen = buffers.map(() => new Set());
    for (const before of steps.slice(0, at)) for (const e of before.elements) seen[before.buffer].add(e);
    // Shared memory is a block's own: what another block did to it is not there.
    buffers.forEach((one, i) => {
      if (one.space !== "shared") return;
      const own = steps.slice(0, at).filter((s) => s.buffer === i && s.block === step.block);
      seen[i] = new Set(own.flatMap((s) => s.elements));
    });
    arrays.replaceChildren(...buffers.map((one, i) => picture(one, i === step.buffer ? step : null, seen[i])));
  }

  function picture(buffer, step, seen) {
    const [wide, half] = [width - 2, (width - GAP) / 2 - 2].map((room) => Math.floor(room / buffer.columns));
    const side = Math.max(9, Math.min(20, buffers.length > 1 && half >= NUMBERED ? half : wide));
    const rows = Math.ceil(buffer.elements / buffer.columns);
    const moved = step ? movedCells(buffer, step.elements) : new Set();
    const lanes = new Map();
    step?.elements.forEach((element, i) => {
      lanes.set(element, [...(lanes.get(element) ?? []), step.threads[i] % WARP]);
    });
    const svg = draw("svg", {
      viewBox: `0 0 ${buffer.columns * side + 1} ${rows * side + 1}`, width: buffer.columns * side + 1, height: rows * side + 1, role: "img",
      "aria-label": step ? `${buffer.name}: elements ${ranges(step.elements)} are touched` : `${buffer.name}: not touched by this request`,
    });
    for (let element = 0; element < buffer.elements; element++) {
      const [x, y] = [(element % buffer.columns) * side + 0.5, Math.floor(element / buffer.columns) * side + 0.5];
      const kind = lanes.has(element) ? `lane ${step.kind}` : moved.has(element) ? `moved ${step.kind}` : seen.has(element) ? "seen" : "";
      svg.append(draw("rect", { class: `cell ${kind}`, x, y, width: side, height: side }));
      if (lanes.has(element) && side >= NUMBERED) {
        const [lane, ...others] = lanes.get(element);
        const label = others.length ? `×${others.length + 1}` : `${lane}`;
        const size = side * (label.length > 2 ? 0.45 : 0.55);
        svg.append(draw("text", { x: x + side / 2, y: y + side * 0.72, "font-size": size, "text-anchor": "middle" }, label));
      }
    }
    const shape = buffer.matrix ? `${rows} × ${buffer.columns}` : plural(buffer.elements, "element");
    const name = make("div", { class: "name" }, buffer.name, make("span", {}, ` ${buffer.space}, ${shape}`));
    return make("div", { class: "array" }, name, ...bankHeads(buffer, buffer.columns * side + 1), svg);
  }

  const stopWidth = watchWidth(arrays, (next) => {
    width = next;
    show();
  });
  model.on("change:step", show);
  return () => {
    stop();
    stopWidth();
    model.off("change:step", show);
  };
}

register("mlsys-accesses", render);
export default { render };
