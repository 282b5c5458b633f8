// A pipeline's timeline: rows are ranks, a bar is a micro-batch going through a rank's layers, forward or backward, or
// the gradients of their weights, where a schedule has those apart.

const PIPELINE_STYLE = `
svg .forward { fill: var(--value); } svg .backward { fill: var(--gradient); }
svg .weight { fill: var(--soft-gradient); stroke: var(--gradient); stroke-width: 1; }
svg .second { opacity: 0.62; }
svg .idle { fill: var(--raised); stroke: var(--line); stroke-width: 1; }
svg .on { fill: var(--surface); font-size: 11px; font-weight: 600; text-anchor: middle; }
svg .on.of-weight { fill: var(--gradient); }
`;

const CHUNKS = 2;
const MAX_RANKS = 8;
const MAX_MICRO_BATCHES = 32;
const PIPELINE_SCHEDULES = ["GPipe", "1F1B", "interleaved", "zero bubble"];

// For each rank its actions in order: { kind, microBatch, chunk }, of kind "forward", "backward" or "weight".
function makeSchedule(name, ranks, microBatches) {
  const chunks = name === "interleaved" ? CHUNKS : 1;
  const count = chunks > 1 ? Math.ceil(microBatches / ranks) * ranks : microBatches;
  const size = chunks > 1 ? ranks : count;
  const forward = [];
  for (let first = 0; first < count; first += size) {
    for (let chunk = 0; chunk < chunks; chunk++) {
      for (let i = 0; i < size; i++) forward.push({ kind: "forward", microBatch: first + i, chunk });
    }
  }
  const backward = forward.map(({ microBatch, chunk }) => ({ kind: "backward", microBatch, chunk: chunks - 1 - chunk }));
  return Array.from({ length: ranks }, (_, rank) => {
    if (name === "GPipe") return [...forward, ...backward];
    const wanted = chunks === 1 ? ranks - 1 - rank : 2 * (ranks - 1 - rank) + (chunks - 1) * ranks;
    const ahead = Math.min(wanted, forward.length);
    const order = forward.slice(0, ahead);
    forward.slice(ahead).forEach((action, i) => order.push(action, backward[i]));
    order.push(...backward.slice(forward.length - ahead));
    return name === "zero bubble" ? deferWeightGradients(order, rank, count) : order;
  });
}

// A rank's actions with separate weight-gradient passes, `rank` micro-batches later.
function deferWeightGradients(order, rank, count) {
  const weight = (microBatch) => ({ kind: "weight", microBatch, chunk: 0 });
  const split = order.flatMap((action) =>
    action.kind === "backward" && action.microBatch >= rank ? [action, weight(action.microBatch - rank)] : [action]);
  for (let i = Math.max(0, count - rank); i < count; i++) split.push(weight(i));
  return split;
}

// Start and end of every action, which starts when its inputs are ready: { rank, start, end, ...action }.
function simulateSchedule(schedule) {
  const ranks = schedule.length;
  const chunks = 1 + Math.max(...schedule.flat().map((action) => action.chunk));
  const last = ranks * chunks - 1;
  const isSplit = schedule[0].some((action) => action.kind === "weight");
  const lasts = { forward: 1, backward: isSplit ? 1 : 2, weight: 1 };
  const key = (kind, microBatch, stage) => `${kind} ${microBatch} ${stage}`;
  const done = new Map();
  const at = schedule.map(() => 0);
  const free = schedule.map(() => 0);
  const bars = [];
  for (let moved = true; moved;) {
    moved = false;
    schedule.forEach((order, rank) => {
      for (; at[rank] < order.length; at[rank] += 1) {
        const action = order[at[rank]];
        const stage = action.chunk * ranks + rank;
        const { kind, microBatch } = action;
        const before = kind === "forward" ? stage - 1 : stage + 1;
        const waits = [];
        if (kind !== "forward") waits.push(key(kind === "weight" ? "backward" : "forward", microBatch, stage));
        if (kind !== "weight" && before >= 0 && before <= last) waits.push(key(kind, microBatch, before));
        if (!waits.every((one) => done.has(one))) return;
        const start = Math.max(free[rank], ...waits.map((one) => done.get(one)));
        const end = start + lasts[kind] / chunks;
        done.set(key(kind, microBatch, stage), end);
        free[rank] = end;
        bars.push({ rank, start, end, ...action });
        moved = true;
      }
    });
  }
  return bars;
}

