// A scheduler that is fed by clicking: rows are requests, columns steps, a number is the tokens that a step gives them.

const SCHEDULER_STYLE = `
svg .fed { fill: var(--value); } svg .prompt { fill: var(--gradient); } svg .on { fill: var(--surface); }
svg .late { fill: var(--soft-value); stroke: var(--line); } svg .out { fill: none; stroke: var(--bad); stroke-width: 2; }
svg .free { fill: var(--raised); stroke: var(--line); stroke-width: 1.2; } svg .taken { fill: var(--soft-gradient); stroke: var(--gradient); }
svg .here { fill: none; stroke: var(--ink); stroke-width: 1.6; }
svg text { font-size: 12.5px; font-weight: 600; text-anchor: middle; } svg .quiet { fill: var(--muted); font-weight: 400; text-anchor: start; }
.feed { margin: 8px 0; }
`;

const MOST_REQUESTS = 10;

// Pages of a pool: who holds each, which are blank, and which still hold a beginning that can be found again.
class Pool {
  constructor(count, size) {
    Object.assign(this, { size, references: Array(count).fill(0), blank: [...Array(count).keys()].reverse(), evictable: [] });
    [this.contents, this.known] = [new Map(), new Map()]; // of a page: all tokens up to its end; and back
  }

  get available() {
    return this.blank.length + this.evictable.length;
  }

  allocate() {
    const page = this.blank.length ? this.blank.pop() : this.evictable.shift();
    this.forget(page);
    this.references[page] = 1;
    return page;
  }

  share(page) {
    this.evictable = this.evictable.filter((one) => one !== page);
    this.references[page] += 1;
  }

  release(page) {
    this.references[page] -= 1;
    if (!this.references[page]) (this.contents.has(page) ? this.evictable : this.blank).push(page);
  }

  forget(page) {
    this.known.delete(this.contents.get(page));
    this.contents.delete(page);
  }

  // Counts in tokens that were fed: pages that they fill can be found by prompts that begin alike.
  fill(table, tokens, before) {
    for (let index = Math.floor(before / this.size); (index + 1) * this.size <= tokens.length; index++) {
      const begins = tokens.slice(0, (index + 1) * this.size).join();
      if (this.known.has(begins) || this.contents.has(table[index])) continue;
      this.known.set(begins, table[index]);
      this.contents.set(table[index], begins);
    }
  }

  // Pages that hold the beginning of a prompt, without its last token.
  find(tokens) {
    const found = [];
    for (let end = this.size; end < tokens.length; end += this.size) {
      const page = this.known.get(tokens.slice(0, end).join());
      if (page === undefined) break;
      found.push(page);
    }
    return found;
  }
}

// Puts steps together as the package's Scheduler does, with preemption by recomputing.
class Scheduler {
  constructor({ pages, page, sequences, budget }) {
    Object.assign(this, { pool: new Pool(pages, page), sequences, budget, waiting: [], running: [], steps: 0, added: 0 });
  }

  add(name, tokens, { writes, priority }) {
    const sequence = { name, tokens, most: tokens.length + writes, rank: [this.steps - 1000 * priority, this.added], table: [], cached: 0 };
    this.added += 1;
    this.insert(this.waiting, sequence);
  }

  before(one, other) {
    return one.rank[0] < other.rank[0] || (one.rank[0] === other.rank[0] && one.rank[1] < other.rank[1]);
  }

  insert(list, sequence) {
    const at = list.findIndex((other) => this.before(sequence, other));
    list.splice(at < 0 ? list.length : at, 0, sequence);
  }

  pending(sequence) {
    return sequence.tokens.length - sequence.cached;
  }

  schedule() {
    const batch = { left: this.budget - this.running.filter((one) => this.pending(one) === 1).length, new: {}, hits: {}, preempted: [] };
    this.steps += 1;
    let [done, blocked] = [0, false];
    for (;;) {
      const head = blocked ? undefined : this.waiting[0];
      const following = this.running[done];
      if (head && (!following || this.before(head, following))) {
        const admitted = !batch.preempted.includes(head.name) && this.admit(head, batch);
        blocked = !admitted;
        done += admitted ? 1 : 0;
      } else if (following) {
        done += this.carryOn(following, batch) ? 1 : 0;
      } else {
        return batch;
      }
    }
  }

  // Sets pages aside for so many further tokens, if as many as `spare` are then left.
  reserve(sequence, count, spare = 0) {
    const missing = Math.ceil((sequence.cached + count) / this.pool.size) - sequence.table.length;
    if (Math.max(0, missing) + spare > this.pool.available) return false;
    for (let i = 0; i < missing; i++) sequence.table.push(this.pool.allocate());
    return true;
  }

