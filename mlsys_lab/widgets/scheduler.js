// Continuous batching: rows are requests, columns steps, numbers the tokens scheduled; buttons add requests.

const SCHEDULER_STYLE = `
svg .decode { fill: var(--value); } svg .prefill { fill: var(--gradient); } svg .on { fill: var(--surface); }
svg .waiting { fill: var(--soft-value); stroke: var(--line); } svg .preempted { fill: none; stroke: var(--bad); stroke-width: 2; }
svg .free { fill: var(--raised); stroke: var(--line); stroke-width: 1.2; } svg .used { fill: var(--soft-gradient); stroke: var(--gradient); }
svg .current { fill: none; stroke: var(--ink); stroke-width: 1.6; }
svg text { font-size: 12.5px; font-weight: 600; text-anchor: middle; } svg .label { fill: var(--muted); font-weight: 400; text-anchor: start; }
.requests { margin: 8px 0; }
`;

const MAX_REQUESTS = 10;

// Blocks with their reference counts; unused ones are free, or evictable as long as the prefix cache holds them.
class BlockPool {
  constructor(numBlocks, blockSize) {
    Object.assign(this, { blockSize, refCnt: Array(numBlocks).fill(0), free: [...Array(numBlocks).keys()].reverse(), evictable: [] });
    [this.keys, this.cached] = [new Map(), new Map()]; // block to the prefix that ends with it, and back
  }

  get numFree() {
    return this.free.length + this.evictable.length;
  }

  allocate() {
    const block = this.free.length ? this.free.pop() : this.evictable.shift();
    this.uncache(block);
    this.refCnt[block] = 1;
    return block;
  }

  touch(block) {
    this.evictable = this.evictable.filter((one) => one !== block);
    this.refCnt[block] += 1;
  }

  release(block) {
    this.refCnt[block] -= 1;
    if (!this.refCnt[block]) (this.keys.has(block) ? this.evictable : this.free).push(block);
  }

  uncache(block) {
    this.cached.delete(this.keys.get(block));
    this.keys.delete(block);
  }

  // Adds blocks that computed tokens have filled to the prefix cache.
  cacheFullBlocks(blockTable, tokens, numComputedBefore) {
    for (let index = Math.floor(numComputedBefore / this.blockSize); (index + 1) * this.blockSize <= tokens.length; index++) {
      const key = tokens.slice(0, (index + 1) * this.blockSize).join();
      if (this.cached.has(key) || this.keys.has(blockTable[index])) continue;
      this.cached.set(key, blockTable[index]);
      this.keys.set(blockTable[index], key);
    }
  }

  // Cached blocks of a prompt's prefix, without the prompt's last token.
  cachedPrefix(tokens) {
    const found = [];
    for (let end = this.blockSize; end < tokens.length; end += this.blockSize) {
      const block = this.cached.get(tokens.slice(0, end).join());
      if (block === undefined) break;
      found.push(block);
    }
    return found;
  }
}

// The package's Scheduler, with preemption by recompute.
class Scheduler {
  constructor({ num_blocks, block_size, max_num_seqs, token_budget }) {
    const pool = new BlockPool(num_blocks, block_size);
    Object.assign(this, { pool, maxNumSeqs: max_num_seqs, tokenBudget: token_budget, waiting: [], running: [], numSteps: 0, numAdded: 0 });
  }

  add(name, tokens, { num_output_tokens, priority }) {
    const sortKey = [this.numSteps - 1000 * priority, this.numAdded];
    this.numAdded += 1;
    this.insert(this.waiting, { name, tokens, maxLength: tokens.length + num_output_tokens, sortKey, blockTable: [], numComputed: 0 });
  }

  isBefore(seq, other) {
    return seq.sortKey[0] < other.sortKey[0] || (seq.sortKey[0] === other.sortKey[0] && seq.sortKey[1] < other.sortKey[1]);
  }

  insert(queue, seq) {
    const index = queue.findIndex((other) => this.isBefore(seq, other));
    queue.splice(index < 0 ? queue.length : index, 0, seq);
  }

  numUncomputed(seq) {
    return seq.tokens.length - seq.numComputed;
  }

  schedule() {
    const numDecodes = this.running.filter((seq) => this.numUncomputed(seq) === 1).length;
    const output = { tokenBudget: this.tokenBudget - numDecodes, numScheduled: {}, numCached: {}, preempted: [] };
    this.numSteps += 1;
    let [numVisited, isBlocked] = [0, false];
    for (;;) {
      const waiting = isBlocked ? undefined : this.waiting[0];
      const running = this.running[numVisited];
      if (waiting && (!running || this.isBefore(waiting, running))) {
        isBlocked = output.preempted.includes(waiting.name) || !this.admit(waiting, output);
        numVisited += isBlocked ? 0 : 1;
      } else if (running) {
        numVisited += this.scheduleRunning(running, output) ? 1 : 0;
      } else {
        return output;
      }
    }
  }

