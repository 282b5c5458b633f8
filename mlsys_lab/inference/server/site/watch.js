// A view of the engine: snapshots stream in from /watch while the page is visible and not paused.

import { drawBlocks } from "./blocks.js";
import { events } from "./requests.js";
import { drawSteps } from "./steps.js";

const MAX_STEPS = 400;
const RETRY_MS = 2000;

const find = (id) => document.getElementById(id);

export function startWatch() {
  const [status, pause] = [find("status"), find("pause")];
  let steps = [];
  let snapshot = null;
  let controller = null;
  let timer = null;

  function draw() {
    if (!snapshot) return;
    const { running, waiting, max_num_seqs, max_num_batched_tokens, num_blocks } = snapshot;
    const isIdle = !running.length && !waiting.length;
    const last = isIdle ? null : steps.at(-1);
    const tokens = last?.scheduled.reduce((sum, [, count]) => sum + count, 0) ?? 0;
    const numUsed = drawBlocks(find("blocks"), snapshot);
    drawSteps(find("steps"), steps, snapshot);
    find("rate").textContent = isIdle ? "0" : String(Math.round(throughput()));
    find("running").textContent = `${running.length} of ${max_num_seqs}`;
    find("waiting").textContent = String(waiting.length);
    find("fill").textContent = `${Math.round((100 * tokens) / max_num_batched_tokens)} %`;
    find("fill").title = `${tokens} of ${max_num_batched_tokens} tokens in the last step`;
    find("used").textContent = `${numUsed} of ${num_blocks}`;
  }

  // Tokens per second over the last second, or since the first step if that is later.
  function throughput() {
    const recent = steps.filter((step) => step.time_s > snapshot.time_s - 1);
    const tokens = recent.reduce((sum, step) => sum + step.num_sampled, 0);
    return recent.length > 1 ? tokens / Math.max(0.1, snapshot.time_s - recent[0].time_s) : 0;
  }

  async function watch(signal) {
    for await (const next of events("/watch", { signal })) {
      if (snapshot && next.time_s < snapshot.time_s) steps = []; // the engine has restarted
      [snapshot, steps] = [next, [...steps, ...next.steps].slice(-MAX_STEPS)];
      status.textContent = "Connected";
      draw();
    }
  }

  async function connect() {
    disconnect();
    const mine = controller = new AbortController();
    const reason = await watch(mine.signal).then(() => "The server closed the connection", (error) => error.message);
    if (mine.signal.aborted) return;
    status.textContent = `${reason}. Retrying…`;
    timer = setTimeout(connect, RETRY_MS);
  }

  function disconnect() {
    clearTimeout(timer);
    controller?.abort();
  }

  const isPaused = () => pause.getAttribute("aria-pressed") === "true";
  const update = () => (document.hidden || isPaused() ? disconnect() : connect());
  pause.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(!isPaused()));
    if (isPaused()) status.textContent = "Paused";
    update();
  });
  document.addEventListener("visibilitychange", update);
  document.addEventListener("key-entered", update);
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(find("steps").parentElement);
  update();
}