  carryOn(sequence, batch) {
    const pending = this.pending(sequence);
    const count = pending === 1 ? 1 : Math.min(pending, batch.left);
    if (!count) return true;
    while (!this.reserve(sequence, count)) {
      const last = this.running.at(-1);
      this.preempt(last, batch);
      if (last === sequence) return false;
    }
    batch.left -= pending > 1 ? count : 0;
    batch.new[sequence.name] = count;
    return true;
  }

  admit(sequence, batch) {
    while (this.running.length >= this.sequences) if (!this.makeWay(sequence, batch)) return false;
    if (!batch.left) return false;
    sequence.table = this.pool.find(sequence.tokens);
    sequence.table.forEach((page) => this.pool.share(page));
    sequence.cached = sequence.table.length * this.pool.size;
    while (!this.reserve(sequence, this.pending(sequence), this.running.length)) {
      if (this.makeWay(sequence, batch)) continue;
      this.drop(sequence);
      return false;
    }
    if (sequence.cached) batch.hits[sequence.name] = sequence.cached;
    this.waiting.splice(this.waiting.indexOf(sequence), 1);
    this.insert(this.running, sequence);
    const count = Math.min(this.pending(sequence), batch.left);
    batch.left -= count;
    batch.new[sequence.name] = count;
    return true;
  }

  makeWay(sequence, batch) {
    if (!this.running.length || this.before(this.running.at(-1), sequence)) return false;
    this.preempt(this.running.at(-1), batch);
    return true;
  }

  preempt(sequence, batch) {
    batch.left += this.pending(sequence) === 1 ? 1 : 0;
    this.drop(sequence);
    this.running.splice(this.running.indexOf(sequence), 1);
    this.insert(this.waiting, sequence);
    batch.preempted.push(sequence.name);
  }

  drop(sequence) {
    while (sequence.table.length) this.pool.release(sequence.table.pop());
    sequence.cached = 0;
  }

  // Counts in what a step has fed; who has no token left to be fed writes one. Returns those that are done.
  commit(batch) {
    const fed = Object.entries(batch.new).map(([name, count]) => [this.running.find((one) => one.name === name), count]);
    for (const [sequence, count] of fed) {
      const before = sequence.cached;
      sequence.cached += count;
      this.pool.fill(sequence.table, sequence.tokens.slice(0, sequence.cached), before);
    }
    const writers = fed.map(([sequence]) => sequence).filter((sequence) => !this.pending(sequence));
    writers.forEach((sequence) => sequence.tokens.push(0));
    const done = writers.filter((sequence) => sequence.tokens.length === sequence.most);
    for (const sequence of done) {
      this.running.splice(this.running.indexOf(sequence), 1);
      this.drop(sequence);
    }
    return done.map((one) => one.name);
  }
}

// The state before the first step and after each, as `play` in scheduler.py.
function playScheduler(data) {
  const scheduler = new Scheduler(data);
  const coming = [...data.arrivals].sort((a, b) => a[0] - b[0]);
  const states = [];
  for (let number = 0; ;) {
    const batch = states.length ? scheduler.schedule() : { new: {}, hits: {}, preempted: [] };
    const done = scheduler.commit(batch);
    while (coming.length && coming[0][0] <= states.length) {
      const kind = data.kinds[coming.shift()[1]];
      const tokens = Array.from({ length: kind.prompt }, (_, i) => (i < kind.shared ? -1 - i : 100 * (number + 1) + i));
      scheduler.add(String.fromCharCode(65 + number), tokens, kind);
      number += 1;
    }
    const { running, waiting, pool } = scheduler;
    states.push({
      waiting: waiting.map((one) => one.name),
      running: running.map((one) => one.name),
      new: batch.new,
      hits: batch.hits,
      preempted: batch.preempted,
      done,
      cached: Object.fromEntries(running.map((one) => [one.name, one.cached])),
      holders: pool.references.map((_, page) => running.filter((one) => one.table.includes(page)).map((one) => one.name).join("")),
    });
    if (!running.length && !waiting.length && !coming.length) return states;
  }
}

