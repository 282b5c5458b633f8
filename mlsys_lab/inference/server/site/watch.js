// The engine as it works: views of it come from /watch while the page is seen and nobody has pressed Pause.

import { drawBlocks } from "./blocks.js";
import { events } from "./requests.js";
import { drawSteps } from "./steps.js";

const MOST_STEPS = 400;
const AGAIN_MS = 2000;

const find = (id) => document.getElementById(id);

export function startWatch() {
  const [status, pause] = [find("status"), find("pause")];
  let steps = [];
  let view = null;
  let watching = null;
  let timer = null;

  function draw() {
    if (!view) return;
    const { running, waiting, slots, budget, blocks } = view;
    const idle = !running.length && !waiting.length;
    const last = idle ? null : steps.at(-1);
    const tokens = last?.fed.reduce((sum, [, count]) => sum + count, 0) ?? 0;
    const held = drawBlocks(find("blocks"), view);
    drawSteps(find("steps"), steps, view);
    find("rate").textContent = idle ? "0" : String(Math.round(readRate()));
    find("running").textContent = `${running.length} of ${slots}`;
    find("waiting").textContent = String(waiting.length);
    find("fill").textContent = `${Math.round((100 * tokens) / budget)} %`;
    find("fill").title = `${tokens} of ${budget} tokens in the last step`;
    find("held").textContent = `${held} of ${blocks}`;
  }

  // Tokens a second over the last second, or since the first step where that is less.
  function readRate() {
    const lately = steps.filter((step) => step.time_s > view.time_s - 1);
    const tokens = lately.reduce((sum, step) => sum + step.wrote, 0);
    return lately.length > 1 ? tokens / Math.max(0.1, view.time_s - lately[0].time_s) : 0;
  }

  async function watch(signal) {
    for await (const next of events("/watch", { signal })) {
      if (view && next.time_s < view.time_s) steps = []; // another engine
      [view, steps] = [next, [...steps, ...next.steps].slice(-MOST_STEPS)];
      status.textContent = "Connected";
      draw();
    }
  }

  async function begin() {
    end();
    const mine = watching = new AbortController();
    const why = await watch(mine.signal).then(() => "The server ended the connection", (error) => error.message);
    if (mine.signal.aborted) return;
    status.textContent = `${why}. Trying again…`;
    timer = setTimeout(begin, AGAIN_MS);
  }

  function end() {
    clearTimeout(timer);
    watching?.abort();
  }

  const isPaused = () => pause.getAttribute("aria-pressed") === "true";
  const follow = () => (document.hidden || isPaused() ? end() : begin());
  pause.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(!isPaused()));
    if (isPaused()) status.textContent = "Paused";
    follow();
  });
  document.addEventListener("visibilitychange", follow);
  document.addEventListener("key-given", follow);
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(find("steps").parentElement);
  follow();
}
