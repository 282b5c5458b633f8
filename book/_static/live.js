// Code cells that run in the reader's browser: Run and Edit, then Stop and Reset. Nothing is loaded before the first click.
// A page's cells and what each of them needs are in <page>.cells.json; the Python is in a worker of its own (live-worker.js).
import { loadFigures } from "./widgets/load.js";

const page = location.pathname.split("/").at(-1).replace(/\.html$/, "");
const cells = new Map();
let program; // what <page>.cells.json holds, as a promise
let worker = null;
let running = null; // the cell whose Run was pressed

const button = (name, title, act) => {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = name;
  made.title = title;
  made.addEventListener("click", act);
  return made;
};

/** The part of a page that shows a cell's results; it is made for a cell that has shown none. */
function output(index) {
  const node = document.getElementById(`cell-${index}`);
  return node.querySelector(":scope > .cell_output") ?? node.appendChild(Object.assign(document.createElement("div"), { className: "cell_output docutils container" }));
}

class Cell {
  constructor(node) {
    this.node = node;
    this.index = Number(node.id.slice("cell-".length));
    this.code = node.querySelector(".cell_input > :not(button)");
    this.before = new Map(); // what was on the page: the HTML of each output that a run replaces
    this.runButton = button("Run", "Run this cell in your browser", () => (running === this ? stop() : run(this)));
    this.editButton = button("Edit", "Change this cell's code", () => this.edit());
    this.resetButton = button("Reset", "Back to the page's code and results", () => this.reset());
    this.resetButton.hidden = true;
    this.status = Object.assign(document.createElement("span"), { className: "live-status" });
    this.status.setAttribute("role", "status");
    const bar = Object.assign(document.createElement("div"), { className: "live-bar" });
    bar.append(this.runButton, this.editButton, this.resetButton, this.status);
    (node.querySelector(".cell_input")).after(bar);
  }

  /** The code as it stands, where the reader has opened the editor. */
  get edited() { return this.editor?.text; }

  async edit() {
    if (this.editor) return;
    this.editButton.disabled = true;
    const [{ createEditor }, { cells: sources }] = await Promise.all([import("./live/editor.js"), load()]);
    const place = Object.assign(document.createElement("div"), { className: "live-editor" });
    this.code.hidden = true;
    this.code.after(place);
    this.editor = createEditor(place, sources[this.index].source, () => run(this));
    this.editButton.hidden = true;
    this.resetButton.hidden = false;
  }

  reset() {
    if (running === this) stop();
    for (const [index, html] of this.before) {
      if (html === null) output(index).remove(); else output(index).innerHTML = html;
    }
    this.before.clear();
    this.node.querySelector(".live-editor")?.remove();
    this.editor = null;
    this.code.hidden = false;
    this.editButton.hidden = this.editButton.disabled = false;
    this.resetButton.hidden = true;
    this.status.textContent = "";
  }

  /** Clears an output for new results. */
  start(index) {
    const shown = document.querySelector(`#cell-${index} > .cell_output`);
    if (!this.before.has(index)) this.before.set(index, shown ? shown.innerHTML : null);
    output(index).replaceChildren();
    this.resetButton.hidden = false;
  }

  show(kind, index, content) {
    const place = output(index);
    if (kind === "html") {
      const made = Object.assign(document.createElement("div"), { className: "output text_html" });
      made.innerHTML = content;
      place.append(made);
      loadFigures(made);
    } else if (kind === "error") {
      const line = Object.assign(document.createElement("p"), { className: "live-error", textContent: content });
      line.setAttribute("role", "alert");
      place.append(line);
    } else {
      const last = place.lastElementChild;
      const stream = last?.matches(".live-text") ? last : place.appendChild(Object.assign(document.createElement("div"), { className: "output stream live-text" }));
      const text = stream.querySelector("pre") ?? stream.appendChild(document.createElement("pre"));
      text.append(content);
    }
  }
}

function load() {
  program ??= fetch(`${page}.cells.json`).then((response) => {
    if (!response.ok) throw new Error(`${page}.cells.json: ${response.status}`);
    return response.json();
  }).catch((error) => {
    program = undefined;
    throw error;
  });
  return program;
}

function setRunning(cell) {
  running = cell;
  for (const one of cells.values()) {
    one.runButton.textContent = one === cell ? "Stop" : "Run";
    one.runButton.disabled = cell !== null && one !== cell;
  }
}

async function run(cell) {
  if (running) return;
  setRunning(cell);
  try {
    const { bytes, cells: sources } = await load();
    if (running !== cell) return;
    const program = Object.fromEntries(Object.entries(sources).map(
      ([index, one]) => [index, { ...one, source: cells.get(Number(index))?.edited ?? one.source }],
    ));
    cell.status.textContent = worker ? "Running …" : `Loading Python (${Math.round(bytes / 1e6)} MB, once) …`;
    worker ??= start();
    worker.postMessage({ cells: program, index: cell.index });
  } catch (error) {
    cell.status.textContent = `Python could not be loaded: ${error.message}`;
    setRunning(null);
  }
}

function start() {
  const made = new Worker(new URL("./live-worker.js", import.meta.url), { type: "module" });
  let began = 0;
  made.onmessage = ({ data: { kind, cell: index, content } }) => {
    const cell = running;
    if (made !== worker || !cell) return;
    if (kind === "ready") {
      began = performance.now();
      cell.status.textContent = "Running …";
    } else if (kind === "start") {
      cell.start(index);
    } else if (kind === "done") {
      cell.status.textContent = `Ran in ${((performance.now() - began) / 1e3).toFixed(1)} s.`;
      setRunning(null);
    } else {
      cell.show(kind, index, content);
    }
  };
  made.onerror = () => {
    if (running) running.status.textContent = "Python could not be loaded.";
    stop();
  };
  return made;
}

/** Ends the worker; the next run begins a new one, and runs again what it needs. */
function stop() {
  worker?.terminate();
  worker = null;
  if (running && !running.status.textContent.startsWith("Python")) running.status.textContent = "Stopped.";
  setRunning(null);
}

for (const node of document.querySelectorAll(".cell.live")) {
  const cell = new Cell(node);
  cells.set(cell.index, cell);
}