function render({ model, el }) {
  const { box, stop } = stage(el, model.get("title") ?? "A scheduler, step by step", AXES_STYLE + STEPPER_STYLE + SCHEDULER_STYLE);
  const names = ["kinds", "pages", "page", "sequences", "arrivals", "budget"];
  let width = 0;
  let states = [];

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const last = () => states.length - 1;
  const now = () => Math.min(model.get("shown"), last());
  const walk = stepper(box, { now, last, change: (shown) => change({ shown }) });
  const add = (kind) => change({ arrivals: [...model.get("arrivals"), [now(), kind]].sort((a, b) => a[0] - b[0]) });
  const feeds = Object.entries(model.get("kinds")).map(([kind, { prompt, writes }]) =>
    make("button", { type: "button", click: () => add(kind) }, `+ ${kind}: ${prompt} tokens, writes ${writes}`));
  const clear = make("button", { type: "button", click: () => change({ arrivals: [], shown: 0 }) }, "Empty");
  const budget = slide("Tokens of a step", { min: model.get("sequences"), max: 16, step: 1 }, (value) => change({ budget: value }));
  const picture = make("div");
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  const legend = make("p", { class: "detail" }, "Orange: tokens of a prompt, or of a text that is read again. Blue: a token of a text being written. Pale: waits. Red frame: gives way.");
  box.append(walk.row, make("div", { class: "row feed" }, ...feeds, clear), budget.row, picture, legend, verdict, detail);

  function show() {
    if (!width) return;
    const data = Object.fromEntries(names.map((name) => [name, model.get(name)]));
    states = playScheduler(data);
    const [at, state] = [now(), states[now()]];
    const fed = Object.values(state.new).reduce((a, b) => a + b, 0);
    feeds.forEach((one) => (one.disabled = data.arrivals.length >= MOST_REQUESTS));
    budget.set(data.budget, String(data.budget));
    verdict.textContent = at ? `Step ${at}: ${fed} of ${data.budget} tokens` : "Before the first step";
    const said = [
      ...state.preempted.map((name) => `${name} gives way`),
      ...Object.entries(state.hits).map(([name, count]) => `${name} finds ${count} tokens in the cache`),
      ...state.done.map((name) => `${name} is done`),
      `${state.waiting.length ? state.waiting.join(", ") : "nobody"} waiting`,
      `${state.holders.filter(Boolean).length} of ${data.pages} pages of ${data.page} tokens held`,
    ];
    detail.textContent = `${said.join("; ")}.`.replace(/^./, (letter) => letter.toUpperCase());
    picture.replaceChildren(drawing(data, at, `${verdict.textContent}. ${detail.textContent}`));
    walk.show(verdict.textContent);
  }

  function drawing(data, at, label) {
    const [edge, cell, row] = [24, 20, 24];
    const count = Math.min(Math.floor((width - edge - 4) / cell), Math.max(last(), 12));
    const first = Math.max(0, at - count);
    const rows = Math.max(1, data.arrivals.length);
    const pages = Math.min(34, Math.floor((width - 8) / data.pages));
    const height = 22 + rows * row + 54;
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
    const cellAt = (step) => edge + (step - first - 1) * cell;
    for (let step = first + 1; step <= first + count; step++) {
      if (step % 2) svg.append(draw("text", { class: "steps", x: cellAt(step) + cell / 2, y: 14 }, step));
    }
    data.arrivals.forEach((_, i) => {
      const [name, y] = [String.fromCharCode(65 + i), 20 + i * row];
      const written = (step) => states[step].waiting.includes(name) || states[step].running.includes(name) || states[step].done.includes(name);
      svg.append(draw("text", { x: 10, y: y + 16 }, name));
      for (let step = first + 1; step <= at; step++) {
        if (!written(step)) continue;
        const { new: given, preempted } = states[step];
        const square = { x: cellAt(step) + 1, y: y + 1, width: cell - 2, height: row - 4, rx: 2 };
        const tokens = given[name];
        svg.append(draw("rect", { class: tokens ? (tokens > 1 ? "prompt" : "fed") : "late", "data-request": name, ...square }));
        if (tokens) svg.append(draw("text", { class: "on", x: square.x + square.width / 2, y: y + 15 }, tokens));
        if (preempted.includes(name)) svg.append(draw("rect", { class: "out", ...square }));
      }
    });
    if (at) svg.append(draw("rect", { class: "here", x: cellAt(at), y: 18, width: cell, height: rows * row }));
    const top = 20 + rows * row;
    svg.append(draw("text", { class: "quiet", x: 2, y: top + 16 }, "pages, and who holds each"));
    states[at].holders.forEach((holders, page) => {
      const x = 2 + page * pages;
      svg.append(
        draw("rect", { class: holders ? "taken" : "free", "data-holders": holders, x, y: top + 24, width: pages - 4, height: 24, rx: 3 }),
        draw("text", { x: x + pages / 2 - 2, y: top + 41 }, holders));
    });
    return svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["arrivals", "budget", "shown"], show);
  return () => {
    stop();
    walk.stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-scheduler", render);
export default { render };