// Largest number of (micro-batch, chunk) pairs in flight on a rank.
function maxInFlight(order) {
  const last = order.some((action) => action.kind === "weight") ? "weight" : "backward";
  let [inFlight, largest] = [0, 0];
  for (const { kind } of order) {
    inFlight += (kind === "forward") - (kind === last);
    largest = Math.max(largest, inFlight);
  }
  return largest;
}

function render({ model, el }) {
  const { box, stop } = stage(el, model.get("title") ?? "A pipeline and its idle time", AXES_STYLE + PIPELINE_STYLE);
  let width = 0;

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const kind = menu("Schedule", PIPELINE_SCHEDULES.map((name) => [name, name]), (schedule) => change({ schedule }));
  const ranks = slide("Ranks p", { min: 1, max: MAX_RANKS, step: 1 }, (value) => change({ ranks: value }));
  const micro = slide("Micro-batches m", { min: 1, max: MAX_MICRO_BATCHES, step: 1 }, (value) => change({ micro_batches: Math.min(MAX_MICRO_BATCHES, value) }));
  const picture = make("div");
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  box.append(picture, make("div", { class: "fields" }, kind.label), ranks.row, micro.row, verdict, detail);

  function show() {
    if (!width) return;
    const [name, p, m] = ["schedule", "ranks", "micro_batches"].map((one) => model.get(one));
    kind.input.value = name;
    ranks.set(p, String(p));
    const schedule = makeSchedule(name, p, m);
    const bars = simulateSchedule(schedule);
    const count = 1 + Math.max(...bars.map((bar) => bar.microBatch));
    // Interleaved schedules take multiples of p: so does the slider, or a key press would change nothing.
    const step = name === "interleaved" ? p : 1;
    Object.assign(micro.input, { min: step, max: step * Math.ceil(MAX_MICRO_BATCHES / step), step });
    micro.set(count, step > 1 ? `${count}, a multiple of p` : String(count));
    const end = Math.max(...bars.map((bar) => bar.end));
    const chunks = name === "interleaved" ? CHUNKS : 1;
    const idle = 1 - (3 * count) / end;
    picture.replaceChildren(drawing(bars, p, end, `${name} pipeline of ${p} ranks and ${count} micro-batches: ${Math.round(100 * idle)} % idle`));
    const splits = name === "zero bubble";
    const parts = chunks > 1 ? 2 : splits ? 3 : 1; // into how many (p − 1)/m is divided
    const formula = `: (p − 1)/${parts > 1 ? parts : ""}m = ${number(Number(((p - 1) / (parts * count)).toPrecision(4)))} of the work`;
    verdict.textContent = `${number(Number((100 * idle).toPrecision(3)))} % of the time idle${splits && count < p ? "" : formula}`;
    const kept = maxInFlight(schedule[0]);
    detail.textContent = `Rank 0 keeps activations of ${kept} ${kept === 1 ? "micro-batch" : "micro-batches"} at once${chunks > 1 ? ", each of half its layers" : splits ? ", as every rank does; pale: weight-gradient passes" : ""}.`;
  }

  function drawing(bars, p, end, label) {
    const [edge, row] = [30, width < 560 ? 26 : 32];
    const unit = (width - edge - 4) / end;
    const height = p * row + 8;
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
    for (let rank = 0; rank < p; rank++) {
      svg.append(
        draw("text", { x: edge - 10, y: 4 + rank * row + row * 0.62, "text-anchor": "end", class: "muted" }, rank),
        draw("rect", { class: "idle", x: edge, y: 4 + rank * row, width: width - edge - 4, height: row - 4 }));
    }
    for (const { rank, start, end: until, kind: pass, microBatch, chunk } of bars) {
      const [x, wide] = [edge + unit * start, unit * (until - start)];
      svg.append(draw("rect", {
        class: `${pass}${chunk ? " second" : ""}`, "data-rank": rank,
        x: x + 0.5, y: 4 + rank * row, width: Math.max(0.5, wide - 1), height: row - 4,
      }));
      if (wide >= (microBatch > 9 ? 17 : 11)) svg.append(draw("text", { class: `on of-${pass}`, x: x + wide / 2, y: 2 + rank * row + row / 2 + 4 }, microBatch));
    }
    return svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["schedule", "ranks", "micro_batches"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-pipeline", render);
export default { render };