  // Allocates blocks for new tokens; false, with nothing changed, if fewer than `numFreeReserved` would stay free.
  allocateSlots(seq, numNewTokens, numFreeReserved = 0) {
    const numBlocks = Math.ceil((seq.numComputed + numNewTokens) / this.pool.blockSize) - seq.blockTable.length;
    if (Math.max(0, numBlocks) + numFreeReserved > this.pool.numFree) return false;
    for (let i = 0; i < numBlocks; i++) seq.blockTable.push(this.pool.allocate());
    return true;
  }

  scheduleRunning(seq, output) {
    const numUncomputed = this.numUncomputed(seq);
    const numTokens = numUncomputed === 1 ? 1 : Math.min(numUncomputed, output.tokenBudget);
    if (!numTokens) return true;
    while (!this.allocateSlots(seq, numTokens)) {
      const last = this.running.at(-1);
      this.preempt(last, output);
      if (last === seq) return false;
    }
    output.tokenBudget -= numUncomputed > 1 ? numTokens : 0;
    output.numScheduled[seq.name] = numTokens;
    return true;
  }

  admit(seq, output) {
    while (this.running.length >= this.maxNumSeqs) if (!this.preemptLaterThan(seq, output)) return false;
    if (!output.tokenBudget) return false;
    seq.blockTable = this.pool.cachedPrefix(seq.tokens);
    seq.blockTable.forEach((block) => this.pool.touch(block));
    seq.numComputed = seq.blockTable.length * this.pool.blockSize;
    while (!this.allocateSlots(seq, this.numUncomputed(seq), this.running.length)) {
      if (this.preemptLaterThan(seq, output)) continue;
      this.free(seq);
      return false;
    }
    if (seq.numComputed) output.numCached[seq.name] = seq.numComputed;
    this.waiting.splice(this.waiting.indexOf(seq), 1);
    this.insert(this.running, seq);
    const numTokens = Math.min(this.numUncomputed(seq), output.tokenBudget);
    output.tokenBudget -= numTokens;
    output.numScheduled[seq.name] = numTokens;
    return true;
  }

  preemptLaterThan(seq, output) {
    if (!this.running.length || this.isBefore(this.running.at(-1), seq)) return false;
    this.preempt(this.running.at(-1), output);
    return true;
  }

  preempt(seq, output) {
    output.tokenBudget += this.numUncomputed(seq) === 1 ? 1 : 0;
    this.free(seq);
    this.running.splice(this.running.indexOf(seq), 1);
    this.insert(this.waiting, seq);
    output.preempted.push(seq.name);
  }

  free(seq) {
    while (seq.blockTable.length) this.pool.release(seq.blockTable.pop());
    seq.numComputed = 0;
  }

  // Counts scheduled tokens as computed, and samples a token for sequences without uncomputed ones. Returns finished names.
  updateFromOutput(output) {
    const scheduled = Object.entries(output.numScheduled).map(([name, count]) => [this.running.find((seq) => seq.name === name), count]);
    for (const [seq, count] of scheduled) {
      const before = seq.numComputed;
      seq.numComputed += count;
      this.pool.cacheFullBlocks(seq.blockTable, seq.tokens.slice(0, seq.numComputed), before);
    }
    const sampled = scheduled.map(([seq]) => seq).filter((seq) => !this.numUncomputed(seq));
    sampled.forEach((seq) => seq.tokens.push(0));
    const finished = sampled.filter((seq) => seq.tokens.length === seq.maxLength);
    for (const seq of finished) {
      this.running.splice(this.running.indexOf(seq), 1);
      this.free(seq);
    }
    return finished.map((seq) => seq.name);
  }
}

// The state before the first step and after each, as by `run_scheduler` in scheduler.py.
function runScheduler(data) {
  const scheduler = new Scheduler(data);
  const pending = [...data.arrivals].sort((a, b) => a[0] - b[0]);
  const states = [];
  for (let number = 0; ;) {
    const output = states.length ? scheduler.schedule() : { numScheduled: {}, numCached: {}, preempted: [] };
    const finished = scheduler.updateFromOutput(output);
    while (pending.length && pending[0][0] <= states.length) {
      const kind = data.kinds[pending.shift()[1]];
      const tokens = Array.from({ length: kind.num_prompt_tokens }, (_, i) => (i < kind.num_shared_tokens ? -1 - i : 100 * (number + 1) + i));
      scheduler.add(String.fromCharCode(65 + number), tokens, kind);
      number += 1;
    }
    const { running, waiting, pool } = scheduler;
    states.push({
      waiting: waiting.map((seq) => seq.name),
      running: running.map((seq) => seq.name),
      preempted: output.preempted,
      finished,
      num_scheduled_tokens: output.numScheduled,
      num_cached_tokens: output.numCached,
      num_computed_tokens: Object.fromEntries(running.map((seq) => [seq.name, seq.numComputed])),
      owners: pool.refCnt.map((_, block) => running.filter((seq) => seq.blockTable.includes(block)).map((seq) => seq.name).join("")),
    });
    if (!running.length && !waiting.length && !pending.length) return states;
  }
}

function render({ model, el }) {
  const { box, stop } = stage(el, model.get("title") ?? "A scheduler, step by step", AXES_STYLE + STEPPER_STYLE + SCHEDULER_STYLE);
  const names = ["kinds", "num_blocks", "block_size", "max_num_seqs", "arrivals", "token_budget"];
  let width = 0;
  let states = [];

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const last = () => states.length - 1;
  const now = () => Math.min(model.get("step"), last());
  const controls = stepper(box, { now, last, change: (step) => change({ step }) });
  const add = (kind) => change({ arrivals: [...model.get("arrivals"), [now(), kind]].sort((a, b) => a[0] - b[0]) });
  const addButtons = Object.entries(model.get("kinds")).map(([kind, { num_prompt_tokens, num_output_tokens }]) =>
    make("button", { type: "button", click: () => add(kind) }, `+ ${kind}: ${num_prompt_tokens} prompt, ${num_output_tokens} output tokens`));
  const clear = make("button", { type: "button", click: () => change({ arrivals: [], step: 0 }) }, "Clear");
  const budget = slide("Token budget", { min: model.get("max_num_seqs"), max: 16, step: 1 }, (value) => change({ token_budget: value }));
  const picture = make("div");
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  const legend = make("p", { class: "detail" }, "Orange: prefill, or recompute after a preemption. Blue: decode. Pale: waiting. Red frame: preempted.");
  box.append(controls.row, make("div", { class: "row requests" }, ...addButtons, clear), budget.row, picture, legend, verdict, detail);

  function show() {
    if (!width) return;
    const data = Object.fromEntries(names.map((name) => [name, model.get(name)]));
    states = runScheduler(data);
    const [step, state] = [now(), states[now()]];
    const numTokens = Object.values(state.num_scheduled_tokens).reduce((a, b) => a + b, 0);
    addButtons.forEach((button) => (button.disabled = data.arrivals.length >= MAX_REQUESTS));
    budget.set(data.token_budget, String(data.token_budget));
    verdict.textContent = step ? `Step ${step}: ${numTokens} of ${data.token_budget} tokens` : "Before the first step";
    const events = [
      ...state.preempted.map((name) => `${name} is preempted`),
      ...Object.entries(state.num_cached_tokens).map(([name, count]) => `${name} has ${count} cached tokens`),
      ...state.finished.map((name) => `${name} has finished`),
      `${state.waiting.length ? state.waiting.join(", ") : "none"} waiting`,
      `${state.owners.filter(Boolean).length} of ${data.num_blocks} blocks of ${data.block_size} tokens in use`,
    ];
    detail.textContent = `${events.join("; ")}.`.replace(/^./, (letter) => letter.toUpperCase());
    picture.replaceChildren(drawing(data, step, `${verdict.textContent}. ${detail.textContent}`));
    controls.show(verdict.textContent);
  }

  function drawing(data, current, label) {
    const [nameWidth, cell, row] = [24, 20, 24];
    const count = Math.min(Math.floor((width - nameWidth - 4) / cell), Math.max(last(), 12));
    const first = Math.max(0, current - count);
    const rows = Math.max(1, data.arrivals.length);
    const blockWidth = Math.min(34, Math.floor((width - 8) / data.num_blocks));
    const height = 22 + rows * row + 54;
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
    const cellX = (step) => nameWidth + (step - first - 1) * cell;
    for (let step = first + 1; step <= first + count; step++) {
      if (step % 2) svg.append(draw("text", { class: "steps", x: cellX(step) + cell / 2, y: 14 }, step));
    }
    data.arrivals.forEach((_, i) => {
      const [name, y] = [String.fromCharCode(65 + i), 20 + i * row];
      const isKnown = (step) => ["waiting", "running", "finished"].some((group) => states[step][group].includes(name));
      svg.append(draw("text", { x: 10, y: y + 16 }, name));
      for (let step = first + 1; step <= current; step++) {
        if (!isKnown(step)) continue;
        const { num_scheduled_tokens, preempted } = states[step];
        const square = { x: cellX(step) + 1, y: y + 1, width: cell - 2, height: row - 4, rx: 2 };
        const tokens = num_scheduled_tokens[name];
        svg.append(draw("rect", { class: tokens ? (tokens > 1 ? "prefill" : "decode") : "waiting", "data-request": name, ...square }));
        if (tokens) svg.append(draw("text", { class: "on", x: square.x + square.width / 2, y: y + 15 }, tokens));
        if (preempted.includes(name)) svg.append(draw("rect", { class: "preempted", ...square }));
      }
    });
    if (current) svg.append(draw("rect", { class: "current", x: cellX(current), y: 18, width: cell, height: rows * row }));
    const top = 20 + rows * row;
    svg.append(draw("text", { class: "label", x: 2, y: top + 16 }, "KV cache blocks, and the requests that use each"));
    states[current].owners.forEach((owners, block) => {
      const x = 2 + block * blockWidth;
      svg.append(
        draw("rect", { class: owners ? "used" : "free", "data-owners": owners, x, y: top + 24, width: blockWidth - 4, height: 24, rx: 3 }),
        draw("text", { x: x + blockWidth / 2 - 2, y: top + 41 }, owners));
    });
    return svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["arrivals", "token_budget", "step"], show);
  return () => {
    stop();
    controls.stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-scheduler", render);
export default { render };
